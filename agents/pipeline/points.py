"""Proven optima over a ``PointSpace``: the points of a chain and the units of a cluster.

A search is short if the plan that it starts from is good and if its bounds are tight, but a good
plan and tight bounds cost time. So the planner takes steps of growing effort until a search over
all points ends: a local search around an even plan, a search over few points, then searches over
all points with better and better bounds. If none of them ends, it searches with rounded labels, of
which there are few. Such a search gives a lower bound and mostly a better plan, from which the next
one starts, with labels rounded less.
"""

from __future__ import annotations

import time

import numpy as np

from parenvs.agents.pipeline.local_search import improve, usable
from parenvs.agents.pipeline.point_search import PointSearch, SpaceTables
from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.spaces import Cuts, PointSpace, coarse_pivots

PointCuts = tuple[np.ndarray, np.ndarray]
"""(S-1,) points and (S-1,) units of the cuts of a plan."""
AMONG = "128 points and 64 units"
"""The plans over which proofs hold, in words."""
_ROUNDS = 3  # rounds of each local search
_STEPS = ((16, 0, 1_000_000), (0, 0, 150_000), (0, 16, 300_000), (0, 32, 1_000_000))
"""Of each step: the number of points (0: all), the blocks of ``Prefixes`` (0: without), and the
pairs of state and label in a layer from which the search gives up."""
_GRIDS = (0.01, 0.001, 0.0)
"""Units of rounded labels, relative to the best length; used if no step over all points ends."""
_BLOCKS = 64  # blocks of ``Prefixes`` for the searches with rounded labels
_CHEAP = 4  # ``few_points`` takes one point in ``_CHEAP`` where the fewest bytes cross


def exact_points(
    space: PointSpace, incumbent: Answer | None = None, time_limit: float | None = None
) -> Answer:
    """The shortest plan of ``space``, with proof.

    Args:
        space: the problem; a ``PointSpace`` always has a plan that fits the memory.
        incumbent: a plan to start from; it is ignored if it is not of the space.
        time_limit: seconds after which the best plan found is returned without proof
            (``status="feasible"``, with a valid ``bound``).
    """
    begin = time.perf_counter()
    run = _Run(space, np.inf if time_limit is None else begin + time_limit)
    run.start(incumbent)
    proven = run.steps() or run.refine()
    cuts, device_cuts = space.plan(*run.best)
    return Answer(
        problem=space.pipeline,
        plan=space.pipeline.plan(cuts, device_cuts),
        cost=run.upper,
        among=AMONG,
        method="exact",
        proven=proven,
        bound=run.upper if proven else min(run.bound, run.upper),
        evaluations=run.evaluations,
        seconds=time.perf_counter() - begin,
    )


def even_plan(space: PointSpace) -> PointCuts:
    """The legal plan whose stages, one by one, come nearest to an even share of what is left."""
    seconds, devices = space.pipeline.seconds_sum[space.pivots], space.devices
    points, units = [0], [0]
    for stage in range(space.stages - 1):
        first, unit, stages_left = points[-1], units[-1], space.stages - stage
        end = _nearest(seconds, first, stages_left, space.legal_points(stage, first, unit))
        legal_units = space.legal_units(stage, first, unit, end)
        units.append(_nearest(devices, unit, stages_left, legal_units))
        points.append(end)
    return np.array(points[1:]), np.array(units[1:])


def few_points(space: PointSpace, count: int) -> np.ndarray:
    """At most ``count`` points to cut before, ascending.

    One in ``_CHEAP`` is where the fewest bytes cross; the others divide the work evenly.
    """
    inner = space.pivots[1:-1]
    if len(inner) <= count:
        return np.arange(1, len(inner) + 1)
    even = coarse_pivots(space.pipeline, inner, count - count // _CHEAP)
    order = np.argsort(space.pipeline.cut_before[inner], kind="stable")
    cheap = order[~np.isin(inner[order], even)][: count // _CHEAP]
    return np.sort(np.append(np.searchsorted(space.pivots, even), cheap + 1))


def _nearest(sums: np.ndarray, first: int, stages_left: int, legal: np.ndarray) -> int:
    """The legal end of a stage from ``first`` that is nearest to an even share of what is left.

    ``sums`` are prefix sums of what is shared, ``legal``, bool, tells which ends are legal.
    """
    ends = np.flatnonzero(legal)
    ideal = sums[first] + (sums[-1] - sums[first]) / stages_left
    return int(ends[np.abs(sums[ends] - ideal).argmin()])


class _Run:
    """A run of the planner: the best plan so far, and the lower bound that is proven so far.

    Attributes:
        best: points and units of the cuts of the best plan.
        upper: length of the best plan, seconds.
        bound: proven lower bound of all plans, seconds.
        evaluations: number of labels that the searches have kept.
    """

    def __init__(self, space: PointSpace, deadline: float) -> None:
        self.space, self.deadline = space, deadline
        self.best = even_plan(space)
        self.upper = self._length(self.best)
        self.bound, self.evaluations = space.pipeline.bubble_free, 0
        self._tables = SpaceTables(space)

    def start(self, incumbent: Answer | None) -> None:
        """Begin with a local search around the shorter of the even plan and the incumbent."""
        space = self.space
        plan_of_incumbent = usable(space.pipeline, space.stages, incumbent)
        if plan_of_incumbent is not None and all(
            np.isin(cuts, ends).all()
            for cuts, ends in zip(plan_of_incumbent, (space.pivots, space.devices), strict=True)
        ):
            plan = self._of_space(plan_of_incumbent)
            if self._length(plan) < self.upper:
                self.best, self.upper = plan, self._length(plan)
        self._polish()

    def steps(self) -> bool:
        """Search with more and more effort; True if the best plan is proven."""
        all_points = len(self.space.pivots) - 2
        for points, blocks, pairs in _STEPS:
            if points >= all_points:
                continue
            ended = self._search(points or all_points, blocks, pairs)
            if ended and not points:
                return True
            if points:
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

    def _search(self, max_points: int, blocks: int, pairs: float, grid: float = 0.0) -> bool:
        """Look for plans shorter than the best; True if the search ended.

        Args:
            max_points: number of points to cut before, at most.
            blocks: see ``PointSearch``.
            pairs: pairs of state and label in a layer from which the search gives up.
            grid: unit of rounded labels, relative to the best length.
        """
        if time.perf_counter() > self.deadline:
            return False
        points = few_points(self.space, max_points)
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
        """Improve the best plan by a local search over the points and units."""
        plan = improve(
            self.space.pipeline, self.space.plan(*self.best), _ROUNDS, self.deadline,
            self.space.pivots, self.space.devices,
        )  # fmt: skip
        self.best = self._of_space(plan)
        self.upper = self._length(self.best)

    def _of_space(self, plan: Cuts) -> PointCuts:
        """Points and units of a plan given as pivots and devices."""
        return (
            np.searchsorted(self.space.pivots, plan[0]),
            np.searchsorted(self.space.devices, plan[1]),
        )

    def _length(self, plan: PointCuts) -> float:
        """Seconds."""
        return float(self.space.pipeline.length(*self.space.plan(*plan)))
