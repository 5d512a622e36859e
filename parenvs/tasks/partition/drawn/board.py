"""The decisions of n episodes of ``PartitionPlan-v1``, on problems of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
    rivals: int
    witnesses: int

    @classmethod
    def of(cls, problem: Linear) -> Sizes:
        """The sizes of a problem."""
        return cls(
            len(problem.gain),
            len(problem.whole),
            len(problem.groups),
            max(map(len, problem.groups), default=1),
            max(map(len, problem.rivals), default=1),
            len(problem.witnesses),
        )

    def with_(self, other: Sizes) -> Sizes:
        """The sizes of what holds both."""
        return Sizes(*map(max, self, other))


@dataclass
class Tables:
    """Problems in slots, with zeros where one is smaller than the largest; S slots.

    Attributes:
        gain: (S, K) ``Linear.gain``.
        paid: (S, K+1), with a last class that pays nothing.
        saved: (S, K, M).
        figures: (S, K, 9) float32.
        excluding: (S, K+1, 3) what a class has of ``EXCLUDED``, with a last one of nothing.
        rivals: (S, K, R) the classes that each excludes, K where there are fewer.
        members: (S, G, P) the classes of each group, K where there are fewer.
        weights: (S, G).
    """

    gain: np.ndarray
    paid: np.ndarray
    saved: np.ndarray
    figures: np.ndarray
    excluding: np.ndarray
    rivals: np.ndarray
    members: np.ndarray
    weights: np.ndarray

    @classmethod
    def empty(cls, slots: int, size: Sizes) -> Tables:
        """Room for so many problems."""
        k = size.classes
        return cls(
            gain=np.zeros((slots, k)),
            paid=np.zeros((slots, k + 1)),
            saved=np.zeros((slots, k, size.moments)),
            figures=np.zeros((slots, k, len(CLASS)), dtype=np.float32),
            excluding=np.zeros((slots, k + 1, len(EXCLUDED)), dtype=np.float32),
            rivals=np.full((slots, k, size.rivals), k),
            members=np.full((slots, size.groups, size.members), k),
            weights=np.zeros((slots, size.groups)),
        )

    def put(self, slot: int, problem: Linear) -> None:
        """Write a problem into a slot that is empty."""
        k = len(problem.gain)
        self.gain[slot, :k], self.paid[slot, :k] = problem.gain, problem.paid
        self.saved[slot, :k, : len(problem.whole)] = problem.saved
        self.figures[slot, :k] = problem.figures
        self.excluding[slot, :k] = np.maximum(
            problem.figures[:, [CLASS.index(name) for name in EXCLUDED]], 0.0
        )
        for index, row in enumerate(problem.rivals):
            self.rivals[slot, index, : len(row)] = row
        for index, row in enumerate(problem.groups):
            self.members[slot, index, : len(row)] = row
        self.weights[slot, : len(problem.weights)] = problem.weights


class Boards:
    """Decisions of n episodes, and the completions of them that are known to fit.

    Args:
        count: n.
        largest: sizes of the largest problem.

    Attributes:
        tables: the problems that are played.
        slot: (n,) int64, the slot of each episode's problem; episodes of problems that differ in
            their limit alone share one.
        known: (n, K) int8 decisions: 1 partitioned, 0 replicated, -1 open.
        plans: (n, W, K) bool, the witnesses, which follow the decisions.
        slack: (n, W, M) bytes that each leaves at each moment.
        size: (n,) classes of each problem; limit, replicated: (n,) bytes, and seconds.
        step: (n, 6) float32, ``Linear.step``; price: (n,) that of ``Linear.priced``.
        rule: (n, K) float32, what classes are worth at that price, by size.
    """

    def __init__(self, count: int, largest: Sizes) -> None:
        self.largest = largest
        self._slots: dict[int, int] = {}  # of the arrays of a problem, which are kept
        self._kept: list[np.ndarray] = []
        self.tables = Tables.empty(FIRST, largest)
        k, m, w = largest.classes, largest.moments, largest.witnesses
        self.problems: list[Linear] = [None] * count  # type: ignore[list-item]
        self.slot, self.size = np.zeros((2, count), dtype=np.int64)
        self.limit, self.replicated, self.price = np.zeros((3, count))
        self.rule = np.zeros((count, k), dtype=np.float32)
        self.step = np.zeros((count, len(STEP)), dtype=np.float32)
        self.known = np.full((count, k), OPEN, dtype=np.int8)
        self.plans = np.zeros((count, w, k), dtype=np.bool_)
        self.slack = np.zeros((count, w, m))

    def has_room(self, problem: Linear) -> bool:
        """Whether a problem is no larger than the largest."""
        return self.largest.with_(Sizes.of(problem)) == self.largest

    def put(self, row: int, problem: Linear) -> None:
        """Give an episode a problem."""
        self.problems[row] = problem
        self.slot[row], self.size[row] = self._slot(problem), len(problem.gain)
        self.limit[row], self.replicated[row] = problem.limit, problem.replicated
        self.step[row] = problem.step
        self.price[row], worth = problem.priced
        self.rule[row, : len(worth)] = logarithmic(worth)

    def start(self, rows: np.ndarray) -> None:
        """Begin episodes, (k,), with nothing decided."""
        for row in rows.tolist():
            problem = self.problems[row]
            if "slack" not in problem.cache:
                problem.cache["slack"] = problem.slack(problem.witnesses)
            plans, slack = problem.witnesses, problem.cache["slack"]
            (w, k), m = plans.shape, slack.shape[1]
            # Fewer witnesses are repeated; moments that there are not have all the room.
            several = np.arange(self.plans.shape[1]) % w
            self.plans[row], self.slack[row] = False, np.inf
            self.plans[row, :, :k], self.slack[row, :, :m] = plans[several], slack[several]
            self.known[row] = REPLICATE
            self.known[row, :k] = OPEN

    def rooms(self, rows: np.ndarray, stake: np.ndarray) -> np.ndarray:
        """Return the bytes that the leanest known completion of each choice leaves, (k, 2).

        Args:
            rows: the episodes.
            stake: (k,) the class that each decides.
        """
        chosen = self.plans[rows, :, stake]  # (k, W)
        now = self.slack[rows].min(axis=-1)
        saved = self.tables.saved[self.slot[rows], stake][:, None]
        less = np.where(chosen, (self.slack[rows] - saved).min(axis=-1), now)
        more = np.where(chosen, now, self._partitioned(rows, stake).min(axis=-1))
        return np.stack([less.max(axis=1), more.max(axis=1)], axis=1)

    def decide(self, rows: np.ndarray, stake: np.ndarray, split: np.ndarray) -> None:
        """Decide classes: split those of ``split``, (k,) bool, and exclude their rivals."""
        slot, every = self.slot[rows], np.arange(len(rows))
        slack, plans = self.slack[rows], self.plans[rows]
        chosen = plans[every, :, stake]
        change = chosen != split[:, None]
        saved = self.tables.saved[slot, stake][:, None]
        less = np.where((change & ~split[:, None])[..., None], slack - saved, slack)
        more = self._partitioned(rows, stake)
        self.slack[rows] = np.where((change & split[:, None])[..., None], more, less)
        plans[every, :, stake] = split[:, None]
        padded = np.zeros((len(rows), plans.shape[2] + 1), dtype=np.bool_)
        padded[every[:, None], self.tables.rivals[slot, stake]] = split[:, None]
        excluded = padded[:, :-1]
        plans &= ~excluded[:, None]
        self.plans[rows] = plans
        known = self.known[rows]
        known[every, stake] = np.where(split, PARTITION, REPLICATE)
        known[excluded] = REPLICATE
        self.known[rows] = known

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
        can[1, every[:, None], tables.rivals[slot, stake]] = False
        paid = np.where(can, tables.paid[slot], 0.0)
        members, result = tables.members[slot], np.empty((len(rows), 2))
        for choice in (REPLICATE, PARTITION):
            best = paid[choice][every[:, None, None], members].max(axis=-1)
            result[:, choice] = (best * tables.weights[slot]).sum(axis=-1)
        result[:, PARTITION] += tables.gain[slot, stake]
        return result

    def excluded(self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray) -> np.ndarray:
        """Return what the open rivals of the classes at stake have of ``EXCLUDED``, (k, 3)."""
        slot = self.slot[rows]
        rivals = self.tables.rivals[slot, stake]
        padded = np.zeros((len(rows), is_open.shape[1] + 1), dtype=np.bool_)
        padded[:, :-1] = is_open
        there = padded[np.arange(len(rows))[:, None], rivals][..., None]
        found = np.where(there, self.tables.excluding[slot[:, None], rivals], 0.0)
        return np.minimum(found.sum(axis=1), 1.0)

    def coming(
        self, rows: np.ndarray, stake: np.ndarray, is_open: np.ndarray, count: int,
        names: Sequence[str],
    ) -> np.ndarray:  # fmt: skip
        """Return figures of the next open classes after those at stake, (k, count * names)."""
        every = np.arange(len(rows))
        left = is_open.copy()
        left[every, stake] = False
        columns = [CLASS.index(name) for name in names]
        result = np.zeros((len(rows), count, len(columns)), dtype=np.float32)
        for index in range(count):
            found, first = np.asarray(left.any(axis=1)), left.argmax(axis=1)
            figures = self.tables.figures[self.slot[rows], first][:, columns]
            result[:, index] = np.where(found[:, None], figures, 0.0)
            left[every, first] = False
        return result.reshape(len(rows), -1)

    def _partitioned(self, rows: np.ndarray, stake: np.ndarray) -> np.ndarray:
        """Return the slack, (k, W, M), of witnesses that split the class at stake, too.

        Their classes that it excludes are no longer split then.
        """
        slot, saved = self.slot[rows], self.tables.saved
        slack = self.slack[rows] + saved[slot, stake][:, None]
        rivals = self.tables.rivals[slot, stake]
        plans = np.zeros((*self.plans.shape[1:2], len(rows), self.plans.shape[2] + 1), np.bool_)
        plans[..., :-1] = self.plans[rows].transpose(1, 0, 2)
        split = np.take_along_axis(plans, rivals[None], axis=2).transpose(1, 0, 2)
        # One after the other, so that the sums are the same whatever stands beside them.
        episode, witness, which = split.nonzero()
        turn = np.arange(len(episode)) - np.searchsorted(
            episode * split.shape[1] + witness, episode * split.shape[1] + witness
        )
        for number in range(int(turn.max(initial=-1)) + 1):
            now = turn == number
            e, w, r = episode[now], witness[now], which[now]
            slack[e, w] -= saved[slot[e], rivals[e, r]]
        return slack

    def _slot(self, problem: Linear) -> int:
        """Return the slot of a problem, which is written if it is in none."""
        slot = self._slots.get(id(problem.saved))
        if slot is not None:
            return slot
        slot = len(self._kept)
        if slot == len(self.tables.gain):
            more = Tables.empty(slot, self.largest)
            for name, mine in vars(self.tables).items():
                setattr(self.tables, name, np.concatenate([mine, getattr(more, name)]))
        self._slots[id(problem.saved)] = slot
        self._kept.append(problem.saved)
        self.tables.put(slot, problem)
        return slot
