"""Episodes as policies of the leaderboard play them, n at once: gathers from tables of problems.

What is seen has the shapes of ``Tables`` and ``NUMBERS``, all float32 in [0, 1]: ``plans`` (64, 6),
``change`` (64, 3) and ``numbers`` (16,), see ``Turns.observation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.tasks.elastic.course import MAX_NODES, Course
from parenvs.tasks.elastic.library import GONE, LOST, MAX_PLANS, READY, happened
from parenvs.tasks.elastic.markov import Markov, courses
from parenvs.tasks.elastic.run import Run, replay
from parenvs.tasks.elastic.tables import Tables

NUMBERS = (
    "nodes", "joined", "left", "used", "spares", "idle", "rate", "lost", "ready", "gone", "since",
    "quiet", "remaining", "leaving", "joining", "interval",
)  # fmt: skip
"""Names of the observation's ``numbers``: nodes there, joined, left, in use, spares, idle (all over
64); rate of the plan in force over the fastest; nodes in use that were lost over 4; 1 if spares are
ready; 1 if state is lost; intervals since the state was safe over those between checkpoints, since
the last event over 60; share of the episode that remains; running means of the departures of a node
and of joins over 64; 1 / intervals of an episode."""
QUIET = 60
"""Intervals since the last event beyond which they are not told apart."""
_BLOCK = 256  # courses that are laid out at a time
KEEP = 0.95
"""Weight of the past in the means of departures and joins."""


class Turns:
    """The turns of n episodes at once.

    Attributes:
        tables: the problems.
        problem: (n,) int64, number of each episode's problem.
        interval: (n,) int64, intervals that are over.
        plan: (n,) int64, the plan in force.
        event: (n,) int64, what happened to it.
        total: (n,) float64, samples so far.
        chosen: (n, S) int8, the plans chosen.
        course: the courses, with an axis n in front; all episodes share one of a named trace.
    """

    def __init__(self, count: int, tables: Tables) -> None:
        self.tables = tables
        self.size = max(problem.intervals for problem in tables.problems)
        nodes = max(problem.nodes for problem in tables.problems)
        self.problem, self.interval, self.plan, self.event, self.since, self.quiet = np.zeros(
            (6, count), dtype=np.int64
        )
        self.total, self.leaving, self.joining = np.zeros((3, count))
        self.chosen = np.zeros((count, self.size), dtype=np.int8)
        self.row = np.zeros(count, dtype=np.int64)
        self.length = np.full(count, self.size)
        self.is_shared = not any(problem.is_random for problem in tables.problems)
        slots = 1 if self.is_shared else count
        # Beside each other, as each episode reads all three of one interval.
        self._counts = counts = np.zeros((slots, self.size, 4), dtype=np.int16)
        lost = np.zeros((slots, self.size, nodes + 1), dtype=np.int8)
        self.course = Course(counts[:, :, 0], counts[:, :, 1], counts[:, :, 2], lost)
        self._own = np.zeros(count, dtype=np.int64) if self.is_shared else np.arange(count)
        if self.is_shared:
            self._put(0, tables.problems[0].course())
        self.nodes, self.joined, self.left = np.zeros((3, count), dtype=np.int64)

    def start(self, who: Any, problems: Sequence[int], drawn: Sequence[np.ndarray | None]) -> None:
        """Start episodes.

        Args:
            who: their indices, (k,).
            problems: number of the problem of each.
            drawn: what decides the course of each, of ``Elastic.draw``.
        """
        tables = self.tables
        self.problem[who] = problems
        self.row[who] = tables.row[self.problem[who]]
        self.length[who] = [tables.problems[i].intervals for i in problems]
        if not self.is_shared:
            self._lay(who, problems, drawn)
        self.rewind(who)

    def rewind(self, who: Any) -> None:
        """Start episodes ``who`` again, on the same courses."""
        for array in (self.interval, self.plan, self.event, self.since, self.quiet):
            array[who] = 0
        for sums in (self.total, self.leaving, self.joining):
            sums[who] = 0.0
        self.chosen[who] = 0
        own = self._own[who]
        self.nodes[who] = self.course.nodes[own, 0]
        self.joined[who] = self.course.joined[own, 0]
        self.left[who] = 0

    def step(self, who: np.ndarray, plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Play an interval of episodes ``who``, (k,), with legal plans (k,).

        Returns:
            Rewards (k,) float64, and which episodes are over, (k,) bool.
        """
        rows, who = who, self._all_of(who)
        tables, row = self.tables, self.row[who]
        old, event, since = self.plan[who], self.event[who], self.since[who]
        at = self.interval[who]
        samples = tables.earned[row, event, old, plan]
        stays = (plan == old) & (event == 0)
        since_next = since + 1
        written = stays & (since_next == tables.every[row])
        samples = np.where(written, samples - tables.saved[row, old], samples)
        gone = event == GONE
        if gone.any():
            lost = since * tables.lost_samples[row, old]
            samples = np.where(gone, samples - lost, samples)
        self.total[who] += samples
        self.chosen[rows, at] = plan
        at = at + 1
        self.interval[who] = at
        self.since[who] = np.where(stays & ~written & (old > 0), since_next, 0)
        self.plan[who] = plan
        over = at == self.length[who]
        self.event[who] = 0
        on, now = (rows[~over], at[~over]) if over.any() else (rows, at)
        if len(on):
            self._next(on, now)
        return samples / tables.ideal[self.problem[who]], over

    def _all_of(self, who: np.ndarray) -> Any:
        """Return episodes ``who``, (k,), as a slice if they are all: then nothing is gathered."""
        return slice(None) if len(who) == len(self.plan) else who

    def _next(self, rows: np.ndarray, at: np.ndarray) -> None:
        """Let nodes leave and come before interval ``at``, (k,), of episodes ``rows``."""
        who = self._all_of(rows)
        own = self._own[who]
        nodes, joined, left, _ = self._counts[own, at].T
        self.leaving[who] *= KEEP
        self.leaving[who] += (1 - KEEP) * left / np.maximum(self.nodes[who], 1)
        self.joining[who] *= KEEP
        self.joining[who] += (1 - KEEP) * joined / MAX_NODES
        self.nodes[who], self.joined[who], self.left[who] = nodes, joined, left
        self.quiet[who] = np.where((joined > 0) | (left > 0), 0, self.quiet[who] + 1)
        losing = left.nonzero()[0]
        if losing.size:
            hit_rows = rows[losing]
            row, plan = self.row[hit_rows], self.plan[hit_rows]
            lost = self.course.lost[own[losing], at[losing]]
            hit = lost[np.arange(len(hit_rows)), self.tables.used[row, plan]].nonzero()[0]
            if hit.size:
                hit_rows = hit_rows[hit]
                tables, row, plan = self.tables, row[hit], plan[hit]
                columns = (tables.used, tables.held, tables.borders)
                self.event[hit_rows] = happened(
                    lost[hit], *(column[row, plan] for column in columns)
                )

    def masks(self) -> np.ndarray:
        """Return the legal plans, (n, 64) int8; the nodes are enough for them."""
        return self.tables.fits[self.row, self.nodes][:, :MAX_PLANS]

    def legal(self, who: np.ndarray, plan: np.ndarray) -> np.ndarray:
        """Return whether plans of episodes ``who``, (k,) int64 from 0 to 64, are legal."""
        return self.tables.fits[self.row[who], self.nodes[who], plan] > 0

    def observation(self, who: Any) -> dict[str, np.ndarray]:
        """Return what changes of the observation: ``change`` and ``numbers`` of episodes ``who``.

        A plan that has broken is observed as the one in force, with what its exchange costs.
        """
        tables, row, plan, event = self.tables, self.row[who], self.plan[who], self.event[who]
        nodes = self.nodes[who]
        used, held = tables.used[row, plan], tables.held[row, plan]
        numbers = np.empty((len(row), len(NUMBERS)), dtype=np.float32)
        columns = (
            nodes / MAX_NODES,
            self.joined[who] / MAX_NODES,
            self.left[who] / MAX_NODES,
            used / MAX_NODES,
            (held - used) / MAX_NODES,
            np.maximum(nodes - held, 0) / MAX_NODES,
            tables.plans[row, plan, 5],
            np.where((event > 0) & (event < GONE), (event - 1) % LOST + 1, 0) / LOST,
            (event > READY) & (event < GONE),
            event == GONE,
            self.since[who] / tables.every[row],
            np.minimum(self.quiet[who], QUIET) / QUIET,
            1.0 - self.interval[who] / self.length[who],
            self.leaving[who],
            self.joining[who],
            1.0 / self.length[who],
        )
        for i, column in enumerate(columns):
            numbers[:, i] = column
        return {"change": tables.change[row, event, plan], "numbers": numbers}

    def shares(self, who: np.ndarray) -> np.ndarray:
        """Return the share of the ideal that finished episodes ``who`` reached, (k,)."""
        result = np.empty(len(who))
        for i, index in enumerate(who.tolist()):
            nodes = self.course.nodes[self._own[index], : self.length[index]]
            best = self.tables.best[self.row[index], nodes].sum()
            result[i] = self.total[index] / best if best else 0.0
        return result

    def run(self, index: int) -> Run:
        """Return an episode so far, as the simulation has it."""
        problem = self.tables.problems[self.problem[index]]
        course = self.course.of(self._own[index])
        course = Course(*(part[: problem.intervals] for part in course))
        return replay(problem, course, self.chosen[index, : self.interval[index]])

    def _lay(self, who: Any, problems: Sequence[int], drawn: Sequence[np.ndarray | None]) -> None:
        """Lay out the courses of episodes that start."""
        own = self._own[who].tolist()
        chains = [self.tables.problems[i].source for i in problems]
        if not isinstance(chains[0], Markov):  # a trace whose nodes have no names
            for slot, number, numbers in zip(own, problems, drawn, strict=True):
                self._put(slot, self.tables.problems[number].course(numbers))
            return
        block = np.empty((_BLOCK, self.size, self.course.lost.shape[2]), dtype=np.float32)
        for first in range(0, len(own), _BLOCK):
            block_rows = slice(first, first + _BLOCK)
            for mine, numbers in zip(block, drawn[block_rows], strict=False):
                assert numbers is not None
                mine[:, numbers.shape[1] :] = mine[len(numbers) :] = 1.0
                mine[: len(numbers), : numbers.shape[1]] = numbers
            drawn_courses = courses(chains[block_rows], block[: len(own[block_rows])])  # type: ignore[arg-type]
            for mine, new in zip(self.course, drawn_courses, strict=True):
                mine[own[block_rows]] = new

    def _put(self, slot: int, course: Course) -> None:
        """Write one course into the arrays."""
        for mine, new in zip(self.course, course, strict=True):
            if new.ndim == 1:
                mine[slot, : len(new)] = new
            else:
                mine[slot, : len(new), : new.shape[1]] = new
