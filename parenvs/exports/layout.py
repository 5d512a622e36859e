"""Asks a plan's task how the plan lays out a training step."""

from __future__ import annotations

from parenvs.core.plan import Plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.graph.graph import Graph
from parenvs.graph.layout import Layout


def layout_of(plan: Plan, graph: Graph | None = None, eager: bool = False) -> Layout:
    """Return how a plan lays out the training step that it was made for.

    Args:
        plan: the plan.
        graph: the step's graph (default: the plan's instance).
        eager: whether operations are split one by one as they run, in a framework with pipelines
            and micro-batches of its own (PyTorch), not by a compiler of whole steps (JAX).

    Raises:
        InfeasibleError: the judge finds the plan illegal.
        ParenvsError: a plan of a task without layouts, for another graph, or one that a compiler
            of whole steps cannot be told.
    """
    layout: Layout = task_with(plan, Task.layout).layout(plan, graph, eager)
    return layout
