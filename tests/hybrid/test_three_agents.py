"""``hybrid_v0``: three agents, by turns or all at once."""

import warnings

import numpy as np
import pytest
from cases import slow

pytest.importorskip("pettingzoo")

from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import parenvs
from parenvs.envs import hybrid_v0

CASES = [
    {"instance": "hybrid/7"},
    {"pool": 5},
    {"cluster": "hetero", "pool": 2},
    {"instance": "llama3-8b", "cluster": "4x8:h100", "batch": 64, "mask": "completable"},
]


@pytest.mark.parametrize(
    "options", [*CASES[:3], *slow(CASES[3])], ids=["named", "drawn", "hetero", "completable"]
)
def test_apis(options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the test's own reset option, and of a reward of 0
        api_test(hybrid_v0.env(**options), num_cycles=120)
        parallel_api_test(hybrid_v0.parallel_env(**options), num_cycles=120)


def test_seeds():
    seed_test(lambda: hybrid_v0.env(pool=10), num_cycles=60)
    parallel_seed_test(lambda: hybrid_v0.parallel_env(pool=10), num_cycles=60)


def by_turns(env, rng, seed):
    """Play an episode by turns; actions, rewards of all agents, names, the plan."""
    env.reset(seed=seed)
    actions = []
    for agent in env.agent_iter():
        observation, _, over, _, info = env.last()
        if over:
            env.step(None)
            continue
        assert (observation["action_mask"] == info["action_mask"]).all()
        action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
        actions.append((agent, action))
        env.step(action)
        rewards = dict(env.unwrapped.rewards)
        if env.unwrapped.terminations and all(env.unwrapped.terminations.values()):
            break
    return actions, rewards, env.unwrapped.infos["data"], env.unwrapped.plan()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"pool": 5}, {"instance": "hetero-8", "pool": 3}])
def test_forms__make_the_same_plan_of_the_same_actions(options):
    for seed in range(6):
        actions, rewards, info, plan = by_turns(
            hybrid_v0.env(**options), np.random.default_rng(seed), seed
        )
        again = by_turns(hybrid_v0.env(**options), np.random.default_rng(seed), seed)
        assert (again[0], again[1], again[3]) == (actions, rewards, plan)
        assert again[2]["length_seconds"] == info["length_seconds"]
        parallel = hybrid_v0.parallel_env(**options)
        observations, _ = parallel.reset(seed=seed)
        rng = np.random.default_rng(99)
        for agent, action in actions:
            assert parallel.turn == agent
            others = {name: 0 if name != agent else action for name in parallel.agents}
            for name in parallel.agents:
                if name != agent:
                    assert observations[name]["action_mask"].sum() == 1
                    others[name] = int(rng.integers(4))  # ignored
            observations, paid, over, _, infos = parallel.step(others)
        assert all(over.values())
        assert parallel.agents == []
        assert paid == rewards
        assert len(set(paid.values())) == 1
        assert parallel.plan() == plan
        report = parenvs.judge(plan)
        problem = parallel.plays.problem
        value = problem.bound_seconds / report.step.length if report.legal else -1.0
        assert paid["data"] == value
        assert infos["data"]["length_seconds"] == report.step.length


def test_agents__have_turns_as_specified():
    actions, *_ = by_turns(hybrid_v0.env("hybrid/7"), np.random.default_rng(2), 0)
    agents = [agent for agent, _ in actions]
    assert agents[0] == "data"
    assert agents[1:] == ["pipeline", "pipeline", "operator", "data"] * (len(agents) // 4)
    free, *_ = by_turns(hybrid_v0.env(cluster="hetero", pool=1), np.random.default_rng(2), 0)
    agents = [agent for agent, _ in free]
    assert agents[1:] == ["pipeline", "pipeline", "operator", "data"] * (len(agents) // 4)


def test_illegal_action__ends_it_for_all():
    env = hybrid_v0.env("hybrid/7")
    env.reset(seed=0)
    env.step(55)  # a choice of the data turn, in the global turn
    assert env.unwrapped.rewards == {"data": -1.0, "pipeline": -1.0, "operator": -1.0}
    assert all(env.unwrapped.terminations.values())
    parallel = hybrid_v0.parallel_env("hybrid/7")
    parallel.reset(seed=0)
    _, rewards, over, _, _ = parallel.step({"data": 55, "pipeline": 0, "operator": 0})
    assert set(rewards.values()) == {-1.0}
    assert all(over.values())


def test_state__is_all_parts():
    env = hybrid_v0.parallel_env("hybrid/7")
    env.reset(seed=0)
    assert env.state().shape == (1696,)
