"""A word for a distribution: the same weights by all of them, and after kills."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gymnasium as gym
import pytest
import torch
from cases import each

pytest.importorskip("sb3_contrib")
pytest.importorskip("pettingzoo")

import pairs
from sockets import listening
from team_processes import pids

from parenvs.agents.learning.algorithm import Peers
from parenvs.agents.learning.config import DISTRIBUTIONS, TrainConfig
from parenvs.agents.learning.engine import LostError, Served, Server
from parenvs.agents.learning.play import Share
from parenvs.agents.learning.team import Learner, Recipe
from parenvs.agents.learning.trainer import Training, train
from parenvs.errors import ParenvsError
from parenvs.machine import LOOPBACK

ELASTIC = {"env_id": "ElasticPlan-v2", "env_kwargs": {"family": "gone"}}
PAIRS = {"env_id": "Pairs-v0"}
SETTINGS = {
    "mappo": {"envs": 6, "turns": 8, "turns_a_step": 24},
    "ppo": {"envs": 8, "turns": 8, "turns_a_step": 16},
    "group": {"envs": 8, "turns": 16, "copies": 2, "turns_a_step": 32},
    "rainbow": {"envs": 8, "turns": 8, "first": 64, "minibatch": 16, "sync": 2, "memory": 256},
    "imitate": {"envs": 8, "turns": 8, "turns_a_step": 16},
}
SAME = [word for word in DISTRIBUTIONS if word not in ("single", "fused")]


@pytest.fixture(scope="module", autouse=True)
def several():
    pairs.register()
    yield
    del gym.registry["Pairs-v0"]


def config_of(name, env=ELASTIC, updates=2, **more):
    settings, env = SETTINGS[name], PAIRS if name == "mappo" else env
    steps = updates * settings["envs"] * settings["turns"] * (1 + (name == "mappo"))
    return TrainConfig(**env, agent=name, steps=steps, seed=3, settings=settings, **more)


def weights(algorithm):
    return torch.cat([each_.flatten() for each_ in algorithm.net.state_dict().values()])


def trained(config, engine="local", **more):
    return weights(train(config, engine=engine, **more).algorithm)


class Threads(Peers):
    """Learners in threads of this process."""

    def __init__(self, size):
        self.told, self.barrier = [None] * size, threading.Barrier(size)
        self.local = threading.local()

    def _every(self, values):
        self.told[self.local.rank] = values.detach().clone()
        self.barrier.wait(60)
        every = list(self.told)
        self.barrier.wait(60)
        return every

    def sum(self, values):
        return torch.stack(self._every(values)).sum(dim=0)

    def gather(self, values):
        return torch.cat(self._every(values))


def beside_one(config, parts):
    """Weights before, those of one learner who has all turns, and of three with uneven shares."""
    recipe = Recipe(config)
    whole = Share(0, recipe.settings.envs, recipe.settings.envs)
    alone = Learner(recipe, whole)
    before = weights(alone.agent).clone()
    alone.updates(parts, recipe.settings.turns)
    peers = Threads(3)
    learners = [Learner(recipe, share) for share in whole.dealt(3, recipe.copies)]

    def run(rank):
        peers.local.rank, learners[rank].agent.peers = rank, peers
        try:
            learners[rank].updates(parts, recipe.settings.turns)
        except BaseException:
            peers.barrier.abort()
            raise

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    return before, weights(alone.agent), [weights(learner.agent) for learner in learners]


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SETTINGS))
def test_learners__that_share_all_turns_learn_as_one(name):
    """An uneven share each, two updates: the weights of one learner who has all turns."""
    before, alone, found = beside_one(
        config_of(name, PAIRS if name == "group" else ELASTIC), (0, None)
    )
    assert (alone - before).abs().max() > 1e-4
    for each_ in found:
        assert (each_ - alone).abs().max() < 1e-5
    assert torch.equal(found[0], found[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "env"),
    [("ppo", ELASTIC), ("ppo", {"env_id": "Acrobot-v1"}), ("rainbow", ELASTIC), ("mappo", PAIRS)],
)
def test_words__give_the_same_weights(name, env):
    config = config_of(name, env)
    expected = trained(config)
    for word in SAME:
        found = trained(replace(config, distribution=word))
        assert (found - expected).abs().max() < 1e-5, word


@pytest.mark.slow
def test_server__that_does_not_wait_learns():
    config = config_of("ppo", {"env_id": "CartPole-v1"}, 40, distribution="server", staleness=2)
    assert train(config, engine="local").curve[-1][1] > 22  # by chance 20


def test_shares__are_whole_and_as_equal_as_can_be():
    dealt = Share(0, 65, 65).dealt(64, 1)
    assert {share.size for share in dealt} == {1, 2} and sum(share.size for share in dealt) == 65
    assert [tuple(share) for share in Share(4, 12, 20).dealt(2, 4)] == [(4, 4, 20), (8, 8, 20)]
    config = TrainConfig(**ELASTIC, agent="ppo", distribution="actors", actors=650)
    assert config.agent_settings().envs == 650


@each(
    ("more", "words"),
    [
        ({"distribution": "actor"}, "no distribution 'actor' .did you mean 'actors'"),
        ({"distribution": "actors", "staleness": 1}, "staleness is of the distribution server"),
        ({"agent": "maskable-ppo", "distribution": "learners"}, "maskable-ppo has an update that"),
        ({"distribution": "actors", "actors": 9, "settings": {"envs": 8}}, "9 processes for 8 env"),
    ],
)  # fmt: skip
def test_words__refuse_in_a_line(more, words):
    with pytest.raises(ParenvsError, match=words) as info:
        train(TrainConfig(**{**ELASTIC, "agent": "ppo", "steps": 64, **more}), engine="local")
    assert "\n" not in str(info.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "rainbow"])
@pytest.mark.parametrize(
    ("word", "role"),
    [("actors", "player"), ("inference", "player"), ("learners", "learner"),
     ("server", "learner"), ("server", "server")],
)  # fmt: skip
def test_kills__weights_are_those_of_the_undisturbed_run(name, word, role, tmp_path, monkeypatch):
    """One process is killed in the midst of an update, once with checkpoints and once without."""
    config = config_of(name, updates=8, distribution=word)
    expected, update = trained(config), Training.update
    for folder in (tmp_path / "run", None):
        count = []

        def killing(self, count=count):
            count.append(1)
            if len(count) == 5:
                pid = pids(self.team, role)[0]
                timer = threading.Timer(0.01, os.kill, (pid, signal.SIGKILL))
                timer.start()
                timer.join()
            update(self)

        with monkeypatch.context() as patch:
            patch.setattr(Training, "update", killing)
            lines = []
            found = trained(config, folder=folder, say=lines.append)
        assert len(count) > 8 and sum("on from the last checkpoint" in x for x in lines) == 1
        assert torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "rainbow"])
def test_kills__of_the_driver(name, tmp_path):
    """What it started ends with it, and the run goes on to the same weights."""
    config = config_of(name, updates=40, distribution="learners")
    expected = trained(config)
    code = (
        "from parenvs.agents.learning.config import TrainConfig\n"
        "from parenvs.agents.learning.trainer import Training, train\n"
        "update = Training.update\n"
        "def told(self):\n"
        "    pids = [p.pid for _, p in self.team.engine.processes]\n"
        "    print(self.turns, *pids, flush=True)\n"
        "    update(self)\n"
        "Training.update = told\n"
        "if __name__ == '__main__':\n"
        f"    train({config!r}, {str(tmp_path / 'run')!r}, engine='local')\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment)
    for _ in range(6):
        turns, *pids = map(int, driver.stdout.readline().split())
    driver.kill()
    driver.wait()
    limit = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):  # noqa: PTH110
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert turns > 0 and (tmp_path / "run" / "state.pt").exists()
    found = train(config, tmp_path / "run", resume=True, engine="local")
    assert torch.equal(weights(found.algorithm), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's table of sockets")
def test_sockets__learners_listen_on_this_machine_alone_and_take_no_stranger():
    """To every port that a run opens, one connection that says nothing and one that is noise."""
    config = config_of("ppo", {"env_id": "CartPole-v1"}, 4, distribution="learners")
    expected = weights(train(config, engine="local").algorithm)
    seen, ends, strangers = set(), threading.Event(), []

    def intrude():
        while not ends.is_set():
            for address, port in listening(os.getpid()) - seen:
                seen.add((address, port))
                strangers.extend(strangers_of(port))

    thread = threading.Thread(target=intrude)
    thread.start()
    try:
        found = weights(train(config, engine="local").algorithm)
    finally:
        ends.set()
        thread.join()
        for stranger in strangers:
            stranger.close()
    assert strangers, "no port was found"
    assert {address for address, _ in seen} == {"0100007F"}
    assert (found - expected).abs().max() < 1e-5


def strangers_of(port):
    """A connection that says nothing, and one that sends noise."""
    silent, noisy = (socket.create_connection((LOOPBACK, port)) for _ in range(2))
    noisy.sendall(b"\x00\x00\x00\x20" + os.urandom(2000))
    return [silent, noisy]


def test_server__strangers_keep_no_learner_waiting():
    server = Server(None, 2, None)
    host, port, key = server.meet()
    assert host == LOOPBACK
    strangers = strangers_of(port)
    with ThreadPoolExecutor() as pool:
        wrong = pool.submit(Served, (host, port, b"another key"), 0, True)
        learners = [pool.submit(Served, (host, port, key), rank, True) for rank in range(2)]
        server.accept()
        assert [learner.result(20).rank for learner in learners] == [0, 1]
        with pytest.raises(LostError):
            wrong.result(20)
    assert set(server.links) == {0, 1}
    for stranger in strangers:
        stranger.close()
