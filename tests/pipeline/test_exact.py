from dataclasses import replace
from pathlib import Path

import brute_force as bf
import numpy as np
import pytest
from cases import slow
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.agents.pipeline import bounds as prefixes
from parenvs.agents.pipeline import exact
from parenvs.agents.pipeline.exact import exact_candidates, exact_full
from parenvs.agents.pipeline.label_search import LabelSearch
from parenvs.agents.pipeline.least_memory import least_excess, least_excess_pruned, plan_within
from parenvs.agents.pipeline.local_search import improve
from parenvs.cluster import Cluster
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import CutSpace, distinct_pivots

pytestmark = pytest.mark.thorough

PROFILES = Path(__file__).parents[3] / "shared" / "profiles"
needs_profiles = pytest.mark.skipif(not PROFILES.is_dir(), reason="no ../shared/profiles")
CASES = 150


def chain(layers=30, per_layer=8, parameters=3e6, cut=3e7, name="chain"):
    """A chain whose cuts are low between layers, with one heavy pivot in the middle of each."""
    n = layers * per_layer
    place = np.arange(n) % per_layer
    forward = np.where(place == per_layer // 2, 4e-3, 1e-5 * (place % 3))
    return StageProfile(
        name=name,
        names=np.array([f"p{i}" for i in range(n)], dtype=object),
        forward=forward,
        backward=2 * forward,
        cut_bytes=np.where(place == per_layer - 1, cut, 3 * cut),
        parameter_bytes=np.where(place == per_layer // 2, parameters, 0.0),
        resident_bytes=np.full(n, cut),
    )


def check(answer: Answer, pipeline: Pipeline, best: bf.Best):
    assert answer.status == "optimal"
    assert answer.cost == float(pipeline.length(answer.plan.cuts, answer.plan.device_cuts))
    assert pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts) <= 0
    assert answer.cost == pytest.approx(best.length, rel=1e-9)
    assert answer.bound == answer.cost
    has = pipeline.variable_sum[[0, *answer.plan.cuts, len(pipeline.profile)]]
    devices = [0, *answer.plan.device_cuts, pipeline.cluster.devices]
    assert (np.diff(has) > 0).all() and (np.diff(devices) > 0).all()


@pytest.mark.parametrize("seed", range(0, CASES, 10))
def test_exact_candidates__equals_brute_force(seed):
    for case in range(seed, seed + 10):
        space = bf.random_space(np.random.default_rng([case, 1]))
        best = bf.best_of(space.pipeline, bf.legal_plans(space))
        assert least_excess_pruned(space).excess_bytes == pytest.approx(best.excess, rel=1e-12)
        if best.length == np.inf:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_candidates(space)
        else:
            check(exact_candidates(space), space.pipeline, best)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "seed", [0, 80, *slow(*(seed for seed in range(10, CASES, 10) if seed != 80))]
)
def test_exact_full__equals_brute_force(seed, large, monkeypatch):
    if large:  # corridors first
        monkeypatch.setattr(exact, "FEW", 0)
        monkeypatch.setattr(exact, "_MANY", 0)
        monkeypatch.setattr(prefixes, "_BLOCKS", 4)
    for case in range(seed, seed + 10):
        pipeline, stages = bf.random_pipeline(np.random.default_rng([case, 2]))
        best = bf.best_of(pipeline, bf.all_plans(pipeline, stages))
        assert least_excess(pipeline.with_stages(stages)).excess_bytes == pytest.approx(
            best.excess, abs=0.5
        )
        assert (plan_within(pipeline, stages, pipeline.memory_limit) is None) == (best.excess > 0)
        if best.length == np.inf:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_full(pipeline.with_stages(stages))
        else:
            check(exact_full(pipeline.with_stages(stages)), pipeline, best)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), slack=st.sampled_from([1e-9, 1e-3, 0.1, 1.0]))
def test_label_search__finds_the_optimum_under_any_incumbent(seed, slack):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    best = bf.best_of(pipeline, bf.all_plans(pipeline, stages))
    pivots = np.arange(1, len(pipeline.profile))
    upper = best.length * (1 + slack)
    better_bounds = pivots if seed % 2 else None
    search = LabelSearch(pipeline, stages, lambda k, e: pivots, upper, pivots=better_bounds)
    assert search.run()
    assert search.upper == pytest.approx(best.length, rel=1e-9)
    if best.length < np.inf:
        tight = LabelSearch(pipeline, stages, lambda k, e: pivots, best.length)
        assert tight.run() and tight.best is None and tight.bound == best.length


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_distinct_pivots__hold_an_optimum(seed):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    cuts, device_cuts = bf.all_plans(pipeline, stages)
    kept = np.isin(cuts, distinct_pivots(pipeline)).all(axis=1)
    merged = bf.best_of(pipeline, (cuts[kept], device_cuts[kept]))
    best = bf.best_of(pipeline, (cuts, device_cuts))
    assert merged.length == pytest.approx(best.length, rel=1e-12)


@pytest.mark.parametrize("stages", [2, 3, *slow(4)])
def test_exact_full__is_no_worse_than_pruned_and_local_search(stages):
    pipeline = Pipeline(chain(), Cluster.parse("C"))
    pruned = exact_candidates(CutSpace.build(pipeline.with_stages(stages)))
    full = exact_full(pipeline.with_stages(stages), incumbent=pruned)
    alone = exact_full(pipeline.with_stages(stages))
    assert full.status == alone.status == "optimal"
    assert full.cost == pytest.approx(alone.cost, rel=1e-12)
    better = improve(pipeline, (pruned.plan.cuts, pruned.plan.device_cuts))
    assert full.cost * (1 - 1e-9) <= pipeline.length(*better) <= pruned.cost


def test_exact_full__ignores_an_incumbent_that_is_no_plan():
    pipeline = Pipeline(chain(layers=6), Cluster.parse("A"))
    best = exact_full(pipeline.with_stages(3))
    for cuts in ([1, 2], [30, 20], [20], [4, 300]):
        plan = replace(best.plan, cuts=tuple(cuts), device_cuts=(5, 9)[: len(cuts)])
        bad = Answer(problem=pipeline, plan=plan, cost=1e-9)
        assert exact_full(pipeline.with_stages(3), incumbent=bad).cost == pytest.approx(
            best.cost, rel=1e-12
        )


def test_exact_full__time_limit_gives_a_plan_and_a_valid_bound():
    pipeline = Pipeline(chain(), Cluster.parse("C"))
    best = exact_full(pipeline.with_stages(4))
    for limit in (0.0, 0.05):
        answer = exact_full(pipeline.with_stages(4), time_limit=limit)
        assert answer.bound <= best.cost * (1 + 1e-12) <= answer.cost * (1 + 1e-9)
        assert answer.bound >= pipeline.bubble_free
        assert (answer.status == "optimal") == (answer.bound == answer.cost)


def test_exact__infeasible_says_by_how_much():
    cluster = Cluster.parse("A")
    profile = chain(parameters=1e9, name="heavy")
    pipeline = Pipeline(profile, cluster)
    # 30 GB of parameters, twice, in two stages: 15 layers each, and activations on top.
    excess = least_excess(pipeline.with_stages(2)).excess_bytes
    assert 0 < 30e9 - pipeline.memory_limit < excess < 30.1e9 - pipeline.memory_limit
    message = (
        f"heavy on A (2x8 v100) with 2 stages: no plan fits the memory; the best one needs "
        f"{excess:,.0f} bytes more than the 28,800,000,000 allowed on its fullest stage"
    )
    with pytest.raises(InfeasibleError) as full:
        exact_full(pipeline.with_stages(2))
    assert str(full.value) == message
    space = CutSpace.build(pipeline.with_stages(2))
    with pytest.raises(InfeasibleError, match=r"heavy on A .* bytes more than the 28,800,000,000"):
        exact_candidates(space)
    assert least_excess_pruned(space).excess_bytes >= excess - 0.5
    assert exact_full(pipeline.with_stages(3)).status == "optimal"


def test_exact_full__takes_a_memory_limit_that_a_single_plan_meets():
    pipeline = Pipeline(chain(parameters=1e9), Cluster.parse("A"))
    cuts, device_cuts, excess = least_excess(pipeline.with_stages(4))
    size = (excess + pipeline.memory_limit) * (1 + 1e-9) / 0.9
    device = replace(pipeline.cluster.device, memory_bytes=size)
    pipeline = replace(pipeline, cluster=replace(pipeline.cluster, device=device))
    answer = exact_full(pipeline.with_stages(4))
    assert answer.status == "optimal"
    assert answer.cost <= pipeline.length(cuts, device_cuts)


def test_exact__refuses_more_stages_than_variables():
    with pytest.raises(InfeasibleError, match="ask for at most 2"):
        exact_full(Pipeline(chain(layers=2), Cluster.parse("A"), 3))


@needs_profiles
@pytest.mark.parametrize(
    ("cluster", "cuts", "layers"),
    [("A", [8], ["layer_24"]), ("C", [8, 16, 24], ["layer_11", "layer_23", "layer_35"])],
)
def test_exact_candidates__known_cuts_of_the_bert_48_profile(cluster, cuts, layers):
    pipeline = Pipeline(StageProfile.from_csv(PROFILES / "bert-48.csv"), Cluster.parse(cluster))
    answer = exact_candidates(CutSpace.build(pipeline.with_stages(len(cuts) + 1)))
    assert list(answer.plan.device_cuts) == cuts
    assert [pipeline.profile.names[p - 1] for p in answer.plan.cuts] == layers
