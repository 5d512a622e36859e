"""Formulas by a second writing, and the simulated schedule."""

from __future__ import annotations

import itertools

import brute_force as bf
import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from second_writing import slow_length, slow_times

from parenvs import cluster as network
from parenvs.cluster import SYNC_METHODS
from parenvs.errors import ClusterError
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.formulas import BACKWARD, FORWARD, StageTimes, simulate


def number(values):
    return np.asarray(values).tolist()


def boundaries(pipeline, plans):
    """(S+1, k) pivots and devices of plans, given as lists of (cuts, device cuts)."""
    ends = ((0, len(pipeline.profile)), (0, pipeline.cluster.devices))
    return (
        np.array([[first, *plan[axis], last] for plan in plans]).T
        for axis, (first, last) in enumerate(ends)
    )


def seconds_of(pipeline, plans):
    """``formulas.stage_seconds`` of plans of as many stages, from the chain's prefix sums."""
    p, d = boundaries(pipeline, plans)
    cluster = pipeline.cluster
    first, end = np.asarray(d[:-1]), np.asarray(d[1:])
    rates = [np.asarray(float(x)) for x in (cluster.intra_bw, cluster.inter_bw)]

    def bandwidth(first, end):
        same = network.same_server(first, end, cluster.devices_per_server)
        return network.group_bandwidth(same, *rates)

    return formulas.stage_seconds(
        *(
            np.asarray(values[p])
            for values in (pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum)
        ),
        crossing=np.asarray(pipeline.cut_before[p[1:-1]]),
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
@given(problems())
@settings(max_examples=100)
def test_seconds__against_the_design(problem):
    pipeline, plans = problem
    seconds = seconds_of(pipeline, plans)
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
@given(problems())
@settings(max_examples=100)
def test_prepend__is_core_and_tail(problem):
    """From the last resource to the first; whole plans bound the tail by 0."""
    pipeline, plans = problem
    m, seconds = pipeline.micro_batches, seconds_of(pipeline, plans)
    both = seconds.forward + seconds.backward
    core, tail = formulas.core_and_tail(both, seconds.backward, seconds.all_reduce, m)
    maximum = np.maximum
    zero = core * 0.0
    found_core, found_tail = zero, zero
    for resource in reversed(range(len(both))):
        reduce = zero if resource % 2 else seconds.all_reduce[resource // 2]
        found_core = formulas.prepend_core(found_core, both[resource], m, maximum)
        found_tail = formulas.prepend_tail(found_tail, seconds.backward[resource], reduce, maximum)
    np.testing.assert_allclose(number(found_core), number(core), rtol=1e-12)
    scale = float(core.max())
    np.testing.assert_allclose(number(found_tail), number(tail), rtol=1e-12, atol=1e-12 * scale)


def test_core_and_tail__by_hand():
    forward, backward = np.asarray([2.0, 1.0, 3.0]), np.asarray([4.0, 1.0, 5.0])
    both, reduce = forward + backward, np.asarray([3.0, 10.0])
    assert formulas.core_and_tail(both, backward, reduce, 2) == (6 + 2 + 8 + 8, 10 - 4 - 1)
    assert formulas.core_and_tail(both, backward, reduce, 1) == (16, 5)
    # An all-reduce that earlier backward passes hide leaves nothing; it never shortens a step.
    assert formulas.core_and_tail(both, backward, np.asarray([0.0, 2.0]), 2)[1] == 0


def test_network__by_hand():
    """Servers of three devices: [0, 3), [1, 3), [2, 4), [3, 6), [0, 6)."""
    first, end = np.asarray([0, 1, 2, 3, 0]), np.asarray([3, 3, 4, 6, 6])
    same = network.same_server(first, end, 3)
    assert number(same) == [True, True, False, True, False]
    rates = np.asarray(10.0), np.asarray(1.0)
    bandwidth = network.group_bandwidth(same, *rates)
    assert number(bandwidth) == [10.0, 10.0, 1.0, 10.0, 1.0]
    size, group = np.asarray([30.0] * 5), end - first
    expected = [4.0, 3.0, 30.0, 4.0, 50.0]
    assert number(network.sync_seconds(size, group, bandwidth)) == pytest.approx(expected)
    central = network.sync_bytes(size, group, "parameter-server")
    assert number(central) == [180.0, 120.0, 120.0, 180.0, 360.0]
    for method in SYNC_METHODS:
        assert number(network.sync_bytes(size[:1], np.asarray([1]), method)) == [0.0]
    with pytest.raises(ClusterError, match="unknown method 'gossip'"):
        network.sync_bytes(size, group, "gossip")


PLANS = 1000


def random_times(seed, reduce=True):
    """Return the times of a random plan, and M; a third of the stages and transfers take none."""
    rng = np.random.default_rng(seed)
    resources = 2 * int(rng.integers(2, 7)) - 1
    forward = rng.exponential(1, resources) * (rng.random(resources) < 0.7)
    backward = forward * rng.uniform(0.3, 3, resources)
    backward[1::2] = forward[1::2]
    all_reduce = rng.exponential(4, resources) * reduce
    all_reduce[1::2] = 0
    return StageTimes(forward, backward, all_reduce), int(rng.choice([1, 2, 3, 5, 16]))


def schedule(table, resource):
    """Return (start, end, kind, micro-batch) of each pass of a resource, sorted by start."""
    m = table.start.shape[-1]
    passes = [
        (table.start[resource, kind, i], table.end[resource, kind, i], kind, i)
        for kind in (FORWARD, BACKWARD)
        for i in range(m)
    ]
    return sorted(passes, key=lambda x: x[:2])


def test_simulate__by_hand():
    """Two stages and two micro-batches, every number worked out on paper."""
    times = StageTimes(
        np.array([2.0, 1.0, 3.0]), np.array([4.0, 1.0, 5.0]), np.array([3.0, 0.0, 10.0])
    )
    table = simulate(times, 2)
    assert table.start[:, FORWARD].tolist() == [[0, 2], [2, 4], [3, 11]]
    assert table.end[:, FORWARD].tolist() == [[2, 4], [3, 5], [6, 14]]
    assert table.start[:, BACKWARD].tolist() == [[12, 20], [11, 19], [6, 14]]
    assert table.end[:, BACKWARD].tolist() == [[16, 24], [12, 20], [11, 19]]
    assert table.reduce_start.tolist() == [24, 20, 19]
    assert table.reduce_end.tolist() == [27, 20, 29]
    assert table.length == 29


def closed(times, micro_batches):
    """The closed form of one plan."""
    figures = times.forward, times.backward, times.all_reduce[::2]
    return formulas.length(formulas.StageSeconds(*figures), micro_batches)


@pytest.mark.thorough
def test_simulate__never_below_the_closed_form_without_all_reduce():
    """1,000 random plans; half of them cut random chains on random clusters."""
    strict = 0
    for seed in range(PLANS // 2):
        times, m = random_times(seed, reduce=False)
        length, simulated = closed(times, m), simulate(times, m).length
        assert length <= simulated * (1 + 1e-12)
        strict += simulated > length * (1 + 1e-9)
        rng = np.random.default_rng(seed)
        pipeline, stages = bf.random_pipeline(rng)
        p = rng.choice(np.arange(1, len(pipeline.profile)), stages - 1, replace=False)
        d = rng.choice(np.arange(1, pipeline.cluster.devices), stages - 1, replace=False)
        times = pipeline.stage_times(np.sort(p), np.sort(d))
        times = StageTimes(times.forward, times.backward, np.zeros_like(times.forward))
        m = pipeline.micro_batches
        assert closed(times, m) <= simulate(times, m).length * (1 + 1e-12)
    assert strict > 50  # it is a second opinion, not the same number


def test_simulate__even_stages_meet_the_closed_form():
    """Equal stages without communication take (M + S - 1) x, simulated and by the formula."""
    for stages in (2, 3, 5):
        forward = np.zeros(2 * stages - 1)
        forward[::2] = 1.0
        times = StageTimes(forward, 2 * forward, np.zeros_like(forward))
        assert simulate(times, 8).length == closed(times, 8) == 3 * (8 + stages - 1)


@each("seed", range(40))
def test_simulate__timetable(seed):
    times, m = random_times(seed)
    table = simulate(times, m)
    resources = len(times.forward)
    stages = (resources + 1) // 2
    assert (table.start >= 0).all()
    np.testing.assert_allclose(
        table.end - table.start,
        np.stack([times.forward, times.backward], axis=1)[..., None].repeat(m, -1),
        rtol=1e-9,
        atol=1e-9,
    )
    for r in range(resources):
        passes = schedule(table, r)
        for before, after in itertools.pairwise(passes):
            assert before[1] <= after[0]  # never two at once
        for kind in (FORWARD, BACKWARD):  # micro-batches in turn
            assert (np.diff(table.start[r, kind]) >= 0).all()
        for i in range(m):
            assert table.end[r, FORWARD, i] <= table.start[r, BACKWARD, i]
            if r:
                assert table.end[r - 1, FORWARD, i] <= table.start[r, FORWARD, i]
                assert table.end[r, BACKWARD, i] <= table.start[r - 1, BACKWARD, i]
        if times.forward[r]:  # passes without duration have no order to be seen
            s = r // 2
            warm = (
                min(2 * (stages - s) - 1, m) if r % 2 == 0 else max(min(2 * (stages - s) - 2, m), 1)
            )
            expected = [FORWARD] * warm
            for i in range(m):
                expected += [BACKWARD] + [FORWARD] * (warm + i < m)
            assert [kind for *_, kind, _ in passes] == expected
    assert np.array_equal(table.reduce_start, table.end[:, BACKWARD].max(axis=-1))
    np.testing.assert_allclose(table.reduce_end, table.reduce_start + times.all_reduce)
    assert table.length == max(table.end.max(), table.reduce_end.max())


def test_simulate__vectorized_is_one_by_one():
    rng = np.random.default_rng(0)
    shape = (2, 3, 7)
    times = StageTimes(*(rng.random(shape) for _ in range(3)))
    table = simulate(times, 5)
    assert table.start.shape == table.end.shape == (2, 3, 7, 2, 5)
    assert table.length.shape == (2, 3)
    for index in np.ndindex(2, 3):
        single = simulate(
            StageTimes(times.forward[index], times.backward[index], times.all_reduce[index]), 5
        )
        for key in ("start", "end", "reduce_start", "reduce_end", "length"):
            assert np.array_equal(getattr(table, key)[index], getattr(single, key))
