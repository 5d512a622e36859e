"""The problems of a vector environment of ``PipelinePlan-v0``: one that is shared, or one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils.seeding import np_random

from parenvs.datasets.pipeline.optima import optimum_of
from parenvs.envs.batched import EVERY
from parenvs.tasks.pipeline.batch import PointBatch, PointTables
from parenvs.tasks.pipeline.game.plan import PipelinePlanEnv, observe
from parenvs.tasks.pipeline.points import PointSpace
from parenvs.tasks.pipeline.problem import Pipeline


class PlacedProblem(NamedTuple):
    """A problem and the boundaries that turn its points and units into pivots and devices.

    An environment keeps these instead of a ``PointSpace``, which takes hundreds of kilobytes.

    Attributes:
        problem: the problem.
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
    """One problem of all environments, with tables, which are worth their time for many episodes.

    Args:
        space: the problem.

    Attributes:
        space: the problem.
        tables: the dynamics of the problem.
        problem: what environments keep of the problem.
        constant: (1, ...) the arrays of ``observe``.
        optimum: see ``known_optimum``.
    """

    def __init__(self, space: PointSpace) -> None:
        self.space, self.tables = space, PointTables(space)
        self.problem = _problem(space)
        self.constant = {key: value[None] for key, value in observe(space).items()}
        self.optimum = known_optimum(space)


class PlanProblems:
    """The problems of n environments; each draws its own, as a single environment would.

    The parameter ``who`` of methods is ``EVERY``, or the indices of environments, (k,) int64.

    Args:
        env: a single environment, whose arguments say what to draw, or which problem is fixed.
        count: n.

    Attributes:
        of: (n) the problem of each environment.
        stages: (n,) int64, S of each environment's problem.
        dynamics: masks and values; ``rows`` of its methods are indices of environments.
        constant: the arrays of ``observe``, (1, ...) if all environments share a problem, else
            (n, ...).
        optimum: (n,) float64, largest return of each environment's problem, NaN if not known.
    """

    dynamics: PointTables | PointBatch

    def __init__(self, env: PipelinePlanEnv, count: int) -> None:
        self.env, self.count = env, count
        self.stages = np.zeros(count, dtype=np.int64)
        self.optimum = np.full(count, np.nan)
        self._home = Shared(env.space)
        self._share(self._home)
        self._away = np.zeros(count, dtype=np.bool_)  # whether the problem is one of ``options``
        self._left = np.zeros(count, dtype=np.int64)  # episodes until the next problem is drawn
        self._next = np.arange(count)  # problems drawn by each, which ``order`` goes by
        self._seeds: list[int | None] = [None] * count
        self._generators: list[np.random.Generator | None] = [None] * count

    def reset(
        self, who: Any, seed: int | Sequence[int | None] | None, options: dict[str, Any]
    ) -> None:
        """Give the next problem, or the one of the options, to ``who``.

        Raises:
            ParenvsError: the options are wrong; no environment has changed then.
            ValueError: there are not n seeds.
        """
        seeds = seeds_of(seed, self.count)
        optional_space = self.env._space_of_options(options) if options else None
        for row in np.arange(self.count)[who].tolist() if seeds else ():
            if seeds[row] is not None:
                self._seeds[row], self._generators[row], self._left[row] = seeds[row], None, 0
                self._restart_sequence(row)
        if optional_space is None:
            self.advance(who)
        else:
            self._lend(who, optional_space)

    def _restart_sequence(self, row: int) -> None:
        """Begin the sequence of an environment's new seed."""
        self._next[row] = row

    def generator(self, row: int) -> np.random.Generator:
        """Return the generator of environment ``row``; without a seed it gets a random one.

        It is made on the first call, as making it takes longer than a step.
        """
        generator = self._generators[row]
        if generator is None:
            generator, self._seeds[row] = np_random(self._seeds[row])
            self._generators[row] = generator
        return generator

    def seed_of(self, row: int) -> int:
        """Return the seed of the generator of environment ``row``."""
        self.generator(row)
        seed = self._seeds[row]
        assert seed is not None
        return seed

    def advance(self, who: Any) -> None:
        """Give ``who`` the problems of their next episodes; drawing one takes milliseconds."""
        if self.env._fixed is None:
            rows = np.arange(self.count)[who]
            for row in rows[self._left[rows] == 0].tolist():
                number = int(self._next[row])
                generator, seed = self.generator(row), self._seeds[row]
                assert seed is not None
                self._put(np.array([row]), self.env._drawn(generator, number, seed))
                self._left[row] = self.env.repeat
                self._next[row] += self.count
            self._left[rows] -= 1
        elif who is EVERY:
            if self._shared is not self._home:
                self._share(self._home)
            self._away[:] = False
        else:
            returning = who[self._away[who]]
            if returning.size:
                self._put(returning, self._home.space)
                self._away[returning] = False

    def bubble_free(self, rows: np.ndarray) -> np.ndarray:
        """Return the bubble-free seconds of the problems of environments ``rows``, (k,) float64."""
        if isinstance(self.dynamics, PointTables):
            return self.dynamics.batch.bubble_free[np.zeros_like(rows)]
        return self.dynamics.bubble_free[rows]

    def instances(self, rows: np.ndarray) -> list[str]:
        """Return the instance of each of environments ``rows``."""
        return [self.of[row].instance for row in rows.tolist()]

    def observed(self, copy: bool) -> dict[str, np.ndarray]:
        """Return the arrays of ``observe`` for all environments, (n, ...).

        Args:
            copy: whether the arrays are fresh; otherwise they are read-only views.
        """
        if not copy:
            return {key: _rows(value, self.count) for key, value in self.constant.items()}
        batched = {}
        for key, value in self.constant.items():
            batched[key] = np.empty((self.count, *value.shape[1:]), dtype=np.float32)
            batched[key][:] = value
        return batched

    def observed_by(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return fresh arrays of ``observe`` for environments ``rows``, (k, ...)."""
        constant_rows = rows if self._shared is None else np.zeros_like(rows)
        return {key: value[constant_rows] for key, value in self.constant.items()}

    def _lend(self, who: Any, space: PointSpace) -> None:
        """Give ``who`` the problem of ``space`` for one episode."""
        if who is EVERY:
            self._share(Shared(space))
        else:
            self._put(who, space)
        self._away[who], self._left[who] = True, 0

    def _share(self, shared: Shared) -> None:
        """Give all environments the same problem."""
        self._shared: Shared | None = shared
        self.dynamics = shared.tables
        self.constant = shared.constant
        self.of = [shared.problem] * self.count
        self.stages[:] = shared.space.stages
        self.optimum[:] = shared.optimum

    def _put(self, rows: np.ndarray, space: PointSpace) -> None:
        """Give environments ``rows`` the problem of ``space``."""
        problem, constant = _problem(space), observe(space)
        if isinstance(self.dynamics, PointTables):  # copy the shared problem to a row for each
            shared_rows = np.zeros(self.count, dtype=np.int64)
            self.dynamics = self.dynamics.batch.take(shared_rows)
            self.constant = {key: value[shared_rows] for key, value in self.constant.items()}
            self._shared = None
        self.dynamics.put(rows, PointBatch.stack([space]))
        for key, value in constant.items():
            self.constant[key][rows] = value
        self.stages[rows] = space.stages
        self.optimum[rows] = known_optimum(space)
        for row in rows.tolist():
            self.of[row] = problem


def seeds_of(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return the seed of each environment.

    Args:
        seed: the seed of the first environment, whose successors get the next numbers; or a seed
            for each, None for an environment that keeps its generator; or None if all keep theirs.
        count: number of environments.

    Returns:
        ``count`` seeds, or an empty list if all environments keep their generator.

    Raises:
        ValueError: the number of seeds is not ``count``.
        gymnasium.error.Error: a seed is negative or not a whole number.
    """
    if seed is None:
        return []
    if isinstance(seed, int):
        np_random(seed)  # raises an error for a negative seed
        return list(range(seed, seed + count))
    if len(seed) != count:
        raise ValueError(f"{count} seeds are needed, not {len(seed)}")
    for env_seed in seed:
        if env_seed is not None and (not isinstance(env_seed, int) or env_seed < 0):
            np_random(env_seed)  # raises an error
    return list(seed)


def known_optimum(space: PointSpace) -> float:
    """Return the largest return of a problem of a shipped set, NaN for any other problem."""
    optimum = optimum_of(space.pipeline.instance)
    return np.nan if optimum is None else optimum


def _problem(space: PointSpace) -> PlacedProblem:
    """Return what an environment keeps of a problem."""
    return PlacedProblem(space.pipeline, space.pivots, space.devices)


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    """Return a read-only view of shape (count, ...) of values of shape (count, ...) or (1, ...).

    ``np.broadcast_to`` is slower.
    """
    shape, strides = values.shape[1:], values.strides[1:]
    step = values.strides[0] if len(values) == count else 0
    view = np.ndarray((count, *shape), values.dtype, values, 0, (step, *strides))
    view.flags.writeable = False
    return view
