"""Plans of the best mean over stacks, where none is named; plans priced by trials."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.agents.hybrid.exact import RANKED
from parenvs.agents.planners import request_of
from parenvs.cluster import Measured
from parenvs.tasks.hybrid.explain import under
from parenvs.tasks.hybrid.space import ANY, Constraints, UniformSpace, software_of
from parenvs.tasks.hybrid.tune.prior import stacks_on


def reports_of(problem, plan):
    """What each stack says."""
    judged = [replace(problem, stack=stack) for stack in stacks_on(problem)]
    return {other.stack.name: other.report(under(other, plan)) for other in judged}


def mean_of(problem, plan):
    """Mean logarithm over stacks; the simulation adds what it adds by the problem's own."""
    logs = [np.log(report.length_seconds) for report in reports_of(problem, plan).values()]
    report = problem.report(plan)
    return np.mean(logs) + np.log(max(report.simulated_seconds / report.length_seconds, 1))


@pytest.mark.slow
@each("limits", [{}, {"tp": 2}, {"framework": "megatron"}, {"pp": 2}, {"framework": "deepspeed"}])
def test_mean__is_the_best_of_the_best_of_every_stack(limits):
    problem = parenvs.problem("llama3-8b", "1x8:a100", "hybrid", batch=64)
    space = UniformSpace.build(problem, Constraints(**{"framework": ANY, "uneven": True, **limits}))
    chosen = set()
    for stack in stacks_on(problem):
        other = replace(problem, stack=stack)
        plans = replace(space.plans, **software_of(other).of_arrays)
        length = plans.seconds(other.model, other.cluster, other.machine)["length"]
        order = np.argsort(np.where(space.fits, length, np.inf), kind="stable")
        chosen |= {*order[:RANKED].tolist()}
    alone = parenvs.plan(problem, "exact", constraints=limits)
    means = [mean_of(problem, space.plan(k)) for k in chosen] + [mean_of(problem, alone.plan)]
    answer = parenvs.plan(problem, constraints=limits)
    assert mean_of(problem, answer.plan) == pytest.approx(min(means), abs=1e-9)
    assert answer.cost == pytest.approx(problem.length(answer.plan)) and answer.report.legal
    assert (answer.claim == "best mean of 6 stacks") is not answer.proven
    is_same, note = answer.plan == alone.plan, answer.notes[0]
    assert answer.proven is (is_same and alone.proven)
    if not is_same:
        excess = np.expm1(means[-1] - min(means))
        assert f"llama-2024 alone prefers {alone.plan.words}, " in note
        assert f"{excess:.1%} longer in the mean" in note
    reports = reports_of(problem, answer.plan)
    full = ", ".join(name for name, report in reports.items() if not report.legal)
    assert (f", and that it does not fit by {full}" if full else " s (") in note
    order = sorted(reports, key=lambda name: reports[name].length_seconds)
    low, high = (f"{reports[x].length_seconds:.2f} s ({x})" for x in (order[0], order[-1]))
    assert note.startswith(f"6 stacks say {low} to {high}")


@pytest.mark.thorough
def test_mean__only_where_nothing_is_named():
    problem = parenvs.problem("llama3-8b", "1x8:a100", "hybrid", batch=64)
    limits = {"constraints": {"tp": 2, "pp": 1, "dp": 4}}
    named = parenvs.problem("llama3-8b", "1x8:a100", "hybrid", batch=64, stack="llama-2024")
    assert named == problem and named.is_named and not problem.is_named
    same = [parenvs.problem(x, task="hybrid", batch=64) for x in (problem, named)]
    assert [x.is_named for x in same] == [False, True]

    def notes(problem, *agent, **options):
        return " ".join(parenvs.plan(problem, *agent, **limits | options).notes)

    assert "6 stacks say" in notes(problem)
    assert "stacks say" not in notes(named) + notes(problem, "exact") + notes(problem, robust=True)
    assert "stacks say" not in notes(problem, "uniform") + str(parenvs.compare(problem, ["exact"]))
    free = {**limits["constraints"], "framework": "free"}
    assert "stacks say" not in notes(problem, constraints=free, time_limit=2)
    measured = replace(problem.cluster, measured=Measured("by hand"))
    assert "stacks say" not in notes(replace(problem, cluster=measured, stack=None))
    one = stacks_on(problem)[:1]
    answer = request_of(problem, stacks=one, **limits).run("exact")
    assert "stacks say" not in " ".join(answer.notes)
    assert parenvs.problem("hybrid-validation/llama-000").is_named
