"""Fixtures of the leaderboard's tests: judged entries, the command, a list of tasks to change."""

from dataclasses import replace
from pathlib import Path

import pytest
from cases import slow
from commands import main

from parenvs.leaderboard import tasks as lists
from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.entry import entry_files
from parenvs.leaderboard.tasks import read_tasks

BOARD = Path(__file__).parents[2] / "leaderboard"
QUICK = ("pipeline-cut", "pipeline-plan", "hetero", "hybrid", "iopddl", "pipeline-drawn")
"""Tasks whose entries are judged in less than two seconds together."""


@pytest.fixture(scope="session")
def whole_board():
    """Every committed entry."""
    return {path: check_file(path) for path in entry_files(BOARD / "submissions")}


@pytest.fixture(scope="session", params=["quick tasks", *slow("all tasks")])
def board(request):
    """All committed entries of some tasks."""
    if request.param == "all tasks":
        return request.getfixturevalue("whole_board")
    files = entry_files(BOARD / "submissions")
    return {path: check_file(path) for path in files if path.parent.name in QUICK}


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("check", ...)`` of ``parenvs leaderboard`` in an empty folder: (status, out, err)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capfd.readouterr()
        status = main(monkeypatch, "leaderboard", *arguments)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

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
