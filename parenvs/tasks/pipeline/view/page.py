"""Pictures of pipeline plans as small SVGs: the chain with its cuts, and the simulated schedule.

Colours are classes of the style sheet, so that a picture follows the light or dark theme. The same
pictures by Matplotlib would be far larger.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parenvs.leaderboard.site.html import Child, Markup, markup, scrolling, tag
from parenvs.leaderboard.site.sortable_table import Column, Field, Row, number, sortable_table
from parenvs.tasks.pipeline.problem import Report, Stage
from parenvs.tasks.pipeline.view.cut_names import AFTER, cut_labels
from parenvs.tasks.pipeline.view.text import device_range
from parenvs.view.words import duration, size, time_unit

WIDTH, LEFT, RIGHT = 880, 112, 12
"""Width of a picture and of its margins, pixels."""
_INNER = WIDTH - LEFT - RIGHT
_CHAIN, _STRIP, _STAGE, _LINK = 64, 26, 26, 9
"""Heights of the curve, the strip of stages, a stage and a link of the schedule, pixels."""
_BINS = 240
"""Bins of the curve along the chain."""
_FINE = 4
"""Steps per pixel of the schedule."""
COLOURS = 8
"""Number of colours of stages in the style sheet."""


def pipeline_figure(name: str, report: Report) -> Markup:
    """Draw both pictures with their key, and make the table of stages.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    stages = report.stages
    if not stages:
        return tag("p", "The plan is malformed: there is nothing to draw.")
    many = f"{len(stages)} stages, {report.pipeline.micro_batches} micro-batches"
    return markup(
        _figure(
            f"Chain of {name} with its cuts into {len(stages)} stages",
            _chain(report),
            "Cuts. The width of a stage is its share of the compute seconds, with number and "
            "devices; the curve is the least that a cut there sends, a dot what this plan sends.",
        ),
        _figure(
            f"Simulated schedule of {name}: {many}",
            _schedule(report),
            "Schedule of a step, simulated (1F1B). L ranks; the simulated length does not.",
            _key(),
        ),
        _stages(name, report),
    )


def _figure(words: str, picture: tuple[float, list[Child]], caption: str, *key: Child) -> Markup:
    """Put a picture, (height, shapes), in a frame that scrolls sideways, with its caption."""
    height, shapes = picture
    svg = tag(
        "svg", *shapes, class_="wide", viewBox=f"0 0 {WIDTH} {height:.0f}", role="img",
        aria_label=words,
    )  # fmt: skip
    return tag("figure", *key, scrolling(words, svg), tag("figcaption", caption))


def label(x: float, y: float, words: str, style: str = "", anchor: str = "") -> Markup:
    """Draw a text in a picture."""
    return tag(
        "text", words, x=round(x, 1), y=round(y, 1), class_=style or None,
        text_anchor=anchor or None,
    )  # fmt: skip


def _line(x: float, top: float, bottom: float, style: str) -> Markup:
    """Draw a vertical line."""
    return tag("path", d=f"M{x:.1f} {top:g}V{bottom:g}", class_=style)


def _key() -> Markup:
    """Make the key of the schedule."""
    names = (("f", "forward"), ("b", "backward"), ("r", "all-reduce"), ("l", "transfer"))
    items = (
        tag(
            "li",
            tag(
                "svg",
                tag("path", d="M0 6h22", class_=f"{'' if kind == 'l' else 's0 '}{kind}"),
                viewBox="0 0 22 12", aria_hidden="true",
            ),
            words,
        )
        for kind, words in names
    )  # fmt: skip
    return tag("ul", items, class_="key")


def _chain(report: Report) -> tuple[float, list[Child]]:
    """Draw the bytes across each cut of the chain, and the stages below them."""
    pipeline, stages = report.pipeline, report.stages
    share = pipeline.seconds_sum / pipeline.seconds_sum[-1]
    crossing = np.array(pipeline.cut_before[1:])
    largest = max(float(crossing.max()), 10.0)
    floor = max(float(np.quantile(crossing, 0.02)) / 3, largest / 1e6, 1.0)
    top = 14.0
    strip = top + _CHAIN + 4

    def height(value: float) -> float:
        share_of_height = np.log(max(value, floor) / floor) / np.log(1.3 * largest / floor)
        return float(top + _CHAIN * (1 - share_of_height))

    ticks = [x for x in 10.0 ** np.arange(0, 13) if floor * 1.2 <= x <= 1.3 * largest]
    parts: list[Child] = [label(LEFT - 8, 10, "bytes across a cut", "quiet", "end")]
    for tick in ticks[:: (len(ticks) + 3) // 4 or 1]:
        y = height(tick)
        parts += [
            tag("path", d=f"M{LEFT} {y:.1f}h{_INNER}", class_="rule"),
            label(LEFT - 8, y + 4, size(tick, tick=True), "quiet", "end"),
        ]
    parts.append(tag("path", d=_curve(share[1:], crossing, height), class_="curve"))
    for place, stage in enumerate(stages):
        begin, end = (LEFT + _INNER * float(share[x]) for x in (stage.first, stage.end))
        style = "over" if stage.memory_bytes > report.memory_limit_bytes else f"s{place % COLOURS}"
        parts.append(
            tag(
                "rect", x=f"{begin:.1f}", y=strip, width=f"{max(end - begin - 1.5, 0.8):.1f}",
                height=_STRIP, class_=style,
            )
        )  # fmt: skip
        for text in (f"{place} · {device_range(stage)}", f"{place}"):
            if 7.2 * len(text) <= end - begin - 4:
                parts.append(label((begin + end) / 2, strip + 17, text, "on", "middle"))
                break
        if stage is not stages[-1]:
            y = height(float(pipeline.cut_before[stage.end]))
            parts += [
                _line(end - 0.7, top, strip, "cut"),
                tag("circle", cx=f"{end - 0.7:.1f}", cy=f"{y:.1f}", r=3.5),
            ]
    parts.append(label(LEFT - 8, strip + 17, "stage · devices", "", "end"))
    return strip + _STRIP + 4, parts


def _curve(share: np.ndarray, crossing: np.ndarray, height: Callable[[float], float]) -> str:
    """Return the path of the smallest value in each bin, as steps; empty bins repeat the last one.

    Args:
        share: (n-1,) share of the chain's seconds before each cut.
        crossing: (n-1,) bytes across each cut.
        height: bytes -> y, pixels.
    """
    bins = np.minimum((share * _BINS).astype(int), _BINS - 1)
    smallest_bytes = np.full(_BINS, np.inf)
    np.minimum.at(smallest_bytes, bins, crossing)
    path, previous_y, bin_width = "", "", _INNER / _BINS
    for place in np.flatnonzero(np.isfinite(smallest_bytes)).tolist():
        y = f"{height(float(smallest_bytes[place])):.0f}"
        if y != previous_y:
            x = f"{LEFT + place * bin_width:.0f}"
            path += f"H{x}V{y}" if path else f"M{x} {y}"
        previous_y = y
    return f"{path}H{WIDTH - RIGHT}"


def _schedule(report: Report) -> tuple[float, list[Child]]:
    """Draw the schedule: a row for each compute stage, a thinner one for each link."""
    times, stages = report.timetable, report.stages
    longest = max(report.simulated_seconds, report.length_seconds)
    scale = (_INNER - 56) / longest
    y = 22.0
    parts: list[Child] = []
    passes: list[Child] = []
    for row in range(len(times.reduce_start)):
        place, link = divmod(row, 2)
        row_height = _LINK if link else _STAGE
        colour = f"s{place % COLOURS}"
        middle = y + row_height / 2
        parts.append(tag("path", d=f"M{LEFT} {middle:g}h{_INNER - 56}", class_=f"t{link}"))
        for kind, style in enumerate("fb"):
            begin, end = scale * times.start[row, kind], scale * times.end[row, kind]
            shade = ("l" if kind else "l f") if link else f"{colour} {style}"
            passes.append(_dashes(begin, end, middle, shade))
        if not link:
            stage = stages[place]
            if stage.all_reduce_seconds > 0:
                span = (float(times.reduce_start[row]), float(times.reduce_end[row]))
                left, right = (LEFT + scale * x for x in span)
                path = f"M{left:.1f} {middle:g}H{max(right, left + 1):.1f}"
                parts.append(tag("path", d=path, class_=f"{colour} r"))
            devices = f"{place} · {device_range(stage)}"
            parts.append(label(LEFT - 8, middle + 4, devices, "", "end"))
            busy = f"{stage.efficiency:.0%}".replace("%", " %")
            parts.append(label(WIDTH - RIGHT, middle + 4, busy, "quiet", "end"))
        y += row_height + 2
    parts.append(tag("g", passes, transform=f"translate({LEFT} 0)scale({1 / _FINE:g} 1)"))
    parts.append(label(LEFT - 8, 14, "stage · devices", "quiet", "end"))
    parts.append(label(WIDTH - RIGHT, 14, "busy", "quiet", "end"))
    parts += _lengths(report, scale, y)
    parts += _axis(longest, scale, y)
    return y + 34, parts


def _dashes(begin: np.ndarray, end: np.ndarray, y: float, style: str) -> Markup:
    """Draw bars as dashes of a thick line, which takes few characters for each.

    A gap separates neighbours, and short bars stay visible. Evenly spaced bars become a line with
    one dash length; where few bars are evenly spaced, all become one line with a list of dashes.

    Args:
        begin: (M,) left ends, pixels of the schedule.
        end: (M,) right ends, pixels of the schedule.
        y: height of the line.
        style: class of the line.
    """
    width = end - begin
    shown = np.maximum(width - np.minimum(0.6, width / 3), 0.5)
    runs, first = [], 0
    for place in range(1, len(begin) + 1):
        steps = np.diff(begin[first : place + 1])
        if place == len(begin) or steps[-1] <= shown[first] or abs(steps[-1] - steps[0]) > 0.02:
            runs.append((first, place - 1))
            first = place
    even = [_even(begin[i : k + 1], float(shown[i]), y, style) for i, k in runs]
    starts = np.maximum.accumulate(np.rint(_FINE * begin)).astype(int)
    dash = np.maximum(np.rint(_FINE * shown), 1).astype(int)
    gaps = np.append(np.maximum(np.diff(starts) - dash[:-1], 0), 0)
    numbers = np.stack([dash, gaps], axis=1).ravel()[:-1].tolist()
    line = tag(
        "path", d=f"M{starts[0]} {y:g}h{sum(numbers)}",
        stroke_dasharray=" ".join(map(str, numbers)), class_=style,
    )  # fmt: skip
    return min(markup(even), line, key=len)


def _even(begin: np.ndarray, shown: float, y: float, style: str) -> Markup:
    """Draw evenly spaced bars of the width ``shown`` as one line."""
    path = f"M{_FINE * begin[0]:.4g} {y:g}h{_FINE * (begin[-1] - begin[0] + shown):.4g}"
    if len(begin) == 1:
        return tag("path", d=path, class_=style)
    step = float(begin[-1] - begin[0]) / (len(begin) - 1)
    dashes = f"{_FINE * shown:.4g} {_FINE * (step - shown):.4g}"
    return tag("path", d=path, stroke_dasharray=dashes, class_=style)


def _lengths(report: Report, scale: float, bottom: float) -> list[Child]:
    """Draw lines at both lengths; their names are turned away from each other.

    Args:
        report: the judge's report.
        scale: pixels per second.
        bottom: y of the lower ends, pixels.
    """
    both = [("L", report.length_seconds), ("simulated", report.simulated_seconds)]
    both.sort(key=lambda pair: pair[1])
    parts: list[Child] = []
    for (name, seconds), anchor in zip(both, ("end", "start"), strict=True):
        x = LEFT + seconds * scale
        parts.append(_line(x, 16, bottom, "length" if name == "L" else "length second"))
        words = f"{name} {duration(seconds)}"
        if anchor == "start" and x + 6.6 * len(words) > WIDTH - RIGHT - 36:
            anchor, x = "end", min(x, WIDTH - RIGHT - 40)
            other = LEFT + both[0][1] * scale
            parts[1] = label(min(other, x - 6.6 * len(words) - 10), 12, _words(both[0]), "", "end")
        parts.append(label(x, 12, words, "", anchor))
    return parts


def _words(pair: tuple[str, float]) -> str:
    """Return a length, (name, seconds), in words."""
    return f"{pair[0]} {duration(pair[1])}"


def _axis(longest: float, scale: float, y: float) -> list[Child]:
    """Draw the axis of time, up to ``longest`` seconds at ``scale`` pixels per second."""
    unit, name = time_unit(longest)
    step = 10.0 ** np.floor(np.log10(longest / unit))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if longest / unit / s <= 8)
    parts: list[Child] = [tag("path", d=f"M{LEFT} {y:g}h{_INNER - 56}", class_="axis")]
    for tick in np.arange(0, longest / unit, step).tolist():
        x = LEFT + tick * unit * scale
        parts += [_line(x, y, y + 4, "axis"), label(x, y + 16, f"{tick:g}", "quiet", "middle")]
    parts.append(label(LEFT - 8, y + 16, f"time ({name})", "quiet", "end"))
    return parts


_COLUMNS = (
    Column("stage", "number"),
    Column("devices", "number"),
    Column("pivots", "number"),
    Column("ends after"),
    Column("compute", "number", "descending"),
    Column("transfer after it", "number", "descending"),
    Column("all-reduce", "number", "descending"),
    Column("memory per device", "number", "descending"),
    Column("busy", "number", "descending"),
)


def _stages(name: str, report: Report) -> Markup:
    """Make the table of stages."""
    ends = cut_labels(report.pipeline.profile, [stage.end for stage in report.stages], 60)
    rows = [
        _stage(place, stage, end, report)
        for place, (stage, end) in enumerate(zip(report.stages, ends, strict=True))
    ]
    words = (
        f"Stages of {name}. Compute (forward and backward) and transfer are of one micro-batch, "
        f"the all-reduce is of a step; the memory limit is {size(report.memory_limit_bytes)}."
    )
    return sortable_table(words, _COLUMNS, rows)


def _stage(place: int, stage: Stage, end: str, report: Report) -> Row:
    """Make the row of a stage."""
    limit = report.memory_limit_bytes
    compute = stage.forward_seconds + stage.backward_seconds
    over = stage.memory_bytes > limit
    memory = f"{size(stage.memory_bytes)}{', over the limit' if over else ''}"
    seconds = (compute, stage.transfer_seconds, stage.all_reduce_seconds)
    return Row(
        (
            number(place, f"{place}"),
            Field(device_range(stage), float(stage.device_first)),
            Field(f"{stage.first:,}–{stage.end - 1:,}", float(stage.first)),
            Field(end.removeprefix(AFTER)),
            *(number(x, duration(x) if x else "none") for x in seconds),
            Field(memory, stage.memory_bytes, "bad" if over else ""),
            number(stage.efficiency, f"{100 * stage.efficiency:.0f} %"),
        )
    )
