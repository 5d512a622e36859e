"""How a plan fares where the machine is not what the stack's constants say."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from parenvs.hybrid.problem import Hybrid
from parenvs.hybrid.space import Constraints, UniformSpace
from parenvs.hybrid.stack import Stack
from parenvs.plan import HybridPlan

CHANGE = 0.2
"""Share by which constants are off."""


class Shift(NamedTuple):
    """A plan on a machine that differs.

    Attributes:
        what: differs, in words: ``links -20 %``.
        seconds: of the plan there.
        best_seconds: of the best uniform plan there, or of the plan itself if that is faster.
        excess: share by which the plan takes longer than that.
        best: the best plan there, in words; ``the plan itself`` if none is faster.
    """

    what: str
    seconds: float
    best_seconds: float
    excess: float
    best: str


def robustness(
    problem: Hybrid,
    plan: HybridPlan,
    constraints: Constraints | None = None,
    change: float = CHANGE,
) -> list[Shift]:
    """Judge a plan, and all uniform plans, with links and products that reach less or more.

    Args:
        problem: the problem.
        plan: a plan of it.
        constraints: that the plans keep to.
        change: share by which a constant is off.
    """
    shifts = []
    for name, scaled in (("links", _with_links), ("matrix products", _with_products)):
        for sign in (-1, 1):
            other = replace(problem, stack=scaled(problem.stack, 1 + sign * change))
            space = UniformSpace.build(other, constraints)
            own, best = other.length(plan), space.best()
            fastest = own if best is None else min(own, float(space.length[best]))
            text = "the plan itself"
            if best is not None and fastest < own * (1 - 1e-9):
                text = space.describe(best)
            what = f"{name} {sign * change:+.0%}".replace("%", " %")
            shifts.append(Shift(what, own, fastest, own / fastest - 1, text))
    return shifts


def _with_links(stack: Stack, factor: float) -> Stack:
    """Return a stack that reaches another share of every link, in collectives and in sends."""
    shares = {"link_share": stack.link_share, "send_share": stack.send_share}
    return replace(stack, **{name: share * factor for name, share in shares.items()})


def _with_products(stack: Stack, factor: float) -> Stack:
    """Return a stack whose matrix products reach another share of the peak."""
    shares = tuple((device, share * factor) for device, share in stack.matmul_share)
    return replace(stack, matmul_share=shares)
