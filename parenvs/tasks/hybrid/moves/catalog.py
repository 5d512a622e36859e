"""The catalog of moves from a plan to its neighbors.

Each move is of one of three axes. Moves of single stages go by how busy stages are, the busiest
first, so that what does not find room is about stages that decide little. What a move does is in
``parenvs.tasks.hybrid.moves.changes``.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import numpy as np

SLOTS = {"data": 32, "pipeline": 48, "operator": 16}
"""Axis -> neighbors that are kept of it; 96 in all."""
AXES = tuple(SLOTS)
KEPT = sum(SLOTS.values())
KINDS = (
    "stages", "chunks", "balance", "sort servers", "swap servers", "tp", "sequence", "context",
    "samples", "zero", "recompute", "experts", "scaled experts", "shard", "cut", "merge", "split",
    "devices", "stage tp", "stage zero", "stage recompute",
)  # fmt: skip
"""Kinds of moves: of a whole plan, and from ``"cut"`` on of one stage."""
(
    BY_STAGES, BY_CHUNKS, BY_BALANCE, BY_SORTING, BY_SWAP, BY_TP, BY_SEQUENCE, BY_CONTEXT,
    BY_SAMPLES, BY_ZERO, BY_RECOMPUTE, BY_EXPERTS, BY_EXPERT_SCALE, BY_SHARD, BY_CUT, BY_MERGE,
    BY_SPLIT, BY_DEVICES, BY_STAGE_TP, BY_STAGE_ZERO, BY_STAGE_RECOMPUTE,
) = range(len(KINDS))  # fmt: skip


class Move(NamedTuple):
    """A move, as the catalog lists it.

    Attributes:
        axis: one of ``AXES``.
        kind: what it changes, one of ``KINDS``.
        rank: of the stage by how busy it is, 0 for the busiest; -1: of the whole plan.
        value: how much, see ``parenvs.tasks.hybrid.moves.changes.change``.
        towards: 1 to the next stage, -1 to the one in front, 0 where that means nothing.
    """

    axis: str
    kind: str
    rank: int
    value: float
    towards: int = 0


_MANY = 1024.0  # layers: all of a stage
CATALOG: tuple[Move, ...] = (
    *(
        Move("pipeline", "stages", -1, x, to)
        for x in (2, 1 / 2, 3 / 2, 2 / 3, 3, 1 / 3)
        for to in (0, 1)
    ),
    *(Move("pipeline", "chunks", -1, 1.0, to) for to in (1, -1)),
    *(Move("pipeline", "chunks", -1, x) for x in (0.0, 2.0, 0.5)),
    Move("pipeline", "balance", -1, 1.0),
    *(Move("pipeline", "sort servers", -1, 1.0, to) for to in (1, -1)),
    *(Move("pipeline", "swap servers", -1, float(x), to) for x in range(6) for to in (0, 1)),
    *(
        move
        for rank in range(8)
        for move in (
            *(Move("pipeline", "cut", rank, x, to) for x in (1.0, 4.0) for to in (1, -1)),
            Move("pipeline", "merge", rank, 1.0, 1),
            *(Move("pipeline", "split", rank, x) for x in (2.0, 3.0)),
            *(Move("pipeline", "devices", rank, x, to) for x in (0.5, 0.0) for to in (1, -1)),
        )
    ),
    *(Move("operator", "tp", -1, x, to) for x in (2.0, 0.5) for to in (0, 1)),
    Move("operator", "sequence", -1, 1.0),
    *(Move("operator", "context", -1, x) for x in (2.0, 0.5)),
    *(Move("operator", "stage tp", rank, x) for rank in range(8) for x in (2.0, 0.5)),
    *(Move("data", "samples", -1, x) for x in (2.0, 0.5, 3.0, 1 / 3)),
    *(Move("data", "zero", -1, float(x)) for x in range(4)),
    *(Move("data", "recompute", -1, x) for x in (0.0, 0.25, 0.5, 0.75, 1.0, -1.0)),
    *(Move("data", "scaled experts", -1, x) for x in (2.0, 0.5)),
    *(Move("data", "experts", -1, x) for x in (0.0, np.inf)),
    Move("data", "shard", -1, 1.0),
    *(
        move
        for rank in range(6)
        for move in (
            *(Move("data", "stage recompute", rank, x) for x in (-1.0, -4.0, -_MANY, 1.0, _MANY)),
            Move("data", "stage recompute", rank, 0.0, 1),
            Move("data", "stage zero", rank, 1.0),
        )
    ),
)  # fmt: skip
"""All moves; of each axis those of the whole plan first."""


def _features() -> np.ndarray:
    """(moves, 3 + kinds) features of moves whatever the plan: how much, towards, rank, kind."""
    features = np.zeros((len(CATALOG), 3 + len(KINDS)), np.float32)
    for line, move in zip(features, CATALOG, strict=True):
        # Values are at most the stages of a plan here: of many layers the feature is 1.
        value = np.clip(move.value, -64, 64)
        amount = np.sign(value) * np.log2(1 + abs(value)) / 6
        line[:3] = amount, move.towards, (move.rank + 1) / 8
        line[3 + KINDS.index(move.kind)] = 1.0
    return features


Moves = namedtuple("Moves", ("axis", "kind", "rank", "value", "towards", "features"))
_ROWS = [
    (AXES.index(axis), KINDS.index(kind), rank, float(value), towards)
    for axis, kind, rank, value, towards in CATALOG
]
MOVES = Moves._make((*map(np.array, zip(*_ROWS, strict=True)), _features()))
"""The catalog as arrays, a move in each row; axis and kind are places among all of them."""
