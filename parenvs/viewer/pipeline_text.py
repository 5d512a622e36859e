"""A judged pipeline plan in plain text."""

from __future__ import annotations

import textwrap

import numpy as np

from parenvs.pipeline.problem import Pipeline, Report, Stage
from parenvs.viewer.words import clip, duration, printable, short_name, size

WIDTH = 100
"""Columns of the text."""


_TRACK = 90  # columns of the bar and of the Gantt chart


_ANSI = (33, 214, 36, 133, 74, 143, 61, 180)  # 256-colour codes, in the order of the viewer's


_MARKS = (" ·░█▓╱", " ·›‹↔ ")  # compute stage, link: idle, less than a quarter, F, B, F and B, AR


_LEGEND = (
    "stage: ░ forward  █ backward  ▓ both  ╱ all-reduce   link: › forward  ‹ backward  ↔ both",
    "·  busy for less than a quarter of the column",
)


def text(pipeline: Pipeline, report: Report | None, colour: bool = False) -> str:
    """A judged plan as text of at most 100 columns.

    Args:
        pipeline: the problem.
        report: what the judge says of the plan, or None to show the chain alone.
        colour: whether to colour stages with ANSI escapes.

    Returns:
        Lines without a newline at the end: the verdict, the chain, and, unless the plan is
        malformed, a table of its stages and a coarse Gantt chart.
    """
    lines = [clip(title(pipeline, report), WIDTH), verdict(pipeline, report)]
    if report is not None:
        for reason in report.reasons:
            lines += textwrap.wrap(
                printable(reason), WIDTH, initial_indent="  ! ", subsequent_indent="    "
            )
    stages = report.stages if report is not None else ()
    lines += ["", *_bar(pipeline, stages, colour)]
    if report is not None and stages:
        lines += ["", *_table(report, colour), "", *_gantt(report, colour)]
    return "\n".join(lines)


def title(pipeline: Pipeline, report: Report | None) -> str:
    """Instance, cluster, stages and micro-batches."""
    parts = [f"{printable(pipeline.profile.name)} on {pipeline.cluster}"]
    if report is not None and report.stages:
        parts.append(f"{len(report.stages)} stages")
    many = pipeline.micro_batches
    parts.append(f"{many} micro-batch{'es' if many > 1 else ''} of {pipeline.profile.micro_batch}")
    return "  ·  ".join(parts)


def verdict(pipeline: Pipeline, report: Report | None) -> str:
    """Both lengths and the value; without a plan, the size of the problem."""
    if report is None:
        return (
            f"no cut yet  ·  {len(pipeline.profile):,} pivots  ·  "
            f"{size(float(pipeline.parameter_sum[-1]))} of parameters  ·  "
            f"bubble-free {duration(pipeline.bubble_free)}"
        )
    if not report.stages:
        return f"illegal: malformed plan  ·  value {report.value:g}"
    lengths = (
        f"L {duration(report.length_seconds)}  ·  simulated {duration(report.simulated_seconds)}"
    )
    if not report.legal:
        return f"illegal  ·  {lengths}  ·  value {report.value:g}"
    free = duration(report.bubble_free_seconds)
    return f"{lengths}  ·  value {report.value:.4f} = bubble-free {free} / L"


def device_range(stage: Stage) -> str:
    """Its devices, both ends included: ``8–15``."""
    last = stage.device_end - 1
    return f"{stage.device_first}–{last}" if last > stage.device_first else f"{last}"


def _paint(line: str, stage: int, colour: bool) -> str:
    return f"\x1b[38;5;{_ANSI[stage % len(_ANSI)]}m{line}\x1b[0m" if colour else line


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
        line += _paint(segment, number, colour and bool(stages))
        if not last and end > begin:
            line += "┃"
        begin = max(begin, int(end))
    ruler = "".join(f"{x} %".ljust(_TRACK // 4) for x in (0, 25, 50, 75))
    return [f"chain    {line}", f"{'':9}{ruler[: _TRACK - 5]}100 %"]


def _table(report: Report, colour: bool) -> list[str]:
    limit = report.memory_limit_bytes
    heading = (
        f"{'':5}{'devices':<10}{'pivots':<13}{'last pivot':<24}{'compute':>9}{'transfer':>10}"
        f"{'all-reduce':>11}{'memory':>9}{'busy':>7}",
        f"{'':52}{'ms':>9}{'ms':>10}{'ms':>11}{f'of {limit / 1e9:.1f}':>9}{'%':>7}",
    )
    lines = list(heading)
    for number, stage in enumerate(report.stages):
        compute = stage.forward_seconds + stage.backward_seconds
        row = (
            f"{device_range(stage):<10}{f'{stage.first}–{stage.end - 1}':<13}"
            f"{short_name(stage.last_name, 22):<24}{_ms(compute):>9}"
            f"{_ms(stage.transfer_seconds):>10}{_ms(stage.all_reduce_seconds):>11}"
            f"{stage.memory_bytes / 1e9:>9.2f}"
            f"{stage.efficiency * 100:>7.1f}{' !' if stage.memory_bytes > limit else ''}"
        )
        lines.append(_paint(f"{number:<5}", number, colour) + row)
    return lines


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    if not value:
        return "0"
    return f"{value:.3g}" if value >= 1e6 else f"{value:.{3 if value < 100 else 1}f}"


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
        lines.append(f"{label:<9}{_paint(track, stage, colour and not link)}".rstrip())
    end = duration(span)
    lines.append(f"{'':9}0{end:>{_TRACK - 1}}")
    lines += [f"{'':9}{line}" for line in _LEGEND]
    return lines


def _covered(edges: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """(len(edges)-1,) seconds of every column that the boxes cover."""
    before = np.clip(edges - start[:, None], 0.0, (end - start)[:, None]).sum(axis=0)
    return np.diff(before)
