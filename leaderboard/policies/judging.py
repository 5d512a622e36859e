"""Judges policies: tables and networks play in the sandbox, what they chose is replayed here."""

from __future__ import annotations

from typing import Any

from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.policies.formats import Recorded, Rule, read_policy
from parenvs.leaderboard.policies.play import followed
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.sandbox.runner import run
from parenvs.leaderboard.tasks import Task
from parenvs.leaderboard.verdicts import PlanState, Verdict, illegal, priced
from parenvs.tasks.elastic.entries import ElasticProblem

LIMITS = Limits(seconds=300.0, cpu_seconds=240, files=16)
"""What a policy may use for all courses."""
_PLAY = "parenvs.leaderboard.policies.play:play"
_WHERE = "field 'policy'"


def policy_verdicts(
    entry: Entry, task: Task, seed: int = 0, limits: Limits = LIMITS
) -> tuple[Verdict, ...]:
    """Return a verdict on each problem of a task that takes policies.

    Args:
        entry: an entry of a policy.
        task: its task.
        seed: of the checker, which decides the courses.
        limits: of the policy.
    """
    problems: list[Any] = [_of(problem).redrawn(seed) for problem in task.problems.values()]
    policy = read_policy(entry.policy, entry.entry)
    if isinstance(policy, Recorded) and policy.seed != seed and policy.rule is not None:
        policy = policy.rule
    if isinstance(policy, Recorded):
        if policy.seed != seed:
            note = f"{_WHERE}: not judged: it is recorded for seed {policy.seed}, not {seed}"
            return tuple(
                Verdict(problem, PlanState.UNJUDGED, problem.trivial, note=note)
                for problem in problems
            )
        chosen: Any = {name: [list(c) for c in courses] for name, courses in policy.plans.items()}
    elif isinstance(policy, Rule):  # our own code
        chosen = {problem.name: followed(policy, problem.target, seed) for problem in problems}
    else:
        names = [problem.instance for problem in problems]
        job = {"policy": entry.policy, "problems": names, "seed": seed}
        outcome = run(_PLAY, job, limits)
        if outcome.fault:
            reasons = [f"the policy {outcome.fault}"]
            return tuple(illegal(problem, _WHERE, reasons) for problem in problems)
        chosen = outcome.value if isinstance(outcome.value, dict) else {}
    return tuple(_judged(problem, chosen.get(problem.name), entry.entry) for problem in problems)


def _of(problem: Any) -> ElasticProblem:
    assert isinstance(problem, ElasticProblem)
    return problem


def _judged(problem: ElasticProblem, plans: Any, policy: str) -> Verdict:
    """Replay what was chosen on a problem's courses."""
    if plans is None:
        return Verdict(problem, PlanState.MISSING, problem.trivial)
    where = f"{_WHERE}: problem {problem.name!r}"
    try:
        report = problem.replayed(plans, policy)
    except (ValueError, TypeError, OverflowError) as error:
        return illegal(problem, where, [str(error)])
    return priced(problem, where, report)
