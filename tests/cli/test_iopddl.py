"""``parenvs iopddl``: its commands from a file to a judged plan, and what they refuse."""

import json

import pytest
from commands import caller
from intra_op_files import SMALL, written


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("iopddl", "list")`` in an empty folder: (status, stdout, stderr)."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path / "added"))
    return caller(monkeypatch, capfd, place)


def test_iopddl__add_list_show_solve_judge(run, tmp_path):
    file = written(tmp_path, SMALL)
    status, out, _ = run("iopddl", "add", file)
    assert status == 0 and "small: 3 nodes, 3 edges; its SHA-256 is not listed" in out
    assert "p " in run("iopddl", "list")[1]
    status, out, _ = run("iopddl", "show", "p", "--json")
    table = json.loads(out)["tables"][0]
    assert table["title"] == "small: at most 14 in use at any time"
    assert [row[:3] for row in table["rows"]] == [["whole", "3", "3"], ["reduced", "0", "0"]]
    status, out, _ = run(
        "plan", "p", "--task", "sharding", "--rounds", 3, "--out", "plan.json", "--json"
    )
    solved = json.loads(out)["report"]
    assert status == 0 and solved["legal"]
    status, out, _ = run("iopddl", "judge", "plan.json", file, "--json")
    judged = json.loads(out)
    assert status == 0 and judged["legal"]
    assert (judged["cost"], judged["peak"]) == (solved["cost"], solved["peak"])
    assert run("judge", "plan.json")[0] == 0
    out = run("iopddl", "judge", "plan.json", file)[1]
    assert f"cost {judged['cost']:,}" in out and f"peak {judged['peak']:,} (" in out


def test_iopddl__bad_input_is_one_line_and_status_2(run, tmp_path):
    file = written(tmp_path, SMALL)
    broken = written(tmp_path, {"problem": {"name": "x"}}, "broken.json")
    (tmp_path / "list.json").write_text("[1, 0, 0]")
    for arguments, words in {
        ("plan", "nothing", "--task", "sharding"): "is neither a file nor an added IOPDDL problem",
        ("iopddl", "add", broken): "broken.json: field 'problem.nodes' is missing",
        ("iopddl", "judge", tmp_path / "list.json", file): "at time 1 the nodes use 15, and 14 are",
        ("iopddl", "judge", file, file): "unknown field 'problem'|field 'schema' is None",
        ("iopddl", "export", "vgg-19", "--out", "p.txt"): "--out must end with .json or .json.gz",
    }.items():
        status, _, err = run(*arguments)
        assert status == 2, arguments
        assert len(err.strip().splitlines()) == 1, err
        assert any(word in err for word in words.split("|")), err


def test_iopddl__export_and_back(run):
    assert run("iopddl", "export", "vgg-19", "--out", "vgg.json.gz")[0] == 0
    line = ("plan", "vgg.json.gz", "--task", "sharding", "--rounds", 1, "--out", "plan.json")
    assert run(*line)[0] == 0
    back = ("--answer", "plan.json", "--out", "partition.json")
    status, out, _ = run("iopddl", "export", "vgg-19", *back)
    assert status == 0 and "partition of 0.42915 s a step" in out
