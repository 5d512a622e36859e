"""The adapter of native batches for SB3: a DummyVecEnv of single environments, to the last bit."""

import json
import zipfile
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from cases import slow

pytest.importorskip("sb3_contrib")

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from interrupt import Interrupt, untimed
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.rainbow.buffer import env_name, read_masks
from parenvs.agents.learning.train import run as trainer
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.run import Config, train
from parenvs.agents.learning.vec_env import NativeVecEnv, has_batch, make_env, one_thread
from parenvs.bench.curves import Curve

CUT, PLAN = "PipelineCut-v0", "PipelinePlan-v0"
OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
SETTINGS = [  # environment, arguments
    (CUT, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (CUT, {"instance": "t5-base", "cluster": "C"}),
    (OPERATOR, {"instance": "vgg-19", "rules": "automap"}),
    (OPERATOR, {"instance": "vgg-19", "linkage": False, "masked": True, "reward": "step_time"}),
    (BATCH, {"instance": "vgg-19"}),
    (PLAN, {"instance": "vgg-19", "cluster": "B", "stages": 4}),
    (PLAN, {"repeat": 12}),  # problems are drawn
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
@pytest.mark.parametrize("agent", ["ppo", "rainbow"])
def test_train__truncation(agent):
    """Agents add the value of the state that a truncated episode ends in, by its mask."""
    setting, found = SETTINGS[0], []
    for native in (True, False):
        if native:
            env = NativeVecEnv(Limited(setting, 4, 2))
        else:
            env = make_env(setting[0], {**setting[1], "max_episode_steps": 2}, 0, 4)
        if agent == "ppo":
            model = MaskablePPO(
                "MultiInputPolicy", env, n_steps=8, batch_size=16, seed=0, device="cpu"
            )
        else:
            model = Rainbow("MultiInputPolicy", env, learning_starts=20, seed=0, device="cpu")
        with one_thread():
            model.learn(96)
        if agent == "rainbow":
            assert model.replay_buffer.timeouts.sum() == 48
            found.append(model.replay_buffer.next_masks[:24])
        found.append(weights(model))
    half = len(found) // 2
    assert_same(found[:half], found[half:])


# Masks, attributes, methods.


@settings
def test_masks(setting):
    native, single = pair(setting, 3)
    assert is_masking_supported(native)
    for ask in (get_action_masks, partial(read_masks, masking=True)):
        assert_same(ask(native), ask(single))
        assert ask(native).dtype == bool
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
    assert env_name(native) == env_name(single) == setting[0]
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
    env = make_env("PipelinePlan-v0", {}, 0, 3)
    seen = env.reset()
    stages = [pipeline.stages for pipeline in env.get_attr("problem")]
    assert stages == np.round(8 * seen["numbers"][:, 0]).tolist()


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
    entry = "parenvs.tasks.pipeline.game.cut:PipelineCutEnv"
    batch = "parenvs.tasks.pipeline.game.cut:PipelineCutVectorEnv"
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
        assert env_name(env) == "OwnBatch-v0"
    finally:
        for name in ("Own-v0", "OwnBatch-v0", "Short-v0", "Wrapped-v0"):
            gym.registry.pop(name, None)


# Training.


def running(rng, setting, lengths):
    """Actions of as many steps, or as many as an episode has before its last."""
    env = gym.make(setting[0], **setting[1])
    found = []
    for length in lengths:
        env.reset()
        found.append([])
        for _ in range(length):
            action = int(draw(rng, env.get_wrapper_attr("action_masks")()[None])[0])
            if env.step(action)[2]:
                break
            found[-1].append(action)
    return found


@pytest.mark.thorough
@fixed
@pytest.mark.parametrize(
    "lengths", [(0, 9, 2, 9, 1), *slow(((0, 0, 0, 0, 0),), ((1, 1, 1, 1, 1),))]
)
def test_replay(setting, lengths):
    """Environments come back to where they were, with the statistics of their episodes."""
    native, single = pair(setting, 5)
    rng = np.random.default_rng(0)
    tracker = BestPlan()
    tracker._running = running(rng, setting, lengths)
    tracker._returns = [0.0] * len(lengths)
    looks = []
    for env in (native, single):
        env.reset()
        env.step(get_action_masks(env).argmax(axis=1))  # somewhere else
        tracker.replay(env, look := SimpleNamespace())
        looks.append({**vars(look), "_last_obs": dict(look._last_obs)})
    assert_same(*looks)
    assert looks[0]["_last_episode_starts"].tolist() == [length == 0 for length in lengths]
    assert play(native, single, 60, rng, illegal=0.1) >= 5


def weights(model):
    """Everything that training changes, its optimiser included."""
    state = {f"policy/{k}": v.numpy() for k, v in model.policy.state_dict().items()}
    for i, moments in model.policy.optimizer.state_dict()["state"].items():
        state |= {f"optimiser/{i}/{k}": np.asarray(v) for k, v in moments.items()}
    return state


def stored(model):
    """The steps that an agent keeps."""
    buffer = getattr(model, "replay_buffer", None) or model.rollout_buffer
    names = ("actions", "rewards", "dones", "timeouts", "masks", "next_masks", "episode_starts",
             "action_masks", "returns", "observations", "next_observations")  # fmt: skip
    kept = {name: getattr(buffer, name) for name in names if hasattr(buffer, name)}
    return {"buffer": kept, "weights": weights(model)}


AGENTS = {  # steps, where a run is interrupted, rollouts between checkpoints, settings
    "ppo": (2.6, 2.3, 1, {}),
    "rainbow": (320, 250, 7, {"learning_starts": 100, "buffer_size": 300}),
    "rainbow-paper": (120, 100, 37, {"buffer_size": 90}),
}


TRAINED = [(SETTINGS[0], "rainbow"), (SETTINGS[2], "ppo")]
MORE = [(SETTINGS[i], agent) for i in (0, 2, 4) for agent in AGENTS]
MORE += [(SETTINGS[5], agent) for agent in ("ppo", "rainbow")]
MORE = [pytest.param(*one, marks=pytest.mark.slow) for one in MORE if one not in TRAINED]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setting", "agent"), [*TRAINED, *MORE], ids=lambda x: x if isinstance(x, str) else x[0]
)
def test_train__as_on_single_environments(setting, agent, tmp_path, monkeypatch):
    """Results, weights, curves; also of a run that goes on on the other kind of environments."""
    steps, stop, often, options = AGENTS[agent]
    if agent == "ppo":
        # Updates that end in the middle of episodes.
        options = {"n_steps": 16, "batch_size": 64, "n_epochs": 2}
        update = 16 * (64 if setting[0] in (CUT, PLAN) else 8)
        steps, stop = int(steps * update), int(stop * update)
    elif setting[0] == PLAN:  # 64 environments side by side
        steps, stop = 4 * steps, 4 * stop
    config = Config(*setting, agent=agent, seed=1, steps=steps, overrides=options)
    make, found = trainer.make_env, []

    def use(native):
        monkeypatch.setattr(trainer, "make_env", partial(make, native=native))

    for native in (True, False):
        use(native)
        curve = Curve(steps)
        result, model = train(config, target=0.2, callbacks=[curve])
        assert type(model.get_env()) is (NativeVecEnv if native else DummyVecEnv)
        found.append((untimed(result), curve.points, stored(model)))
    assert found[0][:2] == found[1][:2]
    assert found[0][0].episodes > 5
    assert_same(found[0][2], found[1][2])
    for first, second in ((True, True), (False, True)):
        folder = tmp_path / f"{first}-{second}"
        use(first)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder, target=0.2, checkpoint_every=often, callbacks=[Interrupt(stop)])
        with zipfile.ZipFile(folder / "checkpoint.zip") as archive:
            actions = json.loads(archive.read("state.json"))["tracker"]["_running"]
        assert any(actions)  # in the middle of episodes
        torch.manual_seed(99)
        np.random.seed(99)
        use(second)
        result, model = train(config, folder, resume=True, target=0.2, checkpoint_every=often)
        assert untimed(result) == found[0][0]
        assert_same(weights(model), found[0][2]["weights"])
