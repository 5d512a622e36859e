"""Pictures of hybrid plans: devices, memory by part, seconds by part, schedule."""

from __future__ import annotations

import textwrap
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.schedules import WEIGHT
from parenvs.tasks.hybrid.view import PARTS, recomputation, redone_layers, title, verdict
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
    stage_color,
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

    Gradients of weights are gray where they are passes of their own. Of a schedule with passes too
    short to see the beginning is drawn.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    table = report.timetable
    width = WIDTH - _LEFT - _RIGHT
    axes = page.axes(_LEFT, top, width, height)
    if table is None:
        axes.set(xticks=[], yticks=[])
        axes.text(0.0, 0.5, "the schedule has too many passes to be simulated", color=QUIET)
        return
    kinds, stages, chunks, batches = table.start.shape
    length = float(table.end.max())
    passes = length / (kinds * chunks * batches)  # mean seconds, idle time included
    span = min(length, passes * (width * DPI / _LEAST_PIXELS))
    scale, unit = time_unit(span)
    axes.set(xlim=(0, span / scale), ylim=(stages, 0))
    shapes: list[np.ndarray] = []
    colors: list[str] = []
    pixel = span / (width * DPI)
    for stage, kind, chunk in np.ndindex(stages, kinds, chunks):
        low, high = stage + 0.08, stage + 0.92
        if kind == chunk == 0:
            axes.axhspan(low, high, color=TRACK, linewidth=0, zorder=0)
        begin, end = table.start[kind, stage, chunk], table.end[kind, stage, chunk]
        shown = begin < span
        begin, end = begin[shown], np.minimum(end[shown], span)
        # Three tones are told apart; later chunks begin again.
        tone = 0.62 - 0.12 * (chunk % 3) if kind == 0 else 0.3 * (chunk % 3) / 2
        color = mix(stage_color(stage), "#FFFFFF" if kind == 0 else "#000000", tone)
        if kind == WEIGHT:
            color = mix(_WEIGHTS, "#FFFFFF", 0.2 * (chunk % 3))
        # A gap keeps neighbors of one color apart.
        drawn = np.maximum(end - begin - np.minimum(1.2 * pixel, (end - begin) / 3), 0)
        x = np.stack([begin, begin + drawn, begin + drawn, begin], axis=-1) / scale
        y = np.broadcast_to([low, low, high, high], x.shape)
        shapes.extend(np.stack([x, y], axis=-1))
        colors += [color] * len(begin)
        # Numbers of micro-batches are written if the widest fits its box.
        font = min(7.5, height / stages * 72 * 0.45)
        room = float(np.median(end - begin)) * (width / span) if len(begin) else 0.0
        if font >= 4.5 and room >= text_inches(f"{len(begin) - 1}", font) + 0.02:
            for number, middle in enumerate((begin + end) / 2):
                _center(axes, float(middle) / scale, stage + 0.5, f"{number}", font, color)
    axes.add_collection(
        PolyCollection(shapes, facecolors=colors, linewidths=0, gid="passes", zorder=1)
    )
    rows = range(0, stages, max(1, round(stages / max(height / 0.17, 1))))
    axes.set_yticks([k + 0.5 for k in rows], [f"stage {k}" for k in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set(visible=True, color=QUIET, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"time ({unit})", color=QUIET, size=9)
    dark, light = "#555555", mix("#555555", "#FFFFFF", 0.55)
    legend = {"forward": light, "backward": dark}
    legend |= {"weights": _WEIGHTS} if kinds > WEIGHT else {}
    handles = [Patch(facecolor=x, label=word) for word, x in {**legend, "idle": TRACK}.items()]
    if chunks > 1:
        handles.append(Patch(facecolor="white", edgecolor=QUIET, label="a tone is a chunk"))
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False,
        fontsize=9, labelcolor=QUIET, handlelength=1.4, handleheight=0.9, borderaxespad=0.2,
        borderpad=0.1, columnspacing=1.4,
    )  # fmt: skip
    words = f"passes {duration(table.core)} simulated"
    words += "" if span == length else f", of which the first {duration(span)} are drawn"
    _note(axes, words, (1, 1), (0, 5), color=INK, ha="right")


def _note(axes: Axes, words: str, at: tuple[float, float], offset: Any, **look: Any) -> None:
    """Write words at a place, shifted by an offset in points, inside of the axes or not."""
    settings = {"xycoords": "axes fraction", "size": 9, "color": QUIET, "annotation_clip": False}
    axes.annotate(words, at, offset, textcoords="offset points", **{**settings, **look})


def _center(axes: Axes, x: float, y: float, words: str, font: float, color: str) -> None:
    """Write words in the middle of a box of a color."""
    axes.text(x, y, words, size=font, color=ink_on(color), ha="center", va="center")


def _part_legend(axes: Axes, colors: dict[str, str], **look: Any) -> None:
    """List words and their colors below the axes."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(facecolor=color, label=words) for words, color in colors.items()],
        loc="upper left", frameon=False, labelcolor=QUIET, handlelength=1.1, handleheight=0.9,
        **look,
    )  # fmt: skip


_LEFT, _RIGHT = 1.1, 0.3  # inches beside the axes
_UPPER = 2.35  # inches of the devices and of the memory
_ALONE = 5.2  # the same where there is no schedule to draw
_MOST_SERVERS = 64  # drawn one by one
_PART_COLORS = {
    "forward": "#B3B3B3", "backward": "#6E6E6E", "recomputed": "#93A5B8", "exchange": "#C9607F",
    "sends": "#E39AAE", "gathers": "#F2CBD4", "bubble": "#ECECEC", "gradients": "#B07D4F",
    "tied": "#D9B48F", "optimizer": "#7A4B2E", "host": "#4F5B66",
}  # fmt: skip
_MEMORY_COLORS = {
    "weights": "#3C4652", "gradients": _PART_COLORS["gradients"],
    "optimizer": _PART_COLORS["optimizer"], "activations": "#E6B8A2", "working": "#BFB8AD",
}  # fmt: skip
"""What has a color in seconds has the same in bytes; the colors of stages are left to stages.

Work is gray, what its passes send is pink, what follows them is brown.
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
    """Draw a cell for each device: color by stage, shade by replica, number by tp rank.

    Where servers differ, they stand in the plan's order, and a cell is as high as its server is
    fast.
    """
    from matplotlib.collections import PolyCollection

    cluster, plan = report.cluster, report.plan
    inside = cluster.devices_per_server
    needed = -(-report.devices_used // inside)
    servers = min(needed, _MOST_SERVERS)
    width = (WIDTH - _LEFT - _RIGHT) * 0.52
    axes = page.axes(_LEFT, top, width, height)
    wide = inside + 0.6  # a server and a gap, in devices

    def cell(columns: int) -> tuple[float, int, int]:
        rows = -(-servers // columns)
        return min(width / (columns * wide), 1.4 * height / rows), rows, columns

    # As many columns as give the largest cells.
    _, rows, columns = max(cell(columns) for columns in range(1, servers + 1))
    axes.set(xlim=(0, columns * wide), ylim=(rows * 1.0, 0), xticks=[], yticks=[])
    cells: list[np.ndarray] = []
    colors: list[str] = []
    per_inch = width / (columns * wide)
    font = min(8.5, 72 * min(per_inch, height / rows) * 0.42)
    order = plan.servers or tuple(range(cluster.servers))
    speeds = [cluster.speeds[server] for server in order] if cluster.speeds else []
    font = font * 0.8 if speeds else font
    for number, stage in enumerate(report.stages):
        ranks = stage.tp * plan.context
        for device in range(stage.device_first, min(stage.device_end, servers * inside)):
            server, place = divmod(device, inside)
            row, column = divmod(server, columns)
            x = column * wide + place
            replica, rank = divmod(device - stage.device_first, ranks)
            color = mix(stage_color(number), "#FFFFFF", 0.35 * (replica % 2))
            low = row + 0.88
            high = low - (0.58 * speeds[server] / max(speeds) if speeds else 0.76)
            left, right = x + 0.04, x + 0.96
            cells.append(np.array([[left, high], [right, high], [right, low], [left, low]]))
            colors.append(color)
            words = f"{replica}·{rank}" if stage.dp > 1 and ranks > 1 else f"{replica or rank}"
            if font >= 4.5 and text_inches(words, font) < 0.95 * per_inch:
                _center(axes, x + 0.5, (low + high) / 2, words, font, color)
    axes.add_collection(PolyCollection(cells, facecolors=colors, linewidths=0, gid="devices"))
    if speeds:
        font = min(8.0, 72 * (height / rows) * 0.26)
        room = inside * per_inch
        for place, (server, speed) in enumerate(zip(order[:servers], speeds, strict=False)):
            row, column = divmod(place, columns)
            words = f"server {server}: {speed:.3g}"
            if font >= 3.5 and text_inches(words, font) < 1.05 * room:
                at = column * wide, row + 0.27
                axes.text(*at, words, size=font, color=QUIET, va="bottom")
    numbers = ["replica"] * any(stage.dp > 1 for stage in report.stages)
    words = f"{plural(servers, 'server')} of {plural(inside, 'device')}: color is the stage"
    words += ", a shade one replica" if numbers else ""
    numbers += ["rank"] * any(stage.tp * plan.context > 1 for stage in report.stages)
    words += f", numbers {'·'.join(numbers)}" if numbers else ""
    words += ", height the speed" if speeds else ""
    if needed > servers:
        words += f" (the first {servers} of {cluster.servers} servers)"
    elif speeds and servers < cluster.servers:
        words += f" ({cluster.servers - servers} more servers are unused)"
    _note(axes, words, (0, 1), (0, 5))


def _draw_memory(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw stacked bars of the bytes on a device of each stage, by part, and the limit."""
    left = _LEFT + 0.52 * (WIDTH - _LEFT - _RIGHT) + 1.25
    axes = page.axes(left, top, WIDTH - _RIGHT - left - 0.1, height)
    stages, limit = report.stages, report.memory_limit_bytes
    most = max(limit, *(stage.memory["total"] for stage in stages)) * 1.02
    axes.set(xlim=(0, most), ylim=(len(stages), 0))
    seen = set()
    for number, stage in enumerate(stages):
        begin = 0.0
        axes.barh(number + 0.5, most, 0.76, color=TRACK, linewidth=0, zorder=0)
        for name, color in _MEMORY_COLORS.items():
            if (held := stage.memory[name]) > 0:
                axes.barh(number + 0.5, held, 0.76, left=begin, linewidth=0, color=color)
                begin += held
                seen.add(name)
    over = [stage.memory["total"] > limit for stage in stages]
    color = RED if any(over) else INK
    axes.axvline(limit, color=color, linewidth=1.2, linestyle=(0, (4, 2)))
    look = {"xycoords": ("data", "data"), "size": 8.5, "color": color, "ha": "right"}
    _note(axes, f"limit {size(limit)}", (limit, 0), (0, 3), **look)
    _note(axes, recomputation(report), (0, 1), (0, 5))
    shown = range(0, len(stages), max(1, round(len(stages) / 12)))
    words = [" · ".join([f"stage {k}", *filter(None, [redone_layers(stages[k])])]) for k in shown]
    axes.set_yticks([k + 0.5 for k in shown], words)
    for tick, k in zip(axes.get_yticklabels(), shown, strict=True):
        tick.set_color(RED if over[k] else QUIET)
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([x for x in axes.get_xticks() if 0 <= x <= most])
    axes.set_xticklabels([size(x, tick=True) for x in axes.get_xticks()])
    colors = {name: x for name, x in _MEMORY_COLORS.items() if name in seen}
    at = (-0.01, -0.21 / height)
    _part_legend(axes, colors, bbox_to_anchor=at, ncols=5, fontsize=8, columnspacing=1.0)


def _draw_seconds(page: Page, top: float, report: HybridReport) -> None:
    axes = page.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, 0.34)
    parts = {name: x for name, x in report.seconds.items() if x > 0}
    total = sum(parts.values())
    axes.set(xlim=(0, total), ylim=(0, 1), xticks=[], yticks=[])
    begin = 0.0
    for name, seconds in parts.items():
        axes.barh(0.5, seconds, 1.0, left=begin, color=_PART_COLORS[name], linewidth=0)
        begin += seconds
    _part_legend(
        axes,
        {f"{PARTS[name]} {x / total:.1%}": _PART_COLORS[name] for name, x in parts.items()},
        bbox_to_anchor=(-0.01, -0.02), ncols=len(parts), fontsize=8.5, columnspacing=0.9,
        handletextpad=0.5,
    )  # fmt: skip
    _note(axes, f"a step of {duration(report.length_seconds)}, by part", (0, 1), (0, 5))


_MAP_LEFT, _MAP_RIGHT, _BOTTOM = 1.0, 0.4, 0.75  # inches beside the axes
_NAMED = 6  # plans of the front that are named
_LETTERS = 56  # of a line of such a name
_ROOM = 0.62  # of the least seconds, where the picture begins
_TALLEST = 12.0  # times the limit: what needs more is not drawn
_FIXED = "\N{NO-BREAK SPACE}"


def draw_plans(space: UniformSpace, length: float, held: float) -> Figure:
    """The map of the plans; ``style`` has to be in force.

    Color is tp, the mark's shape the recomputation; the Pareto front is a line. ``length`` in
    seconds and ``held`` in bytes mark a plan, which need not be uniform.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    plans, problem, fits = space.plans, space.problem, space.fits
    page = Page(blank_figure())
    fit = int(fits.sum())
    verdict = [plural(len(space), "uniform plan"), f"{fit:,} within {size(problem.memory_limit)}"]
    best = space.best()
    if best is not None:
        verdict.append(f"best {duration(float(space.length[best]))}: {space.describe(best)}")
    top = page.heading(title(problem), verdict, (), legal=fit > 0)
    height = HEIGHT - top - 0.1 - _BOTTOM
    axes = page.axes(_MAP_LEFT, top + 0.1, WIDTH - _MAP_LEFT - _MAP_RIGHT, height)
    scale, unit = time_unit(float(space.seconds["length"].min()))
    seconds, gigabytes = space.seconds["length"] / scale, space.memory["total"] / 1e9
    axes.set(xscale="log", yscale="log")
    handles, shapes = [], []
    marks = {"none": "o", "selective": "s", "full": "^"}
    for index, tp in enumerate(np.unique(plans.tp).tolist()):
        color = stage_color(index)
        handles.append(Line2D([], [], marker="o", linewidth=0, color=color, label=f"tp {tp}"))
        for (mode, mark), fitting in product(marks.items(), (True, False)):
            chosen = (plans.tp == tp) & (plans.recompute == mode) & (fits == fitting)
            axes.scatter(
                seconds[chosen], gigabytes[chosen], s=16, marker=mark, linewidths=0, color=color,
                alpha=0.75 if fitting else 0.18, gid=f"tp-{tp}-{mode}",
            )  # fmt: skip
    for mode, mark in marks.items():
        if (plans.recompute == mode).any():
            look: Any = {"linewidth": 0, "color": QUIET, "label": f"recompute {mode}"}
            shapes.append(Line2D([], [], marker=mark, **look))
    front = space.pareto()
    line: Any = {"color": QUIET, "linewidth": 0.9}
    axes.plot(seconds[front], gigabytes[front], drawstyle="steps-post", zorder=1, **line)
    handles += [*shapes, Line2D([], [], label="Pareto front", **line)]
    limit = problem.memory_limit / 1e9
    axes.axhline(limit, color=RED, linewidth=1.2, linestyle=(0, (4, 2)))
    look = {"xycoords": ("axes fraction", "data"), "color": RED, "ha": "right"}
    _note(axes, f"limit {size(problem.memory_limit)}", (1, limit), (-4, 4), **look)
    axes.scatter([length / scale], [held / 1e9], s=130, facecolors="none", edgecolors=INK,
                 linewidths=1.6, zorder=5, gid="plan")  # fmt: skip
    ring: Any = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linewidth": 0}
    edge: Any = {"markeredgecolor": INK, "markeredgewidth": 1.6}
    handles.append(Line2D([], [], label="the plan", **ring, **edge))
    cheapest = front[fits[front]]
    # Names of plans stand at the left of the front.
    axes.set_xlim(left=float(seconds.min()) * _ROOM)
    axes.set_ylim(top=min(float(gigabytes.max()) * 1.2, _TALLEST * limit))
    written = np.inf
    named = np.unique(np.linspace(0, len(cheapest) - 1, _NAMED).astype(int))
    for k in cheapest[named] if len(cheapest) else ():
        if gigabytes[k] > 0.78 * written:
            continue  # its name would stand on the one before
        written = gigabytes[k]
        # Lines break between degrees only.
        name = space.describe(int(k)).replace(" ", _FIXED).replace(f",{_FIXED}", ", ")
        axes.annotate(
            textwrap.fill(name, _LETTERS), (seconds[k], gigabytes[k]), (-7, -3), size=8, color=INK,
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
    axes.legend(
        handles=handles, loc="upper right", frameon=True, framealpha=0.9, edgecolor="none",
        fontsize=9, labelcolor=QUIET,
    )  # fmt: skip
    return page.figure
