"""What commands print of pipelines in tables: a chain, plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.core.registry import TASKS, problem
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.cuts import CutSpace
from parenvs.tasks.pipeline.problem import Pipeline, stages_on
from parenvs.view.tables import empty

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.core.plan import Answer


def of_instance(instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
    """The chain of an instance, whether or not the default number of stages fits it."""
    if TASKS["pipeline"].names(instance) or "stages" in options:
        return [chain(problem(instance, cluster, "pipeline", **options))]
    pipeline = problem(instance, cluster, "pipeline", stages=1, **options)
    return [chain(pipeline.with_stages(stages_on(pipeline.cluster)))]


def chain(pipeline: Pipeline) -> Table:
    """A chain of pivots on a cluster, and how much of it ``PipelineCut-v0`` leaves to search."""
    try:
        space = CutSpace.build(pipeline)
        candidates = f"{len(space.pivots)} (radius {space.radius})"
    except InfeasibleError:
        candidates = "none: they allow no plan of so many stages"
    profile = pipeline.profile
    table = empty(f"chain of {profile.name} on {pipeline.cluster}", "what", "value")
    rows = (
        ("pivots", f"{len(profile)}"),
        ("pivots with variables", f"{int(pipeline.variable_sum[-1])}"),
        ("forward, one device", f"{profile.forward.sum():.4f} s a micro-batch"),
        ("backward, one device", f"{profile.backward.sum():.4f} s a micro-batch"),
        ("parameters", f"{pipeline.parameter_sum[-1] / 1e9:.3f} GB"),
        ("largest cut", f"{profile.cut_bytes[:-1].max() / 1e6:.2f} MB"),
        ("smallest cut", f"{profile.cut_bytes[:-1].min() / 1e6:.2f} MB"),
        ("bubble-free step", f"{pipeline.bubble_free:.4f} s"),
        ("stages", f"{pipeline.stages}"),
        ("candidates of PipelineCut-v0", candidates),
    )
    for row in rows:
        table.add_row(*row)
    return table


def comparison(answers: Sequence[Answer]) -> Table:
    """Several plans of one problem side by side."""
    reports = [answer.report for answer in answers]
    pipeline = reports[0].pipeline
    cluster = pipeline.cluster
    table = empty(
        f"{pipeline.profile.name} on {cluster}",
        "agent",
        "step (s)",
        "simulated (s)",
        "hybrid (s)",
        "1/L",
        "over best",
        "device cuts",
        "proof",
        "found in (s)",
    )
    legal = [report.length_seconds for report in reports if report.legal]
    best = min(legal, default=np.nan)
    for answer, report in zip(answers, reports, strict=True):
        if report.legal:
            value = f"{report.value:.4f}"
            over = f"{100 * (report.length_seconds / best - 1):.2f} %"
        else:
            value, over = "-1", "illegal"
        table.add_row(
            answer.method,
            f"{report.length_seconds:.4f}",
            f"{report.simulated_seconds:.4f}",
            report.price.cell,
            value,
            over,
            " ".join(map(str, report.plan.device_cuts)),
            answer.claim,
            f"{answer.seconds:.2f}",
        )
    return table
