"""Readers of hybrid plans, shapes, stacks and measurements, for ``fuzz.py``."""

from __future__ import annotations

import json
import math
import re
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz_readers import Reader, WrongAcceptanceError, must, refusable
from parenvs import ParenvsError, judge, load_plan
from parenvs.bench.hybrid import page
from parenvs.bench.hybrid.predict import Prediction, Skipped, predictions
from parenvs.bench.hybrid.rows import read_json, read_rows, shipped
from parenvs.bench.hybrid.steps import Steps, compared, read_steps
from parenvs.cluster import Cluster
from parenvs.core.plan import ILLEGAL
from parenvs.tasks.hybrid.load import load_model
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.shipped import load_shape, shapes
from parenvs.tasks.hybrid.stack import STACKS, Stack
from parenvs.tasks.hybrid.uniform import Uniform

SHAPE, GRAPH = "bert-large", "vgg-19"
MIXTURE = next(shape for shape in shapes().values() if shape.experts > 1)


@cache
def model_of(name: str) -> HybridModel:
    """Return the chain of a shipped instance, those of the valid files alone."""
    if name not in (SHAPE, GRAPH, MIXTURE.name):
        raise ParenvsError("another instance, which would take long to load")
    return load_model(name)


def check_plan(plan: HybridPlan) -> None:
    """Check that a hybrid plan outlives its file, and the judge's verdict on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json"
        plan.save(path)
        must(load_plan(path) == plan, "another plan from its own file")
    with refusable():
        check_report(judge(plan, model_of(plan.instance)), plan.stack)


def check_report(report: Any, stack: Any) -> None:
    """Check a verdict: finite figures, -1 exactly if illegal, and no plan below its bound."""
    must(math.isfinite(report.value), f"a plan's value is {report.value}")
    must(report.legal == (report.value != ILLEGAL), f"value {report.value}, legal {report.legal}")
    if report.legal:
        must(0 < report.length_seconds < math.inf, f"its length is {report.length_seconds}")
        must(report.devices_used <= report.cluster.devices, "more devices than there are")
        names = [n for s in report.plan.stages for a, b in s.layers for n in range(a, b)]
        must(names == sorted(names) or report.plan.chunks > 1, "layers out of order")
        must(sorted(names) == list(range(len(report.model))), "a layer is missing, or held twice")
        held = [stage.memory for stage in report.stages]
        must(all(0 <= x < math.inf for s in held for x in s.values()), "impossible bytes")
        full = max(stage["total"] for stage in held)
        must(full <= report.memory_limit_bytes * (1 + 1e-12), "more memory than there is")
        if isinstance(stack, str) and report.mfu is not None:  # shares of a stack are below 1
            must(0 < report.mfu <= 1, f"its MFU is {report.mfu}")
            must(report.value <= 1 + 1e-9, f"value {report.value}, faster than its bound")
    try:
        json.dumps(report.to_json(), allow_nan=False)
    except ValueError:
        raise WrongAcceptanceError("a figure of its report is not finite") from None
    must(not re.search(r"\bnan\b", str(report)), "its text has no numbers")


def check_uniform(problem: Hybrid) -> None:
    """Check an even plan of a problem: one stage for each server, tensor parallelism inside."""
    cluster = problem.cluster
    uniform = Uniform(
        tp=cluster.devices_per_server, pp=cluster.servers, dp=1, micro_batch=1,
        batch=problem.batch, recompute="full",
    )  # fmt: skip
    stack = problem.stack
    plain = stack.name if stack == STACKS[stack.name] else asdict(stack)
    check_report(problem.report(problem.uniform_plan(uniform, 0)), plain)


def check_shape(shape: TransformerShape) -> None:
    """Check a shape's figures, that it outlives its object, and a plan of it."""
    again = TransformerShape.from_json(json.loads(json.dumps(asdict(shape))))
    must(again.fingerprint == shape.fingerprint, "another fingerprint from its own object")
    must(0 < shape.parameters < math.inf, f"{shape.parameters} parameters")
    must(0 < shape.flops(1.0) < math.inf and 0 < shape.token_flops(1.0) < math.inf, "FLOPs")
    with refusable():
        check_uniform(Hybrid(HybridModel.of_shape(shape), Cluster.parse("2x4:a100"), 8))


def check_stack(stack: Stack) -> None:
    """Check a stack's constants, that it outlives its object, and a plan with it."""
    again = Stack.parse(json.loads(json.dumps(stack.to_json(), allow_nan=False)))
    must(replace(again, source=stack.source) == stack, "another stack from its own object")
    for cluster, precision in (("2x4:a100", "bf16"), ("2x4:v100", "fp16")):
        with refusable():
            machine = stack.machine(Cluster.parse(cluster), precision)
            for key in ("flops", "attention_flops", "memory_bw"):
                value = getattr(machine, key)
                must(value is None or 0 < value < math.inf, f"{key} is {value}")
            model = model_of(SHAPE)
            check_uniform(Hybrid(model, Cluster.parse(cluster), 8, stack, precision))


def check_predictions(found: tuple[list[Prediction], list[Skipped]]) -> None:
    """Check what published rows are predicted to be."""
    rows, skipped = found
    for row in rows:
        must(0 < row.predicted < math.inf, f"row {row.row}: {row.column} is {row.predicted}")
        must(math.isfinite(row.error), "an error that is not finite")
    _check_page(rows, skipped, [])


def check_steps(steps: Steps) -> None:
    """Check the constants fitted on measured steps, and what they predict."""
    _check_page([], [], [steps])


def _check_page(rows: list[Prediction], skipped: list[Skipped], files: list[Steps]) -> None:
    """Check the page of ``parenvs bench hybrid``, and its JSON."""
    data = page.to_json(rows, skipped, files, compared(files))
    must("nan" not in " ".join(page.page(data)).split(), "a page with figures that are none")
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        raise WrongAcceptanceError("a figure of the page is not finite") from None


def plans() -> list[bytes]:
    """Return plans of a shape, of experts, and of a graph."""
    halves = (
        HybridStage(((0, 12),), 4, 2, 1, {"full": 5, "selective": 2}),
        HybridStage(((12, 24),), 4, 4),
    )
    shape = Hybrid(model_of(SHAPE), Cluster.parse("1x8:a100"), 64, instance=SHAPE)
    made = [shape.plan(halves, 1, p2p="overlapped")]
    chunks = tuple(
        HybridStage(tuple((4 * k + 8 * v, 4 * k + 8 * v + 4) for v in range(3)), 4, 2)
        for k in range(2)
    )
    stack = {"name": "megatron-2022", "link_share": 0.5, "matmul_share": {"a100": 0.6}}
    problem = Hybrid(model_of(SHAPE), Cluster.parse("2x4:a100"), 64, Stack.parse(stack))
    more = {"schedule": "interleaved", "chunks": 3, "sequence_parallel": True, "servers": (1, 0)}
    made.append(problem.plan(chunks, 2, **more))
    layers = len(model_of(MIXTURE.name))
    experts = Hybrid(model_of(MIXTURE.name), Cluster.parse("4x8:h100"), 64)
    ranges = (((0, layers // 2),), ((layers // 2, layers),))
    made.append(experts.plan([HybridStage(r, 16, 2, 1) for r in ranges], 1, expert=4, context=2))
    graph = Hybrid(model_of(GRAPH), Cluster.parse("1x4:v100"), 64, instance=GRAPH)
    size = len(graph.model)
    whole = HybridStage(((0, size),), 4, 1, 2, ("full",) + ("none",) * (size - 1))
    made.append(graph.plan([whole], 8))
    return [json.dumps(plan.to_json()).encode() for plan in made]


def rows() -> list[bytes]:
    """Return one published row of each source and table, in files of four."""
    content = json.loads(shipped("published.json").read_text(encoding="utf-8"))
    first = {(row.get("source"), row.get("table")): row for row in content["rows"]}
    chosen = list(first.values())
    return [json.dumps({"rows": chosen[k : k + 4]}).encode() for k in range(0, len(chosen), 4)]


def steps() -> list[bytes]:
    """Return files of measured steps: of a shape, and of a profile's layers, on a cluster."""
    measured = [[1, 2, 900.0], [2, 2, 500.0], [2, 1, 700.0], [1, 4, 650.0]]
    head = {"global_batch": 16, "micro_batch": 2, "measured": measured}
    shape = {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 99}
    layers = [[1.0, 2.0, 0.1, 8.0, 4096], *[[3.0, 6.0, 0.1, 16.0, 1024]] * 4, [2, 4, 0.1, 4, 4096]]
    return [
        json.dumps({"model": "mine", "shape": shape, **head}).encode(),
        json.dumps({"model": "other", "layers": layers, "cluster": "4x1:v100", **head}).encode(),
    ]


def stacks() -> list[bytes]:
    """Return stacks with constants of every kind."""
    attention = {"h100": 0.29, "other": 0.35}
    objects = (
        {"name": "roofline"},
        {"name": "torch-2024", "attention_share": attention, "early_stop": False},
        {"name": "megatron-2021", "matmul_share": 0.5, "hop_in": 1e-6, "link_rule": "node"},
        {"name": "deepspeed-2022", "state_bytes": 4.0, "waves": True, "attention_share": None},
    )
    return [json.dumps(content).encode() for content in objects]


def shape_files() -> list[bytes]:
    """Return shapes: a small one, and a mixture of experts."""
    small = {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 99}
    return [json.dumps(small).encode(), json.dumps(asdict(MIXTURE)).encode()]


HYBRID: dict[str, Reader] = {
    "hybrid": Reader(".json", 6, plans, load_plan, check_plan),
    "shape": Reader(".json", 2, shape_files, load_shape, check_shape),
    "stack": Reader(
        ".json", 2, stacks, lambda path: Stack.parse(read_json(path, str(path))), check_stack
    ),
    "rows": Reader(".json", 3, rows, lambda path: predictions(read_rows(path)), check_predictions),
    "steps": Reader(".json", 1, steps, read_steps, check_steps),
}
"""Name -> reader, with its share of ``fuzz_readers.READERS``."""
