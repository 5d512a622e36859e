"""The adapter of native batches for SB3: a DummyVecEnv of single environments, to the last bit."""

import numpy as np
import pytest
from cases import slow

pytest.importorskip("sb3_contrib")

from gymnasium.wrappers import TransformReward
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from parenvs.agents.learning.sb3 import NativeVecEnv, make_env

CUT, PLAN = "PipelineCut-v0", "PipelinePlan-v0"
OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
SETTINGS = [  # environment, arguments
    (CUT, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (CUT, {"instance": "t5-base", "cluster": "C"}),
    (OPERATOR, {"instance": "vgg-19", "rules": "automap"}),
    (OPERATOR, {"instance": "vgg-19", "linkage": False, "masked": True, "reward": "step_time"}),
    (BATCH, {"instance": "vgg-19"}),
    (PLAN, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (PLAN, {"rows": "ahead", "repeat": 2}),  # problems are drawn
]


def name_of(setting):
    return "-".join([setting[0].split("-")[0], *map(str, setting[1].values())])


settings = pytest.mark.parametrize("setting", SETTINGS, ids=name_of)


def scaled(env):
    return TransformReward(env, lambda reward: reward / env.get_wrapper_attr("largest_return"))


def pair(setting, count, **changes):
    """The same environments in a native batch, and single."""
    name, kwargs = setting[0], {**setting[1], **changes}
    native = make_env(name, kwargs, 3, count)
    single = make_vec_env(name, count, 3, env_kwargs=kwargs, wrapper_class=scaled)
    assert type(native) is NativeVecEnv and type(single) is DummyVecEnv
    return native, single


def assert_same(one, other):
    """Equal structure, types, shapes and bytes; seconds apart."""
    if isinstance(one, (dict, list)):
        assert isinstance(other, dict if isinstance(one, dict) else list)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            if key != "t":
                assert_same(one[key], other[key])
    else:
        assert type(one) is type(other)
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def assert_same_step(one, other):
    """What two ``step`` return; infos where an episode ends."""
    assert_same(list(one[:3]), list(other[:3]))
    for done, info, expected in zip(one[2], one[3], other[3], strict=True):
        if done:
            assert_same(info, expected)
            assert info["episode"]["t"] >= 0
        else:
            assert info == {}


def draw(rng, masks, illegal=0.0):
    """An action of each environment, drawn from the legal ones; some from all."""
    odds = np.where(masks | (rng.random((len(masks), 1)) < illegal), rng.random(masks.shape), -1.0)
    return odds.argmax(axis=1)


def play(native, single, steps, rng, illegal=0.0):
    """Step both side by side; the number of episodes that end."""
    episodes = 0
    for _ in range(steps):
        masks = get_action_masks(single)
        assert_same(get_action_masks(native), masks)
        actions = draw(rng, masks, illegal)
        results = native.step(actions), single.step(actions)
        assert_same_step(*results)
        assert_same(native.reset_infos, single.reset_infos)
        episodes += results[0][2].sum()
    return episodes


@pytest.mark.thorough
@settings
@pytest.mark.parametrize("count", [4, *slow(1)])
def test_step__as_single_environments(setting, count):
    native, single = pair(setting, count)
    assert native.num_envs == single.num_envs == count
    assert native.observation_space == single.observation_space
    assert native.action_space == single.action_space
    assert native.metadata == single.metadata
    rng, episodes = np.random.default_rng(count), 0
    for illegal in (0.0, 0.05):
        for _ in range(3):  # resets in the middle of episodes too
            assert_same(native.reset(), dict(single.reset()))
            assert_same(native.reset_infos, single.reset_infos)
            episodes += play(native, single, 60, rng, illegal)
    assert episodes >= 2 * count
    native.close()


@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[6]], ids=name_of)
def test_seeds_and_options(setting):
    envs = native, single = pair(setting, 3)
    options = {"micro_batches": 7} if setting[0] == CUT else {}
    for change in (
        lambda env: None,
        lambda env: env.seed(9),
        lambda env: env.set_options(options),
        lambda env: None,
    ):
        for env in envs:
            change(env)
        assert_same(native.reset(), dict(single.reset()))
        assert_same(native.reset_infos, single.reset_infos)
        play(native, single, 5, np.random.default_rng(0))
    native.set_options([{}, {}, {"micro_batches": 7}])
    with pytest.raises(ValueError, match="same options"):
        native.reset()
    assert native.action_space.sample() == single.action_space.sample()
