"""The difference of two hybrid plans in plain text."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from parenvs.diff import Part
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.space.diff import HybridDiff
from parenvs.tasks.hybrid.view.text import MEMORY_PARTS, PARTS, WIDTH
from parenvs.view.diff_text import parts_lines, plans_lines, verdict_line
from parenvs.view.words import clip, duration, plural, size


def diff_lines(diff: HybridDiff, names: tuple[str, str]) -> list[str]:
    """The difference as lines of at most 110 columns; see ``parenvs.view.diff_text.text``."""
    a, b = diff.a, diff.b
    lines = [clip(f"{a.model.name} on {a.cluster}, batch {a.batch:,}", WIDTH)]
    lines += plans_lines(names, (a, b), [_figures(report) for report in (a, b)])
    if diff.seconds is None:
        lines.append("a malformed plan has no length; nothing to compare but what is decided")
    else:
        lines.append(verdict_line(diff.seconds, a.length_seconds))
    if not diff.changes:
        return [*lines, "the plans decide the same"]
    lines += ["", f"{plural(len(diff.changes), 'decision')} of the plans differ"]
    for change in diff.changes:
        words = " → ".join(map(_words, (change.a, change.b)))
        lines.append(clip(f"  {change.field.replace('_', ' '):<20}{words}", WIDTH))
    if diff.seconds is None:
        return lines
    lines += ["", *parts_lines("where the seconds are", _named(diff.parts, PARTS), "L")]
    memory = _named(diff.memory, MEMORY_PARTS)
    return [*lines, "", *parts_lines("bytes of the fullest stage", memory, "in all", size)]


def _named(parts: tuple[Part, ...], names: dict[str, str]) -> list[Part]:
    """Parts by their names; those that neither plan has are left out."""
    return [Part(names[part.name], part.a, part.b) for part in parts if part.a or part.b]


def _words(value: Any) -> str:
    """A decision in words; equal neighbours of a list as one: ``40 x 1``."""
    if isinstance(value, dict):
        return " ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if not isinstance(value, (list, tuple)):
        return str(value)
    runs = [(word, len(list(run))) for word, run in groupby(map(_words, value))]
    told = ", ".join(word if count == 1 else f"{count} x {word}" for word, count in runs)
    return told if len(runs) == 1 else f"[{told}]"


def _figures(report: HybridReport) -> list[str]:
    if not report.stages:
        return ["malformed"]
    words = [f"L {duration(report.length_seconds)}"]
    if report.simulated_seconds is not None:
        words.append(f"simulated {duration(report.simulated_seconds)}")
    held = max(stage.memory["total"] for stage in report.stages)
    return [*words, plural(len(report.stages), "stage"), f"{size(held)} a device at most"]
