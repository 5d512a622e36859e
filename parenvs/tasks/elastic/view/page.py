"""What a policy did on the courses of a problem: nodes over time, and what it earned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.elastic.run import Run
from parenvs.view.web import WIDTH, Cell, Figure, Picture, PlanPage, Table, shape

if TYPE_CHECKING:
    from parenvs.tasks.elastic.entries import PolicyReport

_HEIGHT = 80
"""Height of the picture, pixels."""
_COLUMNS = (
    ("course", "number"),
    ("samples", "number", "descending"),
    ("of the ideal", "number", "descending"),
    ("changes", "number"),
    ("stops", "number"),
    ("state lost", "number"),
    ("minutes of changes", "number"),
)


def page(name: str, report: PolicyReport) -> PlanPage:
    """Return the picture of a problem's first course, and the table of all.

    Args:
        name: name of the problem.
        report: the runs.
    """
    caption = f"Courses of {name}: what the policy earned, and what its changes took."
    rows = [_row(course, run) for course, run in enumerate(report.runs)]
    return PlanPage(figures=[_nodes(name, report.runs[0])], tables=[Table(caption, _COLUMNS, rows)])


def _nodes(name: str, run: Run) -> Figure:
    """Draw nodes that are there, and in front of them those that train."""
    there = run.course.nodes[: len(run.plans)].astype(int)
    used = run.problem.library.used[run.plans]
    total = max(run.problem.nodes, 1)
    caption = (
        f"The first course, {len(there)} intervals: nodes that are there, up to {there.max()} of "
        f"{total}, and in front of them those that train, {used.mean():.1f} on average."
    )
    areas = [
        shape("path", style, d=_area(values, total))
        for values, style in ((there, "there"), (used, "used"))
    ]
    picture = Picture(f"Nodes over time of {name}, and those in use", areas, _HEIGHT)
    return Figure([picture], caption)


def _area(values: np.ndarray, total: int) -> str:
    """Return the path of the area below steps; equal neighbours are one step."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    steps = (
        f"H{start * WIDTH / len(values):.1f}V{_HEIGHT * (1 - values[start] / total):.1f}"
        for start in starts
    )
    return f"M0 {_HEIGHT}{''.join(steps)}H{WIDTH}V{_HEIGHT}Z"


def _row(course: int, run: Run) -> list[Cell]:
    """Return the row of a course."""
    content = run.to_json()
    minutes = content["change_seconds"] / 60.0
    return [
        Cell(f"{course}", course),
        Cell(f"{run.total:,.0f}", run.total),
        Cell(f"{100 * run.share:.2f} %", run.share),
        *(Cell(f"{content[key]}", content[key]) for key in ("changes", "stops", "state_lost")),
        Cell(f"{minutes:.1f}", minutes),
    ]
