"""The problems of a vector environment whose draws are numbered: rows of a pool."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from parenvs.tasks.pipeline.drawn import sequence
from parenvs.tasks.pipeline.drawn.pool import (
    CAPACITY,
    EMPTY,
    PoolDynamics,
    ProblemPool,
    rows_of,
    write_pool,
)
from parenvs.tasks.pipeline.game.plan import PipelinePlanEnv, observe
from parenvs.tasks.pipeline.game.plan_problems import PlacedProblem, PlanProblems, known_optimum
from parenvs.tasks.pipeline.points import PointSpace

PART = 32
"""Problems that another process makes at a time."""
AHEAD = 256
"""Problems before the window that are made ahead."""


class PooledProblems(PlanProblems):
    """The problems of n environments with ``draw=2``; see ``PlanProblems``.

    Args:
        env: a single environment, whose arguments say what to draw.
        count: n.
        folder: where the pool lies, see ``write_pool``; None makes problems when they are drawn.
        refill: whether another process makes the problems that the window will move over; problems
            are the same with and without.

    Attributes:
        pool: the pool.
        slot: (n,) int64, slot of each environment's problem.
        number: (n,) int64, number of each environment's problem; ``EMPTY`` for one of ``options``.
    """

    dynamics: Any

    def __init__(
        self,
        env: PipelinePlanEnv,
        count: int,
        folder: str | os.PathLike[str] | None = None,
        refill: bool = False,
    ) -> None:
        """Make or map the pool, and begin with the problem of the single environment."""
        self.env, self.count = env, count
        place = None
        if folder is not None:
            label = f"{env.ranges}-{env.family or 'any'}"
            place = write_pool(folder, env.space_of, observe, label)
        self.pool = ProblemPool(env.space_of, observe, count, place)
        self.stages = np.zeros(count, dtype=np.int64)
        self.optimum = np.full(count, np.nan)
        self.slot, self.number = np.zeros(count, dtype=np.int64), np.full(count, EMPTY)
        self.dynamics = PoolDynamics(self.pool, self.slot)
        self._words = np.zeros(count, dtype=np.uint64)  # of the seeds
        self._turn = np.zeros(count, dtype=np.int64)  # problems drawn since the seed was set
        self._left = np.zeros(count, dtype=np.int64)
        self._units = np.zeros(count, dtype=np.int64)  # units of the topologies in ``constant``
        self._seeds: list[int | None] = [None] * count
        self._generators: list[np.random.Generator | None] = [None] * count
        self._named: dict[int, PointSpace] = {}  # of options, by environment
        self._named_number = np.full(len(self.pool.number), EMPTY)  # number that a name is of
        self._names = np.full(len(self.pool.number), None, dtype=object)
        self._refill = Refill(self.pool, env.family, env.ranges) if refill else None
        self.constant = {
            key: np.zeros((count, *values.shape[1:]), values.dtype)
            for key, values in self.pool.constant.items()
        }
        self.of = _Built(self)  # type: ignore[assignment]
        self._take(np.arange(count), sequence.number_of([0] * count, [0] * count))

    def advance(self, who: Any) -> None:
        """Give ``who`` the problems of their next episodes."""
        rows = np.arange(self.count)[who]
        drawing = rows[self._left[rows] == 0]
        if drawing.size:
            fresh = drawing[self._turn[drawing] == 0]
            for row in fresh.tolist():
                self._words[row] = np.uint64(self.seed_of(row) & 0xFFFFFFFFFFFFFFFF)
            numbers = sequence.number_of(self._words[drawing], self._turn[drawing])
            self._take(drawing, numbers)
            if self._refill is not None:
                self._refill.look(int(self._turn.max()) // sequence.PACE)
            self._turn[drawing] += 1
            self._left[drawing] = self.env.repeat
        self._left[rows] -= 1

    def instances(self, rows: np.ndarray) -> list[str]:
        """Return the instance of each of environments ``rows``."""
        return self._names[self.slot[rows]].tolist()

    def close(self) -> None:
        """End the process that refills the pool, if there is one."""
        if self._refill is not None:
            self._refill.close()

    def bubble_free(self, rows: np.ndarray) -> np.ndarray:
        """Return the bubble-free seconds of the problems of environments ``rows``, (k,) float64."""
        return self.pool.batch.bubble_free[self.slot[rows]]

    def observed_by(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return fresh arrays of ``observe`` for environments ``rows``, (k, ...)."""
        return {key: value[rows] for key, value in self.constant.items()}

    def space_at(self, row: int) -> PointSpace:
        """Return the problem of environment ``row``, made anew if it was drawn."""
        number = int(self.number[row])
        return self._named[row] if number == EMPTY else self.env.space_of(number)

    def _restart_sequence(self, row: int) -> None:
        """Begin the sequence of an environment's new seed."""
        self._turn[row] = 0

    def _lend(self, who: Any, space: PointSpace) -> None:
        """Give ``who`` the problem of ``space`` for one episode."""
        rows = np.arange(self.count)[who]
        self._release(rows)
        for row in rows.tolist():
            slot = CAPACITY + row
            self.pool.put(slot, space)
            self.slot[row], self._named[row] = slot, space
            self._names[slot], self._named_number[slot] = space.pipeline.instance, EMPTY
        self.pool.used[self.slot[rows]] += 1
        self.number[rows], self.optimum[rows] = EMPTY, known_optimum(space)
        self._left[rows] = 0
        self._show(rows)

    def _take(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Give environments ``rows`` the problems of ``numbers``."""
        self._release(rows)
        self.slot[rows] = self.pool.slots_of(numbers, rows)
        unnamed = np.flatnonzero(self._named_number[self.slot[rows]] != numbers)
        for index in unnamed.tolist():
            slot, number = self.slot[rows[index]], int(numbers[index])
            self._names[slot] = sequence.name_of(number, self.env.family, self.env.ranges)
            self._named_number[slot] = number
        self.number[rows], self.optimum[rows] = numbers, np.nan
        for row in rows.tolist() if self._named else ():
            self._named.pop(row, None)
        self._show(rows)

    def _release(self, rows: np.ndarray) -> None:
        """Tell the pool that environments ``rows`` leave their problems."""
        playing = rows[self.stages[rows] > 0]
        self.pool.free(self.slot[playing])
        self.stages[rows] = 0

    def _show(self, rows: np.ndarray) -> None:
        """Copy what environments ``rows`` see of their problems."""
        slots = self.slot[rows]
        self.stages[rows] = self.pool.batch.stages[slots]
        units = self.pool.batch.units[slots]
        sizes = np.maximum(units, self._units[rows])  # beyond, both topologies are 0
        self._units[rows] = units
        places = list(zip(rows.tolist(), slots.tolist(), sizes.tolist(), strict=True))
        for key, values in self.pool.constant.items():
            target = self.constant[key]
            if key != "topology":
                target[rows] = values[slots]
                continue
            for row, slot, size in places:
                target[row, :size, :size] = values[slot, :size, :size]


class Refill:
    """Makes the problems that lie before the window of a pool in another process.

    Args:
        pool: the pool.
        family: as of ``sequence.problem_of``.
        ranges: as of ``sequence.problem_of``.
    """

    def __init__(self, pool: ProblemPool, family: str | None, ranges: str) -> None:
        self.pool, self._arguments = pool, (family, ranges)
        self._workers: ProcessPoolExecutor | None = None
        self._pending: tuple[int, Future[dict[str, np.ndarray]]] | None = None
        self._made = sequence.WINDOW  # numbers below are in the pool, or are made when drawn

    def look(self, first: int) -> None:
        """Take what is made, and have more made, if the window has come near it.

        Args:
            first: number of the first problem in the window of the foremost environment.
        """
        if self._pending is not None and self._pending[1].done():
            begin, future = self._pending
            self._pending = None
            self.pool.put_rows(np.arange(begin, begin + PART), future.result())
        if self._pending is None and self._made < first + sequence.WINDOW + AHEAD:
            if self._workers is None:
                self._workers = ProcessPoolExecutor(1, get_context("spawn"))
            job = self._workers.submit(made_rows, *self._arguments, self._made, PART)
            self._pending, self._made = (self._made, job), self._made + PART

    def close(self) -> None:
        """End the process."""
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)
            self._workers = self._pending = None


def made_rows(family: str | None, ranges: str, first: int, count: int) -> dict[str, np.ndarray]:
    """Make ``count`` problems from number ``first`` on, as ``ProblemPool.put_rows`` takes them."""
    numbers = range(first, first + count)
    spaces = [sequence.problem_of(number, family, ranges).space for number in numbers]
    return rows_of(spaces, observe)


class _Built(Sequence[PlacedProblem]):
    """The problem of each environment, built when it is asked for."""

    def __init__(self, problems: PooledProblems) -> None:
        self.problems = problems

    def __len__(self) -> int:
        return self.problems.count

    def __getitem__(self, index: Any) -> Any:
        space = self.problems.space_at(range(len(self))[index])
        return PlacedProblem(space.pipeline, space.pivots, space.devices)

    def __iter__(self) -> Iterator[PlacedProblem]:
        return (self[row] for row in range(len(self)))
