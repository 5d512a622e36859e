"""The tables in Markdown."""

from pathlib import Path

from parenvs.leaderboard import results
from parenvs.leaderboard.tasks import tasks

BOARD = Path(__file__).parents[2] / "leaderboard"


def test_results__are_the_generated_ones(board):
    assert (BOARD / "results.md").read_text(encoding="utf-8") == results.page(tasks(), board[0])
    assert (BOARD / "summary.md").read_text(encoding="utf-8") == results.summary(tasks(), board[0])


def test_results__markdown_is_escaped():
    text = results.escaped("a|b [x](y) <script> *_~`\\&")
    assert text == r"a\|b \[x\](y) \<script\> \*\_\~\`\\\&"
