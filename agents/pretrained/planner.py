"""Plans any pipeline with the network that ships: no search, no training, no torch.

The network was trained on generated problems alone (``parenvs pretrain``). It draws some plans, the
closed form of their length says which is the shortest; around it a small exact search may follow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from parenvs.agents.answer import Answer
from parenvs.agents.exact.pipeline import exact_full, improve
from parenvs.agents.exact.point_search import PointSearch, SpaceTables
from parenvs.agents.exact.points import exact_points, few_points
from parenvs.agents.pretrained.policy import Draws, PlanPolicy
from parenvs.pipeline.cuts import Cuts
from parenvs.pipeline.points import PointSpace

WEIGHTS = "data/plan-policy.npz"
DRAWS = 32
"""Plans that are drawn, the best rated one among them."""
POOL, NEAR, FEW = 16, 2, 12
"""Refinement: plans whose cuts are searched, points on either side of the best's, others."""
PAIRS = 300_000
"""Refinement: most pairs of state and label in a layer; a search with more is given up."""
AFFORDABLE = 10.0
"""Seconds that ``gaps`` may take for each proof."""
AT = 5e-6
"""Relative distance below which a plan is at the optimum."""
_ROUNDS = 3  # of each local search


@cache
def policy() -> PlanPolicy:
    """The network that ships."""
    with resources.files("parenvs.agents.pretrained").joinpath(WEIGHTS).open("rb") as stream:
        return PlanPolicy(dict(np.load(stream)))


def pretrained(
    space: PointSpace, draws: int = DRAWS, refine: bool = False, seed: int = 0
) -> Answer:
    """The shortest of some plans that the network draws; it fits the memory.

    Args:
        space: the problem.
        draws: plans, the best rated one among them; 1: that alone.
        refine: search around the answer, and among all pivots and devices if there are more than
            points and units.
        seed: of the draws.
    """
    begin = time.perf_counter()
    drawn = policy().plan(space, draws, np.random.default_rng(seed))
    plan, looked = space.plan(drawn.cuts[0], drawn.units[0]), draws
    if refine:
        plan, evaluations = refined(space, drawn)
        looked += evaluations
    length = float(space.pipeline.length(*plan))
    method = "pretrained-refined" if refine else "pretrained"
    seconds = time.perf_counter() - begin
    return Answer(*plan, length, method, evaluations=looked, seconds=seconds)


def refined(space: PointSpace, drawn: Draws) -> tuple[Cuts, int]:
    """A shorter plan in the neighbourhood of drawn ones, and the labels it took.

    An exact search over all units and the points that the plans cut at, the neighbours of the best
    one's and a few spread over the chain, between local searches.
    """
    pipeline = space.pipeline
    plan = _polished(space, space.plan(drawn.cuts[0], drawn.units[0]))
    points = np.searchsorted(space.pivots, plan[0])
    near = points[:, None] + np.arange(-NEAR, NEAR + 1)
    some = np.unique(
        np.concatenate([near.ravel(), drawn.cuts[:POOL].ravel(), few_points(space, FEW)])
    )
    some = some[(some >= 1) & (some < len(space.pivots) - 1)]
    upper = float(pipeline.length(*plan))
    search = PointSearch(space, SpaceTables(space), some, upper, most=PAIRS)
    search.run()
    if search.best is not None:
        found = space.plan(*search.best)
        if float(pipeline.length(*found)) < upper:
            plan = _polished(space, found)
    if (
        len(space.pivots) - 1 < len(pipeline.profile)
        or len(space.devices) - 1 < pipeline.cluster.devices
    ):
        plan = improve(pipeline, plan)
    return plan, search.evaluations


def _polished(space: PointSpace, plan: Cuts) -> Cuts:
    return improve(space.pipeline, plan, _ROUNDS, np.inf, space.pivots, space.devices)


@dataclass(frozen=True)
class Gap:
    """How far a plan is from an optimum.

    Attributes:
        over: words for what the optimum is one of.
        length: the optimum, or a lower bound of it, seconds.
        proven: whether it is the optimum.
        ratio: length of the plan over it.
        seconds: that the proof took.
    """

    over: str
    length: float
    proven: bool
    ratio: float
    seconds: float

    def text(self) -> str:
        """One line."""
        most = "" if self.proven else "at most "
        what = "optimum" if self.proven else "lower bound of the optimum"
        above = self.ratio - 1
        if self.proven and abs(above) < AT:
            words = "at"
        else:
            words = f"{most}{above:.3%} above" if above > 0 else f"{-above:.3%} below"
        words += f" the {what} over {self.over}, {self.length:.6g} s"
        return f"{words}, found in {self.seconds:.2f} s"


def gaps(space: PointSpace, answer: Answer, seconds: float = AFFORDABLE) -> list[Gap]:
    """Gaps to the proven optimum over the points and, if that is another problem, over all pivots.

    Args:
        space: the problem.
        answer: a plan of it.
        seconds: limit of each proof; a bound stands in for what takes longer.
    """
    pipeline, points, units = space.pipeline, len(space.pivots) - 1, len(space.devices) - 1
    exact = exact_points(space, time_limit=seconds)
    found = [_gap(f"{points} points and {units} units", answer, exact)]
    if points < len(pipeline.profile) or units < pipeline.cluster.devices:
        exact = exact_full(pipeline, space.stages, exact, seconds)
        every = f"all {len(pipeline.profile)} pivots and {pipeline.cluster.devices} devices"
        found.append(_gap(every, answer, exact))
    return found


def _gap(over: str, answer: Answer, exact: Answer) -> Gap:
    proven = exact.status == "optimal"
    bound = exact.length if proven else exact.bound
    return Gap(over, bound, proven, answer.length / bound, exact.seconds)
