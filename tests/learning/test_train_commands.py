"""What the command line refuses of distributions: one line, status 2, nothing written."""

import socket
import sys

import pytest
from cases import each

pytest.importorskip("sb3_contrib")

from commands import caller

from parenvs.agents.learning.ppo import PPO

MISSING = "pip install 'parenvs[ray]'"


@pytest.fixture
def refused(monkeypatch, capfd, tmp_path):
    """Call the command without Ray, or with (``ray``) what only looks like it."""

    def call(*arguments, ray=None):
        monkeypatch.setitem(sys.modules, "ray", ray)
        status, _, err = caller(monkeypatch, capfd, tmp_path)(*arguments)
        assert status == 2 and err.startswith("parenvs: ") and err.count("\n") == 1, err
        assert list(tmp_path.iterdir()) == []
        return err

    return call


@each(
    ("arguments", "words"),
    [
        (("train", "t5-3b", "--engine", "ray"), MISSING),
        (("train", "t5-3b", "--engine", "rya"), "no engine 'rya'"),
        (("train", "t5-3b", "--address", "auto"), "--address is an option of --engine ray"),
    ],
)
def test_commands__refuse(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.thorough
def test_commands__interrupted_and_resumed_without_the_task(monkeypatch, capfd, tmp_path):
    call = caller(monkeypatch, capfd, tmp_path)
    settings = ("--steps", 200, "--num-envs", 2, "--seed", 3, "--out", "run")
    resumed, learn, count = ("train", "--resume", "--out", "run"), PPO.learn, iter(range(9))

    def interrupted(*given):
        if next(count) == 2:
            raise KeyboardInterrupt
        return learn(*given)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "learn", interrupted)
        status, _, err = call("train", "CartPole-v1", *settings)
    assert status == 130, err
    assert err.endswith("parenvs: interrupted; continue with --resume --out run\n")
    for more in (("--steps", 300), ("--seed", 4), ("--num-envs", 8)):
        status, _, err = call(*resumed, *more)
        assert status == 2 and "a run of another configuration" in err
    for more in (("--stages", 2), ("--cluster", "B")):
        status, _, err = call(*resumed, *more)
        assert status == 2 and "no options of a task" in err
    assert call(*resumed, "--seed", 3)[0] == 0
    assert (tmp_path / "run" / "model.pt").exists()
    status, _, err = call("train", "--resume", "--out", "none")
    assert status == 2 and "none: not the folder of a training run" in err


def test_commands__nobody_at_the_address(refused):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert "nobody answers" in refused(
            "train", "t5-3b", "--engine", "ray", "--address", f"127.0.0.1:{port}", ray=socket
        )
