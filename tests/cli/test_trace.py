"""Traces of simulated steps: ends, tops, what lies inside of what, files."""

import gzip
import json

import pytest
from cases import each
from commands import good

import parenvs
from parenvs.tasks.hybrid.schedules import SPLIT
from parenvs.view import save_trace

PLANS = {
    "1f1b": {"pp": 4, "zero": (1,), "recompute": ("full",)},
    "interleaved": {"pp": 4, "chunks": 2, "tp": 2, "recompute": ("selective",)},
    "zb-h1": {"pp": 4, "schedule": "zb-h1"},
    "zb-v": {"pp": 4, "schedule": "zb-v"},
    "dualpipe": {"pp": 4, "schedule": "dualpipe", "micro_batch": 1},
    "one stage": {"pp": 1, "zero": (3,)},
}


def hybrid(case):
    stack = {"name": "nemo-2024", "schedules": ["1f1b", "interleaved", *SPLIT]}
    problem = parenvs.problem("bert-large", "4x8:h100", "hybrid", batch=64, stack=stack)
    return problem.report(parenvs.plan(problem, "uniform", constraints=case).plan)


def events(path, kind):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == kind]


def check_inside(slices, end):
    """Slices of a process lie inside of each other or apart; the last ends at ``end`` seconds."""
    assert max(x["ts"] + x["dur"] for x in slices) == pytest.approx(1e6 * end, abs=2e-3)
    for process in {x["pid"] for x in slices}:
        open_ends = []
        spans = [(x["ts"], -x["dur"]) for x in slices if x["pid"] == process]
        for start, length in sorted(spans):
            while open_ends and open_ends[-1] <= start + 1e-3:
                open_ends.pop()
            assert not open_ends or start - length <= open_ends[-1] + 1e-3
            open_ends.append(start - length)


@each("name", PLANS)
def test_trace__of_hybrid_plans(tmp_path, name):
    report, path = hybrid(PLANS[name]), tmp_path / "step.json"
    save_trace(path, report)
    slices, table = events(path, "X"), report.timetable
    check_inside(slices, report.simulated_seconds)
    tops = [0] * len(report.stages)
    for event in events(path, "C"):
        tops[event["pid"]] = max(tops[event["pid"]], event["args"]["bytes"])
    assert tops == [round(stage.memory["total"]) for stage in report.stages]
    named = [x for x in slices if "micro-batch" in x["name"]]
    assert len(named) == table.start.size
    assert sum(x["dur"] for x in named) == pytest.approx(1e6 * (table.end - table.start).sum())
    # By layer in the first and the last micro-batch of each pass.
    layers = {x["name"] for x in slices if x["name"].startswith("layer ")}
    assert len(layers) == len(report.model)
    times = 2 * table.start.shape[0] if report.micro_batches > 1 else table.start.shape[0]
    assert sum(x["name"] == "layer 0" for x in slices) == times * (2 if name == "dualpipe" else 1)
    again = {x["name"] for x in slices} & {"recomputed"}
    assert bool(again) == (report.seconds["recomputed"] > 0)


def test_trace__of_every_rank_and_packed(tmp_path):
    report = hybrid(PLANS["1f1b"])
    for name in ("a.json.gz", "b.json.gz"):
        save_trace(tmp_path / name, report, every_rank=True)
    data = (tmp_path / "a.json.gz").read_bytes()
    assert data == (tmp_path / "b.json.gz").read_bytes()
    heads = events(tmp_path / "a.json.gz", "M")
    assert [x["pid"] for x in heads] == [*range(32)]
    assert heads[9]["args"]["name"].startswith("rank 9, stage 1")


def test_trace__of_a_pipeline_by_commands(run, tmp_path):
    plan, path = tmp_path / "plan.json", tmp_path / "step.json"
    said = good(run("plan", "vgg-19", "--cluster", "A", "--out", plan, "--trace", path))
    assert f"trace written to {path}" in said
    report = parenvs.judge(parenvs.load_plan(plan))
    check_inside(events(path, "X"), report.simulated_seconds)
    status, _, err = run("plan", "vgg-19", "--cluster", "A", "--trace", tmp_path / "step.txt")
    assert status == 2 and "a trace ends in .json or .json.gz" in err and err.count("\n") == 1


def test_explain__writes_a_trace(run, tmp_path):
    report = hybrid(PLANS["one stage"])
    report.plan.save(tmp_path / "plan.json")
    line = ("explain", tmp_path / "plan.json", "--trace", tmp_path / "t.json", "--ranks")
    good(run(*line, "all"))
    assert len(events(tmp_path / "t.json", "M")) == 32
    for words, said in (
        ((*line, "some"), "--ranks: no choice 'some'"),
        ((*line[:2], "--ranks", "all"), "--ranks is an option for traces"),
        (("explain", "vgg-19", *line[2:4]), "--trace is an option for plan files"),
    ):
        status, _, err = run(*words)
        assert status == 2 and said in err and err.count("\n") == 1


def test_trace__refuses_tasks_without_simulation(tmp_path):
    problem = parenvs.problem("vgg-19", task="partition", devices=4)
    report = parenvs.plan(problem, "greedy").report
    with pytest.raises(parenvs.ParenvsError, match="partition simulates no steps"):
        save_trace(tmp_path / "t.json", report)
    assert not list(tmp_path.iterdir())
