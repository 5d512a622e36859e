"""Judges policies: those of strangers play in the sandbox, what was chosen is replayed here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parenvs.core.leaderboard import kind_of
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.sandbox.runner import require_isolation, run
from parenvs.leaderboard.tasks import Task
from parenvs.leaderboard.verdicts import PlanState, Verdict, illegal, priced

LIMITS = Limits(seconds=300.0, cpu_seconds=240, files=16)
"""What a policy may use for all problems."""
_WHERE = "field 'policy'"


def policy_verdicts(
    entry: Entry, task: Task, seed: int = 0, limits: Limits = LIMITS, unsafe: bool = False
) -> tuple[Verdict, ...]:
    """Return a verdict on each problem of a task that takes policies.

    Args:
        entry: an entry of a policy.
        task: its task.
        seed: of the checker, which decides what chance decides.
        limits: of the policy.
        unsafe: whether to play where this system cannot isolate it, too.

    Raises:
        IsolationError: it cannot, and the policy was not played.
    """
    rules = kind_of(task.name).policies
    assert rules is not None
    problems: list[Any] = list(task.problems.values())
    chosen = rules.choose(rules.read(entry.policy, entry.entry), problems, seed)
    if chosen is None and not unsafe:
        require_isolation()
    problems = [problem.redrawn(seed) for problem in problems]
    if isinstance(chosen, str):
        note = f"{_WHERE}: not judged: {chosen}"
        return tuple(
            Verdict(problem, PlanState.UNJUDGED, problem.trivial, note=note) for problem in problems
        )
    isolation = None
    if chosen is None:
        names = [problem.instance for problem in problems]
        job = {"policy": entry.policy, "problems": names, "seed": seed}
        outcome = run(rules.play, job, limits, unsafe=unsafe)
        isolation = outcome.isolation
        if outcome.fault:
            reasons = [f"the policy {outcome.fault}"]
            refused = (illegal(problem, _WHERE, reasons) for problem in problems)
            return tuple(replace(verdict, isolation=isolation) for verdict in refused)
        chosen = outcome.value if isinstance(outcome.value, dict) else {}
    verdicts = (_judged(x, chosen.get(x.name), entry.entry) for x in problems)
    return tuple(replace(verdict, isolation=isolation) for verdict in verdicts)


def _judged(problem: Any, plans: Any, policy: str) -> Verdict:
    """Replay what was chosen on a problem."""
    if plans is None:
        return Verdict(problem, PlanState.MISSING, problem.trivial)
    where = f"{_WHERE}: problem {problem.name!r}"
    try:
        report = problem.replayed(plans, policy)
    except (ValueError, TypeError, OverflowError) as error:
        return illegal(problem, where, [str(error)])
    return priced(problem, where, report)
