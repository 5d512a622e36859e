"""Marks beside other entries: same plans, and orders that the simulation turns round."""

from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.leaderboard.check import check, ranking
from parenvs.leaderboard.comparing import compare, simulated, turned
from parenvs.leaderboard.entry import load_entry
from parenvs.leaderboard.results import page
from parenvs.leaderboard.tasks import TaskList, tasks
from parenvs.leaderboard.verdicts import PlanState

FOLDER = Path(__file__).parents[2] / "leaderboard" / "submissions" / "pipeline-cut"
PROBLEM, OTHER = "t5-base-a100-4-4", "vgg-19-A-2"


@pytest.fixture(scope="module")
def checked():
    """Entries on one problem, on which the simulation turns the order round, judged."""
    made = {}
    for name in ("exact-full", "pretrained-refined", "beam", "even"):
        entry = check(load_entry(FOLDER / f"{name}.json"))
        few = tuple(v for v in entry.verdicts if v.problem.name == PROBLEM)
        task = replace(entry.task, problems={PROBLEM: entry.task.problems[PROBLEM]})
        made[name] = replace(entry, task=task, verdicts=few)
    return made


def test_compare__equal_within_the_model_s_error(checked, monkeypatch):
    """On this problem other plans have a greater L than the proven optimum, and are not slower."""
    standings = ranking(tasks().task("pipeline-cut"), checked.values())
    marks = compare(standings)
    for standing in standings:
        verdict = standing.checked.verdicts[0]
        mark = marks[standing.checked.entry.entry]
        wanted = verdict.problem.reference.cost / simulated(verdict)
        assert mark.simulated == pytest.approx(wanted)
        faster = {
            s.checked.entry.entry for s in standings
            if s.score > standing.score
            and simulated(s.checked.verdicts[0]) >= simulated(verdict) * (1 - 1e-6)
        }  # fmt: skip
        assert set(mark.equal) == faster
    assert marks["exact-full"].equal == () and marks["pretrained-refined"].equal == ("exact-full",)
    found = turned(standings)
    assert set(found) == {PROBLEM} and "pretrained-refined" in found[PROBLEM]
    assert "even" not in found[PROBLEM]
    task = standings[0].checked.task
    few = TaskList(1, 1, {task.name: task})
    monkeypatch.setattr("parenvs.leaderboard.check.tasks", lambda version=None: few)
    text = page(list(checked.values()))
    assert "equal to exact-full within the model's error" in text and " ≈ |" in text
    assert "On 1 of 1 problems a plan with a greater L" in text


def test_compare__same_plans_are_marked(checked):
    """A copy of another's plans is marked; the project's own is named, whatever the names are."""
    sound = checked["beam"]
    copy = replace(sound, entry=replace(sound.entry, entry="aaa", authors=("Mallory",)))
    standings = ranking(tasks().task("pipeline-cut"), [copy, *checked.values()])
    marks = compare(standings)
    assert marks["aaa"].same == "beam" and marks["beam"].same == ""
    assert marks["aaa"].words.startswith("same plans as beam")
    assert {marks[name].same for name in checked} == {""}


def test_compare__plans_of_other_problems_are_not_the_same(checked):
    """One plan in common is none too many; entries without any legal plan are no copies."""
    sound = checked["beam"]
    verdict = replace(sound.verdicts[0], state=PlanState.MISSING, report=None)
    empty = [
        replace(sound, entry=replace(sound.entry, entry=name), verdicts=(verdict,))
        for name in ("aaa", "bbb")
    ]
    marks = compare(ranking(tasks().task("pipeline-cut"), [*empty, sound]))
    assert [mark.same for mark in marks.values()] == [""] * 3
    assert marks["aaa"].simulated is None


@pytest.mark.slow
def test_compare__other_tasks_are_not_simulated(whole_board):
    standings = ranking(tasks().task("data-parallel"), list(whole_board.values()))
    marks = compare(standings)
    assert all(mark.simulated is None and mark.equal == () for mark in marks.values())
    assert turned(standings) == {}
    assert sum(mark.same != "" for mark in marks.values()) >= 2  # optima that several found
