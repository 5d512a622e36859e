"""Drawn sharding problems as they are played: reduced, with start plans and messages.

    python -m parenvs.datasets.sharding.bank              # make the banks again
    python -m parenvs.datasets.sharding.bank mesh --out /tmp/banks

The first problems of each family are kept as arrays, the bank that environments play: to draw and
reduce one takes as long as thousands of turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from parenvs.core.sets import OPTIMUM, Reference
from parenvs.datasets.banks import Bank, write_banks
from parenvs.datasets.sharding.drawing import costs, drawn, find, name_of, of_set
from parenvs.tasks.sharding.reduced import Reduced
from parenvs.tasks.sharding.turns.advice import messages_of
from parenvs.tasks.sharding.turns.board import Board, Known
from parenvs.tasks.sharding.turns.construct import board_of

BANKS = {"mesh": 400, "classes": 200}
"""Family -> problems of its bank, those of the numbers from 0 and ranges inside."""
_ARRAYS = (
    "offset", "costs", "ends", "edge_offset", "edge_costs", "term_node", "term_times",
    "term_offset", "usages", "slack",
)  # fmt: skip
"""Fields of a reduced problem that a bank keeps."""


@lru_cache(maxsize=len(BANKS))
def bank(family: str) -> Bank:
    """Return the bank of a family."""
    return Bank(f"intra-op-{family}", BANKS[family], partial(_row, family))


def numbered(family: str, number: int, ranges: str = "inside") -> Board:
    """Return the board of a drawn problem by its number, from 0, which may be of the bank."""
    if ranges != "inside" or number >= BANKS[family]:
        return board_of(drawn(family, number, ranges))
    row = bank(family)[number]
    reduced = Reduced(
        problem=None, nodes=np.arange(len(row["offset"]) - 1), constant=int(row["constant"]),
        values=np.zeros(0, dtype=np.int64), steps=(), **{name: row[name] for name in _ARRAYS},
    )  # fmt: skip
    name = name_of(family, number, ranges)
    return replace(
        Board.made(name, reduced),
        witness=row["witness"],
        first=row["first"],
        reference=reduced.cost(row["first"]),
        known=known_of(costs(name, str(row["fingerprint"]))),
        draw=find,
        cache={"messages": row["messages"]},
    )


def board_of_set(name: str) -> Board:
    """Return the board of a problem of a set, with what is known of it."""
    problem = of_set(name)
    return replace(board_of(problem), known=known_of(costs(name, problem.fingerprint)))


def known_of(reference: Reference | None) -> Known:
    """Return costs that are known from a reference."""
    if reference is None:
        return Known()
    best = reference.value
    return Known(reference.bound, best, best if reference.kind == OPTIMUM else np.nan)


def _row(family: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of a problem."""
    problem = drawn(family, number)
    board = board_of(problem)
    return {
        **{name: getattr(board.reduced, name) for name in _ARRAYS},
        "constant": np.array(board.reduced.constant),
        "witness": board.witness,
        "first": board.first,
        "messages": messages_of(board),
        "fingerprint": np.array(problem.fingerprint),
    }


