"""The task ``pipeline``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenvs.core.task import Task, option


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    stages: int | None = option(None, "Pipeline stages (default: one a server, at least two).")
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: 16).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 16).")
    copies: float | None = option(None, "Copies of the parameters on a device (default: 2).")
    recompute: str | None = option(None, "Activations recomputed: full (default) or none.")
    sync: str | None = option(
        None, "allreduce (default), parameter-server or sharded-parameter-server."
    )
    tied: str | None = option(
        None, "Tied weights: held by all that read them, or once (shipped models of the paper)."
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
    name="pipeline",
    words="Cut a model into pipeline stages, and give each stage devices.",
    options=PipelineOptions,
    load="parenvs.tasks.pipeline.load:load",
    judge="parenvs.tasks.pipeline.load:judge",
    plan="parenvs.tasks.pipeline.plan:PipelinePlan",
    request="parenvs.agents.pipeline.planners:PipelineRequest",
    sets=("plan-validation", "plan-test", "plan-outside"),
    find="parenvs.datasets.pipeline.sets:pipeline_of",
    text="parenvs.tasks.pipeline.view.text:text",
    figure="parenvs.tasks.pipeline.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.pipeline.optima:set_kind",
        "leaderboard": "parenvs.agents.pipeline.entries:TASKS",
        "reference": "parenvs.agents.pipeline.planners:reference",
        "diff": "parenvs.tasks.pipeline.diff:difference",
        "diff_text": "parenvs.tasks.pipeline.view.diff:diff_lines",
    },
)
"""The task."""
