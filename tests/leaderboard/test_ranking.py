"""Rankings: marks of missing, equal and illegal plans, older lists, tables of results."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.renew import summary
from parenvs.leaderboard import ranking as ranks
from parenvs.leaderboard.check import PlanState, check
from parenvs.leaderboard.entry import load_entry
from parenvs.leaderboard.ranking import by_version, compare, page, ranking, unconfirmed
from parenvs.leaderboard.tasks import tasks

FOLDER = Path(__file__).parents[2] / "leaderboard" / "submissions"


@pytest.fixture(scope="module")
def greedy():
    return check(load_entry(FOLDER / "data-parallel" / "greedy.json"))


def changed(checked, name, **fields):
    """Another entry of the same verdicts."""
    return replace(checked, entry=replace(checked.entry, entry=name, **fields))


def with_states(checked, *states):
    """The same with other states of its first plans, which then cost as the trivial ones."""
    first = [
        replace(verdict, state=state, cost=verdict.problem.trivial)
        for verdict, state in zip(checked.verdicts, states, strict=False)
    ]
    return replace(checked, verdicts=(*first, *checked.verdicts[len(first) :]))


def test_ranking__ties_share_a_rank_and_marks_say_why_a_score_is_low(greedy):
    gone = with_states(changed(greedy, "gone"), PlanState.MISSING, PlanState.ILLEGAL)
    twin = changed(greedy, "twin", authors=("Ada",))
    standings = ranking(greedy.task, [gone, twin, greedy])
    assert [(x.rank, x.name) for x in standings] == [(1, "greedy"), (1, "twin"), (3, "gone")]
    assert standings[2].mark == "1 missing, 1 illegal" and standings[0].mark == ""
    assert standings[0].reached == len(greedy.task.counted) == standings[2].reached + 2
    marks = compare(standings)
    assert marks["twin"].words == "same plans as greedy" and marks["greedy"].words == ""
    rows = page([gone, twin, greedy]).splitlines()
    assert any(row.startswith("| 1 | twin |") and "same plans as greedy" in row for row in rows)
    name = gone.verdicts[0].problem.name
    (row,) = (row for row in rows if row.startswith(f"| {name} |"))
    assert row.count("1.0000") == 2 and f"({gone.verdicts[0].score:.4f})" in row
    score = f"greedy 1.0000, twin 1.0000, gone {gone.score:.4f}"
    assert f"| data-parallel | {len(greedy.task.counted)} | {score} |" in summary(
        [gone, twin, greedy]
    )


def test_compare__slower_by_the_closed_form_and_not_by_the_simulation():
    """Such a plan is equal within the model's error, and its problem is said to be turned."""
    best, even = (
        check(load_entry(FOLDER / "pipeline-cut" / f"{name}.json")) for name in ("exact", "even")
    )
    standings = ranking(best.task, [even, best])
    assert compare(standings)["even"].equal == () and standings[0].name == "exact"
    problem = best.verdicts[0].problem
    faster = replace(even.verdicts[0], report=best.verdicts[0].report)
    close = replace(even, verdicts=(faster, *best.verdicts[1:]))
    standings = ranking(best.task, [close, best])
    assert compare(standings)["even"].words == "equal to exact within the model's error"
    assert unconfirmed(standings) == {problem.name: {"even"}}
    assert "equal to exact within the model's error" in page([close, best])


def test_by_version__older_lists_are_ranked_among_themselves(greedy, monkeypatch):
    today = tasks()
    old = changed(greedy, "old", tasks=today.version - 1)
    lists = {None: today, today.version: today}
    lists[today.version - 1] = replace(today, version=today.version - 1)
    monkeypatch.setattr(ranks, "tasks", lambda version=None: lists[version])
    groups = [(known.version, [x.entry.entry for x in group]) for known, group in by_version([old])]
    assert groups == [(today.version, []), (today.version - 1, ["old"])]
    text = page([old, greedy])
    first, second = text.split(f"# Entries of version {today.version - 1}")
    assert "| 1 | greedy |" in first and "| 1 | old |" in second and "| 1 | old |" not in first
    (older,) = ranks.standings_json([old, greedy])["older"]
    assert older["version"] == today.version - 1
