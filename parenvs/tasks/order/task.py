"""The task ``order``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """There are none: the instance says all."""


TASK = Task(
    name="order",
    words="Order micro-batches that differ, so that a 1F1B step is as short as possible.",
    options=OrderOptions,
    load="parenvs.tasks.order.load:load",
    judge="parenvs.tasks.order.load:judge",
    plan="parenvs.tasks.order.plan:OrderPlan",
    request="parenvs.agents.order.planners:OrderRequest",
    sets=("order-validation", "order-test", "order-outside"),
    find="parenvs.tasks.order.load:load_ordering",
    text="parenvs.tasks.order.view.text:text",
    figure="parenvs.tasks.order.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.order.sets:set_kind",
        "leaderboard": "parenvs.agents.order.entries:TASKS",
    },
)
"""The task."""
