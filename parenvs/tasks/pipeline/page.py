"""The page of a pipeline plan: the chain with its cuts, the simulated schedule, the stages.

The pictures are small: many entries have many plans, each of which is drawn.
"""

from __future__ import annotations

import numpy as np

from parenvs.tasks.pipeline.problem import Report
from parenvs.tasks.pipeline.view import AFTER, cut_labels, device_range
from parenvs.view.web import (
    STAGE_COLOURS,
    WIDTH,
    Cell,
    Chip,
    Figure,
    Picture,
    PlanPage,
    Row,
    Shape,
    Table,
    label,
    shape,
    steps,
)
from parenvs.view.words import duration, size, time_unit

_LEFT, _RIGHT = 112, WIDTH - 12
"""Left and right end of the chain, pixels."""
_BUSY = 56
"""Width of the column at the right of the schedule, pixels."""
_CHAIN, _STRIP, _STAGE, _LINK = 64, 26, 26, 9
"""Heights of the curve, the strip of stages, a stage and a link of the schedule, pixels."""
_BINS = 240
"""Bins of the curve along the chain."""
_FINE = 4
"""Steps per pixel of the schedule."""


def page(name: str, report: Report) -> PlanPage:
    """Return both pictures and the table of stages.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    stages = report.stages
    if not stages:
        return PlanPage("The plan is malformed: there is nothing to draw.")
    chain = Picture(f"Chain of {name} with its cuts into {len(stages)} stages", *_chain(report))
    many = f"{len(stages)} stages, {report.pipeline.micro_batches} micro-batches"
    schedule = Picture(f"Simulated schedule of {name}: {many}", *_schedule(report))
    key = (
        Chip("forward", "", "forward"),
        Chip("backward", "", "backward"),
        Chip("all-reduce", "", "all-reduce"),
        Chip("transfer", "", "transfer"),
        Chip("length", "", f"L {duration(report.length_seconds)}"),
        Chip("length second", "", f"simulated {duration(report.simulated_seconds)}"),
    )
    figures = (
        Figure(
            [chain],
            "Cuts. The width of a stage is its share of the compute seconds, with number and "
            "devices; the curve is the least that a cut there sends, a dot what this plan sends.",
        ),
        Figure(
            [schedule],
            "Schedule of a step, simulated (1F1B). L ranks; the simulated length does not.",
            key,
        ),
    )
    return PlanPage(figures=figures, tables=[_table(name, report)])


def _line(x: float, top: float, bottom: float, style: str) -> Shape:
    """Draw a vertical line."""
    return shape("path", style, d=f"M{x:.1f} {top:g}V{bottom:g}")


def _chain(report: Report) -> tuple[list[Shape], float]:
    """Draw the bytes across each cut of the chain, and the stages below; (shapes, height)."""
    pipeline, stages = report.pipeline, report.stages
    lefts = _LEFT + (_RIGHT - _LEFT) * pipeline.seconds_sum / pipeline.seconds_sum[-1]
    crossing = np.array(pipeline.cut_before[1:])
    largest = max(float(crossing.max()), 10.0)
    floor = max(float(np.quantile(crossing, 0.02)) / 3, largest / 1e6, 1.0)
    top, strip = 14.0, 14.0 + _CHAIN + 4
    per_log = _CHAIN / np.log(1.3 * largest / floor)
    heights = top + _CHAIN - per_log * np.log(np.maximum(pipeline.cut_before, floor) / floor)
    shapes = [
        label(_LEFT - 8, 10, "bytes across a cut", "quiet", "end"),
        label(_LEFT - 8, strip + 17, "stage · devices", "", "end"),
    ]
    ticks = [x for x in 10.0 ** np.arange(0, 13) if floor * 1.2 <= x <= 1.3 * largest]
    for tick in ticks[:: (len(ticks) + 3) // 4 or 1]:
        y = float(top + _CHAIN - per_log * np.log(tick / floor))
        shapes.append(shape("path", "rule", d=f"M{_LEFT} {y:.1f}H{_RIGHT}"))
        shapes.append(label(_LEFT - 8, y + 4, size(tick, tick=True), "quiet", "end"))
    shapes.append(shape("path", "curve", d=_curve(lefts[1:], heights[1:])))
    for number, stage in enumerate(stages):
        begin, end = (float(lefts[x]) for x in (stage.first, stage.end))
        over = stage.memory_bytes > report.memory_limit_bytes
        style, width = "over" if over else f"s{number % STAGE_COLOURS}", max(end - begin - 1.5, 0.8)
        shapes.append(shape("rect", style, x=begin, y=strip, width=width, height=_STRIP))
        names = (f"{number} · {device_range(stage)}", f"{number}", "")
        fitting = next(words for words in names if 7.2 * len(words) <= end - begin - 4 or not words)
        shapes.append(label((begin + end) / 2, strip + 17, fitting, "on", "middle"))
        if stage is not stages[-1]:
            cut, y = end - 0.7, float(heights[stage.end])
            shapes += [_line(cut, top, strip, "cut"), shape("circle", cx=cut, cy=y, r=3.5)]
    return shapes, strip + _STRIP + 4


def _curve(x: np.ndarray, y: np.ndarray) -> str:
    """Return the path of the lowest point, of the largest y, in each bin, as steps.

    Empty bins repeat the last one.
    """
    width = (_RIGHT - _LEFT) / _BINS
    bins = np.minimum(((x - _LEFT) / width).astype(int), _BINS - 1)
    lowest = np.full(_BINS, -np.inf)
    np.maximum.at(lowest, bins, y)
    levels = np.rint(lowest)
    is_new = np.isfinite(lowest)
    is_new[is_new] = np.diff(levels[is_new], prepend=-1) != 0
    return steps(_LEFT + np.flatnonzero(is_new) * width, levels[is_new], _RIGHT)


def _schedule(report: Report) -> tuple[list[Shape], float]:
    """Draw a row for each compute stage, a thinner one for each link; (shapes, height)."""
    times, end = report.timetable, _RIGHT - _BUSY
    longest = max(report.simulated_seconds, report.length_seconds)
    scale = (end - _LEFT) / longest
    shapes = [
        label(_LEFT - 8, 14, "stage · devices", "quiet", "end"),
        label(_RIGHT, 14, "busy", "quiet", "end"),
    ]
    y = 22.0
    for row in range(len(times.reduce_start)):
        number, link = divmod(row, 2)
        height, colour = (_LINK, "l") if link else (_STAGE, f"s{number % STAGE_COLOURS}")
        middle = y + height / 2
        y += height + 2
        shapes.append(shape("path", f"t{link}", d=f"M{_LEFT} {middle:g}H{end}"))
        for kind, style in enumerate("fb"):
            begin, until = scale * times.start[row, kind], scale * times.end[row, kind]
            shapes.append(_dashes(begin, until, middle, f"{colour} {style}"))
        if link:
            continue
        stage = report.stages[number]
        if stage.all_reduce_seconds > 0:
            span = times.reduce_start[row], times.reduce_end[row]
            left, right = (_LEFT + scale * float(x) for x in span)
            path = f"M{left:.1f} {middle:g}H{max(right, left + 1):.1f}"
            shapes.append(shape("path", f"{colour} r", d=path))
        devices, busy = f"{number} · {device_range(stage)}", f"{100 * stage.efficiency:.0f} %"
        shapes.append(label(_LEFT - 8, middle + 4, devices, "", "end"))
        shapes.append(label(_RIGHT, middle + 4, busy, "quiet", "end"))
    lengths = ("length", report.length_seconds), ("length second", report.simulated_seconds)
    shapes += [_line(_LEFT + seconds * scale, 16, y, style) for style, seconds in lengths]
    return [*shapes, *_axis(longest, scale, y)], y + 34


def _dashes(begin: np.ndarray, end: np.ndarray, y: float, style: str) -> Shape:
    """Draw bars as dashes of a thick line, which takes few characters for each.

    A gap separates neighbours, and short bars stay visible.

    Args:
        begin: (M,) left ends, pixels of the schedule.
        end: (M,) right ends, pixels of the schedule.
        y: height of the line.
        style: class of the line.
    """
    width = end - begin
    shown = np.maximum(width - np.minimum(0.6, width / 3), 0.5)
    starts = np.maximum.accumulate(np.rint(_FINE * begin)).astype(int)
    dashes = np.maximum(np.rint(_FINE * shown), 1).astype(int)
    gaps = np.append(np.maximum(np.diff(starts) - dashes[:-1], 0), 0)
    numbers = np.stack([dashes, gaps], axis=1).ravel()[:-1]
    return shape(
        "path", style, d=f"M{starts[0]} {y:g}h{numbers.sum()}",
        stroke_dasharray=" ".join(map(str, numbers)),
        transform=f"translate({_LEFT} 0)scale({1 / _FINE:g} 1)",
    )  # fmt: skip


def _axis(longest: float, scale: float, y: float) -> list[Shape]:
    """Draw the axis of time, up to ``longest`` seconds at ``scale`` pixels per second."""
    unit, name = time_unit(longest)
    step = 10.0 ** np.floor(np.log10(longest / unit))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if longest / unit / s <= 8)
    shapes = [
        shape("path", "axis", d=f"M{_LEFT} {y:g}H{_RIGHT - _BUSY}"),
        label(_LEFT - 8, y + 16, f"time ({name})", "quiet", "end"),
    ]
    for tick in np.arange(0, longest / unit, step).tolist():
        x = _LEFT + tick * unit * scale
        shapes += [_line(x, y, y + 4, "axis"), label(x, y + 16, f"{tick:g}", "quiet", "middle")]
    return shapes


def _table(name: str, report: Report) -> Table:
    """Return the table of stages."""
    limit = report.memory_limit_bytes
    ends = cut_labels(report.pipeline.profile, [stage.end for stage in report.stages], 60)
    rows: list[Row] = []
    for number, (stage, end) in enumerate(zip(report.stages, ends, strict=True)):
        over = stage.memory_bytes > limit
        memory = f"{size(stage.memory_bytes)}{', over the limit' * over}"
        rows.append(
            {
                "stage": number,
                "devices": Cell(device_range(stage), stage.device_first),
                "pivots": Cell(f"{stage.first:,}–{stage.end - 1:,}", stage.first),
                "ends after": end.removeprefix(AFTER),
                "compute": _seconds(stage.forward_seconds + stage.backward_seconds),
                "transfer after it": _seconds(stage.transfer_seconds),
                "all-reduce": _seconds(stage.all_reduce_seconds),
                "memory per device": Cell(memory, stage.memory_bytes, "bad" * over),
                "busy": Cell(f"{100 * stage.efficiency:.0f} %", stage.efficiency),
            }
        )
    caption = (
        f"Stages of {name}. Compute (forward and backward) and transfer are of one micro-batch, "
        f"the all-reduce is of a step; the memory limit is {size(limit)}."
    )
    return Table(caption, rows)


def _seconds(seconds: float) -> Cell:
    return Cell(duration(seconds) if seconds else "none", seconds)
