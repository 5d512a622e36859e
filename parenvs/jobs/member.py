"""A process of a node: it trains, holds its part of the state, and does what the driver says."""

from __future__ import annotations

import gc
import inspect
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from parenvs.agents.learning.ray_tasks import load_ray, session
from parenvs.clock.members import end_with_parent, first_line, start_member
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, shown
from parenvs.exports.parallel import Parallel
from parenvs.exports.state import Holding, Moved, current_state, install, load, move, save
from parenvs.exports.stream import Stream
from parenvs.exports.torch import TorchPlan
from parenvs.graph.python_source import called
from parenvs.instances import load_graph
from parenvs.machine import stay_on

RATE = 1e-3
"""Learning rate of Adam where the user gives no optimizer."""


@dataclass(frozen=True)
class Model:
    """What a job trains.

    Attributes:
        module: with the values that it begins with.
        loss: ``loss(output, target)``, a mean over samples.
        samples: ``samples[i]`` is a sample: its inputs, then its target.
        takes_keys: whether the module's last input is ``keys``, for dropout that belongs to samples
            (``parenvs.exports.stream``).
    """

    module: nn.Module
    loss: Callable[..., torch.Tensor]
    samples: Any
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    takes_keys: bool

    @classmethod
    def from_source(cls, source: str, seed: int = 0) -> Model:
        """Make the model of a user's function, the same in every process.

        Args:
            source: ``FILE.py:NAME`` of a function that returns a module, its loss and a data set,
                and, if wanted, a function that makes an optimizer of parameters.
            seed: of PyTorch's generator, for initial values.

        Raises:
            ParenvsError: there is no such function, it fails, or it returns something else.
        """
        torch.manual_seed(seed)
        result = called(source)
        parts: tuple[Any, ...] = result if isinstance(result, tuple) else (result,)
        # Missing parts are None, which is none of these; an optimizer has a default.
        module, loss, samples, *others = (*parts, *[None] * 3)[: max(len(parts), 3)]
        is_data = hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
        if not (isinstance(module, nn.Module) and callable(loss) and is_data and len(others) < 2):
            raise ParenvsError(
                f"{source}: returns {shown(result)}; it has to return a torch.nn.Module, its loss "
                "and a data set with a length and items (inputs, then the target), and may return "
                "a function that makes an optimizer of parameters"
            )
        (optimizer,) = others or [partial(torch.optim.Adam, lr=RATE)]
        names = list(inspect.signature(module.forward).parameters)
        return cls(module, loss, samples, optimizer, names[-1:] == ["keys"])

    def batch(self, stream: Stream) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Return the inputs and the targets of a stream's next step."""
        *inputs, target = default_collate([tuple(self.samples[i]) for i in stream.ids().tolist()])
        if self.takes_keys:
            inputs.append(torch.from_numpy(stream.keys()))
        return tuple(inputs), target


def run_solo(source: str, batch: int, seed: int, steps: int) -> tuple[list[float], list[list[int]]]:
    """Train without a change in this process, and return losses and samples of each step.

    Args:
        source: see ``Model.made``.
        batch: samples of a step.
        seed: of initial values and of the order of samples.
        steps: how many.
    """
    model = Model.from_source(source, seed)
    stream = Stream(len(model.samples), batch, seed)
    optimizer = model.optimizer(model.module.parameters())
    losses, ids = [], []
    for _ in range(steps):
        inputs, target = model.batch(stream)
        optimizer.zero_grad()
        value = model.loss(model.module(*inputs), target)
        value.backward()
        optimizer.step()
        ids.append(stream.ids().tolist())
        stream.advance()
        losses.append(value.item())
    return losses, ids


DONE, FAILED = "done", "failed"
"""First words of a reply."""
STATE = "state"
"""Folder of the checkpoint, in the job's folder."""
LIMIT_SECONDS = 120.0
"""Seconds in which a collective has to end."""


@dataclass(frozen=True)
class Settings:
    """What a process has to know of its job.

    Attributes:
        source: see ``Model.made``.
        graph: file of the graph that plans are made for.
        seed: of initial values and of the order of samples.
    """

    source: str
    graph: str
    folder: str
    batch: int
    seed: int
    port: int
    host: str = "127.0.0.1"


@dataclass
class Active:
    """A module in training, under its plan.

    Attributes:
        pace: seconds that a step has to last at least.
    """

    parallel: Parallel
    optimizer: torch.optim.Optimizer
    plan: Plan
    stream: Stream
    steps: int
    pace: float


class Member:
    """What a process does for the driver; each public method is an order, its result the reply.

    A step counts when it is committed, so that processes that are left after another has died
    have the same state: all of them, or none, took the last step.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model = Model.from_source(settings.source, settings.seed)
        self.graph = load_graph(settings.graph)
        stay_on(settings.host)
        self.store = dist.TCPStore(
            settings.host, settings.port, None, False, timedelta(seconds=LIMIT_SECONDS)
        )
        self.spared: set[str] = set()  # connections that were open before the group formed
        self.active: Active | None = None
        self.next: Active | None = None
        self.holding: Holding | None = None
        self.moved: Moved | None = None

    def form(self, name: str, rank: int, size: int) -> None:
        """Become one of a group of processes."""
        self._leave()
        self.spared = {target for _, target in _sockets()}
        store, limit = dist.PrefixStore(name, self.store), timedelta(seconds=LIMIT_SECONDS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)

    def move(
        self, plan: Plan, exported: TorchPlan, devices: int, takers: int
    ) -> tuple[int | None, list[int]]:
        """Move the state to a plan; return the rank in it, and bytes sent to each process."""
        self.moved = move(self.holding, plan, self.graph, devices, takers, False, exported)
        return self.moved.rank, self.moved.sent_here.tolist()

    def build(self, plan: Plan, exported: TorchPlan, pace: float, restore: bool) -> int:
        """Build the module for a plan, put the state into it, and return its steps.

        The state is the one that moved; without one, that of the checkpoint or, if there is none
        to ``restore``, the initial one.
        """
        settings = self.settings
        stream = Stream(len(self.model.samples), settings.batch, settings.seed)
        inputs, _ = self.model.batch(stream)
        parallel = Parallel(self.model.module, self.model.loss, exported, *inputs)
        optimizer = self.model.optimizer(parallel.parameters())
        steps = 0
        if self.moved is not None:
            steps = install(self.moved, parallel, optimizer, stream)
        elif restore:
            folder = Path(settings.folder) / STATE
            steps, _ = load(folder, parallel, optimizer, plan, stream)
        self.next = Active(parallel, optimizer, plan, stream, steps, pace)
        return steps

    def go(self) -> None:
        """Train from now on what was built; what was held before is let go."""
        self.active, self.next, self.holding, self.moved = self.next, None, None, None
        if self.active is None:
            self._leave()

    def step(self) -> tuple[float, list[int], float]:
        """Run a step that does not count yet; return loss, samples and seconds."""
        active = self._active
        inputs, target = self.model.batch(active.stream)
        start = time.perf_counter()
        active.optimizer.zero_grad()
        loss = active.parallel.step(*inputs, target)
        # The nodes that processes stand for may be slower than these.
        time.sleep(max(0.0, active.pace - (time.perf_counter() - start)))
        return loss, active.stream.ids().tolist(), time.perf_counter() - start

    def commit(self) -> None:
        """Let the last step count."""
        active = self._active
        active.optimizer.step()
        active.stream.advance()
        active.steps += 1

    def save(self) -> None:
        """Write the checkpoint."""
        active = self._active
        save(
            Path(self.settings.folder) / STATE, active.parallel, active.optimizer, active.plan,
            active.steps, active.stream,
        )  # fmt: skip

    def pause(self) -> None:
        """Stop training, and hold the state as it was after the last step that counts."""
        if self.active is not None:
            x = self.active
            self.holding = current_state(x.parallel, x.optimizer, x.plan, x.steps, x.stream)
        self.active = self.next = self.moved = None
        self._leave()

    @property
    def _active(self) -> Active:
        assert self.active is not None
        return self.active

    def _leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # modules and meshes of the old plan hold groups


def _sockets() -> Iterator[tuple[int, str]]:
    """Yield number and name of what this process has open that is a connection, where it is told.

    ``/dev/fd`` names files by what they are on Linux and macOS.
    """
    with suppress(OSError):
        for name in Path("/dev/fd").iterdir():
            with suppress(OSError):
                target = str(name.readlink())
                if target.startswith("socket:"):
                    yield int(name.name), target


def hang_up(port: int, spared: Container[str]) -> None:
    """Close the connections to other processes, but for those to a port, and some more.

    A group whose collective has failed cannot be left: gloo keeps its connections while anything
    refers to it, such as a collective that nobody waited for, and other processes wait for this one
    until the time is over.

    Args:
        port: where processes meet.
        spared: names of connections.
    """
    for number, target in _sockets():
        if target in spared:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as link:
            if link.family in (socket.AF_INET, socket.AF_INET6):
                (_, own_port, *_), (_, peer_port, *_) = link.getsockname(), link.getpeername()
                if port not in (own_port, peer_port):
                    link.shutdown(socket.SHUT_RDWR)


class Server:
    """Answers orders by a ``Member``, which the first one makes."""

    def __init__(self, settings: Settings) -> None:
        warnings.simplefilter("ignore")  # of libraries, in every process
        torch.set_num_threads(1)
        self.settings = settings
        self.member: Member | None = None

    def answer(self, order: str = "", arguments: Sequence[Any] = ()) -> tuple[str, Any]:
        """Return ``DONE`` and the result of an order, or ``FAILED`` and why."""
        try:
            if self.member is None:
                self.member = Member(self.settings)
                return DONE, None
            return DONE, getattr(self.member, order)(*arguments)
        except Exception as error:  # reported by the driver, or due to a process that is gone
            reason = str(error) if isinstance(error, ParenvsError) else first_line(error)
        if self.member is not None:
            # Wakes processes that wait for this one.
            hang_up(self.settings.port, self.member.spared)
            self.member.pause()
        return FAILED, reason


def serve(pipe: Any, settings: Settings) -> None:
    """Be a process of a node, until the driver ends."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    server, order = Server(settings), ()
    while True:
        try:
            pipe.send(server.answer(*order))
            order = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return


_PRELOAD = ("parenvs.jobs.member", "torch._dynamo", "scipy.optimize")
# Seconds without a reply after which a process is taken for dead.
_HANG_SECONDS = LIMIT_SECONDS + 30.0


Arguments = Mapping[int, Sequence[Any]] | Sequence[Any]
"""Arguments of an order to all processes, or to some of them, by their number."""


class LostError(Exception):
    """Processes are gone, whoever ended them."""

    def __init__(self, nodes: Iterable[int]) -> None:
        super().__init__()
        self.nodes = tuple(nodes)


@dataclass
class Process:
    """A process of a node: what asks it, and what ends it."""

    pipe: Any
    process: Any
    waits: bool = True
    """Whether a reply is to come; the first one says that it has started."""


class Fleet:
    """Nodes by number, each of some processes."""

    def __init__(self, settings: Settings, devices: int) -> None:
        self.settings, self.devices = settings, devices
        self.processes: dict[int, list[Process]] = {}
        self.groups = 0

    def start(self, node: int) -> None:
        """Start a node's processes; they are not waited for."""
        self.processes[node] = [
            Process(*start_member(serve, (self.settings,), _PRELOAD)) for _ in range(self.devices)
        ]

    def kill(self, node: int) -> None:
        """End a node's processes at once, whatever they do."""
        for x in self.processes.pop(node, ()):
            x.process.kill()
            x.process.join()
            x.pipe.close()

    def end(self) -> None:
        """End all processes."""
        for node in list(self.processes):
            self.kill(node)

    def form(
        self, nodes: Sequence[int], size: int | None = None, order: Sequence[int] = ()
    ) -> None:
        """Let processes of nodes become a group.

        Args:
            nodes: whose processes; they are numbered node by node.
            size: how many of them (default: all).
            order: number of the process of each rank, in place of its own number.
        """
        self.groups += 1
        size = len(nodes) * self.devices if size is None else size
        ranks = {process: rank for rank, process in enumerate(order or range(size))}
        name = f"group {self.groups}"
        # Processes beyond the size are not asked, and stay outside.
        self.ask(nodes, "form", {number: (name, rank, size) for number, rank in ranks.items()})

    def ask(self, nodes: Sequence[int], order: str, arguments: Arguments = ()) -> list[Any]:
        """Give processes an order, and return their replies.

        Args:
            nodes: whose processes.
            order: name of a method of ``Member``.
            arguments: those of the order; or of some processes, by their number among these.

        Raises:
            LostError: processes have ended; the others were waited for.
            ParenvsError: one failed although none has ended.
        """
        self.send_order(nodes, order, arguments)
        return self.receive(nodes)

    def send_order(self, nodes: Sequence[int], order: str, arguments: Arguments = ()) -> None:
        """Give an order, see ``ask``; ``receive`` returns the replies."""
        # It raises unless all nodes are there, so numbers of processes are those of ``arguments``.
        self.receive(nodes)
        processes = [process for _, process in self._processes_of(nodes)]
        if not isinstance(arguments, Mapping):
            arguments = dict.fromkeys(range(len(processes)), arguments)
        for number, values in arguments.items():
            processes[number].waits = True
            with suppress(OSError):  # it has ended, which the reply says
                processes[number].pipe.send((order, tuple(values)))

    def receive(self, nodes: Sequence[int]) -> list[Any]:
        """Return the replies of nodes to their last order, see ``ask``, in the nodes' order.

        Processes that do not answer in time are killed, and all others of their node.

        Raises:
            LostError: a process of some node ended without a reply.
            ParenvsError: an order failed.
        """
        pairs = self._processes_of(nodes)
        processes = [process for _, process in pairs]
        replies: dict[int, Any] = {}
        deadline = time.monotonic() + _HANG_SECONDS
        while waiting := {x.pipe: k for k, x in enumerate(processes) if x.waits}:
            ready = self._ready(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                for k in waiting.values():
                    processes[k].process.kill()
            for pipe in ready:
                k = waiting[pipe]
                replies[k] = None
                with suppress(EOFError, OSError):
                    replies[k] = pipe.recv()
                processes[k].waits = False
        dead = {node for k, (node, _) in enumerate(pairs) if replies.get(k, DONE) is None}
        lost = [node for node in nodes if node in dead or node not in self.processes]
        if lost:
            for node in lost:
                self.kill(node)
            raise LostError(lost)
        results: list[Any] = [None] * len(pairs)
        for k, (status, result) in replies.items():
            if status != DONE:
                raise ParenvsError(f"process {k} of {len(pairs)}: {result}")
            results[k] = result
        return results

    def _ready(self, pipes: list[Any], seconds: float) -> list[Any]:
        return connection.wait(pipes, seconds)

    def _processes_of(self, nodes: Sequence[int]) -> list[tuple[int, Process]]:
        return [(node, x) for node in nodes for x in self.processes.get(node, ())]


# Memory of the object store of a node that is added here; nothing goes through it.
_STORE_BYTES = 80 * 2**20


class RayFleet(Fleet):
    """Nodes by number, each of some actors.

    Args:
        cluster: to which a node of Ray is added for each of ours, and taken away when it leaves;
            None: nodes of ours are placed on those that Ray has.
    """

    def __init__(self, settings: Settings, devices: int, ray: Any, cluster: Any) -> None:
        super().__init__(settings, devices)
        self.ray, self.cluster = ray, cluster
        self.places: dict[int, tuple[Any, Any]] = {}

    def start(self, node: int) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle, added = {"CPU": 1.0}, None
        if self.cluster is not None:
            # A resource that only the added node of Ray has places the actors there.
            bundle[f"node {node}"] = 1.0
            added = self.cluster.add_node(
                num_cpus=self.devices,
                resources={f"node {node}": self.devices},
                object_store_memory=_STORE_BYTES,
            )
        group = placement_group([bundle] * self.devices, "STRICT_PACK")
        placed = self.ray.remote(Server).options(
            num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
        )
        actors = [_Actor(self.ray, placed.remote(self.settings)) for _ in range(self.devices)]
        self.processes[node] = [Process(x, x) for x in actors]
        self.places[node] = group, added

    def kill(self, node: int) -> None:
        """See ``Fleet``; a node of Ray that was added for it leaves first."""
        from ray.util.placement_group import remove_placement_group

        group, added = self.places.pop(node, (None, None))
        if added is not None:
            self.cluster.remove_node(added, allow_graceful=False)
        super().kill(node)
        if group is not None:
            remove_placement_group(group)

    def _ready(self, pipes: list[Any], seconds: float) -> list[Any]:
        replies = {x.reply: x for x in pipes}
        ready, _ = self.ray.wait(list(replies), timeout=seconds)
        return [replies[x] for x in ready]


class _Actor:
    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.reply = actor.answer.remote()

    def send(self, order: tuple[str, tuple[Any, ...]]) -> None:
        self.reply = self.actor.answer.remote(*order)

    def recv(self) -> Any:
        try:
            return self.ray.get(self.reply)
        except self.ray.exceptions.RayError as error:
            raise EOFError from error

    def kill(self) -> None:
        self.ray.kill(self.actor)

    def join(self) -> None:
        """Nothing is left to wait for."""

    close = join


@contextmanager
def nodes_of_ray(
    address: str | None = None,
) -> Iterator[tuple[str, Callable[[Settings, int], Fleet]]]:
    """Have nodes of Ray in the block: the address of this machine, and what makes the fleet.

    Args:
        address: ``HOST:PORT`` or ``auto`` of Ray that runs; None: every node is one of Ray on this
            machine, which leaves when it does.

    Raises:
        ParenvsError: Ray is not installed, or nobody answers at the address.
    """
    ray, cluster = load_ray(), None
    if address is None:
        from ray.cluster_utils import Cluster

        # The head itself runs no actors, so that it never leaves.
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with session(address if cluster is None else cluster.address):

            def fleet(settings: Settings, devices: int) -> Fleet:
                return RayFleet(settings, devices, ray, cluster)

            yield ray.util.get_node_ip_address(), fleet
    finally:
        if cluster is not None:
            cluster.shutdown()
