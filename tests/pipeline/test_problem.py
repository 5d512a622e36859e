from dataclasses import replace

import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from second_writing import (
    slow_length,
    slow_memory,
    slow_times,
)

from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=120)
def test_pipeline__closed_form_against_the_design(data):
    pipeline = data.draw(toys.pipelines())
    cuts, device_cuts = data.draw(toys.plans(pipeline))
    times = pipeline.stage_times(cuts, device_cuts)
    forward, backward, reduce = slow_times(pipeline, cuts, device_cuts)
    np.testing.assert_allclose(times.forward, forward, rtol=1e-12)
    np.testing.assert_allclose(times.backward, backward, rtol=1e-12)
    np.testing.assert_allclose(times.all_reduce, reduce, rtol=1e-12)
    length = slow_length(pipeline, cuts, device_cuts)
    np.testing.assert_allclose(pipeline.length(cuts, device_cuts), length, rtol=1e-12)
    np.testing.assert_allclose(times.length(pipeline.micro_batches), length, rtol=1e-12)


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=120)
def test_pipeline__memory_against_the_design(data):
    pipeline = data.draw(toys.pipelines())
    plan = data.draw(toys.plans(pipeline))
    memory = slow_memory(pipeline, *plan)
    np.testing.assert_allclose(pipeline.stage_memory(*plan), memory, rtol=1e-12, atol=1e-12)
    limit = 0.9 * pipeline.cluster.device.memory_bytes
    assert pipeline.memory_limit == pytest.approx(limit, rel=1e-15)
    np.testing.assert_allclose(
        pipeline.excess_bytes(*plan), max(memory) - limit, rtol=1e-12, atol=1e-9
    )


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=60)
def test_pipeline__vectorised_is_one_by_one(data):
    pipeline = data.draw(toys.pipelines(least=4))
    stages = data.draw(st.integers(2, min(4, pipeline.cluster.devices)))
    drawn = [data.draw(toys.plans(pipeline, stages)) for _ in range(6)]
    cuts = np.array([c for c, _ in drawn]).reshape(2, 3, stages - 1)
    groups = np.array([d for _, d in drawn]).reshape(2, 3, stages - 1)
    times, memory = pipeline.stage_times(cuts, groups), pipeline.stage_memory(cuts, groups)
    length, excess = pipeline.length(cuts, groups), pipeline.excess_bytes(cuts, groups)
    assert times.forward.shape == (2, 3, 2 * stages - 1)
    assert memory.shape == (2, 3, stages)
    assert length.shape == excess.shape == (2, 3)
    for at in np.ndindex(2, 3):
        one = pipeline.stage_times(cuts[at], groups[at])
        for key in ("forward", "backward", "all_reduce"):
            assert np.array_equal(getattr(times, key)[at], getattr(one, key))
        assert length[at] == pipeline.length(cuts[at], groups[at])
        assert excess[at] == pipeline.excess_bytes(cuts[at], groups[at])
        assert np.array_equal(memory[at], pipeline.stage_memory(cuts[at], groups[at]))


def test_pipeline__server_boundaries():
    """Two servers of three devices: who talks over the network depends on both groups."""
    pipeline = Pipeline(
        toys.chain([1] * 6, [1] * 6, [60] * 6, [30] * 6), Cluster.parse(toys.shape(2, 3, 10.0, 1.0))
    )
    times = pipeline.stage_times(np.array([1, 2, 3]), np.array([1, 3, 5]))
    # Groups {0}, {1,2}, {3,4}, {5}: the first pair and the last are each inside a server.
    assert times.forward[1::2].tolist() == [6.0, 60.0, 6.0]
    assert times.backward[1::2].tolist() == [6.0, 60.0, 6.0]
    assert times.all_reduce[::2].tolist() == [0.0, 3.0, 3.0, 0.0]
    crossing = pipeline.stage_times(np.array([1, 2]), np.array([2, 4]))
    # Groups {0,1}, {2,3}, {4,5}: the middle one crosses, and so does each of its links.
    assert crossing.forward[1::2].tolist() == [60.0, 60.0]
    assert crossing.all_reduce[::2].tolist() == [3.0, 30.0, 12.0]


def test_pipeline__toys_have_their_optimum():
    for toy in (toys.balanced(), toys.balanced(4, 2, 8), toys.dense()):
        length = float(toy.pipeline.length(np.array(toy.cuts), np.array(toy.device_cuts)))
        assert length == pytest.approx(float(toy.length), rel=1e-14)
        assert toy.pipeline.bubble_free / length == pytest.approx(float(toy.value), rel=1e-14)


def test_pipeline__prefix_sums():
    pipeline = Pipeline(
        toys.chain([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 2], [3, 4, 5]), Cluster.parse("A")
    )
    assert pipeline.seconds_sum.tolist() == [0, 5, 12, 21]
    assert pipeline.parameter_sum.tolist() == [0, 1, 1, 3]
    assert pipeline.variable_sum.tolist() == [0, 1, 1, 2]
    assert pipeline.resident_sum.tolist() == [0, 3, 7, 12]
    assert pipeline.cut_before.tolist() == [0, 7, 8, 0]  # nothing crosses the ends


def test_pipeline__bubble_free():
    pipeline = Pipeline(
        toys.chain([1, 2], [3, 4], [5, 0], [1, 1]),
        Cluster.parse(toys.shape(1, 4, 1.0, 1.0)),
        micro_batches=3,
    )
    assert pipeline.bubble_free == 3 * 10 / 4


@pytest.mark.thorough
@given(toys.profiles(most=40), st.data())
@settings(max_examples=60)
def test_pipeline__largest_cut(profile, data):
    pipeline = Pipeline(profile, Cluster.parse("A"))
    n = len(profile)
    crossing = [*profile.cut_bytes[:-1], 0.0]
    ranges = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    first, end = np.array(ranges).T
    assert pipeline.largest_cut(first, end).tolist() == [max(crossing[a:b]) for a, b in ranges]
    a, b = data.draw(st.sampled_from(ranges))
    assert pipeline.largest_cut(a, b) == max(crossing[a:b])


@each(
    ("settings_", "words"),
    [
        ({"micro_batches": 0}, "micro_batches must be from 1"),
        ({"micro_batches": -1}, "micro_batches must be from 1"),
        ({"micro_batches": 10_001}, "micro_batches must be from 1 to 10000, not 10001"),
        ({"micro_batches": 2**31 - 1}, "micro_batches must be from 1"),
        ({"recompute": "some"}, "recompute must be one of full, none, not 'some'"),
        ({"sync": "some"}, "sync must be one of allreduce"),
        ({"copies": -1}, "copies must be from 0"),
        ({"stages": 0}, "at least 1 stage, not 0"),
        ({"stages": 2.0}, "at least 1 stage, not 2.0"),
        ({"recompute": "none"}, "no resident_bytes"),
    ],
)
def test_pipeline__refuses_settings(settings_, words):
    with pytest.raises(InfeasibleError, match=words):
        replace(toys.balanced().pipeline, **settings_)


def test_pipeline__takes_as_many_micro_batches_as_it_says():
    assert replace(toys.balanced().pipeline, micro_batches=10_000).micro_batches == 10_000


def test_pipeline__with_stages_shares_what_has_been_computed():
    pipeline = toys.balanced().pipeline
    sums, other = pipeline.seconds_sum, pipeline.with_stages(3)
    assert (other.stages, other.profile, other.seconds_sum is sums) == (3, pipeline.profile, True)
    assert pipeline.stages == toys.balanced().stages


def test_pipeline__takes_clusters_as_text():
    pipeline = Pipeline(toys.balanced().profile, "4x8:v100,25Gbps")
    assert (pipeline.cluster, pipeline.stages) == (Cluster.parse("C"), 4)


def test_pipeline__refuses_one_device():
    with pytest.raises(InfeasibleError, match="two devices"):
        Pipeline(toys.balanced().profile, Cluster.parse(toys.shape(1, 1, 1.0, 1.0)))
