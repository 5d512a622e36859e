"""Engines: what starts processes that hold an object each, and calls its methods."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import connection
from typing import Any

from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.distributed.tasks import LOCAL, RAY
from parenvs.agents.learning.distributed.wire import packed, received, sent, unpacked
from parenvs.errors import ParenvsError, one_line

_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_PRELOAD = ["parenvs.agents.learning.distributed.team", "torch._dynamo", "scipy.optimize"]
"""Modules that are imported once for all processes; the first optimiser needs the second."""
END_SECONDS = 2.0
"""Seconds in which a process has to end before it is killed."""
CLUSTER_SECONDS = 60.0
"""Seconds in which a cluster has to find room for all processes."""


class LostError(ParenvsError):
    """A process of a training is gone, or what it was connected to."""


class Engine(ABC):
    """Starts processes and asks them; all of them end with it, or with the process that has it."""

    @abstractmethod
    def start(self, count: int, make: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """Start processes; number i holds ``make(*(each[i] for each in given))``."""

    @abstractmethod
    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        """Call a method of a process's object, and wait for nothing."""

    @abstractmethod
    def answers(self, asked: Sequence[Any]) -> list[Any]:
        """Wait for what methods return that ``ask`` has called.

        Raises:
            LostError: a process is gone.
            Exception: what the first method raised that did.
        """

    @abstractmethod
    def end(self) -> None:
        """End all processes."""

    def _ready(self, processes: list[Any], asked: Sequence[Any]) -> list[Any]:
        """Return processes that have made their objects; end all if one has not."""
        try:
            self.answers(asked)
        except BaseException:
            self.end()
            raise
        return processes

    def spent(self, processes: Sequence[Any]) -> float:
        """Return the processor seconds of processes so far."""
        return float(sum(self.all(processes, "")))

    def all(
        self, processes: Sequence[Any], name: str, given: Sequence[Sequence[Any]] | None = None
    ) -> list[Any]:
        """Call a method of each process, by arguments of its own, and wait; see ``answers``."""
        own = [()] * len(processes) if given is None else given
        return self.answers(
            [self.ask(each, name, *more) for each, more in zip(processes, own, strict=True)]
        )


class Local(Engine):
    """Processes of this machine, copies of one that has imported all."""

    def __init__(self) -> None:
        self.processes: list[tuple[Any, Any]] = []  # pipe, process
        atexit.register(self.end)  # before processes that go on are waited for

    def start(self, count: int, make: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """See ``Engine.start``."""
        context: Any = multiprocessing.get_context(_START)
        if _START == "forkserver":
            context.set_forkserver_preload(_PRELOAD)
        begun = len(self.processes)
        for own in zip(*given, strict=True):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, own))
            process.start()
            theirs.close()
            self.processes.append((pipe, process))
        made = self.processes[begun:]
        return self._ready(made, made)

    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        """See ``Engine.ask``; a process is asked one thing at a time."""
        with contextlib.suppress(OSError):  # it is gone, which the answer tells
            process[0].send_bytes(sent((name, arguments)))
        return process

    def answers(self, asked: Sequence[Any]) -> list[Any]:
        """See ``Engine.answers``."""
        found: dict[int, Any] = {}
        waiting = {process[0]: number for number, process in enumerate(asked)}
        while waiting:
            told: list[Any] = connection.wait(list(waiting))
            for pipe in told:
                number = waiting.pop(pipe)
                try:
                    is_error, found[number] = received(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise LostError(f"process {asked[number][1].pid} is gone") from None
                if is_error:
                    raise found[number]
        return [found[number] for number in range(len(asked))]

    def end(self) -> None:
        """See ``Engine.end``."""
        for pipe, _ in self.processes:
            pipe.close()
        for _, process in self.processes:
            process.terminate()
        for _, process in self.processes:
            process.join(END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes = []
        atexit.unregister(self.end)


class OnRay(Engine):
    """Actors of Ray, all on a placement group: none starts before there is room for all.

    What they start has its room in the same group, as a group that an actor made would outlive it.

    Args:
        address: of a cluster; None: Ray is started on this machine, or used if it is there.
        device: a GPU is asked for each process unless it is ``cpu``.
        inner: how many will be started in its processes.
        processes: how many will be started in all.
    """

    def __init__(self, address: str | None, device: str, inner: int, processes: int) -> None:
        self.gpus, self.inner = int(not device.startswith("cpu")), inner
        self.opened = contextlib.ExitStack()
        self.ray = self.opened.enter_context(session(address, processes))
        self.actors: list[Any] = []
        self.groups: list[Any] = []

    def start(self, count: int, make: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """See ``Engine.start``.

        Raises:
            ParenvsError: the cluster has no room for all.
        """
        from ray.util.placement_group import get_current_placement_group, placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = {"CPU": 1, **({"GPU": self.gpus} if self.gpus else {})}
        group = get_current_placement_group()
        if group is None:
            group = placement_group([needs] * count + [{"CPU": 1}] * self.inner)
            self.groups.append(group)
            self.inner = 0
            if not group.wait(CLUSTER_SECONDS):
                raise ParenvsError(
                    f"the cluster of Ray has no room for {count} processes of {needs}"
                )
        where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        remote = self.ray.remote(_Held).options(
            num_cpus=1, num_gpus=self.gpus, scheduling_strategy=where
        )
        dumps = self.ray.cloudpickle.dumps
        made = [remote.remote(sys.path, dumps((make, own))) for own in zip(*given, strict=True)]
        self.actors += made
        return self._ready(made, [each.call.remote("", ()) for each in made])

    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        """See ``Engine.ask``."""
        return process.call.remote(name, packed(arguments))

    def answers(self, asked: Sequence[Any]) -> list[Any]:
        """See ``Engine.answers``."""
        waiting = list(asked)
        found = {}
        while waiting:
            (done,), waiting = self.ray.wait(waiting, num_returns=1)
            try:
                found[done] = unpacked(self.ray.get(done))
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self.ray.exceptions.RayError as error:
                raise LostError(one_line(error)) from None
        return [found[each] for each in asked]

    def end(self) -> None:
        """See ``Engine.end``."""
        from ray.util.placement_group import remove_placement_group

        for actor in self.actors:
            self.ray.kill(actor)
        for group in self.groups:
            remove_placement_group(group)
        self.actors, self.groups = [], []
        self.opened.close()


class _Held:
    """An object in a process of its own.

    Args:
        path: where the process that asks finds modules; one's own agents may be there alone.
        given: what makes the object, and its arguments, pickled.
    """

    def __init__(self, path: list[str], given: bytes) -> None:
        sys.path += [each for each in path if each not in sys.path]
        import parenvs  # noqa: F401  # registers the environments

        make, arguments = pickle.loads(given)  # by a process of this training
        self.make: Any = lambda: make(*arguments)
        self.held: Any = None

    def call(self, name: str, arguments: Any) -> Any:
        """Call a method; of no name, the processor seconds of this process."""
        if self.held is None:
            self.held = self.make()
        found = getattr(self.held, name)(*unpacked(arguments)) if name else time.process_time()
        return packed(found)


def _serve(pipe: Any, make: Callable[..., Any], given: tuple[Any, ...]) -> None:
    """Hold an object, and call its methods until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    held, name, arguments = None, "", ()
    while True:
        try:
            if held is None:
                held, found = make(*given), None
            else:
                found = getattr(held, name)(*arguments) if name else time.process_time()
            answer: tuple[bool, Any] = (False, found)
        except Exception as error:  # told to who asks
            answer = (True, error if isinstance(error, ParenvsError) else _plain(error))
        try:
            pipe.send_bytes(sent(answer))
            name, arguments = received(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # nobody asks any more


def _plain(error: Exception) -> Exception:
    """Return an error that can be pickled, with its stack in words."""
    import traceback

    return RuntimeError("".join(traceback.format_exception(error)))


def engine_of(name: str | None, address: str | None, device: str, *counts: int) -> Engine:
    """Return an engine by its name; None: Ray where it is installed, else local processes.

    Args:
        name: ``ray``, ``local`` or None.
        address: see ``OnRay``.
        device: see ``OnRay``.
        *counts: see ``OnRay``.
    """
    if (name or (RAY if find_spec("ray") else LOCAL)) == RAY:
        return OnRay(address, device, *counts)
    return Local()
