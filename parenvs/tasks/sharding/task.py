"""The task ``sharding``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task


@dataclass(frozen=True, kw_only=True)
class ShardingOptions:
    """There are none: the problem's file says all."""


TASK = Task(
    name="sharding",
    words="Choose a strategy for every node of a program within a memory limit (IOPDDL).",
    options=ShardingOptions,
    load="parenvs.tasks.sharding.load:load",
    judge="parenvs.tasks.sharding.load:judge",
    plan="parenvs.tasks.sharding.plan:ShardingPlan",
    request="parenvs.agents.sharding.planners:ShardingRequest",
    sets=("intra-op-validation", "intra-op-test", "intra-op-outside"),
    find="parenvs.datasets.sharding.drawing:of_set",
    text="parenvs.tasks.sharding.view.text:text",
    figure="parenvs.tasks.sharding.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.sharding.drawing:set_kind",
        "leaderboard": "parenvs.agents.sharding.entries:TASKS",
    },
)
"""The task."""
