"""Interleaved schedules: by hand, against Megatron's formula, against the closed form."""

import itertools

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.schedules import ChunkSeconds, simulate
from parenvs.tasks.pipeline.formulas import BACKWARD, FORWARD, StageSeconds, core_of, length


def core(seconds, micro_batches):
    """The closed form without transfers, of the same chunks."""
    both = seconds.forward + seconds.backward
    busy, first = both.sum(axis=1), both[:, 0]
    return core_of(first.cumsum() - first + busy, busy, micro_batches)


def test_simulate__by_hand():
    """Two stages of two chunks, two micro-batches: forward 1 and backward 2 s a chunk."""
    ones = np.ones((2, 2))
    table = simulate(ChunkSeconds(ones, 2 * ones, 0 * ones), 2)
    # Stage 0: chunk 0 at 0 and 1, chunk 1 at 2 and 3, when stage 1 has passed chunk 0 on.
    assert table.start[FORWARD, 0].tolist() == [[0, 1], [2, 3]]
    assert table.start[FORWARD, 1].tolist() == [[1, 2], [3, 6]]
    # Stage 1 turns around at once: 4 to 6, then the second micro-batch.
    assert table.start[BACKWARD, 1].tolist() == [[9, 11], [4, 7]]
    assert table.start[BACKWARD, 0].tolist() == [[11, 13], [6, 9]]
    assert (table.end - table.start)[FORWARD].tolist() == ones[:, :, None].repeat(2, 2).tolist()
    assert table.core == 15 == (2 + 1 / 2) * 6
    assert table.stage_end.tolist() == [15, 13]
    assert table.length(np.array([1.0, 5.0])) == 18


@each("stages", [2, 4, 8])
@each("chunks", [1, 2, 4])
@each("times", [1, 2, 4])
def test_simulate__balanced_chunks_have_megatrons_bubble(stages, chunks, times):
    """arXiv 2104.04473, section 2.2: (M + (S-1)/v) (F + B)."""
    ones, micro_batches = np.ones((stages, chunks)), times * stages
    seconds = ChunkSeconds(ones / chunks, 2 * ones / chunks, 0 * ones)
    expected = 3 * (micro_batches + (stages - 1) / chunks)
    assert simulate(seconds, micro_batches).core == pytest.approx(expected, rel=1e-12)
    assert core(seconds, micro_batches) == pytest.approx(expected, rel=1e-12)


@pytest.mark.thorough
def test_simulate__closed_form_is_a_lower_bound():
    """Over 1,000 random steps; with one chunk it is mostly met, with several seldom."""
    rng, excess = np.random.default_rng(0), {1: [], 2: [], 4: []}
    for _ in range(1000):
        stages, chunks = int(rng.choice([2, 3, 4, 8])), int(rng.choice([1, 2, 4]))
        micro_batches = stages * int(rng.choice([1, 2, 3]))
        forward = rng.uniform(0.7, 1.3, (stages, chunks))
        backward = forward * rng.uniform(1, 3, (stages, chunks))
        seconds = ChunkSeconds(forward, backward, np.zeros_like(forward))
        ratio = simulate(seconds, micro_batches).core / core(seconds, micro_batches)
        assert ratio >= 1 - 1e-12
        excess[chunks].append(ratio - 1)
    assert np.mean(excess[1]) < np.mean(excess[4]) < 0.1
    assert max(map(max, excess.values())) < 0.3


@each("chunks", [1, 2, 3])
@each("is_linked", [False, True])
def test_simulate__nothing_overlaps_and_nothing_is_early(chunks, is_linked):
    """A stage does one pass at a time, and no pass before what it waits for has arrived."""
    rng, stages, micro_batches = np.random.default_rng(chunks), 3, 6
    forward, backward, link = rng.exponential(1, (3, stages, chunks))
    table = simulate(ChunkSeconds(forward, backward, link * is_linked), micro_batches)
    for stage in range(stages):
        start, end = (np.sort(x[:, stage], axis=None) for x in (table.start, table.end))
        assert (start[1:] >= end[:-1]).all()
    places = list(itertools.product(range(chunks), range(stages)))
    for (chunk, stage), (after, behind) in itertools.pairwise(places):
        wait = link[stage, chunk] * is_linked
        there = table.end[FORWARD, stage, chunk] + wait
        assert (table.start[FORWARD, behind, after] >= there - 1e-12).all()
        back = table.end[BACKWARD, behind, after] + wait
        assert (table.start[BACKWARD, stage, chunk] >= back - 1e-12).all()
    last = table.start[BACKWARD, -1, -1] >= table.end[FORWARD, -1, -1]
    assert last.all()


def test_simulate__early_is_the_pure_task():
    """With one chunk and an early start: the closed form of the pure task, links as stages."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        stages, micro_batches = int(rng.integers(1, 6)), int(rng.choice([1, 3, 16]))
        forward, backward, link = rng.exponential(1, (3, stages, 1))
        table = simulate(ChunkSeconds(forward, backward, link), micro_batches, "early")
        row = np.empty(2 * stages - 1)
        there, back = row.copy(), row.copy()
        there[::2], back[::2] = forward[:, 0], backward[:, 0]
        there[1::2] = back[1::2] = link[:-1, 0]
        closed = length(StageSeconds(there, back, np.zeros(stages)), micro_batches)
        assert table.core >= closed - 1e-12
        equal = simulate(ChunkSeconds(forward * 0 + 1, backward * 0 + 2, link * 0), micro_batches)
        early = simulate(
            ChunkSeconds(forward * 0 + 1, backward * 0 + 2, link * 0), micro_batches, "early"
        )
        assert early.core == equal.core == 3 * (micro_batches + stages - 1)


def test_simulate__not_for_millions_of_passes():
    problem = parenvs.problem("gpt-1.7b", "1x8:a100", task="hybrid", batch=2**21)
    plan = problem.plan([HybridStage(((0, 24),), 1)])
    report = problem.report(plan)
    assert report.timetable is None
    assert report.simulated_seconds is None
