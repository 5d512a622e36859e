"""The difference of two plans in plain text, one screen, largest effects first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from parenvs.core.plan import ROUNDING
from parenvs.core.registry import task_of
from parenvs.core.task import Task
from parenvs.diff import Part, PlanDiff
from parenvs.errors import printable
from parenvs.view.words import SEPARATOR, clip, clip_start, duration, plural, reason_lines, signed

WIDTH = 110
"""Columns of the text."""
MAX_ROWS = 12
"""Rows of a table."""
_MOST_REASONS = 3  # of an illegal plan
_NAME = 30  # columns of a plan's name


def text(diff: Any, names: tuple[str, str] = ("a", "b")) -> str:
    """The difference as text of at most 110 columns, without a newline at the end."""
    task = task_of(diff.a)
    lines = task.diff_text if task.supports(Task.diff_text) else changes_lines
    return "\n".join(line.rstrip() for line in lines(diff, names))


def changes_lines(diff: PlanDiff, names: tuple[str, str]) -> list[str]:
    """The plans, which costs more, and the values that differ."""
    unit = diff.a.bound_words[1]
    lines = [clip(f"task {diff.a.plan.task}, {printable(diff.a.plan.instance)}", WIDTH)]
    lines += plans_lines(names, (diff.a, diff.b))
    if diff.cost is not None:
        show = duration if unit == " s" else lambda x: f"{x:.6g}{unit}"
        lines.append(verdict_line(diff.cost.difference, diff.cost.a, ("costs", "as much"), show))
    if not diff.changes:
        return [*lines, "the plans decide the same"]
    lines += ["", f"{plural(len(diff.changes), 'value')} of the plans differ"]
    for change in diff.changes[:MAX_ROWS]:
        pair = " → ".join(map(_words, (change.a, change.b)))
        lines.append(clip(f"  {clip_start(change.field, _NAME):<{_NAME}}  {pair}", WIDTH))
    hidden = len(diff.changes) - MAX_ROWS
    return [*lines, f"  and {hidden:,} more"] if hidden > 0 else lines


def _words(value: Any) -> str:
    """A value in words; equal neighbors of a list as one: ``40 x 1``."""
    if isinstance(value, dict):
        return " ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if not isinstance(value, (list, tuple)):
        return "-" if value is None else printable(str(value))
    runs = [(word, len(list(run))) for word, run in groupby(map(_words, value))]
    joined = ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)
    return joined if len(runs) == 1 else f"[{joined}]"


def plans_lines(names: tuple[str, str], reports: Sequence[Any]) -> list[str]:
    """A line for each plan with its main figures, and why it is illegal."""
    width = min(max(map(len, names)), _NAME)
    lines = []
    for letter, name, report in zip("ab", names, reports, strict=True):
        head = f"{letter}  {clip_start(name, width):<{width}}"
        verdict = [] if report.legal else ["illegal"]
        lines.append(clip(SEPARATOR.join([head, *verdict, task_of(report).answer(report)]), WIDTH))
        lines += reason_lines(report.reasons[:_MOST_REASONS], WIDTH)
        if len(report.reasons) > _MOST_REASONS:
            lines.append(f"  ! and {len(report.reasons) - _MOST_REASONS} more")
    return lines


def verdict_line(
    more: float,
    before: float,
    verbs: tuple[str, str] = ("takes", "as long"),
    show: Callable[[float], str] = duration,
) -> str:
    """Whether plan b costs or takes more than plan a, which costs or takes ``before``."""
    verb, same = verbs
    if not more:
        return f"b {verb} {same} as a"
    share = f" ({more / abs(before):+.2%})".replace("%", " %") if before else ""
    return f"b {verb} {show(abs(more))} {'more' if more > 0 else 'less'} than a{share}"


def parts_lines(
    head: str, parts: Sequence[Part], total: str, show: Callable[[float], str] = duration
) -> list[str]:
    """A line for each addend, the one that changes most first, and their sum."""
    rows = sorted(parts, key=lambda part: -abs(part.difference))
    rows.append(Part(total, sum(part.a for part in parts), sum(part.b for part in parts)))
    scale = rows[-1].a
    return [f"{head:<34}{'a':>12}{'b':>12}{'b - a':>13}"] + [
        f"  {part.name:<32}{show(part.a):>12}{show(part.b):>12}"
        f"{change_words(part.difference, scale, show):>13}"
        for part in rows
    ]


def change_words(difference: float, scale: float, show: Callable[[float], str] = duration) -> str:
    """A difference in words with its sign; one that is lost in the rounding of ``scale`` is 0."""
    return signed(show(difference if abs(difference) > ROUNDING * scale else 0.0))
