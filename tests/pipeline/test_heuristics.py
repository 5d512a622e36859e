import brute_force as bf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.agents.pipeline.exact import exact_candidates
from parenvs.agents.pipeline.heuristics import (
    bottleneck_seconds,
    even_cut,
    pipedream,
    random_search,
)
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import cuts_of

seeds = st.integers(0, 2**32)


def flat(n=12, parameters=1.0):
    """Equal pivots."""
    ones = np.ones(n)
    names = np.array([f"p{i}" for i in range(n)], dtype=object)
    return StageProfile("flat", names, ones, 2 * ones, ones, parameters * ones)


def assert_legal(answer, pipeline, stages):
    assert len(answer.plan.cuts) == len(answer.plan.device_cuts) == stages - 1
    has = pipeline.variable_sum[[0, *answer.plan.cuts, len(pipeline.profile)]]
    assert (np.diff(has) > 0).all()
    assert (np.diff([0, *answer.plan.device_cuts, pipeline.cluster.devices]) > 0).all()
    assert answer.cost == float(pipeline.length(answer.plan.cuts, answer.plan.device_cuts))


def test_even_cut__equal_pivots():
    answer = even_cut(Pipeline(flat(), Cluster.parse("B"), 3))
    assert list(answer.plan.cuts) == [4, 8] and list(answer.plan.device_cuts) == [8, 16]
    assert (answer.status, answer.bound) == ("feasible", None)


def test_even_cut__moves_a_cut_to_leave_each_stage_a_variable():
    profile = flat()
    late = profile.parameter_bytes.copy()
    late[:9] = 0.0
    profile = StageProfile(
        "late", profile.names, profile.forward, profile.backward, profile.cut_bytes, late
    )
    assert list(even_cut(Pipeline(profile, Cluster.parse("B"), 3)).plan.cuts) == [10, 11]


@pytest.mark.thorough
@settings(max_examples=80)
@given(seed=seeds)
def test_even_cut_and_pipedream__legal(seed):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    assert_legal(even_cut(pipeline.with_stages(stages)), pipeline, stages)
    assert_legal(pipedream(pipeline.with_stages(stages)), pipeline, stages)


@pytest.mark.thorough
@settings(max_examples=30)
@given(seed=seeds)
def test_pipedream__best_of_all_plans_by_its_objective(seed):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    answer = pipedream(pipeline.with_stages(stages))
    plans = zip(*bf.all_plans(pipeline, stages), strict=True)
    values = [bottleneck_seconds(pipeline, cuts, groups) for cuts, groups in plans]
    value = bottleneck_seconds(pipeline, *cuts_of(answer.plan))
    assert value == pytest.approx(min(values), rel=1e-9)


@pytest.mark.thorough
@settings(max_examples=40)
@given(seed=seeds)
def test_random_search__no_better_than_the_optimum_and_fits_if_it_can(seed):
    rng = np.random.default_rng(seed)
    space = bf.random_space(rng)
    answer = random_search(space, 300, rng)
    assert answer.evaluations == 300
    assert_legal(answer, space.pipeline, space.stages)
    excess = space.pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts)
    try:
        best = exact_candidates(space).cost
    except InfeasibleError:
        assert excess > 0
    else:
        assert excess > 0 or answer.cost >= best * (1 - 1e-12)
