"""Pictures of hybrid plans: devices, memory by part, seconds by part, schedule."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.schedules import WEIGHT
from parenvs.tasks.hybrid.view import (
    MEMORY_PARTS,
    PARTS,
    recomputation,
    redone_layers,
    title,
    verdict,
)
from parenvs.view.page import (
    DPI,
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
from parenvs.view.words import duration, plural, size, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.space import UniformSpace

_WEIGHTS = "#8A8A8A"
_LEAST_PIXELS = 3.5
"""Width of a pass that is drawn; of a schedule with shorter ones the beginning is shown."""


def draw_schedule(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw the simulated passes: a row per stage, light forward, dark backward, a tone per chunk.

    Gradients of weights are grey where they are passes of their own.

    Of a schedule with passes too short to see the beginning is drawn.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    table = report.timetable
    width = WIDTH - _LEFT - _RIGHT
    axes = page.axes(_LEFT, top, width, height)
    if table is None:
        axes.set(xticks=[], yticks=[])
        axes.text(0.0, 0.5, "the schedule has too many passes to be simulated", color=QUIET)
        return
    stages, chunks, batches = table.start.shape[1:]
    span = float(table.end.max())
    passes = span / (len(table.start) * chunks * batches)  # mean seconds, idle time included
    room = width * DPI / _LEAST_PIXELS
    whole = span <= passes * room
    span = min(span, passes * room)
    scale, unit = time_unit(span)
    axes.set(xlim=(0, span / scale), ylim=(stages, 0))
    shapes: list[np.ndarray] = []
    colours: list[str] = []
    per_row = height / stages
    pixel = span / (width * DPI)
    for stage in range(stages):
        low, high = stage + 0.08, stage + 0.92
        axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        for kind in range(len(table.start)):
            for chunk in range(chunks):
                begin, end = table.start[kind, stage, chunk], table.end[kind, stage, chunk]
                shown = begin < span
                begin, end = begin[shown], np.minimum(end[shown], span)
                tone = 0.62 - 0.12 * (chunk % 3) if kind == 0 else 0.3 * (chunk % 3) / 2
                colour = mix(stage_colour(stage), "#FFFFFF" if kind == 0 else "#000000", tone)
                if kind == WEIGHT:
                    colour = mix(_WEIGHTS, "#FFFFFF", 0.2 * (chunk % 3))
                drawn = np.maximum(end - begin - np.minimum(1.2 * pixel, (end - begin) / 3), 0)
                x = np.stack([begin, begin + drawn, begin + drawn, begin], axis=-1) / scale
                y = np.broadcast_to([low, low, high, high], x.shape)
                shapes.extend(np.stack([x, y], axis=-1))
                colours += [colour] * len(begin)
                _numbers(axes, begin, end, stage + 0.5, width / span, scale, per_row, colour)
    axes.add_collection(
        PolyCollection(shapes, facecolors=colours, linewidths=0, gid="passes", zorder=1)
    )
    each = max(1, round(stages / max(height / 0.17, 1)))
    rows = range(0, stages, each)
    axes.set_yticks([k + 0.5 for k in rows], [f"stage {k}" for k in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=QUIET, size=9)
    _passes_legend(axes, chunks, len(table.start) > WEIGHT)
    words = f"passes {duration(table.core)} simulated"
    words += "" if whole else f", of which the first {duration(span)} are drawn"
    axes.annotate(
        words, (1, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", size=9,
        color=INK, ha="right", annotation_clip=False,
    )  # fmt: skip


def _numbers(
    axes: Axes,
    begin: np.ndarray,
    end: np.ndarray,
    y: float,
    inches: float,
    scale: float,
    tall: float,
    colour: str,
) -> None:
    """Write the numbers of micro-batches if the widest fits its box; ``inches`` per second."""
    if not len(begin):
        return
    room = float(np.median(end - begin)) * inches
    font = min(7.5, tall * 72 * 0.45)
    if font < 4.5 or room < text_inches(f"{len(begin) - 1}", font) + 0.02:
        return
    for number, x in enumerate((begin + end) / 2):
        axes.text(
            float(x) / scale, y, f"{number}", size=font, color=ink_on(colour), ha="center",
            va="center",
        )  # fmt: skip


def _passes_legend(axes: Axes, chunks: int, is_split: bool) -> None:
    from matplotlib.patches import Patch

    dark, light = "#555555", mix("#555555", "#FFFFFF", 0.55)
    handles = [
        Patch(facecolor=light, label="forward"),
        Patch(facecolor=dark, label="backward"),
        Patch(facecolor=TRACK, label="idle"),
    ]
    if is_split:
        handles.insert(2, Patch(facecolor=_WEIGHTS, label="weights"))
    if chunks > 1:
        handles.append(Patch(facecolor="white", edgecolor=QUIET, label="a tone is a chunk"))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False,
        fontsize=9, labelcolor=QUIET, handlelength=1.4, handleheight=0.9, borderaxespad=0.2,
        borderpad=0.1, columnspacing=1.4,
    )  # fmt: skip


_LEFT, _RIGHT = 1.1, 0.3  # inches beside the axes
_UPPER = 2.35  # inches of the devices and of the memory
_ALONE = 5.2  # the same where there is no schedule to draw
_MOST_SERVERS = 64  # drawn one by one
_PART_COLOURS = {
    "forward": "#B3B3B3", "backward": "#6E6E6E", "recomputed": "#93A5B8", "exchange": "#C9607F",
    "sends": "#E39AAE", "gathers": "#F2CBD4", "bubble": "#ECECEC", "gradients": "#B07D4F",
    "tied": "#D9B48F", "optimizer": "#7A4B2E", "host": "#4F5B66",
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

    Above, the devices with stage, replica and place, and the bytes that they hold, by part; in the
    middle the seconds of a step by part; below, the simulated schedule, if there are several
    stages.
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

    Where servers differ, they stand in the plan's order, and a cell is as high as its server is
    fast.
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
    axes.annotate(
        words, (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", size=9,
        color=QUIET, annotation_clip=False,
    )  # fmt: skip


def _box(left: float, right: float, low: float, high: float) -> np.ndarray:
    """(4, 2) corners of a box."""
    return np.array([[left, low], [right, low], [right, high], [left, high]])


_MAP_LEFT, _MAP_RIGHT, _BOTTOM = 1.0, 0.4, 0.75  # inches beside the axes
_NAMED = 6  # plans of the front that are named
_LETTERS = 56  # of a line of such a name
_ROOM = 0.62  # of the least seconds, where the picture begins
_TALLEST = 12.0  # times the limit: what needs more is not drawn


def draw_plans(
    space: UniformSpace, length: float | None = None, held: float | None = None
) -> Figure:
    """The map of the plans; ``style`` has to be in force.

    Colour is tp, the mark's shape the recomputation; the Pareto front is a line. ``length`` in
    seconds and ``held`` in bytes mark a plan, which need not be uniform.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    found, problem = space.map(), space.problem
    page = Page(blank_figure())
    fit = int(found["fits"].sum())
    verdict = [plural(len(space), "uniform plan"), f"{fit:,} within {size(problem.memory_limit)}"]
    best = space.best()
    if best is not None:
        verdict.append(f"best {duration(float(space.length[best]))}: {space.describe(best)}")
    top = page.heading(title(problem), verdict, (), legal=fit > 0)
    axes = page.axes(
        _MAP_LEFT, top + 0.1, WIDTH - _MAP_LEFT - _MAP_RIGHT, HEIGHT - top - 0.1 - _BOTTOM
    )
    scale, unit = time_unit(float(found["seconds"].min()))
    left = float(found["seconds"].min()) / scale
    axes.set(xscale="log", yscale="log")
    marks = {"none": "o", "selective": "s", "full": "^"}
    for index, tp in enumerate(np.unique(found["tp"]).tolist()):
        for mode, mark in marks.items():
            which = (found["tp"] == tp) & (found["recompute"] == mode)
            for fits in (True, False):
                chosen = which & (found["fits"] == fits)
                axes.scatter(
                    found["seconds"][chosen] / scale, found["bytes"][chosen] / 1e9, s=16,
                    marker=mark, linewidths=0, color=stage_colour(index),
                    alpha=0.75 if fits else 0.18, gid=f"tp-{tp}-{mode}",
                )  # fmt: skip
    front = space.pareto()
    axes.plot(
        found["seconds"][front] / scale, found["bytes"][front] / 1e9, color=QUIET, linewidth=0.9,
        drawstyle="steps-post", zorder=1,
    )  # fmt: skip
    limit = problem.memory_limit / 1e9
    axes.axhline(limit, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate(
        f"limit {size(problem.memory_limit)}", (1, limit), (-4, 4), size=9, color=RED, ha="right",
        xycoords=("axes fraction", "data"), textcoords="offset points",
    )  # fmt: skip
    if length is not None and held is not None:
        axes.scatter([length / scale], [held / 1e9], s=130, facecolors="none", edgecolors=INK,
                     linewidths=1.6, zorder=5, gid="plan")  # fmt: skip
    fitting = front[found["fits"][front]]
    axes.set_xlim(left=left * _ROOM)  # for the names of plans, which stand at the left of the front
    axes.set_ylim(top=min(float(found["bytes"].max()) / 1e9 * 1.2, _TALLEST * limit))
    written = np.inf
    for k in fitting[np.unique(np.linspace(0, len(fitting) - 1, _NAMED).astype(int))]:
        if found["bytes"][k] > 0.78 * written:
            continue  # its name would stand on the one before
        written = found["bytes"][k]
        place = (found["seconds"][k] / scale, found["bytes"][k] / 1e9)
        axes.annotate(
            _lines(space.describe(int(k))), place, (-7, -3), size=8, color=INK,
            textcoords="offset points", zorder=6, ha="right", va="top",
        )  # fmt: skip
    axes.grid(visible=True, color="#ECECEC", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("bottom", "left"):
        axes.spines[side].set(visible=True, color=QUIET, linewidth=0.7)
    axes.set_xlabel(f"seconds of a step ({unit})", color=QUIET, size=9)
    axes.set_ylabel("GB on a device of the fullest stage", color=QUIET, size=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7), numticks=20))
        axis.set_major_formatter(lambda x, _: f"{x:g}")
        axis.set_minor_locator(NullLocator())
    _map_legend(axes, found, marks, is_marked=length is not None and held is not None)
    return page.figure


def _lines(name: str) -> str:
    whole = name.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(whole, _LETTERS)


def _map_legend(
    axes: object, found: dict[str, np.ndarray], marks: dict[str, str], is_marked: bool
) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", linewidth=0, color=stage_colour(k), label=f"tp {tp}")
        for k, tp in enumerate(np.unique(found["tp"]).tolist())
    ]
    handles += [
        Line2D([], [], marker=mark, linewidth=0, color=QUIET, label=f"recompute {mode}")
        for mode, mark in marks.items()
        if (found["recompute"] == mode).any()
    ]
    handles.append(Line2D([], [], color=QUIET, linewidth=0.9, label="Pareto front"))
    if is_marked:
        handles.append(
            Line2D(
                [], [], marker="o", markersize=11, linewidth=0, markerfacecolor="none",
                markeredgecolor=INK, markeredgewidth=1.6, label="the plan",
            )
        )  # fmt: skip
    axes.legend(  # type: ignore[attr-defined]
        handles=handles, loc="upper right", frameon=True, framealpha=0.9, edgecolor="none",
        fontsize=9, labelcolor=QUIET,
    )  # fmt: skip
