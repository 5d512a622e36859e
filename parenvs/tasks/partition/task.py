"""The task ``partition``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    devices: int | None = option(None, "One server of this many V100, instead of a cluster.")
    scope: str | None = option(None, "What plans decide: variables (default) or inputs.")
    rules: str | None = option(None, "shardy (default) or automap.")
    uneven: str | None = option(None, "Dimensions that are no multiple: pad (default) or forbid.")
    reward: str | None = option(None, "paper (default) or step_time.")
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: the graph's batch).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 1).")
    recompute: str | None = option(None, "Activations recomputed: none (default) or full.")
    memory_limit: Any = option(
        None, "Bytes a device, or 'device' for 0.9 of its own memory (default: no limit)."
    )
    precision: str | None = option(
        None, "Of products: fp32, tf32, ... (default: the elements'; fp32 as TF32)."
    )
    variables: Any = option(None, "Globs over paths, or an argument's index: trained variables.")
    batch: Any = option(None, "The same: inputs whose first dimension is the batch.")
    frozen: Any = option(None, "The same: weights that are not trained.")
    arguments: str | None = option(
        None, "What gives a function's arguments: NAME in its file, or FILE.py:NAME."
    )


TASK = Task(
    name="partition",
    words="Partition dimensions of variables, or of batch inputs, over all devices.",
    options=PartitionOptions,
    load="parenvs.tasks.partition.load:load",
    judge="parenvs.tasks.partition.load:judge",
    plan="parenvs.tasks.partition.plan:PartitionPlan",
    request="parenvs.agents.partition.planners:PartitionRequest",
    sets=("partition-train", "partition-validation", "partition-test"),
    find="parenvs.tasks.partition.sets:load",
    text="parenvs.tasks.partition.view.text:text",
    figure="parenvs.tasks.partition.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.partition.sets:set_kind",
        "leaderboard": "parenvs.agents.partition.entries:TASKS",
        "reference": "parenvs.agents.partition.planners:reference",
        "diff": "parenvs.tasks.partition.diff:difference",
        "diff_text": "parenvs.tasks.partition.view.diff:diff_lines",
    },
)
"""The task."""
