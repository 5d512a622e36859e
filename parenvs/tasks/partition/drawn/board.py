"""The decisions of n episodes of ``PartitionPlan-v1``, on problems of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.core.game import Rows
from parenvs.tasks.partition.drawn.linear import CLASS, EXCLUDED, STEP, Linear, logarithmic
from parenvs.tasks.partition.space import OPEN, PARTITION, REPLICATE

FIRST = 4
"""Problems that there is room for at first."""


class Sizes(NamedTuple):
    """Sizes of the largest problem that there is room for: of each axis the largest."""

    classes: int
    moments: int
    groups: int
    members: int
    witnesses: int

    @classmethod
    def of(cls, problem: Linear) -> Sizes:
        """The sizes of a problem."""
        return cls(
            len(problem.gain),
            len(problem.fullest),
            len(problem.groups),
            max(map(len, problem.groups), default=1),
            len(problem.witnesses),
        )

    def with_(self, other: Sizes) -> Sizes:
        """The sizes of what holds both."""
        return Sizes(*map(max, self, other))


@dataclass
class Tables:
    """Problems in slots, with zeros where one is smaller than the largest; S slots.

    M is the number of moments that can be the fullest.

    Attributes:
        gain: (S, K) ``Linear.gain``.
        paid: (S, K+1), with a last class that pays nothing.
        saved: (S, K, M).
        figures: (S, K, 9) float32.
        excluding: (S, K, 3) float32, what a class has of ``EXCLUDED``.
        rivals: (S, K, K) int16, the classes that each excludes; many: (S, K) how many there are.
        members: (S, P, G) the classes of each group, K where there are fewer.
        weights: (S, G).
        size, moments: (S,) classes and moments; limit, replicated: (S,) bytes, and seconds.
        start: (S,) seconds of the start plan; price: (S,) that of ``Linear.priced``.
        step: (S, 6) float32, ``Linear.step``.
        rule: (S, K) float32, what classes are worth at the price, by size.
        known: (S, K) int8, decisions before the first turn.
        plans: (S, K, W) bool, witnesses; where there are fewer, they are repeated.
        slack: (S, W, M) bytes that each leaves at each moment.
    """

    gain: np.ndarray
    paid: np.ndarray
    saved: np.ndarray
    figures: np.ndarray
    excluding: np.ndarray
    rivals: np.ndarray
    many: np.ndarray
    members: np.ndarray
    weights: np.ndarray
    size: np.ndarray
    moments: np.ndarray
    limit: np.ndarray
    replicated: np.ndarray
    start: np.ndarray
    price: np.ndarray
    step: np.ndarray
    rule: np.ndarray
    known: np.ndarray
    plans: np.ndarray
    slack: np.ndarray

    @classmethod
    def empty(cls, slots: int, size: Sizes) -> Tables:
        """Room for so many problems."""
        k, m, w = size.classes, size.moments, size.witnesses
        limit, replicated, start, price = np.zeros((4, slots))
        return cls(
            gain=np.zeros((slots, k)),
            paid=np.zeros((slots, k + 1)),
            saved=np.zeros((slots, k, m)),
            figures=np.zeros((slots, k, len(CLASS)), dtype=np.float32),
            excluding=np.zeros((slots, k, len(EXCLUDED)), dtype=np.float32),
            rivals=np.zeros((slots, k, k), dtype=np.int16),
            many=np.zeros((slots, k), dtype=np.int64),
            members=np.full((slots, size.members, size.groups), k),
            weights=np.zeros((slots, size.groups)),
            size=np.zeros(slots, dtype=np.int64),
            moments=np.zeros(slots, dtype=np.int64),
            limit=limit,
            replicated=replicated,
            start=start,
            price=price,
            step=np.zeros((slots, len(STEP)), dtype=np.float32),
            rule=np.zeros((slots, k), dtype=np.float32),
            known=np.full((slots, k), REPLICATE, dtype=np.int8),
            plans=np.zeros((slots, k, w), dtype=np.bool_),
            slack=np.full((slots, w, m), np.inf),
        )

    def put(self, slot: int, problem: Linear) -> None:
        """Write a problem into a slot that is empty."""
        k, m, plans = len(problem.gain), len(problem.fullest), problem.witnesses
        self.gain[slot, :k], self.paid[slot, :k] = problem.gain, problem.paid
        self.saved[slot, :k, :m] = problem.saved[:, problem.fullest]
        self.figures[slot, :k] = problem.figures
        self.excluding[slot, :k] = np.maximum(
            problem.figures[:, [CLASS.index(name) for name in EXCLUDED]], 0.0
        )
        for index, row in enumerate(problem.rivals):
            self.rivals[slot, index, : len(row)], self.many[slot, index] = row, len(row)
        for index, row in enumerate(problem.groups):
            self.members[slot, : len(row), index] = row
        self.weights[slot, : len(problem.weights)] = problem.weights
        self.size[slot], self.moments[slot] = k, m
        self.limit[slot], self.replicated[slot] = problem.limit, problem.replicated
        self.start[slot], self.step[slot] = problem.seconds(plans[0]), problem.step
        self.price[slot], worth = problem.priced
        self.rule[slot, :k] = logarithmic(worth)
        self.known[slot, :k] = OPEN
        several = np.arange(self.plans.shape[2]) % len(plans)
        self.plans[slot, :k] = plans[several].T
        self.slack[slot, :, :m] = problem.slack(plans)[several][:, problem.fullest]


class Boards:
    """Decisions of n episodes, and the completions of them that are known to fit.

    Args:
        count: n.
        largest: sizes of the largest problem.

    Attributes:
        tables: the problems that are played.
        problems: those in the slots.
        slot: (n,) int64, the slot of each episode's problem.
        known: (n, K) int8 decisions: 1 partitioned, 0 replicated, -1 open.
        plans: (n, K, W) bool, the witnesses, which follow the decisions.
        slack: (n, W, 2, M) bytes that each leaves at each moment, as it is and if it made the other
            choice at stake; least: (n, W, 2) of all moments.
        now: (n, W) int8, in which of the two each is as it is.
    """

    def __init__(self, count: int, largest: Sizes) -> None:
        self.largest = largest
        self._slots: dict[Linear, int] = {}
        self.problems: list[Linear] = []
        self.tables = Tables.empty(FIRST, largest)
        k, m, w = largest.classes, largest.moments, largest.witnesses
        self.slot = np.zeros(count, dtype=np.int64)
        self.known = np.full((count, k), OPEN, dtype=np.int8)
        self.plans = np.zeros((count, k, w), dtype=np.bool_)
        self.slack, self.least = np.zeros((count, w, 2, m)), np.zeros((count, w, 2))
        self.now, self._witness = np.zeros((count, w), dtype=np.int8), np.arange(w)

    def has_room(self, problem: Linear) -> bool:
        """Whether a problem is no larger than the largest."""
        return self.largest.with_(Sizes.of(problem)) == self.largest

    def put(self, rows: Rows, problem: Linear) -> None:
        """Give episodes a problem."""
        slot = self._slots.get(problem)
        if slot is None:
            slot = self._slots[problem] = len(self.problems)
            self.problems.append(problem)
            if slot == len(self.tables.gain):
                more = Tables.empty(slot, self.largest)
                for name, mine in vars(self.tables).items():
                    setattr(self.tables, name, np.concatenate([mine, getattr(more, name)]))
            self.tables.put(slot, problem)
        self.slot[rows] = slot

    def start(self, rows: Rows) -> None:
        """Begin episodes with nothing decided."""
        tables, slot = self.tables, self.slot[rows]
        self.known[rows], self.plans[rows] = tables.known[slot], tables.plans[slot]
        self.slack[rows, :, 0], self.slack[rows, :, 1] = tables.slack[slot], np.inf
        self.least[rows, :, 0], self.now[rows] = tables.slack[slot].min(axis=-1), 0

    def rivals(self, rows: np.ndarray, stake: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of a place in ``rows`` and a class that the one at stake there excludes."""
        slot = self.slot[rows]
        many = self.tables.many[slot, stake]
        place = np.repeat(np.arange(len(rows)), many)
        number = np.arange(len(place)) - np.repeat(many.cumsum() - many, many)
        return place, self.tables.rivals[slot[place], stake[place], number]

    def rooms(self, rows: np.ndarray, stake: np.ndarray) -> np.ndarray:
        """Return the bytes that the leanest known completion of each choice leaves, (k, 2).

        Args:
            rows: the episodes.
            stake: (k,) the class that each decides.
        """
        slot = self.slot[rows]
        moments = int(self.tables.moments[slot].max())
        saved = self.tables.saved[:, :, :moments]
        chosen = self.plans[rows, stake]  # (k, W)
        now = rows[:, None], self._witness, self.now[rows]
        slack = saved[slot, stake][:, None] * np.where(chosen, -1.0, 1.0)[..., None]
        slack += self.slack[..., :moments][now]
        # A witness that splits the class no longer splits those that it excludes, which are taken
        # one after the other, so that the sums are the same whatever stands beside them.
        place, rival = self.rivals(rows, stake)
        witness, pair = self.plans[rows[place], rival].T.nonzero()
        if len(pair):
            place, rival = place[pair], rival[pair]
            first = np.flatnonzero(np.diff(witness * len(rows) + place, prepend=-1))
            changed = place[first], witness[first]
            given = np.insert(saved[slot[place], rival], first, slack[changed], axis=0)
            slack[changed] = np.subtract.reduceat(given, first + np.arange(len(first)))
        least, other = self.least[now], slack.min(axis=-1)
        flipped = *now[:2], now[2] ^ 1
        self.slack[..., :moments][flipped], self.least[flipped] = slack, other
        less, more = np.where(chosen, (other, least), (least, other))
        return np.stack([less.max(axis=1), more.max(axis=1)], axis=1)

    def decide(self, rows: np.ndarray, stake: np.ndarray, split: np.ndarray) -> None:
        """Decide the classes that ``rooms`` was asked about last: split those of ``split``."""
        self.now[rows] ^= self.plans[rows, stake] != split[:, None]
        self.plans[rows, stake] = split[:, None]
        self.known[rows, stake] = np.where(split, PARTITION, REPLICATE)
        rows = rows[split]
        place, rival = self.rivals(rows, stake[split])
        self.plans[rows[place], rival] = False
        self.known[rows[place], rival] = REPLICATE

    def bounds(self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray) -> np.ndarray:
        """Return what the classes then open, and that at stake, can save at most, (k, 2).

        An instruction is split at most once, by the class that saves most of it.

        Args:
            rows: the episodes.
            stake: (k,) the class that each decides.
            is_open: (k, K) bool.
        """
        tables, slot, every = self.tables, self.slot[rows], np.arange(len(rows))
        can = np.zeros((2, len(rows), is_open.shape[1] + 1), dtype=np.bool_)
        can[:, :, :-1] = is_open
        can[:, every, stake] = False
        can[1][self.rivals(rows, stake)] = False
        paid = np.where(can, tables.paid[slot], 0.0)
        members = tables.members[slot] + every[:, None, None] * paid.shape[2]
        result = np.empty((len(rows), 2))
        for choice in (REPLICATE, PARTITION):
            best = paid[choice].take(members).max(axis=1)
            result[:, choice] = (best * tables.weights[slot]).sum(axis=-1)
        result[:, PARTITION] += tables.gain[slot, stake]
        return result

    def excluded(self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray) -> np.ndarray:
        """Return what the open rivals of the classes at stake have of ``EXCLUDED``, (k, 3)."""
        found = np.zeros((len(rows), len(EXCLUDED)), dtype=np.float32)
        place, rival = self.rivals(rows, stake)
        there = is_open[place, rival]
        place, rival = place[there], rival[there]
        np.add.at(found, place, self.tables.excluding[self.slot[rows[place]], rival])
        return np.minimum(found, 1.0)

    def coming(
        self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray, count: int,
        names: Sequence[str],
    ) -> np.ndarray:  # fmt: skip
        """Return figures of the next open classes after those at stake, (k, count * names)."""
        every, slot = np.arange(len(rows)), self.slot[rows]
        left = is_open.copy()
        left[every, stake] = False
        coming = np.empty((len(rows), count), dtype=np.int64)
        there = np.empty((len(rows), count), dtype=np.bool_)
        for index in range(count):
            coming[:, index] = first = left.argmax(axis=1)
            there[:, index], left[every, first] = left[every, first], False
        columns = [CLASS.index(name) for name in names]
        found = self.tables.figures[:, :, columns][slot[:, None], coming]
        return np.where(there[..., None], found, np.float32(0)).reshape(len(rows), -1)
