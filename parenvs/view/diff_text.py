"""The difference of two plans in plain text, one screen, largest effects first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from parenvs.core.plan import ROUNDING
from parenvs.core.registry import task_of
from parenvs.diff import Part, PlanDiff
from parenvs.errors import printable
from parenvs.view.words import (
    SEPARATOR,
    clip_start,
    duration,
    merged,
    plural,
    reason_lines,
    signed,
    size,
    wrapped,
)

MAX_ROWS = 12
"""Rows of a table."""
_MOST_REASONS = 3  # of an illegal plan
_NAME = 50  # columns of a plan's name


def text(diff: PlanDiff, names: tuple[str, str] = ("a", "b")) -> str:
    """The difference as text of at most 110 columns, without a newline at the end.

    It has the plans, which costs more, the decisions that differ, of equal layers once, and where
    the seconds and bytes are.
    """
    unit = diff.a.bound_words[1]
    lines = wrapped([f"task {diff.a.plan.task}, {printable(diff.a.plan.instance)}"])
    lines += _plans(names, (diff.a, diff.b))
    if diff.seconds is not None:
        lines.append(_verdict(diff.seconds, diff.a.step_seconds, ("takes", "as long"), duration))
    elif diff.cost is not None:
        show = duration if unit == " s" else lambda x: f"{x:.6g}{unit}"
        lines.append(_verdict(diff.cost.difference, diff.cost.a, ("costs", "as much"), show))
    if not diff.changes:
        return "\n".join([*lines, "the plans decide the same"])
    lines += ["", f"{plural(len(diff.changes), 'value')} of the plans differ"]
    keys = [(_words(change.a), _words(change.b)) for change in diff.changes]
    rows = merged([change.field for change in diff.changes], keys)
    for name, (k, *_) in rows[:MAX_ROWS]:
        shown = f"  {clip_start(name, _NAME):<{_NAME}}  {' → '.join(keys[k])}"
        lines += wrapped([shown])
    if len(rows) > MAX_ROWS:
        lines.append(f"  and {len(rows) - MAX_ROWS:,} more")
    if diff.parts:
        lines += ["", *_parts("where the seconds are", diff.parts, duration)]
        lines += ["", *_parts("bytes of the fullest device", diff.memory, size)]
    return "\n".join(line.rstrip() for line in lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if not isinstance(value, (list, tuple)):
        return "-" if value is None else printable(str(value))
    runs = [(word, len(list(run))) for word, run in groupby(map(_words, value))]
    joined = ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)
    return joined if len(runs) == 1 else f"[{joined}]"


def _plans(names: tuple[str, str], reports: Sequence[Any]) -> list[str]:
    width = min(max(map(len, names)), _NAME)
    lines = []
    for letter, name, report in zip("ab", names, reports, strict=True):
        head = f"{letter}  {clip_start(name, width):<{width}}"
        verdict = [] if report.legal else ["illegal"]
        answer = task_of(report).views().answer(report)
        lines += wrapped([SEPARATOR.join([head, *verdict, answer])])
        lines += reason_lines(report.reasons[:_MOST_REASONS])
        if len(report.reasons) > _MOST_REASONS:
            lines.append(f"  ! and {len(report.reasons) - _MOST_REASONS} more")
    return lines


def _verdict(
    more: float, before: float, verbs: tuple[str, str], show: Callable[[float], str]
) -> str:
    verb, same = verbs
    if not more:
        return f"b {verb} {same} as a"
    share = f" ({more / abs(before):+.2%})".replace("%", " %") if before else ""
    return f"b {verb} {show(abs(more))} {'more' if more > 0 else 'less'} than a{share}"


def _parts(head: str, parts: Sequence[Part], show: Callable[[float], str]) -> list[str]:
    rows = sorted((x for x in parts if x.a or x.b), key=lambda part: -abs(part.difference))
    rows.append(Part("in all", sum(part.a for part in parts), sum(part.b for part in parts)))
    least = ROUNDING * rows[-1].a
    lines = [f"{head:<34}{'a':>12}{'b':>12}{'b - a':>13}"]
    for part in rows:
        # What is lost in rounding is 0.
        more = part.difference if abs(part.difference) > least else 0.0
        figures = f"{show(part.a):>12}{show(part.b):>12}{signed(show(more)):>13}"
        lines.append(f"  {part.name:<32}{figures}")
    return lines
