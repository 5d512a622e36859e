"""Agents that act at once: rows for each of them, and MAPPO."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("pettingzoo")

import pairs

from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.play import vector_env
from parenvs.agents.learning.trainer import player, train
from parenvs.envs import hybrid_v1
from parenvs.envs.env import ParallelVectorEnv

NAMED = {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64}


@pytest.fixture
def ours():
    pairs.register()
    yield "Pairs-v0"
    del gym.registry["Pairs-v0"]


def test_rows__are_padded_and_name_their_agent():
    env = ParallelVectorEnv(pairs.Pairs, 2)
    seen, _ = env.reset(seed=[4, 4, 9, 9])
    numbers = [int(np.random.default_rng(seed).integers(3)) for seed in (4, 9)]
    assert seen["context"].shape == (4, 5) and seen["joint"].shape == (4, 6)
    for row, number in enumerate(numbers):
        one, two = seen["context"][2 * row : 2 * row + 2].tolist()
        assert one == [*np.eye(3)[number], 1, 0] and two == [number % 2, 0, 0, 0, 1]
        assert seen["joint"][2 * row].tolist() == one[:3] + two[:3]
    assert (seen["joint"][::2] == seen["joint"][1::2]).all()
    assert seen["action_mask"].tolist() == [[1, 1, 1], [1, 1, 0]] * 2


@pytest.mark.parametrize("cut", [False, True])
def test_rows__end_together_and_wait_with_action_0(cut):
    env = ParallelVectorEnv(pairs.Pairs, 1, cut=cut)
    env.reset(seed=0)
    for turn in range(4):
        number = env.envs[0].number
        seen, paid, ended, over, infos = env.step(np.array([number, number % 2]))
        if turn < 3:
            assert not (ended | over).any() and paid.tolist() == [1, 1] and not infos
        assert seen["action_mask"][1].tolist() == ([1, 0, 0] if turn in (0, 2) else [1, 1, 0])
    assert paid.tolist() == [1, 0]
    # The one that had left has ended, whatever ends the episode for the other.
    assert ended.tolist() == [not cut, True] and over.tolist() == [cut, False]
    assert infos["final_obs"][1]["context"].tolist() == [0, 0, 0, 0, 1]


def test_hybrid__rows_are_those_of_its_agents():
    env, single = vector_env("hybrid_v1", NAMED, 2), hybrid_v1.parallel_env(**NAMED)
    seen, _ = env.reset(seed=3)
    own, _ = single.reset(seed=3)
    for _ in range(4):
        for index, name in enumerate(single.possible_agents):
            rows = own[name]["actions"]
            assert (seen["actions"][index, : len(rows)] == rows).all()
            assert not seen["actions"][index, len(rows) :].any()
            assert (seen["action_mask"][index, : len(rows)] == own[name]["action_mask"]).all()
        actions = np.array([int(np.flatnonzero(x)[-1]) for x in seen["action_mask"]])
        seen, paid, *_ = env.step(actions)
        own, rewards, *_ = single.step(dict(zip(single.possible_agents, actions[:3], strict=True)))
        assert paid[:3].tolist() == list(rewards.values()) and paid.min() >= -1.0


@pytest.mark.thorough
def test_mappo__learns(ours):
    settings = {"envs": 16, "turns": 16, "turns_a_step": 128, "rate": 1e-2}
    config = TrainConfig(env_id=ours, agent="mappo", steps=2**13, settings=settings)
    trained = train(config)
    # Of both together 7; by chance each turn pays a quarter at most.
    assert trained.curve[-1][1] > 3.0 and trained.curve[0][1] < 1.5


@pytest.mark.thorough
def test_mappo__trains_and_is_evaluated_by_the_name_of_the_agents(tmp_path):
    train(
        TrainConfig(env_id="hybrid_v1", env_kwargs=NAMED, agent="mappo", steps=96,
                    settings={"envs": 2, "turns": 8, "turns_a_step": 16}),
        tmp_path / "run",
    )  # fmt: skip
    returns = player(tmp_path / "run").returns("hybrid_v1", NAMED, 3)
    assert returns.shape == (3,)
