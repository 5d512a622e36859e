"""``parenvs elastic``: the table, JSON, a picture, what is refused."""

import json

import pytest
from commands import caller


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("p3", ...)`` in an empty folder: (status, stdout, stderr)."""
    return caller(monkeypatch, capfd, tmp_path, "elastic")


@pytest.mark.thorough
def test_elastic__a_trace_of_ones_own(run, tmp_path):
    (tmp_path / "mine.csv").write_text("seconds,nodes\n0,12\n300,8\n360,14\n900,14\n")
    status, out, _ = run("mine.csv", "--policy", "fastest", "--policy", "look-ahead",
                         "--plot", "run.png")  # fmt: skip
    assert status == 0
    assert "of hindsight" in out and "look-ahead" in out and "picture written to run.png" in out
    assert (tmp_path / "run.png").stat().st_size > 10_000
    more = [word for name in ("varuna", "bamboo", "parcae") for word in ("--policy", name)]
    runs = json.loads(run("mine.csv", *more, "--json")[1])["runs"]
    assert [each["policy"] for each in runs] == ["varuna", "bamboo", "parcae", "hindsight"]
    status, out, _ = run("mine.csv", "--policy", "fastest", "--json", "--seed", 3)
    fastest, bound = json.loads(out)["runs"]
    assert (fastest["policy"], bound["policy"]) == ("fastest", "hindsight")
    assert 0 < fastest["samples"] <= bound["samples"]


def test_elastic__bad_input_is_one_line_and_status_2(run, tmp_path):
    (tmp_path / "wrong.csv").write_text("seconds,nodes\n0,x\n")
    for arguments, words in (
        (("p4",), "unknown trace 'p4'"),
        (("wrong.csv",), "wrong.csv: line 2: 'nodes' must be a whole number"),
        (("p3", "--policy", "fastst"), "--policy 'fastst' is unknown (did you mean 'fastest'?)"),
        (("p3", "--policy", "optimal"), "--policy 'optimal' is unknown"),
        (("p3", "--model", "gpt-7.5b"), "no steps were measured; give a cluster"),
        (("p3", "--seed", -1), "--seed must be from 0"),
        (("p3", "--interval", 0), "interval must be from 1"),
        (("elastic-test/bulk-gpt-1.5b-000", "--model", "bert-large"), "leave it out"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert words in err.strip().splitlines()[-1]
