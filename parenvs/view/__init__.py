"""Plans of every task as text and as pictures: one door, whatever the task.

Each function takes what the judge says of a plan, or the problem itself where there is no plan yet.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from parenvs.core.registry import task_of
from parenvs.core.task import Task
from parenvs.errors import ParenvsError
from parenvs.files import StrPath, json_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from parenvs.core.plan import Report

__all__ = ["figure", "rgb_array", "save", "save_trace", "show", "svg", "text"]


def text(viewable: Any, color: bool = False, undecided: Collection[str] | None = None) -> str:
    """A plan or problem in at most 110 columns, without a newline at the end.

    Args:
        viewable: what the judge says of a plan, or a problem without one.
        color: whether to color stages and dimensions with ANSI escapes.
        undecided: of partitions, paths that an episode has not settled.

    Raises:
        ParenvsError: ``viewable`` is something else.
        TypeError: ``undecided`` is given with another task than one that decides variables.
    """
    return _task(viewable).views().text(viewable, color, **_marks(undecided))


def figure(viewable: Any, undecided: Collection[str] | None = None) -> Figure:
    """A plan or problem as a matplotlib figure of 1280 x 800 pixels; arguments as of ``text``."""
    from parenvs.view import page

    with page.style():
        task = _task(viewable)
        draw = task.views().figure
        if draw is None:
            raise ParenvsError(f"task {task.name} has no figure")
        return draw(viewable, **_marks(undecided))


def rgb_array(viewable: Any, undecided: Collection[str] | None = None) -> np.ndarray:
    """The text as a picture of shape (800, 1120, 3), uint8; arguments as of ``text``."""
    from parenvs.view.frame import picture

    return picture(text(viewable, True, undecided))


def save(path: StrPath, viewable: Any) -> None:
    """Write the figure; equal plans give equal bytes, and a failure leaves the old file.

    Args:
        path: ends in ``.png``, ``.svg``, ``.pdf`` or ``.html``: a page with text and plan file.
        viewable: what the judge says of a plan, or a problem without one.

    Raises:
        ParenvsError: another ending.
    """
    from parenvs.view import page

    words = {}
    if page.ending(path) == ".html":
        words["Text"] = text(viewable)
        plan = getattr(viewable, "plan", None)
        words |= {"Plan file": json_text(plan.to_json())} if plan else {}
    page.write(path, lambda: figure(viewable), words)


def save_trace(path: StrPath, report: Report, every_rank: bool = False) -> None:
    """Write the simulated step of a plan in Chrome's trace format, as Perfetto opens it.

    Args:
        path: ends in ``.json`` or ``.json.gz``.
        report: what the judge says of a plan.
        every_rank: whether each rank is a process, not each stage.

    Raises:
        ParenvsError: another ending, a malformed plan, or one of a task that simulates no steps.
    """
    from parenvs.view import trace

    task = _task(report)
    tracks = task.views().trace
    if tracks is None:
        raise ParenvsError(f"task {task.name} simulates no steps; it has no trace")
    trace.write(path, tracks(report), every_rank)


def svg(viewable: Any) -> str:
    """The figure as the text of an SVG picture."""
    from parenvs.view import page

    return page.content(".svg", lambda: figure(viewable)).decode()


def show(viewable: Any, path: StrPath | None = None) -> None:
    """Print a plan or problem as text, with the plan's price, or write its picture.

    Args:
        viewable: what the judge says of a plan, the answer of a planner, or a problem.
        path: of the picture, see ``save`` (default: the text is printed, in colors on a
            terminal).

    Raises:
        ParenvsError: ``viewable`` is something else, or the path has another ending.

    >>> import parenvs
    >>> parenvs.show(parenvs.problem("hybrid-test/mixture-000"))  # doctest: +ELLIPSIS
    hybrid-test/mixture-000...
    """
    shown = viewable.report if hasattr(viewable, "proven") else viewable
    if path is not None:
        save(path, shown)
    else:
        price = getattr(shown, "price", None)
        lines = [text(shown, sys.stdout.isatty()), *(price.lines() if price else ())]
        sys.stdout.write("\n".join(lines) + "\n")


def _task(viewable: Any) -> Task:
    return task_of(viewable, "expected a judged plan or a problem")


def _marks(undecided: Collection[str] | None) -> dict[str, Any]:
    return {} if undecided is None else {"undecided": undecided}
