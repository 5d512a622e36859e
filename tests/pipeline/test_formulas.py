"""``parenvs.tasks.pipeline.formulas`` against an independent second writing and against itself."""

import itertools

import numpy as np
import pytest
import toys
from cases import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from second_writing import slow_length, slow_memory, slow_times

from parenvs import cluster as network
from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.errors import ClusterError
from parenvs.tasks.pipeline import formulas

try:
    import torch
except ImportError:
    torch = None

KINDS = ["numpy", *(["torch"] if torch is not None else [])]
kinds = pytest.mark.parametrize("kind", ["numpy", *slow(*KINDS[1:])])


def array(kind, values):
    values = np.asarray(values)
    return torch.tensor(values) if kind == "torch" else values


def number(values):
    return np.asarray(values).tolist()


def boundaries(pipeline, plans):
    """(S+1, k) pivots and devices of plans, given as lists of (cuts, device cuts)."""
    ends = ((0, len(pipeline.profile)), (0, pipeline.cluster.devices))
    return (
        np.array([[first, *plan[axis], last] for plan in plans]).T
        for axis, (first, last) in enumerate(ends)
    )


def seconds_of(kind, pipeline, plans):
    """``formulas.stage_seconds`` of plans of as many stages, from the chain's prefix sums."""
    p, d = boundaries(pipeline, plans)
    cluster = pipeline.cluster
    first, end = array(kind, d[:-1]), array(kind, d[1:])
    rates = [array(kind, float(x)) for x in (cluster.intra_bw, cluster.inter_bw)]

    def bandwidth(first, end):
        same = network.same_server(first, end, cluster.devices_per_server)
        return network.group_bandwidth(same, *rates)

    return formulas.stage_seconds(
        *(
            array(kind, values[p])
            for values in (pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum)
        ),
        crossing=array(kind, pipeline.cut_before[p[1:-1]]),
        group=end - first,
        group_bandwidth=bandwidth(first, end),
        link_bandwidth=bandwidth(first[:-1], end[1:]),
        sync=pipeline.sync,
    )


@st.composite
def problems(draw):
    """A pipeline and three plans of it, of as many stages."""
    pipeline = draw(toys.pipelines(least=3))
    stages = draw(st.integers(2, min(5, len(pipeline.profile), pipeline.cluster.devices)))
    return pipeline, [draw(toys.plans(pipeline, stages)) for _ in range(3)]


@pytest.mark.thorough
@kinds
@given(problems())
@settings(max_examples=100)
def test_seconds__against_the_design(kind, problem):
    pipeline, plans = problem
    seconds = seconds_of(kind, pipeline, plans)
    lengths = formulas.length(seconds, pipeline.micro_batches)
    for k, plan in enumerate(plans):
        forward, backward, reduce = slow_times(pipeline, *plan)
        np.testing.assert_allclose(number(seconds.forward[:, k]), forward, rtol=1e-12)
        np.testing.assert_allclose(number(seconds.backward[:, k]), backward, rtol=1e-12)
        np.testing.assert_allclose(number(seconds.all_reduce[:, k]), reduce[::2], rtol=1e-12)
        expected = slow_length(pipeline, *plan)
        np.testing.assert_allclose(number(lengths[k]), expected, rtol=1e-12)
        value = formulas.value(lengths[k], pipeline.bubble_free)
        np.testing.assert_allclose(number(value), pipeline.bubble_free / expected, rtol=1e-12)


@pytest.mark.thorough
@kinds
@given(problems())
@settings(max_examples=100)
def test_bytes__against_the_design(kind, problem):
    pipeline, plans = problem
    p, d = boundaries(pipeline, plans)
    stages = len(p) - 1
    left = array(kind, np.arange(stages, 0, -1)[:, None].repeat(len(plans), axis=1))
    flight = formulas.in_flight(left, array(kind, pipeline.micro_batches))
    weights = formulas.weight_bytes(
        array(kind, np.diff(pipeline.parameter_sum[p], axis=0)), pipeline.copies
    )
    if pipeline.recompute == "none":
        resident = array(kind, np.diff(pipeline.resident_sum[p], axis=0))
        activations = formulas.kept_bytes(resident, flight)
    else:
        crossing = pipeline.cut_before
        largest = [
            [crossing[a + 1 : b + 1].max() for a, b in zip(row, after, strict=True)]
            for row, after in itertools.pairwise(p)
        ]
        entering = array(kind, crossing[p[:-1]])
        activations = formulas.recomputed_bytes(array(kind, largest), entering, flight)
    found = formulas.stage_bytes(weights, activations, array(kind, np.diff(d, axis=0)))
    for k, plan in enumerate(plans):
        np.testing.assert_allclose(number(found[:, k]), slow_memory(pipeline, *plan), rtol=1e-12)


@pytest.mark.thorough
@given(problems())
@settings(max_examples=100)
def test_append__is_core_and_tail_to_the_last_bit(problem):
    pipeline, plans = problem
    m, seconds = pipeline.micro_batches, seconds_of("numpy", pipeline, plans)
    both = seconds.forward + seconds.backward
    core, tail = formulas.core_and_tail(both, seconds.backward, seconds.all_reduce, m)
    for maximum, column in [(np.maximum, slice(None)), *((max, k) for k in range(len(plans)))]:
        prefix, link = formulas.NOTHING, 0.0
        for s, all_reduce in enumerate(seconds.all_reduce[:, column]):
            if s:
                link = seconds.backward[2 * s - 1, column]
            prefix = formulas.append(
                prefix, link, both[2 * s, column], seconds.backward[2 * s, column],
                all_reduce, m, maximum,
            )  # fmt: skip
        assert np.array_equal(prefix.core, core[column])
        assert np.array_equal(prefix.tail, tail[column])
        assert np.array_equal(prefix.core + prefix.tail, formulas.length(seconds, m)[column])


@pytest.mark.thorough
@kinds
@given(problems())
@settings(max_examples=100)
def test_prepend__is_core_and_tail(kind, problem):
    """From the last resource to the first; whole plans bound the tail by 0."""
    pipeline, plans = problem
    m, seconds = pipeline.micro_batches, seconds_of(kind, pipeline, plans)
    both = seconds.forward + seconds.backward
    core, tail = formulas.core_and_tail(both, seconds.backward, seconds.all_reduce, m)
    maximum = torch.maximum if kind == "torch" else np.maximum
    zero = core * 0.0
    found_core, found_tail = zero, zero
    for resource in reversed(range(len(both))):
        reduce = zero if resource % 2 else seconds.all_reduce[resource // 2]
        found_core = formulas.prepend_core(found_core, both[resource], m, maximum)
        found_tail = formulas.prepend_tail(found_tail, seconds.backward[resource], reduce, maximum)
    np.testing.assert_allclose(number(found_core), number(core), rtol=1e-12)
    scale = float(core.max())
    np.testing.assert_allclose(number(found_tail), number(tail), rtol=1e-12, atol=1e-12 * scale)


@kinds
def test_core_and_tail__by_hand(kind):
    forward, backward = array(kind, [2.0, 1.0, 3.0]), array(kind, [4.0, 1.0, 5.0])
    both, reduce = forward + backward, array(kind, [3.0, 10.0])
    assert formulas.core_and_tail(both, backward, reduce, 2) == (6 + 2 + 8 + 8, 10 - 4 - 1)
    assert formulas.core_and_tail(both, backward, reduce, 1) == (16, 5)
    # An all-reduce that earlier backward passes hide leaves nothing; it never shortens a step.
    assert formulas.core_and_tail(both, backward, array(kind, [0.0, 2.0]), 2)[1] == 0


@kinds
def test_core_and_tail__transfer_can_be_the_pivot_stage(kind):
    one_way = array(kind, [1.0, 9.0, 1.0])
    reduce = array(kind, [0.0, 0.0])
    assert formulas.core_and_tail(2 * one_way, one_way, reduce, 5)[0] == 2 + 18 + 4 * 18


@kinds
def test_network__by_hand(kind):
    """Servers of three devices: [0, 3), [1, 3), [2, 4), [3, 6), [0, 6)."""
    first, end = array(kind, [0, 1, 2, 3, 0]), array(kind, [3, 3, 4, 6, 6])
    same = network.same_server(first, end, 3)
    assert number(same) == [True, True, False, True, False]
    rates = array(kind, 10.0), array(kind, 1.0)
    bandwidth = network.group_bandwidth(same, *rates)
    assert number(bandwidth) == [10.0, 10.0, 1.0, 10.0, 1.0]
    size, group = array(kind, [30.0] * 5), end - first
    expected = [4.0, 3.0, 30.0, 4.0, 50.0]
    assert number(network.sync_seconds(size, group, bandwidth)) == pytest.approx(expected)
    central = network.sync_bytes(size, group, "parameter-server")
    assert number(central) == [180.0, 120.0, 120.0, 180.0, 360.0]
    for method in SYNC_METHODS:
        assert number(network.sync_bytes(size[:1], array(kind, [1]), method)) == [0.0]
    with pytest.raises(ClusterError, match="unknown method 'gossip'"):
        network.sync_bytes(size, group, "gossip")


def test_network__plain_numbers():
    cluster = Cluster.parse("2x3:v100")
    for first in range(6):
        for end in range(first + 1, 7):
            expected = bool(cluster.same_server(np.array(first), np.array(end)))
            assert network.same_server(first, end, 3) is expected


def test_formulas__one_by_one():
    """Each formula by hand, with its own defaults."""
    f = formulas
    assert f.append(f.NOTHING, 0.0, 0.0, 0.0, 0.0, 1) == f.Prefix(0.0, 0.0, 0.0, 0.0)
    # A transfer of 1 + 1 seconds and a stage of 3 + 2, an all-reduce of 9; M = 4.
    one = f.append(f.NOTHING, 1.0, 5.0, 2.0, 9.0, 4)
    assert one == f.Prefix(passed=7.0, hidden=3.0, core=7 + 3 * 5, tail=9 - 1)
    assert f.append(one, 0.0, 0.5, 0.5, 0.0, 4) == f.Prefix(7.5, 3.5, 22.0, 8.0)
    assert f.append_tail(2.0, 3.0, 7.0) == 4.0
    assert f.append_tail(5.0, 3.0, 7.0) == 5.0
    core = f.prepend_core(np.array([0.0, 50.0]), np.array([5.0, 5.0]), 4)
    assert core.tolist() == [20.0, 55.0]
    tail = f.prepend_tail(np.array([8.0, 8.0]), np.array([2.0, 2.0]), np.array([1.0, 7.0]))
    assert tail.tolist() == [6.0, 7.0]
    assert f.weight_bytes(5.0, 2.0) == 10.0
    assert f.weight_bytes(5.0, 2.0, 3.0) == 13.0
    assert f.kept_bytes(5.0, 3.0) == 15.0
    assert f.recomputed_bytes(7.0, 5.0, 3.0) == 22.0
    assert f.stage_bytes(7.0, 9.0, 3.0) == 10.0
    sums = np.array([[0.0], [4.0], [10.0]])
    ones = np.ones((2, 1))
    seconds = f.stage_seconds(sums, 2 * sums, 3 * sums, ones[:1], 2 * ones, ones, ones[:1])
    assert seconds.forward.ravel().tolist() == [2.0, 1.0, 3.0]
    assert seconds.backward.ravel().tolist() == [4.0, 1.0, 6.0]
    assert seconds.all_reduce.ravel().tolist() == [12.0, 18.0]  # 2 W (2 - 1) / 2
