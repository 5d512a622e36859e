"""``parenvs plan``, ``compare``, ``judge`` and ``explain`` of hybrid plans."""

import json
from pathlib import Path

import pytest
from cases import slow
from commands import caller

from parenvs import judge, load_plan

SHAPE = {
    "name": "mine", "layers": 6, "hidden": 1024, "heads": 16, "sequence": 512, "vocabulary": 32000
}  # fmt: skip
TASK = ("--task", "hybrid", "--cluster", "1x8:h100", "--batch", "32")


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("plan", ...)`` in an empty folder with a shape: (status, stdout, stderr)."""
    place = tmp_path / "here"
    place.mkdir()
    (place / "mine.json").write_text(json.dumps(SHAPE))
    return caller(monkeypatch, capfd, place)


@pytest.mark.thorough
def test_plan__writes_plan_picture_and_map(run):
    status, shown, _ = run(
        "plan", "mine.json", *TASK, "--stack", "nemo-2024", "--out", "plan.json", "--plot", "p.png",
        "--map", "m.png", "-v",
    )  # fmt: skip
    assert status == 0
    assert "optimal among uniform plans" in shown
    assert "near the best" in shown
    assert "if the machine differs" in shown
    assert "next: parenvs explain plan.json" in shown
    assert Path("p.png").stat().st_size > 10_000 < Path("m.png").stat().st_size
    report = judge(load_plan("plan.json"))
    assert report.legal
    status, shown, _ = run("judge", "plan.json", "--json")
    assert status == 0
    assert json.loads(shown)["length_seconds"] == report.length_seconds
    status, shown, _ = run("explain", "plan.json")
    assert status == 0
    assert "Why not otherwise?" in shown


def test_plan__keeps_to_constraints(run):
    status, shown, _ = run(
        "plan", "mine.json", *TASK, "--tp", "2", "--stages", "2", "--dp", "2", "--micro-batch",
        "4", "--recompute", "full", "--zero", "0,1", "--agent", "uniform", "--json",
    )  # fmt: skip
    assert status == 0
    plan = json.loads(shown)["plan"]
    assert [stage["tp"] for stage in plan["stages"]] == [2, 2]
    assert [stage["devices"] for stage in plan["stages"]] == [4, 4]
    assert plan["micro_batch"] == 4
    assert all(stage["zero"] <= 1 for stage in plan["stages"])
    assert all(set(stage["recompute"]) == {"full"} for stage in plan["stages"])


def test_plan__pins_layers_and_leaves_devices_free(run):
    status, shown, _ = run(
        "plan", "mine.json", *TASK, "--pin", "0-1:2", "--devices-used", "4", "--agent",
        "exact", "--json",
    )  # fmt: skip
    assert status == 0
    first = json.loads(shown)["plan"]["stages"][0]
    assert (first["layers"], first["devices"]) == ([[0, 2]], 2)
    assert sum(stage["devices"] for stage in json.loads(shown)["plan"]["stages"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine.json", "--task", "hybrid", "--cluster", "1x8:h100"), "batch"),
        (("mine.json", *TASK, "--stack", "megatron-2023"), "did you mean 'megatron-202"),
        (("mine.json", *TASK, "--precision", "bf61"), "did you mean 'bf16'"),
        (("mine.json", *TASK, "--tp", "3"), "tp 3 does not divide heads 16"),
        (("mine.json", *TASK, "--zero", "4"), "'zero' must be some of 0, 1, 2 and 3, not (4,)"),
        (("mine.json", *TASK, "--pin", "3"), "--pin '3' does not parse"),
        (
            ("mine.json", *TASK, "--rules", "shardy"),
            "--rules is not an option of --task hybrid, but of partition",
        ),
        (("mine.json", *TASK, "--objective", "speed"), "objective: 'name' must be one of seconds"),
        (("vgg-19", "--tp", "2"), "task hybrid needs batch, the number of samples of a step"),
        (("vgg-19", "--map", "m.png"), "--map is not an option of --task pipeline, but of hybrid"),
        (("absent.json", *TASK), "absent.json"),
        *slow((("llama3-70b", *TASK), " uniform plans fits the memory; the smallest (")),
    ],
)
def test_plan__bad_input_is_one_line(run, arguments, words):
    status, shown, errors = run("plan", *arguments)
    assert status == 2
    assert words in errors
    assert len(errors.strip().splitlines()) == 1
    assert "Traceback" not in shown + errors
