"""Pipeline plans in plain text: verdict, chain, table of stages, coarse Gantt chart."""

from __future__ import annotations

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.pipeline.problem import Pipeline, Report, Stage
from parenvs.tasks.pipeline.view.cut_names import AFTER, cut_labels
from parenvs.view.words import (
    SEPARATOR,
    clip,
    duration,
    milliseconds,
    paint,
    plural,
    reason_lines,
    size,
)

WIDTH = 100
"""Columns of the text."""
_TRACK = 90  # columns of the bar and of the Gantt chart
_MARKS = (" ·░█▓╱", " ·›‹↔ ")  # compute stage, link: idle, less than a quarter, F, B, F and B, AR
_LEGEND = (
    "stage: ░ forward  █ backward  ▓ both  ╱ all-reduce   link: › forward  ‹ backward  ↔ both",
    "·  busy for less than a quarter of the column",
)
_MOST_LETTERS = 40  # of a list in the line of an answer


def text(viewable: Report | Pipeline, colour: bool = False) -> str:
    """A judged plan as text of at most 100 columns.

    Args:
        viewable: what the judge says of the plan, or the problem to show the chain alone.
        colour: whether to colour stages with ANSI escapes.

    Returns:
        Lines without a newline at the end: the verdict, the chain, and, unless the plan is
        malformed, a table of its stages and a coarse Gantt chart.
    """
    pipeline, report = taken_apart(viewable)
    lines = [clip(title(pipeline, report), WIDTH), SEPARATOR.join(verdict(pipeline, report))]
    if report is not None:
        lines += reason_lines(report.reasons, WIDTH)
        lines += [clip(f"  {remark}", WIDTH) for remark in report.remarks]
    stages = report.stages if report is not None else ()
    lines += ["", *_bar(pipeline, stages, colour)]
    if report is not None and stages:
        lines += ["", *_table(pipeline, report, colour), "", *_gantt(report, colour)]
    return "\n".join(lines)


def taken_apart(viewable: Report | Pipeline) -> tuple[Pipeline, Report | None]:
    """The problem, and the report if there is one."""
    return (viewable.pipeline, viewable) if isinstance(viewable, Report) else (viewable, None)


def title(pipeline: Pipeline, report: Report | None) -> str:
    """Instance, cluster, stages and micro-batches."""
    parts = [printable(f"{pipeline.profile.name} on {pipeline.cluster}")]
    if report is not None and report.stages:
        parts.append(plural(len(report.stages), "stage"))
    batches = plural(pipeline.micro_batches, "micro-batch", "es")
    return SEPARATOR.join([*parts, f"{batches} of {pipeline.profile.micro_batch}"])


def verdict(pipeline: Pipeline, report: Report | None) -> list[str]:
    """Legality, both lengths and the value; without a plan, the size of the problem."""
    if report is None:
        return [
            "no cut yet",
            f"{len(pipeline.profile):,} pivots",
            f"{size(float(pipeline.parameter_sum[-1]))} of parameters",
            f"bubble-free {duration(pipeline.bubble_free)}",
        ]
    if not report.stages:
        return ["illegal: malformed plan", f"value {report.value:g}"]
    lengths = [
        f"L {duration(report.length_seconds)}",
        f"simulated {duration(report.simulated_seconds)}",
    ]
    if not report.legal:
        return ["illegal", *lengths, f"value {report.value:g}"]
    free = duration(report.bubble_free_seconds)
    return [*lengths, f"value {report.value:.4f} = bubble-free {free} / L"]


def answer(report: Report) -> str:
    """The step, the stages and the memory, in one line."""
    if not report.stages:
        return "malformed"
    counts = ", ".join(str(x.device_end - x.device_first) for x in report.stages)
    held = max(stage.memory_bytes for stage in report.stages) / 1e9
    return SEPARATOR.join(
        [
            f"{duration(report.length_seconds)} a step",
            f"{plural(len(report.stages), 'stage')} on {clip(counts, _MOST_LETTERS)} devices",
            f"{held:.4g} of {report.memory_limit_bytes / 1e9:.4g} GB a device",
        ]
    )


def device_range(stage: Stage) -> str:
    """The devices of a stage, both ends included: ``8–15``."""
    last = stage.device_end - 1
    return f"{stage.device_first}–{last}" if last > stage.device_first else f"{last}"


def device_words(stage: Stage) -> str:
    """``device 3``, or ``devices 8–15``."""
    count = stage.device_end - stage.device_first
    return f"device{'s' if count > 1 else ''} {device_range(stage)}"


def _bar(pipeline: Pipeline, stages: tuple[Stage, ...], colour: bool) -> list[str]:
    """The chain in proportion to seconds, a ``┃`` at every cut."""
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1]
    ends = np.rint(share[[stage.end for stage in stages] or [-1]] * _TRACK).astype(int)
    line, begin = "", 0
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        inside = max(int(end) - begin - (not last), 0)
        label = f" {number} " if stages else " no cut "
        segment = (label if len(label) <= inside else "").center(inside, "━")
        line += paint(segment, number, colour and bool(stages))
        if not last and end > begin:
            line += "┃"
        begin = max(begin, int(end))
    ruler = "".join(f"{x} %".ljust(_TRACK // 4) for x in (0, 25, 50, 75))
    return [f"chain    {line}", f"{'':9}{ruler[: _TRACK - 5]}100 %"]


def _table(pipeline: Pipeline, report: Report, colour: bool) -> list[str]:
    limit = report.memory_limit_bytes
    ends = cut_labels(pipeline.profile, (stage.end for stage in report.stages), 27)
    heading = (
        f"{'':5}{'devices':<9}{'pivots':<12}{'ends after':<28}{'compute':>9}{'transfer':>10}"
        f"{'all-reduce':>11}{'memory':>8}{'busy':>6}",
        f"{'':54}{'ms':>9}{'ms':>10}{'ms':>11}{f'of {limit / 1e9:.1f}':>8}{'%':>6}",
    )
    lines = list(heading)
    for number, (stage, end) in enumerate(zip(report.stages, ends, strict=True)):
        compute = stage.forward_seconds + stage.backward_seconds
        row = (
            f"{device_range(stage):<9}{f'{stage.first}–{stage.end - 1}':<12}"
            f"{end.removeprefix(AFTER):<28}{milliseconds(compute):>9}"
            f"{milliseconds(stage.transfer_seconds):>10}{milliseconds(stage.all_reduce_seconds):>11}"
            f"{stage.memory_bytes / 1e9:>8.2f}"
            f"{stage.efficiency * 100:>6.1f}{' !' if stage.memory_bytes > limit else ''}"
        )
        lines.append(paint(f"{number:<5}", number, colour) + row)
    return lines


def _gantt(report: Report, colour: bool) -> list[str]:
    """One row per compute stage and link; each column shows what fills most of it."""
    table = report.timetable
    span = max(report.simulated_seconds, report.length_seconds)
    edges = np.linspace(0.0, span, _TRACK + 1)
    lines = []
    for row in range(len(table.reduce_start)):
        stage, link = divmod(row, 2)
        forward, backward = (
            _covered(edges, table.start[row, kind], table.end[row, kind]) for kind in (0, 1)
        )
        reduce = _covered(edges, table.reduce_start[[row]], table.reduce_end[[row]])
        quarter = 0.25 * span / _TRACK
        mark = 2 + np.argmax([forward, backward, 0 * reduce, reduce], axis=0)
        mark[(forward >= quarter) & (backward >= quarter)] = 4
        busy = forward + backward + reduce
        mark[busy < quarter] = 1
        mark[busy <= 1e-9 * span] = 0
        track = "".join(_MARKS[link][k] for k in mark).rstrip()
        label = "  link" if link else f"stage {stage}"
        lines.append(f"{label:<9}{paint(track, stage, colour and not link)}".rstrip())
    end = duration(span)
    lines.append(f"{'':9}0{end:>{_TRACK - 1}}")
    lines += [f"{'':9}{line}" for line in _LEGEND]
    return lines


def _covered(edges: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(len(edges)-1,) seconds of every column that the boxes cover."""
    before = np.clip(edges - start[:, None], 0.0, (end - start)[:, None]).sum(axis=0)
    return np.diff(before)
