"""A pool of numbered problems: tables and observations in arrays, which environments index.

A problem has a slot, a row of every array. Problem j has the slot j modulo the pool's capacity, as
long as no environment plays another problem there; otherwise the environment that asks for it has
a slot of its own. So a pool never makes a problem twice while the window moves over it, and never
changes a problem that is played.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from parenvs.errors import ParenvsError, one_line
from parenvs.files import locked, replacing_folder
from parenvs.tasks.pipeline.batch import SPANS, PointBatch
from parenvs.tasks.pipeline.drawn.sequence import VERSION, WINDOW
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS, PointSpace

CAPACITY = 12_288
"""Slots of a pool: a window, and room for environments that are ahead of others."""
BOUNDARIES, CUTS = POINTS + 1, UNITS + 1
ROWS = 1 + (STAGES - 2) * BOUNDARIES
"""Rows of a problem in the tables of stages: one for the first stage, then those of the stages from
each point, for each number of stages to the last from 2 to S-1."""
SPARE = 4096
"""Most environments of a pool that is read from files."""
EMPTY = -1
WAIT = 600.0
"""Seconds to wait for another process that writes the same pool."""

Observe = Callable[[PointSpace], dict[str, np.ndarray]]


class ProblemPool:
    """Arrays of ``CAPACITY`` problems and one more for each environment.

    Args:
        make: gives the space of the problem of a number.
        observe: gives the constant part of its observation.
        own: slots beside those of the ring, one for each environment.
        folder: a folder of ``write_pool``, whose arrays are mapped into memory; what is made later
            changes the memory, not the files.

    Attributes:
        batch: the problems as arrays, see ``PointBatch``; ``starts`` of slots that are read only.
        constant: (slots, ...) the arrays of ``observe``.
        reach: (slots, ROWS, 128) int8; row r of a stage's length and start, column j: the last unit
            from which the stage may start if it ends before point j, -1 if it may not.
        fewest: (slots, ROWS, 128) uint8, the fewest units of such a stage.
        number: (slots,) int64, number of the problem in each slot, -1 if there is none.
        used: (slots,) int64, environments that play the problem.
        made: how many problems were made in this process.

    Raises:
        ParenvsError: the folder holds no pool, or too few slots.
    """

    def __init__(
        self,
        make: Callable[[int], PointSpace],
        observe: Observe,
        own: int,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """Reserve the arrays, or map them."""
        self.make, self.observe, self.made = make, observe, 0
        if folder is None:
            space = make(0)
            self._arrays = _empty(space, observe, CAPACITY + own)
        else:
            self._arrays = _mapped(Path(folder))
            if own > SPARE:
                raise ParenvsError(f"pool: at most {SPARE} environments share files, not {own}")
        arrays = self._arrays
        self.batch = PointBatch(**{f.name: arrays[f.name] for f in fields(PointBatch)})
        self.constant = {
            key.removeprefix("observed_"): values
            for key, values in arrays.items()
            if key.startswith("observed_")
        }
        self.reach, self.fewest = arrays["reach"], arrays["fewest"]
        self.number = arrays["number"]
        self.used = np.zeros(len(self.number), dtype=np.int64)

    def slots_of(self, numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the slots of problems, (k,) int64; those that are not there are made.

        The problems count as played until ``free``.

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
            if (
                self.used[slot]
                or (slots[:index] == slot).any()
                or self._asked(numbers, slots, slot)
            ):
                slot = CAPACITY + int(rows[index])
                slots[index] = slot
            self.put(slot, self.make(number), number)
            self.made += 1
        np.add.at(self.used, slots, 1)
        return slots

    def _asked(self, numbers: np.ndarray, slots: np.ndarray, slot: int) -> bool:
        """Return whether the problem that is in a slot is asked for in this call."""
        return bool((numbers[slots == slot] == self.number[slot]).any())

    def free(self, slots: np.ndarray) -> None:
        """Tell that environments no longer play the problems of slots, (k,) int64."""
        np.subtract.at(self.used, slots, 1)

    def put(self, slot: int, space: PointSpace, number: int = EMPTY) -> None:
        """Write a problem into a slot; one without a number is an environment's own."""
        self.batch.put(np.array([slot]), PointBatch.stack([space]))
        for key, value in self.observe(space).items():
            self.constant[key][slot] = value
        reach, fewest = _tables(space)
        self.reach[slot, : len(reach)], self.fewest[slot, : len(reach)] = reach, fewest
        self.number[slot] = number

    def put_rows(self, numbers: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        """Write problems that another process made into their slots, where nobody plays.

        Args:
            numbers: (k,) int64, their numbers.
            rows: what ``rows_of`` made of them.
        """
        slots = numbers % CAPACITY
        # A problem that was made here meanwhile, or a slot that is played, stays as it is.
        chosen = np.flatnonzero((self.used[slots] == 0) & (self.number[slots] != numbers))
        for name, values in rows.items():
            target = self._arrays[name]
            if name in ("reach", "fewest"):
                target[slots[chosen], : values.shape[1]] = values[chosen]
            else:
                target[slots[chosen]] = values[chosen]
        self.number[slots[chosen]] = numbers[chosen]


class PoolDynamics:
    """The methods of ``PointTables`` for environments that play problems of a pool.

    Args:
        pool: the pool.
        slot: (n,) int64, the slot of each environment's problem; it is read at every call.
    """

    def __init__(self, pool: ProblemPool, slot: np.ndarray) -> None:
        """Keep the pool and the slots."""
        self.pool, self.slot = pool, slot
        self._reach = pool.reach.reshape(-1, POINTS)
        self._fewest = pool.fewest.reshape(-1)

    def legal_points(
        self, stage: int | np.ndarray, point: np.ndarray, unit: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return before which points stages may end; see ``PointBatch.legal_points``."""
        index = self._row(stage, point, rows)
        return self._reach.take(index, axis=0) >= unit.astype(np.int8)[:, None]

    def legal_units(
        self, stage: int | np.ndarray, point: np.ndarray, unit: np.ndarray, end: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return before which units stages may end; see ``PointBatch.legal_units``."""
        slot, batch = self._slots(rows), self.pool.batch
        fewest = self._fewest.take(self._row(stage, point, rows) * POINTS + end)
        left = batch.stages[slot] - stage
        last = batch.starts[slot, left - 1, end].astype(np.int64)
        # Row 65 first + end of SPANS is true for the units [first, end).
        first = np.minimum(unit + fewest, UNITS)
        return SPANS.take(first * CUTS + np.minimum(last + 1, UNITS), axis=0)

    def figures(
        self, cuts: np.ndarray, units: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return seconds, excess bytes and 1/L of plans; see ``PointBatch.figures``."""
        return self.pool.batch.figures(cuts, units, self._slots(rows))

    def _slots(self, rows: np.ndarray | None) -> np.ndarray:
        """Return the slot of each environment that is asked for."""
        return self.slot if rows is None else self.slot[rows]

    def _row(
        self, stage: int | np.ndarray, point: np.ndarray, rows: np.ndarray | None
    ) -> np.ndarray:
        """Return the row of the tables of each stage, (k,) int64."""
        slot, batch = self._slots(rows), self.pool.batch
        left = batch.stages[slot] - stage
        inner = (left - 2) * (batch.points[slot] + 1) + point + 1
        return slot * ROWS + np.where(np.asarray(stage) == 0, 0, inner)


def rows_of(spaces: Sequence[PointSpace], observe: Observe) -> dict[str, np.ndarray]:
    """Return the rows of problems in a pool, by the names of its arrays, (k, ...) each."""
    batch = PointBatch.stack(spaces)
    rows = {f.name: getattr(batch, f.name) for f in fields(PointBatch)}
    seen = [observe(space) for space in spaces]
    rows.update({f"observed_{key}": np.stack([one[key] for one in seen]) for key in seen[0]})
    tables = [_tables(space) for space in spaces]
    longest = max(len(reach) for reach, _ in tables)
    for name, place, fill, kind in (
        ("reach", 0, -1, np.int8), ("fewest", 1, UNITS, np.uint8),
    ):  # fmt: skip
        rows[name] = np.full((len(spaces), longest, POINTS), fill, dtype=kind)
        for row, pair in enumerate(tables):
            rows[name][row, : len(pair[place])] = pair[place]
    return rows


def write_pool(
    folder: str | os.PathLike[str],
    make: Callable[[int], PointSpace],
    observe: Observe,
    label: str,
    progress: Callable[[int], None] = lambda count: None,
) -> Path:
    """Write the first window of problems to a folder, once, and return the folder.

    Args:
        folder: the folder of pools; the pool is a folder in it.
        make: gives the space of the problem of a number.
        observe: gives the constant part of its observation.
        label: name of the family and the ranges.
        progress: is called with the number of problems made, now and then.

    Raises:
        ParenvsError: another process writes the same pool.
    """
    place = Path(folder) / f"pool-{VERSION}-{label}"
    if place.exists():
        return place
    with locked(place, beside=True, wait=WAIT):
        if place.exists():  # another process has written it meanwhile
            return place
        with replacing_folder(place) as new:
            _fill(Path(new), make, observe, progress)
    return place


def _fill(
    folder: Path,
    make: Callable[[int], PointSpace],
    observe: Observe,
    progress: Callable[[int], None],
) -> None:
    """Write the arrays of the problems 0 to ``WINDOW`` - 1; the rest of a file takes no space."""
    pool = ProblemPool.__new__(ProblemPool)
    shapes = _empty(make(0), observe, CAPACITY + SPARE)
    arrays = {
        key: np.lib.format.open_memmap(
            folder / f"{key}.npy", mode="w+", dtype=values.dtype, shape=values.shape
        )
        for key, values in shapes.items()
    }
    arrays["number"][:] = EMPTY
    pool.observe = observe
    pool.batch = PointBatch(**{f.name: arrays[f.name] for f in fields(PointBatch)})
    pool.constant = {k[9:]: values for k, values in arrays.items() if k.startswith("observed_")}
    pool.reach, pool.fewest, pool.number = arrays["reach"], arrays["fewest"], arrays["number"]
    for number in range(WINDOW):
        pool.put(number, make(number), number)
        if number % 100 == 99:
            progress(number + 1)
    for values in arrays.values():
        values.flush()


def _mapped(folder: Path) -> dict[str, np.ndarray]:
    """Map the arrays of a pool into memory, copied where they are written to.

    Raises:
        ParenvsError: a file is missing or damaged.
    """
    names = [f.name for f in fields(PointBatch)] + ["reach", "fewest", "number"]
    names += [path.stem for path in folder.glob("observed_*.npy")]
    try:
        # As plain arrays: each index of a ``memmap`` takes a microsecond more.
        return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
    except (OSError, ValueError, EOFError) as error:
        raise ParenvsError(
            f"{folder}: not a pool of problems ({one_line(error)}); remove it, and it is made anew"
        ) from None


def _empty(space: PointSpace, observe: Observe, slots: int) -> dict[str, np.ndarray]:
    """Reserve the arrays of a pool, by name; pages that are never written take no memory."""
    one = PointBatch.stack([space])
    arrays = {f.name: np.zeros((slots, *getattr(one, f.name).shape[1:]), getattr(one, f.name).dtype)
              for f in fields(PointBatch)}  # fmt: skip
    for key, value in observe(space).items():
        arrays[f"observed_{key}"] = np.zeros((slots, *value.shape), value.dtype)
    arrays["reach"] = np.zeros((slots, ROWS, POINTS), dtype=np.int8)
    arrays["fewest"] = np.zeros((slots, ROWS, POINTS), dtype=np.uint8)
    arrays["number"] = np.full(slots, EMPTY, dtype=np.int64)
    return arrays


def _tables(space: PointSpace) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a problem in ``reach`` and ``fewest``, (1 + (S-2) (m+1), 128) each."""
    stages, m = space.stages, len(space.pivots) - 1
    count = 1 + (stages - 2) * (m + 1)
    reach = np.full((count, POINTS), -1, dtype=np.int8)
    fewest = np.full((count, POINTS), UNITS, dtype=np.uint8)
    every = space.runs
    size = space.devices[1] - space.devices[0]
    inner = np.flatnonzero(every.end < m)
    for left in range(2, stages + 1):
        chosen = inner if left < stages else inner[: np.searchsorted(inner, every.whole)]
        last_unit = space.latest[left, every.first[chosen], every.end[chosen]]
        legal = last_unit >= 0
        chosen = chosen[legal]
        first, end = every.first[chosen], every.end[chosen]
        row = 0 if left == stages else (left - 2) * (m + 1) + first + 1
        reach[row, end] = last_unit[legal]
        units = np.ceil(every.fewest_of(left, chosen) / size)
        fewest[row, end] = np.minimum(units, UNITS)
    return reach, fewest
