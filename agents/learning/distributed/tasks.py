"""Spreads work whose parts are independent of each other over a cluster, as tasks of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from parenvs.agents.learning.distributed.session import check_ray, session
from parenvs.errors import ParenvsError, did_you_mean, shown

LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)
"""Where independent runs are performed: in processes of this machine, or as tasks of Ray."""
TRIES = 3
"""How often Ray performs a task whose process dies."""
Item = TypeVar("Item")
Found = TypeVar("Found")


def check_engine(name: str, address: str | None = None) -> None:
    """Check the name of an engine, and what goes with it.

    Args:
        name: one of ``ENGINES``.
        address: of the cluster of Ray, or None.

    Raises:
        ParenvsError: it is unknown, Ray is wanted and not there, or ``address`` is not for it.
    """
    if name not in ENGINES:
        raise ParenvsError(
            f"--engine: no engine {shown(name)}{did_you_mean(name, ENGINES)}; known: "
            f"{', '.join(ENGINES)}"
        )
    if name == RAY:
        check_ray(address)
    elif address is not None:
        raise ParenvsError(f"--address is an option of --engine {RAY}")


def on_ray(
    function: Callable[[Item], Found],
    items: Iterable[Item],
    jobs: int = 2,
    address: str | None = None,
    in_order: bool = False,
) -> Iterator[Found]:
    """Call a function for each item, as tasks of Ray, and yield what it returns.

    A task whose process dies is performed again. An error of the function, or an interruption, ends
    all tasks.

    Args:
        function: takes an item; it, items and what it returns are pickled.
        items: the items.
        jobs: tasks at once.
        address: of a cluster of Ray; None starts Ray on this machine.
        in_order: whether results come in the order of the items; else as they are done.
    """
    with session(address, jobs) as ray:
        remote = ray.remote(num_cpus=1, max_retries=TRIES)(_call)
        waiting = enumerate(items)
        pending: dict[Any, int] = {}
        ready: dict[int, Found] = {}
        due = 0
        try:
            while True:
                while len(pending) + len(ready) < (2 * jobs if in_order else jobs):
                    number, item = next(waiting, (-1, None))
                    if number < 0:
                        break
                    pending[remote.remote(function, item)] = number
                if not pending:
                    break
                for reference in ray.wait(list(pending), num_returns=1)[0]:
                    ready[pending.pop(reference)] = _got(ray, reference)
                while ready and (not in_order or due in ready):
                    yield ready.pop(due if in_order else next(iter(ready)))
                    due += 1
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _call(function: Callable[[Item], Found], item: Item) -> Found:
    import parenvs  # noqa: F401  # registers the environments in the task's process

    return function(item)


def _got(ray: Any, reference: Any) -> Any:
    """What a task returned; its own error is raised as it was."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ParenvsError):
            raise ParenvsError(str(error.cause)) from None
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
        raise ParenvsError(
            f"a task's process died {TRIES + 1} times; the same command goes on from here, with "
            "fewer --jobs if memory ran out"
        ) from None
