"""Distributions as the command line and a run's folder give them; no Ray is needed."""

import json
import socket

import pytest
from cases import each

pytest.importorskip("sb3_contrib")

from parenvs.agents.learning.distributed import session as sessions
from parenvs.agents.learning.distributed.distribution import COUNTS, WORDS, Distribution
from parenvs.agents.learning.distributed.tasks import check_engine
from parenvs.agents.learning.train.config import CONFIG, Config, load_config, save_config
from parenvs.agents.learning.train.run import train
from parenvs.errors import ParenvsError


@each("word", WORDS)
def test_distribution__reads_what_it_writes(word):
    made = Distribution.of(word)
    assert Distribution.from_json(made.to_json()) == made
    assert made.processes == sum(COUNTS[word].values())


@each(
    ("word", "counts", "words"),
    [
        ("actor", {}, "did you mean 'actors'"),
        ("single", {"actors": 2}, "--actors is not an option of --distribution single"),
        ("actors", {"learners": 2}, "--learners is not an option"),
        ("learners", {"learners": 0}, "--learners must be from 1"),
        ("async", {"actors": 5000}, "--actors must be from 1"),
    ],
)
def test_distribution__refuses(word, counts, words):
    with pytest.raises(ParenvsError, match=words):
        Distribution.of(word, **counts)


@pytest.mark.parametrize(("envs", "shares"), [(64, (22, 21, 21)), (3, (1, 1, 1))])
def test_distribution__shares(envs, shares):
    assert Distribution("actors", 3).shares(envs) == shares


def test_distribution__more_processes_than_environments():
    with pytest.raises(ParenvsError, match="--learners 9 is more than the 8 environments"):
        Distribution.of("learners", learners=9).shares(8)


def test_config__keeps_the_distribution(tmp_path):
    config = Config(env_kwargs={"instance": "vgg-19"}, distribution={"word": "actors", "actors": 3})
    save_config(config, tmp_path)
    assert load_config(tmp_path) == config
    save_config(Config(env_kwargs={"instance": "vgg-19"}), tmp_path)
    assert "distribution" not in json.loads((tmp_path / CONFIG).read_text())


@each(
    "found",
    [
        {"word": "both"},
        {"word": "actors"},
        {"word": "actors", "actors": 0},
        {"word": "actors", "actors": True},
        {"word": ["actors"]},
        {"word": "learners", "learners": 2, "actors": 2},
    ],
)
def test_config__refuses_other_distributions(tmp_path, found):
    save_config(Config(env_kwargs={"instance": "vgg-19"}), tmp_path)
    path = tmp_path / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), "distribution": found}))
    with pytest.raises(ParenvsError, match="field 'distribution'"):
        load_config(tmp_path)


def test_train__other_agents_are_not_spread(tmp_path):
    config = Config(
        env_kwargs={"instance": "vgg-19", "cluster": "B"},
        agent="rainbow",
        distribution={"word": "actors", "actors": 2},
    )
    with pytest.raises(ParenvsError, match="not 'rainbow'; take --agent ppo"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_session__says_how_ray_is_installed(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ParenvsError, match=r"pip install 'parenvs\[ray\]'"), sessions.session():
        pass


@each("address", ["here", "host:port", "127.0.0.1:99999", ":1"])
def test_session__refuses_what_is_no_address(address):
    with pytest.raises(ParenvsError, match="expected HOST:PORT or auto"):
        sessions._answers(address)


def test_session__nobody_answers():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ParenvsError, match=f"127.0.0.1:{port}: nobody answers"):
            sessions._answers(f"127.0.0.1:{port}")


def test_engine__near_misses():
    with pytest.raises(ParenvsError, match="did you mean 'ray'"):
        check_engine("rey")
