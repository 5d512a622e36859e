"""``hybrid_v1``: three agents, by turns or all at once."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import api_test, parallel_api_test

from parenvs.envs import hybrid_v1
from parenvs.tasks.hybrid.moves.catalog import AXES, SLOTS

NAMED = {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"instance": "hetero-8", "rows": "bare"}])
def test_apis(options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the test's own reset option, and of a reward of 0
        api_test(hybrid_v1.env(**options), num_cycles=6)
        parallel_api_test(hybrid_v1.parallel_env(**options), num_cycles=6)


def by_turns(env, choose, seed=0):
    """Play an episode by turns: actions, rewards of all agents, the last info, the plan."""
    env.reset(seed=seed)
    actions, rewards = [], []
    for agent in env.agent_iter():
        observation, _, over, _, info = env.last()
        if over:
            break
        assert (observation["action_mask"] == info["action_mask"]).all()
        assert env.observation_space(agent).contains(observation)
        actions.append((agent, choose(observation)))
        env.step(actions[-1][1])
        rewards.append(dict(env.unwrapped.rewards))
    return actions, rewards, env.unwrapped.infos["data"], env.unwrapped.plan()


def chance(seed):
    rng = np.random.default_rng(seed)
    return lambda seen: int(rng.choice(np.flatnonzero(seen["action_mask"])[:3]))


def rule(seen):
    return int(np.where(seen["action_mask"], seen["actions"][:, 0], -np.inf).argmax())


@pytest.mark.thorough
@pytest.mark.parametrize("instance", ["hybrid-test", "hetero-8"])
def test_forms__make_the_same_plan_of_the_same_actions(instance):
    for seed in range(2):
        actions, rewards, info, plan = by_turns(hybrid_v1.env(instance), chance(seed), seed)
        parallel = hybrid_v1.parallel_env(instance)
        observations, _ = parallel.reset(seed=seed)
        rng = np.random.default_rng(99)
        for turn, (agent, action) in enumerate(actions):
            assert parallel.turn == agent
            others = {name: 0 if name != agent else action for name in parallel.agents}
            for name in parallel.agents:
                if name != agent:
                    assert observations[name]["action_mask"].sum() == 1
                    assert not observations[name]["actions"].any()
                    others[name] = int(rng.integers(4))  # ignored
            observations, paid, over, _, infos = parallel.step(others)
            assert paid == rewards[turn] and len(set(paid.values())) == 1
        assert all(over.values()) and parallel.agents == []
        assert parallel.plan() == plan and infos["data"]["cost"] == info["cost"]
        total = sum(each["data"] for each in rewards)
        reference = info.get("reference", info["start"])
        assert total == pytest.approx(math.log(reference / info["cost"]))
        report = parallel.plays.problem.report(plan)
        assert report.legal and report.step.length == pytest.approx(info["cost"], rel=1e-12)


@pytest.mark.thorough
def test_agents__take_turns_over_their_axes():
    env = hybrid_v1.env(**NAMED)
    assert env.possible_agents == list(AXES)
    sizes = [env.action_space(agent).n for agent in AXES]
    assert sizes == [1 + SLOTS[axis] for axis in AXES]
    actions, *_ = by_turns(env, rule)
    agents = [agent for agent, _ in actions]
    assert agents == [AXES[k % 3] for k in range(len(agents))]
    assert [action for _, action in actions][-3:] == [0, 0, 0]  # all have passed


def test_illegal_action__ends_it_for_all():
    env = hybrid_v1.env(**NAMED)
    env.reset(seed=0)
    env.step(33)  # none of the agent's
    assert env.unwrapped.rewards == dict.fromkeys(AXES, -1.0)
    assert all(env.unwrapped.terminations.values())
    parallel = hybrid_v1.parallel_env(**NAMED)
    parallel.reset(seed=0)
    _, rewards, over, _, _ = parallel.step({"data": 55, "pipeline": 0, "operator": 0})
    assert set(rewards.values()) == {-1.0}
    assert all(over.values())


@pytest.mark.thorough
def test_hybrid_v1__alone_needs_pettingzoo():
    """The environment of one agent is made and planned with where PettingZoo is missing."""
    code = """
import sys
sys.modules["pettingzoo"] = None
import gymnasium as gym
import parenvs
print(gym.make("HybridPlan-v2", instance="hybrid/7").reset(seed=0)[1]["instance"])
try:
    parenvs.envs.hybrid_v1.env()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "hybrid/7"
    assert "agents need PettingZoo: pip install 'parenvs[envs]'" in done.stdout
