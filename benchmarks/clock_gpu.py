"""Predictions against the clock of one GPU: kernels, layers, and steps of plans of one device.

Needs the extra ``torch`` and a GPU; predictions of which the lines were deleted need none. Seconds
are those between two events of the GPU, and bytes are those of PyTorch's allocator at its fullest.
Everything runs in float32, without TF32.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import clock_models
from benchmarks.framework import Case, Column, Row, columns, main, measurement, percent
from parenvs import Cluster, Graph, HybridPlan, HybridStage, from_torch
from parenvs.clock.calibration import Calibration, calibrated
from parenvs.clock.layers import profiled
from parenvs.clock.runs.run import run
from parenvs.clock.runs.torch import start
from parenvs.clock.timer import Timing
from parenvs.core.plan import judge
from parenvs.exports.torch import torch_plan

SOURCE = str(Path(__file__).with_name("clock_models.py"))
MODELS = ("decoder_small", "decoder_medium", "decoder_large")
STACK = "torch-2024"
CALIBRATION = "clock_gpu_calibration.json"


def kernels(steps: int, kind: str, folder: Path) -> Row:
    """Products and copies; the calibration's file stays in the folder."""
    found = calibrated(kind, 1, steps)
    found.save(folder / CALIBRATION)
    measured = [x.to_json() for x in found.rows if x.kind in ("matmul", "memory")]
    return {"device": found.provenance["device"], "torch": torch.__version__, "kernels": measured}


def of_layers(steps: int, kind: str, folder: Path, model: str) -> Row:
    """Layers of a model, each alone, beside the whole."""
    found = profiled(f"{SOURCE}:{model}", "decoder_batch", model, steps, device=kind)
    whole = sum(x.seconds for x in found.whole)
    return {"layers": float(found.profile.seconds.sum()), "whole": whole}


def of_plan(steps: int, kind: str, folder: Path, model: str, micro_batch: int) -> Row:
    """Steps of a plan of one device, with the update by Adam."""
    plan, graph, weights = planned(model, micro_batch)
    words = torch_plan(plan, graph)
    given = (f"{SOURCE}:{model}", "decoder_batch", words, steps, True, kind)
    (answer,) = start(*given, single=False)
    seconds = np.add(answer["step"], answer["update"]).tolist()
    return {
        "weights": weights,
        "step": Timing.of(seconds)._asdict(),
        "peak_bytes": answer["peak_bytes"],
    }


def prediction(steps: int, kind: str, folder: Path, model: str, micro_batch: int) -> Row:
    """What the folder's calibration predicts of a plan; made again on any machine."""
    plan, graph, _ = planned(model, micro_batch)
    cluster = Calibration.load(folder / CALIBRATION).cluster.part(1)
    report = judge(replace(plan, cluster=cluster), graph)
    return {"seconds": report.step_seconds, "bytes": report.stages[0].memory["total"]}


def same(steps: int, kind: str, folder: Path, model: str, micro_batch: int) -> Row:
    """Whether a plan is the same training as the module alone."""
    plan, graph, _ = planned(model, micro_batch)
    with tempfile.TemporaryDirectory(prefix="parenvs-") as place:
        graph.save(Path(place) / "graph.npz")
        file = Path(place) / "plan.json"
        replace(plan, instance=str(Path(place) / "graph.npz")).save(file)
        done = run(file, f"{SOURCE}:{model}", "decoder_batch", steps, 1, kind=kind)
    return {"agrees": done.agrees, "difference": done.difference}


def planned(model: str, micro_batch: int) -> tuple[HybridPlan, Graph, int]:
    """A plan of one device, the graph that it is of, and the number of weights."""
    module, loss = getattr(clock_models, model)()
    words, targets = clock_models.decoder_batch()
    graph = from_torch(module, words, loss=loss, targets=(targets,))
    plan = HybridPlan(
        model, graph.fingerprint, Cluster.parse("1x1:h100"), STACK, "fp32",
        batch=len(words), micro_batch=micro_batch,
        stages=(HybridStage(((0, len(module.layers)),), 1),),
    )  # fmt: skip
    return plan, graph, sum(x.numel() for x in module.parameters())


@measurement(
    title="Predictions against the clock of one GPU",
    key="part model micro_batch",
    about={"steps": "that are timed of each plan", "kind": "cpu, to try it without a GPU"},
)
def clock_gpu(folder: Path, steps: int = 12, kind: str = "cuda") -> list[Case]:
    cases: list[tuple[str, str, int]] = [("kernels", "", 0)]
    cases += [("plan", model, size) for size in (8, 2) for model in MODELS]
    cases += [("prediction", model, size) for size in (8, 2) for model in MODELS]
    cases += [("layers", model, 0) for model in MODELS]
    cases.append(("same", MODELS[0], 2))
    measures = {
        "kernels": kernels, "plan": of_plan, "prediction": prediction, "layers": of_layers,
        "same": same,
    }  # fmt: skip
    return [
        (
            {"part": part, "model": model, "micro_batch": size},
            partial(measures[part], steps, kind, folder, *filter(None, (model, size))),
        )
        for part, model, size in cases
    ]


@clock_gpu.page
def page(rows: list[Row], steps: int) -> list[str]:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    (first,) = parts["kernels"]
    sections = [
        f"One {first['device']}, PyTorch {first['torch']}. {steps} runs each, behind a warm-up. "
        "What two GPUs and more would show (collectives, pipelines, replicas) is not here: none "
        "were at hand."
    ]
    told = {(x["model"], x["micro_batch"]): x for x in parts.get("prediction", [])}
    plans = [{**told[key], **x} for x in parts.get("plan", []) for key in [_key(x)] if key in told]
    if plans:
        seconds = [abs(x["seconds"] / x["step"]["seconds"] - 1) for x in plans]
        held = [abs(x["bytes"] / x["peak_bytes"] - 1) for x in plans]
        trained = " ".join(
            f"{x['model']} in micro-batches of {x['micro_batch']} is "
            f"{'' if x['agrees'] else 'not '}the same training as the module alone (losses differ "
            f"by {x['difference']:.1e})."
            for x in parts.get("same", [])
        )
        sections += [
            "## Steps\n\nPlans of one device, 8 texts of 512 words, with the update by Adam, "
            f"predicted by the calibration below and the stack {STACK}. Mean error of seconds: "
            f"{percent(sum(seconds) / len(seconds), 1)}; of memory: "
            f"{percent(sum(held) / len(held), 1)}. {trained}",
            columns(plans, PLANS),
        ]
    if "layers" in parts:
        words = "## Layers\n\n`parenvs profile`: forward and backward passes."
        sections += [words, columns(parts["layers"], LAYERS)]
    words = "## Kernels\n\n`parenvs calibrate`."
    return [*sections, words, columns(first["kernels"], KERNELS, left=3)]


def _key(row: Row) -> tuple[str, int]:
    """What tells a plan from others."""
    return row["model"], row["micro_batch"]


def _size(row: Row) -> str:
    """Sides of a product, or bytes of a copy."""
    shape = row.get("shape")
    return " x ".join(map(str, shape)) if shape else f"{row['bytes']:,.0f}"


def _rate(row: Row) -> str:
    """What a kernel computes or moves in a second."""
    shape = row.get("shape")
    if shape:
        m, k, n = shape
        return f"{2 * m * k * n / row['seconds'] / 1e12:.1f}"
    return f"{2 * row['bytes'] / row['seconds'] / 1e12:.2f}"


KERNELS: list[Column] = [
    ("kernel", "{kind}"),
    ("precision", lambda row: row.get("precision") or ""),
    ("m x k x n, or bytes", _size),
    ("ms", "{seconds:.4f*1e3}"),
    ("quartiles", "{low:.4f*1e3} to {high:.4f*1e3}"),
    ("TFLOP/s, or TB/s", _rate),
]
LAYERS: list[Column] = [
    ("model", "{model}"),
    ("ms of layers, each alone", "{layers:.2f*1e3}"),
    ("ms of the whole", "{whole:.2f*1e3}"),
    ("ratio", lambda row: f"{row['layers'] / row['whole']:.2f}"),
]
PLANS: list[Column] = [
    ("model", "{model}"),
    ("weights", "{weights:,}"),
    ("micro-batch", "{micro_batch}"),
    ("ms predicted", "{seconds:.1f*1e3}"),
    ("median", "{step[seconds]:.1f*1e3}"),
    ("quartiles", "{step[low]:.1f*1e3} to {step[high]:.1f*1e3}"),
    ("predicted / median", lambda row: f"{row['seconds'] / row['step']['seconds']:.2f}"),
    ("GB predicted", "{bytes:.2f/1e9}"),
    ("GB", "{peak_bytes:.2f/1e9}"),
    ("ratio", lambda row: f"{row['bytes'] / row['peak_bytes']:.2f}"),
]


if __name__ == "__main__":
    main(clock_gpu)
