"""Pictures of IOPDDL plans: what is used at each time, under the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.tasks.sharding.problem import Sharding, ShardingReport
from parenvs.tasks.sharding.view.text import title, verdict
from parenvs.view.page import HEIGHT, QUIET, WIDTH, Page, blank_figure, reasons_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _RIGHT, _FOOT = 1.1, 0.3, 0.75  # inches beside and below the axes
_COLOUR, _LIMIT = "#5FB3DE", "#A0569F"


def draw(report: ShardingReport | Sharding) -> Figure:
    """The picture of a plan; ``style`` has to be in force.

    Args:
        report: what the judge says of a plan, or the problem, which is drawn with the least and the
            most that all nodes can use.
    """
    page = Page(blank_figure())
    problem = report if isinstance(report, Sharding) else report.problem
    reasons = [] if isinstance(report, Sharding) else reasons_shown(report.reasons)
    legal = isinstance(report, Sharding) or report.legal
    top = page.heading(title(problem), verdict(report), reasons, legal)
    axes = page.axes(_LEFT, top + 0.3, WIDTH - _LEFT - _RIGHT, HEIGHT - top - 0.3 - _FOOT)
    judged = not isinstance(report, Sharding) and report.cost is not None
    if judged and not isinstance(report, Sharding):
        chosen = problem.offset[:-1] + np.array(report.plan.strategies, dtype=np.int64)
        axes.fill_between(*_profile(problem, problem.usages[chosen]), step="post", color=_COLOUR)
    else:
        for bound, alpha in ((np.maximum, 0.3), (np.minimum, 1.0)):
            used = bound.reduceat(problem.usages, problem.offset[:-1])
            axes.fill_between(
                *_profile(problem, used), step="post", color=_COLOUR, alpha=alpha, lw=0
            )
    if problem.limit is not None:
        axes.axhline(problem.limit, color=_LIMIT, lw=1.2)
    axes.set_xlabel("time", color=QUIET, size=9)
    axes.set_ylabel("memory in use", color=QUIET, size=9)
    axes.set_ylim(bottom=0)
    return page.figure


def _profile(problem: Sharding, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times at which what is used changes, and what is used from there on."""
    times, nodes, signs = problem.events
    return times, np.cumsum(used[nodes].astype(float) * signs)
