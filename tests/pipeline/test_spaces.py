"""Search spaces: candidates of cuts, points and units, by trying all."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import brute_force as bf
import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.graph.flow import Reads
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import (
    CutSpace,
    PointSpace,
    center_cuts,
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


def test_distinct_pivots__every_column_counts():
    """Neighbors that differ in one thing alone: each is a place of its own to cut at."""
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


@pytest.mark.thorough
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
        if len(legal) <= max_points:
            assert np.array_equal(found, legal)
    if len(legal) > 3 * max_points:
        assert sizes[0] < sizes[2]
        spread = coarse_pivots(pipeline, legal, max_points)  # transfers take next to no time
        assert np.isin(spread, found).all()


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


@pytest.mark.thorough
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


# The rules of design.md, sections 7 and 8, once more: exact fractions, plans one by one.


def slow_devices(pipeline):
    """d(p) of the pivots 1..n-1."""
    seconds = [Fraction(x) for x in pipeline.profile.seconds]
    d = pipeline.cluster.devices
    share = {p: round(d * sum(seconds[:p]) / sum(seconds)) for p in range(1, len(seconds))}
    return {p: min(max(x, 1), d - 1) for p, x in share.items()}


def slow_center(pipeline, stages):
    cluster = pipeline.cluster
    unit = cluster.devices_per_server if cluster.servers >= stages else 1
    return [unit * round(Fraction(k * cluster.devices, stages * unit)) for k in range(1, stages)]


def slow_minima(pipeline):
    """Last pivots of plateaus lower than both neighbors, neighbors being of one device cut."""
    crossing, device = pipeline.profile.cut_bytes, slow_devices(pipeline)
    kept = []
    for _, group in itertools.groupby(device, key=device.get):
        plateaus = [list(x) for _, x in itertools.groupby(group, key=lambda p: crossing[p - 1])]
        heights = [crossing[plateau[0] - 1] for plateau in plateaus]
        for i, plateau in enumerate(plateaus):
            around = heights[max(i - 1, 0) : i] + heights[i + 1 : i + 2]
            if all(heights[i] < x for x in around):
                kept.append(plateau[-1])
    return kept


def slow_space(pipeline, stages, radius, candidates):
    """(radius in force, every legal plan); no plans if there are none at any radius."""
    pivots = slow_minima(pipeline) if candidates == "minima" else range(1, len(pipeline.profile))
    device, center = slow_devices(pipeline), slow_center(pipeline, stages)
    has_variable = pipeline.profile.parameter_bytes > 0
    everything = [
        cuts
        for cuts in itertools.combinations(pivots, stages - 1)
        if all(device[a] < device[b] for a, b in itertools.pairwise(cuts))
        and all(
            has_variable[a:b].any() for a, b in itertools.pairwise((0, *cuts, len(has_variable)))
        )
    ]
    for width in range(radius, max(radius, pipeline.cluster.devices) + 1):
        plans = [
            cuts
            for cuts in everything
            if all(abs(device[p] - c) <= width for p, c in zip(cuts, center, strict=True))
        ]
        if plans:
            return width, plans
    return None, []


def made(pipeline, stages, *arguments):
    try:
        return CutSpace.build(pipeline.with_stages(stages), *arguments)
    except InfeasibleError:
        return None


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=150)
def test_candidates__mask_is_what_can_be_completed(data):
    pipeline = data.draw(toys.pipelines(least=3, most=14))
    stages = data.draw(st.integers(2, 4))
    radius = data.draw(st.integers(0, 4))
    candidates = data.draw(st.sampled_from(["minima", "all"]))
    holders = int((pipeline.profile.parameter_bytes > 0).sum())
    width, plans = slow_space(pipeline, stages, radius, candidates)
    space = made(pipeline, stages, radius, candidates)
    if stages > min(holders, pipeline.cluster.devices) or not plans:
        assert space is None
        return
    assert space is not None
    assert space.radius == width
    assert (np.diff(space.pivots) > 0).all()
    device = slow_devices(pipeline)
    assert [device[p] for p in space.pivots] == space.devices.tolist()
    index = {int(p): i for i, p in enumerate(space.pivots)}
    reached = 0
    for step in range(stages - 1):
        for prefix in sorted({cuts[:step] for cuts in plans}):
            mask = bf.legal(space, [index[p] for p in prefix])
            legal = set(space.pivots[mask].tolist())
            assert legal == {cuts[step] for cuts in plans if cuts[:step] == prefix}
            reached += len(legal)
    assert reached
    for cuts in plans[:3]:
        assert not bf.legal(space, [index[p] for p in cuts]).any()
        pivots, devices = space.plan([index[p] for p in cuts])
        assert tuple(pivots) == cuts
        assert devices.tolist() == [device[p] for p in cuts]


@each(
    ("servers", "per_server", "stages", "center"),
    [
        (4, 8, 4, [8, 16, 24]),
        (3, 8, 3, [8, 16]),
        (4, 8, 2, [16]),
        (4, 8, 3, [8, 24]),  # 10.67 and 21.33 to the nearest servers
        (5, 2, 3, [4, 6]),  # 3.33 and 6.67
        (2, 8, 3, [5, 11]),  # too few servers
        (1, 8, 2, [4]),
        (1, 6, 4, [2, 3, 4]),  # halves to even: 1.5, 3, 4.5
    ],
)
def test_candidates__centre(servers, per_server, stages, center):
    cluster = Cluster.parse(toys.shape(servers, per_server, 1.0, 1.0))
    pipeline = Pipeline(toys.balanced().profile, cluster)
    assert center_cuts(pipeline, stages).tolist() == center


@each(
    ("arguments", "words"),
    [
        ({"stages": 1}, "at least 2 stages, not 1"),
        ({"stages": 0}, "stages must be a whole number from 1, not 0"),
        ({"stages": -3}, "stages must be a whole number from 1, not -3"),
        ({"stages": 4}, "cluster 1x3 toy has only 3 devices"),
        ({"stages": 13}, "only 12 pivots hold variables.*at most 12"),
        ({"radius": -1}, "radius must be >= 0, not -1"),
        ({"candidates": "some"}, "unknown candidates 'some'; known: minima, all"),
    ],
)
def test_candidates__errors(arguments, words):
    toy = toys.balanced()
    with pytest.raises(InfeasibleError, match=words):
        stages = arguments.pop("stages", 3)
        CutSpace.build(toy.pipeline.with_stages(stages), **arguments)
