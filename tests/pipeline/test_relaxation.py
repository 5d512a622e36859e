"""The relaxed bound: held against every plan of small problems, and against the work alone."""

from dataclasses import replace

import brute_force as bf
import numpy as np
import pytest
from cases import slow

from parenvs.agents.pipeline import relaxation
from parenvs.agents.pipeline.bounds import least_length
from parenvs.agents.pipeline.exact import begun
from parenvs.agents.pipeline.relaxation import Relaxation, lower_bound
from parenvs.datasets.pipeline.problems import INSIDE, draw


def drawn(seed, **sizes):
    """A generated problem of the given sizes."""
    ranges = replace(INSIDE, **{name: (size, size) for name, size in sizes.items()})
    return draw(np.random.default_rng(seed), ranges=ranges).pipeline.with_stages(sizes["stages"])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *slow(*range(4, 120, 4))])
def test_lower_bound__is_below_the_shortest_of_all_plans(seed, monkeypatch):
    """Of the first 1,300 problems, with pivots apart and in three blocks, none was wrong."""
    for case in range(seed, seed + 4):
        pipeline, stages = bf.random_pipeline(np.random.default_rng([case, 11]))
        pipeline = pipeline.with_stages(stages)
        best = bf.best_of(pipeline, bf.all_plans(pipeline, stages)).length
        if best == np.inf:
            continue
        for blocks in (relaxation.BLOCKS, 3):
            monkeypatch.setattr(relaxation, "BLOCKS", blocks)
            bound = lower_bound(pipeline, 1.5 * best)
            assert least_length(pipeline) * (1 - 1e-9) <= bound <= best * (1 + 1e-12)
        monkeypatch.undo()


@pytest.mark.thorough
def test_excludes__says_nothing_of_limits_that_a_plan_keeps():
    """A plan's own core and tail are limits that it keeps."""
    for case in range(2):
        pipeline = drawn(case, pivots=60, devices=32, stages=6)
        plan = begun(pipeline)
        times = pipeline.stage_times(*plan)
        seconds = times.forward + times.backward
        core = (np.cumsum(seconds) + (pipeline.micro_batches - 1) * seconds).max()
        tail = float(pipeline.length(*plan)) - core
        for blocks in (100, 10):
            assert not Relaxation(pipeline, blocks=blocks).excludes(core, tail)
            assert Relaxation(pipeline, blocks=blocks).excludes(core / 4, tail)


@pytest.mark.thorough
def test_lower_bound__is_far_above_that_of_the_work_where_stages_are_many():
    pipeline = drawn(1, pivots=60, devices=256, stages=16)
    length, least = float(pipeline.length(*begun(pipeline))), least_length(pipeline)
    assert length / 1.25 < lower_bound(pipeline, length) < length
    assert lower_bound(pipeline, length, deadline=0.0) <= least < length / 5
