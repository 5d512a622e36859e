"""Plans within memory from which episodes of partition problems begin, by integer programs."""

from __future__ import annotations

import numpy as np

from parenvs.agents.partition.exact import solve
from parenvs.compiled import Array
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


def find_witnesses(problem: Linear) -> Linear:
    """Return a problem with witnesses, of which the first is the leanest plan that is found.

    The others minimize steps of random class seconds. An existing first witness stays.

    Raises:
        InfeasibleError: no plan that fits is found.
    """
    leanest = problem.witnesses[0] if len(problem.witnesses) else _leanest_plan(problem)
    if not problem.fits(leanest):
        excess = -float(problem.slack(leanest).min())
        raise InfeasibleError(
            f"no plan fits the memory: {problem.name}: the leanest plan found exceeds the limit by "
            f"{excess:,.0f} bytes"
        )
    rng = np.random.default_rng(0)
    plans = {leanest.tobytes(): leanest}
    moments: list[int] = []
    for _ in range(WITNESSES - 1):
        weights = problem.gain * rng.exponential(size=len(problem.gain))
        plan, _ = shortest(problem, weights, ROUGH, moments)
        if plan is not None:
            plans.setdefault(plan.tobytes(), plan)
    return problem.with_witnesses(np.stack(list(plans.values())))


def shortest(
    problem: Linear, weights: Array, gap: float = 0.0, moments: list[int] | None = None
) -> tuple[Array | None, float]:
    """Find a plan of the largest weight, (K,) for each class, within memory.

    The limit holds at every moment; a moment counts once a plan exceeds the limit there. These are
    added to ``moments``.

    Returns:
        The plan, (K,) bool, None if none is found; and an upper bound of the weight.
    """
    moments = [] if moments is None else moments
    bound = float(np.maximum(weights, 0.0).sum())
    for _ in range(ROUNDS):
        needed = (problem.replicated_bytes[moments] - problem.limit) / problem.limit
        saved = problem.saved_bytes[:, moments].T / problem.limit
        plan, upper = _solve_rows(problem, weights, saved, needed, gap)
        bound = min(bound, upper)
        if plan is None:
            break
        slack = problem.slack(plan)
        worst = int(slack.argmin())
        if slack[worst] >= 0:
            return plan, bound
        if worst in moments:  # the solver tolerates a millionth
            break
        moments.append(worst)
    return None, bound


def _leanest_plan(problem: Linear) -> Array:
    """(K,) bool, the leanest of the plans that minimize the mean bytes of a set of moments.

    Each iteration adds the moment at which the plan before is the fullest.
    """
    best, lowest = np.zeros(len(problem.gain), bool), -np.inf
    weights = problem.saved_bytes[:, int(problem.replicated_bytes.argmax())].copy()
    for iteration in range(ROUNDS):
        no_rows = np.zeros((0, len(weights)))
        plan, _ = _solve_rows(problem, weights / weights.max(), no_rows, np.zeros(0), ROUGH)
        if plan is None:
            break
        slack = problem.slack(plan)
        if slack.min() > lowest:
            best, lowest = plan, float(slack.min())
        if lowest >= 0 and iteration >= 4:
            break
        weights += problem.saved_bytes[:, int(slack.argmin())]
    return best


def _solve_rows(
    problem: Linear, weights: Array, rows: Array, needed: Array, gap: float
) -> tuple[Array | None, float]:
    """Return a plan of the largest weight with ``rows @ plan >= needed``, and a bound of these."""
    solution, bound = solve(weights, problem.conflicts, rows, needed, SECONDS, gap)
    if solution.x is None:
        return None, bound
    plan: Array = solution.x > 0.5
    return (plan if problem.legal(plan) else None), bound
