import gymnasium as gym
import numpy as np
import pytest

from parenvs.agents.evaluation.rules import play_rule, rules
from parenvs.core.sets import set_of
from parenvs.tasks.hybrid.improve import HybridImprovement

GAME, ENV = HybridImprovement, "HybridPlan-v1"


def test_rules__are_complete_over_the_columns():
    for rows, columns in (
        ("ahead", GAME.columns),
        ("bare", [name for name in GAME.columns if name not in GAME.ahead]),
    ):
        expected = [f"{kind} {name}" for name in columns for kind in ("largest", "least")]
        assert list(rules(GAME, rows)) == ["random", "first", "last", *expected]


def test_rules__choose_legal_actions_of_their_column():
    mask = np.array([[0, 1, 1, 1], [1, 0, 1, 0]], dtype=np.int8)
    values = np.array([[9.0, 2.0, 3.0, 3.0], [-1.0, -9.0, -2.0, 9.0]])
    actions = np.zeros((2, 4, len(GAME.columns)))
    actions[..., 0] = values
    seen, rng = {"actions": actions, "action_mask": mask}, np.random.default_rng(0)
    of = rules(GAME)
    assert of["largest rule"](seen, rng).tolist() == [2, 0]
    assert of["least rule"](seen, rng).tolist() == [1, 2]
    assert of["first"](seen, rng).tolist() == [1, 0]
    assert of["last"](seen, rng).tolist() == [3, 2]
    drawn = np.array([of["random"](seen, rng) for _ in range(40)])
    assert set(drawn[:, 0]) == {1, 2, 3} and set(drawn[:, 1]) == {0, 2}


@pytest.mark.thorough
def test_play_rule__plays_each_problem_once_in_order():
    problems = set_of("hybrid-test")
    played = play_rule(ENV, problems.name, rules(GAME)["largest rule"], "gpt", first=3)
    env = gym.make(ENV, **problems.env_kwargs("gpt"))
    for k, name in enumerate(problems.of("gpt")[:3]):
        observation, info = env.reset(seed=0 if k == 0 else None)
        assert info["instance"] == name
        turns, done = 0, False
        while not done:
            score = np.where(info["action_mask"], observation["actions"][:, 0], -np.inf)
            observation, _, done, _, info = env.step(score.argmax())
            turns += 1
        assert (played.costs[k], played.turns[k]) == (info["cost"], turns)
        assert played.best[k] == info["best_known"]
        assert played.shares[k] == info["best_known"] / info["cost"]
