"""Plans any pipeline with the network that ships: no search, no training, no torch.

The network was trained on generated problems alone (``parenvs pretrain``). Several plans are drawn
from it, and the closed form of their length tells which is the shortest. A small exact search
around that plan may follow (``refine``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from parenvs.agents.learning.pretrained.policy import Draws, PlanPolicy
from parenvs.agents.pipeline import corridor
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.local_search import improve
from parenvs.agents.pipeline.point_search import PointSearch, SpaceTables
from parenvs.agents.pipeline.points import exact_points, few_points
from parenvs.core.answer import Answer
from parenvs.tasks.pipeline.cuts import Cuts
from parenvs.tasks.pipeline.points import UNITS, PointSpace, distinct_pivots

WEIGHTS = "data/plan-policy.npz"
DRAWS = 32
"""Plans that are drawn of a problem, the best rated one among them."""
POOL, NEAR, FEW = 16, 2, 24
"""Points that a refinement searches: the cuts of ``POOL`` plans, ``NEAR`` points on either side of
each cut of the shortest plan, and ``FEW`` points spread over the chain."""
PAIRS = 1_000_000
"""A refinement gives up a search with more pairs of state and label in a layer than this."""
MOVES = 50_000
"""Plans that a step of the last local search compares at most."""
SWEEPS = 60
"""Sweeps of the corridor search that refines plans of more than ``UNITS`` devices."""
AFFORDABLE = 10.0
"""Default limit of ``gaps`` for each proof, seconds."""
AT = 5e-6
"""Relative distance to the optimum below which ``Gap.text`` calls a plan optimal."""
_ROUNDS = 3  # rounds of each local search


@cache
def policy() -> PlanPolicy:
    """The network that ships, read once a process."""
    with (
        resources.files("parenvs.agents.learning.pretrained").joinpath(WEIGHTS).open("rb") as stream
    ):
        return PlanPolicy(dict(np.load(stream)))


def pretrained(
    space: PointSpace, draws: int = DRAWS, refine: bool = False, seed: int = 0
) -> Answer:
    """The shortest of several plans that the network draws; it fits the memory.

    Args:
        space: the problem over points and units.
        draws: number of plans, the best rated one among them; 1 takes that one alone.
        refine: whether to search around the answer, and over all pivots and devices if there are
            more than points and units.
        seed: seed of the draws.
    """
    begin = time.perf_counter()
    drawn = policy().plan(space, draws, np.random.default_rng(seed))
    plan, evaluations = space.plan(drawn.cuts[0], drawn.units[0]), draws
    if refine:
        plan, labels = refined(space, drawn)
        evaluations += labels
    length = float(space.pipeline.length(*plan))
    method = "pretrained-refined" if refine else "pretrained"
    seconds = time.perf_counter() - begin
    return Answer(
        problem=space.pipeline,
        plan=space.pipeline.plan(*plan),
        cost=length,
        method=method,
        evaluations=evaluations,
        seconds=seconds,
    )


def refined(space: PointSpace, drawn: Draws) -> tuple[Cuts, int]:
    """Search for a shorter plan in the neighbourhood of drawn ones.

    Between local searches runs an exact one over all units and those points that the drawn plans
    cut at, that are next to a cut of the shortest plan, or that are spread over the chain. On more
    than ``UNITS`` devices it is a corridor search.

    Args:
        space: the problem over points and units.
        drawn: plans of it, the shortest first.

    Returns:
        the plan as cuts and device cuts, (S-1,) int64 each, and the number of labels or sweeps.
    """
    pipeline = space.pipeline
    plan = space.plan(drawn.cuts[0], drawn.units[0])
    if pipeline.cluster.devices > UNITS:
        near = corridor.search(pipeline, plan, SWEEPS)
        assert near is not None  # the plan drawn fits, too
        return near, SWEEPS
    plan = _polished(space, plan)
    points = np.searchsorted(space.pivots, plan[0])
    near = points[:, None] + np.arange(-NEAR, NEAR + 1)
    searched = np.unique(
        np.concatenate([near.ravel(), drawn.cuts[:POOL].ravel(), few_points(space, FEW)])
    )
    searched = searched[(searched >= 1) & (searched < len(space.pivots) - 1)]
    upper = float(pipeline.length(*plan))
    search = PointSearch(space, SpaceTables(space), searched, upper, max_pairs=PAIRS)
    search.run()
    if search.best is not None:
        exact = space.plan(*search.best)
        if float(pipeline.length(*exact)) < upper:
            plan = _polished(space, exact)
    if len(space.pivots) - 1 < len(pipeline.profile):
        plan = improve(pipeline, plan, pivots=distinct_pivots(pipeline), max_points=MOVES)
    return plan, search.evaluations


def _polished(space: PointSpace, plan: Cuts) -> Cuts:
    """A plan after a local search over the points and units."""
    return improve(space.pipeline, plan, _ROUNDS, np.inf, space.pivots, space.devices)


@dataclass(frozen=True)
class Gap:
    """How far a plan is from an optimum.

    Attributes:
        over: words for the search space that the optimum is of.
        length: the optimum, or a lower bound of it, in seconds per step.
        proven: whether ``length`` is the optimum.
        ratio: length of the plan over ``length``.
        seconds: wall seconds of the proof.
    """

    over: str
    length: float
    proven: bool
    ratio: float
    seconds: float

    def text(self) -> str:
        """The gap in one line."""
        at_most = "" if self.proven else "at most "
        reference = "optimum" if self.proven else "lower bound of the optimum"
        above = self.ratio - 1
        if self.proven and abs(above) < AT:
            words = "at"
        else:
            words = f"{at_most}{above:.3%} above" if above > 0 else f"{-above:.3%} below"
        words += f" the {reference} over {self.over}, {self.length:.6g} s"
        return f"{words}, found in {self.seconds:.2f} s"


def gaps(space: PointSpace, answer: Answer, seconds: float = AFFORDABLE) -> list[Gap]:
    """Gaps of a plan to the optimum over the points and, if that may be another, over all pivots.

    Args:
        space: the problem over points and units.
        answer: the plan.
        seconds: limit of each proof; an optimum not proven by then is replaced by a lower bound.
    """
    pipeline, points, units = space.pipeline, len(space.pivots) - 1, len(space.devices) - 1
    exact = exact_points(space, time_limit=seconds)
    result = [_gap(f"{points} points and {units} units", answer, exact)]
    if points < len(pipeline.profile) or units < pipeline.cluster.devices:
        exact = exact_full(pipeline, exact, seconds)
        every = f"all {len(pipeline.profile)} pivots and {pipeline.cluster.devices} devices"
        result.append(_gap(every, answer, exact))
    return result


def _gap(over: str, answer: Answer, exact: Answer) -> Gap:
    """The gap of ``answer`` to ``exact``, the answer of an exact planner."""
    bound = exact.cost if exact.proven else float(exact.bound or 0.0)
    return Gap(over, bound, exact.proven, answer.cost / bound, exact.seconds)
