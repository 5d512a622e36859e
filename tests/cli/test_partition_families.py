"""The commands and the sets of ``PartitionPlan-v1``."""

import pytest
from commands import caller


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("train", ...)`` in an empty folder: (status, stdout, stderr)."""
    return caller(monkeypatch, capfd, tmp_path)


def test_list__names_sets_and_the_environment(run):
    _, out, _ = run("list")
    assert "sets: partition-train, partition-validation, partition-test\n" in out
    _, out, _ = run("list", "--task", "partition")
    assert "PartitionPlan-v1" in out
    assert "problems of the last set: partition-test/" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cluster", "A"), "--cluster is not an option of training on drawn problems"),
        (("--steps", "0"), "--steps"),
        (("partition-trial",), "unknown instance 'partition-trial'"),
        (("nothing.json",), "'nothing.json': no such file"),
    ],
)
def test_train__bad_input_is_one_line(run, words, says):
    status, _, err = run("train", *words, "--task", "partition")
    assert status == 2
    (line,) = err.strip().splitlines()
    assert says in line
