"""Orders of micro-batches in plain text: verdict, the order with its work, table of stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.order.problem import OrderReport
from parenvs.view.words import SEPARATOR, clip, duration, plural, reason_lines

if TYPE_CHECKING:
    from parenvs.tasks.order.problem import Order

WIDTH = 110
"""Columns of the text."""
_BARS = "▁▂▃▄▅▆▇█"
_MOST_LETTERS = 40  # of a list in the line of an answer


def title(problem: Order) -> str:
    """The problem in one line."""
    sizes = f"{plural(problem.micro_batches, 'micro-batch', 'es')} on {problem.stages} stages"
    step = problem.step
    if step is None:
        return printable(f"{problem.instance}: {sizes}")
    model = f"{step.shape.name}, {step.shape.sequence:,} tokens each"
    return printable(f"{problem.instance}: {sizes}, {model}")


def verdict(report: OrderReport) -> list[str]:
    """The parts of the verdict."""
    if report.length is None:
        return ["MALFORMED"]
    parts = [
        "legal" if report.legal else "ILLEGAL",
        f"step {duration(report.length)}",
        f"{report.over_bound:.2%} over the machine bound",
        f"value {report.value:.4f}",
    ]
    return parts


def answer(report: OrderReport) -> str:
    """The step, and how far it may be from the best, in one line."""
    if report.length is None:
        return "malformed"
    order = clip(" ".join(map(str, report.plan.order)), _MOST_LETTERS)
    return SEPARATOR.join(
        [
            f"{duration(report.length)} a step",
            f"order {order}",
            f"{report.over_bound:.2%} over the machine bound",
        ]
    )


def bars(work: np.ndarray) -> str:
    """A letter for the work of each micro-batch, from the lightest to the heaviest."""
    low, high = float(work.min()), float(work.max())
    level = (work - low) / (high - low) if high > low else np.zeros_like(work)
    return "".join(_BARS[min(int(x * len(_BARS)), len(_BARS) - 1)] for x in level)


def text(report: OrderReport | Order, colour: bool = False) -> str:
    """A judged order, or a problem without one, as text of at most 110 columns.

    Args:
        report: what the judge says of a plan, or the problem.
        colour: is ignored; the text has no colours.

    Returns:
        Lines without a newline at the end.
    """
    judged = report if isinstance(report, OrderReport) else None
    problem = judged.problem if judged else report
    assert not isinstance(problem, OrderReport)
    lines = [title(problem)]
    work = problem.work
    if judged is None:
        lines.append(f"no order yet{SEPARATOR}machine bound {duration(problem.bound_seconds)}")
        order: np.ndarray | None = np.arange(problem.micro_batches)
    else:
        lines.append(SEPARATOR.join(verdict(judged)))
        lines += reason_lines(judged.reasons, WIDTH)
        order = None if judged.length is None else np.array(judged.plan.order)
    if order is not None:
        shown = "order" if judged else "given"
        lines.append(clip(f"{shown}  {' '.join(map(str, order))}", WIDTH))
        lines.append(clip(f"work   {bars(work[order])}", WIDTH))
    lines.append(
        f"work of a micro-batch {duration(float(work.min()))} to {duration(float(work.max()))}"
    )
    passes = problem.forward + problem.backward
    busy = None if judged is None or judged.length is None else judged.busy
    for stage, row in enumerate(passes):
        share = "" if busy is None else f", computes {busy[stage]:.1%} of the step"
        lines.append(f"  stage {stage:2d}: {duration(float(row.sum()))} of work{share}")
    return "\n".join(clip(line, WIDTH) for line in lines)
