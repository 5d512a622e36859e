"""Plans of every task as text and as pictures: one door, whatever the task.

Each function takes what the judge says of a plan (``Report``, ``PartitionReport``), or the problem
itself (``Pipeline``, ``Partitioning``) where there is no plan yet. Importing this package loads
next to nothing: the modules of a task are loaded by its first text, matplotlib by the first
picture.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from parenvs.view.page import ending, pixels, style, write

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from matplotlib.figure import Figure

    from parenvs.tasks.elastic.run import Run
    from parenvs.tasks.hybrid.problem import Hybrid
    from parenvs.tasks.hybrid.report import HybridReport
    from parenvs.tasks.order.problem import Order, OrderReport
    from parenvs.tasks.partition.problem import Partitioning, PartitionReport
    from parenvs.tasks.pipeline.problem import Pipeline, Report
    from parenvs.tasks.sharding.problem import Sharding, ShardingReport

    Viewable: TypeAlias = (
        Report
        | Pipeline
        | PartitionReport
        | Partitioning
        | HybridReport
        | Hybrid
        | OrderReport
        | Order
        | ShardingReport
        | Sharding
        | Run
    )

_ROOMS = {
    "parenvs.tasks.elastic.run.Run": "elastic",
    "parenvs.tasks.hybrid.problem.Hybrid": "hybrid",
    "parenvs.tasks.hybrid.report.HybridReport": "hybrid",
    "parenvs.tasks.sharding.problem.Sharding": "sharding",
    "parenvs.tasks.sharding.problem.ShardingReport": "sharding",
    "parenvs.tasks.order.problem.Order": "order",
    "parenvs.tasks.order.problem.OrderReport": "order",
}
"""Class -> folder; names, so that no task is loaded that is not shown."""

__all__ = ["ending", "figure", "rgb_array", "save", "text"]


def text(viewable: Viewable, colour: bool = False, undecided: Collection[str] | None = None) -> str:
    """A plan or problem in at most 110 columns, without a newline at the end.

    Args:
        viewable: what the judge says of a plan, or a problem without one.
        colour: whether to colour stages and dimensions with ANSI escapes.
        undecided: of partitions, paths that an episode has not settled.

    Raises:
        TypeError: ``viewable`` is something else.
        ValueError: ``undecided`` is given with a pipeline.
    """
    room = _room(viewable, undecided)
    if room:
        found: str = import_module(f"parenvs.tasks.{room}.view.text").text(viewable, colour)
        return found
    of_pipeline, problem, report = _taken_apart(viewable, undecided)
    if of_pipeline:
        from parenvs.tasks.pipeline.view import text as pipeline_text

        return pipeline_text.text(problem, report, colour)
    from parenvs.tasks.partition.view import text as partition_text

    return partition_text.text(problem, report, colour, undecided)


def figure(viewable: Viewable, undecided: Collection[str] | None = None) -> Figure:
    """A plan or problem as a matplotlib figure of 1280 x 800 pixels; arguments as of ``text``."""
    with style():
        return _draw(viewable, undecided)


def rgb_array(viewable: Viewable, undecided: Collection[str] | None = None) -> np.ndarray:
    """The figure as a new array of shape (800, 1280, 3), uint8; arguments as of ``text``."""
    return pixels(lambda: _draw(viewable, undecided))


def save(
    path: str | os.PathLike[str], viewable: Viewable, undecided: Collection[str] | None = None
) -> None:
    """Write the figure; equal plans give equal bytes, and a failure leaves the old file.

    Args:
        path: ends in ``.png``, ``.svg`` or ``.pdf``.
        viewable: what the judge says of a plan, or a problem without one.
        undecided: of partitions, paths that an episode has not settled.

    Raises:
        ParenvsError: another ending.
    """
    write(path, lambda: _draw(viewable, undecided))


def _draw(viewable: Viewable, undecided: Collection[str] | None) -> Figure:
    room = _room(viewable, undecided)
    if room:
        drawn: Figure = import_module(f"parenvs.tasks.{room}.view.figure").draw(viewable)
        return drawn
    of_pipeline, problem, report = _taken_apart(viewable, undecided)
    if of_pipeline:
        from parenvs.tasks.pipeline.view import figure as pipeline_figure

        return pipeline_figure.draw(problem, report)
    from parenvs.tasks.partition.view import figure as partition_figure

    return partition_figure.draw(problem, report, undecided)


def _room(viewable: Viewable, undecided: Collection[str] | None) -> str:
    """The folder whose modules ``text`` and ``figure`` show it; empty for pipelines and partitions.

    Raises:
        ValueError: ``undecided`` is given with something else than a partition.
    """
    names = (f"{kind.__module__}.{kind.__name__}" for kind in type(viewable).__mro__)
    room = next((_ROOMS[name] for name in names if name in _ROOMS), "")
    if room and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    return room


def _taken_apart(viewable: Viewable, undecided: Collection[str] | None) -> tuple[bool, Any, Any]:
    """Whether it is of a pipeline, the problem, and the report or None."""
    from parenvs.tasks.partition.problem import Partitioning, PartitionReport
    from parenvs.tasks.pipeline.problem import Pipeline, Report

    if isinstance(viewable, (Report, Pipeline)) and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    if isinstance(viewable, Report):
        return True, viewable.pipeline, viewable
    if isinstance(viewable, PartitionReport):
        return False, viewable.problem, viewable
    if isinstance(viewable, (Pipeline, Partitioning)):
        return isinstance(viewable, Pipeline), viewable, None
    raise TypeError(
        f"expected a judged plan or a problem, not an object of type {type(viewable).__name__!r}"
    )
