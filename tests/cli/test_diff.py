"""The command ``parenvs diff``."""

import json
from dataclasses import replace

import pytest
import toys
from cases import slow
from commands import caller

from parenvs import load_plan
from parenvs.cluster import Cluster


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("diff", ...)`` in a folder with the plans a.json and b.json of the dense toy."""
    kwargs = toys.dense().kwargs(tmp_path)
    (tmp_path / "cluster.json").write_text(json.dumps(kwargs["cluster"]))
    call = caller(monkeypatch, capfd, tmp_path)
    toy = (kwargs["instance"], "--cluster", "cluster.json", "--stages", 2, "--micro-batches", 2)
    for name, agent in (("a", "even"), ("b", "exact")):
        status, _, err = call("plan", *toy, "--agent", agent, "--out", f"{name}.json")
        assert status == 0, err
    return call


def change(name, **fields):
    """Another plan file, c.json, with some fields changed."""
    replace(load_plan(name), **fields).save("c.json")


def refused(result, *words):
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("parenvs: ") and err.count("\n") == 1
    for word in words:
        assert word in err


def test_diff__text(run):
    status, out, err = run("diff", "a.json", "b.json")
    assert (status, err) == (0, "")
    assert "a  a.json  ·  27.00 s a step" in out and "b  b.json  ·  22.00 s a step" in out
    assert "b costs 5.000 s less than a (-18.52 %)" in out
    assert "3 → 5" in out and len(out.splitlines()) < 25


def test_diff__json(run):
    status, out, err = run("diff", "a.json", "b.json", "--json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    content = json.loads(out)
    assert content["cost"]["difference"] == pytest.approx(-5)
    assert {"field": "cuts[0]", "a": 3, "b": 5} in content["changes"]


def test_diff__illegal_plans_are_compared(run):
    change("a.json", cuts=(99,), cut_after=())
    status, out, err = run("diff", "b.json", "c.json")
    assert (status, err) == (0, "")
    assert "illegal" in out and "cuts: 99 is outside 1..5 (6 pivots)" in out
    status, out, _ = run("diff", "b.json", "c.json", "--json")
    assert status == 0
    assert json.loads(out)["cost"] is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fingerprint": "sha256:00"}, "field 'fingerprint'"),
        *slow(({"cluster": Cluster.parse("B")}, "field 'cluster'")),
        ({"micro_batch": 8}, "field 'micro_batch': a.json is for 16, c.json for 8"),
        ({"micro_batches": 4}, "field 'micro_batches': a.json is for 2, c.json for 4"),
    ],
)
def test_diff__refuses_plans_of_other_problems(run, fields, words):
    change("b.json", **fields)
    refused(run("diff", "a.json", "c.json"), words, "only plans of one problem")
    refused(run("diff", "a.json", "c.json", "--json"), words)


def test_diff__refuses_plans_of_other_tasks_and_what_is_no_plan(run, tmp_path):
    assert run("plan", "vgg-19", "--task", "partition", "--out", "d.json")[0] == 0
    refused(run("diff", "a.json", "d.json"), "field 'task'", "pipeline", "partition")
    refused(run("diff", "a.json", "none.json"), "none.json")
    (tmp_path / "bad.json").write_text("{")
    refused(run("diff", "bad.json", "a.json"), "bad.json")
