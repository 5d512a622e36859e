"""What the command line prints, as rich tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from parenvs.candidates import CutSpace
from parenvs.cluster import PRESETS
from parenvs.graph import Graph, Phase, Role
from parenvs.instances import manifest
from parenvs.judge import Report
from parenvs.pipeline import Pipeline

if TYPE_CHECKING:
    from parenvs.agents.answer import Answer
    from parenvs.agents.evaluate import Evaluation
    from parenvs.agents.train import TrainResult

OPTIMAL = 1e-3
"""A plan reaches the optimum if its cost is within this share of the exact one."""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def environments() -> list[str]:
    """Ids of the suite's environments."""
    import gymnasium as gym

    return sorted(
        name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("parenvs.")
    )


def instances() -> Table:
    """The shipped instances."""
    table = _table(
        "instances", "name", "variables", "parameters", "FLOPs a step", "pivots", "description"
    )
    for name, entry in manifest()["instances"].items():
        train, forward = entry["graphs"]["train"], entry["graphs"]["forward"]
        table.add_row(
            name,
            str(train["variables"]),
            f"{train['parameters']:,}",
            f"{train['flops']:.3e}",
            str(forward["pivots"]),
            entry["description"],
        )
    return table


def clusters() -> Table:
    """The preset clusters."""
    table = _table("clusters", "name", "shape", "inside a server", "between servers", "memory")
    for name, cluster in PRESETS.items():
        table.add_row(
            name,
            f"{cluster.servers} x {cluster.devices_per_server} {cluster.device.name}",
            f"{cluster.intra_bw / 1e9:g} GB/s",
            f"{cluster.inter_bw / 1e9:g} GB/s",
            f"{cluster.device.memory_bytes / 1e9:g} GB",
        )
    return table


def graph(graph: Graph) -> Table:
    """Sizes of a graph."""
    table = _table(f"graph {graph.name}", "what", "count", "size")
    bytes_ = graph.tensor_bytes[graph.parameter_tensor]
    for role, name in (
        (Role.VARIABLE, "variables"),
        (Role.OPTIMISER, "optimiser state"),
        (Role.BATCH, "batch inputs"),
        (Role.SCALAR, "scalar inputs"),
    ):
        chosen = graph.parameter_role == role
        table.add_row(name, str(int(chosen.sum())), f"{bytes_[chosen].sum() / 1e9:.3f} GB")
    top = graph.parent < 0
    for phase in Phase:
        chosen = top & (graph.phase == phase)
        if chosen.any():
            flops = graph.flops[chosen].sum()
            table.add_row(
                f"{phase.name.lower()} instructions", str(int(chosen.sum())), f"{flops:.4e} FLOPs"
            )
    table.add_row("free of them", str(int((top & graph.free).sum())), "")
    table.add_row("batch size", str(graph.batch_size), "")
    return table


def chain(space: CutSpace) -> Table:
    """A chain of pivots on a cluster, and how much of it is left to search."""
    pipeline = space.pipeline
    profile = pipeline.profile
    table = _table(f"chain of {profile.name} on {pipeline.cluster}", "what", "value")
    rows = (
        ("pivots", f"{len(profile)}"),
        ("pivots with variables", f"{int(pipeline.variable_sum[-1])}"),
        ("forward, one device", f"{profile.forward.sum():.4f} s a micro-batch"),
        ("backward, one device", f"{profile.backward.sum():.4f} s a micro-batch"),
        ("parameters", f"{pipeline.parameter_sum[-1] / 1e9:.3f} GB"),
        ("largest cut", f"{profile.cut_bytes[:-1].max() / 1e6:.2f} MB"),
        ("smallest cut", f"{profile.cut_bytes[:-1].min() / 1e6:.2f} MB"),
        ("bubble-free step", f"{pipeline.bubble_free:.4f} s"),
        ("stages", f"{space.stages}"),
        ("candidates", f"{len(space.pivots)} (radius {space.radius})"),
    )
    for row in rows:
        table.add_row(*row)
    return table


def proof(answer: Answer) -> str:
    """One line on what a planner knows of its answer."""
    words = f"{answer.method}: {answer.status}"
    if answer.bound > 0:
        words += f", proven lower bound {answer.bound:.6g} s"
    return f"{words}; {answer.evaluations:,} evaluations in {answer.seconds:.2f} s"


def comparison(pipeline: Pipeline, rows: Sequence[tuple[Answer, Report]]) -> Table:
    """Several plans of one problem side by side."""
    cluster = pipeline.cluster
    table = _table(
        f"{pipeline.profile.name} on {cluster}",
        "agent",
        "step (s)",
        "simulated (s)",
        "1/L",
        "over best",
        "device cuts",
        "proof",
        "found in (s)",
    )
    legal = [report.length_seconds for _, report in rows if report.legal]
    best = min(legal, default=np.nan)
    for answer, report in rows:
        if report.legal:
            value = f"{report.value:.4f}"
            over = f"{100 * (report.length_seconds / best - 1):.2f} %"
        else:
            value, over = "-1", "illegal"
        table.add_row(
            answer.method,
            f"{report.length_seconds:.4f}",
            f"{report.simulated_seconds:.4f}",
            value,
            over,
            " ".join(map(str, report.plan.device_cuts)),
            answer.status,
            f"{answer.seconds:.2f}",
        )
    return table


def training(result: TrainResult, best: float, folder: Path) -> Table:
    """The outcome of a training run."""
    table = _table(f"run {folder}", "what", "value")
    rows = [
        ("best 1/L", f"{result.value:.6f}"),
        ("exact optimum of the candidates", f"{best:.6f}"),
        ("gap", f"{100 * (best / result.value - 1):.3f} %" if result.value > 0 else "illegal"),
        ("steps", f"{result.steps:,}"),
        ("episodes", f"{result.episodes:,}"),
        ("seconds", f"{result.seconds:.1f}"),
    ]
    if result.target_steps is not None:
        rows.append(("steps to the optimum", f"{result.target_steps:,}"))
        rows.append(("seconds to the optimum", f"{result.target_seconds:.1f}"))
    for row in rows:
        table.add_row(*row)
    return table


def evaluation(result: Evaluation, best: float) -> Table:
    """How a trained agent does."""
    table = _table("evaluation", "what", "1/L", "share of the optimum")
    for name, value in (
        ("greedy policy", result.greedy_value),
        (f"mean of {result.episodes} samples", result.mean_value),
        ("best sample", result.best_value),
        ("exact optimum of the candidates", best),
    ):
        table.add_row(name, f"{value:.6f}", f"{100 * value / best:.2f} %")
    table.add_row("spread of samples", f"{result.std_value:.6f}", "")
    return table
