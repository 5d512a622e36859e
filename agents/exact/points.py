"""Proven optima over a ``PointSpace``: the points of a chain and the units of a cluster.

A search is short where the plan that it starts from is good and where its bounds are tight, and
both cost time. So this goes step by step and ends as soon as a search over all points does: a local
search around an even plan, a search over few points, then over all points with better and better
bounds. What is then still open is searched with rounded labels, of which there are few: that gives
a lower bound and mostly a better plan, from which the search with finer labels starts.
"""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.answer import PipelineAnswer
from parenvs.agents.exact.local_search import improve, usable
from parenvs.agents.exact.point_search import PointSearch, SpaceTables
from parenvs.pipeline.cuts import Cuts
from parenvs.pipeline.points import PointSpace, coarse_pivots

PointCuts = tuple[np.ndarray, np.ndarray]
"""(S-1,) points and (S-1,) units of the cuts of a plan."""
_ROUNDS = 3  # of each local search
_STEPS = ((16, 0, 1_000_000), (0, 0, 150_000), (0, 16, 300_000), (0, 32, 1_000_000))
"""Points (0: all), blocks of the bounds (0: without), most pairs of state and label in a layer."""
_GRIDS = (0.01, 0.001, 0.0)
"""To what share of the best length labels are rounded where the steps do not end."""
_BLOCKS = 64  # of the bounds then
_CHEAP = 4  # one in so many points of a few is where the fewest bytes cross


def exact_points(
    space: PointSpace, incumbent: PipelineAnswer | None = None, time_limit: float | None = None
) -> PipelineAnswer:
    """The shortest plan of ``space``, with proof.

    Args:
        space: the problem; it has a plan that fits the memory, or it could not have been built.
        incumbent: a plan to start from; one that is not of the space is ignored.
        time_limit: seconds after which the best plan found is returned without proof
            (``status="feasible"``, with a valid ``bound``).
    """
    begin = time.perf_counter()
    run = _Run(space, np.inf if time_limit is None else begin + time_limit)
    run.start(incumbent)
    proven = run.steps() or run.refine()
    cuts, device_cuts = space.plan(*run.best)
    return PipelineAnswer(
        space.pipeline,
        cuts,
        device_cuts,
        run.upper,
        method="exact-points",
        proven=proven,
        bound=run.upper if proven else min(run.bound, run.upper),
        evaluations=run.evaluations,
        seconds=time.perf_counter() - begin,
    )


def even_plan(space: PointSpace) -> PointCuts:
    """The plan whose stages each take an even share of what is left, as near as is legal."""
    seconds, devices = space.pipeline.seconds_sum[space.pivots], space.devices
    points, units = [0], [0]
    for stage in range(space.stages - 1):
        first, unit, left = points[-1], units[-1], space.stages - stage
        end = _nearest(seconds, first, left, space.legal_points(stage, first, unit))
        units.append(_nearest(devices, unit, left, space.legal_units(stage, first, unit, end)))
        points.append(end)
    return np.array(points[1:]), np.array(units[1:])


def few_points(space: PointSpace, most: int) -> np.ndarray:
    """At most ``most`` points to cut before: some even in work, others where few bytes cross."""
    inner = space.pivots[1:-1]
    if len(inner) <= most:
        return np.arange(1, len(inner) + 1)
    even = coarse_pivots(space.pipeline, inner, most - most // _CHEAP)
    order = np.argsort(space.pipeline.cut_before[inner], kind="stable")
    cheap = order[~np.isin(inner[order], even)][: most // _CHEAP]
    return np.sort(np.append(np.searchsorted(space.pivots, even), cheap + 1))


def _nearest(sums: np.ndarray, first: int, left: int, legal: np.ndarray) -> int:
    """The legal place that is nearest to an even share of what is left from ``first`` on."""
    some = np.flatnonzero(legal)
    ideal = sums[first] + (sums[-1] - sums[first]) / left
    return int(some[np.abs(sums[some] - ideal).argmin()])


class _Run:
    """The best plan so far and what is proven.

    Attributes:
        best: points and units of the cuts.
        upper: length of the best plan, seconds.
        bound: proven lower bound, seconds.
        evaluations: labels made.
    """

    def __init__(self, space: PointSpace, deadline: float) -> None:
        self.space, self.deadline = space, deadline
        self.best = even_plan(space)
        self.upper = self._length(self.best)
        self.bound, self.evaluations = space.pipeline.bubble_free, 0
        self._tables = SpaceTables(space)

    def start(self, incumbent: PipelineAnswer | None) -> None:
        """Begin with a local search around the even plan or the incumbent."""
        space = self.space
        known = usable(space.pipeline, space.stages, incumbent)
        if known is not None and all(
            np.isin(cuts, ends).all()
            for cuts, ends in zip(known, (space.pivots, space.devices), strict=True)
        ):
            plan = self._of_space(known)
            if self._length(plan) < self.upper:
                self.best, self.upper = plan, self._length(plan)
        self._polish()

    def steps(self) -> bool:
        """Search with more and more effort; True if the best plan is proven."""
        points = len(self.space.pivots) - 2
        for most, blocks, pairs in _STEPS:
            if most >= points:
                continue
            ended = self._search(most or points, blocks, pairs)
            if ended and not most:
                return True
            if most:
                self._polish()
        return False

    def refine(self) -> bool:
        """Search with labels rounded less and less; True if the best plan is proven."""
        for grid in _GRIDS:
            if not self._search(len(self.space.pivots) - 2, _BLOCKS, np.inf, grid):
                return False
            if self.bound >= self.upper:
                break
            if grid:
                self._polish()
        return True

    def _search(self, most: int, blocks: int, pairs: float, grid: float = 0.0) -> bool:
        """Look for plans shorter than the best; True if the search ended."""
        if time.perf_counter() > self.deadline:
            return False
        points = few_points(self.space, most)
        search = PointSearch(
            self.space, self._tables, points, self.upper, self.deadline, blocks, pairs,
            grid * self.upper,
        )  # fmt: skip
        ended = search.run()
        self.evaluations += search.evaluations
        if search.best is not None and (length := self._length(search.best)) < self.upper:
            self.best, self.upper = search.best, length
        if len(points) == len(self.space.pivots) - 2:
            self.bound = max(self.bound, search.bound)
        return ended

    def _polish(self) -> None:
        plan = improve(
            self.space.pipeline, self.space.plan(*self.best), _ROUNDS, self.deadline,
            self.space.pivots, self.space.devices,
        )  # fmt: skip
        self.best = self._of_space(plan)
        self.upper = self._length(self.best)

    def _of_space(self, plan: Cuts) -> PointCuts:
        """Points and units of pivots and devices."""
        return (
            np.searchsorted(self.space.pivots, plan[0]),
            np.searchsorted(self.space.devices, plan[1]),
        )

    def _length(self, plan: PointCuts) -> float:
        return float(self.space.pipeline.length(*self.space.plan(*plan)))
