"""Pictures of hybrid plans: devices, memory by part, seconds by part, schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.view.schedule import draw_schedule
from parenvs.tasks.hybrid.view.text import (
    MEMORY_PARTS,
    PARTS,
    recomputation,
    redone_layers,
    title,
    verdict,
)
from parenvs.view.page import (
    HEIGHT,
    INK,
    QUIET,
    RED,
    TRACK,
    WIDTH,
    Page,
    blank_figure,
    ink_on,
    mix,
    reasons_shown,
    stage_colour,
    text_inches,
)
from parenvs.view.words import duration, plural, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.hybrid.problem import Hybrid

_LEFT, _RIGHT = 1.1, 0.3  # inches beside the axes
_UPPER = 2.35  # inches of the devices and of the memory
_ALONE = 5.2  # the same where there is no schedule to draw
_MOST_SERVERS = 64  # drawn one by one
_PART_COLOURS = {
    "forward": "#B3B3B3", "backward": "#6E6E6E", "recomputed": "#93A5B8", "exchange": "#C9607F",
    "sends": "#E39AAE", "gathers": "#F2CBD4", "bubble": "#ECECEC", "gradients": "#B07D4F",
    "tied": "#D9B48F", "optimizer": "#7A4B2E",
}  # fmt: skip
_MEMORY_COLOURS = {
    "weights": "#3C4652", "gradients": _PART_COLOURS["gradients"],
    "optimizer": _PART_COLOURS["optimizer"], "activations": "#E6B8A2", "working": "#BFB8AD",
}  # fmt: skip
"""What has a colour in seconds has the same in bytes; the colours of stages are left to stages.

Work is grey, what its passes send is pink, what follows them is brown.
"""


def draw(report: HybridReport | Hybrid) -> Figure:
    """The picture of a plan; ``style`` has to be in force.

    Above, the devices, each with its stage, its replica and its place in it, and the bytes that the
    devices of each stage hold, by part; in the middle the seconds of a step by part; below, the
    simulated schedule, but for a plan of one stage, whose passes follow each other.

    Args:
        report: what the judge says of a plan, or the problem.
    """
    page = Page(blank_figure())
    if not isinstance(report, HybridReport):
        page.heading(title(report), verdict(report), (), legal=True)
        return page.figure
    reasons = reasons_shown(report.reasons)
    top = page.heading(title(report), verdict(report), reasons, report.legal)
    if not report.stages:
        return page.figure
    has_schedule = len(report.stages) > 1
    height = _UPPER if has_schedule else _ALONE
    _draw_devices(page, top + 0.2, height, report)
    _draw_memory(page, top + 0.2, min(height, max(_UPPER, 0.4 * len(report.stages))), report)
    top += height + 0.85
    _draw_seconds(page, top, report)
    if has_schedule:
        top += 1.12
        draw_schedule(page, top, HEIGHT - top - 0.5, report)
    return page.figure


def _draw_devices(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw a cell for each device: colour by stage, shade by replica, number by tp rank.

    Where servers differ, a cell is as high as its server is fast, under the server's own number and
    speed; servers stand in the plan's order.
    """
    from matplotlib.collections import PolyCollection

    cluster, plan = report.cluster, report.plan
    inside = cluster.devices_per_server
    servers = min(-(-report.devices_used // inside), _MOST_SERVERS)
    width = (WIDTH - _LEFT - _RIGHT) * 0.52
    axes = page.axes(_LEFT, top, width, height)
    rows, columns = _grid(servers, inside, width, height)
    axes.set(xlim=(0, columns * (inside + 0.6)), ylim=(rows * 1.0, 0), xticks=[], yticks=[])
    cells: list[np.ndarray] = []
    colours: list[str] = []
    per_inch = width / (columns * (inside + 0.6))
    font = min(8.5, 72 * min(per_inch, height / rows) * 0.42)
    order = plan.servers or tuple(range(cluster.servers))
    speeds = [cluster.speeds[server] for server in order] if cluster.speeds else []
    font = font * 0.8 if speeds else font
    for number, stage in enumerate(report.stages):
        base = stage_colour(number)
        ranks = stage.tp * plan.context
        for device in range(stage.device_first, stage.device_end):
            server, place = divmod(device, inside)
            if server >= servers:
                break
            row, column = divmod(server, columns)
            x, y = column * (inside + 0.6) + place, row
            replica, rank = divmod(device - stage.device_first, ranks)
            colour = mix(base, "#FFFFFF", 0.35 * (replica % 2))
            low = y + 0.88
            high = low - (0.58 * speeds[server] / max(speeds) if speeds else 0.76)
            cells.append(_box(x + 0.04, x + 0.96, high, low))
            colours.append(colour)
            if font >= 4.5:
                words = f"{replica}·{rank}" if stage.dp > 1 and ranks > 1 else f"{replica or rank}"
                if text_inches(words, font) < 0.95 * per_inch:
                    axes.text(
                        x + 0.5, (low + high) / 2, words, size=font, color=ink_on(colour),
                        ha="center", va="center",
                    )  # fmt: skip
    axes.add_collection(PolyCollection(cells, facecolors=colours, linewidths=0, gid="devices"))
    if speeds:
        tall = height / rows
        _server_speeds(axes, order, speeds, servers, columns, inside, per_inch, tall)
    else:
        _server_names(axes, plan.servers, servers, rows, columns, inside, per_inch)
    words = f"{plural(servers, 'server')} of {plural(inside, 'device')}: colour is the stage"
    words += ", a shade one replica" if any(stage.dp > 1 for stage in report.stages) else ""
    has_ranks = any(stage.tp * plan.context > 1 for stage in report.stages)
    numbers = ["replica"] * any(stage.dp > 1 for stage in report.stages) + ["rank"] * has_ranks
    words += f", numbers {'·'.join(numbers)}" if numbers else ""
    words += ", height the speed" if speeds else ""
    if -(-report.devices_used // inside) > servers:
        words += f" (the first {servers} of {cluster.servers} servers)"
    elif speeds and servers < cluster.servers:
        words += f" ({cluster.servers - servers} more servers are unused)"
    _caption(axes, words)


def _grid(servers: int, inside: int, width: float, height: float) -> tuple[int, int]:
    """Rows and columns of servers that give the largest cells."""
    best = (0.0, 1, servers)
    for columns in range(1, servers + 1):
        rows = -(-servers // columns)
        cell = min(width / (columns * (inside + 0.6)), 1.4 * height / rows)
        best = max(best, (cell, rows, columns))
    return best[1], best[2]


def _server_names(
    axes: Axes,
    order: tuple[int, ...],
    servers: int,
    rows: int,
    columns: int,
    inside: int,
    per_inch: float,
) -> None:
    """Write the number of the first server of each row at its left, and the place of the last."""
    for row in range(rows):
        first = row * columns
        last = min(first + columns, servers) - 1
        named = [order[k] if order else k for k in (first, last)]
        words = f"server {named[0]}" if first == last else f"servers {named[0]}–{named[1]}"
        if order and first != last:
            words = "servers " + ", ".join(str(order[k]) for k in range(first, last + 1))
        axes.annotate(
            words if len(words) < 18 else words[:17] + "…", (0, row + 0.5), (-6, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", size=8, color=QUIET,
            ha="right", va="center", annotation_clip=False,
        )  # fmt: skip


def _server_speeds(
    axes: Axes,
    order: tuple[int, ...],
    speeds: list[float],
    servers: int,
    columns: int,
    inside: int,
    per_inch: float,
    tall: float,
) -> None:
    """Write the number and the speed of each server above its devices, as far as there is room."""
    font = min(8.0, 72 * tall * 0.26)
    for place, (server, speed) in enumerate(zip(order, speeds, strict=True)):
        if place >= servers or font < 3.5:
            return
        row, column = divmod(place, columns)
        words = f"server {server}: {speed:.3g}"
        if text_inches(words, font) > inside * per_inch:
            words = f"{server}: {speed:.2g}"
        if text_inches(words, font) < 1.05 * inside * per_inch:
            axes.text(
                column * (inside + 0.6), row + 0.27, words, size=font, color=QUIET, va="bottom"
            )


def _draw_memory(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw stacked bars of the bytes on a device of each stage, by part, and the limit."""
    from matplotlib.patches import Patch

    whole = WIDTH - _LEFT - _RIGHT
    left = _LEFT + 0.52 * whole + 1.25
    axes = page.axes(left, top, WIDTH - _RIGHT - left - 0.1, height)
    stages, limit = report.stages, report.memory_limit_bytes
    most = max(limit, *(stage.memory["total"] for stage in stages)) * 1.02
    axes.set(xlim=(0, most), ylim=(len(stages), 0))
    seen = set()
    for number, stage in enumerate(stages):
        begin = 0.0
        axes.barh(number + 0.5, most, 0.76, color=TRACK, linewidth=0, zorder=0)
        for name in MEMORY_PARTS:
            if stage.memory[name] > 0:
                axes.barh(
                    number + 0.5, stage.memory[name], 0.76, left=begin, linewidth=0,
                    color=_MEMORY_COLOURS[name],
                )  # fmt: skip
                begin += stage.memory[name]
                seen.add(name)
    over = [stage.memory["total"] > limit for stage in stages]
    axes.axvline(limit, color=RED if any(over) else INK, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate(
        f"limit {size(limit)}", (limit, 0), (0, 3), xycoords=("data", "data"),
        textcoords="offset points", size=8.5, color=RED if any(over) else INK, ha="right",
        annotation_clip=False,
    )  # fmt: skip
    _caption(axes, recomputation(report))
    each = max(1, round(len(stages) / 12))
    shown = range(0, len(stages), each)
    words = [" · ".join([f"stage {k}", *filter(None, [redone_layers(stages[k])])]) for k in shown]
    axes.set_yticks([k + 0.5 for k in shown], words)
    for tick, k in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_color(RED if over[k] else QUIET)
    axes.tick_params(axis="y", length=0)
    ticks = axes.get_xticks()
    axes.set_xticks([x for x in ticks if 0 <= x <= most])
    axes.set_xticklabels([size(x, tick=True) for x in axes.get_xticks()])
    axes.legend(
        handles=[
            Patch(facecolor=_MEMORY_COLOURS[name], label=words)
            for name, words in MEMORY_PARTS.items() if name in seen
        ],
        loc="upper left", bbox_to_anchor=(-0.01, -0.21 / height), ncols=5, frameon=False,
        fontsize=8, labelcolor=QUIET, handlelength=1.1, handleheight=0.9, columnspacing=1.0,
    )  # fmt: skip


def _draw_seconds(page: Page, top: float, report: HybridReport) -> None:
    """Draw one bar in proportion to the parts of a step, each named once below it."""
    from matplotlib.patches import Patch

    axes = page.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, 0.34)
    parts = {name: x for name, x in report.seconds.items() if x > 0}
    total = sum(parts.values())
    axes.set(xlim=(0, total), ylim=(0, 1), xticks=[], yticks=[])
    begin = 0.0
    for name, seconds in parts.items():
        axes.barh(0.5, seconds, 1.0, left=begin, color=_PART_COLOURS[name], linewidth=0)
        begin += seconds
    axes.legend(
        handles=[
            Patch(facecolor=_PART_COLOURS[name], label=f"{PARTS[name]} {x / total:.1%}")
            for name, x in parts.items()
        ],
        loc="upper left", bbox_to_anchor=(-0.01, -0.02), ncols=len(parts), frameon=False,
        fontsize=8.5, labelcolor=QUIET, handlelength=1.1, handleheight=0.9, columnspacing=0.9,
        handletextpad=0.5,
    )  # fmt: skip
    _caption(axes, f"a step of {duration(report.length_seconds)}, by part")


def _caption(axes: Axes, words: str) -> None:
    """Write a line above the axes."""
    axes.annotate(
        words, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", size=9,
        color=QUIET, annotation_clip=False,
    )  # fmt: skip


def _box(left: float, right: float, low: float, high: float) -> np.ndarray:
    """(4, 2) corners of a box."""
    return np.array([[left, low], [right, low], [right, high], [left, high]])
