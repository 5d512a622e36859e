"""The adapter of native batches for SB3: a DummyVecEnv of single environments, to the last bit."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from cases import slow

pytest.importorskip("sb3_contrib")

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from parenvs.agents.learning.play import one_thread
from parenvs.agents.learning.sb3 import NativeVecEnv, has_batch, make_env

CUT, PLAN = "PipelineCut-v0", "PipelinePlan-v1"
OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
SETTINGS = [  # environment, arguments
    (CUT, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (CUT, {"instance": "t5-base", "cluster": "C"}),
    (OPERATOR, {"instance": "vgg-19", "rules": "automap"}),
    (OPERATOR, {"instance": "vgg-19", "linkage": False, "masked": True, "reward": "step_time"}),
    (BATCH, {"instance": "vgg-19"}),
    (PLAN, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (PLAN, {"tier": "s8"}),  # problems are drawn
]


def name_of(setting):
    return "-".join([setting[0].split("-")[0], *map(str, setting[1].values())])


settings = pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
fixed = pytest.mark.parametrize("setting", SETTINGS[:-1], ids=name_of)


def pair(setting, count, **changes):
    """The same environments in a native batch, and single."""
    name, kwargs = setting[0], {**setting[1], **changes}
    native, single = (make_env(name, kwargs, 3, count, native=n) for n in (True, False))
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


def test_step__hands_out_what_no_later_step_changes():
    native, _ = pair(SETTINGS[0], 3)
    native.reset()
    first, native.reset_infos = native.reset_infos, [{}] * 3
    rng, steps, copies = np.random.default_rng(0), [], []
    for _ in range(7):
        masks = native.env_method("action_masks")
        steps.append((*native.step(draw(rng, np.stack(masks)))[:3], masks))
        copies.append([{k: v.copy() for k, v in steps[-1][0].items()}])
        copies[-1] += [part.copy() for part in steps[-1][1:3]] + [[m.copy() for m in masks]]
    assert_same([list(step) for step in steps], copies)
    assert_same(native.reset_infos, first)  # noted anew where an episode began in a step


class Limited(SyncVectorEnv):
    """Episodes that are truncated, which no environment of the suite does, as a batch."""

    def __init__(self, setting, count, limit):
        name, kwargs = setting
        makers = [lambda: TimeLimit(gym.make(name, **kwargs), limit)] * count
        super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        self.env, self.spec = self.envs[0].unwrapped, self.envs[0].spec

    def action_masks(self):
        return np.stack(self.call("action_masks"))


@pytest.mark.thorough
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[3]], ids=["cut", "partition"])
def test_step__truncation(setting):
    """In the middle of an episode, and together with its end, which counts as no truncation."""
    for limit in (2, 3):
        single = make_env(setting[0], {**setting[1], "max_episode_steps": limit}, 3, 4)
        assert type(single) is DummyVecEnv
        native = NativeVecEnv(Limited(setting, 4, limit), single.get_attr("largest_return")[0])
        assert_same(native.reset(), dict(single.reset()))
        assert play(native, single, 50, np.random.default_rng(0), illegal=0.1) > 50
    native.reset()
    for _ in range(limit):
        *_, infos = native.step(get_action_masks(native).argmax(axis=1))
    assert [info["TimeLimit.truncated"] for info in infos] == [setting[0] != CUT] * 4


@pytest.mark.thorough
def test_train__truncation():
    """Agents add the value of the state that a truncated episode ends in."""
    setting, found = SETTINGS[0], []
    for native in (True, False):
        if native:
            env = NativeVecEnv(Limited(setting, 4, 2))
        else:
            env = make_env(setting[0], {**setting[1], "max_episode_steps": 2}, 0, 4)
        model = MaskablePPO("MultiInputPolicy", env, n_steps=8, batch_size=16, seed=0, device="cpu")
        with one_thread():
            model.learn(96)
        found.append(weights(model))
    assert_same(*found)


# Masks, attributes, methods.


@settings
def test_masks(setting):
    native, single = pair(setting, 3)
    assert is_masking_supported(native)
    assert_same(get_action_masks(native), get_action_masks(single))
    assert get_action_masks(native).dtype == bool
    native.reset(), single.reset()
    native.step(actions := draw(np.random.default_rng(0), get_action_masks(native)))
    single.step(actions)
    for indices in (None, 1, [2, 0], range(2)):
        assert_same(
            native.env_method("action_masks", indices=indices),
            single.env_method("action_masks", indices=indices),
        )
    method = native.get_attr("action_masks", 2)[0]
    assert_same(method(), single.get_attr("action_masks", 2)[0]())


@settings
def test_attributes(setting):
    native, single = pair(setting, 3)
    for name in ("largest_return", "episode_steps", "instance", "render_mode"):
        assert native.has_attr(name)
        for indices in (None, 2, [1, 2]):
            assert native.get_attr(name, indices) == single.get_attr(name, indices)
    # What is of a single environment's state, private, or not there at all.
    for name in ("step", "reset", "fork", "_over", "_cuts", "nothing"):
        assert not native.has_attr(name)
        with pytest.raises(AttributeError, match=name):
            native.get_attr(name)
        with pytest.raises(AttributeError, match=name):
            native.env_method(name)
    with pytest.raises(TypeError, match="takes no arguments"):
        native.env_method("plan", 1)
    with pytest.raises(NotImplementedError, match="share their attributes"):
        native.set_attr("instance", "t5-3b")


def test_problems__that_are_drawn():
    env = make_env(PLAN, {}, 0, 3)
    seen = env.reset()
    micro_batches = [pipeline.micro_batches for pipeline in env.get_attr("problem")]
    assert micro_batches == np.round(2 ** (6 * seen["context"][:, 4])).tolist()


@settings
def test_plan(setting):
    native, single = pair(setting, 3)
    native.reset(), single.reset()
    play(native, single, 2, np.random.default_rng(0))
    assert native.get_attr("instance") == single.get_attr("instance")
    for indices in (None, 1, [2, 0]):
        plans = native.env_method("plan", indices=indices)
        assert plans == single.env_method("plan", indices=indices)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[2]], ids=["cut", "partition"])
def test_render(setting):
    native, single = pair(setting, 2)
    native.reset(), single.reset()
    play(native, single, 1, np.random.default_rng(0))
    assert native.render_mode == "rgb_array"
    assert_same(native.render(), single.render())
    native, single = pair(setting, 2, render_mode="ansi")
    native.reset(), single.reset()
    assert native.env_method("render") == single.env_method("render")
    native, _ = pair(setting, 2, render_mode=None)
    with pytest.warns(UserWarning):
        assert native.render() is None


def test_seeds_and_options(monkeypatch):
    native, _ = pair(SETTINGS[0], 3)
    asked = []
    reset = native.batch.reset

    def spy(**kwargs):
        asked.append(kwargs)
        return reset(**kwargs)

    monkeypatch.setattr(native.batch, "reset", spy)
    native.reset()
    native.reset()
    native.set_options({"micro_batches": 7})
    native.seed(9)
    native.reset()
    native.reset()
    assert asked == [
        {"seed": [3, 4, 5], "options": None},
        {"seed": None, "options": None},
        {"seed": [9, 10, 11], "options": {"micro_batches": 7}},
        {"seed": None, "options": None},
    ]
    native.set_options([{}, {}, {"micro_batches": 7}])
    with pytest.raises(ValueError, match="same options"):
        native.reset()
    one, other = pair(SETTINGS[0], 3)
    assert one.action_space.sample() == other.action_space.sample()


def test_monitor():
    """Statistics are of rewards as the environment gives them; evaluation asks for them."""
    setting = (OPERATOR, {"instance": "vgg-19", "reward": "paper"})
    native, single = pair(setting, 2)
    scale = native.get_attr("largest_return")[0]
    assert scale > 1
    assert native.env_is_wrapped(Monitor) == single.env_is_wrapped(Monitor) == [True, True]
    assert native.env_is_wrapped(TimeLimit, 0) == [False]
    native.reset()
    total, steps, rng = 0.0, 0, np.random.default_rng(0)
    while True:
        _, rewards, dones, infos = native.step(draw(rng, get_action_masks(native)))
        total, steps = total + float(rewards[1]) * scale, steps + 1
        if dones[1]:
            break
    assert infos[1]["episode"]["r"] == pytest.approx(total, rel=1e-5)
    assert infos[1]["episode"]["l"] == steps
    with one_thread():
        model = MaskablePPO("MultiInputPolicy", native, seed=0, device="cpu")
        found = []
        for env in (native, single):
            torch.manual_seed(0)
            found.append(evaluate_policy(model, env, 5, False, return_episode_rewards=True))
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore:The environment is already wrapped")
@pytest.mark.parametrize("wrapper", [VecMonitor, partial(VecNormalize, norm_obs=False)])
def test_wrapped(wrapper):
    """Wrappers of SB3 on top, which write into infos."""
    native, single = (wrapper(env) for env in pair(SETTINGS[2], 3))
    assert_same(dict(native.reset()), dict(single.reset()))
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = draw(rng, get_action_masks(native))
        assert_same_step(native.step(actions), single.step(actions))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_refuses__other_autoreset_modes(mode):
    batch = gym.make_vec(CUT, num_envs=2, autoreset_mode=mode, **SETTINGS[0][1])
    with pytest.raises(ValueError, match=f"'SameStep', not '{mode.value}'"):
        NativeVecEnv(batch)


# Which environments are a batch.


def test_make_env__batches_of_the_suite_only():
    for name, kwargs in SETTINGS:
        assert has_batch(name, kwargs)
        assert has_batch(f"parenvs:{name}", kwargs)
    assert not has_batch(CUT, {"max_episode_steps": 2})
    assert not has_batch("CartPole-v1", {})
    assert not has_batch("Nothing-v0", {})
    entry = "parenvs.tasks.pipeline.cut:PipelineCutEnv"
    batch = "parenvs.tasks.pipeline.cut:PipelineCutVectorEnv"
    limited = gym.wrappers.TransformReward.wrapper_spec(func=abs)
    try:
        gym.register("Own-v0", entry, kwargs=SETTINGS[0][1])
        gym.register("OwnBatch-v0", entry, vector_entry_point=batch, kwargs=SETTINGS[0][1])
        gym.register("Short-v0", entry, vector_entry_point=batch, max_episode_steps=1)
        gym.register("Wrapped-v0", entry, vector_entry_point=batch, additional_wrappers=(limited,))
        found = [has_batch(f"{x}-v0", {}) for x in ("Own", "OwnBatch", "Short", "Wrapped")]
        assert found == [False, True, False, False]
        assert type(make_env("Own-v0", {}, 0, 2)) is DummyVecEnv
        env = make_env("OwnBatch-v0", {}, 0, 2)
        assert type(env) is NativeVecEnv
        assert env.get_attr("instance") == ["vgg-19"] * 2
    finally:
        for name in ("Own-v0", "OwnBatch-v0", "Short-v0", "Wrapped-v0"):
            gym.registry.pop(name, None)


def weights(model):
    """Everything that training changes, its optimiser included."""
    state = {f"policy/{k}": v.numpy() for k, v in model.policy.state_dict().items()}
    for i, moments in model.policy.optimizer.state_dict()["state"].items():
        state |= {f"optimiser/{i}/{k}": np.asarray(v) for k, v in moments.items()}
    return state
