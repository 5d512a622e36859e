"""Exported plans, compiled and run: collectives, memory and losses beside predictions.

    python benchmarks/exports.py
    python benchmarks/exports.py --graphs vgg-19

Plans of shipped graphs are compiled by XLA for virtual CPU devices; deep models with the few layers
of ``SHALLOW``, at full width, batch and length. Needs the extras ``jax`` and ``torch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.framework import ROOT, Case, Row, main, measurement, table

import multimodal_models  # isort: skip
from parenvs import Graph, HybridPlan, HybridStage
from parenvs import problem as problem_from
from parenvs.agents.partition.exact import exact_partition
from parenvs.clock.compilation import compile_plan
from parenvs.cluster import choose_cluster
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.exports.stages import layout_of
from parenvs.graph.reader import proto_of, read_proto
from parenvs.instances import load_graph, names
from parenvs.tasks.hybrid.model import HybridModel

DEVICES, TP = 8, 4
STEPS = 20
TIMEOUT = 3600.0
"""Seconds after which a compiler or a run is stopped."""
TOLERANCE = 1e-4
"""Largest relative difference of losses that is none."""
BAND = 0.8, 1.25
"""Ratios of predicted memory to XLA's that count as near."""
SHALLOW: dict[str, Callable[[Any], Any]] = {
    "t5-3b": lambda models: models.t5(2, 1024, 16384, 32, 128),
    "t5-11b": lambda models: models.t5(2, 1024, 65536, 128, 128),
    "bert-48": lambda models: models.bert(2),
    "llama3-8b": lambda models: models.llama(2),
    "llama3-70b": lambda models: models.llama(2, 8192, 28672, 64, batch_size=64),
    "gpt3-175b": lambda models: models.gpt(2),
    "mixtral-8x7b": lambda models: models.mixtral(2),
    "vit-h14": lambda models: models.vit(2),
    "mixer-l16": lambda models: models.mixer(2),
    "dit-xl2": lambda models: models.dit(2),
    "clip-l14": lambda _: multimodal_models.clip(4, text_layers=2),
    "whisper-large": lambda _: multimodal_models.whisper(2),
}
"""Deep shipped graph -> its model with two layers; others are compiled whole."""
_RUNS = ("jax_transformer.py", "torch_transformer.py", "torch_transformer.py --processes 4")


def partition(graph: Graph, scope: str, reward: str) -> Plan:
    """Return the exact plan of a step that splits evenly."""
    cluster = choose_cluster(devices=DEVICES)
    problem = problem_from(graph, cluster, "partition", scope=scope, reward=reward, uneven="forbid")
    return exact_partition(problem).plan


def hybrid(graph: Graph) -> Plan:
    """Return a plan of two replicas with four tensor-parallel ranks, the whole batch at once."""
    stage = HybridStage(((0, len(HybridModel.of_graph(graph))),), DEVICES, tp=TP)
    cluster = choose_cluster(devices=DEVICES)
    roomy = replace(cluster.device, memory_bytes=1e15)  # a virtual device has any memory
    return HybridPlan(
        graph.name, graph.fingerprint, replace(cluster, device=roomy), "roofline", "fp32",
        batch=graph.batch_size, micro_batch=graph.batch_size * TP // DEVICES, stages=(stage,),
    )  # fmt: skip


KINDS: dict[str, Callable[[Graph], Plan]] = {
    "operators": lambda graph: partition(graph, "variables", "paper"),
    "batch": lambda graph: partition(graph, "inputs", "step_time"),
    f"{DEVICES // TP} x {TP}": hybrid,
}
"""Kind of a plan -> the plan of a step."""


def compiled(name: str, kind: str) -> Row:
    """Compile a plan of a step, and predict the same step; a refusal gives its reason."""
    begin = time.perf_counter()
    graph, source = load_graph(name), None
    if name in SHALLOW:
        import jax

        from parenvs.datasets import models

        model = SHALLOW[name](models)
        function, shapes = models.train_step(model)
        source = jax.jit(function, keep_unused=True).lower(*shapes)
        graph = read_proto(proto_of(source), name, name=name, batch_size=model.batch_size)
    try:
        plan = KINDS[kind](graph)
        result = compile_plan(plan, source, graph, timeout_seconds=TIMEOUT).to_json()
        expected = asdict(layout_of(plan, graph).expected())
    except ParenvsError as error:
        return {"refused": str(error)}
    return {**result, "predicted": expected, "wall": time.perf_counter() - begin}


def losses(which: str) -> list[Row]:
    """Return the losses of an example, in processes of its own."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    script, *words = which.split()
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / script), *words],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    rows = []
    for line in [line for line in ended.stdout.splitlines() if ": " in line][1:]:
        plan, words_of = line.split(": ", 1)
        rows.append({"run": which, "plan": plan, "worst": float(words_of.rsplit(" ", 1)[1])})
    return rows


@measurement(
    title="Plans predicted and compiled",
    key="run plan graph kind layers",
    wrong=lambda rows: any(x.get("worst", 1.0) > TOLERANCE for x in rows if "run" in x),
    among={"graphs": names()},
    about={"graphs": "shipped graphs to compile"},
)
def exports(known: list[Row], graphs: tuple[str, ...] = names()) -> Iterator[Case]:
    for which in _RUNS:
        for row in [] if any(x.get("asked_for") == which for x in known) else losses(which):
            yield {"run": row["run"], "plan": row["plan"]}, partial(dict, row, asked_for=which)
    for name in graphs:
        for kind in KINDS:
            layers = 2 if name in SHALLOW else None
            key = {"graph": name, "kind": kind, "layers": layers}
            yield key, partial(compiled, name, kind)


def as_predicted(row: Row) -> bool:
    """Return whether shardings, arrays, bytes and kinds of collectives are those predicted."""
    reduced = row["collectives"].get("all-reduce", {"arrays": 0, "bytes": 0.0})
    expected = row["predicted"]
    same = abs(reduced["bytes"] - expected["cpu_bytes"]) <= 1e-6 * expected["cpu_bytes"]
    others = any(x["arrays"] for k, x in row["collectives"].items() if k != "all-reduce")
    arrays = reduced["arrays"] == expected["arrays"]
    return arrays and same and not others and not row["changed"]


@exports.page
def page(rows: list[Row]) -> list[str]:
    runs = [row for row in rows if "run" in row]
    done = [row for row in rows if "collectives" in row and "predicted" in row]
    same = [row for row in done if as_predicted(row)]
    ratios = [row["predicted"]["cpu_peak_bytes"] / row["peak_bytes"] for row in done]
    near = sum(BAND[0] <= ratio <= BAND[1] for ratio in ratios)
    refused = {(row["graph"], row["kind"]) for row in rows if "refused" in row}
    lines = []
    for kind in KINDS:
        mine = [row for row in done if row["kind"] == kind]
        ratio = sorted(row["predicted"]["cpu_peak_bytes"] / row["peak_bytes"] for row in mine)
        if mine:
            lines.append([
                kind, str(len({row["graph"] for row in mine})), str(len(mine)),
                str(sum(map(as_predicted, mine))),
                f"{ratio[len(ratio) // 2]:.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f})",
            ])  # fmt: skip
    return [
        f"Losses of {STEPS} steps on virtual devices and local processes, beside one device: of "
        f"{len(runs)} runs the largest relative difference is "
        f"{max(row['worst'] for row in runs):.1e}.",
        "Training steps of shipped graphs at full width, batch and length, deep models with few "
        f"layers, compiled by XLA for {DEVICES} virtual CPU devices. `operators`: the exact plan "
        "under the paper's reward; `batch`: the exact data-parallel plan; "
        f"`{DEVICES // TP} x {TP}`: a hybrid plan of {DEVICES // TP} replicas with {TP} "
        "tensor-parallel ranks. As predicted: all shardings kept, arrays and bytes of collectives "
        f"equal, no other collective: {len(same)} of {len(done)}. Memory per device is within "
        f"{BAND[0]} to {BAND[1]} of XLA's in {near}; the prediction is for its compiler for CPUs, "
        f"which widens bfloat16. {len(refused)} plans cannot be exported.",
        table(
            ["plan", "graphs", "compiled", "as predicted", "memory predicted / XLA's, median"],
            lines,
        ),
    ]


if __name__ == "__main__":
    main(exports)
