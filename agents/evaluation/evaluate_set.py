"""``evaluate_set``: how agents and planners do on the problems of a shipped set."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from parenvs.agents.evaluation.set_evaluation import SetEvaluation, play_set, references_of
from parenvs.agents.planners import solve
from parenvs.core.plan import ILLEGAL
from parenvs.core.sets import ProblemSet, set_of
from parenvs.errors import NO_PLAN, ParenvsError, shown


def evaluate_set(
    policies: Any,
    name: str = "plan-test",
    family: str | None = None,
    greedy: bool = True,
    seed: int = 0,
    first: int | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> SetEvaluation:
    """Play each problem of a shipped set once, in the order of the set, with masks.

    Args:
        policies: a policy, or a list of the policies of several runs. A policy is what
            ``parenvs.evaluate`` takes, the name of a planner, which solves each problem, or has
            a function ``values_of(problems)``, as a ``PlanPolicy`` has. Policies with an attribute
            ``env_id`` play the set in that environment.
        name: of the set: ``"plan-test"``, ``"hybrid-test"``, ``"hetero-8-test"``,
            ``"elastic-test"``, ``"partition-test"``, ... (``parenvs.core.sets``).
        family: problems of this family only (of orders: of this tier).
        greedy: whether models play their best action; otherwise they sample.
        seed: seed of models that sample.
        first: number of problems, the first of the set (default: all).
        settings: further arguments of the environment, like ``{"rows": "bare"}``; planners
            do not take them.

    Raises:
        ParenvsError: the set or the family is unknown, or a policy is none.

    >>> import parenvs
    >>> evaluation = parenvs.evaluate_set(lambda seen, mask: mask.argmax(), "plan-outside", "cnn")
    >>> 0 < evaluation.interval[0] < evaluation.regret < 1
    True
    """
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    env_ids = dict.fromkeys(getattr(policy, "env_id", None) for policy in several)
    if len(env_ids) > 1:
        raise ParenvsError(f"{name}: policies of several environments: {shown(list(env_ids))}")
    env_id = next(iter(env_ids), None)
    played = set_of(name, env_id)
    problems = played.of(family)[:first]
    values: list[Any] = []
    for policy in several:
        if hasattr(policy, "values_of"):
            values.append(policy.values_of([played.load(problem) for problem in problems]))
            continue
        if isinstance(policy, str):
            values.append([_planned(played, problem, policy) for problem in problems])
            continue
        if hasattr(policy, "set_random_seed"):
            policy.set_random_seed(seed)
        values.append(play_set(policy, name, family, len(problems), greedy, settings, env_id))
    references = references_of(name, problems, env_id)
    scores = np.array(values, dtype=np.float64)
    return SetEvaluation(name, problems, scores, references, env_id)


def _planned(played: ProblemSet, problem: str, planner: str) -> float:
    """Return what a planner's plan of a problem is worth; -1 if it finds none."""
    try:
        return played.answered(solve(played.load(problem), planner))
    except NO_PLAN:
        return float(ILLEGAL)
