"""The task ``partition``, as the rest of the house knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option
from parenvs.core.words import PRECISIONS
from parenvs.errors import ParenvsError
from parenvs.graph.options import GraphOptions


def bytes_of(text: str) -> float | str:
    """Return as bytes what a text gives in GB, and ``device`` as it is.

    Raises:
        ParenvsError: it is neither.
    """
    if text == "device":
        return text
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise ParenvsError(f"--memory-limit must be 'device' or a positive number, not {text!r}")
    return gigabytes * 1e9


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    devices: int | None = option(None, "Devices of one server of V100, instead of a cluster.")
    scope: str | None = option(
        None, "What plans decide: variables (default) or inputs.", values=("variables", "inputs")
    )
    rules: str | None = option(
        None, "Rules of propagation: shardy (default) or automap.", values=("shardy", "automap")
    )
    uneven: str | None = option(
        None,
        "Dimensions that devices do not divide: pad (default) or forbid.",
        values=("pad", "forbid"),
    )
    reward: str | None = option(
        None,
        "What is maximised: paper (default) or step_time (default of plan and compare).",
        values=("paper", "step_time"),
    )
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: the graph's batch).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 1).")
    recompute: str | None = option(
        None, "Activations recomputed: none (default) or full.", values=("none", "full")
    )
    memory_limit: Any = option(
        None,
        "Bytes a device (in commands: GB), or 'device' for 0.9 of its own memory (default: none).",
        kind=str,
        read=bytes_of,
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the elements'; fp32 as TF32).",
        values=PRECISIONS,
    )


@dataclass(frozen=True, kw_only=True)
class PartitionSearch:
    """Options of planners; the help of each field says what it is."""

    time_limit: float | None = option(
        None, "Seconds of the exact search (default: no limit).", "seconds"
    )


TASK = Task(
    name="partition",
    words="Partition dimensions of variables, or of batch inputs, over all devices.",
    options=PartitionOptions,
    search=PartitionSearch,
    load="parenvs.tasks.partition.load:load",
    judge="parenvs.tasks.partition.load:judge",
    plan="parenvs.tasks.partition.plan:PartitionPlan",
    request="parenvs.agents.partition.planners:PartitionRequest",
    planners=(
        "exact",
        "greedy",
        "ones",
        "expert",
        "data-parallel",
        "replicate",
        "random",
        "ppo",
        "rainbow",
        "rainbow-paper",
    ),
    sets=("partition-train", "partition-validation", "partition-test"),
    find="parenvs.tasks.partition.sets:load",
    envs={
        "DataParallel-v0": "parenvs.tasks.partition.game:DataParallel",
        "OperatorPartition-v0": "parenvs.tasks.partition.game:OperatorPartition",
        "PartitionPlan-v1": "parenvs.tasks.partition.choice:PartitionChoice",
    },
    text="parenvs.tasks.partition.view.text:text",
    answer="parenvs.tasks.partition.view.text:answer",
    figure="parenvs.tasks.partition.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.partition.sets:set_kind",
        "train": "parenvs.tasks.partition.load:training",
        "validation": "parenvs.tasks.partition.load:validation",
        "start": "parenvs.agents.partition.lean:begun",
        "rules": "parenvs.tasks.partition.load:rules",
        "reading": "parenvs.tasks.partition.load:reading",
        "open": "parenvs.tasks.partition.load:for_step_time",
        "tables": "parenvs.tasks.partition.view.tables:of_instance",
        "compare": "parenvs.tasks.partition.view.tables:comparison",
        "explain": "parenvs.tasks.partition.view.explanation:of_plan",
        "explain_problem": "parenvs.tasks.partition.view.explanation:of_problem",
        "layout": "parenvs.tasks.partition.export.layout:layout",
        "step": "parenvs.tasks.partition.export.layout:step",
        "strategy": "parenvs.tasks.partition.export.layout:strategy",
        "bench": "parenvs.agents.partition.suite:Suite",
        "decisions": "parenvs.tasks.partition.export.decisions:Decisions",
        "verify": "parenvs.shardy.verify:verify_plan",
        "leaderboard": "parenvs.agents.partition.entries:TASKS",
        "reference": "parenvs.agents.partition.planners:reference",
        "diff": "parenvs.tasks.partition.diff:difference",
        "diff_text": "parenvs.tasks.partition.view.diff:diff_lines",
    },
)
"""The task."""
