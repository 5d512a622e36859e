"""Plans of the best mean over stacks, where none is named; plans priced by trials."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.agents.hybrid.ranking import RANKED
from parenvs.agents.planners import request_of
from parenvs.cluster import Measured
from parenvs.tasks.hybrid.explain import under
from parenvs.tasks.hybrid.space import ANY, Constraints, UniformSpace, software_of
from parenvs.tasks.hybrid.tune.prior import stacks_on


def mean_of(problem, plan):
    """Mean logarithm over stacks, judged one by one; the simulation adds what it adds by one."""
    judged = [replace(problem, stack=stack) for stack in stacks_on(problem)]
    logs = [np.log(other.report(under(other, plan)).length_seconds) for other in judged]
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
    assert answer.notes[0].startswith("6 stacks say ")
    if answer.plan != alone.plan:
        excess = np.expm1(means[-1] - min(means))
        assert f"llama-2024 alone prefers {alone.plan.words}, " in answer.notes[0]
        assert f"{excess:.1%} longer in the mean" in answer.notes[0]
    assert answer.proven is (answer.plan == alone.plan and alone.proven)


@pytest.mark.slow
def test_mean__says_what_each_stack_does():
    """The least and the longest step, and which stacks would run out of memory."""
    problem = parenvs.problem("llama3-8b", "1x8:a100", "hybrid", batch=64)
    answer = parenvs.plan(problem)
    judged = [replace(problem, stack=stack) for stack in stacks_on(problem)]
    reports = {x.stack.name: x.report(under(x, answer.plan)) for x in judged}
    order = sorted(reports, key=lambda name: reports[name].length_seconds)
    note, full = answer.notes[0], [name for name in reports if not reports[name].legal]
    for name in (order[0], order[-1]):
        assert f"{reports[name].length_seconds:.2f} s ({name})" in note
    assert full and f"it does not fit by {', '.join(full)};" in note


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
