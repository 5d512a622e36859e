"""Environments whose actions are rows: what all of them hold."""

import json
import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from batches import assert_alike, both, modes
from cases import each
from gymnasium.utils.env_checker import check_env

from parenvs.agents.learning import config
from parenvs.cli.app import app
from parenvs.core.game import RowGame
from parenvs.core.registry import REMOVED, TASKS
from parenvs.core.task import late
from parenvs.errors import ParenvsError

SMALL = {
    "ElasticPlan-v2": (
        {"instance": "elastic-windows", "family": "g4dn-gpt-1.5b"},
        {"instance": "elastic/gone/bert-large/3"},
    ),
    "IntraOpSharding-v2": ({}, {"instance": "intra-op/inside/mesh/3"}),
    "PartitionPlan-v2": (
        {"instance": "partition-train", "family": "vgg"},
        {"instance": "partition-train/vgg-003"},
    ),
    "HybridPlan-v2": ({"instance": "hybrid-test", "family": "gpt"}, {"instance": "hetero-8/3"}),
    # Few turns: what looks best before mending soon leads to where nothing helps.
    "PipelineImprove-v0": ({"tier": "s8", "turns": 3}, {"instance": "generated-3/s8/3"}),
}
"""Arguments under which an environment is small, and options of a reset under them."""


def row_games():
    for task in TASKS.values():
        for env_id, place in task.envs.items():
            if isinstance(late(place), type) and issubclass(late(place), RowGame):
                yield env_id, late(place), late(f"{place}Env"), late(f"{place}VectorEnv")


GAMES = list(row_games())
games = each("game", GAMES)


def play(env, choose, **reset):
    """Play an episode; all observations, the rewards and the last info."""
    seen, rewards, done = [], [], False
    observation, info = env.reset(**reset)
    while not done:
        seen.append(observation)
        observation, reward, done, _, info = env.step(choose(observation))
        rewards.append(reward)
    return [*seen, observation], rewards, info


def rule(observation):
    """The action of the largest score."""
    return int(np.where(observation["action_mask"], observation["actions"][:, 0], -np.inf).argmax())


def chance(rng, observation):
    return int(rng.choice(np.flatnonzero(observation["action_mask"])))


@pytest.mark.thorough
@games
def test_rows__hold_what_the_docstring_says(game):
    env_id, kind, *_ = game
    env = gym.make(env_id, **SMALL[env_id][0])
    check_env(env.unwrapped, skip_render_check=True)
    words = env.unwrapped.__doc__
    for described in (kind.columns, kind.contexts):
        for number, name in enumerate(described):
            star = "*" if name in kind.ahead else ""
            assert f"| {number}{star} | ``{name}`` | " in words
    assert words.index("``rule``") < words.index("## Rewards")
    assert next(iter(kind.columns)) == "rule" and kind.rule
    assert kind.ahead < kind.columns.keys()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        seen, _, info = play(env, partial(chance, rng), seed=seed)
        for each_ in seen:
            assert env.observation_space.contains(each_)
            assert not each_["actions"][each_["action_mask"] == 0].any()
        assert not seen[-1]["actions"].any() and seen[-1]["action_mask"].all()
        assert info["bound"] <= info["cost"] * (1 + 1e-9)


@pytest.mark.thorough
@games
def test_rows__legal_returns_are_not_cut_and_an_illegal_action_is_below_them(game):
    """By chance, from the start and after some turns; a run that trains nothing is legal, too."""
    env_id, _, kind, _ = game
    env, legal = kind(**SMALL[env_id][0]), []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        _, rewards, info = play(env, partial(chance, rng), seed=seed)
        reference = info.get("reference", info["start"])
        assert sum(rewards) == pytest.approx(math.log(reference / info["cost"]), abs=1e-9)
        legal.append(sum(rewards))
        for turns in (0, 2):
            observation, _ = env.reset(seed=seed)
            total, done = 0.0, False
            for _ in range(turns):
                observation, reward, done, *_ = env.step(chance(rng, observation))
                total += reward
            if done:  # it has stopped by chance
                continue
            illegal = np.flatnonzero(observation["action_mask"] == 0)
            _, reward, done, _, info = env.step(int(illegal[-1]) if illegal.size else -1)
            assert done and "cost" not in info and env.step(0)[1] == 0.0
            worst = math.log(env.game.reference[0] / env.game.worst[0])
            assert total + reward == pytest.approx(worst - 1)
            assert total + reward < worst - 1e-9 <= legal[-1]
    if env_id.startswith("IntraOp"):
        assert min(legal) < math.log(0.2)  # where they were cut before


@pytest.mark.thorough
@games
def test_rows__bare_ones_are_the_same_without_what_looks_ahead(game):
    env_id, kind, single, _ = game
    arguments = SMALL[env_id][0]
    actions = []

    def recorded(observation):
        actions.append(rule(observation))
        return actions[-1]

    ahead, rewards, _ = play(single(**arguments), recorded, seed=1)
    bare_env = single(rows="bare", **arguments)
    bare, same, _ = play(bare_env, lambda _: actions.pop(0), seed=1)
    assert rewards == same and bare_env.game.shown == tuple(
        name for name in kind.columns if name not in kind.ahead
    )
    kept = [name not in kind.ahead for name in kind.columns]
    for one, other in zip(ahead, bare, strict=True):
        assert np.array_equal(one["actions"][:, kept], other["actions"])
        assert np.array_equal(one["context"], other["context"])
    with pytest.raises(ParenvsError, match=r"unknown rows .*; known: ahead, bare"):
        single(rows="none", **arguments)


@games
def test_rows__the_rule_is_better_than_chance(game):
    env_id, _, single, _ = game
    env, worth = single(**SMALL[env_id][0]), {"rule": 0.0, "chance": 0.0}
    rng = np.random.default_rng(0)
    for seed in range(5):
        for name, choose in (("rule", rule), ("chance", partial(chance, rng))):
            worth[name] += sum(play(env, choose, seed=seed)[1])
    assert worth["rule"] > worth["chance"]


@pytest.mark.thorough
@modes
@games
def test_rows__a_batch_is_single_to_the_last_bit(game, mode):
    env_id, _, _, kind = game
    for rows in ("ahead", "bare"):
        batched, single = both(kind, {"rows": rows, **SMALL[env_id][0]}, 3, mode)
        rng = np.random.default_rng(0)
        assert_alike(batched, single, mode, rng, illegal=0.02, resets={17: SMALL[env_id][1]})


@pytest.mark.slow
@games
def test_rows__sixteen_episodes_are_single_ones_to_the_last_bit(game):
    """Plans of one and of many stages side by side, of step times that ties are broken by."""
    env_id, _, _, kind = game
    arguments = {"instance": "hybrid-test"} if env_id.startswith("Hybrid") else {}
    rng = np.random.default_rng(0)
    assert_alike(*both(kind, arguments, 16), "NextStep", rng, steps=12, illegal=0.0)


@each("name", ["HybridPlan", "IntraOpSharding", "ElasticPlan", "PartitionPlan"])
def test_rows__version_0_is_gone_with_a_line_that_names_this_one(name, tmp_path):
    old, words = f"{name}-v0", f"Please use `{name}-v2`"
    for make in (gym.make, partial(gym.make_vec, num_envs=2)):
        with pytest.raises(gym.error.DeprecatedEnv, match=words):
            make(old)
    for train in (
        partial(app, ["train", old, "--out", str(tmp_path / "run")], standalone_mode=False),
        partial(config.check_env, old, {}),
    ):
        with pytest.raises(
            ParenvsError, match=rf"no environment '{old}' \(did you mean '{name}-v2"
        ):
            train()


@each("old, new", [x for x in REMOVED["environment"].items() if x[1]])
def test_environments__that_were_removed_name_their_successors(old, new, tmp_path):
    words = f"environment {old!r} was removed; use {new}$"
    run = tmp_path / "old"
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps({"schema": 1, "env_id": old, "env_kwargs": {}}))
    for make in (
        partial(gym.make, old),
        partial(gym.make_vec, old),
        partial(gym.make_vec, old, num_envs=2, vectorization_mode="sync"),
        partial(config.load_config, run),
        partial(app, ["train", old, "--out", str(tmp_path / "new")], standalone_mode=False),
        partial(app, ["evaluate", str(run)], standalone_mode=False),
    ):
        with pytest.raises(ParenvsError, match=words) as error:
            make()
        assert "\n" not in str(error.value)


def test_environments__of_several_agents_are_none_of_gymnasiums():
    for make in (gym.make, gym.make_vec, partial(gym.make_vec, num_envs=2)):
        with pytest.raises(ParenvsError, match=r"^hybrid_v1 has .* use parenvs.envs.hybrid_v1.par"):
            make("hybrid_v1")
