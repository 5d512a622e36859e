"""Journals of jobs: what a driver goes on with, and damaged ones."""

import json

import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.jobs.journal import INTERVALS, JOB, STEPS, Interval, Journal, Step

ABOUT = {"model": "net.py:build", "nodes": 4}


@pytest.fixture
def folder(tmp_path):
    journal = Journal.open(tmp_path / "job", {**ABOUT, "measured": 0.5, "tracing": 2})
    for number in range(3):
        journal.add(Step(number, 0, 1.5 - number / 4, [2 * number, 2 * number + 1], 0.25))
    journal.add(Interval(0, 4, way="start", seconds=0.75, sent=2**40, steps=3, trained=3))
    return tmp_path / "job"


def test_journal__goes_on_with_what_is_written(folder):
    with (folder / STEPS).open("a") as stream:
        stream.write('{"step": 3, "inter')  # a kill
    journal = Journal.open(folder, ABOUT)
    assert [step.loss for step in journal.trained] == [1.5, 1.25, 1.0]
    assert (journal.measured, journal.tracing) == (0.5, 2)
    assert journal.intervals == [
        Interval(0, 4, way="start", seconds=0.75, sent=2**40, steps=3, trained=3)
    ]
    assert (folder / STEPS).read_text().endswith("\n")


@each(
    ("name", "change", "words"),
    [
        (STEPS, lambda row: {**row, "loss": "low"}, "line 3: field 'loss'"),
        (STEPS, lambda row: {**row, "loss": float("nan")}, "line 3: field 'loss'"),
        (STEPS, lambda row: {**row, "more": 1}, "line 3: .*'more'"),
        (STEPS, lambda row: {"step": 1}, "line 3: .*'interval'"),
        (STEPS, lambda row: [], "line 3: expected one JSON object"),
        (STEPS, lambda row: {**row, "step": -1}, "line 3: field 'step'"),
        (STEPS, lambda row: {**row, "step": 7}, "steps.jsonl: has no step 2"),
        (INTERVALS, lambda row: {**row, "interval": 1}, "line 1: field 'interval' is 1, not 0"),
        (JOB, lambda row: {k: v for k, v in row.items() if k != "measured"}, "field 'measured'"),
        (JOB, lambda row: {**row, "measured": "long"}, "field 'measured'"),
        (JOB, lambda row: {**row, "measured": 0}, "field 'measured' must be seconds from 1e-9"),
        (JOB, lambda row: {**row, "measured": 5e-324}, "field 'measured' must be seconds"),
        (JOB, lambda row: {**row, "tracing": -1}, "field 'tracing'"),
        (INTERVALS, lambda row: {**row, "way": "magic"}, "line 1: field 'way'"),
        (INTERVALS, lambda row: {**row, "seconds": float("nan")}, "line 1: field 'seconds'"),
    ],
)
def test_journal__damage_is_one_line(folder, name, change, words):
    path = folder / name
    before = path.read_text()
    lines = before.splitlines()
    path.write_text("\n".join([*lines[:-1], json.dumps(change(json.loads(lines[-1])))]) + "\n")
    with pytest.raises(ParenvsError, match=words):
        Journal.open(folder, ABOUT)
    path.write_text(before)


@each("content", [b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"{]\n"])
def test_journal__what_is_no_json_is_one_line(folder, content):
    (folder / STEPS).write_bytes(content)
    with pytest.raises(ParenvsError, match="a line is not JSON"):
        Journal.open(folder, ABOUT)
