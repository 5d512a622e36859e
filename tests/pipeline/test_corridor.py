"""Corridor searches: held against every plan, and against themselves written twice."""

import time

import brute_force as bf
import numpy as np
import pytest
from cases import slow

from parenvs.agents.pipeline import corridor
from parenvs.agents.pipeline.corridor import Corridor, Width, changed, search
from parenvs.agents.pipeline.exact import by_corridor
from parenvs.datasets.pipeline.problems import draw
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.plan import stage_counts
from parenvs.tasks.pipeline.spaces import graded


def random_problem(*seed):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    return pipeline.with_stages(stages)


def is_plan(pipeline, plan):
    """Whether each stage has a variable and a device."""
    ends = pipeline.variable_sum[[0, *plan[0], len(pipeline.profile)]]
    edges = [0, *plan[1], pipeline.cluster.devices]
    return (
        len(plan[0]) == pipeline.stages - 1
        and (np.diff(ends) > 0).all()
        and (np.diff(edges) > 0).all()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(10, 60, 10))])
def test_by_corridor__equals_brute_force(seed):
    """Of the first 1,000 problems, all."""
    for case in range(seed, seed + 10):
        pipeline = random_problem(case, 2)
        best = bf.best_of(pipeline, bf.all_plans(pipeline, pipeline.stages))
        if best.length == np.inf:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                by_corridor(pipeline)
            continue
        answer = by_corridor(pipeline)
        assert answer.report.legal
        assert answer.cost == pytest.approx(best.length, rel=1e-9)
        assert answer.bound <= best.length * (1 + 1e-12)


@pytest.mark.thorough
def test_sweep__is_exact_where_the_corridor_holds_all_places():
    everything = Width(places=10_000, labels=10_000, reach=20)
    for case in range(12):
        pipeline = random_problem(case, 3)
        best = bf.best_of(pipeline, bf.all_plans(pipeline, pipeline.stages))
        sweeps = Corridor(pipeline)
        for start in graded(pipeline)[:3]:
            plan = sweeps.sweep(start, (1, 1), everything)
            assert (plan is None) == (best.length == np.inf)
            if plan is not None:
                assert sweeps.length(plan) == pytest.approx(best.length, rel=1e-9)
                assert sweeps.sweep(start, (1, 1), everything, sweeps.length(plan)) is None


@pytest.mark.thorough
def test_sweep__loops_and_arrays_agree(monkeypatch):
    """Compiled loops, or the same ones as Python, keep the labels that array operations keep."""
    calls = []

    def both(*arguments):
        by_arrays = corridor.extend_in_arrays(*arguments)
        by_loops = corridor._extend_in_loops(*arguments)
        calls.append(len(by_arrays[1]))
        for ours, theirs in zip(by_arrays, by_loops, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        return by_arrays

    monkeypatch.setattr(corridor, "COMPILED", True)
    for case in range(6):
        sweeps = Corridor(random_problem(case, 4))
        with monkeypatch.context() as patch:
            patch.setattr(corridor, "_extend_in_loops", both_of(both, corridor._extend_in_loops))
            for start in graded(sweeps.pipeline)[:2]:
                sweeps.sweep(start, (1, 1), Width(12, 3, 2))
    assert sum(calls) > 100


def both_of(both, loops):
    """``both``, which finds the loops under their name while they are replaced."""

    def run(*arguments):
        corridor._extend_in_loops, replaced = loops, corridor._extend_in_loops
        try:
            return both(*arguments)
        finally:
            corridor._extend_in_loops = replaced

    return run


@pytest.mark.thorough
def test_search__same_budget_same_plan_and_never_longer():
    pipeline = draw(np.random.default_rng(5)).pipeline
    first, again = (search(pipeline, sweeps=40, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert is_plan(pipeline, first)
    rng = np.random.default_rng(0)
    sweeps = Corridor(pipeline)
    for _ in range(5):
        start = changed(pipeline, first, rng)
        assert is_plan(pipeline, start)
        assert sweeps.length(sweeps.descend(start, last=sweeps.sweeps + 3)) <= sweeps.length(start)
    assert sweeps.length(search(pipeline, first, sweeps=5)) <= sweeps.length(first)


def test_search__without_time_the_shortest_start():
    pipeline = draw(np.random.default_rng(5)).pipeline
    late = search(pipeline, deadline=time.perf_counter())
    lengths = [Corridor(pipeline).length(plan) for plan in graded(pipeline)]
    assert Corridor(pipeline).length(late) <= min(lengths)


def test_graded__are_plans_of_any_shape():
    for case in range(60):
        pipeline = random_problem(case, 5)
        assert all(is_plan(pipeline, plan) for plan in graded(pipeline))


def test_stage_counts__say_what_sums_exist():
    assert stage_counts(7, 7, [1, 2, 4]) == [3, 4, 5, 6, 7]
    assert stage_counts(6, 6, [2]) == [3]
    assert stage_counts(5, 5, [2]) == []
