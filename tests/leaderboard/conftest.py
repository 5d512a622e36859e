"""Fixtures of the leaderboard's tests: judged entries, the command, a list of tasks to change."""

import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.cli import app as cli
from parenvs.files import write_text
from parenvs.leaderboard import tasks as lists
from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.entry import entry_files
from parenvs.leaderboard.policies import judging
from parenvs.leaderboard.sandbox.runner import Outcome
from parenvs.leaderboard.tasks import read_tasks

BOARD = Path(__file__).parents[2] / "leaderboard"


@pytest.fixture(scope="session")
def board(tmp_path_factory):
    """Every committed entry, judged: (entries, processor seconds here).

    Processes that test side by side play the policies of entries once: what the sandbox gave is
    shared, and what is chosen is replayed and judged in each.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def run(function, argument, limits):
        name = hashlib.sha256(json.dumps([function, argument]).encode()).hexdigest()
        path = folder / f"{name}.json"
        if not path.exists():
            outcome = sandbox(function, argument, limits)
            assert outcome.fault == ""
            write_text(path, json.dumps(outcome.value))
        return Outcome(json.loads(path.read_text()), "", 0.0)

    sandbox, begin = judging.run, time.process_time()
    judging.run = run
    try:
        entries = [check_file(path) for path in entry_files(BOARD / "submissions")]
    finally:
        judging.run = sandbox
    return entries, time.process_time() - begin


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("check", ...)`` of ``parenvs leaderboard`` in an empty folder: (status, out, err)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["parenvs", "leaderboard", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def own_tasks(tmp_path, monkeypatch):
    """``own_tasks(task, problem, **changes)`` changes a reference in a list used for the test."""
    path = tmp_path / "tasks.json"

    def change(task, problem, **changes):
        known = read_tasks(BOARD / "tasks.json")
        old = known.tasks[task].problems[problem].reference
        known.improved({task: {problem: replace(old, **changes)}}).save(path)
        monkeypatch.setattr(lists, "tasks_file", lambda: path)
        return path

    return change
