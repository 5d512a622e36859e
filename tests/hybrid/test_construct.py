"""``HybridPlan-v1`` with ``form="construct"``: uniform plans, axis by axis."""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, both, drawn, modes
from cases import each
from gymnasium.utils.env_checker import check_env

from parenvs.core.rows import WORST
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.improve import (
    CHOSEN,
    HybridConstruction,
    HybridImprovementEnv,
    HybridImprovementVectorEnv,
    HybridTeam,
)
from parenvs.tasks.hybrid.plan_arrays import fastest

COLUMNS = list(HybridConstruction.columns)
SMALL = {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64, "form": "construct"}
make = partial(HybridImprovementEnv, **SMALL)


def play(env, choose, **reset):
    """Observations, rewards, and the last info."""
    seen, rewards, over = [env.reset(**reset)[0]], [], False
    while not over:
        observation, reward, over, _, info = env.step(choose(seen[-1]))
        seen.append(observation)
        rewards.append(reward)
    return seen, rewards, info


def chance(rng, seen):
    return int(rng.choice(np.flatnonzero(seen["action_mask"])))


def test_construct__is_what_the_docstring_says():
    env = gym.make("HybridPlan-v1", **SMALL)
    check_env(env.unwrapped, skip_render_check=True)
    assert isinstance(env.unwrapped.game, HybridConstruction)
    assert len(HybridConstruction.contexts) == 21 and len(COLUMNS) == 14
    for name in HybridConstruction.ahead | {"value", "remaining"}:
        assert f"``{name}``" in HybridConstruction.__doc__
    rng = np.random.default_rng(0)
    for _ in range(3):
        seen, rewards, info = play(env, partial(chance, rng))
        assert all(env.observation_space.contains(each_) for each_ in seen)
        assert rewards[:-1] == [0.0] * (len(CHOSEN) - 1)
        assert rewards[-1] == pytest.approx(max(math.log(info["start"] / info["cost"]), WORST))
        report = env.unwrapped.problem.report(env.unwrapped.plan())
        assert report.legal and report.step.length == pytest.approx(info["cost"], rel=1e-12)


def test_construct__the_fastest_choices_make_the_start_plan():
    env = make()
    env.reset()
    uniform, start = env.game.starts[0].uniform, env.game.starts[0].plans
    for turn in range(len(CHOSEN)):
        left = env.game.left[0]
        best = left[uniform.length[left].argmin()]
        _, reward, over, _, info = env.step(int(uniform.codes[best, turn]))
    assert over and reward == 0.0 and info["cost"] == info["start"]
    chosen = fastest(env.problem)[0]
    assert env.plan().stages[0].tp == chosen[0] == start.tp[0, 0]
    assert len(env.plan().stages) == chosen[1]


@pytest.mark.thorough
@modes
def test_construct__a_batch_is_single_to_the_last_bit(mode):
    options = {"instance": "hybrid-validation", "family": "gpt", "form": "construct"}
    batched, single = both(HybridImprovementVectorEnv, options, 3, mode)
    rng, over = np.random.default_rng(0), np.zeros(3, dtype=bool)
    assert_same(batched.reset(seed=4), single.reset(seed=4))
    for _ in range(14):
        if over.any() and mode == "Disabled":
            mask = {"reset_mask": over.copy()}
            assert_same(*(x.reset(options=dict(mask)) for x in (batched, single)))
        outcome = batched.step(actions := drawn(batched.action_masks(), rng, 0.02))
        assert_same(outcome, single.step(actions))
        over = outcome[2]


def test_construct__an_illegal_action_ends_it():
    env = make()
    env.reset()
    _, reward, over, _, info = env.step(96)
    assert over and reward == WORST and "cost" not in info


@each("kind, form", [(HybridImprovementEnv, "both"), (HybridTeam, "construct")])
def test_construct__bad_forms(kind, form):
    with pytest.raises(ParenvsError, match="form must be improve"):
        kind(**{**SMALL, "form": form})
