import itertools
from dataclasses import replace

import brute_force as bf
import numpy as np
import pytest
from cases import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import chain

from parenvs.agents.pipeline import point_search as suffixes
from parenvs.agents.pipeline import points as module
from parenvs.agents.pipeline.exact import exact_full
from parenvs.agents.pipeline.point_search import PointSearch, SpaceTables
from parenvs.agents.pipeline.points import even_plan, exact_points, few_points
from parenvs.agents.planners import optimum
from parenvs.cluster import Cluster
from parenvs.core.plan import Answer, judge
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline import spaces as plan_space
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import PointSpace

CASES = 300
EFFORTS = {
    "as shipped": module._STEPS,
    "few points": ((3, 0, 10**6), (0, 0, 10**6)),
    "weak bounds": ((0, 0, 10**9),),
    "strong bounds": ((4, 2, 50), (0, 3, 10**9)),
    "rounded labels": ((0, 0, 0),),
}


def all_plans(space):
    """Points and units of every plan whose stages hold a variable and fit the memory."""
    m, u = len(space.pivots) - 1, len(space.devices) - 1
    has = space.pipeline.variable_sum[space.pivots]
    cuts = [
        c for c in itertools.combinations(range(1, m), space.stages - 1)
        if (np.diff(has[[0, *c, m]]) > 0).all()
    ]  # fmt: skip
    groups = itertools.combinations(range(1, u), space.stages - 1)
    both = np.array(list(itertools.product(cuts, groups))).reshape(-1, 2, space.stages - 1)
    fits = space.pipeline.excess_bytes(*space.plan(both[:, 0], both[:, 1])) <= 0
    return both[fits, 0], both[fits, 1]


def draw(seed, monkeypatch):
    """A small problem; a third of them are cut at whole servers, a third at few points."""
    rng = np.random.default_rng(seed)
    pipeline, stages = bf.random_pipeline(rng)
    stages = min(stages, 4)
    most = len(pipeline.profile) - int(rng.choice([0, 0, 2]))
    servers = pipeline.cluster.servers
    if rng.random() < 0.5 and servers >= stages:
        of = int(rng.integers(stages, servers + 1))
        monkeypatch.setattr(plan_space, "units", lambda pipeline: real_units(pipeline, of))
    else:
        monkeypatch.setattr(plan_space, "units", real_units)
    return pipeline, stages, most


real_units = plan_space.units


def every_plan(pipeline, stages, most):
    """Points and units of the plans, without a ``PointSpace``."""
    pivots, devices = plan_space.points(pipeline, most), plan_space.units(pipeline)
    none = np.zeros((0, 0, 0))
    return all_plans(PointSpace(pipeline.with_stages(stages), pivots, devices, none))


def build(pipeline, stages, most):
    """The space, or None where every plan breaks the memory."""
    try:
        return PointSpace.build(pipeline.with_stages(stages), most)
    except InfeasibleError:
        return None


def check(answer, space, best):
    plan = space.pipeline.plan(answer.plan.cuts, answer.plan.device_cuts)
    assert judge(plan, space.pipeline).legal
    assert np.isin(answer.plan.cuts, space.pivots).all()
    assert np.isin(answer.plan.device_cuts, space.devices).all()
    assert answer.status == "optimal" and answer.bound == answer.cost
    assert answer.cost == float(space.pipeline.length(answer.plan.cuts, answer.plan.device_cuts))
    assert answer.cost == pytest.approx(best, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "effort", ["as shipped", "weak bounds", *slow("few points", "strong bounds", "rounded labels")]
)
def test_exact_points__equals_full_enumeration(effort, monkeypatch):
    monkeypatch.setattr(module, "_STEPS", EFFORTS[effort])
    monkeypatch.setattr(suffixes, "_BLOCK", 30)
    infeasible, coarse_units = 0, 0
    first = 1000 * list(EFFORTS).index(effort)
    for seed in range(first, first + CASES // len(EFFORTS)):
        pipeline, stages, most = draw(seed, monkeypatch)
        plans = every_plan(pipeline, stages, most)
        space = build(pipeline, stages, most)
        assert (space is None) == (len(plans[0]) == 0)
        if space is None:
            infeasible += 1
            continue
        coarse_units += len(space.devices) <= pipeline.cluster.devices
        best = float(pipeline.length(*space.plan(*plans)).min())
        check(exact_points(space), space, best)
        rng = np.random.default_rng(seed)
        some = space.plan(*(x[rng.integers(len(x))] for x in plans))
        known = Answer(problem=pipeline, plan=pipeline.plan(*some))
        check(exact_points(space, incumbent=known), space, best)
    assert infeasible and coarse_units


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), blocks=st.sampled_from([0, 1, 3]))
def test_point_search__proves_any_incumbent(seed, blocks):
    with pytest.MonkeyPatch.context() as patch:
        pipeline, stages, most = draw(seed, patch)
        space = build(pipeline, stages, most)
    if space is None:
        return
    best = float(pipeline.length(*space.plan(*all_plans(space))).min())
    tables, points = SpaceTables(space), np.arange(1, len(space.pivots) - 1)
    for upper in (best * (1 + 1e-9), best * 1.5):
        search = PointSearch(space, tables, points, upper, blocks=blocks)
        assert search.run()
        assert search.upper == search.bound == pytest.approx(best, rel=1e-12)
    search = PointSearch(space, tables, points, best, blocks=blocks)
    assert search.run() and search.best is None and search.bound == best


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), grid=st.sampled_from([1e-3, 0.03, 0.3]))
def test_point_search__rounded_labels_give_a_lower_bound(seed, grid):
    with pytest.MonkeyPatch.context() as patch:
        space = build(*draw(seed, patch))
    if space is None:
        return
    best = float(space.pipeline.length(*space.plan(*all_plans(space))).min())
    tables, points = SpaceTables(space), np.arange(1, len(space.pivots) - 1)
    search = PointSearch(space, tables, points, 1.2 * best, blocks=2, grid=grid * best)
    assert search.run()
    assert best * (1 - 2 * (space.stages - 2) * grid - 1e-9) <= search.bound <= best * (1 + 1e-9)
    length = float(space.pipeline.length(*space.plan(*search.best)))
    assert best * (1 - 1e-9) <= length <= best * (1 + 2 * (space.stages - 2) * grid + 1e-9)


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_plan_space__admits_exactly_what_can_be_completed(seed):
    with pytest.MonkeyPatch.context() as patch:
        pipeline, stages, most = draw(seed, patch)
        plans = every_plan(pipeline, stages, most)
        space = build(pipeline, stages, most)
    assert (space is None) == (len(plans[0]) == 0)
    follow = {}
    for point, unit in zip(*plans, strict=True):
        turns = [int(x) for pair in zip(point, unit, strict=True) for x in pair]
        for t in range(len(turns)):
            follow.setdefault(tuple(turns[:t]), set()).add(turns[t])
    for past, choices in follow.items():
        stage = len(past) // 2
        point, unit = past[2 * stage - 2 : 2 * stage] if stage else (0, 0)
        if len(past) % 2:
            legal = space.legal_units(stage, point, unit, past[-1])
        else:
            legal = space.legal_points(stage, point, unit)
        assert set(np.flatnonzero(legal).tolist()) == choices


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_even_plan__is_legal(seed):
    with pytest.MonkeyPatch.context() as patch:
        space = build(*draw(seed, patch))
    if space is not None:
        cuts, device_cuts = space.plan(*even_plan(space))
        assert judge(space.pipeline.plan(cuts, device_cuts), space.pipeline).legal


def layers(n, seed=0, cluster="C", per_layer=6):
    """A chain of layers on a cluster, too large to enumerate."""
    rng = np.random.default_rng(seed)
    place = np.arange(n) % per_layer
    forward = rng.uniform(1e-4, 1e-3, per_layer)[place] * rng.uniform(0.8, 1.2, n)
    cut = np.where(place == per_layer - 1, 3e6, 1e7) * rng.uniform(0.8, 1.2, n)
    weights = np.where(place == 2, 3e7, 0.0)
    return Pipeline(chain(forward, 2 * forward, cut, weights), Cluster.parse(cluster))


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_exact_points__on_128_points(stages):
    space = PointSpace.build(layers(700).with_stages(stages))
    assert 100 < len(space.pivots) <= 129
    answer = exact_points(space)
    check(answer, space, answer.cost)
    full = exact_full(space.pipeline.with_stages(stages), incumbent=answer, time_limit=1.0)
    assert full.bound <= answer.cost
    value = space.pipeline.values(answer.plan.cuts, answer.plan.device_cuts)
    assert optimum(space) == pytest.approx(float(value), rel=1e-9)


@pytest.mark.thorough
def test_exact_points__equals_exact_full_where_the_points_are_all_pivots():
    for seed, stages in ((1, 3), (2, 4), (3, 5)):
        pipeline = layers(60, seed)
        space = PointSpace.build(pipeline.with_stages(stages))
        check(exact_points(space), space, exact_full(pipeline.with_stages(stages)).cost)


def test_exact_points__cuts_large_clusters_at_servers():
    pipeline = layers(200, cluster=Cluster.parse("16x8:v100"))
    space = PointSpace.build(pipeline.with_stages(4))
    assert set(np.diff(space.devices)) == {16} or set(np.diff(space.devices)) == {8}
    answer = exact_points(space)
    check(answer, space, answer.cost)


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [0.0, 0.02, 0.1])
def test_exact_points__time_limit_gives_a_plan_and_a_valid_bound(limit):
    space = PointSpace.build(layers(128, cluster="4x8:v100,1Gbps").with_stages(7))
    best = exact_points(space)
    answer = exact_points(space, time_limit=limit)
    assert judge(answer.plan, space.pipeline).legal
    assert space.pipeline.bubble_free <= answer.bound <= best.cost * (1 + 1e-12)
    assert best.cost <= answer.cost * (1 + 1e-12)
    assert (answer.status == "optimal") == (answer.bound == answer.cost)
    if not limit:
        assert answer.status == "feasible"


def test_exact_points__ignores_an_incumbent_that_is_no_plan_of_the_space():
    space = PointSpace.build(layers(300, cluster="A").with_stages(3))
    best = exact_points(space)
    between = np.setdiff1d(np.arange(1, 300), space.pivots)
    for cuts in (between[[10, 20]], [30, 20], [20], [4, 500]):
        plan = replace(best.plan, cuts=tuple(cuts), device_cuts=(5, 9)[: len(cuts)])
        bad = Answer(problem=space.pipeline, plan=plan, cost=1e-9)
        assert exact_points(space, incumbent=bad).cost == pytest.approx(best.cost, rel=1e-12)


def test_exact_points__takes_a_memory_limit_that_hardly_a_plan_meets():
    pipeline = layers(60, cluster="A")
    space = PointSpace.build(pipeline.with_stages(3))
    cuts, device_cuts = space.plan(*even_plan(space))
    size = float(pipeline.stage_memory(cuts, device_cuts).max()) * (1 + 1e-9) / 0.9
    device = replace(pipeline.cluster.device, memory_bytes=size)
    tight = replace(pipeline, cluster=replace(pipeline.cluster, device=device))
    space = PointSpace.build(tight.with_stages(3))
    best = float(tight.length(*space.plan(*all_plans(space))).min())
    check(exact_points(space), space, best)


def test_few_points__are_inner_points_in_order():
    space = PointSpace.build(layers(700).with_stages(4))
    for most in (4, 16, 32, 500):
        some = few_points(space, most)
        assert len(some) <= most and (np.diff(some) > 0).all()
        assert some[0] >= 1 and some[-1] < len(space.pivots) - 1
