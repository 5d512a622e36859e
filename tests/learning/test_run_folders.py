"""Run folders that strangers made: nothing in them is run, and every error is one line."""

import io
import json
import pickle
import random
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cases import each, slow

pytest.importorskip("torch")

import torch

from parenvs.agents.learning.config import TrainConfig, load_config
from parenvs.agents.learning.options import ALGORITHMS
from parenvs.agents.learning.play import Play
from parenvs.agents.learning.trainer import STATE, load, train, untrained
from parenvs.cli.app import app
from parenvs.errors import ParenvsError
from parenvs.tensors import check_finite, read_saved

KWARGS = {"instance": "vgg-19", "cluster": "B"}
SETTINGS = {"envs": 8, "turns": 5, "memory": 120, "first": 40, "minibatch": 8, "width": 8}
CONFIG = TrainConfig(
    env_id="PipelineCut-v0", env_kwargs=KWARGS, agent="rainbow", steps=120, settings=SETTINGS
)


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of Rainbow, whose last checkpoint is in the middle of episodes."""
    folder = tmp_path_factory.mktemp("finished")
    train(CONFIG, folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def pickled(path, protocol=2):
    """Harmful pickles in every form that a reader of weights may take."""
    harm = Harm(path)
    weights, legacy = io.BytesIO(), io.BytesIO()
    torch.save({"net": harm, "agent": harm}, weights)
    torch.save({"net": harm}, legacy, _use_new_zipfile_serialization=False)
    return [pickle.dumps(harm, protocol), weights.getvalue(), legacy.getvalue()]


READ = {"model.pt": load, "state.pt": lambda folder: train(CONFIG, folder, resume=True)}
members = each("member", READ)


@members
def test_run_folders__harmful_weights(finished, tmp_path, member):
    folder = shutil.copytree(finished, tmp_path / member)
    for data in pickled(tmp_path / "made"):
        (folder / member).write_bytes(data)
        with pytest.raises(ParenvsError, match=rf"{member}: damaged") as info:
            READ[member](folder)
        assert "\n" not in str(info.value)
    assert not (tmp_path / "made").exists()


@members
@each("content", [None, 3, [], {}, {"net": 3}, {"net": {}}, {"agent": {"net": {}}}])
def test_run_folders__anything_in_them(finished, tmp_path, member, content):
    folder = shutil.copytree(finished, tmp_path / f"{member}{random.random()}")
    torch.save(content, folder / member)
    with pytest.raises(
        ParenvsError, match=r"of another (run \(no '|network).*; remove it$"
    ) as info:
        READ[member](folder)
    assert "\n" not in str(info.value)


def test_run_folders__a_full_disk_leaves_the_last_checkpoint(folder):
    state, limits = (folder / STATE).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    (folder / "model.pt").unlink()
    with pytest.raises(ParenvsError, match=rf"train --resume --out {folder}$"):
        load(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(state) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"'{folder / STATE}'"):
            train(CONFIG, folder, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (folder / STATE).read_bytes() == state
    train(CONFIG, folder, resume=True)
    assert load(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["ppo", *slow(*sorted({*ALGORITHMS} - {"ppo", "mappo", "imitate"}))]
)
def test_train__what_is_not_finite_ends_it(tmp_path, monkeypatch, name):
    """One line, and a checkpoint of finite numbers."""
    monkeypatch.setattr("parenvs.agents.learning.trainer.SHARE", np.inf)  # one after each update
    collect, settings = Play.collect, {"envs": 16, "turns": 5, "width": 4}
    if name.startswith("rainbow"):
        settings.update(first=40, memory=120)
    for what in ("an observation", "a reward", "a loss or a weight"):

        def collected(play, agent, *given, what=what):
            batch = collect(play, agent, *given)
            odd = {"an observation": batch.seen.context, "a reward": batch.rewards}
            if play.turns > 300:
                odd.get(what, agent.weights[0].data).fill_(np.nan)
            return batch

        with monkeypatch.context() as patch:
            patch.setattr(Play, "collect", collected)
            with pytest.raises(ParenvsError, match=f"PipelineCut-v0: {what} is not finite by step"):
                train(replace(CONFIG, agent=name, settings=settings, steps=800), tmp_path / what)
        (state,) = read_saved(tmp_path / what / STATE)["team"]
        check_finite([state["agent"]["net"], state["agent"]["optimizer"]])


# The configuration.


def text_of(**changes):
    return {"schema": 1, "env_id": "PipelineCut-v0", "env_kwargs": KWARGS, **changes}


@each(
    ("changes", "words"),
    [
        ({"odd": 1}, "unknown field 'odd'"),
        ({"schema": 99}, "schema"),
        ({"env_id": 3}, "field 'env_id' must be a text of .*, not 3"),
        ({"env_id": "os:x-v0"}, "field 'env_id': no environment 'os:x-v0'"),
        ({"env_kwargs": []}, "field 'env_kwargs' must be an object"),
        ({"env_kwargs": {"instnce": "a"}}, "no such name 'instnce' .did you mean 'instance'"),
        ({"env_kwargs": {"problem": {}}}, "no such name 'problem'"),
        ({"env_kwargs": {"max_episode_steps": 1}}, "no such name 'max_episode_steps'"),
        ({"agent": None}, "field 'agent' must be a text"),
        ({"agent": "pp"}, "unknown agent 'pp' .did you mean 'ppo'"),
        ({"seed": -1}, "field 'seed' must be a whole number from 0"),
        ({"seed": True}, "field 'seed' must be a whole number"),
        ({"seed": 2**64}, "field 'seed'"),
        ({"steps": 0}, "field 'steps'"),
        ({"steps": 1.5}, "field 'steps'"),
        ({"settings": {"memory": 9}}, "ppo has no setting 'memory'"),
        ({"settings": {"width": 0}}, "width must be from 1 to 4096, not 0"),
        ({"settings": {"width": 10**6}}, "width must be from 1 to 4096"),
        ({"settings": {"discount": float("nan")}}, "NaN is not a JSON number"),
        ({"settings": {"envs": 1.5}}, r"envs must be int, not 1\.5"),
    ],
)
def test_run_folders__config_fields(tmp_path, changes, words):
    (tmp_path / "config.json").write_text(json.dumps(text_of(**changes)))
    with pytest.raises(ParenvsError, match=rf"config\.json.*{words}") as info:
        load_config(tmp_path)
    assert "\n" not in str(info.value)


@each("text", ["", "{", "[]", "3", '"x"', '{"parenvs": "0", "env_kwargs": {}}'])
def test_run_folders__broken_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ParenvsError, match=r"config\.json") as info:
        load_config(tmp_path)
    assert "\n" not in str(info.value)


def test_run_folders__no_folder_of_a_run(tmp_path):
    with pytest.raises(ParenvsError, match="not the folder of a training run"):
        load(tmp_path)


def test_run_folders__what_cannot_be_read_back_is_not_written(tmp_path):
    for config in (
        TrainConfig(env_id="PipelineCut-v0", env_kwargs=KWARGS, settings={"odd": 1}),
        TrainConfig(env_id="PipelineCut-v0", env_kwargs={"instance": object()}),
    ):
        with pytest.raises(ParenvsError):
            train(config, tmp_path / "run")
        assert not (tmp_path / "run" / "config.json").exists()


def test_run_folders__functions_need_trust(folder, tmp_path):
    """A run on a Python function would run the function's file."""
    made, code = tmp_path / "made", tmp_path / "code.py"
    code.write_text(f"open({str(made)!r}, 'w')\n")
    content = json.loads((folder / "config.json").read_text())
    content["env_kwargs"]["instance"] = f"{code}:step"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ParenvsError, match=r"is a Python function, whose file .*--trust"):
        load(folder)
    assert not made.exists()


def test_start__without_the_rule_and_from_imitation(tmp_path):
    """Scratch rates all actions alike; imitation leaves the network that it begins with."""
    plan = TrainConfig(env_id="PipelinePlan-v0", env_kwargs={"rows": "ahead"}, agent="ppo", steps=1)
    assert load_start(replace(plan, start="scratch")).weight == 0
    assert load_start(plan).weight == 3
    rainbow = untrained(replace(plan, agent="rainbow", start="scratch")).agent
    assert rainbow.net.weight == rainbow.target.weight == 0
    config = replace(plan, steps=128, start="imitation", settings={"envs": 8, "turns": 8})
    first = train(config, tmp_path / "run")
    taught = load(tmp_path / "run" / "imitation")
    assert taught.name == "imitate" and taught.net.weight != 3
    again = train(config, tmp_path / "run", resume=True).algorithm.net.state_dict()
    assert all(torch.equal(again[x], y) for x, y in first.algorithm.net.state_dict().items())
    with pytest.raises(ParenvsError, match="nobody teaches"):
        train(replace(config, env_id="HybridPlan-v2", env_kwargs={}))


def test_start__is_an_option_of_the_command(tmp_path):
    run = ["--steps", "1", "--num-envs", "1", "--out", str(tmp_path / "run")]
    app(
        ["train", "DataParallel-v0", "--env", "rows=ahead", "--from", "scratch", *run],
        standalone_mode=False,
    )
    assert load_config(tmp_path / "run").start == "scratch"


def load_start(config):
    return untrained(config).agent.net


def test_start__goes_on_from_the_network_of_a_run(finished, tmp_path):
    config = replace(CONFIG, steps=8, start=str(finished), settings={**SETTINGS, "first": 60})
    began, given = train(config).algorithm.net.state_dict(), load(finished).net.state_dict()
    assert all(torch.equal(began[name], given[name]) for name in given)
    wide = replace(config, settings={**SETTINGS, "width": 16})
    with pytest.raises(ParenvsError, match=r"model\.pt: of another network"):
        train(wide)
    with pytest.raises(ParenvsError, match="not the folder of a training run"):
        train(replace(config, start=str(tmp_path)))
