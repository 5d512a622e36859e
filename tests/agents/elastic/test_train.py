"""The agent that learns: its network scores candidates one by one, and plays what fits."""

import elastic_toys as toys
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch

from parenvs.agents.elastic.train import ElasticPolicy, train
from parenvs.agents.elastic.train import returns as played
from parenvs.envs.elastic.single import ElasticPlanEnv


@pytest.fixture(scope="module")
def problem():
    return toys.problem("wide", 8)


def test_train__scores_do_not_depend_on_the_order_of_candidates(problem):
    env = ElasticPlanEnv(problem=problem)
    torch.manual_seed(0)
    policy = ElasticPolicy(env.observation_space, env.action_space, lambda _: 1e-3)
    observation = env.reset(seed=0)[0]
    order = np.random.default_rng(0).permutation(64)
    other = {**observation, **{key: observation[key][order] for key in ("plans", "change")}}
    scores, worth = [], []
    for each in (observation, other):
        tensors = {key: torch.as_tensor(value)[None] for key, value in each.items()}
        scores.append(policy.get_distribution(tensors).distribution.logits[0].detach().numpy())
        worth.append(policy.predict_values(tensors).item())
    assert scores[0][order] == pytest.approx(scores[1], abs=1e-5)
    assert worth[0] == pytest.approx(worth[1], abs=1e-5)
    assert np.ptp(scores[0][:10]) > 1e-4


def test_train__plays_the_courses_of_its_seeds(problem):
    agent = train(seed=0, steps=1, problem=problem, envs=2)
    found = played(agent, range(3), problem=problem)
    again = played(agent, range(3), problem=problem)
    assert found["value"].shape == (3,)
    assert (found["value"] == again["value"]).all()
    best = [problem.best[problem.drawn(seed).nodes].sum() for seed in range(3)]
    assert found["share"] == pytest.approx(found["value"] * problem.ideal / np.array(best))
