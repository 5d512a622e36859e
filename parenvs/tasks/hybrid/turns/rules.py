"""What an episode of turns may choose of a problem, as numbers that masks are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.turns.actions import (
    CHUNKS,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    GLOBAL_SHARED,
    LAYERS,
    SERVERS,
    SIZES,
    TPS,
)

ORDERS = ("fixed", "free")
"""Whether servers stand in the order of the cluster, or the plan says in which."""

LARGEST = 2**31 - 1
"""More stages than any plan has."""
HETERO = "hetero"
"""Value of an environment's ``cluster``, and first word of names, for servers that differ."""


@dataclass(frozen=True)
class Rules:
    """What the plans of an episode have in common.

    Attributes:
        order: one of ``ORDERS``.
        stage_devices: devices of every stage; None leaves them open, 0 means a whole server.
        most_chunks: maximum number of pieces of the chain on a stage.
    """

    order: str = ORDERS[0]
    stage_devices: int | None = None
    most_chunks: int = CHUNKS[-1]

    def __post_init__(self) -> None:
        """Raise errors for unknown values."""
        if self.order not in ORDERS:
            raise ParenvsError(
                f"server_order must be one of {', '.join(ORDERS)}, not {shown(self.order)}"
            )
        if self.most_chunks not in CHUNKS:
            raise ParenvsError(
                f"most_chunks must be one of {', '.join(map(str, CHUNKS))}, not "
                f"{shown(self.most_chunks)}"
            )
        given = self.stage_devices
        if given is not None and (type(given) is not int or given < 0 or given & (given - 1)):
            raise ParenvsError(
                f"stage_devices must be None, 0 or a power of two, not {shown(given)}"
            )


def rules_of(
    instance: Any,
    cluster: Any = None,
    server_order: str | None = None,
    stage_devices: int | None = None,
    most_chunks: int | None = None,
) -> Rules:
    """Return the rules of an environment: what is given, else what its problems are made for.

    Args:
        instance: its argument, as are the others.
        cluster: ``"hetero"`` means servers that differ, as do instances whose names say so.
        server_order: see ``Rules.order``.
        stage_devices: see ``Rules``.
        most_chunks: see ``Rules``.
    """
    hetero = cluster == HETERO or str(instance).startswith(f"{HETERO}-")
    if hetero and stage_devices is None:
        stage_devices = 0
    return Rules(
        order=server_order or ORDERS[int(hetero)],
        stage_devices=stage_devices,
        most_chunks=most_chunks or (CHUNKS[0] if hetero else CHUNKS[-1]),
    )


@dataclass(frozen=True, eq=False)
class TurnLimits:
    """The numbers of a problem that decide which choices are legal.

    Attributes:
        layers: n.
        devices: D.
        servers: number of servers.
        inside: devices of each.
        batch: samples of a step.
        tp: (4,) bool, which of ``TPS`` divide the model's matrices and fit in a server.
        shared: (4,) bool, which of them may share tokens, too.
        rules: what the plans have in common.
        unit: devices of every stage, or 0 where each stage has its own.
    """

    layers: int
    devices: int
    servers: int
    inside: int
    batch: int
    tp: tuple[bool, ...]
    shared: tuple[bool, ...]
    rules: Rules
    unit: int

    @classmethod
    def of(cls, problem: Hybrid, rules: Rules) -> TurnLimits:
        """Look up a problem's numbers.

        Raises:
            InfeasibleError: the problem is too large, or its servers cannot be divided by turns.
        """
        model, cluster = problem.model, problem.cluster
        inside = cluster.devices_per_server
        if not 1 <= len(model) <= LAYERS:
            raise InfeasibleError(
                f"{problem.instance} has {len(model)} layers; turns can cut 1 to {LAYERS}"
            )
        if cluster.servers > SERVERS:
            raise InfeasibleError(
                f"{cluster} has {cluster.servers} servers; turns can order {SERVERS}"
            )
        if inside & (inside - 1):
            raise InfeasibleError(
                f"{cluster} has {inside} devices in a server; turns need a power of two"
            )
        tp = tuple(
            ranks <= inside and (ranks == 1 or model.reasons_against_tp(ranks) is None)
            for ranks in TPS
        )
        against = model.reasons_against_sequence_parallel() is not None
        sequence = 0 if model.shape is None else model.shape.sequence
        shared = tuple(ok and not against and sequence % ranks == 0
                       for ok, ranks in zip(tp, TPS, strict=True))  # fmt: skip
        unit = inside if rules.stage_devices == 0 else rules.stage_devices or 0
        if unit > cluster.devices:
            raise InfeasibleError(f"{cluster} has less than the {unit} devices of a stage")
        return cls(
            layers=len(model),
            devices=cluster.devices,
            servers=cluster.servers,
            inside=inside,
            batch=problem.batch,
            tp=tp,
            shared=shared,
            rules=rules,
            unit=unit,
        )

    @property
    def least(self) -> int:
        """Fewest devices of a stage."""
        return self.unit or 1

    @property
    def max_stages(self) -> int:
        """Maximum number of stages of a plan."""
        return min(self.layers, self.devices // self.least, SERVERS)

    @cached_property
    def opening(self) -> np.ndarray:
        """(40,) bool, which choices of the global turn are legal."""
        legal = np.zeros(SIZES[GLOBAL], dtype=bool)
        for choice in range(len(legal)):
            chunks, shared = int(GLOBAL_CHUNKS[choice]), bool(GLOBAL_SHARED[choice])
            if self.layers % chunks or chunks > self.rules.most_chunks:
                continue
            if shared and not any(self.shared[1:]):
                continue
            micro_batch = int(GLOBAL_MICRO_BATCH[choice])
            if self.first_replicas(micro_batch, shared):
                longest = self.longest_first(micro_batch, chunks, shared)
                legal[choice] = chunks == 1 or longest > 0
        return legal

    def longest_first(self, micro_batch: int, chunks: int, shared: bool) -> int:
        """Largest end of a first stage behind which another one can come; below 1 if none can.

        Args:
            micro_batch: samples of a micro-batch in one of its replicas.
            chunks: pieces of the chain on each stage.
            shared: whether sequence parallelism was chosen.
        """
        per_chunk, left = self.layers // chunks, self.devices // self.least - 1
        if left < 1:
            return 0
        if chunks == 1:
            return per_chunk - 1
        counts = self.first_replicas(micro_batch, shared)
        return per_chunk - min(behind(self.batch // (micro_batch * x), 0, left) for x in counts)

    def first_replicas(self, micro_batch: int, shared: bool) -> list[int]:
        """Return the replicas that a first stage of the fewest devices can have."""
        counts = [
            self.least // ranks
            for ranks, ok in zip(TPS, self.shared if shared else self.tp, strict=True)
            if ok and self.least % ranks == 0
        ]
        return [count for count in counts if self.batch % (micro_batch * count) == 0]


def behind(micro_batches: int, count: int, left: int) -> int:
    """Return how many stages must follow one, at least 1, where micro-batches go in rounds.

    Several chunks need a number of stages that divides the micro-batches (arXiv 2104.04473,
    section 2.2).

    Args:
        micro_batches: M.
        count: stages in front of the one.
        left: maximum number of stages that there are devices for behind it.

    Returns:
        The fewest; ``LARGEST`` where there is no such number.
    """
    fewest = int(next_divisors(micro_batches)[min(count + 2, SERVERS + 1)]) - count - 1
    return fewest if fewest <= min(left, SERVERS - count - 1) else LARGEST


@lru_cache(maxsize=4096)
def next_divisors(number: int) -> np.ndarray:
    """(66,) smallest divisor of a number from each number on; ``LARGEST`` where none is."""
    table = np.full(SERVERS + 2, LARGEST, dtype=np.int64)
    for x in range(SERVERS, 0, -1):
        table[x] = x if number % x == 0 else table[x + 1]
    table[0] = 1
    return table
