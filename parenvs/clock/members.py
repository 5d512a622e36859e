"""Local processes that work together: started together, ended together, none left over.

Nothing here needs PyTorch or JAX.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parenvs.core.registry import DEFAULT, TASKS
from parenvs.errors import ParenvsError, one_line, shown

_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
# Seconds in which a process has to end before it is killed.
_END_SECONDS = 2.0
# Seconds in which others tell why they failed, behind the first that did.
_LATER_SECONDS = 1.0
# Words of the errors of processes whose neighbor is gone.
_NETWORK = re.compile("lost another|connection|gloo|socket|timed out|broken pipe|recv|nccl|peer")


def run_members(
    work: Callable[..., Any],
    given: Sequence[Sequence[Any]],
    preload: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    limit: float | None = None,
) -> list[Any]:
    """Run ``work(*given[rank])`` in a process for each rank.

    If one fails or is killed, or this process is interrupted or killed, all of them end.

    Args:
        work: a function that the processes can import.
        given: what it takes, by rank.
        preload: modules that a server imports once, which all processes are then copies of; with
            none, every process starts anew.
        environment: variables of processes that start anew.
        limit: seconds after which they are ended, if none has answered.

    Returns:
        What the work returned, by rank.

    Raises:
        ParenvsError: one of them failed, or took too long; the line says which, and why.
    """
    pipes, members = [], []
    try:
        for arguments in given:
            our_end, member = start_member(_member, (work, tuple(arguments)), preload, environment)
            pipes.append(our_end)
            members.append(member)
        answers = _answers(pipes, members, limit)
        for member in members:
            member.join(_END_SECONDS)
        return answers
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.join(_END_SECONDS)
            if member.is_alive():
                member.kill()
                member.join()
        for pipe in pipes:
            pipe.close()


def start_member(
    work: Callable[..., Any],
    given: Sequence[Any],
    preload: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[Any, Any]:
    """Start ``work(pipe, *given)`` in a process of its own.

    Args:
        work: a function that the process can import; its pipe sends and receives.
        given: what else it takes.
        preload: see ``run_members``.
        environment: see ``run_members``.

    Returns:
        The other end of its pipe, and the process, of ``multiprocessing``.
    """
    context: Any = multiprocessing.get_context(_START if preload else "spawn")
    if preload and _START == "forkserver":
        context.set_forkserver_preload(list(preload))
    our_end, their_end = context.Pipe()
    member = context.Process(target=work, args=(their_end, *given), daemon=True)
    # New processes inherit the environment, so it is changed around the start alone.
    with _environment({**_quiet(), **(environment or {})}):
        member.start()
    their_end.close()
    return our_end, member


def shared_memory_bytes(count: int) -> float:
    """Return the memory of one of ``count`` processes or devices that share this machine's.

    Raises:
        ParenvsError: the system does not tell it.
    """
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on Windows
        raise ParenvsError("--device cpu: the system does not tell its memory") from None
    # In a container the machine's memory is not what may be used.
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text(encoding="utf-8").strip() if limit.exists() else "max"
    return float(min(whole, int(text)) if text.isdecimal() else whole) / count


def system_load() -> float:
    """Return the processes that wanted a core in the last minute; -1 if it is not known."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the stack that PyTorch writes below it."""
    return one_line(RuntimeError(str(error).split("\n")[0])) or type(error).__name__


def _member(pipe: Any, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        answer = (False, work(*given))
    except KeyboardInterrupt:
        return
    except Exception as error:  # told by the process that waits
        answer = (True, first_line(error))
    pipe.send(answer)
    pipe.close()


def _answers(pipes: Sequence[Any], members: Sequence[Any], limit: float | None) -> list[Any]:
    """Return what members sent, pairs of whether they failed and a value; None is one that died."""
    answers: dict[int, Any] = {}
    failed: dict[int, Any] = {}
    deadline = None if limit is None else time.monotonic() + limit
    while len(answers) + len(failed) < len(pipes):
        waiting = {x: rank for rank, x in enumerate(pipes) if rank not in answers | failed}
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready: list[Any] = connection.wait(list(waiting), remaining)
        if not ready:
            break
        first_failure = not failed
        for pipe in ready:
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                answer = None
            (failed if answer is None or answer[0] else answers)[waiting[pipe]] = answer
        # A process that dies makes its neighbors fail a moment later: hear them all, then choose.
        if failed and first_failure:
            deadline = time.monotonic() + _LATER_SECONDS
    if failed:
        raise _failure(failed, members)
    if len(answers) < len(pipes):
        raise ParenvsError(f"stopped after {limit:,.0f} s; give it longer")
    return [answers[rank][1] for rank in range(len(pipes))]


def _failure(failed: Mapping[int, Any], members: Sequence[Any]) -> ParenvsError:
    """The reason why processes failed: that of the first cause, not of those that missed it."""

    def distance_to_cause(rank: int) -> int:
        answer = failed[rank]
        return 0 if answer is None else 1 + bool(_NETWORK.search(answer[1].lower()))

    rank = min(sorted(failed), key=distance_to_cause)
    if failed[rank] is not None:
        return ParenvsError(f"process {rank} of {len(members)}: {failed[rank][1]}")
    members[rank].join(_LATER_SECONDS)
    code = members[rank].exitcode
    words = "ended without a word"
    if code is not None and code < 0:
        words = f"was ended by {signal.Signals(-code).name}"
    elif code:
        words = f"ended with status {code}, without a word"
    return ParenvsError(f"process {rank} of {len(members)} {words}")


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)


def _quiet() -> dict[str, str]:
    """Environment of new processes: one thread of OpenMP, unless set, and no tracker's warnings."""
    # Libraries leave locks to Python's tracker, which complains of processes that had to be ended.
    ignored = "ignore:resource_tracker:UserWarning"
    rules = os.environ.get("PYTHONWARNINGS", "")
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONWARNINGS": rules if ignored in rules else ",".join(filter(None, [rules, ignored])),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


class Timing(NamedTuple):
    """Seconds of several runs: their median, and lower and upper quartile."""

    seconds: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, samples: Sequence[float] | Sequence[Sequence[float]]) -> Timing:
        """Summarize samples.

        Args:
            samples: (repeats,) seconds, or (processes, repeats) of processes that ran together,
                of which the last to end counts.
        """
        runs = np.asarray(samples, np.float64)
        # Processes that run together have ended when the last one has.
        runs = runs.max(axis=0) if runs.ndim == 2 else runs
        low, middle, high = np.quantile(runs, (0.25, 0.5, 0.75)).tolist()
        return cls(middle, low, high, runs.size)


def started() -> Callable[[], float]:
    """Start a watch, and return what stops it and tells the seconds between."""
    begin = time.perf_counter()
    return lambda: time.perf_counter() - begin


def samples(
    run: Callable[..., Any],
    repeats: int,
    warm_up: int = 1,
    before: Callable[[], Any] = lambda: None,
    watch: Callable[[], Callable[[], float]] = started,
) -> list[float]:
    """Return the seconds of each of ``repeats`` runs.

    Args:
        run: what is timed.
        repeats: number of runs that count.
        warm_up: runs before them that do not.
        before: is called before each run, untimed; a barrier, for example.
        watch: starts before each run, and gives what stops behind it and tells the seconds.
    """
    seconds = []
    for _ in range(warm_up + repeats):
        before()
        stop = watch()
        run()
        seconds.append(stop())
    return seconds[warm_up:]


# Seconds of one run from which on it is not repeated.
_SLOW = 1.0


def repeated(
    run: Callable[[], Any],
    repeats: int,
    warm_up: int = 0,
    watch: Callable[[], Callable[[], float]] = started,
) -> list[float]:
    """Time a kernel; one that takes long runs once, behind the runs that warm up or compile."""
    (first,) = samples(run, 1, warm_up, watch=watch)
    is_short = first < _SLOW
    return samples(run, repeats if is_short else 1, int(is_short), watch=watch)


Shape = tuple[str, int, int, int, int]
"""What a matrix product makes, groups, m, k and n, see ``parenvs.cluster.Measured``."""


def timed_products(
    precisions: Iterable[str],
    shapes: Sequence[Shape],
    kind: str,
    prepare: Callable[[str, Shape], Callable[[], Any]],
    time: Callable[[Callable[[], Any]], list[float]],
) -> tuple[dict[tuple[str, Shape], list[float]], dict[str, str]]:
    """Time matrix products of each shape in each precision.

    Shapes behind one that takes a second are left out.

    Args:
        precisions: by name, see ``parenvs.cluster.PRECISIONS``.
        shapes: the sizes, the smallest first.
        kind: ``"cpu"`` or ``"cuda"``.
        prepare: makes the arrays of a precision and a shape, and returns the product.
        time: see ``repeated``.

    Returns:
        (precision, shape) -> samples in seconds, and precision -> why it was not measured.
    """
    rates, missing = {}, {}
    for precision in precisions:
        if precision == "tf32" and kind == "cpu":
            missing[precision] = "CPUs have none"
            continue
        try:
            for shape in shapes:
                rates[precision, shape] = time(prepare(precision, shape))
                if max(rates[precision, shape]) > _SLOW:
                    size = " x ".join(map(str, shape[2:]))
                    missing[precision] = f"larger than {size}, which takes a second"
                    break
        except Exception as error:  # of any kind, from within PyTorch or XLA
            missing[precision] = one_line(error)
    return rates, missing


ELEMENT = 4
"""Bytes of a float32, in which collectives and plans run here."""


def sized(size: int, group: int) -> int:
    """Return ``size``, rounded so that every process of a group has as many whole elements."""
    return max(1, round(size / (ELEMENT * group))) * group * ELEMENT


def check_devices(kind: str, count: int, framework: str, available: int) -> None:
    """Refuse devices that this machine does not have.

    Raises:
        ParenvsError: the kind is unknown, or there are fewer than ``count``.
    """
    if kind not in ("cpu", "cuda"):
        raise ParenvsError(f"--device {shown(kind)} is unknown; known: cpu, cuda")
    if available < count:
        raise ParenvsError(
            f"--device {kind}: {count} asked for, and {framework} sees {available} here"
        )


def first_uses(layers: Iterable[Mapping[Any, int]]) -> list[int]:
    """Return the bytes of what each layer is the first to use, given the bytes of all it uses."""
    seen: set[Any] = set()
    sizes = []
    for used in layers:
        sizes.append(sum(size for key, size in used.items() if key not in seen))
        seen |= used.keys()
    return sizes


@dataclass(frozen=True)
class Layers:
    """The measured layers of a model.

    Attributes:
        whole: forward and backward pass of the whole model with its loss.
    """

    profile: Any
    forward: tuple[Timing, ...]
    backward: tuple[Timing, ...]
    whole: tuple[Timing, Timing]
    samples: int
    processes: int = 1

    @classmethod
    def of(
        cls,
        name: str,
        names: Sequence[str],
        timings: Sequence[tuple[Timing, Timing]],
        whole: tuple[Timing, Timing],
        samples: int,
        **columns: Sequence[float],
    ) -> Layers:
        """Return measured layers, with the chain that the default task plans as their profile.

        Args:
            name: of the model.
            names: of the layers.
            timings: forward and backward pass of each layer.
            whole: see ``Layers``.
            samples: see ``Layers``.
            **columns: bytes by layer: ``cut_bytes``, ``parameter_bytes`` and ``resident_bytes``.
        """
        forward, backward = zip(*timings, strict=True)
        profile = TASKS[DEFAULT].profile(
            name=name,
            names=np.array(names, object),
            forward=np.array([x.seconds for x in forward]),
            backward=np.array([x.seconds for x in backward]),
            **{key: np.array(column, np.float64) for key, column in columns.items()},
        )
        return cls(profile, forward, backward, whole, samples)

    @classmethod
    def slowest(cls, several: Sequence[Layers]) -> Layers:
        """Return layers that several processes measured at once: of each timing the longest."""
        first = several[0]
        forward, backward, whole = (
            tuple(max(rows) for rows in zip(*(getattr(x, key) for x in several), strict=True))
            for key in ("forward", "backward", "whole")
        )
        seconds = [np.array([x.seconds for x in timings]) for timings in (forward, backward)]
        profile = replace(first.profile, forward=seconds[0], backward=seconds[1])
        return cls(profile, forward, backward, (whole[0], whole[1]), first.samples, len(several))

    @property
    def outside(self) -> float:
        """Seconds of the whole step that no layer accounts for; negative if layers take longer."""
        return sum(x.seconds for x in self.whole) - float(self.profile.seconds.sum())

    def comments(self) -> Iterator[str]:
        """Yield what the file of the profile says of its making."""
        whole = sum(x.seconds for x in self.whole)
        at_once = f" in {self.processes} processes at once" if self.processes > 1 else ""
        runs = f"median of {self.forward[0].repeats} runs{at_once}"
        yield f"one micro-batch of {self.samples}; {runs}"
        yield f"whole step {1e3 * whole:.4g} ms, of which {1e3 * self.outside:.4g} ms in no layer"
        for name, *passes in zip(self.profile.names, self.forward, self.backward, strict=True):
            spread = ", ".join(f"{1e3 * x.low:.4g} to {1e3 * x.high:.4g}" for x in passes)
            yield f"quartiles of {name} in ms, forward and backward: {spread}"
