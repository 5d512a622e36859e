import csv
import dataclasses
import json
import shutil
import zipfile
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import toys
from cases import each

pytest.importorskip("sb3_contrib")

import torch
from interrupt import Interrupt, untimed
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from parenvs import load_plan, load_profile
from parenvs.agents.evaluation.evaluate import evaluate
from parenvs.agents.learning.train import learners as ppo
from parenvs.agents.learning.train.best_plan import BestPlan
from parenvs.agents.learning.train.checkpoint import Checkpoints, load_checkpoint
from parenvs.agents.learning.train.config import Config, load_config
from parenvs.agents.learning.train.learners import LEARNERS, learner_of
from parenvs.agents.learning.train.run import load_model, replay, train
from parenvs.agents.learning.vec_env import make_env
from parenvs.agents.names import TRAINED
from parenvs.cluster import PRESETS
from parenvs.core.judge import judge
from parenvs.core.request import STEPS
from parenvs.errors import ParenvsError

UPDATE = 64 * ppo.EPISODES * 2  # steps of an update, with the three stages of all problems here


def config_of(steps, **changes):
    """Three stages of VGG-19."""
    kwargs = {"instance": "vgg-19", "cluster": "B"}
    return Config(**{"env_kwargs": kwargs, "steps": steps, "seed": 5, **changes})


def environment(config):
    """The environment of a run, as anybody makes it."""
    return gym.make(config.env_id, **config.env_kwargs)


def parameters(model):
    """Everything of a model that training changes, its optimiser included."""
    state = {f"policy/{k}": v for k, v in model.policy.state_dict().items()}
    for i, moments in model.policy.optimizer.state_dict()["state"].items():
        state |= {f"optimiser/{i}/{k}": v for k, v in moments.items()}
    return state


def same(one, other):
    one, other = parameters(one), parameters(other)
    assert one.keys() == other.keys()
    assert len(one) > 30
    return all(torch.equal(one[key], other[key]) for key in one)


def disturb():
    """Random numbers drawn by somebody else between two runs."""
    torch.manual_seed(99)
    np.random.seed(99)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four updates without interruption: (folder, result, model)."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, *train(config_of(4 * UPDATE), folder, checkpoint_every=1)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [[UPDATE // 2], [int(2.5 * UPDATE)], [UPDATE + 64, 3 * UPDATE]])
def test_train__resume_is_bit_identical(whole, tmp_path, stops):
    """Interrupted before the first checkpoint, after two updates, and twice."""
    folder, result, model = whole
    config = config_of(4 * UPDATE)
    for i, stop in enumerate(stops):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path, resume=i > 0, checkpoint_every=1, callbacks=[Interrupt(stop)])
        assert (tmp_path / "checkpoint.zip").exists() == (stop > UPDATE)
        assert not (tmp_path / "model.zip").exists()
        disturb()
    again, resumed = train(config, tmp_path, resume=True, checkpoint_every=1)
    assert same(resumed, model)
    assert untimed(again) == untimed(result)
    assert (tmp_path / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()


@pytest.mark.thorough
def test_train__resume_goes_on_from_the_checkpoint(tmp_path):
    """It does not start anew: the steps before the checkpoint are not done twice."""
    config = config_of(3 * UPDATE)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, checkpoint_every=1, callbacks=[Interrupt(int(2.5 * UPDATE))])
    counter = Counter()
    result, _ = train(config, tmp_path, resume=True, callbacks=[counter])
    assert counter.calls * ppo.PPO_ENVS["PipelineCut-v0"] == UPDATE
    assert result.steps == 3 * UPDATE
    assert result.episodes == 3 * UPDATE // 2
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["0", "1"]


class Counter(BaseCallback):
    calls = 0

    def _on_step(self):
        self.calls += 1
        return True


@pytest.mark.thorough
def test_train__resume_of_a_finished_run_changes_nothing(whole, tmp_path):
    folder, result, model = whole
    folder = shutil.copytree(folder, tmp_path / "copy")
    again, resumed = train(config_of(4 * UPDATE), folder, resume=True, checkpoint_every=1)
    assert untimed(again) == untimed(result)
    assert same(resumed, model)


@pytest.mark.thorough
def test_train__seed_decides(whole):
    _, result, model = whole
    disturb()
    again, equal = train(config_of(4 * UPDATE))
    assert untimed(again) == untimed(result)
    assert same(equal, model)
    _, other = train(config_of(UPDATE, seed=6))
    _, first = train(config_of(UPDATE))
    assert not same(other, first)


@pytest.mark.thorough
def test_train__files(whole):
    folder, result, model = whole
    assert {path.name for path in folder.iterdir()} >= {
        "config.json", "checkpoint.zip", "log", "model.zip", "plan.json", "result.json",
    }  # fmt: skip
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert load_config(folder) == config_of(4 * UPDATE)
    content = json.loads((folder / "result.json").read_text())
    assert content == dataclasses.asdict(result)
    assert same(MaskablePPO.load(folder / "model.zip"), model)
    with (folder / "log" / "0" / "progress.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    best = [float(row["plan/best_return"]) for row in rows]
    assert best == sorted(best)
    assert best[-1] == pytest.approx(result.value, rel=1e-5)
    assert list((folder / "log" / "0").glob("events.out.tfevents*"))


def test_train__result_is_the_judges(whole):
    """The best episode's actions give the plan, and the plan the value."""
    folder, result, _ = whole
    plan = load_plan(folder / "plan.json")
    report = judge(plan, load_profile("vgg-19", PRESETS["B"]))
    assert report.legal
    assert result.value == pytest.approx(report.value, rel=1e-6)  # returns are float32 in SB3
    assert replay(config_of(1), result.actions) == plan
    assert result.steps == 4 * UPDATE
    assert result.episodes == 2 * UPDATE
    assert 0 < result.best_steps <= result.steps
    assert result.best_steps % ppo.PPO_ENVS["PipelineCut-v0"] == 0


def test_train__writes_nothing_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(config_of(1))
    assert not list(tmp_path.iterdir())


def test_train__leaves_torch_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(config_of(1))
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyboardInterrupt):
            train(config_of(1), callbacks=[Interrupt(1)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_train__reaches_the_optimum_of_the_toy(tmp_path):
    """Not the best sample only: the trained policy itself plays the optimum."""
    toy = toys.balanced(3, 8)
    kwargs = {**toy.kwargs(tmp_path), "candidates": "all"}
    config = Config(env_kwargs=kwargs, steps=25 * UPDATE)
    result, model = train(config)
    assert result.value == pytest.approx(float(toy.value), rel=1e-6)
    evaluation = evaluate(model, environment(config), episodes=50, seed=0)
    assert evaluation.plan.cuts == toy.cuts
    assert evaluation.value == pytest.approx(float(toy.value), rel=1e-6)
    assert evaluation.gap == pytest.approx(0, abs=1e-9)
    assert evaluation.best_value == evaluation.value
    untrained = learner_of("ppo").make(make_env(config.env_id, kwargs, 0, 64), config.env_id, 2, 0)
    other = evaluate(untrained, environment(config), episodes=50, seed=0)
    assert evaluation.returns.mean() > other.returns.mean() + 0.05


@pytest.mark.thorough
def test_train__stops_at_the_target(tmp_path):
    toy = toys.balanced()
    config = Config(env_kwargs=toy.kwargs(tmp_path), steps=50 * UPDATE)
    result, _ = train(config, target=float(toy.value) * 0.999, stop_at_target=True)
    assert result.target_steps == result.best_steps == result.steps < 2 * UPDATE
    assert 0 < result.target_seconds <= result.seconds
    goes_on, _ = train(
        dataclasses.replace(config, steps=2 * UPDATE), target=float(toy.value) * 0.999
    )
    assert goes_on.steps == 2 * UPDATE
    assert goes_on.target_steps == result.target_steps
    never, _ = train(dataclasses.replace(config, steps=UPDATE), target=1.0, stop_at_target=True)
    assert never.target_steps is never.target_seconds is None
    assert never.steps == UPDATE


def test_train__overrides_reach_the_agent():
    _, model = train(config_of(1, overrides={"learning_rate": 0.5, "n_steps": 2, "batch_size": 64}))
    assert (model.learning_rate, model.n_steps, model.batch_size) == (0.5, 2, 64)


def test_train__settings_hold_whole_episodes():
    for episode_steps in (1, 2, 3, 7):
        chosen = ppo.ppo_settings("PipelineCut-v0", episode_steps)
        assert chosen["n_steps"] % episode_steps == 0
        assert (ppo.PPO_ENVS["PipelineCut-v0"] * chosen["n_steps"]) % chosen["batch_size"] == 0
        assert chosen["gamma"] == 1.0


def test_train__refuses(tmp_path):
    with pytest.raises(ParenvsError, match="unknown agent 'dqn'"):
        train(config_of(1, agent="dqn"), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    folder = tmp_path / "run"
    train(config_of(1), folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(ParenvsError, match=r"holds a run already.*--resume"):
        train(config_of(1), folder)
    for changes in (
        {"seed": 6},
        {"steps": 2},
        {"overrides": {"gamma": 0.9}},
        {"env_kwargs": {"instance": "vgg-19", "cluster": "A"}},
        {"env_kwargs": {"instance": "vgg-19", "cluster": "B", "stages": 3}},
    ):
        with pytest.raises(ParenvsError, match=r"another configuration \(config.json differs\)"):
            train(config_of(**{"steps": 1, **changes}), folder, resume=True)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@each("text", ["", "{", "[]", "3", '"x"', "{}", '{"parenvs": "0", "odd": 1}'])
def test_train__broken_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    for call in (load_config, load_model, lambda f: train(config_of(1), f, resume=True)):
        with pytest.raises(ParenvsError, match="not the folder of a training run"):
            call(tmp_path)


# Checkpoints.


@pytest.fixture
def stopped(tmp_path):
    """A run with a checkpoint that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        train(
            config_of(3 * UPDATE), tmp_path, checkpoint_every=1, callbacks=[Interrupt(UPDATE + 1)]
        )
    return tmp_path


def truncated(data):
    return data[: len(data) // 2]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [truncated, flipped, lambda _: b"", lambda _: b"no zip at all"])
def test_train__broken_checkpoint(stopped, damage):
    path = stopped / "checkpoint.zip"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ParenvsError, match=r"checkpoint\.zip: not a checkpoint .*; train anew"):
        train(config_of(3 * UPDATE), stopped, resume=True)


@pytest.mark.thorough
@each("member", ["policy.pth", "policy.optimizer.pth", "agent.json", "state.json"])
@each("data", [None, b"", b"{}", b"broken"])
def test_train__broken_part_of_a_checkpoint(stopped, member, data):
    path = stopped / "checkpoint.zip"
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert parts.keys() == {"policy.pth", "policy.optimizer.pth", "agent.json", "state.json"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, member: data}.items():
            if content is not None:
                archive.writestr(name, content)
    with pytest.raises(ParenvsError, match=r"checkpoint\.zip: not a checkpoint"):
        train(config_of(3 * UPDATE), stopped, resume=True)
    path.write_bytes(whole)


def test_train__checkpoint_of_another_kind_of_problem(stopped):
    env = make_env("PipelineCut-v0", {"instance": "vgg-19", "cluster": "A"}, 0, 64)
    other = learner_of("ppo").make(env, "PipelineCut-v0", 1, 0)
    with pytest.raises(ParenvsError, match="not a checkpoint"):
        load_checkpoint(stopped / "checkpoint.zip", other, BestPlan())


@pytest.mark.thorough
def test_train__checkpoint_is_atomic(stopped, monkeypatch):
    """A crash while the next checkpoint is written leaves the one before, and nothing else."""
    path = stopped / "checkpoint.zip"
    before, files = path.read_bytes(), sorted(stopped.iterdir())
    write = zipfile.ZipFile.writestr

    def crash(self, name, data, *rest):
        if name == "state.json":
            raise KeyboardInterrupt
        write(self, name, data, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", crash)
        with pytest.raises(KeyboardInterrupt):
            train(config_of(3 * UPDATE), stopped, resume=True, checkpoint_every=1)
    assert path.read_bytes() == before
    assert sorted(stopped.iterdir()) == files
    result, _ = train(config_of(3 * UPDATE), stopped, resume=True)
    assert result.steps == 3 * UPDATE


@pytest.mark.thorough
def test_train__checkpoints_every_few_updates(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda self: saved.append(self.num_timesteps))
    train(config_of(5 * UPDATE), tmp_path, checkpoint_every=2)
    assert saved == [UPDATE, 2 * UPDATE, 4 * UPDATE]  # the first is early


# The best plan.


class Rollout:
    """A hand-made training run of two environments, for the callback alone."""

    def __init__(self, tracker):
        self.tracker = tracker
        self.records = {}
        model = SimpleNamespace(
            num_timesteps=0,
            get_env=lambda: SimpleNamespace(num_envs=2),
            logger=SimpleNamespace(record=self.records.__setitem__),
        )
        tracker.init_callback(model)
        tracker.on_training_start({}, {})

    def step(self, actions, rewards, dones):
        self.tracker.model.num_timesteps += 2
        self.tracker.locals = {
            "actions": np.array(actions),
            "rewards": np.array(rewards, dtype=np.float32),
            "dones": np.array(dones),
        }
        return self.tracker.on_step()


def test_train__without_an_episode_there_is_no_plan(tmp_path):
    """Rainbow's eight environments take one step each, of longer episodes."""
    config = config_of(8, env_id="OperatorPartition-v0", agent="rainbow", env_kwargs={})
    with pytest.warns(UserWarning, match="no episode has ended in 8 steps, so there is no plan"):
        result, _ = train(config, tmp_path)
    assert (result.value, result.actions, result.episodes) == (None, [], 0)
    assert not (tmp_path / "plan.json").exists()

    def refused(constant):
        raise AssertionError(f"{constant} is no JSON")

    stored = json.loads((tmp_path / "result.json").read_text(), parse_constant=refused)
    assert stored["value"] is None


def test_train__best_plan():
    """Two environments, episodes of different lengths, one illegal, one equal to the best."""
    tracker = BestPlan(target=0.5)
    run = Rollout(tracker)
    assert tracker.best_return == float("-inf")
    assert run.step([1, 4], [0, -1], [False, True])  # the second: [4], -1
    assert (tracker.best_return, tracker.best_actions, tracker.best_steps) == (-1, [4], 2)
    assert run.step([2, 5], [0.25, 0], [True, False])  # the first: [1, 2], 0.25
    assert (tracker.best_return, tracker.best_actions, tracker.best_steps) == (0.25, [1, 2], 4)
    assert tracker.target_steps is None
    assert run.step([7, 6], [0, 0.25], [False, True])  # the second: [5, 6], no better
    assert (tracker.best_actions, tracker.best_steps, tracker.episodes) == ([1, 2], 4, 3)
    assert run.step([8, 9], [0.5, 0.5], [True, False])  # the first: [7, 8], the target
    assert (tracker.best_return, tracker.best_actions, tracker.best_steps) == (0.5, [7, 8], 8)
    assert tracker.target_steps == 8
    assert tracker.target_seconds > 0
    assert run.step([1, 1], [0, 0.25], [False, True])  # the second: [9, 1], 0.5 + 0.25
    assert (tracker.best_return, tracker.best_actions, tracker.best_steps) == (0.75, [9, 1], 10)
    assert tracker.target_steps == 8  # the first time
    assert tracker.episodes == 5
    tracker.on_rollout_end()
    assert run.records == {"plan/best_return": 0.75}


def test_train__best_plan_stops():
    tracker = BestPlan(target=0.5, stop=True)
    run = Rollout(tracker)
    assert run.step([0, 0], [0.49, 0], [True, False])
    assert not run.step([0, 1], [0.5, 0], [True, False])


def test_train__best_plan_in_a_checkpoint():
    tracker = BestPlan(target=0.5)
    run = Rollout(tracker)
    run.step([1, 2], [0.5, 0.25], [True, True])
    state = json.loads(json.dumps(tracker.state(), allow_nan=False))
    other = BestPlan(target=0.5)
    other.restore(state)
    assert other.state() == tracker.state()
    assert (other.best_return, other.best_actions, other.target_steps) == (0.5, [1], 2)
    again = Rollout(other)
    assert other.seconds == tracker.seconds
    again.step([3, 4], [0.25, 0.6], [True, True])
    assert (other.best_actions, other.episodes, other.target_steps) == ([4], 4, 2)
    assert other.seconds > tracker.seconds  # time goes on, it does not start anew


# Evaluation.


def test_train__evaluation_is_the_judges(whole):
    folder, _, model = whole
    profile = load_profile("vgg-19", PRESETS["B"])
    env = environment(load_config(folder))
    evaluation = evaluate(load_model(folder), env, episodes=20, seed=1)
    for value, plan in (
        (evaluation.value, evaluation.plan),
        (evaluation.best_value, evaluation.best_plan),
    ):
        assert value == pytest.approx(judge(plan, profile).value, rel=1e-6)
    returns = evaluation.returns
    assert evaluation.best_value == max(evaluation.value, returns.max())
    assert returns.mean() > 0 and returns.std() > 0 and len(returns) == 20
    for one in (load_model(folder), model):
        again = evaluate(one, env, 20, seed=1)
        np.testing.assert_array_equal(again.returns, returns)
        assert (again.plan, again.best_plan) == (evaluation.plan, evaluation.best_plan)
    for seed in (2, 3, 4):  # the samples differ, the greedy episode does not
        other = evaluate(model, env, episodes=5, seed=seed)
        assert other.returns.tolist() != returns[:5].tolist()
        assert other.plan == evaluation.plan


def test_train__evaluation_never_plays_what_is_masked(whole):
    """An untrained agent without masks would; with them the worst is a plan beyond memory."""
    env = make_env("PipelineCut-v0", {"instance": "t5-base", "cluster": "C"}, 0, envs=1)
    model = learner_of("ppo").make(env, "PipelineCut-v0", 3, 0)
    config = config_of(1, env_kwargs={"instance": "t5-base", "cluster": "C"})
    evaluation = evaluate(model, environment(config), episodes=30, seed=0)
    assert len(evaluation.best_plan.cuts) == len(evaluation.plan.cuts) == 3
    assert evaluation.returns.mean() > 0
    # Of an untrained agent the best sample beats the greedy episode, and it is reported.
    assert evaluation.best_value > evaluation.value
    profile = load_profile("t5-base", PRESETS["C"])
    assert evaluation.best_value == pytest.approx(
        judge(evaluation.best_plan, profile).value, rel=1e-6
    )


def test_train__models_of_unfinished_runs(stopped):
    with pytest.raises(ParenvsError, match=r"no model\.zip yet; finish the run"):
        load_model(stopped)
    (stopped / "model.zip").write_bytes(b"PK")
    with pytest.raises(ParenvsError, match=r"model\.zip: not a trained agent"):
        load_model(stopped)


def test_train__replay():
    config = config_of(1)
    assert replay(config, []).cuts == ()
    env = make_env(config.env_id, config.env_kwargs, 0, envs=1)
    space = env.batch.game.space
    first = int(np.flatnonzero(space.legal([]))[0])
    assert replay(config, [first]).cuts == (space.pivots[first],)


@pytest.mark.thorough
def test_train__on_one_trace(tmp_path):
    """What the best episode chose on given nodes is kept, as there is no plan of a step."""
    events = [
        "seconds,event,node",
        *(f"0,add,n{k}" for k in range(12)),
        "130,remove,n3",
        "300,add,n3",
    ]
    (tmp_path / "trace.csv").write_text("\n".join(events) + "\n")
    kwargs = {"instance": str(tmp_path / "trace.csv")}
    result, _ = train(Config("ElasticPlan-v0", kwargs, steps=64), tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert kept["samples"] > 0
    assert len(kept["chosen"]) == kept["intervals"] == len(result.actions)


def test_train__defaults():
    assert tuple(LEARNERS)[:3] == TRAINED == ("ppo", "rainbow", "rainbow-paper")  # others are added
    assert Config().env_id == "PipelineCut-v0"
    assert Config().steps == STEPS == 60_000
