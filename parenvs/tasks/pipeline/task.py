"""The task ``pipeline``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task, option
from parenvs.core.words import PRECISIONS
from parenvs.graph.options import GraphOptions


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(GraphOptions):
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    stages: int | None = option(None, "Stages (default: chosen, or one a server).", main=True)
    devices_used: int | None = option(
        None, "Devices in use (default: all; plan and compare choose with the stages)."
    )
    micro_batch: int | None = option(None, "Samples in a micro-batch (default: 16).")
    micro_batches: int | None = option(None, "Micro-batches in a step (default: 16).")
    copies: float | None = option(None, "Copies of the parameters on a device (default: 2).")
    recompute: str | None = option(
        None, "Activations recomputed: full (default) or none.", values=("full", "none")
    )
    sync: str | None = option(
        None,
        "How gradients are summed (default: allreduce).",
        values=("allreduce", "parameter-server", "sharded-parameter-server"),
    )
    fractions: bool | None = option(
        None, "Devices may share a sample (default: no; yes for profiles and models of the paper)."
    )
    tied: str | None = option(
        None, "Tied weights: held by all that read them, or once (shipped models of the paper)."
    )
    precision: str | None = option(
        None,
        "Precision of matrix products (default: the elements'; fp32 as TF32).",
        values=PRECISIONS,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineSearch:
    """Options of planners; the help of each field says what it is."""

    radius: int | None = option(
        None, "Distance of device cuts from the centre solution (default: 3)."
    )
    candidates: str | None = option(
        None, "Pivots that may be cut: minima (default) or all.", values=("minima", "all")
    )
    time_limit: float | None = option(
        None, "Seconds of each search of exact agents (exact: 20, others: no limit).", "seconds"
    )


TASK = Task(
    name="pipeline",
    words="Cut a model into pipeline stages, and give each stage devices.",
    options=PipelineOptions,
    search=PipelineSearch,
    load="parenvs.tasks.pipeline.load:load",
    judge="parenvs.tasks.pipeline.load:judge",
    plan="parenvs.tasks.pipeline.plan:PipelinePlan",
    request="parenvs.agents.pipeline.planners:PipelineRequest",
    planners=(
        "exact",
        "exact-full",
        "exact-points",
        "exact-candidates",
        "corridor",
        "even",
        "pipedream",
        "learned",
        "learned+search",
        "random",
        "ppo",
        "rainbow",
        "rainbow-paper",
    ),
    sets=(
        "plan-validation",
        "plan-test",
        "plan-outside",
        "plan-s16-validation",
        "plan-s32-validation",
        "plan-s64-validation",
        "plan-s16-test",
        "plan-s32-test",
        "plan-s64-test",
    ),
    drawn=("generated-1", "generated-2", "generated-3"),
    find="parenvs.datasets.pipeline.sets:pipeline_of",
    envs={
        "PipelineCut-v0": "parenvs.tasks.pipeline.game.cut:PipelineCut",
        "PipelinePlan-v1": "parenvs.tasks.pipeline.game.improve:PipelineImprovement",
    },
    text="parenvs.tasks.pipeline.view.text:text",
    answer="parenvs.tasks.pipeline.view.text:answer",
    figure="parenvs.tasks.pipeline.view.figure:draw",
    hooks={
        "sets": "parenvs.datasets.pipeline.optima:set_kind",
        "train": "parenvs.tasks.pipeline.load:training",
        "validation": "parenvs.tasks.pipeline.load:validation",
        "start": "parenvs.agents.pipeline.exact:begun",
        "rules": "parenvs.tasks.pipeline.load:rules",
        "reading": "parenvs.tasks.pipeline.load:reading",
        "assumed": "parenvs.tasks.pipeline.load:assumed",
        "open": "parenvs.tasks.pipeline.load:open_shape",
        "tables": "parenvs.tasks.pipeline.view.tables:of_instance",
        "compare": "parenvs.tasks.pipeline.view.tables:comparison",
        "stages": "parenvs.tasks.pipeline.export:stages",
        "step": "parenvs.tasks.pipeline.export:step",
        "strategy": "parenvs.tasks.pipeline.export:strategy",
        "bench": "parenvs.agents.pipeline.suite:Suite",
        "chain": "parenvs.tasks.pipeline.profile:StageProfile",
        "remarks": "parenvs.agents.pipeline.remarks:Remarks",
        "leaderboard": "parenvs.agents.pipeline.entries:TASKS",
        "reference": "parenvs.agents.pipeline.planners:reference",
        "diff": "parenvs.tasks.pipeline.diff:difference",
        "diff_text": "parenvs.tasks.pipeline.view.diff:diff_lines",
    },
)
"""The task."""
