"""The task ``order``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task, option


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """There are none: the instance says all."""


@dataclass(frozen=True, kw_only=True)
class OrderSearch:
    """Options of planners; the help of each field says what it is."""

    time_limit: float | None = option(
        None,
        "Seconds of the search (default: 20 of exact, without --rounds; others end by themselves).",
        "seconds",
    )
    rounds: int | None = option(
        None, "Rounds of the exact search; without seconds the same order every time."
    )


TASK = Task(
    name="order",
    words="Order micro-batches that differ, so that a 1F1B step is as short as possible.",
    options=OrderOptions,
    search=OrderSearch,
    load="parenvs.tasks.order.load:load",
    judge="parenvs.tasks.order.load:judge",
    plan="parenvs.tasks.order.plan:OrderPlan",
    request="parenvs.agents.order.planners:OrderRequest",
    planners=(
        "exact",
        "neh",
        "swap",
        "learned",
        "learned+search",
        "random",
        "as-drawn",
        "ascending",
        "descending",
        "pyramid",
    ),
    sets=("order-validation", "order-test", "order-outside", "order-large"),
    drawn=("order",),
    find="parenvs.datasets.order.named:find_order",
    envs={
        "MicroBatchOrder-v1": "parenvs.tasks.order.insertion:MicroBatchInsertion",
    },
    text="parenvs.tasks.order.view.text:text",
    answer="parenvs.tasks.order.view.text:answer",
    figure="parenvs.tasks.order.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.order.sets:set_kind",
        "train": "parenvs.tasks.order.load:training",
        "validation": "parenvs.tasks.order.load:validation",
        "strategy": "parenvs.tasks.order.problem:price",
        "rules": "parenvs.tasks.order.load:rules",
        "compare": "parenvs.tasks.order.view.tables:comparison",
        "leaderboard": "parenvs.agents.order.entries:TASKS",
        "teach": "parenvs.agents.order.teacher:teach",
    },
)
"""The task."""
