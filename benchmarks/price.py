"""One strategy through the tasks: what a step takes by the hybrid model, whoever planned it.

Data parallelism on eight devices as a partition, as a pipeline of one stage and as a hybrid plan;
two stages of four replicas as a pipeline and as a hybrid plan, cut at the same border.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import parenvs
from benchmarks.framework import Case, Row, columns, main, measurement
from parenvs.graph.flow import chain_bytes
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.pipeline.borders import borders_of

MODELS = (
    "vgg-19", "resnet-50", "bert-48", "t5-base", "big-lstm", "convnext-l", "mixer-l16", "dit-xl2",
    "vit-h14", "clip-l14",
)  # fmt: skip
CLUSTER, DEVICES = "1x8:a100", 8
STRATEGIES = {"data parallelism": 1, "two stages": 2}
AGREE = 0.01
"""Largest relative difference that is none."""
Report = Any


def partitioned(name: str, batch: int, micro_batches: int = 1) -> Report:
    """Data parallelism as a partition: all inputs by samples."""
    problem = parenvs.problem(
        name, CLUSTER, task="partition", scope="inputs", reward="step_time",
        micro_batch=batch, micro_batches=micro_batches,
    )  # fmt: skip
    inputs = {problem.graph.paths[index]: 0 for index in problem.inputs.tolist()}
    return problem.report(problem.plan(problem.chosen(inputs)))


def pipelined(name: str, batch: int, micro_batches: int = 1, layer: int | None = None) -> Report:
    """Replicas as a pipeline of one stage, or of two that share the devices.

    Args:
        name: of a shipped graph.
        batch: samples of a micro-batch.
        micro_batches: of a step.
        layer: of the hybrid model that begins the second stage.
    """
    cuts, devices = [], []
    if layer is not None:
        forward = load_graph(name, "forward")  # pipelines are planned on the forward pass alone
        pivots = forward.pivots()
        bounds = borders_of(forward, pivots, chain_bytes(forward, pivots)).bounds
        cuts, devices = [int(bounds[layer])], [DEVICES // 2]
    problem = parenvs.problem(
        name, CLUSTER, task="pipeline", micro_batch=batch, micro_batches=micro_batches,
        stages=len(cuts) + 1, recompute="none",
    )  # fmt: skip
    return problem.report(problem.plan(cuts, devices))


def hybrid(name: str, batch: int, micro_batches: int = 1, layers: tuple[int, ...] = ()) -> Report:
    """Replicas as a hybrid plan, of stages that share the devices evenly."""
    problem = parenvs.problem(name, CLUSTER, task="hybrid", batch=batch * micro_batches)
    bounds, devices = [0, *layers, len(problem.model)], DEVICES // (len(layers) + 1)
    stages = [HybridStage(((a, b),), devices) for a, b in pairwise(bounds)]
    return problem.report(problem.plan(stages, batch // devices))


def compared(name: str, strategy: str, batch: int) -> Row:
    """The seconds of a strategy as each task has it, and by the hybrid model."""
    if STRATEGIES[strategy] == 1:
        makes = {"partition": partitioned, "pipeline": pipelined, "hybrid": hybrid}
        reports = {task: make(name, batch) for task, make in makes.items()}
    else:
        middle = len(parenvs.problem(name, CLUSTER, task="hybrid", batch=batch).model) // 2
        reports = {
            "pipeline": pipelined(name, batch // 4, 4, middle),
            "hybrid": hybrid(name, batch // 4, 4, (middle,)),
        }
    prices = {task: report.price for task, report in reports.items()}
    wanted = prices["hybrid"]
    row: Row = {"own": {task: float(report.cost) for task, report in reports.items()}}
    row["seconds"] = {task: price.seconds for task, price in prices.items()}
    row["parts"] = {task: dict(price.parts) for task, price in prices.items()}
    row["off"] = {
        task: None if price.seconds is None else price.seconds / wanted.seconds - 1
        for task, price in prices.items()
    }
    return row


@measurement(
    key="model strategy batch",
    about={"models": "only these (default: all)", "batch": "samples of a step"},
)
def price(models: tuple[str, ...] = (), batch: int = 64) -> Iterator[Case]:
    for model in models or MODELS:
        for strategy in STRATEGIES:
            key = {"model": model, "strategy": strategy, "batch": batch}
            yield key, partial(compared, model, strategy, batch)


def apart(row: Row) -> dict[str, float]:
    """By how much a part of the step differs most, relative to the step, by task and part."""
    found = {}
    for task, parts in row["parts"].items():
        for part in parts:
            more = (parts[part] - row["parts"]["hybrid"][part]) / row["seconds"]["hybrid"]
            if abs(more) > AGREE / 4:
                found[f"{task}: {part}"] = more
    return found


@price.page
def page(rows: list[Row]) -> list[str]:
    off = [x for row in rows for task, x in row["off"].items() if task != "hybrid"]
    known = [abs(x) for x in off if x is not None]
    agree = sum(x <= AGREE for x in known)
    told = [
        ("model", "{model}"), ("strategy", "{strategy}"),
        *((f"{task}, s", f"{{{task}}}") for task in ("partition", "pipeline", "hybrid")),
        ("off by, %", "{off}"), ("parts that differ, % of the step", "{apart}"),
    ]  # fmt: skip
    return [
        f"{len({x['model'] for x in rows})} shipped models on {CLUSTER}, {rows[0]['batch']} samples"
        " a step: data parallelism as a partition, as a pipeline of one stage and as a hybrid plan;"
        " two stages of four replicas, cut at the same border, as a pipeline and as a hybrid plan, "
        "4 micro-batches. Seconds by the hybrid model; in brackets what the task itself has. Of "
        f"{len(off)} plans, {agree} take the hybrid plan's seconds to {AGREE:.0%}; the others "
        "differ in the parts that are named. Partitions sum over replicas what a batch's samples "
        "share beside the gradients (the number of words that are no padding, statistics), which "
        "the other two leave to the layers: their *exchange*.",
        columns([_shown(row) for row in rows], told, left=2),
    ]


def _shown(row: Row) -> Row:
    """A row as the page has it."""
    cells = {task: f"{x:.5g} ({row['own'][task]:.5g})" for task, x in row["seconds"].items() if x}
    off = [x for task, x in row["off"].items() if task != "hybrid"]
    words = ", ".join("none" if x is None else f"{x:+.2%}".rstrip("%") for x in off)
    parts = ", ".join(f"{name} {x:+.1%}" for name, x in apart(row).items())
    return {"partition": "", "pipeline": "", **row, **cells, "off": words, "apart": parts}


if __name__ == "__main__":
    main(price)
