"""What people minimise over hybrid plans, and near-best plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space.plans import UniformSpace

OBJECTIVES = ("seconds", "tokens", "money")
"""Seconds of a step; tokens per second (samples where a model has no tokens); money per token."""
HOUR = 3600.0


@dataclass(frozen=True)
class Objective:
    """What makes a plan good. Each is least for the best plan, tokens per second are negative.

    Attributes:
        name: one of ``OBJECTIVES``.
        price: of an hour of one device, in any currency.
    """

    name: str = OBJECTIVES[0]
    price: float = 1.0

    def __post_init__(self) -> None:
        """Raise errors for an unknown name, and a price that is not positive."""
        if self.name not in OBJECTIVES:
            raise ParenvsError(
                f"unknown objective {shown(self.name)}{did_you_mean(self.name, OBJECTIVES)}; "
                f"known: {', '.join(OBJECTIVES)}"
            )
        is_number = isinstance(self.price, (int, float)) and not isinstance(self.price, bool)
        if not is_number or not 0 < self.price < np.inf:
            raise ParenvsError(
                f"price of a device-hour must be a positive number, not {shown(self.price)}"
            )

    def values(self, problem: Hybrid, seconds: Any, devices: Any) -> Any:
        """Return what is minimised, elementwise.

        Args:
            problem: the problem.
            seconds: of a step.
            devices: in use.
        """
        tokens = tokens_of(problem)
        if self.name == "tokens":
            return -tokens / seconds
        if self.name == "money":
            return seconds * devices * self.price / HOUR / tokens
        return seconds

    def weight(self, devices: int) -> float:
        """Return the factor of seconds that orders plans on different numbers of devices."""
        return float(devices) if self.name == "money" else 1.0


def tokens_of(problem: Hybrid) -> int:
    """Return the tokens of a step, or its samples if the model has no shape."""
    shape = problem.model.shape
    return problem.batch * (1 if shape is None else shape.sequence)


class NearBest(NamedTuple):
    """A plan that comes close to the best one.

    Attributes:
        number: of the plan in its space.
        value: what is minimised.
        excess: share by which it exceeds the best.
        text: the plan in words.
    """

    number: int
    value: float
    excess: float
    text: str


def near_best(
    space: UniformSpace, share: float = 0.05, most: int = 10, objective: Objective | None = None
) -> list[NearBest]:
    """Return the best plan of each mesh that comes close to the best of all, the best first.

    Plans of one mesh, that is the same tp, pp, dp and context, differ by what can be changed from
    one run to the next; of them only the best is listed.

    Args:
        space: the plans.
        share: most excess over the best plan.
        most: most plans in the list.
        objective: what is minimised (default: seconds of a step).
    """
    goal = objective or Objective()
    plans = space.plans
    values = np.asarray(goal.values(space.problem, space.length, plans.devices), dtype=float)
    values = np.where(space.fits, values, np.inf)
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    if not len(order):
        return []
    best = values[order[0]]
    meshes = np.stack([plans.tp, plans.pp, plans.dp, plans.context])[:, order]
    first = np.sort(np.unique(meshes, axis=1, return_index=True)[1])
    listed = []
    for k in order[first][:most].tolist():
        excess = float((values[k] - best) / abs(best))
        if excess > share:
            break
        listed.append(NearBest(k, float(values[k]), excess, space.describe(k)))
    return listed
