"""Transitions of the partition environments as tables: what each action changes and pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add, or_
from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.partition.space import OPEN, REPLICATE, PartitionSpace

TABLE_BYTES = 2**25
"""Largest table of whole rows; beyond it, only the entries that change are held."""
BLOCK_BYTES = 2**19
"""Bytes of the rows that are changed at a time, so that they stay in the processor's cache."""


class Written(NamedTuple):
    """What one code writes into a row of decisions."""

    columns: Sequence[int] | np.ndarray
    values: Sequence[int]  # of each column


NOTHING = Written((), ())


class Changes:
    """What each of m codes writes into a row of w decisions; many rows are changed at once.

    A decision once made does not change, and ``OPEN``, -1, is all ones in binary: so writing
    into a row is the bitwise AND with a row that is ``OPEN`` wherever nothing is written.

    Args:
        written: for each code, the columns and the value of each.
        width: w.

    Attributes:
        step: rows that are changed at a time.
        start, count: (m,) int64, where a code's entries lie in ``column`` and ``value``.
        column, value: (entries,) int64 and int8.
        table: (m, w) int8 to combine with, or None if that took more than ``TABLE_BYTES``.
    """

    def __init__(self, written: Sequence[Written], width: int) -> None:
        """Flatten the entries; fill the table."""
        self.width, self.step = width, max(BLOCK_BYTES // width, 1)
        self.count = np.array([len(columns) for columns, _ in written], dtype=np.int64)
        self.start = np.cumsum(self.count) - self.count
        self.column = np.concatenate(
            [np.asarray(columns, dtype=np.int64) for columns, _ in written]
        )
        self.value = np.concatenate([np.asarray(values, dtype=np.int8) for _, values in written])
        self.table: np.ndarray | None = None
        if len(written) * width <= TABLE_BYTES:
            self.table = np.full((len(written), width), OPEN, dtype=np.int8)
            self.table[np.repeat(np.arange(len(written)), self.count), self.column] = self.value

    def entries(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All entries of (k,) codes, one code's after the other's: (e,) index of code, of entry."""
        count = self.count[codes]
        owner = np.repeat(np.arange(len(codes)), count)
        shift = self.start[codes] - np.cumsum(count) + count
        return owner, np.arange(len(owner)) + shift[owner]

    def write(self, rows: np.ndarray, codes: np.ndarray) -> None:
        """Change (k, w) int8 rows, in C order, in place, each by one of (k,) codes."""
        if self.table is None:
            owner, entry = self.entries(codes)
            rows.reshape(-1)[owner * self.width + self.column[entry]] = self.value[entry]
            return
        step = self.step
        if len(rows) <= step:
            np.bitwise_and(rows, self.table.take(codes, axis=0), out=rows)
            return
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            np.bitwise_and(part, self.table.take(codes[begin : begin + step], axis=0), out=part)


@dataclass(frozen=True, eq=False)
class Transitions:
    """The transitions of a space. V dimensions, K classes, n questions.

    Choice c of question q has the code 2q + c; the code 2n changes nothing and pays nothing. An
    episode's state is a row of V decisions, a row of K + 2 numbers that are known, and the position
    of the question at stake. The last two numbers never change: ``OPEN``, for the end of the
    episode, and ``REPLICATE``, for dimensions that can never be partitioned.

    Attributes:
        space: the questions.
        decisions: changes of the decisions.
        known: changes of the numbers that are known; the class at stake first, then its rivals.
        first_decisions: (V,) int8, the decisions at the start.
        first_known: (K+2,) int8, what is known at the start.
        column: (n+1,) int64, column of what is known of the class at stake.
        last: (n+1,) bool, whether a position is the end.
        paid: (2n+1,) float64, reward of a code.
        varies: (2n+1,) bool, codes whose reward depends on which rivals are still open, or None.
        shares: per entry of ``known``, what it adds to such a reward if its class is open.
    """

    space: PartitionSpace
    decisions: Changes
    known: Changes
    first_decisions: np.ndarray
    first_known: np.ndarray
    column: np.ndarray
    last: np.ndarray
    paid: np.ndarray
    varies: np.ndarray | None
    shares: np.ndarray

    def __deepcopy__(self, memo: dict[int, Any]) -> Transitions:
        """Itself: nothing in it changes."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Transitions], tuple[PartitionSpace]]:
        """Pickle the space alone: the tables are made anew, or are in the cache."""
        return transitions_of, (self.space,)

    def varying(self, known: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """(k,) float64 rewards of (k,) codes that vary, by (k, K+2) what is known before."""
        owner, entry = self.known.entries(codes)
        shares = np.where(known[owner, self.known.column[entry]] == OPEN, self.shares[entry], 0.0)
        # bincount adds one after the other, as an episode does: the same to the last bit.
        return np.bincount(owner, shares, minlength=len(codes))


@lru_cache(maxsize=32)
def transitions_of(space: PartitionSpace) -> Transitions:
    """The tables of a space; the same space gives the same object."""
    count, question_class = len(space.classes), np.array(space.question_class, dtype=np.int64)
    codes = [(question, choice) for question in range(len(question_class)) for choice in (0, 1)]
    decisions: list[Written] = []
    known: list[Written] = []
    shares: list[float] = []
    paid = np.zeros(len(codes) + 1)
    varies = np.zeros(len(codes) + 1, dtype=bool)
    bits = [reduce(or_, (1 << rival for rival in row), 0) for row in space.rivals]
    for code, (question, choice) in enumerate(codes):
        label = int(question_class[question])
        rivals = space.rivals[label] if choice and label >= 0 else ()
        changed = Written((label, *rivals), (choice, *[REPLICATE] * len(rivals)))
        known.append(changed if label >= 0 else NOTHING)
        paid[code] = first = space.question_paid[question][choice]
        if not space.linkage:
            decisions.append(Written([int(space.questions[question])], [choice]))
            continue
        own, other = space.members[label], space.rival_members[label][: None if choice else 0]
        values = [choice] * len(own) + [REPLICATE] * len(other)
        decisions.append(Written(np.concatenate([own, other]), values))
        shares += [first, *(space.paid[rival][REPLICATE] for rival in rivals)]
        # Earlier rivals are known; later ones are open unless an earlier class excluded them.
        later = [rival for rival in rivals if rival > label]
        # Not sum(): from Python 3.12 on it rounds once, a single environment at each addition.
        paid[code] = reduce(add, (space.paid[rival][REPLICATE] for rival in later), first)
        excluding = reduce(or_, (bits[rival] for rival in later), 0) & ~bits[label]
        varies[code] = space.reward == "paper" and excluding & ((1 << label) - 1)
    first_decisions = np.full(len(space.dimensions), OPEN, dtype=np.int8)
    if space.linkage:
        first_decisions[space.fixed] = REPLICATE
    first_known = np.full(count + 2, OPEN, dtype=np.int8)
    first_known[count + 1] = REPLICATE
    return Transitions(
        space=space,
        decisions=Changes([*decisions, NOTHING], len(space.dimensions)),
        known=Changes([*known, NOTHING], count + 2),
        first_decisions=first_decisions,
        first_known=first_known,
        column=np.append(np.where(question_class < 0, count + 1, question_class), count),
        last=np.arange(len(question_class) + 1) == len(question_class),
        paid=paid,
        varies=varies if varies.any() else None,
        shares=np.array(shares),
    )
