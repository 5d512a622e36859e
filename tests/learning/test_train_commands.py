"""What the command line refuses of distributions: one line, status 2, nothing written."""

import socket
import sys

import pytest
from cases import each

pytest.importorskip("sb3_contrib")

from commands import caller

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


def test_commands__nobody_at_the_address(refused):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert "nobody answers" in refused(
            "train", "t5-3b", "--engine", "ray", "--address", f"127.0.0.1:{port}", ray=socket
        )
