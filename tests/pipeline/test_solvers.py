"""Exact searches, sweeps, bounds and shapes, compared with every plan of small problems."""

import itertools
import time
from dataclasses import replace

import brute_force as bf
import numpy as np
import pytest
import toys
from cases import each, slow
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs import problem
from parenvs.agents.pipeline import bounds, exact, labels
from parenvs.agents.pipeline.bounds import least_length, lower_bound
from parenvs.agents.pipeline.exact import (
    by_search,
    exact_candidates,
    exact_full,
    exact_points,
    leanest_plan,
    plan_within,
)
from parenvs.agents.pipeline.heuristics import even_plan
from parenvs.agents.pipeline.labels import LabelSearch
from parenvs.agents.pipeline.search import Search, prepare, search
from parenvs.agents.pipeline.shapes import exact_shape
from parenvs.cluster import Cluster
from parenvs.core.plan import Answer, judge
from parenvs.datasets.pipeline.problems import TIERS, draw
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline import formulas, spaces
from parenvs.tasks.pipeline.cut import Board
from parenvs.tasks.pipeline.formulas import simulate
from parenvs.tasks.pipeline.problem import Pipeline, excess_bytes, in_front, tables_of
from parenvs.tasks.pipeline.relocations import mending, relocate, relocated, seconds_ahead
from parenvs.tasks.pipeline.spaces import CutSpace, PointSpace, distinct_pivots, graded
from parenvs.tasks.pipeline.sweeps import fitting_seconds, sweep

CASES = 150


def random_problem(*seed):
    pipeline, stages = bf.random_pipeline(np.random.default_rng(seed))
    return pipeline.with_stages(stages)


def best_of(pipeline):
    return bf.best_of(pipeline, bf.all_plans(pipeline, pipeline.stages))


def layers(n, seed=0, cluster="C", per_layer=6, weights=3e7):
    """A chain of layers on a cluster, too large to enumerate."""
    rng = np.random.default_rng(seed)
    place = np.arange(n) % per_layer
    forward = rng.uniform(1e-4, 1e-3, per_layer)[place] * rng.uniform(0.8, 1.2, n)
    cut = np.where(place == per_layer - 1, 3e6, 1e7) * rng.uniform(0.8, 1.2, n)
    held = np.where(place == 2, weights, 0.0)
    return Pipeline(toys.chain(forward, 2 * forward, cut, held), Cluster.parse(cluster))


def is_plan(pipeline, plan):
    """Whether each stage has a variable and a device."""
    ends = pipeline.variable_sum[[0, *plan[0], len(pipeline.profile)]]
    edges = [0, *plan[1], pipeline.cluster.devices]
    right = len(plan[0]) == pipeline.stages - 1
    return right and (np.diff(ends) > 0).all() and (np.diff(edges) > 0).all()


def check(answer, pipeline, length):
    plan = answer.plan.cuts, answer.plan.device_cuts
    assert answer.status == "optimal" and answer.bound == answer.cost
    assert answer.cost == float(pipeline.length(*plan)) == pytest.approx(length, rel=1e-9)
    assert pipeline.excess_bytes(*plan) <= 0 and is_plan(pipeline, plan)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(0, CASES, 10))
def test_exact_candidates__equals_brute_force(seed):
    for case in range(seed, seed + 10):
        space = bf.random_space(np.random.default_rng([case, 1]))
        best = bf.best_of(space.pipeline, bf.legal_plans(space))
        if best.length == np.inf:
            with pytest.raises(InfeasibleError, match="fits the memory"):
                exact_candidates(space)
        else:
            check(exact_candidates(space), space.pipeline, best.length)


@pytest.mark.thorough
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "seed", [0, 80, *slow(*(seed for seed in range(10, CASES, 10) if seed != 80))]
)
def test_exact_full__equals_brute_force(seed, large, monkeypatch):
    if large:  # a search first
        monkeypatch.setattr(exact, "FEW", 0)
        monkeypatch.setattr(labels, "MANY", 0)
        monkeypatch.setattr(bounds, "BLOCKS", 4)
    for case in range(seed, seed + 10):
        pipeline = random_problem(case, 2)
        best = best_of(pipeline)
        assert leanest_plan(pipeline)[1] == pytest.approx(best.excess, abs=0.5)
        assert (plan_within(pipeline, pipeline.memory_limit) is None) == (best.excess > 0)
        if best.length == np.inf:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_full(pipeline)
        else:
            check(exact_full(pipeline), pipeline, best.length)


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), slack=st.sampled_from([1e-9, 1e-3, 0.1, 1.0]))
def test_label_search__finds_the_optimum_under_any_incumbent(seed, slack):
    pipeline = random_problem(seed)
    best, pivots = best_of(pipeline), np.arange(1, len(pipeline.profile))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "MANY", labels.MANY * (seed % 2))
        found = LabelSearch(pipeline, pivots, best.length * (1 + slack))
        assert found.run()
        assert found.upper == pytest.approx(best.length, rel=1e-9)
        if best.length < np.inf:
            tight = LabelSearch(pipeline, pivots, best.length)
            assert tight.run() and tight.best is None and tight.bound == best.length


@pytest.mark.thorough
def test_exact__ignores_an_incumbent_that_is_no_plan():
    pipeline = layers(300, cluster="A").with_stages(3)
    space = PointSpace.build(pipeline)
    full, points = exact_full(pipeline).cost, exact_points(space)
    between = np.setdiff1d(np.arange(1, 300), space.pivots)
    for cuts in (between[[10, 20]], [30, 20], [20], [4, 500]):
        plan = replace(points.plan, cuts=tuple(cuts), device_cuts=(5, 9)[: len(cuts)])
        bad = Answer(problem=pipeline, plan=plan, cost=1e-9)
        assert exact_full(pipeline, incumbent=bad).cost == pytest.approx(full, rel=1e-12)


@pytest.mark.thorough
@each("limit", [0.0, 0.02, 0.1])
def test_exact__time_limit_gives_a_plan_and_a_valid_bound(limit):
    pipeline = layers(128, cluster="4x8:v100,1Gbps").with_stages(7)
    space = PointSpace.build(pipeline)
    for solve in (lambda **x: exact_points(space, **x), lambda **x: exact_full(pipeline, **x)):
        best, answer = solve(), solve(time_limit=limit)
        assert judge(answer.plan, pipeline).legal
        assert pipeline.bubble_free <= answer.bound <= best.cost * (1 + 1e-12)
        assert best.cost <= answer.cost * (1 + 1e-12)
        assert (answer.status == "optimal") == (answer.bound == answer.cost)


@pytest.mark.thorough
def test_exact__infeasible_says_by_how_much():
    pipeline = layers(240, cluster="A", weights=750e6).with_stages(2)
    excess = leanest_plan(pipeline)[1]
    assert 0 < 30e9 - pipeline.memory_limit < excess < 30.2e9 - pipeline.memory_limit
    line = f"best one needs {excess:,.0f} bytes more than the 28,800,000,000 allowed on its fullest"
    for solve in (exact_full, lambda x: exact_candidates(CutSpace.build(x))):
        with pytest.raises(InfeasibleError, match=line):
            solve(pipeline)
    assert exact_full(pipeline.with_stages(3)).status == "optimal"
    with pytest.raises(InfeasibleError, match="ask for at most 2"):
        exact_full(layers(12, cluster="A").with_stages(3))


@pytest.mark.thorough
def test_exact_full__takes_a_memory_limit_that_a_single_plan_meets():
    pipeline = layers(240, cluster="A", weights=750e6).with_stages(4)
    plan, excess = leanest_plan(pipeline)
    size = (excess + pipeline.memory_limit) * (1 + 1e-9) / 0.9
    device = replace(pipeline.cluster.device, memory_bytes=size)
    tight = replace(pipeline, cluster=replace(pipeline.cluster, device=device))
    answer = exact_full(tight)
    assert answer.status == "optimal" and answer.cost <= tight.length(*plan)


# Points and units.

real_units = spaces.units


def plans_of_points(space):
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


def small_space(seed, monkeypatch):
    """A small problem, all its plans over points, and its space (None if no plan fits).

    A third of them are cut at whole servers, a third at few points.
    """
    rng = np.random.default_rng(seed)
    pipeline, stages = bf.random_pipeline(rng)
    stages = min(stages, 4)
    pipeline = pipeline.with_stages(stages)
    most = len(pipeline.profile) - int(rng.choice([0, 0, 2]))
    if rng.random() < 0.5 and pipeline.cluster.servers >= stages:
        of = int(rng.integers(stages, pipeline.cluster.servers + 1))
        monkeypatch.setattr(spaces, "units", lambda pipeline: real_units(pipeline, of))
    else:
        monkeypatch.setattr(spaces, "units", real_units)
    places = spaces.points(pipeline, most), spaces.units(pipeline)
    plans = plans_of_points(PointSpace(pipeline, *places, np.zeros((0, 0, 0))))
    try:
        return plans, PointSpace.build(pipeline, most)
    except InfeasibleError:
        return plans, None


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, *slow(60, 120, 180, 240)])
def test_exact_points__equals_full_enumeration(first, monkeypatch):
    infeasible, coarse_units = 0, 0
    for seed in range(first, first + 60):
        plans, space = small_space(seed, monkeypatch)
        assert (space is None) == (len(plans[0]) == 0)
        if space is None:
            infeasible += 1
            continue
        pipeline = space.pipeline
        coarse_units += len(space.devices) <= pipeline.cluster.devices
        best = float(pipeline.length(*space.plan(*plans)).min())
        answer = exact_points(space)
        check(answer, pipeline, best)
        assert np.isin(answer.plan.cuts, space.pivots).all()
        assert np.isin(answer.plan.device_cuts, space.devices).all()
    assert infeasible and coarse_units


@pytest.mark.thorough
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_point_space__admits_exactly_what_can_be_completed(seed):
    with pytest.MonkeyPatch.context() as patch:
        plans, space = small_space(seed, patch)
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
    if space is not None:
        plan = space.pipeline.plan(*space.plan(*even_plan(space)))
        assert judge(plan, space.pipeline).legal


# Sweeps, relocations and the search.


def with_ends(pipeline, plan):
    cuts, devices = plan
    return np.r_[0, cuts, len(pipeline.profile)], np.r_[0, devices, pipeline.cluster.devices]


def fitting_plans(pipeline):
    """Every plan, and its seconds; infinite where it does not fit or devices share a sample."""
    plans = bf.all_plans(pipeline, pipeline.stages)
    ends = np.zeros(len(plans[1]), dtype=int), np.full(len(plans[1]), pipeline.cluster.devices)
    groups = np.diff(np.column_stack([ends[0], plans[1], ends[1]]))
    fits = (pipeline.excess_bytes(*plans) <= 0) & pipeline.is_group[groups].all(axis=1)
    return plans, np.where(fits, pipeline.length(*plans), np.inf)


def with_and_without_fractions(*seed):
    pipeline = random_problem(*seed)
    yield pipeline
    whole = replace(pipeline, fractions=False)
    if whole.can_split(whole.stages):
        yield whole


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(40, 400, 40))])
def test_tables__cost_plans_as_the_judge_does_to_the_last_bit(seed):
    for case in range(seed, seed + 40):
        pipeline = random_problem(case, 13)
        plans, tables = bf.all_plans(pipeline, pipeline.stages), tables_of(pipeline)
        for row in np.random.default_rng(case).integers(len(plans[0]), size=20):
            plan = plans[0][row], plans[1][row]
            ends = with_ends(pipeline, plan)
            _, _, core, tail = in_front(tables, *ends, pipeline.stages)
            assert formulas.compose(core, tail) == pipeline.length(*plan)
            assert excess_bytes(tables, *ends) == pipeline.excess_bytes(*plan)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(10, 200, 10))])
def test_sweep__is_exact_where_all_places_are_held(seed):
    for case in range(seed, seed + 10):
        for pipeline in with_and_without_fractions(case, 3):
            best, tables = fitting_plans(pipeline)[1].min(), tables_of(pipeline)
            free = np.ones(pipeline.stages + 1, dtype=np.bool_)
            for start in graded(pipeline)[:3]:
                plan = with_ends(pipeline, start)
                found = sweep(tables, *plan, (20, 1, 20, 1, 0), free, np.inf, 150)
                assert found == pytest.approx(best, rel=1e-9)
                if np.isfinite(best):
                    assert fitting_seconds(tables, *plan) == pytest.approx(best, rel=1e-9)
                    same = [x.copy() for x in plan]
                    assert sweep(tables, *plan, (20, 1, 20, 1, 1), free, found, 150) == found
                    np.testing.assert_array_equal(plan, same)


@pytest.mark.thorough
def test_relocate__moves_a_stage_and_leaves_plans_legal():
    pipeline = layers(300, cluster="B").with_stages(6)
    tables, start = tables_of(pipeline), with_ends(pipeline, graded(pipeline)[0])
    now, ahead = fitting_seconds(tables, *start), seconds_ahead(tables, *start)
    shorter = 0
    for cut, stage in itertools.product(range(1, 6), range(5)):
        cuts, devices = (x.copy() for x in start)
        relocate(tables, cuts, devices, cut, stage)
        assert is_plan(pipeline, (cuts[1:-1], devices[1:-1]))
        kept = np.delete(start[0], cut)
        assert set(kept) <= set(cuts) and kept[stage] < cuts[stage + 1] < kept[stage + 1]
        assert ahead[cut - 1, stage] == pipeline.length(cuts[1:-1], devices[1:-1])
        cuts, devices = (x.copy() for x in start)
        found = relocated(tables, cuts, devices, cut, stage, *mending(tables), now)
        assert fitting_seconds(tables, cuts, devices) == pytest.approx(found, rel=1e-12)
        assert found <= now and ((cuts == start[0]).all() == (found == now))
        shorter += found < now
    assert shorter > 10


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(10, 150, 10))])
def test_by_search__equals_brute_force(seed):
    for case in range(seed, seed + 10):
        for pipeline in with_and_without_fractions(case, 2):
            best = fitting_plans(pipeline)[1].min()
            if best == np.inf:
                with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                    by_search(pipeline)
                continue
            answer = by_search(pipeline)
            assert answer.report.legal
            assert answer.cost == pytest.approx(best, rel=1e-9)
            assert answer.bound <= best * (1 + 1e-12)


@pytest.mark.thorough
def test_search__same_budget_same_plan_and_never_longer():
    pipeline = draw(np.random.default_rng(5)).pipeline
    first, again = (search(pipeline, last=400, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert is_plan(pipeline, first)
    found = Search(pipeline, last=40)
    found.run([first])
    assert found.upper <= float(pipeline.length(*first)) and 40 <= found.sweeps < 100
    assert found.upper == pytest.approx(float(pipeline.length(*found.plan)), rel=1e-12)
    late = search(pipeline, deadline=time.perf_counter())
    assert pipeline.length(*late) <= min(pipeline.length(*plan) for plan in graded(pipeline))


@pytest.mark.slow
def test_search__most_stages_and_devices():
    ranges = replace(TIERS["s64"], pivots=(1000, 1000), devices=(1024, 1024))
    pipeline = draw(np.random.default_rng(0), ranges=ranges).pipeline
    servers = pipeline.cluster.devices_per_server
    large = replace(pipeline, cluster=replace(pipeline.cluster, servers=131_072 // servers))
    prepare()
    begin = time.process_time()
    plan = search(large, deadline=time.perf_counter() + 1)
    assert time.process_time() - begin < 1.5
    assert is_plan(large, plan) and large.excess_bytes(*plan) <= 0
    least = min(float(large.length(*start)) for start in graded(large))
    assert float(large.length(*plan)) < 0.9 * least


# Bounds.


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(0, 200, 50), *slow(*range(200, 2000, 50))])
def test_lower_bound__is_below_the_shortest_of_all_plans(seed, monkeypatch):
    """Pivots apart, and in three blocks; of the problems with a plan, most have a tight bound."""
    shares = []
    for case in range(seed, seed + 50):
        pipeline = random_problem(case, 11)
        best = best_of(pipeline).length
        if best == np.inf:
            continue
        for blocks in (bounds.MOST_BLOCKS, 3):
            monkeypatch.setattr(bounds, "MOST_BLOCKS", blocks)
            bound = lower_bound(pipeline, 1.5 * best)
            assert least_length(pipeline) * (1 - 1e-9) <= bound <= best * (1 + 1e-12)
            shares.append(bound / best)
        monkeypatch.undo()
    assert np.median(shares[::2]) > 0.6  # over 0.7 in 36 of the 40 groups


# Shapes.


def every_shape(pipeline, fewest):
    """(length, devices, stages) of the shortest plan of each shape that has one that fits."""
    found = []
    holders = int(pipeline.variable_sum[-1])
    for cluster in pipeline.cluster.parts():
        for stages in range(fewest, min(cluster.devices, holders) + 1):
            shape = pipeline.with_stages(stages, cluster)
            best = best_of(shape)
            if best.length < np.inf:
                assert best.length >= least_length(shape) * (1 - 1e-9)
                found.append((best.length, cluster.devices, stages))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("fewest", [1, 2])
@pytest.mark.parametrize("seed", [20, 40, *slow(0, 10, 30, 50)])
def test_exact_shape__equals_brute_force(seed, fewest):
    for case in range(seed, seed + 10):
        pipeline, _ = bf.random_pipeline(np.random.default_rng([case, 7]))
        best = every_shape(pipeline, fewest)
        if not best:
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_shape(pipeline, fewest=fewest)
            continue
        choice = exact_shape(pipeline, fewest=fewest)
        answer, shape = choice.answer, choice.answer.problem
        check(answer, shape, min(best)[0])
        assert shape.stages >= fewest and answer.report.legal
        lengths = {devices: [b[0] for b in best if b[1] == devices] for _, devices, _ in best}
        for tried in choice.tried:  # the table is right about the other devices
            shortest = min(lengths.get(tried.devices, [np.inf]))
            assert tried.bound <= shortest * (1 + 1e-9)
            assert tried.length >= shortest * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("fractions", [True, False])
def test_exact_shape__limits_hold_on_many_devices(fractions):
    pipeline = replace(problem("t5-11b", cluster="128x8:h100", stages=1), fractions=fractions)
    prepare()
    begin = time.perf_counter()
    answer = exact_shape(pipeline, time_limit=5).answer
    assert time.perf_counter() - begin < 8
    assert answer.report.legal and answer.bound < answer.cost < (0.14 if fractions else 0.3)


def test_exact_shape__leaves_devices_idle():
    """More servers only add transfers and all-reduces, unless the network is fast."""
    profile = toys.chain([1.0] * 6, [1.0] * 6, [50.0] * 6, [100.0] * 6)
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(4, 2, 1000.0, 1.0)), 1)
    choice = exact_shape(pipeline)
    assert choice.answer.problem.cluster.devices == 2 < choice.devices == 8
    assert choice.answer.cost < min(t.length for t in choice.tried if t.devices > 2)
    assert choice.answer.plan.cluster == pipeline.cluster.part(2)
    fast = replace(pipeline.cluster, inter_bw=1e9, intra_bw=1e9)
    assert exact_shape(replace(pipeline, cluster=fast)).answer.problem.cluster.devices == 8


def test_exact_shape__more_stages_than_variables():
    profile = toys.chain([1] * 4, [1] * 4, [1] * 4, [1, 0, 0, 0])
    pipeline = Pipeline(profile, Cluster.parse("A"), 1)
    assert exact_shape(pipeline).answer.problem.stages == 1
    with pytest.raises(InfeasibleError, match="only 1 pivots hold variables"):
        exact_shape(pipeline, fewest=2)


# One composition.


def figures_of(pipeline):
    """Seconds of a step by all that compute or bound them, by name."""
    space = CutSpace.build(pipeline)
    points = PointSpace.build(pipeline)
    plan = space.plan([int(np.flatnonzero(bf.legal(space, []))[0])])
    label = LabelSearch(pipeline, distinct_pivots(pipeline))
    label.run()
    report = pipeline.report(pipeline.plan(*plan))
    return {
        "length": float(pipeline.length(*plan)),
        "report": report.length_seconds,
        "simulation": float(simulate(report.times, pipeline.micro_batches).length),
        "kernel": float(Board(space).outcome(np.zeros((1, 1), dtype=np.int64))[0, 0]),
        "label search": label.upper,
        "exact": exact_full(pipeline).cost,
        "points": exact_points(points).cost,
        "candidates": exact_candidates(space).cost,
        "search": by_search(pipeline).cost,
        "least length": least_length(pipeline),
        "relaxation": lower_bound(pipeline, exact_full(pipeline).cost),
        "bound": exact_full(pipeline, time_limit=0.0).bound,
        "shapes": exact_shape(pipeline, [pipeline.cluster]).answer.cost,
    }


@pytest.mark.thorough
def test_compose__moves_report_simulation_solvers_and_bounds_alike(monkeypatch):
    """Seconds added to every step, in the one composition, leave all plans as they are."""
    pipeline = layers(60).with_stages(2)
    before = figures_of(pipeline)
    extra = 0.5 * before["exact"]
    monkeypatch.setattr(formulas, "STEP_SECONDS", extra)
    for name, seconds in figures_of(pipeline).items():
        # The relaxation takes relative steps, which are greater for greater seconds.
        most = 2 * bounds.STEP if name in ("relaxation", "bound") else 1e-9
        assert seconds == pytest.approx(before[name] + extra, rel=most), name
