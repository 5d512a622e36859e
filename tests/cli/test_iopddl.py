"""``parenvs iopddl``: its commands from a file to a judged plan, and what they refuse."""

import json

import pytest
from commands import caller
from intra_op_files import SMALL, written


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("solve", ...)`` in an empty folder: (status, stdout, stderr)."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path / "added"))
    return caller(monkeypatch, capfd, place, "iopddl")


def test_iopddl__add_list_show_solve_judge(run, tmp_path):
    file = written(tmp_path, SMALL)
    status, out, _ = run("add", file)
    assert status == 0 and "small: 3 nodes, 3 edges; its SHA-256 is not listed" in out
    assert "p " in run("list")[1]
    status, out, _ = run("show", "p", "--json", "--reduced")
    content = json.loads(out)
    assert (content["nodes"], content["edges"], content["usage_limit"]) == (3, 3, 14)
    assert content["reduced"]["nodes"] == 0
    status, out, _ = run("solve", "p", "--rounds", 3, "--out", "plan.json", "--json")
    solved = json.loads(out)
    assert status == 0 and solved["legal"] and solved["proven"]
    status, out, _ = run("judge", "plan.json", file, "--json")
    judged = json.loads(out)
    assert status == 0 and judged["legal"]
    assert (judged["cost"], judged["peak"]) == (solved["cost"], solved["peak"])
    assert run("judge", "plan.json")[0] == 0
    out = run("judge", "plan.json", file)[1]
    assert f"cost {judged['cost']:,}" in out and f"peak {judged['peak']:,} (" in out


def test_iopddl__bad_input_is_one_line_and_status_2(run, tmp_path):
    file = written(tmp_path, SMALL)
    broken = written(tmp_path, {"problem": {"name": "x"}}, "broken.json")
    (tmp_path / "list.json").write_text("[1, 0, 0]")
    for arguments, words in {
        ("solve", "nothing"): "is neither a file nor an added IOPDDL problem",
        ("add", broken): "broken.json: field 'problem.nodes' is missing",
        ("solve", file, "--seconds", "0"): "seconds and steps must be positive, not 0.0",
        ("solve", file, "--rounds", "0"): "seconds and steps must be positive, not None and 0",
        ("judge", tmp_path / "list.json", file): "at time 1 the nodes use 15, and 14 are allowed",
        ("judge", file, file): "unknown field 'problem'|field 'schema' is None",
        ("export", "vgg-19", "--out", "p.txt"): "--out must end with .json or .json.gz",
    }.items():
        status, _, err = run(*arguments)
        assert status == 2, arguments
        assert len(err.strip().splitlines()) == 1, err
        assert any(word in err for word in words.split("|")), err


def test_iopddl__export_and_back(run):
    assert run("export", "vgg-19", "--out", "vgg.json.gz")[0] == 0
    assert run("solve", "vgg.json.gz", "--rounds", 1, "--out", "plan.json")[0] == 0
    status, out, _ = run("export", "vgg-19", "--answer", "plan.json", "--out", "partition.json")
    assert status == 0 and "partition of 0.42915 s a step" in out
