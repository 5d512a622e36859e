"""Plans of every task as text and as pictures: one door, whatever the task.

Each function takes what the judge says of a plan (``Report``, ``PartitionReport``), or the problem
itself (``Pipeline``, ``Partitioning``) where there is no plan yet. Importing this package loads
next to nothing: the modules of a task are loaded by its first text, matplotlib by the first
picture.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from parenvs.viewer.page import ending, pixels, style, write

if TYPE_CHECKING:
    from typing import TypeAlias, TypeGuard

    import numpy as np
    from matplotlib.figure import Figure

    from parenvs.elastic.run import Run
    from parenvs.hybrid.problem import Hybrid
    from parenvs.hybrid.report import HybridReport
    from parenvs.iopddl.problem import IntraOp, IntraOpReport
    from parenvs.ordering.problem import Ordering, OrderReport
    from parenvs.partitioning.problem import Partitioning, PartitionReport
    from parenvs.pipeline.problem import Pipeline, Report

    Viewable: TypeAlias = (
        Report
        | Pipeline
        | PartitionReport
        | Partitioning
        | HybridReport
        | Hybrid
        | OrderReport
        | Ordering
        | IntraOpReport
        | IntraOp
        | Run
    )

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
    if _is_hybrid(viewable, undecided):
        from parenvs.viewer.hybrid import text as hybrid_text

        return hybrid_text.text(viewable, colour)
    if _is_order(viewable, undecided):
        from parenvs.viewer.ordering import text as order_text

        return order_text.text(viewable, colour)
    if _is_intra_op(viewable, undecided):
        from parenvs.viewer.iopddl import text as intra_op_text

        return intra_op_text.text(viewable, colour)
    if _is_run(viewable, undecided):
        from parenvs.viewer.elastic import text as elastic_text

        return elastic_text.text(viewable)
    of_pipeline, problem, report = _taken_apart(viewable, undecided)
    if of_pipeline:
        from parenvs.viewer import pipeline_text

        return pipeline_text.text(problem, report, colour)
    from parenvs.viewer import partition_text

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
    if _is_hybrid(viewable, undecided):
        from parenvs.viewer.hybrid import figure as hybrid_figure

        return hybrid_figure.draw(viewable)
    if _is_order(viewable, undecided):
        from parenvs.viewer.ordering import figure as order_figure

        return order_figure.draw(viewable)
    if _is_intra_op(viewable, undecided):
        from parenvs.viewer.iopddl import figure as intra_op_figure

        return intra_op_figure.draw(viewable)
    if _is_run(viewable, undecided):
        from parenvs.viewer.elastic import figure as elastic_figure

        return elastic_figure.draw(viewable)
    of_pipeline, problem, report = _taken_apart(viewable, undecided)
    if of_pipeline:
        from parenvs.viewer import pipeline_figure

        return pipeline_figure.draw(problem, report)
    from parenvs.viewer import partition_figure

    return partition_figure.draw(problem, report, undecided)


def _is_hybrid(
    viewable: Viewable, undecided: Collection[str] | None
) -> TypeGuard[HybridReport | Hybrid]:
    """Whether it is of a hybrid plan."""
    from parenvs.hybrid.problem import Hybrid
    from parenvs.hybrid.report import HybridReport

    if isinstance(viewable, (HybridReport, Hybrid)) and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    return isinstance(viewable, (HybridReport, Hybrid))


def _is_order(
    viewable: Viewable, undecided: Collection[str] | None
) -> TypeGuard[OrderReport | Ordering]:
    """Whether it is of an order of micro-batches."""
    from parenvs.ordering.problem import Ordering, OrderReport

    if isinstance(viewable, (OrderReport, Ordering)) and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    return isinstance(viewable, (OrderReport, Ordering))


def _is_intra_op(
    viewable: Viewable, undecided: Collection[str] | None
) -> TypeGuard[IntraOpReport | IntraOp]:
    """Whether it is of strategies of an IOPDDL problem."""
    from parenvs.iopddl.problem import IntraOp, IntraOpReport

    if isinstance(viewable, (IntraOpReport, IntraOp)) and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    return isinstance(viewable, (IntraOpReport, IntraOp))


def _is_run(viewable: Viewable, undecided: Collection[str] | None) -> TypeGuard[Run]:
    """Whether it is what a job earned while nodes came and left."""
    from parenvs.elastic.run import Run

    if isinstance(viewable, Run) and undecided is not None:
        raise ValueError("undecided: only variables of partitions can be undecided")
    return isinstance(viewable, Run)


def _taken_apart(viewable: Viewable, undecided: Collection[str] | None) -> tuple[bool, Any, Any]:
    """Whether it is of a pipeline, the problem, and the report or None."""
    from parenvs.partitioning.problem import Partitioning, PartitionReport
    from parenvs.pipeline.problem import Pipeline, Report

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
