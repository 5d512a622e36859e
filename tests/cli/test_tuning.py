"""``parenvs tune``: ask, tell, show and run from a journal."""

import json
import sys

import pytest
from commands import good

from parenvs.core.plan import load_plan

MODEL = ("llama3-8b", "--cluster", "1x8:a100", "--batch", "64", "--tp", "2")


@pytest.mark.slow
def test_tune__asks_is_told_and_shows(run, tmp_path):
    journal = ("--journal", tmp_path / "tune.jsonl")
    said = good(run("tune", *MODEL, "--for", "torchtitan", *journal))
    assert said.startswith("trial 0: tp 2, ") and "expected (" in said
    plan = load_plan(tmp_path / "tune-0.json")
    assert plan.stages[0].tp == 2
    assert "tensor_parallel_degree = 2" in (tmp_path / "tune-0.torchtitan").read_text()
    assert f"next: parenvs tune --journal {journal[1]} --tell SECONDS" in said
    said = good(run("tune", *journal, "--tell", "23.5"))
    assert "best: trial 0, 23.50 s" in said and "trial 1: tp 2" in said
    # What is not told any more is that of the journal: constraints, cluster and batch.
    asked = json.loads(good(run("tune", *journal, "--json")))
    assert asked["number"] == 1 and asked["plan"]["batch"] == 64
    good(run("tune", *journal, "--oom"))
    # The trials price plans in place of a stack.
    out, by = tmp_path / "plan.json", f"by 2 trials of {journal[1]}: "
    said = good(run("plan", *MODEL, *journal, "--out", out))
    assert said.startswith(f"hybrid: {by}") and f"best {by[:-2]}" in said
    assert f"{by}" in good(run("judge", out, *journal)) and by not in good(run("judge", out))
    said = good(run("compare", *MODEL, *journal, "--agent", "uniform", "--json"))
    report = json.loads(said)["plans"][0]["report"]
    assert report["outlook"]["low"] < report["length_seconds"] < report["outlook"]["high"]
    status, _, err = run("plan", "t5-base", "--cluster", "A", "--task", "pipeline", *journal)
    assert status == 2 and "--journal is not an option of --task pipeline, but of hybrid" in err
    said = good(run("tune", *journal, "--show", "--plot", tmp_path / "trials.png"))
    assert (tmp_path / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert "out of memory" in said and "stacks: " in said and "times the activations" in said
    # A plan of one's own, with another tp.
    own = tmp_path / "own.json"
    good(run("plan", "llama3-8b", "--cluster", "1x8:a100", "--batch", "64", "--stack",
             "nemo", "--tp", "4", "--agent", "uniform", "--out", own))  # fmt: skip
    content = json.loads(good(run("tune", *journal, "--plan", own, "--tell", "20", "--json")))
    assert content["trials"][-1]["seconds"] == [20.0] and content["trials"][-1]["interval"] is None
    assert content["best"]["stages"][0]["tp"] == 4
    for arguments, words in (
        (("--tell", "1"), "no trial is open: parenvs tune --journal"),
        (("--plan", own, "--tell", "1e-3"), "0.001 s a step are impossible"),
        (("--tp", "4"), "--tp is of the model; name it, or leave it to the journal"),
    ):
        status, _, err = run("tune", *journal, *arguments)
        assert status == 2 and words in err, err
    status, _, err = run("tune", *MODEL[:-1], "4", *journal)
    assert status == 2 and "it is of another study; take another file" in err
    status, _, err = run("tune", "--journal", tmp_path / "none.jsonl", "--tell", "1")
    assert status == 2 and "no study begins there; name a model" in err


@pytest.mark.slow
def test_tune__runs_trials_by_itself(run, tmp_path):
    """The command reads the plan's file; the study is told seconds, OOM and failures."""
    script = tmp_path / "go.py"
    script.write_text("""
import json, sys
plan = json.load(open(sys.argv[1]))
context, chunks = plan["context"], len(plan["stages"])
if context > 2:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
for step in range(8):
    print(f"step {step} step time: {19 + context + 2 * chunks + 9 * (step < 3)}")
""")
    journal = tmp_path / "tune.jsonl"
    status, said, err = run(
        "tune", *MODEL, "--journal", journal, "--run", f"python {script} {{plan}}", "--trials", "4"
    )
    assert status == 0, err
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    asked, told = ([x for x in lines if key in x] for key in ("asked", "told"))
    assert len(asked) == len(told) <= 4
    for one, other in zip(asked, told, strict=True):
        plan = one["plan"]
        if plan["context"] > 2:
            assert other["oom"] is True
        else:
            assert other["seconds"] == [19.0 + plan["context"] + 2 * len(plan["stages"])]
    assert "best: trial" in said and "expected (" in err


NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))

def batch():
    return torch.ones(8, 16)
"""


@pytest.mark.slow
def test_tune__a_module_on_this_machine(run, tmp_path, monkeypatch):
    """The guide's commands: the machine is measured, plans run, and each tells its seconds."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    good(run("calibrate", "--out", "machine.json", "--repeats", 2, "--largest", 0.07))
    module = ("net.py:make", "--args", "batch")
    command = f"{sys.executable} -m parenvs run {{plan}} {' '.join(module)} --repeats 3 --json"
    given = ("--cluster", "machine.json", "--batch", 8, "--for", "torch", "--precision", "fp32")
    trials = ("--run", command, "--seconds", r'"step": \{"seconds": ([0-9.e-]+)', "--skip", 0)
    status, said, err = run("tune", *module, *given, *trials, "--trials", 2)
    assert status == 0, err
    lines = [json.loads(line) for line in (tmp_path / "tune.jsonl").read_text().splitlines()]
    told = [line["seconds"] for line in lines if "told" in line]
    assert 1 <= len(told) <= 2 and all(0 < seconds[0] < 60 for seconds in told)
    assert "best: trial" in said
