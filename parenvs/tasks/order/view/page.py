"""The page of an order: the seconds of all passes of each micro-batch, in the order of the plan."""

from __future__ import annotations

import numpy as np

from parenvs.tasks.order.problem import OrderReport
from parenvs.view.web import WIDTH, Figure, Picture, PlanPage, shape
from parenvs.view.words import duration

_HEIGHT = 90
"""Height of the longest bar, pixels."""


def page(name: str, report: OrderReport) -> PlanPage:
    """Return the picture of an order.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if report.length is None:
        return PlanPage("The order is none: there is nothing to draw.")
    work = report.problem.work[np.array(report.plan.order)]
    longest, width = float(work.max()), WIDTH / len(work)
    bars = [
        shape(
            "rect", "s0", x=(position + 0.1) * width, width=0.8 * width,
            y=_HEIGHT * (1 - seconds / longest), height=_HEIGHT * seconds / longest,
        )
        for position, seconds in enumerate(work.tolist())
    ]  # fmt: skip
    words = f"Order of {name}: seconds of each of {len(work)} micro-batches"
    order = " ".join(map(str, report.plan.order))
    busy = f"{100 * report.busy.min():.1f} to {100 * report.busy.max():.1f} %"
    caption = (
        f"Micro-batches from the first to the last: {order}. Bars are the seconds of all their "
        f"passes, the longest {duration(longest)}; stages compute {busy} of the step."
    )
    return PlanPage(figures=[Figure([Picture(words, bars, _HEIGHT)], caption)])
