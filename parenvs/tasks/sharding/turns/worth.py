"""What a plan is worth to an environment: one formula for its rewards, the judge and the tests."""

from __future__ import annotations

import numpy as np

REWARDS = ("log", "ratio")
"""Kinds of worth: ln(reference / cost), or reference / cost."""
WORST = {"log": -50.0, "ratio": -1.0}
"""Return of an episode that ends with an illegal action; every plan is worth more.

Costs sum to less than 10^18 (the reduction refuses others), so that ln(1 / cost) > -42.
"""


def worth_of(cost: float, reference: float, reward: str) -> float:
    """Return what a plan is worth.

    Args:
        cost: of the plan; less than 1 counts as 1.
        reference: cost that it is compared with; less than 1 counts as 1.
        reward: one of ``REWARDS``.
    """
    ratio = max(float(reference), 1.0) / max(float(cost), 1.0)
    return float(np.log(ratio)) if reward == "log" else ratio
