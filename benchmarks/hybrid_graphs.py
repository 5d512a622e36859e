"""Hybrid models of graphs: layers, kernels, where the time goes, and what shapes say of the same.

Seconds are those of one micro-batch on one device unless plans are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.framework import INSTANCES, Column, cell, columns, main, measurement, spent, table
from parenvs import Cluster, load_graph
from parenvs.shipped import names
from parenvs.tasks.hybrid.graph_chain import GraphLayer
from parenvs.tasks.hybrid.layers import Layer, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import STACKS, Machine
from parenvs.tasks.hybrid.uniform import Uniform

SAMPLES = 64.0
"""Samples of a micro-batch where the time goes: those of the graphs."""
FEW = 8.0
"""Samples where a layer is compared with its shape."""
DEVICES = ("a100", "h100")
BERT = TransformerShape(
    "bert-48", 48, 1024, 16, 512, 30522, dropout=False, causal=False, positions=512
)
CLUSTERS = ("A", "C", "a100-2", "h100-2")
BATCH = 512


def machine(device: str, precision: str, stack: str) -> Machine:
    """What a stack makes of one device."""
    return STACKS[stack].machine(Cluster.parse(f"1x8:{device}"), precision)


def layers(model: HybridModel) -> list[Layer]:
    """Every layer of a model, embedding and head too."""
    inside = [model.kinds[kind] for kind in model.kind_of]
    return [layer for layer in (model.embedding, *inside, model.head) if layer is not None]


def seconds(model: HybridModel, where: Machine) -> tuple[float, float]:
    """Seconds of a micro-batch through the whole model, and those of its products."""
    split = Split(1, SAMPLES)
    total = products = 0.0
    for layer in layers(model):
        assert isinstance(layer, GraphLayer)
        found = layer.seconds(where, split)
        total += float(np.squeeze(found.forward + found.backward))
        products += layer.product_seconds(where, SAMPLES)
    return total, products


def read(name: str) -> tuple[dict[str, Any], HybridModel]:
    """What is found in a graph."""
    graph = load_graph(name)
    row: dict[str, Any] = {}
    with spent(row, "seconds to read"):
        model = HybridModel.of_graph(graph)
    assert model.chain is not None
    program = model.chain.program
    row |= {
        "graph": name, "layers": len(model), "told by": program.borders.told_by,
        "kinds": len(model.kinds), "instructions": int((program.label >= 0).sum()),
        "kernels": len(model.chain.work.kernels), "parameters": model.chain.parameters,
        "tp": [tp for tp in (2, 4, 8) if model.reasons_against_tp(tp) is None],
        "notes": list(model.notes),
    }  # fmt: skip
    return row, model


def timed(name: str, model: HybridModel) -> dict[str, Any]:
    """Where the time of a micro-batch goes, by several ways of counting."""
    alone = HybridModel.of_graph(load_graph(name), costs="instructions")
    times: dict[str, Any] = {}
    for device in DEVICES:
        old = machine(device, "fp32", "roofline")
        peak = 0.5 * Cluster.parse(f"1x8:{device}").device.peak("bf16")
        ways = {
            "instructions, bf16 peak": (alone, old._replace(flops=peak)),
            "instructions, fp32": (alone, old),
            "instructions, tf32": (alone, machine(device, "tf32", "roofline")),
            "kernels, tf32": (model, machine(device, "tf32", "megatron-2022")),
            "kernels, bf16": (model, machine(device, "bf16", "megatron-2022")),
            "kernels, bf16, fused attention": (model, machine(device, "bf16", "nemo-2024")),
        }
        for way, (which, where) in ways.items():
            total, products = seconds(which, where)
            rate = model.flops(SAMPLES) / total / 1e12
            share = None if "fused" in way else products / total
            times[f"{device}: {way}"] = {"share": share, "tflops": rate, "seconds": total}
    return {"graph": name, "times": times}


def against_shape() -> list[dict[str, Any]]:
    """A layer of BERT-48 by its graph and by its shape."""
    rows = []
    pair = HybridModel.of_graph(load_graph("bert-48")), HybridModel.of_shape(BERT)
    inside = [model.kinds[model.kind_of[20]] for model in pair]
    for device, precision in (("v100", "fp16"), ("a100", "tf32"), ("a100", "bf16"),
                              ("h100", "bf16")):  # fmt: skip
        where = machine(device, precision, "megatron-2022")
        for tp in (1, 8):
            split = Split(tp, FEW)
            both = [layer.seconds(where, split) for layer in inside]
            kept = [float(np.squeeze(x.saved_bytes(where, split, "none"))) for x in inside]
            figures = {
                key: [float(np.squeeze(getattr(found, key))) for found in both]
                for key in ("forward", "backward", "forward_exchange", "backward_exchange")
            }
            rows.append({"device": f"{device} {precision}", "tp": tp, **figures, "kept": kept})
    return rows


def best_uniform(name: str, model: HybridModel, cluster: str) -> dict[str, Any]:
    """The best plan of those whose stages are all alike."""
    problem = Hybrid(model, Cluster.parse(cluster), BATCH)
    devices = problem.cluster.devices
    rows = [
        (tp, pp, devices // (tp * pp), micro_batch, shared, mode, zero)
        for tp in (1, 2, 4, 8) if model.reasons_against_tp(tp) is None
        for pp in range(1, min(devices // tp, len(model)) + 1) if devices % (tp * pp) == 0
        for micro_batch in (1, 2, 4, 8, 16, 32, 64)
        if BATCH % (micro_batch * devices // (tp * pp)) == 0
        for shared in (False, True)
        if not shared or (tp > 1 and model.reasons_against_sequence_parallel() is None)
        for mode in ("none", "selective", "full")
        for zero in ((0, 1, 2, 3) if pp == 1 else (0, 1))
    ]  # fmt: skip
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    fields = ("tp", "pp", "dp", "micro_batch", "sequence_parallel", "recompute", "zero")
    plans = Uniform(batch=BATCH, gradient_bytes=4.0, **dict(zip(fields, columns, strict=True)))
    length, size = plans.judged(model, problem.cluster, problem.machine)
    fits = size["total"] <= problem.memory_limit
    row: dict[str, Any] = {"graph": name, "cluster": cluster, "plans": len(rows),
                           "fit": int(fits.sum()), "precision": problem.precision}  # fmt: skip
    if not fits.any():
        return row
    best = int(np.where(fits, length["length"], np.inf).argmin())
    report = problem.report(problem.uniform_plan(plans, best))
    chosen = dict(zip(fields, rows[best], strict=True))
    return {**row, "plan": chosen, "seconds": report.length_seconds, "legal": report.legal,
            "tflops": report.tflops["model"], "mfu": report.mfu,
            "gigabytes": float(size["total"][best]) / 1e9}  # fmt: skip


@measurement(title="Graphs as hybrid models")
def hybrid_graphs() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names():
        row, model = read(name)
        yield "graphs", row
        if name in INSTANCES:
            yield "times", timed(name, model)
            for cluster in CLUSTERS:
                yield "plans", best_uniform(name, model, cluster)
    for row in against_shape():
        yield "shape", row


def share(time_: dict[str, Any]) -> str:
    products = "" if time_["share"] is None else f"{time_['share']:.0%}, "
    return f"{products}{time_['tflops']:.0f}"


def over_shape(key: str, shown: str) -> Any:
    """A column: a figure of the graph over that of the shape."""

    def told(row: dict[str, Any]) -> str:
        of_graph, of_shape = row[key]
        return shown.format(of_graph / of_shape - 1, 1e3 * of_graph) if of_shape else "-"

    return told


GRAPHS: list[Column] = [
    *((key, f"{{{key}}}") for key in ("graph", "layers", "told by", "kinds", "instructions")),
    ("kernels", "{kernels}"),
    ("parameters", "{parameters:.4g}"),
    ("tp that split", lambda row: ", ".join(map(str, row["tp"])) or "none"),
    ("seconds to read", "{seconds to read:.1f}"),
    ("said", lambda row: "; ".join(row["notes"])),
]
SHAPE: list[Column] = [
    ("device", "{device}"),
    ("tp", "{tp}"),
    *((key.replace("_", " "), over_shape(key, "{:+.1%} ({:.3f})"))
      for key in ("forward", "backward")),
    *((f"exchange {way}", over_shape(f"{way}_exchange", "{:+.1%} ({:.3f})"))
      for way in ("forward", "backward")),
    ("kept", over_shape("kept", "{:+.1%}")),
]  # fmt: skip
PLANS: list[Column] = [
    *((key, f"{{{key}}}") for key in ("graph", "cluster", "precision", "plans", "fit")),
    *((title, lambda row, shown=shown: cell(shown, row) if "plan" in row else "-")
      for title, shown in (
          ("tp", "{plan[tp]}"), ("stages", "{plan[pp]}"), ("replicas", "{plan[dp]}"),
          ("micro-batch", "{plan[micro_batch]}"),
          ("sequence parallel", lambda row: "yes" if row["plan"]["sequence_parallel"] else "no"),
          ("recompute", "{plan[recompute]}"), ("ZeRO", "{plan[zero]}"),
          ("seconds", "{seconds:.4g}"), ("TFLOP/s", "{tflops:.1f}"),
          ("MFU", lambda row: f"{row['mfu']:.0%}"), ("GB", "{gigabytes:.1f}"),
      )),
]  # fmt: skip


@hybrid_graphs.page
def page(data: dict[str, list[dict[str, Any]]]) -> list[str]:
    times = data["times"]
    return [
        "## Layers and kernels",
        "Instructions and kernels of both passes, without the update; CPU seconds.",
        columns(data["graphs"], GRAPHS),
        f"## Where the time goes, micro-batch of {SAMPLES:.0f}",
        "Share of matrix products and convolutions, and TFLOP/s of the whole step without its "
        "update, on one device. `instructions`: each by itself, at half the peak of a precision "
        "(`bf16 peak`: that of bf16 with bytes of fp32, as single tasks counted until precisions "
        "were told apart), the update counted as they do; `kernels`: fused, by the constants of "
        "`megatron-2022` (fused attention: `nemo-2024`).",
        table(
            ["way", *(row["graph"] for row in times)],
            [[way, *(share(row["times"][way]) for row in times)] for way in times[0]["times"]],
        ),
        "## A layer of BERT-48 by its graph and by its shape",
        "Graph / shape - 1, with `megatron-2022`, 8 samples; milliseconds of the graph in "
        "brackets. The graph has the gradients of biases as kernels of their own, which the shape "
        "leaves out; with tp 8 these and starts of kernels weigh more.",
        columns(data["shape"], SHAPE),
        f"## The best uniform plan, batch {BATCH}",
        "Of all plans with equal stages; gradients in 4 bytes, not overlapped. The precision is "
        "that of the graphs, fp32 as TF32 where there is one; stacks are the devices' own.",
        columns(data["plans"], PLANS),
    ]


if __name__ == "__main__":
    main(hybrid_graphs)
