"""The task ``hybrid``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option
from parenvs.graph.options import GraphOptions

_TIERS = ("hetero-8", "hetero-16", "hetero-32", "hetero-64")


@dataclass(frozen=True, kw_only=True)
class HybridOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    batch: int | None = option(None, "Samples of a step; it has no default.")
    stack: Any = option(
        None,
        "Training software: nemo, torchtitan, megatron-2021, or an object (default: by device).",
        kind=str,
    )
    precision: str | None = option(
        None, "Of matrix products (default: the fastest of 16 bits, else of 32)."
    )


@dataclass(frozen=True, kw_only=True)
class HybridSearch:
    """Options of planners; the help of each field says what it is."""

    constraints: Any = option(
        None,
        "What plans must keep to.",
        parts="parenvs.tasks.hybrid.space.constraints:Constraints",
    )
    objective: str = option("seconds", "What is minimised: seconds (default), tokens or money.")
    price: float = option(1.0, "Of a device-hour, for the objective money (default: 1).")
    robust: bool = option(
        False, "Take the plan of least worst regret if constants move in their plausible ranges."
    )
    time_limit: float | None = option(
        None, "Seconds of the search over free stages (exact: 20, exact-hybrid: no limit)."
    )


TASK = Task(
    name="hybrid",
    words="Plan a model along all axes together: pipeline, tensor, data, context and experts.",
    options=HybridOptions,
    search=HybridSearch,
    load="parenvs.tasks.hybrid.load:load",
    judge="parenvs.tasks.hybrid.load:judge",
    plan="parenvs.tasks.hybrid.plan:HybridPlan",
    request="parenvs.agents.hybrid.planners:HybridRequest",
    sets=tuple(
        f"{tier}-{part}"
        for tier in ("hybrid", *_TIERS)
        for part in ("validation", "test", "outside")
    ),
    drawn=("hybrid", *_TIERS),
    find="parenvs.datasets.hybrid.named:find_hybrid",
    envs={"HybridPlan-v1": "parenvs.tasks.hybrid.improve:HybridImprovement"},
    text="parenvs.tasks.hybrid.view.text:text",
    figure="parenvs.tasks.hybrid.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.hybrid.named:set_kind",
        "train": "parenvs.tasks.hybrid.load:training",
        "validation": "parenvs.tasks.hybrid.load:validation",
        "rules": "parenvs.tasks.hybrid.load:rules",
        "leaderboard": "parenvs.agents.hybrid.entries:TASKS",
        "reading": "parenvs.tasks.hybrid.load:reading",
        "compare": "parenvs.tasks.hybrid.view.tables:comparison",
        "explain": "parenvs.tasks.hybrid.view.explanation:of_plan",
        "diff": "parenvs.tasks.hybrid.space.diff:difference",
        "diff_text": "parenvs.tasks.hybrid.view.diff:diff_lines",
        "layout": "parenvs.tasks.hybrid.export:layout",
        "stages": "parenvs.tasks.hybrid.export:stages",
        "step": "parenvs.tasks.hybrid.export:step",
        "read_back": "parenvs.tasks.hybrid.export:read_back",
        "strategy": "parenvs.tasks.hybrid.graph.price:own",
        "price": "parenvs.tasks.hybrid.graph.price:price",
        "now": "parenvs.agents.hybrid.now:now",
        "checkpoint": "parenvs.tasks.elastic.checkpoint:Shards",
        "remarks": "parenvs.agents.hybrid.remarks:Remarks",
        "map": "parenvs.agents.hybrid.remarks:draw_map",
        "names": "parenvs.tasks.hybrid.shipped:shapes",
        "pettingzoo": "parenvs.tasks.hybrid.three_agents:hybrid_v0",
    },
)
"""The task."""
