"""Agents of ``IntraOpSharding-v0``: what is learned, and what it is worth."""

import numpy as np
import pytest
from drawn_intra_op import draw, optimum

pytest.importorskip("sb3_contrib")
import torch

from parenvs.agents.learning.sharding.imitate import imitate, taught
from parenvs.agents.learning.sharding.train import greedy, plan, rated, train
from parenvs.agents.learning.train.learners import LEARNERS
from parenvs.agents.sharding.references import fault_of
from parenvs.datasets.references import INTRA_OP, references
from parenvs.datasets.sharding.drawing import SETS, of_set, set_names
from parenvs.tasks.sharding.turns.construct import board_of

PROBLEM = draw(45, nodes=14, edges=34, forbidden=0.15, most=4)
SMALL = {"problem": PROBLEM, "width": 6}


@pytest.fixture(scope="module")
def fresh():
    return train(SMALL, seed=0, steps=1, envs=2)


def seen(rng, count, actions, columns, numbers):
    rows = rng.random((count, actions, columns)).astype(np.float32)
    rows[..., -1] = 1.0
    return {"actions": rows, "numbers": rng.random((count, numbers)).astype(np.float32)}


def test_policy__rates_all_actions_by_the_same_weights(fresh):
    """Actions in another order get the same ratings; rows that are no action change nothing."""
    torch.manual_seed(0)
    torch.nn.init.normal_(fresh.policy.features_extractor.rate.weight)
    rng = np.random.default_rng(0)
    observation = seen(rng, 3, 6, 9, 8)
    ratings = rated(fresh, observation)
    order = rng.permutation(6)
    moved = rated(fresh, {**observation, "actions": observation["actions"][:, order]})
    np.testing.assert_allclose(moved, ratings[:, order], rtol=1e-4, atol=1e-4)
    wide = np.zeros((3, 40, 9), dtype=np.float32)
    wide[:, :6] = observation["actions"]
    more = rated(fresh, {**observation, "actions": wide})
    np.testing.assert_allclose(more[:, :6], ratings, rtol=1e-4, atol=1e-4)
    assert np.ptp(ratings) > 0.1


@pytest.mark.thorough
def test_policy__untrained_it_plays_the_greedy_rule():
    agent, board = train(SMALL, seed=1, steps=1, envs=2), board_of(PROBLEM)
    assert plan(agent, board).cost == greedy(board).cost == board.reference


@pytest.mark.slow
def test_train__learns_what_greedy_does_not_see():
    problem = draw(124, edges=8, most=4)
    board, kwargs = board_of(problem, reduction=False), {"reduction": False}
    assert (board.reference, optimum(problem)) == (63, 52)
    small = {"n_steps": 24, "batch_size": 96, "learning_rate": 3e-3}
    agent = train({"problem": problem, **kwargs}, seed=0, steps=5_000, envs=16, **small)
    learned = plan(agent, board, **kwargs)
    assert learned.report.legal
    assert learned.report.cost == learned.cost
    assert learned.cost < 60


def optimum_of_small():
    from parenvs.agents.sharding import solve_iopddl

    answer = solve_iopddl(PROBLEM, seconds=None, steps=20)
    assert answer.proven
    return answer.cost


@pytest.mark.thorough
def test_imitate__takes_what_the_solver_takes():
    lessons = taught([board_of(PROBLEM)] * 2)
    assert len(lessons) == 2
    agent = imitate(lessons, passes=60, own=0.1, **SMALL)
    assert plan(agent, board_of(PROBLEM)).cost == optimum_of_small()


def test_plan__improving(fresh):
    agent = train({**SMALL, "form": "improve", "width": 7, "moves": 4}, seed=0, steps=1, envs=2)
    answer = plan(agent, board_of(PROBLEM), samples=2, form="improve", moves=4)
    assert answer.report.legal
    assert answer.cost == answer.report.cost <= board_of(PROBLEM).reference


def test_learners__know_the_environment():
    learner = LEARNERS["ppo"]
    assert learner.side_by_side("parenvs/IntraOpSharding-v0") == 64
    assert learner.policies["IntraOpSharding-v0"]().__name__ == "ShardingPolicy"


@pytest.mark.slow
def test_references__are_of_the_shipped_problems():
    known = references(INTRA_OP)
    assert sorted(known) == sorted(name for one in SETS for name in set_names(one))
    for name in list(known)[::27]:
        problem, row = of_set(name), known[name]
        assert fault_of(problem, row) == ""
        assert row["length"] <= row["greedy"]
        assert row["length"] <= row["bound"] * (1 + 1e-6)  # the contest's solver leaves no more
        assert "costs" in fault_of(problem, {**row, "length": row["length"] - 1})
