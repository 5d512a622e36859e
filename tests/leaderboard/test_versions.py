"""Versions of the list of tasks: each has a seed of its own, and entries of before still stand."""

from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.leaderboard import check as checking
from parenvs.leaderboard import references, results
from parenvs.leaderboard import tasks as lists
from parenvs.leaderboard.check import PlanState, check
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.leaderboard.reading import EntryError
from parenvs.leaderboard.site import write_site
from parenvs.leaderboard.tasks import read_tasks, tasks

SORTED = Path(__file__).parents[2] / "leaderboard" / "submissions" / "hetero" / "sorted.json"
GONE = "hetero-8-test/spread-000"


@pytest.fixture
def second(tmp_path, monkeypatch):
    """The list of version 2, in which a problem is gone; returns its file."""
    path = tmp_path / "tasks.json"
    known = tasks()
    known.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(lists, "tasks_file", lambda: path)
    monkeypatch.setattr(references, "VERSION", known.version + 1)
    monkeypatch.setattr(references.secrets, "randbelow", lambda most: 77)

    def made(name, *_):
        old = known.tasks[name]
        return replace(old, problems={k: x for k, x in old.problems.items() if k != GONE})

    monkeypatch.setattr(references, "make_task", made)
    assert references.main(["--tasks", "hetero", "--out", str(path)]) == 0
    assert path.with_name("tasks-1.json").read_bytes() == before
    return path


def test_versions__each_has_a_seed_that_was_drawn_for_it(second):
    assert tasks() is not tasks(1) and (tasks().version, tasks(1).version) == (2, 1)
    assert (tasks().seed, tasks(1).seed) == (77, 0)
    assert references.main(["--tasks", "hetero", "--out", str(second)]) == 0
    assert read_tasks(second).seeds == {1: 0, 2: 77}  # the same version keeps its seed
    with pytest.raises(lists.ParenvsError, match="no list of tasks of version 9"):
        tasks(9)


def test_versions__entries_of_before_are_judged_by_the_list_they_were_made_for(second, tmp_path):
    old = load_entry(SORTED)
    anew = replace(old, tasks=2, plans={k: x for k, x in old.plans.items() if k != GONE})
    judged = {version: check(entry) for version, entry in ((1, old), (2, anew))}
    for version, checked in judged.items():
        names = [verdict.problem.name for verdict in checked.verdicts]
        assert (GONE in names) == (version == 1)
        assert {verdict.state for verdict in checked.verdicts} == {PlanState.LEGAL}
    page = results.page(list(judged.values()))
    todays, older = page.split("# Entries of version 1\n")
    for part, checked in ((todays, judged[2]), (older, judged[1])):
        assert f"| 1 | sorted | {checked.score:.4f} |" in part and part.count("| sorted |") == 2
    files = write_site(tmp_path / "site", list(judged.values()))
    assert 'href="version-1/index.html"' in files["index.html"]
    plans = "plans/hetero/sorted"
    assert f"version-1/{plans}/{GONE}.json" in files and f"{plans}/{GONE}.json" not in files
    write_site(tmp_path / "site", [judged[2]])  # it may replace what has older lists in it
    with pytest.raises(EntryError, match="field 'tasks' is 3; this version of parenvs takes 2"):
        Entry.from_json({**old.to_json(), "tasks": 3})


def test_versions__methods_meet_the_problems_of_their_versions_seed(second, monkeypatch):
    drawn = []
    monkeypatch.setattr(checking, "require_isolation", lambda: None)
    monkeypatch.setattr(checking, "drawn_task", lambda name, seed: drawn.append(seed))
    monkeypatch.setattr(checking, "method_verdicts", lambda *_, **__: ())
    words = {"task": "sharding-drawn", "entry": "mine", "authors": ("Ada",), "method": "By hand."}
    for version in (1, 2):
        check(Entry(**words, tasks=version))
    check(Entry(**words, tasks=2), seed=5)
    assert drawn == [0, 77, 5]
