"""Pictures and traces of hybrid plans: devices, memory by part, seconds by part, schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Chain, LayerSeconds
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.schedules import SPLIT, WEIGHT, chains
from parenvs.tasks.hybrid.stage_formulas import again_seconds
from parenvs.tasks.hybrid.view import PARTS, recomputation, redone_layers, title, verdict
from parenvs.view.page import (
    DPI,
    HEIGHT,
    INK,
    LINK,
    QUIET,
    RED,
    TRACK,
    WIDTH,
    Page,
    draw_memory,
    draw_passes,
    legend,
    mix,
    note,
    stage_color,
    text_inches,
    write_on,
)
from parenvs.view.trace import Part, Track, in_use
from parenvs.view.words import duration, plural, size, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.space import UniformSpace

_LEAST_PIXELS = 3.5  # of a pass; of a schedule with shorter ones the beginning is shown
_LEFT, _RIGHT = 1.1, 0.3  # inches beside the axes
_UPPER = 2.35  # inches of the devices and of the memory
_ALONE = 5.2  # the same where there is no schedule to draw
_MOST_SERVERS = 64  # drawn one by one
_CELL = 0.5  # inches, the largest side of a device
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
    page = Page()
    reasons = report.reasons if isinstance(report, HybridReport) else ()
    top = page.heading(title(report), verdict(report), reasons)
    if not isinstance(report, HybridReport) or not report.stages:
        return page.figure
    several, top = len(report.stages) > 1, top + 0.2
    high = _draw_devices(page, top, _UPPER if several else _ALONE, report)
    tall = min(_UPPER, 0.5 * len(report.stages))
    _draw_memory(page, top, tall, report)
    top += max(high, tall + 0.4) + 0.4
    _draw_seconds(page, top, report)
    if several:
        _draw_schedule(page, top + 1.12, HEIGHT - top - 1.62, report)
    return page.figure


def _draw_devices(page: Page, top: float, height: float, report: HybridReport) -> float:
    """Draw a cell for each device, and return the height: color by stage, shade by replica.

    Where servers differ, they stand in the plan's order, and a cell is as high as its server is
    fast.
    """
    cluster, plan = report.cluster, report.plan
    inside = cluster.devices_per_server
    servers = min(-(-report.devices_used // inside), _MOST_SERVERS)
    width, wide = (WIDTH - _LEFT - _RIGHT) * 0.52, inside + 0.6  # a server and a gap, in devices

    def cell(columns: int) -> tuple[float, float]:
        rows = -(-servers // columns)
        return min(_CELL, width / (columns * wide)), min(_CELL, height / rows)

    # As many columns as give the largest cells.
    columns = max(range(1, servers + 1), key=lambda n: min(cell(n)))
    (across, down), rows = cell(columns), -(-servers // columns)
    axes = page.axes(_LEFT, top, columns * wide * across, rows * down)
    axes.set(xlim=(0, columns * wide), ylim=(rows, 0), xticks=[], yticks=[])
    order = plan.servers or tuple(range(cluster.servers))
    speeds = cluster.speeds or (1.0,) * cluster.servers
    font = min(8.5, 30 * min(across, down))
    boxes, colors = [], []
    for number, stage in enumerate(report.stages):
        for device in range(stage.device_first, min(stage.device_end, servers * inside)):
            server, place = divmod(device, inside)
            row, column = divmod(server, columns)
            replica, rank = divmod(device - stage.device_first, stage.tp * plan.context)
            tall = (0.54 if cluster.speeds else 0.76) * speeds[order[server]] / max(speeds)
            x, words = column * wide + place + 0.5, f"{replica}·{rank}"
            boxes.append((x, -tall, row + 0.88))
            colors.append(mix(stage_color(number), "#FFFFFF", 0.35 * (replica % 2)))
            if font >= 4.5 and text_inches(words, font) < 0.95 * across:
                write_on(axes, x, row + 0.88 - tall / 2, words, font, colors[-1])
            if cluster.speeds and not place and down > 0.2:
                name = f"server {order[server]}: {speeds[order[server]]:.3g}"
                axes.text(x - 0.46, row + 0.27, name, size=min(8.0, 18 * down), color=QUIET)
    middles, heights, lows = zip(*boxes, strict=True)
    axes.bar(middles, heights, 0.92, lows, color=colors, gid="devices")
    words = (
        f"{servers} of {plural(cluster.servers, 'server')} of {plural(inside, 'device')}: color "
    )
    words += "is the stage, numbers replica·rank" + ", height the speed" * bool(cluster.speeds)
    note(axes, words, (0, 1), (0, 5))
    return rows * down


def _draw_memory(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw the bytes on a device of each stage, by part."""
    left, stages = _LEFT + 0.52 * (WIDTH - _LEFT - _RIGHT) + 1.25, report.stages
    axes = page.axes(left, top, WIDTH - _RIGHT - left - 0.1, height)
    words = [f"stage {k} · {redone_layers(x)}".rstrip(" ·") for k, x in enumerate(stages)]
    parts = [([x.memory[name] for x in stages], color) for name, color in _MEMORY_COLORS.items()]
    draw_memory(axes, words, parts, report.memory_limit_bytes)
    legend(axes, _MEMORY_COLORS, loc="upper left", bbox_to_anchor=(0, -0.21 / height), fontsize=8)


def _draw_seconds(page: Page, top: float, report: HybridReport) -> None:
    axes = page.axes(_LEFT, top, WIDTH - _LEFT - _RIGHT, 0.34)
    parts = {name: x for name, x in report.seconds.items() if x > 0}
    total, begin = sum(parts.values()), 0.0
    axes.set(xlim=(0, total), xticks=[], yticks=[])
    for name, seconds in parts.items():
        words = f"{PARTS[name]} {seconds / total:.1%}"
        axes.barh(0, seconds, 1, left=begin, color=_PART_COLORS[name], label=words)
        begin += seconds
    axes.set_ylim(-0.5, 0.5)
    legend(axes, {}, loc="upper left", bbox_to_anchor=(0, -0.1))
    words = f"a step of {duration(report.length_seconds)}, by part; {recomputation(report)}"
    note(axes, words, (0, 1), (0, 5))


def _draw_schedule(page: Page, top: float, height: float, report: HybridReport) -> None:
    """Draw the simulated passes: a row per stage, light forward, dark backward, a tone per chunk.

    Gradients of weights are gray where they are passes of their own. Of a schedule with passes too
    short to see the beginning is drawn.
    """
    table, width = report.timetable, WIDTH - _LEFT - _RIGHT
    axes = page.axes(_LEFT, top, width, height)
    if table is None:
        axes.set(xticks=[], yticks=[])
        axes.text(0.0, 0.5, "the schedule has too many passes to be simulated", color=QUIET)
        return
    kinds, stages, chunks, batches = table.start.shape
    passes = table.core / (kinds * chunks * batches)  # mean seconds, idle time included
    span = min(table.core, passes * (width * DPI / _LEAST_PIXELS))
    scale, unit = time_unit(span)
    rows = np.arange(stages) + 0.5
    axes.set(xlim=(0, span / scale), ylim=(stages, 0), xlabel=f"time ({unit})")
    axes.barh(rows, span / scale, 0.84, color=TRACK, zorder=0)
    for stage, kind, chunk in np.ndindex(stages, kinds, chunks):
        # Three tones are told apart; later chunks begin again.
        tone = 0.62 - 0.12 * (chunk % 3) if kind == 0 else 0.15 * (chunk % 3)
        color = mix(stage_color(stage), "#FFFFFF" if kind == 0 else "#000000", tone)
        if kind == WEIGHT:
            color = mix(LINK, "#FFFFFF", 0.2 * (chunk % 3))
        begin, end = (x[kind, stage, chunk] / scale for x in (table.start, table.end))
        draw_passes(axes, stage + 0.5, begin, end, color)
    named = range(0, stages, max(1, round(stages / max(height / 0.17, 1))))
    axes.set_yticks(rows[named], [f"stage {k}" for k in named])
    axes.spines.bottom.set_visible(True)
    colors = {"forward": mix("#555555", "#FFFFFF", 0.55), "backward": "#555555"}
    colors |= {"weights": LINK} if kinds > WEIGHT else {}
    legend(axes, {**colors, "idle": TRACK})
    words = f"passes {duration(table.core)} simulated"
    words += "" if span == table.core else f", of which the first {duration(span)} are drawn"
    words += "; a tone is a chunk" if chunks > 1 else ""
    note(axes, words, (1, 1), (0, 5), color=INK, ha="right")


_MAP_LEFT, _MAP_RIGHT, _BOTTOM = 1.0, 0.4, 0.75  # inches beside the axes
_TALLEST = 12.0  # times the limit: what needs more is not drawn


def draw_plans(space: UniformSpace, length: float, held: float) -> Figure:
    """The map of the plans; ``style`` has to be in force.

    Color is tp, the mark's shape the recomputation; the Pareto front is a line. ``length`` in
    seconds and ``held`` in bytes mark a plan, which need not be uniform.
    """
    from matplotlib.ticker import LogLocator

    plans, problem, fits = space.plans, space.problem, space.fits
    page, fit = Page(), int(fits.sum())
    verdict = [plural(len(space), "uniform plan"), f"{fit:,} within {size(problem.memory_limit)}"]
    best = space.best()
    if best is not None:
        verdict.append(f"best {duration(float(space.length[best]))}: {space.describe(best)}")
    top = page.heading(title(problem), verdict, () if fit else ["no plan fits"])
    height = HEIGHT - top - 0.1 - _BOTTOM
    axes = page.axes(_MAP_LEFT, top + 0.1, WIDTH - _MAP_LEFT - _MAP_RIGHT, height)
    scale, unit = time_unit(float(space.seconds["length"].min()))
    seconds, gigabytes = space.seconds["length"] / scale, space.memory["total"] / 1e9
    axes.set(xscale="log", xlabel=f"seconds of a step ({unit})")
    axes.set(yscale="log", ylabel="GB on a device of the fullest stage")
    marks = {"none": "o", "selective": "s", "full": "^"}
    ranks, alpha = np.unique(plans.tp).tolist(), np.where(fits, 0.75, 0.18)
    for (index, tp), (mode, mark) in product(enumerate(ranks), marks.items()):
        chosen = (plans.tp == tp) & (plans.recompute == mode)
        axes.scatter(
            seconds[chosen], gigabytes[chosen], s=16, marker=mark, linewidths=0,
            color=stage_color(index), alpha=alpha[chosen], gid=f"tp-{tp}-{mode}",
        )  # fmt: skip
    for index, tp in enumerate(ranks):
        axes.scatter([], [], color=stage_color(index), label=f"tp {tp}")
    for mode, mark in marks.items():
        if (plans.recompute == mode).any():
            axes.scatter([], [], color=QUIET, marker=mark, label=f"recompute {mode}")
    front = space.pareto()
    line: Any = {"color": QUIET, "linewidth": 0.9, "drawstyle": "steps-post", "zorder": 1}
    axes.plot(seconds[front], gigabytes[front], label="Pareto front", **line)
    limit = problem.memory_limit / 1e9
    axes.axhline(limit, color=RED, linewidth=1.2, linestyle="--")
    look = {"xycoords": ("axes fraction", "data"), "color": RED, "ha": "right"}
    note(axes, f"limit {size(problem.memory_limit)}", (1, limit), (-4, 4), **look)
    ring: Any = {"s": 130, "facecolors": "none", "edgecolors": INK, "linewidths": 1.6}
    axes.scatter([length / scale], [held / 1e9], zorder=5, gid="plan", label="the plan", **ring)
    axes.set_ylim(top=min(float(gigabytes.max()) * 1.2, _TALLEST * limit))
    axes.grid(visible=True)
    axes.spines[["bottom", "left"]].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7), numticks=20))
        axis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
    return page.figure


_PASSES = ("forward", "backward", "weight gradients")
_LEAST = 1e-12
"""Seconds below which a difference is rounding."""


def trace(report: HybridReport) -> list[Track]:
    """The simulated step of each stage.

    Raises:
        InfeasibleError: the plan is malformed, or has too many passes to be simulated.
    """
    table, step, held = report.timetable, report.step, report.held
    if table is None or step is None or held is None:
        raise InfeasibleError("no trace: the plan is malformed or has too many passes")
    # The first layer is gathered before the first pass (ZeRO 3).
    begin = float(step.start.max())
    finish = begin + table.length(step.exposed)
    updated = finish + float(step.tied + step.optimizer)
    arrays: Any = report.arrays
    chain = formulas.delayed(report.model, report.machine, arrays)
    tracks = []
    for number, stage in enumerate(report.stages):
        end = begin + float(table.stage_end[number])
        extra = [
            (0.0, Part("gathers", float(step.start[number]))),
            (end, Part("gradients", float(step.exposed[number]))),
            (finish, Part("tied weights", float(step.tied))),
            (finish + float(step.tied), Part("optimizer", float(step.update[number]))),
            (updated, Part("host", float(step.host))),
        ]
        passes = [*_passes(report, chain, number, begin), *(x for x in extra if x[1].seconds > 0)]
        starts, ends = table.start[0, number], table.end[-1, number]
        total = stage.memory["total"]
        base = total - stage.memory["activations"]
        name = f"stage {number}: tp {stage.tp} x dp {stage.dp}"
        ranks = range(stage.device_first, stage.device_end)
        tracks.append(Track(name, ranks, passes, in_use(begin + starts, begin + ends, base, total)))
    return tracks


def _passes(
    report: HybridReport, chain: Chain, stage: int, begin: float
) -> Iterator[tuple[float, Part]]:
    """Yield the passes of a stage; those of the first and the last micro-batch by layer."""
    table: Any = report.timetable
    kinds, _, chunks, batches = table.start.shape
    for kind, chunk in product(range(kinds), range(chunks)):
        starts, ends = table.start[kind, stage, chunk], table.end[kind, stage, chunk]
        layers = _layers(report, chain, stage, chunk, kind)
        lasts = float(ends[0] - starts[0])
        rest = lasts - sum(layer.seconds for layer in layers)
        sums: dict[str, float] = defaultdict(float)
        for layer in layers:
            for part in layer.parts:
                sums[part.name] += part.seconds
        waits = [Part("sends, gathers, sums", rest)] if rest > _LEAST else []
        works = [*(Part(*item) for item in sums.items()), *waits]
        name = _PASSES[kind] + f" of chunk {chunk}" * (chunks > 1)
        for number in range(batches):
            parts = [*layers, *waits] if number in (0, batches - 1) else works
            seconds = float(ends[number] - starts[number])
            yield begin + starts[number], Part(f"{name}, micro-batch {number}", seconds, parts)


def _layers(report: HybridReport, chain: Chain, stage: int, chunk: int, kind: int) -> list[Part]:
    """The layers of a pass, in its order, each by kind of work."""
    plan, stages = report.plan, report.plan.stages[stage]
    first, end = stages.layers[chunk]
    skipped = sum(b - a for a, b in stages.layers[:chunk])
    listed = [
        (f"layer {k}", chain.kinds[report.model.kind_of[k]], stages.modes[skipped + k - first])
        for k in range(first, end)
    ]
    ways = chains(plan.schedule, len(plan.stages), plan.chunks)
    if chain.embedding is not None and (stage, chunk) in [way[0] for way in ways]:
        listed.insert(0, ("embedding", chain.embedding, "none"))
    if chain.head is not None and (stage, chunk) in [way[-1] for way in ways]:
        listed.append(("head", chain.head, "none"))
    layers = []
    for name, table, mode in listed if kind == 0 else reversed(listed):
        figures = table[:, stage]
        seconds = LayerSeconds(*figures[: len(LayerSeconds._fields)])
        counts = (), (), [mode == "full"], [mode == "selective"]
        again = again_seconds(report.machine.rates, 1, [figures], counts)
        weights = figures[-1] if plan.schedule in SPLIT else 0.0
        of_pass = (
            {"forward": seconds.forward, "exchange": seconds.forward_exchange},
            {
                "recomputed": again,
                "backward": seconds.backward - weights,
                "exchange": seconds.backward_exchange,
            },
            {"backward": weights},
        )[kind]
        parts = [Part(PARTS[part], float(x)) for part, x in of_pass.items() if x > 0]
        layers.append(Part(name, sum(part.seconds for part in parts), parts))
    return layers
