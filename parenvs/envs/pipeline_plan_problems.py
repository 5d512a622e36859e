"""Which problem each environment of a batch of ``PipelinePlan-v0`` has: one for all, or its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils.seeding import np_random

from parenvs.envs.batched import EVERY
from parenvs.envs.pipeline_plan import PipelinePlanEnv, observe
from parenvs.pipeline.batch import PointBatch, PointTables
from parenvs.pipeline.points import PointSpace
from parenvs.pipeline.problem import Pipeline


class PlacedProblem(NamedTuple):
    """What is kept of a problem besides arrays; a ``PointSpace`` would be hundreds of kilobytes.

    Attributes:
        problem: the problem itself.
        pivots, devices: boundaries of the points and of the units, see ``PointSpace``.
    """

    problem: Pipeline
    pivots: np.ndarray
    devices: np.ndarray

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.problem.instance

    @property
    def space(self) -> PointSpace:
        """The problem as a ``PointSpace``, built anew."""
        return PointSpace.build(self.problem)


class Shared:
    """One problem that all have, with the tables that only many episodes of it are worth."""

    def __init__(self, space: PointSpace) -> None:
        self.space, self.tables = space, PointTables(space)
        self.problem = _problem(space)
        self.constant = {key: value[None] for key, value in observe(space).items()}


class PlanProblems:
    """The problems of n environments; each draws its own, as a single environment would.

    ``who`` stands for environments: ``EVERY``, or their numbers, (k,) int64.

    Args:
        env: a single environment: what to draw, or the fixed problem.
        count: n.

    Attributes:
        of: problem of each.
        stages: (n,) int64, S of each.
        dynamics: masks and values; ``rows`` of its methods are environments.
        constant: (1, ...) or (n, ...), what ``observe`` says of the problem of all, or of each.
    """

    dynamics: PointTables | PointBatch

    def __init__(self, env: PipelinePlanEnv, count: int) -> None:
        self.env, self.count = env, count
        self.stages = np.zeros(count, dtype=np.int64)
        self._home = Shared(env.space)
        self._share(self._home)
        self._away = np.zeros(count, dtype=np.bool_)  # has a problem of ``options``
        self._left = np.zeros(count, dtype=np.int64)  # episodes until the next problem is drawn
        self._seeds: list[int | None] = [None] * count
        self._generators: list[np.random.Generator | None] = [None] * count

    def reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        """Give the next problem, or the one of the options, to ``who``.

        Raises:
            ParenvsError: wrong options; nothing has changed then.
            ValueError: seeds that are not n.
        """
        seeds = seeds_of(seed, self.count)
        asked = self.env._space_of_options(options) if options else None
        for row in np.arange(self.count)[who].tolist() if seeds else ():
            if seeds[row] is not None:
                self._seeds[row], self._generators[row], self._left[row] = seeds[row], None, 0
        if asked is None:
            self.advance(who)
        else:
            self._ask(who, asked)

    def generator(self, row: int) -> np.random.Generator:
        """That of one environment, made when it is asked for: making it takes longer than a step.

        Without a seed it is a random one.
        """
        found = self._generators[row]
        if found is None:
            found, self._seeds[row] = np_random(self._seeds[row])
            self._generators[row] = found
        return found

    def seed_of(self, row: int) -> int:
        """The seed of one environment's generator."""
        self.generator(row)
        seed = self._seeds[row]
        assert seed is not None
        return seed

    def advance(self, who: Any) -> None:
        """Give ``who`` the problems of their next episodes; drawing one takes milliseconds."""
        if self.env._fixed is None:
            rows = np.arange(self.count)[who]
            for row in rows[self._left[rows] == 0].tolist():
                self._put(np.array([row]), self.env._drawn(self.generator(row)))
                self._left[row] = self.env.repeat
            self._left[rows] -= 1
        elif who is EVERY:
            if self._shared is not self._home:
                self._share(self._home)
            self._away[:] = False
        else:
            back = who[self._away[who]]
            if back.size:
                self._put(back, self._home.space)
                self._away[back] = False

    def observed(self, copy: bool) -> dict[str, np.ndarray]:
        """(n, ...) what ``observe`` says of each: fresh arrays, or read-only views."""
        if not copy:
            return {key: _rows(value, self.count) for key, value in self.constant.items()}
        result = {}
        for key, value in self.constant.items():
            result[key] = np.empty((self.count, *value.shape[1:]), dtype=np.float32)
            result[key][:] = value
        return result

    def observed_by(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """(k, ...) fresh arrays of what ``observe`` says of environments ``rows``."""
        rows = rows if self._shared is None else np.zeros_like(rows)
        return {key: value[rows] for key, value in self.constant.items()}

    def _ask(self, who: Any, space: PointSpace) -> None:
        """Give ``who`` this problem for one episode."""
        if who is EVERY:
            self._share(Shared(space))
        else:
            self._put(who, space)
        self._away[who], self._left[who] = True, 0

    def _share(self, shared: Shared) -> None:
        """Give all the same problem."""
        self._shared: Shared | None = shared
        self.dynamics = shared.tables
        self.constant = shared.constant
        self.of = [shared.problem] * self.count
        self.stages[:] = shared.space.stages

    def _put(self, rows: np.ndarray, space: PointSpace) -> None:
        """Give some environments another problem."""
        problem, constant = _problem(space), observe(space)
        if isinstance(self.dynamics, PointTables):  # from now on, each has a row of its own
            everybody = np.zeros(self.count, dtype=np.int64)
            self.dynamics = self.dynamics.batch.take(everybody)
            self.constant = {key: value[everybody] for key, value in self.constant.items()}
            self._shared = None
        self.dynamics.put(rows, PointBatch.stack([space]))
        for key, value in constant.items():
            self.constant[key][rows] = value
        self.stages[rows] = space.stages
        for row in rows.tolist():
            self.of[row] = problem


def seeds_of(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """A seed for each environment, None for those that keep their generator; none if all do.

    Raises:
        ValueError: not as many as environments.
        gymnasium.error.Error: no whole numbers, or negative ones.
    """
    if seed is None:
        return []
    if isinstance(seed, int):
        np_random(seed)  # refuses a negative one
        return list(range(seed, seed + count))
    if len(seed) != count:
        raise ValueError(f"{count} seeds are needed, not {len(seed)}")
    for one in seed:
        if one is not None and (not isinstance(one, int) or one < 0):
            np_random(one)
    return list(seed)


def _problem(space: PointSpace) -> PlacedProblem:
    return PlacedProblem(space.pipeline, space.pivots, space.devices)


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    """(count, ...) read-only view of (count, ...) or (1, ...); ``np.broadcast_to`` is slower."""
    shape, strides = values.shape[1:], values.strides[1:]
    step = values.strides[0] if len(values) == count else 0
    view = np.ndarray((count, *shape), values.dtype, values, 0, (step, *strides))
    view.flags.writeable = False
    return view
