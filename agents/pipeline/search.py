"""The search over plans of pipelines: sweeps and relocations from graded starts.

The starts are plans of graded stages. Each is improved by sweeps, whose places are laid in
turn along the chain with the devices that the work brings, along the chain alone and over the
devices, and ever closer; those that stay behind are given up on the way. Then stages of
the shortest plan are relocated and the plan is mended, the relocation that looks best first
(``parenvs.tasks.pipeline.relocations``). Where none helps, some at random come together.

Work is counted in sweeps, and chance comes from a seed alone: the same
budget finds the same plan on every machine. A deadline only cuts the search off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from parenvs.agents.pipeline.heuristics import to_whole_samples
from parenvs.compiled import warm
from parenvs.tasks.pipeline import relocations as moves
from parenvs.tasks.pipeline.problem import EMPTY, Pipeline, tables_of
from parenvs.tasks.pipeline.spaces import Cuts, graded
from parenvs.tasks.pipeline.sweeps import fitting_seconds, pivots_of, placed, spread, sweep

DISTANCES = (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.06, 0.0)
"""Of the places of a descent, from sweep to sweep, see ``modes_of``."""
KINDS: moves.Kinds = (6, 0, 1), (8, 0, 0), (1, 4, 0)
"""Kinds of its sweeps."""
ROUNDS = (2, 5, len(DISTANCES))
"""Distances after which a third of the starts go on."""
PAIRS, MOST = 2_000_000, 64
"""Pairs of places at which a sweep around all places is made, and the labels that stay in it."""
TRIES = 4
"""Relocations without a gain, over the stages, after which plans are changed at random."""
PATIENCE = 24
"""Random changes without a gain after which a search ends by default."""
NOISE = 0.05
"""Relative: how much relocations may look worse than others that are tried later."""
GAIN = 1e-6
"""Relative: what counts as a gain."""


def plan_of(state: list[Any]) -> Cuts:
    """Return cuts and devices of a state, [seconds, cuts, devices]."""
    return state[1], state[2]


class Search:
    """A search for the shortest plan of a problem, of two stages or more.

    Args:
        pipeline: the problem.
        seed: of the changes.
        deadline: the search ends at this ``time.perf_counter()``.
        last: number of sweeps after which it ends, about.

    Attributes:
        best: first pivots, by their number among those where plans may cut, and first devices of
            the stages, ends included, (S+1,) each; of the shortest plan found, or None.
        upper: its seconds of core plus tail; infinite without one.
        sweeps: number of sweeps so far, about.
    """

    def __init__(
        self, pipeline: Pipeline, seed: int = 0, deadline: float = np.inf, last: float = np.inf
    ) -> None:
        prepare()
        self.pipeline, self.deadline, self.last, self.sweeps = pipeline, deadline, last, 0
        self.pivots = pivots_of(pipeline)
        self.tables = tables_of(pipeline, self.pivots)
        self.best: Cuts | None = None
        self.upper = np.inf
        self._rng = np.random.default_rng(seed)
        self._all = np.ones(self.tables.stages + 1, bool)
        self._modes = [moves.modes_of(self.tables, [distance], KINDS) for distance in DISTANCES]
        self._mend = moves.mending(self.tables)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return self.sweeps >= self.last or time.perf_counter() > self.deadline

    @property
    def plan(self) -> Cuts | None:
        """Cuts and device cuts, (S-1,) int64 each, of the shortest plan found."""
        if self.best is None:
            return None
        return self.pivots[self.best[0][1:-1]], self.best[1][1:-1].copy()

    def begin(self, plans: Sequence[Cuts]) -> None:
        """Descend from cuts and device cuts, (S-1,) each, which need not fit the memory."""
        states = [self._state(plan) for plan in plans]
        done = 0
        for end in ROUNDS:
            for state in states:
                self.descend(state, done, end)
            states.sort(key=lambda state: state[0])  # stable: the earlier of equal ones
            # Of plans that do not fit yet, none is better.
            if np.isfinite(states[0][0]):
                states = states[: max(len(states) // 3, 1)]
            done = end
        everywhere = len(self.pivots), 1, self.pipeline.cluster.devices, 1, 0
        if self.tables.stages * (everywhere[0] * everywhere[2]) ** 2 <= PAIRS:
            plan, upper = plan_of(states[0]), states[0][0]
            states[0][0] = sweep(self.tables, *plan, everywhere, self._all, upper, MOST)
            self._update_best(states[0])

    def descend(self, state: list[Any], first: int, end: int = len(DISTANCES)) -> None:
        """Improve a plan, [seconds, cuts, devices], by sweeps of the distances [first, end)."""
        for modes in self._modes[first:end]:
            if self.is_over:
                break
            state[0] = moves.mend(self.tables, *plan_of(state), modes, self._all, state[0])
            self.sweeps += len(modes)
        self._update_best(state)

    def relocate_all(self, state: list[Any]) -> None:
        """Relocate stages of a plan until many relocations in a row bring nothing."""
        stages, failures = self.tables.stages, 0
        order: list[int] = []
        while not self.is_over and failures < TRIES * stages:
            if not order:
                looks = np.log(moves.seconds_ahead(self.tables, *state[1:]).ravel())
                looks -= NOISE * self._rng.gumbel(size=looks.shape)
                order = np.argsort(-looks, kind="stable").tolist()
            s, t = divmod(order.pop(), stages - 1)
            before, plan = state[0], plan_of(state)
            state[0] = moves.relocated(self.tables, *plan, s + 1, t, *self._mend, before)
            self.sweeps += sum(map(len, self._mend))
            failures += 1
            if state[0] < before * (1 - GAIN):
                failures, order = 0, []
            elif not order:
                break
        self._update_best(state)

    def run(self, plans: Sequence[Cuts], patience: float = PATIENCE) -> None:
        """Search from some plans until random changes bring nothing so many times in a row."""
        self.begin(plans)
        if self.best is None:
            return
        state, failures = [self.upper, *(x.copy() for x in self.best)], 0
        while not self.is_over and failures < patience:
            before = self.upper
            self.relocate_all(state)
            failures = 0 if self.upper < before * (1 - GAIN) else failures + 1
            # Next, the shortest plan after some relocations at random, mended.
            plan = self.best[0].copy(), self.best[1].copy()
            for _ in range(1 + self._rng.geometric(0.5)):
                s, t = self._rng.integers(self.tables.stages - 1, size=2).tolist()
                moves.relocate(self.tables, *plan, s + 1, t)
            state = [fitting_seconds(self.tables, *plan), *plan]
            self.descend(state, int(self._rng.integers(2, len(DISTANCES) - 3)))

    def _state(self, plan: Cuts) -> list[Any]:
        plan = to_whole_samples(self.pipeline, plan)
        cuts, devices = placed(self.pipeline, self.tables, self.pivots, plan)
        state = [fitting_seconds(self.tables, cuts, devices), cuts, devices]
        self._update_best(state)
        return state

    def _update_best(self, state: list[Any]) -> None:
        if state[0] < self.upper:
            self.upper, cuts, devices = state
            self.best = cuts.copy(), devices.copy()


@cache
def prepare() -> None:
    """Compile the loops, or load them, once a process: that is no part of a search."""
    plan = EMPTY, *np.zeros((2, 3), np.int64)
    free, modes = np.zeros(3, np.bool_), np.zeros((1, 5), np.int64)
    for loop in (spread, fitting_seconds, moves.seconds_ahead):
        warm(loop, *plan)
    warm(moves.relocate, *plan, 1, 1)
    warm(moves.mend, *plan, modes, free, 1.0)
    warm(moves.relocated, *plan, 1, 1, modes, modes, 1.0)
    warm(sweep, *plan, (1,) * 5, free, 1.0, 1)


def search(
    pipeline: Pipeline, start: Cuts | None = None, patience: float = PATIENCE, **budget: Any
) -> Cuts | None:
    """The shortest plan that a search finds; None if it finds none that fits.

    Args:
        pipeline: the problem, of two stages or more.
        start: cuts and device cuts of a plan, (S-1,) int64 each, which need not fit the memory.
        patience: random changes without a gain after which the search ends.
        budget: of ``Search``.
    """
    found = Search(pipeline, **budget)
    found.run(([] if start is None else [start]) + graded(pipeline), patience)
    return found.plan
