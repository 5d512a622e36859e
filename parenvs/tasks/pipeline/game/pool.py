"""A pool of numbered problems, whose tables and observations lie in arrays that environments index.

A problem has a slot, a row of every array. Problem j has the slot j modulo the pool's capacity, as
long as no environment plays another problem there; otherwise the environment that asks for it has
a slot of its own. So a pool never makes a problem twice while the window moves over it, and never
changes a problem that is played.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from parenvs.datasets.pipeline import sequence
from parenvs.errors import ParenvsError, one_line
from parenvs.files import locked, replacing_folder
from parenvs.tasks.pipeline.batch import PointBatch
from parenvs.tasks.pipeline.game.tables import SEEN, PlanProblem, PlanTables, reserved, rows_of

CAPACITY = 12_288
"""Slots of a pool: a window, and room for environments that are ahead of others."""
SPARE = 4096
"""Largest number of environments of a pool that is read from files."""
EMPTY = -1
WAIT = 600.0
"""Seconds to wait for another process that writes the same pool."""
PART = 32
"""Problems that another process makes at a time."""
AHEAD = 256
"""Problems before the window that are made ahead."""
Make = Callable[[int], dict[str, np.ndarray]]
"""Gives the problem of a number as ``rows_of`` does."""


class ProblemPool(PlanTables):
    """Numbered problems in ``CAPACITY`` slots, and one more for each of n environments.

    Args:
        family: as of ``sequence.problem_of``.
        ranges: as of ``sequence.problem_of``.
        count: n.
        folder: a folder of pools, whose arrays are mapped into memory; what is made later changes
            the memory, not the files. None makes problems when they are drawn.
        refill: whether another process makes the problems that the window will move over; problems
            are the same with and without.

    Attributes:
        number: (slots,) int64, number of the problem in each slot; ``EMPTY`` if there is none, or
            one without a number.
        used: (slots,) int64, environments that play the problem.
        made: how many problems were made in this process.
        slot: (n,) int64, the slot of each environment's problem; ``EMPTY`` before the first.
        seen: the arrays of ``observe`` of each environment's problem, (n, ...).

    Raises:
        ParenvsError: the folder holds a damaged pool, or too few slots.
    """

    def __init__(
        self,
        family: str | None,
        ranges: str,
        count: int,
        folder: str | os.PathLike[str] | None = None,
        refill: bool = False,
    ) -> None:
        """Reserve the arrays, or map them."""
        self.family, self.ranges, self.made = family, ranges, 0
        make = partial(made_rows, family, ranges)
        if folder is None:
            super().__init__(_empty(make, CAPACITY + count))
        else:
            label = f"{ranges}-{family or sequence.ANY}"
            super().__init__(_mapped(write_pool(folder, make, label)))
            if count > SPARE:
                raise ParenvsError(f"pool: at most {SPARE} environments share files, not {count}")
        self.number = self.arrays["number"]
        self.used = np.zeros(len(self.number), dtype=np.int64)
        self.slot = np.full(count, EMPTY)
        self.seen = {
            key: np.zeros((count, *values.shape[1:]), values.dtype)
            for key, values in self.constant.items()
        }
        self._units = np.zeros(count, dtype=np.int64)  # of the topologies in ``seen``
        self._names = np.full(len(self.number), None, dtype=object)
        self._named = np.full(len(self.number), EMPTY)  # number that a name is of
        self._refill = Refill(self) if refill else None

    def take(self, rows: np.ndarray, numbers: np.ndarray, turn: int = 0) -> None:
        """Give environments the problems of numbers.

        Args:
            rows: (k,) int64, the environments.
            numbers: (k,) int64.
            turn: the maximum number of problems that one of them has drawn before.
        """
        self._free(rows)
        slots = self._slots_of(numbers, rows)
        for index in np.flatnonzero(self._named[slots] != numbers).tolist():
            slot, number = slots[index], int(numbers[index])
            self._names[slot] = sequence.name_of(number, self.family, self.ranges)
            self._named[slot] = number
        self._enter(rows, slots)
        if self._refill is not None:
            self._refill.look(turn // sequence.PACE)

    def lend(self, rows: np.ndarray, problem: PlanProblem) -> None:
        """Give environments, (k,) int64, another problem, each in a slot of its own."""
        self._free(rows)
        slots = CAPACITY + rows
        self.put(slots, problem.tables.arrays)
        self.number[slots] = self._named[slots] = EMPTY
        self._names[slots] = problem.instance
        self._enter(rows, slots)

    def names(self, rows: np.ndarray) -> list[str]:
        """Return the names of the problems of environments, (k,) int64."""
        names: list[str] = self._names[self.slot[rows]].tolist()
        return names

    def problem(self, row: int) -> PlanProblem:
        """Return the numbered problem of an environment, made anew."""
        number = int(self.number[self.slot[row]])
        return PlanProblem(sequence.problem_of(number, self.family, self.ranges).space)

    def put_rows(self, numbers: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        """Write problems that another process made into their slots, where nobody plays.

        Args:
            numbers: (k,) int64, their numbers.
            rows: what ``rows_of`` made of them.
        """
        slots = numbers % CAPACITY
        # A problem that was made here meanwhile, or a slot that is played, stays as it is.
        chosen = np.flatnonzero((self.used[slots] == 0) & (self.number[slots] != numbers))
        self.put(slots[chosen], {name: values[chosen] for name, values in rows.items()})
        self.number[slots[chosen]] = numbers[chosen]

    def close(self) -> None:
        """End the process that refills the pool, if there is one."""
        if self._refill is not None:
            self._refill.close()

    def _slots_of(self, numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the slots of problems, (k,) int64; those that are not there are made.

        Args:
            numbers: (k,) int64, numbers of the problems.
            rows: (k,) int64, the environments that ask, which have no slot now.
        """
        slots = numbers % CAPACITY
        missing = np.flatnonzero(self.number[slots] != numbers)
        for index in missing.tolist():
            slot, number = int(slots[index]), int(numbers[index])
            if self.number[slot] == number:  # made for an environment before this one
                continue
            is_asked_for = (numbers[slots == slot] == self.number[slot]).any()
            if self.used[slot] or (slots[:index] == slot).any() or is_asked_for:
                slots[index] = slot = CAPACITY + int(rows[index])
            self.put(np.array([slot]), made_rows(self.family, self.ranges, number))
            self.number[slot] = number
            self.made += 1
        return slots

    def _free(self, rows: np.ndarray) -> None:
        """Let environments, (k,) int64, leave their problems."""
        slots = self.slot[rows]
        np.subtract.at(self.used, slots[slots != EMPTY], 1)

    def _enter(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Let environments play the problems of slots, and copy what they see of them."""
        np.add.at(self.used, slots, 1)
        self.slot[rows] = slots
        units = self.batch.units[slots]
        sizes = np.maximum(units, self._units[rows])  # beyond, both topologies are 0
        self._units[rows] = units
        entries = list(zip(rows.tolist(), slots.tolist(), sizes.tolist(), strict=True))
        for key, values in self.constant.items():
            target = self.seen[key]
            if key != "topology":
                target[rows] = values[slots]
                continue
            for row, slot, size in entries:
                target[row, :size, :size] = values[slot, :size, :size]


class Refill:
    """Makes the problems that lie before the window of a pool in another process.

    Args:
        pool: the pool.
    """

    def __init__(self, pool: ProblemPool) -> None:
        self.pool = pool
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
            kind = self.pool.family, self.pool.ranges
            job = self._workers.submit(made_rows, *kind, self._made, PART)
            self._pending, self._made = (self._made, job), self._made + PART

    def close(self) -> None:
        """End the process."""
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)
            self._workers = self._pending = None


def made_rows(family: str | None, ranges: str, first: int, count: int = 1) -> dict[str, np.ndarray]:
    """Make ``count`` problems from number ``first`` on, as ``rows_of`` does."""
    numbers = range(first, first + count)
    return rows_of([sequence.problem_of(number, family, ranges).space for number in numbers])


def write_pool(
    folder: str | os.PathLike[str],
    make: Make,
    label: str,
) -> Path:
    """Write the first window of problems to a folder, once, and return the folder.

    Args:
        folder: the folder of pools; the pool is a folder in it.
        make: makes the problem of a number.
        label: name of the family and the ranges.

    Raises:
        ParenvsError: another process writes the same pool.
    """
    path = Path(folder) / f"pool-{sequence.VERSION}-{label}"
    if path.exists():
        return path
    with locked(path, beside=True, wait=WAIT):
        if path.exists():  # another process has written it meanwhile
            return path
        with replacing_folder(path) as new:
            _fill(Path(new), make)
    return path


def _fill(folder: Path, make: Make) -> None:
    """Write the arrays of the problems 0 to ``WINDOW`` - 1; the rest of a file takes no space."""
    arrays = {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=values.dtype, shape=values.shape
        )
        for name, values in _empty(make, CAPACITY + SPARE).items()
    }
    arrays["number"][:] = EMPTY
    tables = PlanTables(arrays)
    for number in range(sequence.WINDOW):
        tables.put(np.array([number]), make(number))
        arrays["number"][number] = number
    for values in arrays.values():
        values.flush()


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a pool into memory, copied where they are written to.

    Raises:
        ParenvsError: a file is missing or damaged.
    """
    names = [f.name for f in fields(PointBatch)] + ["reach", "number"]
    names += [path.stem for path in folder.glob(f"{SEEN}*.npy")]
    try:
        # As plain arrays: each index of a ``memmap`` takes a microsecond more.
        return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
    except (OSError, ValueError, EOFError) as error:
        raise ParenvsError(
            f"{folder}: not a pool of problems ({one_line(error)}); remove it, and it is made anew"
        ) from None


def _empty(make: Make, slots: int) -> dict[str, np.ndarray]:
    """Reserve the arrays of a pool, by name."""
    return {**reserved(make(0), slots), "number": np.full(slots, EMPTY, dtype=np.int64)}
