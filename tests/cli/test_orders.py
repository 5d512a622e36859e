"""``parenvs plan`` and its neighbours for the order of micro-batches."""

import json
from pathlib import Path

import pytest
from commands import caller

from parenvs import judge, load_plan

NAME = "order-test/p4-m8-000"
TASK = ("--task", "order")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("plan", ...)`` in an empty folder: (status, stdout, stderr)."""
    place = tmp_path / "here"
    place.mkdir()
    return caller(monkeypatch, capfd, place)


@pytest.mark.thorough
def test_plan__then_judge(run):
    status, out, _ = run("plan", NAME, *TASK, "--out", "order.json", "--plot", "order.png")
    assert status == 0
    assert "proven" in out or "optimal" in out
    assert "next: parenvs judge order.json" in out
    assert Path("order.png").stat().st_size > 10_000
    status, out, _ = run("judge", "order.json", "--json")
    assert status == 0
    assert json.loads(out)["value"] == judge("order.json").value
    status, _, err = run("judge", "order.json", "--instance", "order-test/p4-m8-001")
    assert status == 2
    assert "fingerprint: the plan is for" in err


def test_plan__as_json(run):
    status, out, _ = run("plan", NAME, *TASK, "--agent", "neh", "--json")
    assert status == 0
    assert sorted(json.loads(out)["plan"]["order"]) == list(range(8))


def test_compare__every_planner(run):
    status, out, _ = run("compare", NAME, *TASK, "--steps", "800")
    assert status == 0
    for agent in ("exact", "neh", "swap", "random", "pyramid"):
        assert agent in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", NAME, *TASK, "--stages", "3"), "--stages is not an option of --task"),
        (("plan", NAME, *TASK, "--cluster", "C"), f"cluster: {NAME} has settings of its own"),
        (("plan", NAME, *TASK, "--tp", "2"), "--tp is not an option of --task"),
        (("plan", NAME, *TASK, "--agent", "ppo"), "unknown agent 'ppo'"),
        (("plan", "t5-3b", *TASK), "unknown instance 't5-3b'"),
        (("plan", "order-test/p4-m8-99", *TASK), "did you mean"),
        (("train", NAME, *TASK, "--stages", "3"), "--stages is not an option of --task order"),
        (("plan", NAME, "--task", "pipeline"), "is a problem of task order"),
    ],
)
def test_plan__bad_input_is_one_line(run, words, says):
    status, _, err = run(*words)
    assert status == 2
    (line,) = err.strip().splitlines()
    assert says in line


def test_diff__of_two_orders(run):
    for agent in ("neh", "random"):
        run("plan", NAME, *TASK, "--agent", agent, "--steps", "8", "--out", f"{agent}.json")
    status, out, _ = run("diff", "neh.json", "random.json")
    assert status == 0
    assert "b costs" in out and "values of the plans differ" in out


def test_explain__says_that_it_does_not_take_orders(run):
    run("plan", NAME, *TASK, "--agent", "neh", "--out", "order.json")
    assert load_plan("order.json").task == "order"
    status, _, err = run("explain", "order.json")
    assert status == 2
    assert "order.json: explain is not for task order, but for partition, hybrid" in err


def test_list__names_sets_and_agents(run):
    _, out, _ = run("list", *TASK)
    assert "partition" not in out and "clusters" not in out
    assert "order: Order micro-batches" in out
    sets = "order-validation, order-test, order-outside, order-large"
    assert f"sets: {sets} problems of the last set: order-large/p32-m128-000, " in " ".join(
        out.split()
    )
    assert "agents: exact, neh, swap" in out
    assert "MicroBatchOrder-v1" in out
