"""What the command line refuses of distributions: one line, status 2, nothing written."""

import socket
import sys

import pytest
from cases import each

pytest.importorskip("sb3_contrib")

from commands import caller

TRAIN = ("train", "vgg-19", "--cluster", "B", "--stages", "3")
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
        ((*TRAIN, "--distribution", "actor"), "did you mean 'actors'?"),
        ((*TRAIN, "--distribution", "learners"), MISSING),
        ((*TRAIN, "--distribution", "async", "--actors", "3"), MISSING),
        ((*TRAIN, "--distribution", "actors", "--learners", "2"), "--learners is not an option"),
        ((*TRAIN, "--actors", "2"), "--actors is not an option of --distribution single"),
        ((*TRAIN, "--address", "auto"), "--address is not an option of --distribution single"),
        ((*TRAIN, "--distribution", "fused"), "--task pipeline without a model"),
        (
            (
                "train",
                "--task",
                "pipeline",
                "--distribution",
                "fused",
                "--agent",
                "rainbow-paper",
            ),
            "--agent rainbow-paper is not an option of --distribution fused",
        ),
        (
            ("train", "--task", "pipeline", "--distribution", "fused", "--resume"),
            "no training to continue",
        ),
        (("train", "--task", "hybrid", "--distribution", "fused"), "--task pipeline"),
        (("bench", "agents", "--engine", "ray"), MISSING),
        (("bench", "agents", "--engine", "rya"), "no engine 'rya'"),
        (("bench", "agents", "--address", "auto"), "--address is an option of --engine ray"),
        (("pretrain", "--out", "net", "--engine", "ray"), MISSING),
    ],
)
def test_commands__refuse(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize("command", [(*TRAIN, "--distribution", "actors"),
                                     ("bench", "agents", "--engine", "ray")])  # fmt: skip
def test_commands__nobody_at_the_address(refused, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert "nobody answers" in refused(*command, "--address", f"127.0.0.1:{port}", ray=socket)


def test_commands__fused_trains(monkeypatch, capfd, tmp_path):
    """As many iterations as have the steps; the folder is then taken."""
    from parenvs.agents.learning.fused import run as fused

    def train(settings, folder, say, resume):
        assert not resume
        assert (settings.seed, settings.iterations, settings.samples) == (3, 2, 4096)
        (folder / fused.LOG).write_text("{}")
        return {"samples": 8192, "seconds": 1.0}

    monkeypatch.setattr(fused, "train", train)
    run = caller(monkeypatch, capfd, tmp_path)
    command = ("train", "--task", "pipeline", "--distribution", "fused", "--steps", "5000")
    command = (*command, "--seed", "3", "--out", "net")
    status, out, err = run(*command)
    assert status == 0 and "8,192 samples" in out, err
    status, _, err = run(*command)
    assert status == 2 and "holds a run already" in err
