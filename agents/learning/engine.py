"""Engines, which start processes that hold an object each, and call its methods."""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing import AuthenticationError, connection
from operator import attrgetter
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Peers
from parenvs.agents.learning.net import Packed, Seen
from parenvs.agents.learning.ray_tasks import session
from parenvs.errors import ParenvsError, one_line
from parenvs.machine import LOOPBACK


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays, which need no shared memory, and observations packed."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Seen):
            return Packed.seen, (value.packed(),)
        if isinstance(value, Tensor) and not value.numel():
            # Arrays without numbers would share their address, which ``torch.save`` refuses.
            return partial(torch.zeros, dtype=value.dtype), (value.shape,)
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.detach().cpu().numpy(),)
        return NotImplemented


def sent(value: Any) -> bytes:
    """Return a value as bytes."""
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def received(data: bytes) -> Any:
    """Return the value of bytes that a process of this training sent."""
    return pickle.loads(data)


_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_PRELOAD = ["parenvs.agents.learning.team", "torch._dynamo", "scipy.optimize"]
"""Modules that are imported once for all processes; the first optimizer needs the second."""
END_SECONDS = 2.0
"""Seconds in which a process has to end before it is killed."""
CLUSTER_SECONDS = 60.0
"""Seconds in which a cluster has to find room for all processes."""


class LostError(ParenvsError):
    """A process of a training, or its connection, is gone."""


class Engine(ABC):
    """Starts processes and calls their objects; all end with it, or with its own process."""

    @abstractmethod
    def launch(self, make: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Start a process for each tuple of arguments of ``make``."""

    @abstractmethod
    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        """Call a method of a process's object, and wait for nothing.

        A process is asked one thing at a time.
        """

    @abstractmethod
    def answers(self, asked: Sequence[Any]) -> list[Any]:
        """Wait for the results of methods that ``ask`` has called.

        Raises:
            LostError: a process is gone.
            Exception: the first exception of a method.
        """

    @abstractmethod
    def end(self) -> None:
        """End all processes."""

    def start(self, make: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """Start processes; number i holds ``make(*(values[i] for values in given))``."""
        try:
            processes = self.launch(make, list(zip(*given, strict=True)))
            self.spent(processes)  # the first call makes the objects
        except BaseException:
            self.end()
            raise
        return processes

    def all(self, processes: Sequence[Any], name: str, *given: Sequence[Any]) -> list[Any]:
        """Call a method of each process, and wait; see ``answers``.

        Process i gets the arguments ``values[i] for values in given``.
        """
        calls = zip(processes, *given, strict=True)
        return self.answers([self.ask(process, name, *arguments) for process, *arguments in calls])

    def spent(self, processes: Sequence[Any]) -> float:
        return float(sum(self.all(processes, "")))


class Here(Engine):
    """The objects themselves, in this process."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def launch(self, make: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.held = [make(*arguments) for arguments in given]
        return self.held

    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        return attrgetter(name)(process)(*arguments)

    def answers(self, asked: Sequence[Any]) -> list[Any]:
        return list(asked)

    def spent(self, processes: Sequence[Any]) -> float:
        return 0.0

    def end(self) -> None:
        for item in self.held:
            item.close()


class Local(Engine):
    """Processes of this machine, copies of one that has imported all."""

    def __init__(self) -> None:
        self.processes: list[tuple[Any, Any]] = []  # pipe, process
        atexit.register(self.end)  # before processes that go on are waited for

    def launch(self, make: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        context: Any = multiprocessing.get_context(_START)
        if _START == "forkserver":
            context.set_forkserver_preload(_PRELOAD)
        begun = len(self.processes)
        for arguments in given:
            pipe, child_pipe = context.Pipe()
            process = context.Process(target=_serve, args=(child_pipe, make, arguments))
            process.start()
            child_pipe.close()  # so that the pipe ends with the process
            self.processes.append((pipe, process))
        return self.processes[begun:]

    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        with contextlib.suppress(OSError):  # it is gone, which ``answers`` reports
            process[0].send_bytes(sent((name, arguments)))
        return process

    def answers(self, asked: Sequence[Any]) -> list[Any]:
        results: dict[Any, Any] = {}  # by pipe
        pids = {pipe: process.pid for pipe, process in asked}
        while waiting := [pipe for pipe in pids if pipe not in results]:
            ready: list[Any] = connection.wait(waiting)
            for pipe in ready:
                try:
                    is_error, results[pipe] = received(pipe.recv_bytes())
                except (EOFError, OSError):
                    raise LostError(f"process {pids[pipe]} is gone") from None
                if is_error:
                    raise results[pipe]
        return [results[pipe] for pipe, _ in asked]

    def end(self) -> None:
        # A process whose pipe is closed ends by itself; those in the midst of work are terminated.
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
        device: a GPU is requested for each process unless it is ``cpu``.
        inner: processes that its processes start.
        processes: processes in all.
    """

    def __init__(self, address: str | None, device: str, inner: int, processes: int) -> None:
        self.gpus, self.inner = int(not device.startswith("cpu")), inner
        self.opened = contextlib.ExitStack()
        self.ray = self.opened.enter_context(session(address, processes))
        self.actors: list[Any] = []
        self.groups: list[Any] = []

    def launch(self, make: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See ``Engine.launch``; a cluster that is too small raises ``ParenvsError``."""
        from ray.util.placement_group import get_current_placement_group, placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = {"CPU": 1, **({"GPU": self.gpus} if self.gpus else {})}
        group = get_current_placement_group()
        if group is None:
            group = placement_group([needs] * len(given) + [{"CPU": 1}] * self.inner)
            self.groups.append(group)
            self.inner = 0
            if not group.wait(CLUSTER_SECONDS):
                raise ParenvsError(
                    f"the cluster of Ray has no room for {len(given)} processes of {needs}"
                )
        where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        remote = self.ray.remote(_RayHolder).options(
            num_cpus=1, num_gpus=self.gpus, scheduling_strategy=where
        )
        dumps = self.ray.cloudpickle.dumps
        actors = [remote.remote(sys.path, dumps((make, arguments))) for arguments in given]
        self.actors += actors
        return actors

    def ask(self, process: Any, name: str, *arguments: Any) -> Any:
        return process.call.remote(sent((name, arguments)))

    def answers(self, asked: Sequence[Any]) -> list[Any]:
        waiting, results = list(asked), {}
        while waiting:
            (done,), waiting = self.ray.wait(waiting, num_returns=1)
            try:
                results[done] = received(self.ray.get(done))
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self.ray.exceptions.RayError as error:
                raise LostError(one_line(error)) from None
        return [results[call] for call in asked]

    def end(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for actor in self.actors:
            self.ray.kill(actor)
        for group in self.groups:
            remove_placement_group(group)
        self.actors, self.groups = [], []
        self.opened.close()


class _Holder:
    """An object in its own process, made at the first call, on one thread of torch."""

    def __init__(self, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.make, self.arguments, self.held = make, arguments, None

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Call a method, or a part's (``part.method``); no name: this process's seconds."""
        if self.held is None:
            torch.set_num_threads(1)
            self.held = self.make(*self.arguments)
        return attrgetter(name)(self.held)(*arguments) if name else time.process_time()


class _RayHolder:
    """A holder as an actor of Ray; ``path`` is the parent's, ``given`` pickled."""

    def __init__(self, path: list[str], given: bytes) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        import parenvs  # noqa: F401  # registers the environments

        self.holder = _Holder(*pickle.loads(given))  # by a process of this training

    def call(self, data: bytes) -> bytes:
        """Call a method by its name and arguments; see ``_Holder.call``."""
        return sent(self.holder.call(*received(data)))


def _serve(pipe: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    holder = _Holder(make, arguments)
    while True:
        try:
            name, given = received(pipe.recv_bytes())
            try:
                answer: tuple[bool, Any] = (False, holder.call(name, given))
            except ParenvsError as error:
                answer = (True, error)
            except Exception as error:  # as text, since some errors cannot be pickled
                answer = (True, RuntimeError("".join(traceback.format_exception(error))))
            pipe.send_bytes(sent(answer))
        except (EOFError, OSError):
            os._exit(0)  # nobody asks any more


SECONDS = 600.0
"""Seconds in which a collective has to end."""
BACKLOG = 64
"""Connections that wait for a server at most; strangers' among them."""
Meeting = tuple[str, int, bytes]
"""Host, port and key by which learners meet."""


def own_host() -> str:
    """Return the address by which other machines reach this one."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


class Reduced(Peers):
    """Learners of equal standing, which all-reduce: by NCCL on GPUs, else by gloo."""

    def __init__(self, rank: int, size: int, device: torch.device, store: dist.Store) -> None:
        self.size, self.device = size, device
        limit = timedelta(seconds=SECONDS)
        kind: Any = dist.ProcessGroupNCCL if device.type == "cuda" else dist.ProcessGroupGloo
        with _as_lost():
            self.group: Any = kind(store, rank, size, limit)

    def sum(self, values: Tensor) -> Tensor:
        total = values.detach().to(self.device, copy=True)
        with _as_lost():
            self.group.allreduce([total]).wait()
        return total.to(values.device)

    def gather(self, values: Tensor) -> Tensor:
        """See ``Peers.gather``: padded to the longest."""
        local = values.to(self.device)
        (sizes,) = self._gathered(torch.tensor([len(local)], device=self.device)).T.tolist()
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local
        parts = zip(self._gathered(padded), sizes, strict=True)
        return torch.cat([part[:size] for part, size in parts]).to(values.device)

    def _gathered(self, values: Tensor) -> Tensor:
        gathered = [torch.zeros_like(values) for _ in range(self.size)]
        with _as_lost():
            self.group.allgather([gathered], [values]).wait()
        return torch.stack(gathered)


class Served(Peers):
    """Learners that send gradients to a server, and get its network.

    ``joined``: the server waits for all learners; else each learns from its own turns.
    """

    def __init__(self, meeting: Meeting, rank: int, joined: bool) -> None:
        host, port, key = meeting
        with _as_lost():
            self.link = _prompt(connection.Client((host, port), authkey=key))
        self.rank, self.joined = rank, joined
        self._ask(rank)

    def sum(self, values: Tensor) -> Tensor:
        return self._ask(("sum", values)) if self.joined else values

    def gather(self, values: Tensor) -> Tensor:
        return self._ask(("gather", values)) if self.joined else values

    def together(self, agent: Algorithm, name: str, values: Tensor) -> None:
        """See ``Peers.together``: the server calls it, and this agent plays as the server's."""
        agent.play_as(self._ask((name, values, agent.progress)))

    def done(self) -> None:
        """Tell the server that this learner's turns are over for now."""
        self._ask(())

    def _ask(self, message: Any) -> Any:
        with _as_lost():
            self.link.send_bytes(sent(message))
            return received(self.link.recv_bytes())


class Server:
    """Has the network and the optimizer of an agent that learners learn together.

    In lockstep it waits for all of them and takes the sum of what they send. Else it takes what
    comes at once, and lets no learner be more than ``staleness`` steps ahead of the slowest one.

    Args:
        staleness: in steps; None: in lockstep.
        host: address at which it listens.
    """

    def __init__(
        self, agent: Algorithm, learners: int, staleness: int | None, host: str = LOOPBACK
    ) -> None:
        self.agent, self.learners, self.staleness, self.host = agent, learners, staleness, host
        self.links: dict[int, Any] = {}

    def meet(self) -> Meeting:
        """Return where learners meet the server."""
        self.key = os.urandom(16)
        self.listener = socket.create_server((self.host, 0), backlog=BACKLOG)
        return (self.host, self.listener.getsockname()[1], self.key)

    def accept(self) -> None:
        """Wait for all learners; strangers, who do not have the key, are no reason to."""
        self.listener.settimeout(0.1)
        while len(self.links) < self.learners:
            with contextlib.suppress(TimeoutError):
                end, _ = self.listener.accept()
                end.setblocking(True)
                # One that says nothing keeps a thread waiting, and nobody else.
                Thread(target=self._greet, args=(end.detach(),), daemon=True).start()
        self.listener.close()
        for link in self.links.values():
            link.send_bytes(sent(None))

    def _greet(self, handle: int) -> None:
        link = _prompt(connection.Connection(handle))
        try:
            connection.deliver_challenge(link, self.key)
            connection.answer_challenge(link, self.key)
            self.links[received(link.recv_bytes())] = link
        except (AuthenticationError, EOFError, OSError):
            # Nothing of what a stranger sends is unpickled.
            link.close()

    def serve(self) -> None:
        """Serve until the turns of all learners are over."""
        # Learner -> its message, which is not answered yet.
        heard: dict[int, Any] = {}
        active = dict.fromkeys(range(self.learners), 0)  # steps of learners that go on
        while active:
            silent = {self.links[rank]: rank for rank in active if rank not in heard}
            ready: list[Any] = connection.wait(list(silent)) if silent else []
            for link in ready:
                rank = silent[link]
                with _as_lost():
                    message = received(link.recv_bytes())
                if not message:
                    del active[rank]
                    self._answer([rank], None)
                    continue
                heard[rank] = message
                if self.staleness is not None:
                    self._take(*message)
                    active[rank] += 1
            # Without lockstep the fastest learner waits for the slowest at the staleness' limit.
            if self.staleness is not None:
                ahead = min(active.values(), default=0) + self.staleness
                free = [rank for rank in heard if active[rank] <= ahead]
                self._answer(free, self.agent.played() if free else None)
            else:
                free = list(active) if len(heard) == len(active) else []
                if free:
                    self._answer(free, self._joined([heard[rank] for rank in sorted(free)]))
            for rank in free:
                del heard[rank]

    def state(self) -> dict[str, Any]:
        """Return the agent's state."""
        return self.agent.state()

    def load(self, state: dict[str, Any], part: int | None) -> None:
        """Go on from what ``state`` returned; parts are of players."""
        self.agent.load(state)

    def _joined(self, messages: list[Any]) -> Any:
        """Return what learners in lockstep get, who all sent the same kind of message."""
        name, values = messages[0][0], [message[1] for message in messages]
        if name == "gather":
            return torch.cat(values)
        total = torch.stack(values).sum(dim=0)
        return total if name == "sum" else self._take(name, total, messages[0][2])

    def _take(self, name: str, values: Tensor, progress: float) -> dict[str, Any]:
        self.agent.slow(progress)
        getattr(self.agent, name)(values)
        return self.agent.played()

    def _answer(self, ranks: list[int], value: Any) -> None:
        data = sent(value) if ranks else b""
        for rank in ranks:
            with _as_lost():
                self.links[rank].send_bytes(data)


def _prompt(link: Any) -> Any:
    # Heads of messages are sent apart, and TCP would hold what follows for 40 ms, until they came.
    with socket.socket(fileno=os.dup(link.fileno())) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    try:
        yield
    except (AuthenticationError, EOFError, OSError, RuntimeError) as error:
        raise LostError(f"a process is gone ({one_line(error)})") from None
