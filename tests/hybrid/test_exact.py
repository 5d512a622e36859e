"""Labels over free stages against every plan, and the answers' proofs."""

from dataclasses import replace

import numpy as np
import pytest
from cases import slow
from drawn_hybrids import DrawnLayer, best_of_free_stages, drawn_hetero, drawn_problem
from hybrid_toys import toy

import parenvs
from parenvs import Cluster, Device, Hybrid
from parenvs.agents.hybrid.baseline import random_plan, rule_of_thumb
from parenvs.agents.hybrid.exact import exact, exact_hybrid, exact_uniform
from parenvs.agents.hybrid.labels import pareto3
from parenvs.agents.hybrid.subset_dp import subset_search
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.space import Constraints, Objective, UniformSpace

CASES = 30


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("llama3-8b", "h100-2", task="hybrid", batch=64)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(12), *slow(*range(12, CASES))])
def test_exact_hybrid__is_the_best_of_all_plans(seed):
    problem = drawn_problem(np.random.default_rng(seed))
    best = best_of_free_stages(problem, Constraints())
    if best == np.inf:
        with pytest.raises(InfeasibleError, match=r"bytes more|no uniform plan"):
            exact_hybrid(problem)
        return
    answer = exact_hybrid(problem)
    assert answer.report.legal, answer.report.reasons
    assert answer.report.length_seconds == pytest.approx(answer.cost, rel=1e-12)
    assert answer.cost == pytest.approx(best, rel=1e-9)
    assert answer.proven and answer.bound == pytest.approx(best, rel=1e-9)


@pytest.mark.thorough
def test_exact__is_the_better_of_both_and_says_over_what(problem):
    limits = Constraints(context=1)
    uniform, free = exact_uniform(problem, limits), exact_hybrid(problem, limits)
    both = exact(problem, limits, simulate=False)
    assert both.cost == min(uniform.cost, free.cost)
    assert both.proven and both.bound == both.cost
    assert both.claim == (
        "optimal among uniform plans and 1F1B plans of free stages with context 1, by the closed "
        "form under stack llama-2024"
    )
    assert uniform.claim.startswith("optimal among uniform plans with context 1, by the closed")


@pytest.mark.thorough
def test_exact__simulated_step_is_best():
    """Unequal stages: the closed form's best is a lower bound, and another plan runs faster."""
    problem = toy("2x2:h100", 8, "llama-2024", layers=5, vocabulary=4096)
    device = replace(problem.cluster.device, memory_bytes=15e6)
    problem = replace(problem, cluster=replace(problem.cluster, device=device))
    answer, closed = exact(problem), exact(problem, simulate=False)
    space = UniformSpace.build(problem)
    simulated = [
        problem.report(space.plan(k)).simulated_seconds for k in np.flatnonzero(space.fits).tolist()
    ]
    best = answer.report.simulated_seconds
    assert best <= min(simulated) * (1 + 1e-9)
    assert best < 0.94 * closed.report.simulated_seconds
    assert closed.cost < answer.cost and "the closed form alone prefers" in answer.notes[1]
    assert answer.bound == pytest.approx(min(closed.bound, answer.cost))
    assert answer.bound <= best
    assert answer.proven == (answer.bound >= answer.cost * (1 - 1e-12))
    assert f"{best:.4g} s" in answer.notes[0]


def test_exact_hybrid__keeps_to_pins(problem):
    limits = Constraints(pp=3, most_micro_batch=2, pinned=((0, 5, 4),), chunks=1, context=1)
    answer = exact(problem, limits)
    assert len(answer.plan.stages) == 3 and answer.report.legal
    assert answer.plan.stages[0].layers == ((0, 5),) and answer.plan.stages[0].devices == 4
    assert answer.cost >= exact_hybrid(problem, Constraints(pp=3, chunks=1, context=1)).cost
    with pytest.raises(ParenvsError, match="--pin: plans that megatron runs have equal stages"):
        exact(problem, replace(limits, framework="megatron"))


def test_exact_hybrid__time_limit_leaves_a_valid_bound():
    problem = parenvs.problem("bert-large", "1x4:v100", task="hybrid", batch=16)
    start = exact_uniform(problem)
    cut = exact_hybrid(problem, incumbent=start, time_limit=0.0)
    full = exact_hybrid(problem, incumbent=start)
    assert not cut.proven and cut.bound <= full.bound
    assert cut.bound <= full.cost <= cut.cost


def test_exact_hybrid__no_time_is_not_no_plan():
    problem = parenvs.problem("bert-large", "1x4:v100", task="hybrid", batch=16)
    with pytest.raises(
        TimeLimitError, match=r"no plan was found in 0 s, .* takes less than 0\.\d+ s;"
    ):
        exact_hybrid(problem, Constraints(pp=3), time_limit=0.0)
    assert exact_hybrid(problem, Constraints(pp=3)).report.legal


def test_exact__money_may_leave_servers_free(problem):
    limits = Constraints(idle=True, micro_batch=1, sequence_parallel=True)
    fast = exact(problem, limits, simulate=False)
    cheap = exact(problem, limits, Objective("money", 2.5), simulate=False)
    devices = [sum(stage.devices for stage in x.plan.stages) for x in (fast, cheap)]
    costs = [x.cost * count for x, count in zip((fast, cheap), devices, strict=True)]
    assert fast.cost <= cheap.cost and costs[1] <= costs[0]
    space = UniformSpace.build(problem, limits)
    least = np.where(space.fits, space.length * space.plans.devices, np.inf).min()
    assert costs[1] <= least * (1 + 1e-12)


def test_exact_hybrid__overlapped_sends_hide_gradients_of_stages_behind():
    """What is left of the second stage's gradients counts less the send to the first."""
    kept = (1e3, 1e3, 1e3)
    kinds = [DrawnLayer(0.5, 1.0, 0.0, 0.0, size, kept, 0.0) for size in (1e6, 2e9)]
    model = HybridModel("tail", "sha256:tail", tuple(kinds), (0, 1), (1e8,))
    cluster = Cluster(2, 2, Device("drawn", 1e14, 1e13, 1e12), 2e9, 2e9)
    problem = Hybrid(model, cluster, 4, "llama-2024", "fp16")
    answer = exact_hybrid(problem, Constraints(pp=2, tp=1, stage_devices=2))
    assert problem.step(answer.plan).tail > 1
    assert answer.cost == pytest.approx(problem.length(answer.plan), rel=1e-12)


def test_pareto3__is_the_front():
    rng = np.random.default_rng(0)
    for _ in range(20):
        state = rng.integers(4, size=200)
        figures = rng.integers(8, size=(3, 200)).astype(float)
        kept = pareto3(state, *figures)
        points = {
            (s, *f) for s, f in zip(state, figures.T.tolist(), strict=True) for f in [tuple(f)]
        }
        front = {
            p for p in points
            if not any(
                q != p and q[0] == p[0] and all(a <= b for a, b in zip(q[1:], p[1:], strict=True))
                for q in points
            )
        }  # fmt: skip
        found = [(state[i], *figures[:, i].tolist()) for i in kept]
        assert len(found) == len(set(found)) and set(found) == front


@pytest.mark.parametrize("agent", ["tensor-only", "even"])
def test_solve__unknown_planner(problem, agent):
    with pytest.raises(ParenvsError, match="unknown agent"):
        parenvs.plan(problem, agent)


def test_solve__unknown_constraint(problem):
    with pytest.raises(ParenvsError, match=r"constraints: unknown field 'tpp'.*tp"):
        parenvs.plan(problem, "uniform", constraints={"tpp": 2})
    answer = parenvs.plan(problem, "uniform", constraints={"tp": 2})
    assert answer.plan.stages[0].tp == 2


@pytest.mark.parametrize("seed", [3, 5, 7])
@pytest.mark.parametrize("extra", [0.001, 1.0])
def test_compose__every_evaluation_and_search_moves_by_a_second_alike(seed, extra):
    """Judge, simulation, bounds and the costs and proofs of planners, equal servers and unequal."""
    for draw, plan in ((drawn_problem, exact_hybrid), (drawn_hetero, subset_search)):
        problem = draw(np.random.default_rng(seed))
        later = replace(problem, stack=replace(problem.stack, step_seconds=extra))
        for name in ("bound_seconds", "kernel_bound_seconds"):
            assert getattr(later, name) == pytest.approx(getattr(problem, name) + extra, rel=1e-12)
        try:
            before = plan(problem)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                plan(later)
            continue
        after = plan(later)
        assert after.cost == pytest.approx(before.cost + extra, rel=1e-9)
        assert after.proven and after.bound == pytest.approx(after.cost, rel=1e-9)
        report, old = after.report, later.report(replace(before.plan, stack=after.plan.stack))
        assert report.length_seconds == pytest.approx(after.cost, rel=1e-12)
        assert sum(report.seconds.values()) == pytest.approx(report.length_seconds, rel=1e-12)
        assert report.seconds["host"] == extra
        assert old.simulated_seconds == pytest.approx(
            before.report.simulated_seconds + extra, rel=1e-12
        )


def test_rule_of_thumb(problem):
    """Without a run: the least tp x pp that fits, tp first; many chunks, ZeRO 1."""
    big = parenvs.problem("llama3-70b", "16x8:b300", task="hybrid", batch=1024)
    answer = rule_of_thumb(big)
    plan, stage = answer.plan, answer.plan.stages[0]
    assert answer.report.legal and not answer.proven
    assert (stage.zero, plan.micro_batch) == (1, 1)
    least = stage.tp * len(plan.stages)
    alone = Constraints(micro_batch=1, zero=(1,), recompute=("selective",), context=1)
    space = UniformSpace.build(big, alone)
    ranks = (space.plans.tp * space.plans.pp)[space.fits]
    assert least == ranks.min()
    assert stage.tp == space.plans.tp[space.fits][ranks == least].max()
    assert len(rule_of_thumb(problem).plan.stages) == 1


def test_random_plan__fits_and_follows_the_seed(problem):
    drawn = [random_plan(problem, np.random.default_rng(seed)).plan for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1] and len({str(plan.to_json()) for plan in drawn}) > 1
    assert all(problem.report(plan).legal for plan in drawn)


def test_rule_of_thumb__says_what_is_missing():
    problem = parenvs.problem("gpt3-175b", "h100-2", task="hybrid", batch=64)
    with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes more"):
        rule_of_thumb(problem)


def test_exact__no_plan_of_a_framework_names_free_ones():
    crowded = parenvs.problem("llama3-70b", "1x2:h100", task="hybrid", batch=8)
    with pytest.raises(InfeasibleError, match=r"--for free plans without one$"):
        parenvs.plan(crowded)


def test_problem__mixtures_have_a_stack_that_was_measured_with_experts():
    named = {"llama3-8b": "llama-2024", "mixtral-8x7b": "nemo-2026"}
    for model, stack in named.items():
        assert parenvs.problem(model, "8x8:h100", task="hybrid", batch=64).stack.name == stack
