"""Points: which pivots become points, and on how few devices their stages fit."""

import itertools
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import toys
from cases import each, slow
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.agents.pipeline.exact import exact_full, exact_points
from parenvs.cluster import Cluster
from parenvs.core.registry import problem
from parenvs.errors import InfeasibleError
from parenvs.graph.flow import Reads
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.formulas import stage_bytes
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import (
    PointSpace,
    Stages,
    coarse_pivots,
    distinct_pivots,
    network_pivots,
    points,
    units,
)


def fewest_devices(pipeline, first, end, left):
    """The fewest devices of a stage by trying all of them, in the order of their number."""
    if not (pipeline.profile.parameter_bytes[first:end] > 0).any():
        return math.inf
    for group in range(1, pipeline.cluster.devices + 1):
        size = pipeline.memory_of(np.array(first), np.array(end), group, np.array(left))
        if size <= pipeline.memory_limit:
            return group
    return math.inf


def least_devices(pipeline, pivots, left):
    """The fewest devices of all stages, as a square; infinite where there is no stage."""
    every = Stages(pipeline, pivots)
    result = np.full((every.count, every.count), np.inf)
    result[every.first, every.end] = every.fewest(left, slice(None))
    return result


def check_least_devices(pipeline, left):
    pivots = np.arange(len(pipeline.profile) + 1)
    wanted = np.full((len(pivots), len(pivots)), np.inf)
    for first, end in itertools.combinations(pivots.tolist(), 2):
        wanted[first, end] = fewest_devices(pipeline, first, end, left)
    np.testing.assert_array_equal(least_devices(pipeline, pivots, left), wanted)


@pytest.mark.thorough
@given(toys.pipelines(most=6), st.integers(1, 4))
@settings(max_examples=100)
def test_least_devices__is_the_first_that_fits(pipeline, left):
    check_least_devices(pipeline, left)


def test_least_devices__decides_to_the_last_bit():
    """Memory limits around what a stage needs on some number of devices: quotients round."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        profile = toys.chain([1, 1], [1, 1], [0, 0], rng.uniform(0, 9, 2), rng.uniform(0, 99, 2))
        cluster = Cluster.parse("2x8:v100")
        pipeline = Pipeline(profile, cluster, 2, recompute="none")
        group = rng.integers(1, 17)
        needed_bytes = pipeline.memory_of(np.array(0), np.array(2), group, np.array(1))
        size = float(needed_bytes) / 0.9
        for _ in range(rng.integers(0, 3)):
            size = math.nextafter(size, rng.choice([0.0, math.inf]))
        device = replace(cluster.device, memory_bytes=size)
        check_least_devices(replace(pipeline, cluster=replace(cluster, device=device)), 1)


@pytest.mark.parametrize(
    ("weights", "activations", "limit"),
    [
        (2.130340242187113, 74.1574509616297, 7.07417030629576),  # 15 by the rounded quotient
        (0.7437228007197543, 38.248855872753104, 3.293646525569961),
        (5.0, 0.0, 5.0),  # nothing is left, and nothing is needed
        (5.0, 1.0, 5.0),
        (5.0, 0.0, 4.0),
        (5.0, 0.5, 5.25),
    ],
)
def test_least_devices__quotients_that_round(monkeypatch, weights, activations, limit):
    """Bytes given outright: the judge's own formula says which number is the first that fits."""
    monkeypatch.setattr(Pipeline, "weight_bytes", lambda *_: np.array([weights]))
    for name in ("kept_bytes", "recomputed_bytes"):
        monkeypatch.setattr(formulas, name, lambda *_: np.array([activations]))
    monkeypatch.setattr(Pipeline, "memory_limit", limit)
    pipeline = Pipeline(even_chain(2), Cluster.parse("2x8:v100"))
    fitting = (k for k in range(1, 17) if stage_bytes(weights, activations, k) <= limit)
    found = least_devices(pipeline, np.array([0, 2]), 1)
    assert found[0, 1] == next(fitting, math.inf)


def test_distinct_pivots__are_the_last_of_each_run():
    """Pivots 1, 2, 3 cut alike, 4 alone, and 5 and 6 as the end of the chain does."""
    costs = [1, 0, 0, 1, 1, 0, 0]
    pipeline = Pipeline(toys.chain(costs, costs, [3, 3, 3, 2, 0, 0, 0], costs), Cluster.parse("A"))
    assert distinct_pivots(pipeline).tolist() == [3, 4, 6]
    first = Pipeline(toys.chain([0, 0, 1], [0, 0, 1], [2, 2, 0], [1, 1, 1]), Cluster.parse("A"))
    assert distinct_pivots(first).tolist() == [1, 2]  # each holds a variable


def test_distinct_pivots__every_column_counts():
    """Neighbours that differ in one thing alone: each is a place of its own to cut at."""
    zero, one = [0, 0, 0, 0], [1, 1, 1, 1]
    columns = {"forward": zero, "backward": zero, "cut_bytes": zero, "parameter_bytes": zero}

    def distinct(recompute="full", resident=None, frozen=None, tied=(), **changed):
        made = toys.chain(**{**columns, **changed}, resident_bytes=resident)
        made = replace(made, frozen_bytes=None if frozen is None else np.array(frozen, float))
        made = replace(made, tied=tied)
        rule = "held" if tied else "once"
        pipeline = Pipeline(made, Cluster.parse("A"), recompute=recompute, tied=rule)
        return distinct_pivots(pipeline).tolist()

    base = {"forward": [1, 0, 0, 1]}
    assert distinct(**base) == [3]
    assert distinct(forward=[1, 0, 1, 1]) == [2, 3]
    assert distinct(**base, backward=[0, 0, 1, 0]) == [2, 3]
    assert distinct(**base, parameter_bytes=[0, 0, 5, 0]) == [2, 3]
    assert distinct(**base, cut_bytes=[7, 3, 3, 0]) == [1, 3]
    assert distinct(**base, frozen=[0, 0, 4, 0]) == [2, 3]
    assert distinct("none", **base, resident=[0, 0, 4, 0]) == [2, 3]
    assert distinct("full", **base, resident=[0, 0, 4, 0]) == [3]
    assert distinct("none", **base, resident=one) == [1, 2, 3]
    assert distinct(**base, tied=(Reads((0, 2), 5.0, True),)) == [2, 3]


def slow_coarse(pipeline, pivots, most):
    """One pivot for each bin: the first of those before which fewest bytes cross."""
    seconds, weights = pipeline.seconds_sum, pipeline.parameter_sum
    bins = {}
    for rank, pivot in enumerate(pivots):
        first, second = (c[pivot] / c[-1] if c[-1] else 0.0 for c in (seconds, weights))
        chosen = min(int((rank / len(pivots) + first + second) / 3 * most), most - 1)
        known = bins.get(chosen)
        if known is None or pipeline.cut_before[pivot] < pipeline.cut_before[known]:
            bins[chosen] = pivot
    return sorted(bins.values())


@each("seed", range(30))
def test_coarse_pivots__the_smallest_cut_of_each_bin(seed):
    rng = np.random.default_rng(seed)
    n, most = int(rng.integers(6, 60)), int(rng.integers(1, 12))
    weights = rng.integers(0, 5, n) * (seed % 3 > 0)  # some chains hold no variable
    profile = toys.chain(rng.random(n) + 0.1, rng.random(n), rng.integers(0, 6, n), weights)
    pipeline = Pipeline(profile, Cluster.parse("A"))
    pivots = np.sort(rng.choice(np.arange(1, n), int(rng.integers(2, n)), replace=False))
    found = coarse_pivots(pipeline, pivots, most)
    assert found.tolist() == slow_coarse(pipeline, pivots.tolist(), most)
    assert 1 <= len(found) <= most


def test_points__as_many_as_are_asked_for():
    """All pivots if they suffice, then the distinct ones, then the coarse ones."""
    assert len(points(Pipeline(even_chain(400), Cluster.parse("A")))) - 1 == 128
    costs = np.repeat([1.0, 0.0], [6, 6])[np.argsort(np.arange(12) % 2, kind="stable").argsort()]
    pipeline = Pipeline(toys.chain(costs, costs, [2] * 11 + [0], costs), Cluster.parse("A"))
    distinct = distinct_pivots(pipeline)
    assert len(distinct) == 6
    assert points(pipeline, 12).tolist() == points(pipeline).tolist() == list(range(13))
    for most in (11, 8, 7):
        assert points(pipeline, most).tolist() == [0, *distinct, 12]
    for most in (6, 3):
        assert points(pipeline, most).tolist() == [
            0, *coarse_pivots(pipeline, distinct, most - 1), 12,
        ]  # fmt: skip
        assert len(points(pipeline, most)) - 1 <= most


def slow_network(pipeline, legal, max_points):
    """Up to a half are the cheapest of eight times as many bins, as a transfer is to a stage."""
    cut = pipeline.cut_before
    spread = slow_coarse(pipeline, legal.tolist(), max_points)
    transfer = np.median(cut[spread]) / pipeline.cluster.inter_bw  # once there, once back
    both, stage = 2 * transfer, pipeline.seconds_sum[-1] / pipeline.cluster.devices
    cheap = round(max_points / 2 * both / (stage + both))
    chosen = slow_coarse(pipeline, legal.tolist(), max_points - cheap)
    fine = set(slow_coarse(pipeline, legal.tolist(), 8 * max_points)) - set(chosen)
    cheapest = sorted(fine, key=lambda pivot: cut[pivot])
    return sorted(chosen + cheapest[: max_points - len(chosen)])


@each("seed", range(40))
def test_network_pivots__legal_cuts_and_the_cheapest_of_them(seed):
    """Pivots with a variable on both sides alone; the slower the network, the more cheap ones."""
    rng = np.random.default_rng(seed)
    n, max_points = int(rng.integers(20, 300)), int(rng.integers(4, 40))
    weights = rng.integers(0, 5, n) * (rng.random(n) < 0.7)
    cut_bytes = rng.permutation(n) + 1.0
    profile = toys.chain(rng.random(n) + 0.1, rng.random(n), cut_bytes, weights)
    held = np.flatnonzero(weights)
    legal = np.arange(held[0] + 1, held[-1] + 1)
    sizes = []
    for speed in (1e-3, 1.0, 1e3):  # bytes/s, for transfers of n / 2 bytes
        cluster = replace(Cluster.parse("2x1:v100"), inter_bw=speed)
        pipeline = Pipeline(profile, cluster)
        found = network_pivots(pipeline, np.arange(1, n), max_points)
        assert np.isin(found, legal).all()
        assert len(found) <= max_points
        assert legal[pipeline.cut_before[legal].argmin()] in found
        sizes.append(pipeline.cut_before[found].mean())
        if len(legal) > max_points:
            assert found.tolist() == slow_network(pipeline, legal, max_points)
        if len(legal) <= max_points:
            assert np.array_equal(found, legal)
    if len(legal) > 3 * max_points:
        assert sizes[0] < sizes[2]
        spread = coarse_pivots(pipeline, legal, max_points)  # transfers take next to no time
        assert np.isin(spread, found).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cluster", "stages"), [("2x8:v100,0.1Gbps", 2), *slow(("4x8:v100,1Gbps", 4))]
)
def test_network_pivots__keep_the_best_cuts_of_a_head(cluster, stages):
    """On a slow network Mixer is best cut around its head, where even points have one cut."""
    pipeline = problem("mixer-l16", cluster=cluster, stages=stages)
    best = exact_full(pipeline).cost
    by_chain, by_network = (
        exact_points(PointSpace.build(pipeline, by_network=x)).cost for x in (False, True)
    )
    assert by_chain > 1.5 * best
    assert by_network == pytest.approx(best, rel=1e-4)


@each(
    ("cluster", "most", "expected"),
    [
        ("8x8:v100", 64, range(65)),
        ("9x8:v100", 64, range(0, 73, 8)),  # servers
        ("65x8:v100", 64, [*range(0, 520, 16), 520]),  # two servers each
        ("8x16:v100", 64, range(0, 129, 16)),  # as many servers as a plan may have stages
        ("7x16:v100", 64, range(0, 113, 2)),  # parts of servers
        ("1x128:v100", 64, range(0, 129, 2)),
        ("1x65:v100", 64, [*range(0, 65, 2), 65]),
        ("1x3:v100", 1, [0, 3]),
        ("4x4:v100", 3, [0, 8, 16]),
        ("4x4:v100", 4, [0, 4, 8, 12, 16]),
        ("3x4:v100", 3, [0, 4, 8, 12]),
        ("3x4:v100", 4, [0, 3, 6, 9, 12]),
        ("3x5:v100", 5, [0, 3, 6, 9, 12, 15]),
        ("5x2:v100", 5, [0, 2, 4, 6, 8, 10]),
        ("9x2:v100", 9, range(0, 19, 2)),
        ("8x2:v100", 10, range(0, 17, 2)),
        ("7x2:v100", 10, range(0, 15, 2)),
        ("7x3:v100", 11, [*range(0, 21, 2), 21]),
        ("5x2:v100", 4, [0, 4, 8, 10]),
    ],
)
def test_units__devices_parts_of_servers_or_servers(cluster, most, expected):
    pipeline = Pipeline(toys.dense().profile, Cluster.parse(cluster))
    assert units(pipeline, most).tolist() == list(expected)
    assert most == 64 or len(units(pipeline, most)) - 1 <= most
    if most == 64:
        assert units(pipeline).tolist() == list(expected)


def slow_latest(pipeline, pivots, devices):
    """``PointSpace.latest`` by trying every unit that a stage can start on and end before."""
    m, u, stages = len(pivots) - 1, len(devices) - 1, pipeline.stages
    latest = np.full((stages + 1, m + 1, m + 1), -1)
    latest[0, m, m] = u
    for k in range(1, stages + 1):
        for i, j in itertools.combinations(range(m + 1), 2):
            if k == stages and i > 0:
                continue
            first, end = int(pivots[i]), int(pivots[j])
            fewest = fewest_devices(pipeline, first, end, k)
            last = latest[k - 1, j].max()
            fits = [x for x in range(u + 1) if last >= 0 and devices[last] - devices[x] >= fewest]
            latest[k, i, j] = max(fits, default=-1)
    return latest


@given(toys.pipelines(most=6), st.integers(2, 4))
@settings(max_examples=40)
def test_point_space__latest_units_by_trying_all(pipeline, stages):
    pipeline = pipeline.with_stages(stages)
    try:
        space = PointSpace.build(pipeline)
    except InfeasibleError as error:
        if "fits the memory" in str(error):
            pivots, devices = points(pipeline), units(pipeline)
            assert slow_latest(pipeline, pivots, devices)[stages, 0].max() < 0
        return
    np.testing.assert_array_equal(space.latest, slow_latest(pipeline, space.pivots, space.devices))


def even_chain(n):
    return toys.chain([1] * n, [1] * n, [1] * (n - 1) + [0], [1] * n)


@each(
    ("pivots", "cluster", "stages", "words"),
    [
        (9, "1x9:v100", 8, ""),
        (9, "1x9:v100", 9, ""),
        (4, "1x2:v100", 2, ""),
        (4, "1x8:v100", 1, "at least 2 stages, not 1"),
        (4, "1x2:v100", 3, "only 2 devices"),
        (2, "1x8:v100", 3, "only 2 pivots"),
    ],
)
def test_point_space__number_of_stages(pivots, cluster, stages, words):
    pipeline = Pipeline(even_chain(pivots), Cluster.parse(cluster), stages)
    if words:
        with pytest.raises(InfeasibleError, match=words):
            PointSpace.build(pipeline)
    else:
        assert PointSpace.build(pipeline).stages == stages


def test_point_space__fewer_units_than_stages(monkeypatch):
    """Devices there are enough, but only two units of them."""
    monkeypatch.setattr("parenvs.tasks.pipeline.spaces.units", lambda pipeline: np.array([0, 4, 8]))
    assert PointSpace.build(Pipeline(even_chain(5), Cluster.parse("2x4:v100"), 2)).stages == 2
    with pytest.raises(InfeasibleError, match="one for each of 2 units"):
        PointSpace.build(Pipeline(even_chain(5), Cluster.parse("2x4:v100"), 3))


def test_point_space__memory_may_be_met_exactly():
    """Bytes of the last pivot as the limit: the stage fits, and it is legal to end before it."""
    profile = replace(even_chain(3), resident_bytes=np.array([7.0, 5.0, 3.0]))
    pipeline = Pipeline(profile, Cluster.parse("1x4:v100"), 2, recompute="none")
    size = float(pipeline.memory_of(np.array(0), np.array(2), 2, np.array(2)))
    for memory, fits in ((size, True), (math.nextafter(size, 0), False)):
        device = replace(pipeline.cluster.device, memory_bytes=memory / 0.9)
        tight = replace(pipeline, cluster=replace(pipeline.cluster, device=device))
        assert tight.memory_limit == memory
        space = PointSpace.build(tight)
        assert space.legal_units(0, 0, 0, 2).tolist() == [False, False, fits, True, False]


def test_point_space__cannot_be_changed():
    space = PointSpace.build(Pipeline(even_chain(4), Cluster.parse("1x4:v100"), 2))
    with pytest.raises(FrozenInstanceError):
        space.latest = None


def test_points__at_most_128():
    rng = np.random.default_rng(0)
    for n, most in ((128, 128), (129, 127), (300, 128)):
        times = rng.random(n) + 0.1
        pipeline = Pipeline(toys.chain(times, times, times, times), Cluster.parse("A"))
        assert len(points(pipeline)) - 1 <= most
    assert len(points(Pipeline(even_chain(128), Cluster.parse("A")))) == 129


def test_point_space__the_last_unit_is_early_enough():
    """Two devices for two stages: the first must start on the very first."""
    space = PointSpace.build(Pipeline(even_chain(3), Cluster.parse("1x2:v100"), 2))
    assert space.legal_points(0, 0, 0).tolist() == [False, True, True, False]
    assert space.legal_points(0, 0, 1).tolist() == [False] * 4
    assert space.legal_units(0, 0, 0, 1).tolist() == [False, True, False]
    assert space.latest[0].tolist() == [[-1] * 4] * 3 + [[-1, -1, -1, 2]]


def drawn(seed):
    """A small problem in which about half of the stages fit, and fewer on one device."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    times, cuts, held = rng.random(n) + 0.1, rng.integers(0, 9, n), rng.integers(0, 9, n)
    weights = np.maximum(rng.integers(-2, 6, n), 0)
    weights[[0, -1]] = 1
    profile = toys.chain(times, times, cuts, weights, held)
    cluster = Cluster.parse(f"{rng.integers(1, 3)}x{rng.integers(2, 4)}:v100")
    recompute = str(rng.choice(["full", "none"]))
    pipeline = Pipeline(profile, cluster, 2, micro_batches=3, recompute=recompute)
    size = pipeline.memory_of(np.array(0), np.array(n - 1), 2, np.array(2))
    device = replace(cluster.device, memory_bytes=float(size) / 0.9)
    return replace(pipeline, cluster=replace(cluster, device=device))


@each("seed", range(8))
def test_least_devices__of_drawn_problems(seed):
    for left in (1, 2):
        check_least_devices(drawn(seed), left)


@each("seed", range(8))
def test_point_space__of_drawn_problems(seed):
    """Latest units, and the choices that they leave, by trying all."""
    for stages in (2, 3):
        pipeline = drawn(seed).with_stages(stages)
        pivots, devices = points(pipeline), units(pipeline)
        latest = slow_latest(pipeline, pivots, devices) if stages < len(devices) else None
        if latest is None or latest[stages, 0].max() < 0:
            with pytest.raises(InfeasibleError):
                PointSpace.build(pipeline)
            continue
        space = PointSpace.build(pipeline)
        np.testing.assert_array_equal(space.latest, latest)
        for unit, end in itertools.product(range(len(devices)), range(1, len(pivots))):
            first = 0 if stages == 2 else 1
            left = stages - first
            assert space.legal_points(first, first, unit)[end] == (latest[left, first, end] >= unit)
            last = latest[left - 1, end].max()
            wanted = []
            for u in range(len(devices)):
                group = np.array(devices[u] - devices[unit])
                ends = (np.array(pivots[first]), np.array(pivots[end]))
                wanted.append(
                    unit < u <= last
                    and pipeline.memory_of(*ends, group, np.array(left)) <= pipeline.memory_limit
                )
            if latest[left, first, end] >= unit:
                assert space.legal_units(first, first, unit, end).tolist() == wanted
