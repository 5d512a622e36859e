"""The difference of two partition plans in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.errors import printable
from parenvs.tasks.partition.diff import ClassChange, PartitionDiff
from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view import text as partition_text
from parenvs.view.diff_text import (
    MAX_ROWS,
    WIDTH,
    change_words,
    parts_lines,
    plans_lines,
    verdict_line,
)
from parenvs.view.layers import kind_of, merged
from parenvs.view.words import clip, clip_start, duration, plural, size


def diff_lines(diff: PartitionDiff, names: tuple[str, str]) -> list[str]:
    """The difference as lines of at most 110 columns; see ``parenvs.view.diff_text.text``."""
    a, b = diff.a, diff.b
    lines = [clip(partition_text.title(a.problem), WIDTH)]
    lines += plans_lines(names, (a, b), [_figures(report) for report in (a, b)])
    lines += [verdict_line(diff.seconds, a.step_seconds), ""]
    lines += parts_lines("where the seconds are", diff.parts, "step")
    memory = f"memory per device, of {size(a.problem.memory_limit)}"
    lines += ["", *parts_lines(memory, diff.memory, "in all", size)]
    return [*lines, "", *_classes(diff)]


def _figures(report: PartitionReport) -> list[str]:
    inputs = len(report.problem.partition(report.chosen, "inputs"))
    things = [plural(report.variables, "variable")]
    things += [plural(inputs, "batch input")] if inputs else []
    return [f"step {duration(report.step_seconds)}", f"{' and '.join(things)} partitioned"]


def _classes(diff: PartitionDiff) -> list[str]:
    """The classes that differ, equal layers together, those that cost or save most first."""
    if not diff.classes:
        return ["the plans partition the same dimensions"]
    groups = _equal_layers(diff)
    groups.sort(key=lambda group: -abs(sum(change.seconds for change in group[1])))
    lines = [
        "what each dimension class costs that only one plan partitions (classes of equal layers "
        "together)",
        f"{'step':>11}{'compute':>12}{'sent':>12}  {'only':<6}{'classes':>7}  dimensions",
    ]
    scale = diff.a.step_seconds
    for words, changes in groups[:MAX_ROWS]:
        lines.append(f"{_seconds(changes, scale)}  {changes[0].only:<6}{len(changes):>7}  {words}")
    hidden = [change for _, changes in groups[MAX_ROWS:] for change in changes]
    if hidden:
        more = f"and {len(groups) - MAX_ROWS} more rows, {plural(len(hidden), 'class', 'es')}"
        lines.append(f"{_seconds(hidden, scale)}  {more}")
    return [*lines, f"{_seconds(diff.classes, scale)}  in all"]


def _seconds(changes: Sequence[ClassChange], scale: float) -> str:
    """Three columns: the step, compute, communication."""
    compute = sum(change.compute_seconds for change in changes)
    sent = sum(change.communication_seconds for change in changes)
    columns = [change_words(seconds, scale) for seconds in (compute + sent, compute, sent)]
    return "{:>11}{:>12}{:>12}".format(*columns)


def _equal_layers(diff: PartitionDiff) -> list[tuple[str, list[ClassChange]]]:
    """Classes that differ in the numbers of their layers only, with words for each group.

    A class is called after its largest variable.
    """
    problem, classes = diff.a.problem, diff.classes

    def size_of(path: str) -> float:
        return float(problem.graph.tensor_bytes[problem.tensor[path]])

    heads = [max(change.partition, key=size_of) for change in classes]
    keys = [
        (change.only, tuple((kind_of(path), d) for path, d in change.partition.items()))
        for change in classes
    ]
    groups = []
    for name, indices in merged(heads, keys):
        first = classes[indices[0]]
        others = len(first.partition) - 1
        words = f"{first.partition[heads[indices[0]]]} of {printable(name)}"
        more = f" and {others:,} more" + (" each" if len(indices) > 1 else "") if others > 0 else ""
        groups.append((f"{clip_start(words, 58 - len(more))}{more}", [classes[k] for k in indices]))
    return groups
