"""``evaluate_set``: how agents and planners do on the problems of a shipped set."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.agents.evaluation.set_evaluation import SetEvaluation, names_of, optima_of, play_set
from parenvs.agents.planners import solve
from parenvs.datasets.instance_sets import SETS, find
from parenvs.errors import ParenvsError, did_you_mean


def evaluate_set(
    policies: Any,
    name: str = "plan-test",
    family: str | None = None,
    greedy: bool = True,
    seed: int = 0,
    first: int | None = None,
) -> SetEvaluation:
    """Play each problem of a shipped set once, in the order of the set, with masks.

    Args:
        policies: a policy, or a list of the policies of several runs. A policy is what
            ``parenvs.evaluate`` takes, or the name of a planner, which solves each problem.
        name: ``"plan-validation"``, ``"plan-test"`` or ``"plan-outside"``.
        family: problems of this family only.
        greedy: whether models play their best action; otherwise they sample.
        seed: seed of models that sample.
        first: number of problems, the first of the set (default: all).

    Raises:
        ParenvsError: the set or the family is unknown, or a policy is none.

    >>> import parenvs
    >>> evaluation = parenvs.evaluate_set(lambda seen, mask: mask.argmax(), "plan-outside", "cnn")
    >>> 0 < evaluation.interval[0] < evaluation.regret < 1
    True
    """
    if name not in SETS:
        raise ParenvsError(
            f"unknown set {name!r}{did_you_mean(name, SETS)}; known: {', '.join(SETS)}"
        )
    problems = names_of(name, family)[:first]
    if not problems:
        raise ParenvsError(f"{name} has no problem of family {family!r}")
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    values = []
    for policy in several:
        if isinstance(policy, str):
            answers = [solve(find(problem).pipeline, policy) for problem in problems]
            values.append([float(answer.report.value) for answer in answers])
            continue
        if hasattr(policy, "set_random_seed"):
            policy.set_random_seed(seed)
        values.append(play_set(policy, name, family, len(problems), greedy))
    return SetEvaluation(name, problems, np.array(values, dtype=np.float64), optima_of(problems))
