"""Learners that learn together: by all-reduce, or by a server that has network and optimiser."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Peers
from parenvs.agents.learning.distributed.engine import LostError
from parenvs.agents.learning.distributed.wire import received, sent
from parenvs.errors import one_line

SECONDS = 600.0
"""Seconds in which a collective has to end."""
Meeting = tuple[str, int, bytes]
"""Host, port and key by which learners meet."""


def own_host() -> str:
    """Return the address by which other machines reach this one."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class Reduced(Peers):
    """Learners of equal standing, which all-reduce: by NCCL on GPUs, else by gloo.

    Args:
        rank: of this learner.
        size: of all.
        device: where tensors are that are sent.
        store: what they meet in.
    """

    def __init__(self, rank: int, size: int, device: torch.device, store: dist.Store) -> None:
        self.size, self.device = size, device
        limit = timedelta(seconds=SECONDS)
        self.group: Any = (
            dist.ProcessGroupNCCL(store, rank, size, limit)  # type: ignore[arg-type]
            if device.type == "cuda"
            else dist.ProcessGroupGloo(store, rank, size, limit)
        )

    def sum(self, values: Tensor) -> Tensor:
        """See ``Peers.sum``."""
        total = values.detach().to(self.device, copy=True)
        self._wait(lambda: self.group.allreduce([total]))
        return total.to(values.device)

    def gather(self, values: Tensor) -> Tensor:
        """See ``Peers.gather``: padded to the longest."""
        own = values.to(self.device)
        (sizes,) = self._gathered(torch.tensor([len(own)], device=self.device)).T.tolist()
        room = torch.zeros(max(sizes), *own.shape[1:], dtype=own.dtype, device=self.device)
        room[: len(own)] = own
        every = self._gathered(room)
        return torch.cat([x[:size] for x, size in zip(every, sizes, strict=True)]).to(values.device)

    def _gathered(self, values: Tensor) -> Tensor:
        every = [torch.zeros_like(values) for _ in range(self.size)]
        self._wait(lambda: self.group.allgather([every], [values]))
        return torch.stack(every)

    def _wait(self, send: Callable[[], Any]) -> None:
        try:
            send().wait()
        except RuntimeError as error:
            raise LostError(f"a learner is gone ({one_line(error)})") from None


class Served(Peers):
    """Learners that send gradients to a server, and get its network.

    Args:
        meeting: where the server listens.
        rank: of this learner.
        joined: whether the server waits for all learners; else each learns from its own turns.
    """

    def __init__(self, meeting: Meeting, rank: int, joined: bool) -> None:
        host, port, key = meeting
        with _linked():
            self.link = _prompt(connection.Client((host, port), authkey=key))
        self.rank, self.joined = rank, joined
        self._ask(rank)

    def sum(self, values: Tensor) -> Tensor:
        """See ``Peers.sum``."""
        return self._ask(("sum", values)) if self.joined else values

    def gather(self, values: Tensor) -> Tensor:
        """See ``Peers.gather``."""
        return self._ask(("gather", values)) if self.joined else values

    def together(self, agent: Algorithm, name: str, values: Tensor) -> None:
        """See ``Peers.together``: the server calls it, and this agent plays as the server's."""
        agent.play_as(self._ask((name, values, agent.progress)))

    def done(self) -> None:
        """Tell the server that this learner's turns are over for now."""
        self._ask(())

    def _ask(self, message: Any) -> Any:
        with _linked():
            self.link.send_bytes(sent(message))
            return received(self.link.recv_bytes())


class Server:
    """Has the network and the optimiser of an agent that learners learn together.

    In lockstep it waits for all of them and takes the sum of what they send. Else it takes what
    comes at once, and lets no learner be more than ``staleness`` steps ahead of the slowest one.

    Args:
        agent: the agent.
        learners: how many.
        staleness: in steps; None: in lockstep.
    """

    def __init__(self, agent: Algorithm, learners: int, staleness: int | None) -> None:
        self.agent, self.learners, self.staleness = agent, learners, staleness
        self.links: dict[int, Any] = {}

    def listen(self) -> Meeting:
        """Return where learners meet the server."""
        key = os.urandom(16)
        at = ("0.0.0.0", 0)  # of any network; learners have the key
        self.listener = connection.Listener(at, backlog=self.learners, authkey=key)
        return (own_host(), self.listener.address[1], key)

    def accept(self) -> None:
        """Wait for all learners."""
        while len(self.links) < self.learners:
            with _linked():
                link = _prompt(self.listener.accept())
                self.links[received(link.recv_bytes())] = link
        for link in self.links.values():
            link.send_bytes(sent(None))

    def serve(self) -> None:
        """Serve until the turns of all learners are over."""
        heard: dict[int, Any] = {}  # learner -> what it waits with
        active = dict.fromkeys(range(self.learners), 0)  # steps of those that go on
        while active:
            waiting = {self.links[rank]: rank for rank in active if rank not in heard}
            told: list[Any] = connection.wait(list(waiting)) if waiting else []
            for link in told:
                rank = waiting[link]
                with _linked():
                    message = received(link.recv_bytes())
                if not message:
                    del active[rank]
                    self._answer([rank], None)
                    continue
                heard[rank] = message
                if self.staleness is not None:
                    self._take(message[0], message[1], message[2])
                    active[rank] += 1
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

    def played(self) -> dict[str, Any]:
        """See ``Algorithm.played``."""
        return self.agent.played()

    def _joined(self, messages: list[Any]) -> Any:
        """Return what learners in lockstep get, who all sent the same kind of message."""
        name, values = messages[0][0], [each[1] for each in messages]
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
            with _linked():
                self.links[rank].send_bytes(data)


def _prompt(link: Any) -> Any:
    # Heads of messages are sent apart, and TCP would hold what follows for 40 ms, until they came.
    with socket.socket(fileno=os.dup(link.fileno())) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


@contextlib.contextmanager
def _linked() -> Iterator[None]:
    """Say in the block that who is at the other end of a link is gone.

    Raises:
        LostError: it is.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        raise LostError(f"a process is gone ({one_line(error)})") from None
