"""Fixtures of the leaderboard's tests: judged entries, the command, a list of tasks to change."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.agents.elastic.play import play
from parenvs.cli import app as cli
from parenvs.leaderboard import policies as judging
from parenvs.leaderboard import tasks as lists
from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.entry import entry_files
from parenvs.leaderboard.sandbox.runner import Outcome
from parenvs.leaderboard.tasks import read_tasks

BOARD = Path(__file__).parents[2] / "leaderboard"


def pytest_collection_modifyitems(items):
    """One process judges the entries for all tests of them."""
    for item in items:
        if "board" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("board"))


@pytest.fixture(scope="session")
def board():
    """Every committed entry, judged: (entries, processor seconds).

    Policies play in this process: the way through the sandbox has tests of its own.
    """

    def run(function, argument, limits):
        assert function.endswith("play:play")
        return Outcome(json.loads(json.dumps(play(argument))), "", 0.0)

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
