"""The shipped sets of hybrid problems are those that the command makes."""

import json

import pytest

from parenvs import problem as load
from parenvs.datasets.hybrid.drawing import drawn
from parenvs.datasets.hybrid.sets import FILE, SETS, main
from parenvs.shipped import data_folder
from parenvs.tasks.hybrid.shipped import problem_sets


def identity(problem):
    return (
        problem.instance, problem.model.fingerprint, problem.cluster, problem.batch, problem.stack
    )  # fmt: skip


@pytest.mark.slow
def test_sets__as_the_command_makes_them(tmp_path):
    """The shipped file is that of its seed, byte for byte, on this machine."""
    assert main(["--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    stored = json.loads((data_folder() / FILE).read_text(encoding="utf-8"))
    assert made == stored
    assert {name: len(rows) for name, rows in made["sets"].items()} == {
        name: count for name, (count, _) in SETS.items()
    }


def test_problems__are_found_by_their_names():
    assert identity(load("hybrid/12", task="hybrid")) == identity(drawn(12))
    shipped = problem_sets()["hybrid-test"][4]
    assert identity(load(shipped.instance, task="hybrid")) == identity(shipped)


def test_main__negative_seed(capsys, tmp_path):
    assert main(["--seed", "-1", "--out", str(tmp_path)]) == 2
    assert "--seed is -1; give 0 or more" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()
    assert (data_folder() / FILE).exists()
