"""``parenvs plan`` says where a plan runs, and how much faster it is than what is run today."""

import json
import re
from pathlib import Path

import pytest
from cases import each
from commands import caller

SMALL = {"name": "small", "layers": 8, "hidden": 1024, "heads": 16, "sequence": 512,
         "vocabulary": 32_000}  # fmt: skip
CASE = ("small.json", "--cluster", "2x8:a100", "--batch", 64)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("plan", ...)`` in a folder with a shape; returns (status, stdout, stderr)."""
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    return caller(monkeypatch, capfd, tmp_path)


def good(result):
    status, out, err = result
    assert status == 0, err
    return out, err


def test_for__says_the_task_and_what_is_usual(run):
    out, _ = good(run("plan", *CASE, "--for", "megatron", "--out", "m.json"))
    assert out.startswith("hybrid: ")
    assert "runs in: megatron" in out
    assert re.search(
        r"^baseline: rule of thumb, Megatron's .*: tp 1, pp 1, .* a step; this plan", out, re.M
    )
    out, _ = good(run("plan", *CASE, "--for", "any"))
    assert re.search(r"^baseline: rule of thumb, ", out, re.M)
    out, _ = good(run("plan", *CASE, "--for", "deepspeed", "--json"))
    now = json.loads(out)["baseline"]
    assert now["words"].startswith("the lowest ZeRO that fits (deepspeed): tp 1, pp 1, dp 16")
    assert now["times_as_fast"] == pytest.approx(now["cost"] / now["own"]) and now["note"] == ""


def test_baseline__degrees_and_files_of_flags(run):
    """A plan beside the degrees of itself, and beside its own flags, is as fast."""
    line = ("plan", *CASE, "--for", "megatron")
    out, _ = good(run(*line, "--baseline", "tp 8 pp 2", "--out", "m.json"))
    (words,) = re.findall(r"^baseline: (tp 8, pp 2, .*)$", out, re.M)
    assert re.search(r"times as fast$", words)
    good(run("export", "m.json", "--to", "megatron", "--out", "m.sh"))
    out, _ = good(run(*line, "--baseline", "m.sh"))
    assert re.search(r"^baseline: .*; this plan is as fast$", out, re.M)
    out, _ = good(run("judge", "m.json"))
    assert "runs in: megatron" in out
    status, _, err = run(*line, "--baseline", "tp 9")
    assert status == 0, err  # what fits nothing is said, and is no error of the plan
    out, _ = good(run(*line, "--baseline", "fsdp"))
    assert re.search(r"^baseline: tp 1, pp 1, dp 16, .*ZeRO 3.*times as fast$", out, re.M)


@each(
    ("options", "task", "named"),
    [
        (("--devices", 2), "partition", True),
        (("--batch", 64, "--cluster", "1x8:h100"), "hybrid", True),
        (("--cluster", "A"), "pipeline", True),
        (("--cluster", "A", "--task", "pipeline"), "pipeline", False),
    ],
)
def test_plan__says_a_task_that_is_not_given(run, options, task, named):
    out, _ = good(run("plan", "vgg-19", *options, "--out", "plan.json"))
    assert out.startswith(f"{task}: ") == named
    assert json.loads(Path("plan.json").read_text())["task"] == task


def test_plan__never_over_a_task(run):
    status, _, err = run("plan", "vgg-19", "--cluster", "A", "--task", "pipeline", "--tp", 2)
    assert status == 2 and "--tp is not an option of --task pipeline, but of hybrid" in err


@pytest.mark.slow
def test_baseline__of_other_tasks(run):
    """By the hybrid model, which is read if it is asked for."""
    plan = ("plan", "t5-base", "--task", "partition", "--cluster", "1x8:a100")
    words = r"^baseline: data parallel, FSDP if .*: tp 1, pp 1, dp 8, .* this plan "
    assert re.search(words, good(run(*plan, "-v"))[0], re.M)
    assert "baseline" not in good(run(*plan))[0]
    status, _, err = run(
        "plan", "intra-op-test/mesh-000", "--agent", "greedy", "--baseline", "tp 2"
    )
    assert status == 2 and "--baseline is for plans with seconds of a step; task sharding" in err


def test_diff__of_hybrid_plans_is_by_decision_and_part(run):
    plan = ("plan", *CASE, "--task", "hybrid", "--agent", "uniform")
    good(run(*plan, "--stages", 1, "--out", "a.json"))
    good(run(*plan, "--stages", 4, "--recompute", "full", "--out", "b.json"))
    out, _ = good(run("diff", "a.json", "b.json"))
    assert re.search(r"^  stages +1 → 4$", out, re.M)
    assert re.search(r"^  recompute +none → full 2$", out, re.M)
    assert re.search(r"^  recomputed +0 s +[\d.]+ m?s +\+", out, re.M)
    content = json.loads(good(run("diff", "a.json", "b.json", "--json"))[0])
    assert sum(x["difference"] for x in content["parts"]) == pytest.approx(content["seconds"])
    assert max(map(len, out.splitlines())) <= 110
    out, _ = good(run("diff", "a.json", "a.json"))
    assert out.rstrip().endswith("the plans decide the same")
    out, _ = good(run("judge", "b.json"))
    assert "recomputed: 8 full, of 8 layers" in out and "redone" in out
