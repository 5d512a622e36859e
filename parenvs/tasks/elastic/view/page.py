"""What a policy did on the courses of a problem: nodes over time, and what it earned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.elastic.run import Run
from parenvs.view import web
from parenvs.view.web import Cell, Picture, PlanPage, Row, Table, shape, steps

if TYPE_CHECKING:
    from parenvs.tasks.elastic.run import PolicyReport

_HEIGHT = 80
"""Height of the picture, pixels."""


def page(name: str, report: PolicyReport) -> PlanPage:
    """Return the picture of a problem's first course, and the table of all.

    Args:
        name: name of the problem.
        report: the runs.
    """
    caption = f"Courses of {name}: what the policy earned, and what its changes took."
    rows = [_row(course, run) for course, run in enumerate(report.runs)]
    return PlanPage(figures=[_nodes(name, report.runs[0])], tables=[Table(caption, rows)])


def _nodes(name: str, run: Run) -> web.Figure:
    """Draw nodes that are there, and in front of them those that train."""
    nodes = run.course.nodes[: len(run.plans)].astype(int)
    used = run.problem.library.used[run.plans]
    total = max(run.problem.nodes, 1)
    caption = (
        f"The first course, {len(nodes)} intervals: nodes that are there, up to {nodes.max()} of "
        f"{total}, and in front of them those that train, {used.mean():.1f} on average."
    )
    areas = [
        shape("path", style, d=_area(values, total))
        for values, style in ((nodes, "there"), (used, "used"))
    ]
    picture = Picture(f"Nodes over time of {name}, and those in use", areas, _HEIGHT)
    return web.Figure([picture], caption)


def _area(values: np.ndarray, total: int) -> str:
    """Return the path of the area below steps; equal neighbours are one step."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    top = steps(starts * web.WIDTH / len(values), _HEIGHT * (1 - values[starts] / total), web.WIDTH)
    return f"{top}V{_HEIGHT}H0Z"


def _row(course: int, run: Run) -> Row:
    """Return the row of a course."""
    content = run.to_json()
    minutes = content["change_seconds"] / 60.0
    return {
        "course": course,
        "samples": Cell(f"{run.total:,.0f}", run.total),
        "of the ideal": Cell(f"{100 * run.share:.2f} %", run.share),
        "changes": content["changes"],
        "stops": content["stops"],
        "state lost": content["state_lost"],
        "minutes of changes": Cell(f"{minutes:.1f}", minutes),
    }
