"""What a policy did on the courses of a problem: nodes and plans over time, and what it earned."""

from __future__ import annotations

import numpy as np

from parenvs.leaderboard.site.html import Markup, markup, scrolling, tag
from parenvs.leaderboard.site.sortable_table import Column, Field, Row, number, sortable_table
from parenvs.tasks.elastic.entries import PolicyReport
from parenvs.tasks.elastic.run import Run
from parenvs.tasks.pipeline.view.page import WIDTH

_TALL = 80
"""Height of the picture, pixels."""
_COURSES = (
    Column("course", "number"),
    Column("samples", "number", "descending"),
    Column("of the ideal", "number", "descending"),
    Column("changes", "number"),
    Column("stops", "number"),
    Column("state lost", "number"),
    Column("minutes of changes", "number"),
)


def policy_figure(name: str, report: PolicyReport) -> Markup:
    """Draw the first course of a problem, and make the table of all.

    Args:
        name: name of the problem.
        report: the runs.
    """
    return markup(_picture(name, report.runs[0]), _table(name, report))


def _picture(name: str, run: Run) -> Markup:
    """Draw nodes that are there, and in them those that train."""
    there = run.course.nodes[: len(run.plans)].astype(int)
    used = run.problem.library.used[run.plans]
    most = max(run.problem.nodes, 1)
    areas = [
        tag("path", d=_area(values, most), class_=style)
        for values, style in ((there, "there"), (used, "used"))
    ]
    words = f"Nodes over time of {name}, and those in use"
    picture = tag(
        "svg", *areas, class_="wide", viewBox=f"0 0 {WIDTH} {_TALL}", role="img", aria_label=words
    )
    caption = (
        f"The first course, {len(there)} intervals: nodes that are there, up to {there.max()} of "
        f"{most}, and in front of them those that train, {used.mean():.1f} on average."
    )
    return tag("figure", scrolling(words, picture), tag("figcaption", caption))


def _area(values: np.ndarray, most: int) -> str:
    """Return the path of the area below steps; equal neighbours are one step."""
    wide = WIDTH / len(values)
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    parts = ["M0", f"{_TALL}"]
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        height = round(_TALL * (1 - values[start] / most), 1)
        parts.append(f"L{start * wide:.1f} {height:g}L{end * wide:.1f} {height:g}")
    return " ".join(parts[:2]) + "".join(parts[2:]) + f"L{WIDTH} {_TALL}Z"


def _table(name: str, report: PolicyReport) -> Markup:
    rows = []
    for course, run in enumerate(report.runs):
        content = run.to_json()
        minutes = content["change_seconds"] / 60.0
        rows.append(
            Row(
                (
                    number(course, f"{course}"),
                    number(run.total, f"{run.total:,.0f}"),
                    number(run.share, f"{100 * run.share:.2f} %"),
                    *(
                        Field(str(content[key]), float(content[key]))
                        for key in ("changes", "stops", "state_lost")
                    ),
                    number(minutes, f"{minutes:.1f}"),
                )
            )
        )
    words = f"Courses of {name}: what the policy earned, and what its changes took."
    return sortable_table(words, _COURSES, rows)
