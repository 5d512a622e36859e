"""The shipped sets of hybrid problems are those that the command makes."""

from parenvs import problem as load
from parenvs.datasets.hybrid_sets import FILE, SEED, SETS, main, make_set
from parenvs.hybrid.drawing import drawn
from parenvs.shipped import data_folder, problem_sets


def identity(problem):
    return (
        problem.instance, problem.model.fingerprint, problem.cluster, problem.batch, problem.stack
    )  # fmt: skip


def test_sets__are_made_by_the_command():
    made = make_set("hybrid-validation", SEED)
    shipped = problem_sets()["hybrid-validation"]
    assert list(map(identity, made)) == list(map(identity, shipped))
    assert {name: len(problem_sets()[name]) for name in SETS} == {
        name: count for name, (count, _) in SETS.items()
    }


def test_problems__are_found_by_their_names():
    assert identity(load("hybrid/12", task="hybrid")) == identity(drawn(12))
    shipped = problem_sets()["hybrid-test"][4]
    assert identity(load(shipped.instance, task="hybrid")) == identity(shipped)


def test_main__negative_seed(capsys, tmp_path):
    assert main(["--seed", "-1", "--out", str(tmp_path)]) == 2
    assert "--seed < 0" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()
    assert (data_folder() / FILE).exists()
