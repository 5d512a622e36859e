"""References: solved again, compared with the file, and the better of two."""

import os
from dataclasses import replace

import pytest

from parenvs.core.leaderboard import Reference
from parenvs.leaderboard import references


@pytest.mark.slow
def test_references__anew(capsys):
    """The problems of one graph are solved again; the slow test below solves all."""
    assert references.main(["--check", "--instances", "vgg-19"]) == 0, capsys.readouterr().err


@pytest.mark.skipif("PARENVS_SLOW" not in os.environ, reason="minutes; set PARENVS_SLOW=1")
def test_references__all_anew(capsys):
    assert references.main(["--check"]) == 0, capsys.readouterr().err


def test_references__differences_are_told(own_tasks, capsys):
    path = own_tasks("data-parallel", "vgg-19-shardy-8", cost=1.0, bound=0.5, status="bound")
    arguments = ["--check", "--instances", "vgg-19", "--tasks", "data-parallel", "--out", str(path)]
    assert references.main(arguments) == 2
    assert "data-parallel vgg-19-shardy-8: " in capsys.readouterr().err
    assert references.main([*arguments[1:], "--out", str(path)]) == 2
    assert references.main([*arguments[:-1], str(path.with_name("none"))]) == 2


def test_references__the_better_is_kept():
    old = Reference(2.0, 1.0, "bound", "old")
    assert references.better(Reference(3.0, 1.5, "bound", "new"), old) == replace(old, bound=1.5)
    new = Reference(1.8, 0.5, "bound", "new")
    assert references.better(new, old) == replace(new, bound=1.0)
    assert references.better(old, Reference(1.7, 1.7, "optimal", "x")).cost == 1.7
    assert references.better(Reference(1.7, 1.7, "optimal", "x"), old).cost == 1.7
