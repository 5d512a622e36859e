"""Learning curves: recorded while an agent trains, and drawn side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.agents.names import TRAINED
from parenvs.view.page import INK, LINK, QUIET, TRACK, WIDTH, blank_figure, stage_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parenvs.bench.problems import BenchProblem

POINTS = 50
"""Greatest number of points of a curve."""
FIRST = 10
"""Environment steps of the first point at the earliest."""
LEFT, RIGHT, TOP, BOTTOM, ROW, GAP = 2.3, 0.3, 1.3, 0.35, 1.35, 0.25
"""Margins of the picture, height of a row and gap between panels, inches."""


def thinned(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return points of a curve at equal ratios of steps, so that short and long runs show as much.

    Args:
        curve: (steps, mean return of the episodes since the last point), steps ascending.

    Returns:
        at most ``POINTS`` of them, each the mean of those that it stands for, with five digits.
    """
    points = [(steps, value) for steps, value in curve if np.isfinite(value)]
    if not points:
        return []
    marks = np.geomspace(FIRST, max(points[-1][0], FIRST), POINTS)
    part = np.searchsorted(marks, [steps for steps, _ in points])
    groups = [[x for x, own in zip(points, part, strict=True) if own == k] for k in np.unique(part)]
    return [
        (group[-1][0], float(f"{np.mean([value for _, value in group]):.5g}")) for group in groups
    ]


def spread(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Median and range of several runs.

    A run that has ended counts with its last value. The curve begins where half of the runs have a
    value, and ends where half of them have ended.

    Args:
        curves: for each run (n, 2) steps, ascending, and values.

    Returns:
        steps, and at each of them the median, the least and the greatest value, (m,) each.
    """
    steps = np.unique(np.concatenate([c[:, 0] for c in curves]))
    values = np.array([np.interp(steps, c[:, 0], c[:, 1], left=np.nan) for c in curves])
    enough = (~np.isnan(values)).sum(axis=0) * 2 >= len(curves)
    shown = enough & (steps <= median(c[-1, 0] for c in curves))
    if not shown.any():
        shown[np.flatnonzero(enough)[0]] = True
    steps, values = steps[shown], values[:, shown]
    return steps, np.nanmedian(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)


def draw(
    problems: Sequence[BenchProblem],
    skipped: Mapping[str, str],
    records: Sequence[Mapping[str, Any]],
) -> Figure:
    """Draw one panel for each problem: a row for each setting, a column for each instance.

    Args:
        problems: the problems that agents were trained on.
        skipped: names of the problems without a legal plan, and why there is none.
        records: the records of the runs, see ``agents.perform``.
    """
    rows = list(dict.fromkeys((p.env_id, p.setting) for p in problems))
    instances = [[p.instance for p in problems if (p.env_id, p.setting) == row] for row in rows]
    columns = list(
        dict.fromkeys(x for row in sorted(instances, key=len, reverse=True) for x in row)
    )
    height = TOP + ROW * len(rows) + BOTTOM
    picture = blank_figure(height)
    _heading(picture, height, records)
    known = {p.name: p for p in problems}
    steps = [p[0] for r in records for p in r["points"]] or [FIRST, 10 * FIRST]
    width = (WIDTH - LEFT - RIGHT + GAP) / max(len(columns), 1)
    for i, (env_id, setting) in enumerate(rows):
        y = TOP + i * ROW
        first = i == 0 or rows[i - 1][0] != env_id
        for words, down, weight in (
            (env_id.rpartition("-")[0] if first else "", 0.0, "bold"),
            (setting, 0.2, "normal"),
        ):
            picture.text(
                0.3 / WIDTH, 1 - (y + down) / height, words, va="top", size=9.5, weight=weight,
                color=INK,
            )  # fmt: skip
        for j, instance in enumerate(columns):
            x = LEFT + j * width
            area = (x, height - y - ROW + GAP, width - GAP, ROW - GAP)
            axes = picture.add_axes(
                (area[0] / WIDTH, area[1] / height, area[2] / WIDTH, area[3] / height)
            )
            _frame(axes, (min(steps), max(steps)), i == len(rows) - 1, j == 0)
            if i == 0:
                axes.set_title(Path(instance).name, size=10, weight="bold", color=INK)
            name = f"{env_id} {setting} {instance}"
            axes.set_gid(name)
            if name in known:
                _panel(axes, known[name], [r for r in records if r["problem"] == name])
            else:
                note = "no legal plan" if name in skipped else ""
                axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", color=QUIET)
    picture.text(
        (LEFT + WIDTH - RIGHT) / 2 / WIDTH, 0.12 / height, "environment steps", ha="center",
        size=9.5, color=QUIET,
    )  # fmt: skip
    return picture


def _heading(picture: Figure, height: float, records: Sequence[Mapping[str, Any]]) -> None:
    """Write the title, what is drawn, and the agents' colours."""
    text = picture.text
    left = 0.3 / WIDTH
    text(left, 1 - 0.22 / height, "Learning curves", va="top", size=14, weight="bold", color=INK)
    seeds = len({r["seed"] for r in records})
    words = (
        "mean return of the episodes (0 if negative) as a share of the optimum's; median and "
        f"range of {seeds} seed{'' if seeds == 1 else 's'}; dot: the median run samples the optimum"
    )
    text(left, 1 - 0.56 / height, words, va="top", size=9.5, color=QUIET)
    x = WIDTH - RIGHT
    for agent in reversed(_agents(records)):
        text(
            x / WIDTH, 1 - 0.26 / height, f"● {agent}", va="top", ha="right", size=11,
            weight="bold", color=_colour(agent),
        )  # fmt: skip
        x -= 0.1 * (len(agent) + 2) + 0.25


def _frame(axes: Axes, steps: tuple[float, float], bottom: bool, left: bool) -> None:
    """Set up axes from the first step to the last, and from 0 to the optimum."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_facecolor(TRACK)
    axes.set_xscale("log")
    low, high = min(steps[0], FIRST) * 0.7, steps[1] * 1.25
    axes.set_xlim(low, high)
    axes.set_ylim(-0.04, 1.1)
    axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"] if left else [""] * 3)
    decades = [10**k for k in range(10) if low <= 10**k <= high]
    names = {1: "1", 10: "10", 100: "100", 1000: "1k", 10**4: "10k", 10**5: "100k", 10**6: "1M"}
    axes.set_xticks(decades, [names.get(d, f"{d:.0e}") if bottom else "" for d in decades])
    axes.minorticks_off()
    axes.tick_params(length=3, width=0.7, color=QUIET, labelcolor=QUIET, labelsize=8.5)
    axes.axhline(1.0, color=LINK, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)


def _panel(axes: Axes, problem: BenchProblem, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw the agents' curves of one problem; negative returns (out of memory) are drawn as 0."""
    size = 4.0 + 2.0 * len(_agents(records))
    for agent in _agents(records):
        size -= 2.0
        runs = [r for r in records if r["agent"] == agent and r["points"]]
        if not runs:
            continue
        curves = [np.array(r["points"], dtype=float)[:, :2] for r in runs]
        steps, middle, low, high = spread(
            [np.maximum(c / [1.0, problem.optimum], 0.0) for c in curves]
        )
        colour = _colour(agent)
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0, zorder=2)
        axes.plot(steps, middle, color=colour, linewidth=1.4, zorder=3, label=agent)
        target_steps = median(
            np.inf if r["target_steps"] is None else r["target_steps"] for r in runs
        )
        if np.isfinite(target_steps):
            y = np.interp(target_steps, steps, middle)
            axes.plot([target_steps], [y], "o", color=colour, markersize=size, zorder=4)


def _agents(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The agents of the records, those of ``TRAINED`` first."""
    names = {r["agent"] for r in records}
    return [*(a for a in TRAINED if a in names), *sorted(names.difference(TRAINED))]


def _colour(agent: str) -> str:
    return stage_colour(TRAINED.index(agent) if agent in TRAINED else len(TRAINED))
