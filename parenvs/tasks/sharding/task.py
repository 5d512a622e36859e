"""The task ``sharding``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task, option


@dataclass(frozen=True, kw_only=True)
class ShardingOptions:
    """There are none: the problem's file says all."""


@dataclass(frozen=True, kw_only=True)
class ShardingSearch:
    """Options of planners; the help of each field says what it is."""

    time_limit: float | None = option(
        None, "Seconds of the exact search (default: 60; with --rounds: no limit).", "seconds"
    )
    rounds: int | None = option(
        None, "Rounds of the exact search; without seconds the same plan every time."
    )
    threads: int = option(
        1, "Threads of the exact search, each with a chain of moves (default: 1)."
    )


TASK = Task(
    name="sharding",
    words="Choose a strategy for every node of a program within a memory limit (IOPDDL).",
    options=ShardingOptions,
    search=ShardingSearch,
    load="parenvs.tasks.sharding.load:load",
    judge="parenvs.tasks.sharding.load:judge",
    plan="parenvs.tasks.sharding.plan:ShardingPlan",
    request="parenvs.agents.sharding.planners:ShardingRequest",
    planners=("exact", "greedy", "messages", "leanest", "random"),
    sets=("intra-op-validation", "intra-op-test", "intra-op-outside"),
    drawn=("intra-op",),
    find="parenvs.datasets.sharding.drawing:find",
    envs={"IntraOpSharding-v1": "parenvs.tasks.sharding.game:IntraOpSharding"},
    text="parenvs.tasks.sharding.view.text:text",
    answer="parenvs.tasks.sharding.view.text:answer",
    figure="parenvs.tasks.sharding.view.figure:draw",
    hooks={
        "strategy": "parenvs.tasks.sharding.problem:price",
        "sets": "parenvs.datasets.sharding.drawing:set_kind",
        "train": "parenvs.tasks.sharding.load:training",
        "validation": "parenvs.tasks.sharding.load:validation",
        "rules": "parenvs.tasks.sharding.load:rules",
        "commands": "parenvs.agents.sharding.commands:add",
        "leaderboard": "parenvs.agents.sharding.entries:TASKS",
    },
)
"""The task."""
