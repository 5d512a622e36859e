"""The tables in Markdown."""

import re
from dataclasses import replace
from pathlib import Path

from parenvs.leaderboard import results
from parenvs.leaderboard.tasks import tasks
from parenvs.markdown import escaped

BOARD = Path(__file__).parents[2] / "leaderboard"


def test_results__are_the_generated_ones(board):
    assert (BOARD / "results.md").read_text(encoding="utf-8") == results.page(tasks(), board[0])
    assert (BOARD / "summary.md").read_text(encoding="utf-8") == results.summary(tasks(), board[0])


def test_results__hostile_words_break_no_table(board):
    """An entry of Markdown's own characters adds no column, line, mention, link or heading."""
    hostile = "a|b `c` [d](https://e.f) @all #1 $x$ **g** <h>"
    sound = board[0][0]
    entry = replace(sound.entry, search_budget=hostile, authors=(hostile,), trained_on=(hostile,))
    lines = results.page(tasks(), [replace(sound, entry=entry)]).splitlines()
    plain = results.page(tasks(), [sound]).splitlines()
    assert len(lines) == len(plain)
    (row,) = (new for new, old in zip(lines, plain, strict=True) if new != old)
    cells = re.split(r"(?<!\\)\|", row)
    assert len(cells) == len(re.split(r"(?<!\\)\|", lines[lines.index(row) - 2]))
    assert sum(cell.strip() == escaped(hostile) for cell in cells) == 3
    assert not re.search(r"@\w|#\d|\$\w|[^\\]`|https?://", row.split("|", 4)[4])
