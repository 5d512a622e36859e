"""The difference of two plans in plain text, one screen, largest effects first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parenvs.core.judge import ROUNDING
from parenvs.diff import (
    MOST_MOVES,
    ClassChange,
    Move,
    Part,
    PartitionDiff,
    PipelineDiff,
    pivot_stage,
)
from parenvs.errors import printable
from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view import text as partition_text
from parenvs.tasks.partition.view.grid import kind_of, merged
from parenvs.tasks.pipeline.problem import Report, Stage
from parenvs.tasks.pipeline.view import text as pipeline_text
from parenvs.tasks.pipeline.view.cut_names import AFTER, cut_labels
from parenvs.view.words import (
    SEPARATOR,
    clip,
    clip_start,
    duration,
    milliseconds,
    plural,
    reason_lines,
    signed,
    size,
)

WIDTH = 110
"""Columns of the text."""
_MOST_ROWS = 12  # of a table
_MOST_REASONS = 3  # of an illegal plan
_NAME = 30  # columns of a plan's name


def text(diff: PipelineDiff | PartitionDiff, names: tuple[str, str] = ("a", "b")) -> str:
    """The difference as text of at most 110 columns, without a newline at the end.

    Args:
        diff: the difference.
        names: of the plans, such as their files.
    """
    lines = _pipeline(diff, names) if isinstance(diff, PipelineDiff) else _partition(diff, names)
    return "\n".join(line.rstrip() for line in lines)


def _pipeline(diff: PipelineDiff, names: tuple[str, str]) -> list[str]:
    a, b = diff.a, diff.b
    lines = [clip(pipeline_text.title(a.pipeline, None), WIDTH)]
    lines += _plans(names, (a, b), [_pipeline_figures(report) for report in (a, b)])
    if diff.seconds is None:
        lines.append("a malformed plan has no length; nothing to compare but the cuts")
    else:
        others = plural(a.pipeline.micro_batches - 1, "other")
        lines += [
            _verdict(diff.seconds, a.length_seconds),
            "",
            f"L = the first micro-batch up to the end of the pivot stage + the {others} through it "
            "+ all-reduce not hidden",
            *_parts("where the seconds are", diff.parts, "L"),
        ]
    lines += ["", *_moves(diff)]
    if diff.seconds is not None:
        lines += ["", *_stages(a, b)]
    return lines


def _pipeline_figures(report: Report) -> list[str]:
    if not report.stages:
        return ["malformed"]
    return [
        f"L {duration(report.length_seconds)}",
        f"simulated {duration(report.simulated_seconds)}",
        f"{plural(len(report.stages), 'stage')}, pivot {pivot_stage(report)}",
    ]


def _moves(diff: PipelineDiff) -> list[str]:
    """The cuts that differ, those that cost or save most first."""
    if not diff.moves:
        return ["the plans cut the same pivots and devices"]
    head = "cuts that differ (0|1: between stages 0 and 1)"
    if diff.attributed:
        head = "what moving each cut costs (0|1: between stages 0 and 1), mean over all orders"
    elif len(diff.moves) > MOST_MOVES and len(diff.a.stages) == len(diff.b.stages):
        head += f", {len(diff.moves)}: too many to tell what each costs"
    lines, scale = [head], diff.a.length_seconds
    moves = sorted(diff.moves, key=lambda move: -abs(move.seconds or 0.0))
    for move in moves[:_MOST_ROWS]:
        cost = "" if move.seconds is None else _change(move.seconds, scale)
        place = f"{'pivots' if move.kind == 'cut' else 'devices'} {move.stage}|{move.stage + 1}"
        lines.append(f"{cost:>11}  {place:<13} {_positions(move):<26} {_names(diff, move)}")
    hidden = moves[_MOST_ROWS:]
    if hidden:
        rest = sum(move.seconds or 0.0 for move in hidden)
        cost = _change(rest, scale) if diff.attributed else ""
        lines.append(f"{cost:>11}  and {len(hidden)} more")
    if diff.attributed:
        lines.append(f"{_change(diff.seconds or 0.0, scale):>11}  in all")
    return lines


def _positions(move: Move) -> str:
    if move.a is None or move.b is None:
        only, place = ("b", move.b) if move.a is None else ("a", move.a)
        return f"{place:,}, only in {only}"
    return f"{move.a:,} → {move.b:,} ({move.b - move.a:+,})"


def _names(diff: PipelineDiff, move: Move) -> str:
    """Where the cuts are."""
    if not (move.after_a or move.after_b):
        return ""
    cuts = [cut for cut, name in ((move.a, move.after_a), (move.b, move.after_b)) if name]
    labels = cut_labels(diff.a.pipeline.profile, [cut for cut in cuts if cut is not None], 25)
    if all(label.startswith(AFTER) for label in labels):
        return AFTER + " → ".join(label.removeprefix(AFTER) for label in labels)
    return " → ".join(labels)


def _stages(a: Report, b: Report) -> list[str]:
    """Every stage in both plans; where there are many, those whose seconds change most."""
    count = max(len(a.stages), len(b.stages))
    rows = [tuple(x[k] if k < len(x) else None for x in (a.stages, b.stages)) for k in range(count)]

    def change(number: int) -> float:
        seconds = [s.forward_seconds + s.backward_seconds if s else 0.0 for s in rows[number]]
        return abs(seconds[1] - seconds[0])

    shown = sorted(sorted(range(count), key=change, reverse=True)[:_MOST_ROWS])
    lines = [
        f"{'stage':<6}{'devices':<16}{'compute, ms':>19}{'transfer, ms':>19}{'all-reduce, ms':>19}"
        f"{f'memory of {a.memory_limit_bytes / 1e9:.1f} GB':>19}"
    ]
    for number in shown:
        pair = rows[number]
        cells = (
            _arrow([pipeline_text.device_range(s) if s else None for s in pair]),
            _arrow([milliseconds(s.forward_seconds + s.backward_seconds) if s else None
                    for s in pair]),
            _arrow([milliseconds(s.transfer_seconds) if s else None for s in pair]),
            _arrow([milliseconds(s.all_reduce_seconds) if s else None for s in pair]),
            _arrow([_gigabytes(s, report) if s else None
                    for s, report in zip(pair, (a, b), strict=True)]),
        )  # fmt: skip
        devices, compute, transfer, reduce, memory = cells
        lines.append(f"{number:<6}{devices:<16}{compute:>19}{transfer:>19}{reduce:>19}{memory:>19}")
    if count > len(shown):
        lines.append(f"and {count - len(shown)} more")
    return lines


def _gigabytes(stage: Stage, report: Report) -> str:
    over = stage.memory_bytes > report.memory_limit_bytes
    return f"{stage.memory_bytes / 1e9:.2f}{'!' if over else ''}"


def _arrow(pair: Sequence[str | None]) -> str:
    """``0–7 → 0–8``; once where both are equal; a dash where a plan has no such stage."""
    first, second = (word if word is not None else "-" for word in pair)
    return first if first == second else f"{first} → {second}"


def _partition(diff: PartitionDiff, names: tuple[str, str]) -> list[str]:
    a, b = diff.a, diff.b
    lines = [clip(partition_text.title(a.problem), WIDTH)]
    lines += _plans(names, (a, b), [_partition_figures(report) for report in (a, b)])
    lines += [_verdict(diff.seconds, a.step_seconds), ""]
    lines += _parts("where the seconds are", diff.parts, "step")
    memory = f"memory per device, of {size(a.problem.memory_limit)}"
    lines += ["", *_parts(memory, diff.memory, "in all", size)]
    return [*lines, "", *_classes(diff)]


def _partition_figures(report: PartitionReport) -> list[str]:
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
    for words, changes in groups[:_MOST_ROWS]:
        lines.append(f"{_seconds(changes, scale)}  {changes[0].only:<6}{len(changes):>7}  {words}")
    hidden = [change for _, changes in groups[_MOST_ROWS:] for change in changes]
    if hidden:
        more = f"and {len(groups) - _MOST_ROWS} more rows, {plural(len(hidden), 'class', 'es')}"
        lines.append(f"{_seconds(hidden, scale)}  {more}")
    return [*lines, f"{_seconds(diff.classes, scale)}  in all"]


def _seconds(changes: Sequence[ClassChange], scale: float) -> str:
    """Three columns: the step, compute, communication."""
    compute = sum(change.compute_seconds for change in changes)
    sent = sum(change.communication_seconds for change in changes)
    columns = [_change(seconds, scale) for seconds in (compute + sent, compute, sent)]
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
    for name, places in merged(heads, keys):
        first = classes[places[0]]
        others = len(first.partition) - 1
        words = f"{first.partition[heads[places[0]]]} of {printable(name)}"
        more = f" and {others:,} more" + (" each" if len(places) > 1 else "") if others > 0 else ""
        groups.append((f"{clip_start(words, 58 - len(more))}{more}", [classes[k] for k in places]))
    return groups


def _plans(
    names: tuple[str, str],
    reports: Sequence[Report | PartitionReport],
    figures: Sequence[list[str]],
) -> list[str]:
    """A line for each plan with its main figures, and why it is illegal."""
    width = min(max(map(len, names)), _NAME)
    lines = []
    for letter, name, report, parts in zip("ab", names, reports, figures, strict=True):
        head = f"{letter}  {clip_start(name, width):<{width}}"
        verdict = [] if report.legal else ["illegal"]
        lines.append(clip(SEPARATOR.join([head, *verdict, *parts]), WIDTH))
        lines += reason_lines(report.reasons[:_MOST_REASONS], WIDTH)
        if len(report.reasons) > _MOST_REASONS:
            lines.append(f"  ! and {len(report.reasons) - _MOST_REASONS} more")
    return lines


def _verdict(seconds: float, before: float) -> str:
    if not seconds:
        return "b takes as long as a"
    word = "more" if seconds > 0 else "less"
    share = f" ({seconds / before:+.2%})".replace("%", " %") if before else ""
    return f"b takes {duration(abs(seconds))} {word} than a{share}"


def _parts(
    head: str, parts: Sequence[Part], total: str, show: Callable[[float], str] = duration
) -> list[str]:
    """A line for each addend, the one that changes most first, and their sum."""
    rows = sorted(parts, key=lambda part: -abs(part.difference))
    rows.append(Part(total, sum(part.a for part in parts), sum(part.b for part in parts)))
    scale = rows[-1].a
    return [f"{head:<34}{'a':>12}{'b':>12}{'b - a':>13}"] + [
        f"  {part.name:<32}{show(part.a):>12}{show(part.b):>12}"
        f"{_change(part.difference, scale, show):>13}"
        for part in rows
    ]


def _change(difference: float, scale: float, show: Callable[[float], str] = duration) -> str:
    """A difference in words with its sign; one that is lost in the rounding of ``scale`` is 0."""
    return signed(show(difference if abs(difference) > ROUNDING * scale else 0.0))
