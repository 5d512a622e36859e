"""Neighbors of hybrid plans: legal, judged as the judge does, the same alone and among others."""

from collections import Counter

import numpy as np
import pytest

import parenvs
from parenvs.agents.hybrid.search import local_search
from parenvs.datasets.hybrid.problems import problem_sets
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.moves import changes, columns
from parenvs.tasks.hybrid.moves.catalog import CATALOG, SLOTS
from parenvs.tasks.hybrid.plan_arrays import (
    joined,
    neighbors,
    plan_of,
    plans_of,
    prepared,
    table_of,
)
from parenvs.tasks.hybrid.space import Constraints, UniformSpace


def problem_of(name):
    if "/" not in name:
        return parenvs.problem(name, "4x8:h100", task="hybrid", batch=192)
    return next(x for x in problem_sets()[name.split("/")[0]] if x.instance == name)


def start_of(problem, **limits):
    space = UniformSpace.build(problem, Constraints(uneven=True, **limits))
    return plans_of(problem, [space.plan(space.best())])


def walk(problem, rng, turns, limits=None, **start):
    """Plans of a random walk over neighbors that fit, each with its neighbors and their moves."""
    table, plans = table_of([prepared(problem)]), start_of(problem, **start)
    for _ in range(turns):
        near, _, moves = neighbors(table, plans, table.judge(plans).busy, limits)
        judged = table.judge(near)
        yield plans, near, moves, judged
        fine = np.flatnonzero(judged.fullness <= 1)
        plans = near.take(rng.choice(fine, 1))


NAMES = [
    "hybrid-test/gpt-000", "hybrid-test/llama-001", "hybrid-test/mixture-001",
    "hetero-8-test/spread-000", "llama3-8b",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_neighbors__are_legal_and_cost_what_the_judge_says(name):
    problem, rng = problem_of(name), np.random.default_rng(1)
    for plans, near, moves, judged in walk(problem, rng, 5):
        own = plan_of(problem, plans, 0)
        axes = Counter(CATALOG[move].axis for move in moves)
        assert all(axes[axis] <= SLOTS[axis] for axis in axes)
        for k in rng.choice(len(moves), min(12, len(moves)), replace=False).tolist():
            plan = plan_of(problem, near, k)
            report = problem.report(plan)
            broken = [x for x in report.reasons if "bytes on each device" not in x]
            assert not broken, (CATALOG[moves[k]], broken)
            assert plan != own
            assert report.step.length == pytest.approx(judged.length[k], rel=1e-12)
            assert report.legal == (judged.fullness[k] <= 1)
            again = plans_of(problem, [plan])
            assert plan_of(problem, again, 0) == plan


@pytest.mark.thorough
def test_neighbors__are_the_same_among_others():
    """To the last bit: environments of a batch do not see each other."""
    problems = [problem_of(name) for name in NAMES[:3]]
    plans = [start_of(problem, context=1) for problem in problems]
    table = table_of([prepared(problem) for problem in problems])
    rows = [part._replace(rows=np.array([k])) for k, part in enumerate(plans)]
    together = joined([part.wide(*table.sizes) for part in rows])
    near, of_plan, moves = neighbors(table, together, table.judge(together).busy)
    judged = table.judge(near)
    for k, problem in enumerate(problems):
        alone = table_of([prepared(problem)])
        own, _, its = neighbors(alone, plans[k], alone.judge(plans[k]).busy)
        mine = of_plan == k
        assert np.array_equal(its, moves[mine])
        result = alone.judge(own)
        assert np.array_equal(result.length, judged.length[mine])
        assert np.array_equal(result.fullness, judged.fullness[mine])


def test_neighbors__keep_to_constraints():
    problem, rng = problem_of("hybrid-test/llama-001"), np.random.default_rng(0)
    limits = Constraints(tp=8, zero=(1,), recompute=("none", "full"), context=1, shard=0)
    for _, near, moves, _ in walk(problem, rng, 3, limits, tp=8, zero=(1,), context=1, shard=0):
        for k in range(0, len(moves), 5):
            plan = plan_of(problem, near, k)
            assert {stage.tp for stage in plan.stages} == {8}
            assert not any("selective" in stage.modes for stage in plan.stages)
            assert {stage.zero for stage in plan.stages} <= {0, 1}


def test_legal__knows_what_the_rules_forbid():
    problem = problem_of("hybrid-test/llama-001")
    table, plans = table_of([prepared(problem)]), start_of(problem)
    plan = changes.plan_at.py_func(plans.wide(*table.sizes).arrays, 0)
    before = plan.numbers.copy()
    assert changes.settle(table.arrays, 0, plan) and np.array_equal(plan.numbers, before)
    for values, column, factor in (
        (plan.numbers, columns.SAMPLES, 3), (plan.numbers, columns.CONTEXT, 3),
        (plan.numbers, columns.EXPERT, 2), (plan.numbers, columns.CHUNKS, 61),
        (plan.numbers, columns.COUNT, 0), (plan.numbers, columns.COUNT, 70),
        (plan.stages[0], columns.TP, 16), (plan.stages[0], columns.DEVICES, 2),
        (plan.ends, 1, 200),
    ):  # fmt: skip
        kept = values[column]
        values[column] *= factor
        assert not changes.settle(table.arrays, 0, plan), (column, factor)
        values[column] = kept
    assert changes.settle(table.arrays, 0, plan)


@pytest.mark.thorough
def test_local_search__is_better_than_its_starts_and_repeats_itself():
    problem = problem_of("hybrid-test/llama-001")
    space = UniformSpace.build(problem, Constraints(uneven=True))
    answers = [local_search(problem, seed=3, evaluations=600, space=space) for _ in range(2)]
    assert answers[0].plan == answers[1].plan and answers[0].report.legal
    assert answers[0].cost < space.length[space.best()] * 0.95
    assert answers[0].cost == answers[0].report.step.length
    other = local_search(problem, Constraints(tp=8, pp=12), evaluations=300)
    stages = other.plan.stages
    assert len(stages) == 12 and {stage.tp for stage in stages} == {8}


@pytest.mark.thorough
def test_local_search__says_what_it_cannot_do():
    problem = problem_of("llama3-8b")
    with pytest.raises(ParenvsError, match="--pin: search ignores it; take the planner"):
        parenvs.plan(problem, "search", constraints={"pinned": ((0, 2, None),)})
    large = parenvs.problem("gpt3-175b", "h100-2", task="hybrid", batch=64)
    with pytest.raises(InfeasibleError, match=r"needs [\d,]+ bytes more"):
        local_search(large)
