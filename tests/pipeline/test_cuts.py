import itertools
from fractions import Fraction

import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import CutSpace, centre_cuts, device_of_pivot, local_minima

# The rules of design.md, sections 7 and 8, once more: exact fractions, plans one by one.


def slow_devices(pipeline):
    """d(p) of the pivots 1..n-1."""
    seconds = [Fraction(x) for x in pipeline.profile.seconds]
    d = pipeline.cluster.devices
    share = {p: round(d * sum(seconds[:p]) / sum(seconds)) for p in range(1, len(seconds))}
    return {p: min(max(x, 1), d - 1) for p, x in share.items()}


def slow_centre(pipeline, stages):
    cluster = pipeline.cluster
    unit = cluster.devices_per_server if cluster.servers >= stages else 1
    return [unit * round(Fraction(k * cluster.devices, stages * unit)) for k in range(1, stages)]


def slow_minima(pipeline):
    """Last pivots of plateaus lower than both neighbours, neighbours being of one device cut."""
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
    device, centre = slow_devices(pipeline), slow_centre(pipeline, stages)
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
            if all(abs(device[p] - c) <= width for p, c in zip(cuts, centre, strict=True))
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
            mask = space.legal([index[p] for p in prefix])
            legal = set(space.pivots[mask].tolist())
            assert legal == {cuts[step] for cuts in plans if cuts[:step] == prefix}
            reached += len(legal)
    assert reached
    for cuts in plans[:3]:
        assert not space.legal([index[p] for p in cuts]).any()
        pivots, devices = space.plan([index[p] for p in cuts])
        assert tuple(pivots) == cuts
        assert devices.tolist() == [device[p] for p in cuts]


@pytest.mark.thorough
@given(toys.pipelines(most=20))
@settings(max_examples=80)
def test_candidates__device_of_pivot_and_minima(pipeline):
    device = device_of_pivot(pipeline)
    assert device[1:-1].tolist() == list(slow_devices(pipeline).values())
    assert local_minima(pipeline).tolist() == slow_minima(pipeline)


@each(
    ("servers", "per_server", "stages", "centre"),
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
def test_candidates__centre(servers, per_server, stages, centre):
    cluster = Cluster.parse(toys.shape(servers, per_server, 1.0, 1.0))
    pipeline = Pipeline(toys.balanced().profile, cluster)
    assert centre_cuts(pipeline, stages).tolist() == centre


def test_candidates__plateau_keeps_its_last_pivot():
    """Bytes before pivots 1..7: 5 3 3 5 2 2 2, all of one device cut."""
    profile = toys.chain([0] * 7 + [1], [0] * 8, [5, 3, 3, 5, 2, 2, 2, 9], [1] * 8)
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(1, 2, 1.0, 1.0)))
    assert local_minima(pipeline).tolist() == [3, 7]


def test_candidates__window_around_the_centre():
    """Eight equal pivots on eight devices, two stages: d(p) = p, the centre is 4."""
    profile = toys.chain([1] * 8, [1] * 8, [1] * 8, [1] * 8)
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(1, 8, 1.0, 1.0)))
    for radius, pivots in ((0, [4]), (1, [3, 4, 5]), (3, [1, 2, 3, 4, 5, 6, 7])):
        space = CutSpace.build(pipeline.with_stages(2), radius, "all")
        assert space.pivots.tolist() == pivots
        assert space.radius == radius


def test_candidates__radius_widens_until_a_plan_fits():
    """A first pivot of 90 % of the seconds: its device cut, 7, is 3 away from the centre, 4."""
    profile = toys.chain([18, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1])
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(1, 8, 1.0, 1.0)))
    space = CutSpace.build(pipeline.with_stages(2), 0, "all")
    assert space.radius == 3
    assert space.pivots.tolist() == [1, 2]


def test_candidates__widening_is_quick_on_a_huge_cluster():
    profile = toys.chain([18, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1])
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(100_000, 100_000, 1.0, 1.0)))
    space = CutSpace.build(pipeline.with_stages(2), 3, "all")
    assert space.radius == 4 * 10**9
    assert space.pivots.tolist() == [1]


def test_candidates__default_stages():
    profile = toys.balanced(4, 8).profile
    for servers, stages in ((1, 2), (2, 2), (3, 3), (4, 4)):
        cluster = Cluster.parse(toys.shape(servers, 4, 1.0, 1.0))
        assert CutSpace.build(Pipeline(profile, cluster)).stages == stages


def test_candidates__default_is_minima_at_radius_3():
    toy = toys.balanced()
    space = CutSpace.build(toy.pipeline)
    assert space.radius == 3
    assert space.pivots.tolist() == [2, 4, 6, 8, 10]


@each(
    ("arguments", "words"),
    [
        ({"stages": 1}, "at least 2 stages, not 1"),
        ({"stages": 0}, "at least 1 stage, not 0"),
        ({"stages": -3}, "at least 1 stage, not -3"),
        ({"stages": 4}, "cluster 1x3 toy has only 3 devices"),
        ({"stages": 13}, "only 12 pivots hold variables.*at most 12"),
        ({"radius": -1}, "radius must be >= 0, not -1"),
        ({"candidates": "some"}, "candidates must be one of minima, all, not 'some'"),
    ],
)
def test_candidates__errors(arguments, words):
    toy = toys.balanced()
    with pytest.raises(InfeasibleError, match=words):
        stages = arguments.pop("stages", 3)
        CutSpace.build(toy.pipeline.with_stages(stages), **arguments)


def test_candidates__no_plan_at_any_radius():
    """One pivot takes all the time: every later pivot has the same device cut."""
    profile = toys.chain([8, 0, 0, 0], [0] * 4, [1] * 4, [1] * 4)
    pipeline = Pipeline(profile, Cluster.parse(toys.shape(1, 4, 1.0, 1.0)))
    with pytest.raises(InfeasibleError, match="the candidates allow no 3 stages"):
        CutSpace.build(pipeline.with_stages(3), 3, "all")
