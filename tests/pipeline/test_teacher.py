"""What the teacher of ``PipelinePlan-v0`` says that actions are worth, beside all plans."""

import itertools

import numpy as np
import pytest

from parenvs.agents.pipeline.teacher import LIMIT, Ends, teach
from parenvs.core.game import EVERY
from parenvs.datasets.pipeline import problems
from parenvs.tasks.pipeline.planning import POINTS, Board, PipelinePlanning
from parenvs.tasks.pipeline.spaces import PointSpace

SMALL = [
    (number, pipeline)
    for number in range(400)
    if (pipeline := problems.problem_of(number, None, "inside").pipeline).stages in (3, 4)
][:8]


def every_plan(space):
    """All plans of a space that fit: points, units, seconds."""
    cuts = list(itertools.combinations(range(1, len(space.pivots) - 1), space.stages - 1))
    units = list(itertools.combinations(range(1, len(space.devices) - 1), space.stages - 1))
    pairs = itertools.product(cuts, units)
    points, units = (np.insert(np.array(x), 0, 0, axis=1) for x in zip(*pairs, strict=True))
    plans = space.plan(points[:, 1:], units[:, 1:])
    pipeline = space.pipeline
    variables = pipeline.variable_sum[np.insert(plans[0], 0, 0, axis=1)]
    ends = np.append(variables, np.full((len(variables), 1), pipeline.variable_sum[-1]), axis=1)
    legal = (pipeline.excess_bytes(*plans) <= 0) & (np.diff(ends) > 0).all(axis=1)
    return points[legal], units[legal], pipeline.length(*plans)[legal]


@pytest.mark.parametrize(("number", "pipeline"), SMALL, ids=[str(x[0]) for x in SMALL])
def test_worth__is_that_of_the_best_plan_behind(number, pipeline):
    space = PointSpace.build(pipeline, max_points=7)
    points, units, seconds = every_plan(space)
    game = PipelinePlanning(1, rows="ahead")
    game.put(EVERY, Board(space))
    game.start(EVERY)
    worth, rng = teach(game), np.random.default_rng(number)
    shortest = Ends(space).shortest
    assert shortest == pytest.approx(seconds.min())
    while not game.over.all():
        stage, is_unit = divmod(int(game.choices[0]), 2)
        behind = (points[:, : stage + 1] == game.points[0, : stage + 1]).all(axis=1)
        behind &= (units[:, : stage + 1] == game.units[0, : stage + 1]).all(axis=1)
        if is_unit:
            behind &= points[:, stage + 1] == game.points[0, stage + 1]
        taken = POINTS + units[:, stage + 1] if is_unit else points[:, stage + 1]
        told = worth()[0]
        for action in np.flatnonzero(game.legal[0]):
            best = seconds[behind & (taken == action)].min() / shortest
            if best < LIMIT * (1 - 1e-6):
                assert told[action] == pytest.approx(1 / best, rel=1e-5)
            else:
                assert not told[action] > 1 / LIMIT * (1 + 1e-6)
        # The best plans are what is told of.
        game.play(EVERY, np.array([rng.choice(np.flatnonzero(told > 1 / LIMIT))]))


def test_teacher__knows_no_other_game():
    assert teach(object()) is None
