"""The task ``hybrid``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option

_TIERS = ("hetero-8", "hetero-16", "hetero-32", "hetero-64")


@dataclass(frozen=True, kw_only=True)
class HybridOptions:
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    batch: int | None = option(None, "Samples of a step; it has no default.")
    stack: Any = option(None, "The training software, a name or an object (default: the device's).")
    precision: str | None = option(
        None, "Of matrix products (default: the fastest of 16 bits, else of 32)."
    )
    variables: Any = option(None, "Globs over paths, or an argument's index: trained variables.")
    frozen: Any = option(None, "The same: weights that are not trained.")
    arguments: str | None = option(
        None, "What gives a function's arguments: NAME in its file, or FILE.py:NAME."
    )


TASK = Task(
    name="hybrid",
    words="Plan a model along all axes together: pipeline, tensor, data, context and experts.",
    options=HybridOptions,
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
    text="parenvs.tasks.hybrid.view.text:text",
    figure="parenvs.tasks.hybrid.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.hybrid.named:set_kind",
        "leaderboard": "parenvs.agents.hybrid.entries:TASKS",
        "names": "parenvs.tasks.hybrid.shipped:shapes",
        "pettingzoo": "parenvs.tasks.hybrid.three_agents:hybrid_v0",
    },
)
"""The task."""
