"""Plans within memory that environments begin with: the leanest that is found, and others."""

from __future__ import annotations

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.linear import Linear

WITNESSES = 5
"""Plans that are looked for."""
ROUNDS = 60
"""Integer programs for the leanest plan."""
SECONDS = 10.0
"""Limit of an integer program."""
ROUGH = 1e-2
"""Share by which plans that need not be the best may fall short."""


def begun(problem: Linear) -> Linear:
    """Return a problem with witnesses, of which the first is the leanest plan that is found.

    The others are shortest steps if the classes took other seconds, which are drawn by a seed. A
    first witness that the problem has already stays.

    Raises:
        InfeasibleError: no plan that fits is found.
    """
    leanest = problem.witnesses[0] if len(problem.witnesses) else _leanest(problem)
    if not problem.fits(leanest):
        excess = -float(problem.slack(leanest).min())
        raise InfeasibleError(
            f"no plan fits the memory: {problem.name}: the leanest plan found exceeds the limit by "
            f"{excess:,.0f} bytes"
        )
    rng = np.random.default_rng(0)
    found = {leanest.tobytes(): leanest}
    moments: list[int] = []
    for _ in range(WITNESSES - 1):
        weights = problem.gain * rng.exponential(size=len(problem.gain))
        plan, _ = shortest(problem, weights, ROUGH, moments)
        if plan is not None:
            found.setdefault(plan.tobytes(), plan)
    return problem.begun(np.stack(list(found.values())))


def shortest(
    problem: Linear, weights: np.ndarray, gap: float = 0.0, moments: list[int] | None = None
) -> tuple[np.ndarray | None, float]:
    """Find a plan of the largest weight within memory.

    The limit holds at every moment; a moment counts once a plan exceeds the limit there.

    Args:
        problem: the problem.
        weights: (K,) what each class adds.
        gap: share by which the plan may fall short.
        moments: those that count from the first, to which those that come are added.

    Returns:
        The plan, (K,) bool, None if none is found; and what no plan weighs more than.
    """
    rows = [] if moments is None else moments
    bound = float(np.maximum(weights, 0.0).sum())
    for _ in range(ROUNDS):
        needed = (problem.whole[rows] - problem.limit) / problem.limit
        plan, most = _solved(
            problem, weights, problem.saved[:, rows].T / problem.limit, needed, gap
        )
        bound = min(bound, most)
        if plan is None:
            break
        slack = problem.slack(plan)
        worst = int(slack.argmin())
        if slack[worst] >= 0:
            return plan, bound
        if worst in rows:  # the solver tolerates a millionth
            break
        rows.append(worst)
    return None, bound


def _leanest(problem: Linear) -> np.ndarray:
    """Return the leanest plan of some that minimise the bytes of a mean of moments, (K,) bool.

    Each time the moment counts, too, at which the plan before is the fullest.
    """
    best, lowest = np.zeros(len(problem.gain), dtype=bool), -np.inf
    weights = problem.saved[:, int(problem.whole.argmax())].copy()
    for turn in range(ROUNDS):
        none = np.zeros((0, len(weights)))
        plan, _ = _solved(problem, weights / weights.max(), none, np.zeros(0), ROUGH)
        if plan is None:
            break
        slack = problem.slack(plan)
        if slack.min() > lowest:
            best, lowest = plan, float(slack.min())
        if lowest >= 0 and turn >= 4:
            break
        weights += problem.saved[:, int(slack.argmin())]
    return best


def _solved(
    problem: Linear, weights: np.ndarray, rows: np.ndarray, needed: np.ndarray, gap: float
) -> tuple[np.ndarray | None, float]:
    """Return a plan of the largest weight with ``rows @ plan >= needed``, and a bound of these."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    count = len(weights)
    pairs = np.array([(k, r) for k, row in enumerate(problem.rivals) for r in row if k < r])
    constraints = []
    if len(pairs):
        at = np.repeat(np.arange(len(pairs), dtype=np.int32), 2)
        entries = (np.ones(at.size), (at, pairs.ravel().astype(np.int32)))
        matrix = coo_array(entries, shape=(len(pairs), count)).tocsr()
        constraints.append(LinearConstraint(matrix, ub=1))
    if len(rows):
        constraints.append(LinearConstraint(rows, lb=needed))
    solution = milp(
        -weights,
        integrality=np.ones(count),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"presolve": False, "time_limit": SECONDS, "mip_rel_gap": gap},
    )
    told = solution.mip_dual_bound
    bound = np.inf if told is None or not np.isfinite(told) else -float(told)
    if solution.x is None:
        return None, bound
    plan: np.ndarray = solution.x > 0.5
    return (plan if problem.legal(plan) else None), bound
