"""A job on nodes that come and go: samples once and in order, and losses of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import caller

pytest.importorskip("torch")
pytest.importorskip("jax")

ROOT = Path(__file__).parents[2]
SOURCE = f"{ROOT / 'examples' / 'elastic_transformer.py'}:build"
TRACE = """seconds,event,node
0,add,a
60,add,b
60,add,c
120,remove,a
180,add,d
240,remove,b
240,remove,c
240,remove,d
240,add,e
300,add,f
360,remove,f
"""
"""Joins; a replica is left; all leave at once; at the end one of two leaves again."""
OPTIONS = ("--processes", "3", "--interval-steps", "2", "--step-seconds", "0.01", "--every", "3",
           "--batch", "12")  # fmt: skip


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    (tmp_path / "nodes.csv").write_text(TRACE)
    return caller(monkeypatch, capfd, tmp_path, "elastic", "run")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--policy", "varuna"), "--policy varuna drives no job, as it does not move the state"),
        (("--policy", "fastst"), "--policy 'fastst' is unknown (did you mean 'fastest'?)"),
        (("--launcher", "slurm"), "--launcher: no launcher 'slurm'; known: local, ray"),
        (("--address", "auto"), "--address is of --launcher ray"),
        (("--processes", "2"), "nodes.csv: up to 3 nodes at a time; give --processes 3"),
        (("--speed", "0"), "--speed must be from 1e-9 to 1e9"),
        (("--step-seconds", "0"), "--step-seconds must be from 1e-9 to 1e9, not 0.0"),
        (("--step-seconds", "1e-320"), "--step-seconds must be from 1e-9 to 1e9"),
        (("--interval-steps", "0"), "--interval-steps must be from 1"),
        (("--out", "."), ".: is there and holds no job; give another --out"),
        (("--batch", "0"), "--batch must be from 1"),
    ],
)
def test_run__refuses(run, given, words):
    status, out, err = run("nodes.csv", SOURCE, *OPTIONS, *given)
    assert (status, out) == (2, "") and words in err.splitlines()[-1]


@pytest.mark.thorough
def test_run__refuses_what_is_no_model(run, tmp_path):
    (tmp_path / "wrong.py").write_text("def build():\n    return 1, 2\n")
    status, _, err = run("nodes.csv", "wrong.py:build", *OPTIONS)
    assert status == 2 and "it has to return a torch.nn.Module, its loss and a data set" in err
    assert not (tmp_path / "elastic-run").exists()


def told(out):
    """The totals at the end of what a command printed."""
    return json.loads(out[out.index("{") :])


@pytest.mark.slow
@pytest.mark.parametrize("notice", [False, True])
def test_run__trains_as_one_process(run, tmp_path, notice):
    more = ("--notice",) if notice else ()
    status, out, err = run("nodes.csv", SOURCE, *OPTIONS, "--verify", "--json", *more)
    assert status == 0, err
    found = told(out)
    assert found["samples_in_order"] and found["worst_difference"] < 1e-5
    happened, predicted = found["happened"], found["predicted"]
    assert happened["steps"] + happened["steps_lost"] == 7 * 2 and happened["nodes_lost"] == 3
    assert happened["changes"] == predicted["changes"] == 7
    # Without notice, all three nodes take what they hold along: what is left is the checkpoint.
    assert happened["from_checkpoint"] == (not notice)
    assert happened["steps_lost"] == 2 * (not notice) and happened["checkpoints"] == 3
    moves = [x for x in rows_of(tmp_path) if x["way"] == "move"]
    assert moves and all(x["busiest"] == pytest.approx(x["priced"], abs=0.5) for x in moves)
    lines = (tmp_path / "elastic-run" / "steps.jsonl").read_text().splitlines()
    assert len(lines) == happened["steps"] + happened["steps_lost"]
    assert (tmp_path / "elastic-run" / "run.png").stat().st_size > 10_000


def rows_of(folder):
    """The intervals that are over."""
    path = folder / "elastic-run" / "intervals.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(x) for x in text.rpartition("\n")[0].splitlines()]


def within(folder):
    """Processes that run in a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [place] if (place / "cwd").resolve() == folder.resolve() else []
    return [x for x in found if int(x.name) != os.getpid()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_run__goes_on_after_the_end_of_its_driver(run, tmp_path, number):
    command = [sys.executable, "-m", "parenvs", "elastic", "run", "nodes.csv", SOURCE, *OPTIONS]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    journal = tmp_path / "elastic-run" / "intervals.jsonl"
    while len(rows_of(tmp_path)) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait() == -number
    deadline = time.monotonic() + 30
    while within(tmp_path):  # no worker is left
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with journal.open("a") as stream:
        stream.write('{"interval": 3, "no')  # a line that the kill cut off
    before = len(journal.read_text().splitlines()) - 1
    status, out, err = run("nodes.csv", SOURCE, *OPTIONS, "--verify", "--json")
    assert status == 0, err
    found = told(out)
    assert found["samples_in_order"] and found["worst_difference"] < 1e-5
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["interval"] for row in rows] == list(range(7)) and before < 7
    assert rows[before]["way"] == "checkpoint"
    saved = max(row["steps"] for row in rows[:before] if row["saved"])
    assert rows[before]["lost"] == rows[before - 1]["steps"] - saved
    status, _, err = run("nodes.csv", SOURCE, *OPTIONS, "--seed", "1")
    assert status == 2 and "field 'seed' is 0, and this job has 1; give another --out" in err
