"""The simulated schedule: by hand, against the closed form, and against brute force."""

import itertools

import brute_force as bf
import numpy as np
import pytest
from cases import each

from parenvs.tasks.pipeline.formulas import BACKWARD, FORWARD, StageTimes, simulate

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


def test_simulate__one_micro_batch_is_a_round_trip():
    times = StageTimes(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), np.zeros(3))
    assert simulate(times, 1).length == 21


def test_simulate__all_reduce_can_come_last():
    times = StageTimes(np.ones(3), np.ones(3), np.array([0.0, 0.0, 100.0]))
    table = simulate(times, 2)
    assert table.length == table.end[2, BACKWARD, -1] + 100


@pytest.mark.thorough
def test_simulate__never_below_the_closed_form_without_all_reduce():
    """1,000 random plans; half of them cut random chains on random clusters."""
    strict = 0
    for seed in range(PLANS // 2):
        times, m = random_times(seed, reduce=False)
        length, simulated = times.length(m), simulate(times, m).length
        assert length <= simulated * (1 + 1e-12)
        strict += simulated > length * (1 + 1e-9)
        rng = np.random.default_rng(seed)
        pipeline, stages = bf.random_pipeline(rng)
        p = rng.choice(np.arange(1, len(pipeline.profile)), stages - 1, replace=False)
        d = rng.choice(np.arange(1, pipeline.cluster.devices), stages - 1, replace=False)
        times = pipeline.stage_times(np.sort(p), np.sort(d))
        times = StageTimes(times.forward, times.backward, np.zeros_like(times.forward))
        m = pipeline.micro_batches
        assert times.length(m) <= simulate(times, m).length * (1 + 1e-12)
    assert strict > 50  # it is a second opinion, not the same number


def test_simulate__even_stages_meet_the_closed_form():
    """Equal stages without communication take (M + S - 1) x, simulated and by the formula."""
    for stages in (2, 3, 5):
        forward = np.zeros(2 * stages - 1)
        forward[::2] = 1.0
        times = StageTimes(forward, 2 * forward, np.zeros_like(forward))
        assert simulate(times, 8).length == times.length(8) == 3 * (8 + stages - 1)


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


def test_simulate__no_idle_without_cause():
    """Every pass starts when its resource is free or its neighbour is done, whichever is later."""
    for seed in range(30):
        times, m = random_times(seed)
        times = StageTimes(times.forward + 0.1, times.backward + 0.1, times.all_reduce)
        table = simulate(times, m)
        for r in range(len(times.forward)):
            free = 0.0
            for start, end, kind, i in schedule(table, r):
                neighbour = r - 1 if kind == FORWARD else r + 1
                ready = table.end[neighbour, kind, i] if 0 <= neighbour < len(times.forward) else 0
                assert start == max(free, ready)
                free = end


def test_simulate__vectorised_is_one_by_one():
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
