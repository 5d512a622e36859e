"""All uniform plans of a problem as a picture: seconds of a step against bytes on a device."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.hybrid.view.text import title
from parenvs.view.page import (
    HEIGHT,
    INK,
    QUIET,
    RED,
    WIDTH,
    Page,
    blank_figure,
    stage_colour,
)
from parenvs.view.words import duration, plural, size, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.tasks.hybrid.space import UniformSpace

_LEFT, _RIGHT, _BOTTOM = 1.0, 0.4, 0.75  # inches beside the axes
_NAMED = 6  # plans of the front that are named
_LETTERS = 56  # of a line of such a name
_ROOM = 0.62  # of the least seconds, where the picture begins
_TALLEST = 12.0  # times the limit: what needs more is not drawn


def draw(space: UniformSpace, length: float | None = None, held: float | None = None) -> Figure:
    """The map of the plans; ``style`` has to be in force.

    Colour is tp, the mark's shape the recomputation; the front of plans that no other beats in both
    is a line.

    Args:
        space: the plans.
        length: seconds of a step of a plan to be marked, which need not be uniform.
        held: bytes of its fullest stage.
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
    axes = page.axes(_LEFT, top + 0.1, WIDTH - _LEFT - _RIGHT, HEIGHT - top - 0.1 - _BOTTOM)
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
    _legend(axes, found, marks, is_marked=length is not None and held is not None)
    return page.figure


def _lines(name: str) -> str:
    """The name of a plan in lines that end behind commas."""
    whole = name.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return textwrap.fill(whole, _LETTERS)


def _legend(
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
