"""Local processes that stand for nodes: started and ended one by one, asked all together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch.distributed as dist

from parenvs.clock.members import start_member
from parenvs.errors import ParenvsError
from parenvs.jobs.member import DONE, LIMIT_SECONDS, Settings, serve

_PRELOAD = ("parenvs.jobs.member", "torch._dynamo", "scipy.optimize")
_END_SECONDS = 2.0
_HANGS = LIMIT_SECONDS + 30.0
"""Seconds without a reply after which a process is taken for dead."""


class LostError(Exception):
    """Processes are gone, whoever ended them.

    Attributes:
        nodes: theirs.
    """

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
    """Nodes by number, each of some processes.

    Args:
        settings: of the job.
        devices: processes of a node.
    """

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
        given = {number: (f"group {self.groups}", rank, size) for number, rank in ranks.items()}
        self.ask(nodes, "form", given)

    def ask(
        self,
        nodes: Sequence[int],
        order: str,
        given: Mapping[int, Sequence[Any]] | Sequence[Any] = (),
    ) -> list[Any]:
        """Give processes an order, and return their replies.

        Args:
            nodes: whose processes.
            order: name of a method of ``Member``.
            given: its arguments; or those of some processes, by their number among these.

        Raises:
            LostError: processes have ended; the others were waited for.
            ParenvsError: one failed although none has ended.
        """
        self.tell(nodes, order, given)
        return self.heard(nodes)

    def tell(
        self,
        nodes: Sequence[int],
        order: str,
        given: Mapping[int, Sequence[Any]] | Sequence[Any] = (),
    ) -> None:
        """Give an order, see ``ask``; ``heard`` has the replies."""
        self.heard(nodes)
        for number, x in enumerate(self._of(nodes)):
            if isinstance(given, Mapping) and number not in given:
                continue
            own = given[number] if isinstance(given, Mapping) else given
            try:
                x.pipe.send((order, tuple(own)))
                x.waits = True
            except OSError:
                x.waits = True  # it has ended, which the reply says

    def heard(self, nodes: Sequence[int]) -> list[Any]:
        """Wait for the replies of nodes to their last order, see ``ask``."""
        every = [x for node in nodes for x in self.processes.get(node, ())]
        replies: dict[int, Any] = {}
        deadline = time.monotonic() + _HANGS
        while waiting := {x.pipe: k for k, x in enumerate(every) if x.waits}:
            ready = self._ready(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                for k in waiting.values():
                    every[k].process.kill()
            for pipe in ready:
                k = waiting[pipe]
                try:
                    replies[k] = pipe.recv()
                except (EOFError, OSError):
                    replies[k] = None
                every[k].waits = False
        lost = [node for node in nodes if node not in self.processes]
        dead = {id(every[k]) for k, reply in replies.items() if reply is None}
        lost += [node for node in nodes if any(id(x) in dead for x in self.processes.get(node, ()))]
        if lost:
            for node in lost:
                self.kill(node)
            raise LostError(lost)
        for k, reply in replies.items():
            if reply[0] != DONE:
                raise ParenvsError(f"process {k} of {len(every)}: {reply[1]}")
        return [replies[k][1] if k in replies else None for k in range(len(every))]

    def _ready(self, pipes: list[Any], seconds: float) -> list[Any]:
        """Wait for replies, so long at most, and return whose there are."""
        return connection.wait(pipes, seconds)

    def _of(self, nodes: Sequence[int]) -> list[Process]:
        return [x for node in nodes for x in self.processes.get(node, ())]


def meeting(host: str) -> Any:
    """Return the store where processes meet, of this machine; its ``port`` is a free one."""
    return dist.TCPStore(host, 0, None, True, wait_for_workers=False)
