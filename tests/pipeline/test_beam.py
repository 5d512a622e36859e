import contextlib
from dataclasses import replace

import brute_force as bf
import numpy as np
import pytest
from cases import each

from parenvs.agents.pipeline.beam import beam
from parenvs.agents.pipeline.points import exact_points
from parenvs.datasets.pipeline import generators
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.points import PointSpace

pytestmark = pytest.mark.thorough


def small(count):
    """Spaces of a few pivots and devices, some of them tight."""
    rng, found = np.random.default_rng(0), []
    while len(found) < count:
        pipeline, stages = bf.random_pipeline(rng)
        profile = replace(pipeline.profile, frozen_bytes=None)
        settings = {"recompute": "full", "sync": "allreduce", "tied": "once"}
        pipeline = replace(pipeline, profile=profile, **settings)
        with contextlib.suppress(InfeasibleError):
            found.append(PointSpace.build(pipeline.with_stages(min(stages, 4))))
    return found


@each("space", small(60))
def test_beam__without_end_finds_the_optimum(space):
    answer, exact = beam(space, 10**6), exact_points(space)
    assert answer.cost == pytest.approx(exact.cost, rel=1e-9)
    assert answer.evaluations >= 1


def test_beam__one_beginning_is_enough_for_two_stages():
    rng = np.random.default_rng(1)
    spaces = [problem.space for problem in (generators.draw(rng) for _ in range(30))]
    spaces = [space for space in spaces if space.stages == 2]
    assert len(spaces) > 3
    for space in spaces:
        assert beam(space, 1).cost <= exact_points(space).cost * (1 + 1e-3)


def test_beam__plans_fit_and_more_beginnings_are_better_on_the_whole():
    rng = np.random.default_rng(2)
    spaces = [generators.draw(rng, ranges=generators.OUTSIDE).space for _ in range(12)]
    found = {width: [beam(space, width) for space in spaces] for width in (1, 16)}
    for answers in found.values():
        for space, answer in zip(spaces, answers, strict=True):
            assert space.pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts) <= 0
            length = float(space.pipeline.length(answer.plan.cuts, answer.plan.device_cuts))
            assert answer.cost == length
    mean = {
        width: np.log([answer.cost for answer in answers]).mean()
        for width, answers in found.items()
    }
    assert mean[16] < mean[1]
    assert np.array_equal(beam(spaces[0]).plan.cuts, found[16][0].plan.cuts)
