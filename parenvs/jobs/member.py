"""A process of a node: it trains, holds its part of the state, and does what the driver says."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parenvs.clock.members import end_with_parent, first_line
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.exports.parallel import Parallel
from parenvs.exports.state import Holding, Moved, held, install, load, move, save
from parenvs.exports.stream import Stream
from parenvs.exports.torch import TorchPlan
from parenvs.instances import load_graph
from parenvs.jobs.model import Model

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
        folder: of the job.
        batch: samples of a step.
        seed: of initial values and of the order of samples.
        port: where processes meet.
        host: of it.
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
        parallel: the module.
        optimiser: of its parameters.
        plan: in our words.
        stream: the order of samples.
        steps: that were trained.
        pace: seconds that a step has to last at least.
    """

    parallel: Parallel
    optimiser: torch.optim.Optimizer
    plan: Plan
    stream: Stream
    steps: int
    pace: float


class Member:
    """What a process does for the driver; each public method is an order, its result the reply.

    A step counts when it is committed, so that processes that are left after another has died
    have the same state: all of them, or none, took the last step.

    Args:
        settings: of the job.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model = Model.made(settings.source, settings.seed)
        self.graph = load_graph(settings.graph)
        self.store = dist.TCPStore(
            settings.host, settings.port, None, False, timedelta(seconds=LIMIT_SECONDS)
        )
        self.others: set[str] = set()
        self.active: Active | None = None
        self.next: Active | None = None
        self.holding: Holding | None = None
        self.moved: Moved | None = None

    def form(self, name: str, rank: int, size: int) -> None:
        """Become one of a group of processes."""
        self._leave()
        self.others = connections()
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(name, self.store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=LIMIT_SECONDS),
        )

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
        optimiser = self.model.optimiser(parallel.parameters())
        steps = 0
        if self.moved is not None:
            steps = install(self.moved, parallel, optimiser, stream)
        elif restore:
            folder = Path(settings.folder) / STATE
            steps, _ = load(folder, parallel, optimiser, plan, stream)
        self.next = Active(parallel, optimiser, plan, stream, steps, pace)
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
        active.optimiser.zero_grad()
        loss = active.parallel.step(*inputs, target)
        time.sleep(max(0.0, active.pace - (time.perf_counter() - start)))
        return loss, active.stream.ids().tolist(), time.perf_counter() - start

    def commit(self) -> None:
        """Let the last step count."""
        active = self._active
        active.optimiser.step()
        active.stream.advance()
        active.steps += 1

    def save(self) -> None:
        """Write the checkpoint."""
        active = self._active
        save(
            Path(self.settings.folder) / STATE, active.parallel, active.optimiser, active.plan,
            active.steps, active.stream,
        )  # fmt: skip

    def give_up(self) -> None:
        """Pause after an error, and wake processes that wait for this one."""
        hang_up(self.settings.port, self.others)
        self.pause()

    def pause(self) -> None:
        """Stop training, and hold the state as it was after the last step that counts."""
        if self.active is not None:
            x = self.active
            self.holding = held(x.parallel, x.optimiser, x.plan, x.steps, x.stream)
        self.active = self.next = self.moved = None
        self._leave()

    @property
    def _active(self) -> Active:
        assert self.active is not None
        return self.active

    def _leave(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # modules and meshes of the old plan hold groups


def connections() -> set[str]:
    """Return what this process has open that is a connection; nothing where systems do not say."""
    found = set()
    with suppress(OSError):
        for name in Path("/dev/fd").iterdir():
            with suppress(OSError):
                target = str(name.readlink())
                found |= {target} if target.startswith("socket:") else set()
    return found


def hang_up(port: int, spared: Container[str]) -> None:
    """Close the connections to other processes, but for those to a port, and some more.

    A group whose collective has failed cannot be left: gloo keeps its connections while anything
    refers to it, such as a collective that nobody waited for, and other processes wait for this one
    until the time is over.

    Args:
        port: where processes meet.
        spared: see ``connections``.
    """
    with suppress(OSError):
        for name in Path("/dev/fd").iterdir():
            with suppress(OSError):
                if str(name.readlink()) in spared:
                    continue
                with socket.socket(fileno=os.dup(int(name.name))) as one:
                    if one.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    if port not in (one.getsockname()[1], one.getpeername()[1]):
                        one.shutdown(socket.SHUT_RDWR)


class Server:
    """Answers orders by a ``Member``, which the first one makes.

    Args:
        settings: of the job.
    """

    def __init__(self, settings: Settings) -> None:
        warnings.simplefilter("ignore")  # of libraries, in every process
        torch.set_num_threads(1)
        self.settings = settings
        self.member: Member | None = None

    def answer(self, order: str = "", given: Sequence[Any] = ()) -> tuple[str, Any]:
        """Return ``DONE`` and the result of an order, or ``FAILED`` and why."""
        try:
            if self.member is None:
                self.member = Member(self.settings)
                return DONE, None
            return DONE, getattr(self.member, order)(*given)
        except Exception as error:  # told by the driver, or due to a process that is gone
            words = str(error) if isinstance(error, ParenvsError) else first_line(error)
        if self.member is not None:
            self.member.give_up()
        return FAILED, words


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
