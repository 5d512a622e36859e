"""Run folders that strangers made: nothing in them is run, and every error is one line."""

import copy
import io
import json
import pickle
import random
import shutil
import zipfile

import gymnasium as gym
import pytest
from cases import each

pytest.importorskip("sb3_contrib")

import torch
from interrupt import Interrupt

from parenvs.agents.learning.train.config import Config, building, load_config
from parenvs.agents.learning.train.run import load_model, train
from parenvs.errors import ParenvsError

KWARGS = {"instance": "vgg-19", "cluster": "B"}
CONFIG = Config(env_kwargs=KWARGS, agent="rainbow", steps=1600, overrides={"buffer_size": 3000})


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of Rainbow, with a checkpoint."""
    folder = tmp_path_factory.mktemp("finished")
    train(CONFIG, folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def rewritten(path, **members):
    """Write a zip anew with members replaced."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**parts, **members}.items():
            archive.writestr(name, data)


def pickled(path, protocol=2):
    """Harmful pickles in every form that a reader of weights or arrays may take."""
    harm = Harm(path)
    weights, arrays, legacy = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save({"policy": harm}, weights)
    torch.save({"policy": harm}, legacy, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(arrays, "w") as archive:
        import numpy as np

        array = io.BytesIO()
        np.lib.format.write_array(array, np.array([harm], dtype=object), allow_pickle=True)
        archive.writestr("head.npy", array.getvalue())
    plain = pickle.dumps(harm, protocol)
    return [plain, weights.getvalue(), legacy.getvalue(), arrays.getvalue()]


def test_run_folders__harm_is_harm(tmp_path):
    """The pickles of these tests do what they are for, where they are loaded."""
    for number, data in enumerate(pickled(tmp_path / "made")):
        if number == 0:
            pickle.loads(data)
        elif number < 3:
            torch.load(io.BytesIO(data), weights_only=False)
        assert (tmp_path / "made").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("member", ["policy.pth", "policy.optimizer.pth", "agent.json"])
def test_run_folders__harmful_model(folder, tmp_path, member):
    made = tmp_path / "made"
    for data in pickled(made):
        rewritten(folder / "model.zip", **{member: data})
        with pytest.raises(ParenvsError, match=r"model\.zip: not a trained agent"):
            load_model(folder)
    assert not made.exists()


@pytest.mark.thorough
def test_run_folders__pickled_data_of_a_model_are_not_read(folder, tmp_path):
    """SB3's own ``load`` runs them; the command needs the weights alone."""
    made = tmp_path / "made"
    before = load_model(folder).get_parameters()["policy"]
    with zipfile.ZipFile(folder / "model.zip") as archive:
        data = json.loads(archive.read("data"))
    import base64

    harm = base64.b64encode(pickle.dumps(Harm(made))).decode()
    data["policy_class"] = {":type:": "type", ":serialized:": harm}
    rewritten(folder / "model.zip", data=json.dumps(data))
    after = load_model(folder).get_parameters()["policy"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not made.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("member", ["replay.npz", "policy.pth", "state.json", "replay.pkl"])
def test_run_folders__harmful_checkpoint(folder, tmp_path, member):
    made = tmp_path / "made"
    for data in pickled(made):
        rewritten(folder / "checkpoint.zip", **{member: data})
        if member == "replay.pkl":  # of older versions: not read
            train(CONFIG, folder, resume=True)
            break
        with pytest.raises(ParenvsError, match=r"checkpoint\.zip: not a checkpoint .*train anew"):
            train(CONFIG, folder, resume=True)
    assert not made.exists()


def test_run_folders__compressed_members_are_refused(folder):
    """What is not compressed is no larger than the file."""
    for path, call in (
        (folder / "model.zip", lambda: load_model(folder)),
        (folder / "checkpoint.zip", lambda: train(CONFIG, folder, resume=True)),
    ):
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in parts.items():
                archive.writestr(name, data)
        with pytest.raises(ParenvsError, match="is compressed"):
            call()


@pytest.mark.thorough
def test_run_folders__checkpoints_that_ask_for_much(folder):
    """Arrays that inflate, a header of 2^40 elements, and an episode of 10^6 steps."""
    import numpy as np

    path = folder / "checkpoint.zip"
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        state = json.loads(archive.read("state.json"))
        with np.load(io.BytesIO(archive.read("replay.npz"))) as stored:
            arrays = dict(stored)
    state["tracker"]["_running"][0] = [0] * 10**6
    large, tall = io.BytesIO(), io.BytesIO()
    np.savez_compressed(large, **{**arrays, "actions": np.zeros(2**26, np.uint8)})
    with zipfile.ZipFile(tall, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array)
            data = member.getvalue()
            old, new = (f"({size}," for size in (len(array), 2**40))
            archive.writestr(f"{name}.npy", data.replace(old.encode(), new.encode(), 1))
    for changed, words in (
        ({"replay.npz": large.getvalue()}, "unpacks to .* and may to at most"),
        ({"replay.npz": tall.getvalue()}, "header tells .*1099511627776"),
        ({"state.json": json.dumps(state)}, "in the middle after 1000000"),
    ):
        path.write_bytes(whole)
        rewritten(path, **changed)
        with pytest.raises(ParenvsError, match=rf"checkpoint\.zip: not a checkpoint \(.*{words}"):
            train(CONFIG, folder, resume=True)


@pytest.mark.thorough
def test_run_folders__first_checkpoint_is_early(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, callbacks=[Interrupt(1016)])
    with zipfile.ZipFile(tmp_path / "checkpoint.zip") as archive:
        steps = json.loads(archive.read("agent.json"))["counters"]["num_timesteps"]
        assert steps == 1000
        # Rows of the replay that are still empty are not written.
        assert len(archive.read("replay.npz")) < 1000 * 2**10


# The configuration.


def text_of(**changes):
    return {"parenvs": "0", "env_id": "PipelineCut-v0", "env_kwargs": KWARGS, **changes}


@each(
    ("changes", "words"),
    [
        ({"odd": 1}, "unknown field 'odd'"),
        ({"parenvs": 3}, "field 'parenvs' must be the version"),
        ({"env_id": 3}, "field 'env_id' must be a text, not 3"),
        ({"env_id": "os:x-v0"}, "field 'env_id': no environment 'os:x-v0'"),
        ({"env_id": "CartPole-v1"}, "field 'env_id': no environment 'CartPole-v1'"),
        ({"env_kwargs": []}, "field 'env_kwargs' must be an object"),
        ({"env_kwargs": {"instnce": "a"}}, "no such name 'instnce' .did you mean 'instance'"),
        ({"env_kwargs": {"problem": {}}}, "no such name 'problem'"),
        ({"env_kwargs": {"max_episode_steps": 1}}, "no such name 'max_episode_steps'"),
        ({"agent": None}, "field 'agent' must be a text"),
        ({"agent": "pp"}, "field 'agent': unknown agent 'pp' .did you mean 'ppo'"),
        ({"seed": -1}, "field 'seed' must be a whole number from 0"),
        ({"seed": True}, "field 'seed' must be a whole number"),
        ({"seed": 2**64}, "field 'seed'"),
        ({"steps": 0}, "field 'steps'"),
        ({"steps": 1.5}, "field 'steps'"),
        ({"overrides": {"double_q": True}}, "field 'overrides': no such name 'double_q'"),
        ({"overrides": {"tensorboard_log": "x"}}, "no such name 'tensorboard_log'"),
        (
            {"overrides": {"policy_kwargs": {"features_extractor_class": "x"}}},
            "field 'overrides.policy_kwargs.net_arch' is missing",
        ),
        (
            {"overrides": {"policy_kwargs": {"net_arch": [0]}}},
            r"net_arch\[0\]' must be a whole number from 1 to 10,000, not 0",
        ),
        (
            {"overrides": {"policy_kwargs": {"net_arch": [10_000, 10_000, 10_000]}}},
            "200,000,000 weights between them, more than 4,194,304; give smaller widths",
        ),
        (
            {"overrides": {"device": "x:9"}},
            "field 'overrides.device' must be one of auto, cpu, cuda, not 'x:9'",
        ),
        (
            {"overrides": {"gamma": 1.5}},
            "field 'overrides.gamma' must be a number from 0 to 1, not 1.5",
        ),
        ({"overrides": {"gamma": float("nan")}}, "field 'overrides.gamma'"),
        ({"overrides": {"n_steps": 10**9}}, "field 'overrides.n_steps'"),
        ({"agent": "rainbow", "overrides": {"gae_lambda": 1}}, "no such name 'gae_lambda'"),
        (
            {"agent": "rainbow", "overrides": {"noisy": 1}},
            "field 'overrides.noisy' must be true or false, not 1",
        ),
    ],
)
def test_run_folders__config_fields(tmp_path, changes, words):
    (tmp_path / "config.json").write_text(json.dumps(text_of(**changes)))
    with pytest.raises(ParenvsError, match=f"not the folder of a training run.*{words}") as info:
        load_config(tmp_path)
    assert "\n" not in str(info.value)


def test_run_folders__settings_come_back(tmp_path):
    settings = {"policy_kwargs": {"net_arch": [8, 8]}, "device": "cpu", "learning_rate": 1e-4}
    config = Config(env_kwargs=KWARGS, agent="rainbow", steps=8, overrides=settings)
    _, model = train(config, tmp_path)
    again = load_model(tmp_path)
    assert load_config(tmp_path) == config
    assert (again.num_timesteps, again.exploration_rate) == (8, model.exploration_rate)
    for name, weights in model.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[name], weights)
    # What SB3 alone wrote holds the weights, too.
    model.save(tmp_path / "model.zip")
    assert load_model(tmp_path).exploration_rate == model.exploration_rate


def test_run_folders__an_agent_that_only_acts_keeps_no_steps(folder):
    """A few bytes of settings ask for a replay of gigabytes, which acting does not need."""
    content = json.loads((folder / "config.json").read_text())
    content["overrides"]["buffer_size"] = 10**7
    (folder / "config.json").write_text(json.dumps(content))
    assert load_config(folder).overrides["buffer_size"] == 10**7
    assert load_model(folder).replay_buffer.masks.nbytes < 10**6


def test_run_folders__what_cannot_be_read_back_is_not_written(tmp_path):
    for config in (
        Config(env_kwargs=KWARGS, overrides={"odd": 1}),
        Config(env_kwargs={"instance": object()}),
    ):
        with pytest.raises(ParenvsError, match=r"config\.json"):
            train(config, tmp_path)
        assert not list(tmp_path.iterdir())


def test_run_folders__functions_need_trust(folder, tmp_path):
    """A run on a Python function would run the function's file."""
    made, code = tmp_path / "made", tmp_path / "code.py"
    code.write_text(f"open({str(made)!r}, 'w')\n")
    content = json.loads((folder / "config.json").read_text())
    content["env_kwargs"]["instance"] = f"{code}:step"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ParenvsError, match=r"is a Python function, whose file .*--trust"):
        load_model(folder)
    assert not made.exists()


VALUES = (
    None, True, -1, 0, 1, 2**64, -(2**70), 1e308, float("nan"), float("inf"), "", "x", "\x1b[2J",
    "../x", "1", [], [1], {}, {"x": 1}, [[[]]], "a" * 5000,
)  # fmt: skip


def mutated(content, rng):
    """One field anywhere replaced, removed, renamed or added."""
    content = copy.deepcopy(content)
    place = content
    while True:
        inner = [value for value in place.values() if isinstance(value, dict) and value]
        if not inner or rng.random() < 0.4:
            break
        place = rng.choice(inner)
    name = rng.choice(list(place))
    kind = rng.randrange(5)
    if kind == 0:
        place[name + "x"] = place.pop(name)
    elif kind == 1:
        del place[name]
    elif kind == 2:
        place[rng.choice(["radius", "stages", "gamma", "candidates", "copies"])] = rng.choice(
            VALUES
        )
    else:
        place[name] = rng.choice(VALUES)
    return content


@pytest.mark.thorough
def test_run_folders__mutated_configs(folder):
    """A hundred: the agent is loaded, or there is one line."""
    rng, refused = random.Random(0), 0
    whole = json.loads((folder / "config.json").read_text())
    whole["env_kwargs"] |= {"stages": 3, "micro_batch": 8, "sync": "parameter-server", "copies": 4}
    for _ in range(100):
        text = json.dumps(mutated(whole, rng))
        if rng.random() < 0.1:
            text = text[: rng.randrange(len(text))]
        (folder / "config.json").write_text(text)
        try:
            config = load_config(folder)
            load_model(folder)
            with building(folder):
                gym.make(config.env_id, **config.env_kwargs)
        except ParenvsError as error:
            refused += 1
            assert "\n" not in str(error) and "\x1b" not in str(error) and len(str(error)) < 2000
    assert 50 < refused < 100
