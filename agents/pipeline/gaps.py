"""How far a plan is from the optimum, or from a lower bound of it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.points import exact_points
from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.spaces import PointSpace

AFFORDABLE = 10.0
"""Default limit of ``gaps`` for each proof, seconds."""
AT = 5e-6
"""Relative distance to the optimum below which ``Gap.text`` calls a plan optimal."""


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
