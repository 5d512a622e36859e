"""The tables in Markdown."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from parenvs.leaderboard import results
from parenvs.leaderboard.check import PlanState
from parenvs.leaderboard.tasks import tasks
from parenvs.markdown import escaped

BOARD = Path(__file__).parents[2] / "leaderboard"


def test_results__are_the_generated_ones(board):
    """The sections of the tasks at hand, and both files where that is all of them."""
    entries, text = list(board.values()), (BOARD / "results.md").read_text(encoding="utf-8")
    made, names = results.page(entries), {checked.task.name for checked in entries}
    rankings, _, without = made.partition("\n\nNo entry yet: ")
    assert all((f"`{name}`" in without) != (name in names) for name in tasks().tasks)
    ours, theirs = (
        {part.split("\n")[0]: part.strip() for part in x.split("\n## ")} for x in (rankings, text)
    )
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    if names == {*tasks().tasks}:
        assert text == made
        summary = (BOARD / "summary.md").read_text(encoding="utf-8")
        assert summary == results.summary(entries)


def test_results__problems_whose_files_users_add(board):
    """The page is the generated one where the files are; anywhere it names every such plan."""
    text = (BOARD / "contest.md").read_text(encoding="utf-8")
    verdicts = [(c.entry.entry, v) for c in board.values() for v in c.verdicts if v.problem.added]
    planned = [(name, v) for name, v in verdicts if v.state != PlanState.MISSING]
    assert planned
    for name, verdict in planned:
        assert f"| {name} | {verdict.problem.name} | " in text
    if not any(verdict.state == PlanState.UNJUDGED for _, verdict in planned):
        assert text == results.added_page(list(board.values()))


def test_results__a_better_plan_scores_above_one(board):
    """Rankings and tiers show what is above 1 as it is; the old tasks keep their columns."""
    checked = next(
        c for c in board.values() if (c.task.name, c.entry.entry) == ("hetero", "best-known")
    )
    first = checked.verdicts[0]
    problem = replace(
        first.problem,
        reference=replace(first.problem.reference, cost=2 * first.cost, status="bound"),
    )
    better = replace(checked, verdicts=(replace(first, problem=problem), *checked.verdicts[1:]))
    assert better.score == pytest.approx(2 ** (1 / len(checked.verdicts)), rel=1e-6)
    page = results.page([better])
    assert f"| {better.score:.4f} |" in page and "| certified |" in page
    (old,) = re.findall("## pipeline-cut\n.*?\n## ", results.page(list(board.values())), re.S)
    assert "certified" not in old


def test_results__hostile_words_break_no_table(board):
    """An entry of Markdown's own characters adds no column, line, mention, link or heading."""
    hostile = "a|b `c` [d](https://e.f) @all #1 $x$ **g** <h>"
    sound = next(iter(board.values()))
    entry = replace(sound.entry, search_budget=hostile, authors=(hostile,), trained_on=(hostile,))
    lines = results.page([replace(sound, entry=entry)]).splitlines()
    plain = results.page([sound]).splitlines()
    assert len(lines) == len(plain)
    (row,) = (new for new, old in zip(lines, plain, strict=True) if new != old)
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == len(re.split(r"(?<!\\)\|", lines[lines.index(row) - 2]))
    assert sum(cell.strip() == escaped(hostile) for cell in cells) == 3
    assert not re.search(r"@\w|#\d|\$\w|[^\\]`|https?://", row.split("|", 4)[4])
