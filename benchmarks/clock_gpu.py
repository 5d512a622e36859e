"""Predictions against the clock of one GPU: kernels, layers, and steps of plans of one device.

Needs the extra ``torch`` and a GPU. Seconds are those between two events of the GPU, and bytes are
those of PyTorch's allocator at its fullest. Everything runs in float32, without TF32.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import clock_models
from benchmarks.framework import Column, Row, columns, main, measurement, percent, progress
from parenvs import Cluster, HybridPlan, HybridStage, from_torch
from parenvs.clock.calibration import Calibration, calibrated
from parenvs.clock.layers import profiled
from parenvs.clock.runs.prediction import of_plan as predicted
from parenvs.clock.runs.run import run
from parenvs.clock.runs.torch import start
from parenvs.clock.timer import Timing

SOURCE = str(Path(__file__).with_name("clock_models.py"))
MODELS = ("decoder_small", "decoder_medium", "decoder_large")
BATCH = 8


def of_layers(name: str, repeats: int, kind: str) -> Row:
    """Layers of a model, each alone, beside the whole."""
    progress(f"layers of {name}")
    found = profiled(f"{SOURCE}:{name}", "decoder_batch", name, repeats, device=kind)
    return {
        "model": name,
        "layers": float(found.profile.seconds.sum()),
        "whole": sum(x.seconds for x in found.whole),
    }


def of_plan(name: str, micro_batch: int, folder: Path, steps: int, kind: str) -> Row:
    """A plan of one device, predicted by the calibration of the folder, and run."""
    progress(f"{name} in micro-batches of {micro_batch}")
    model, loss = getattr(clock_models, name)()
    words, targets = clock_models.decoder_batch()
    graph = from_torch(model, words, loss=loss, targets=(targets,))
    graph.save(folder / "graph.npz")
    layers = len(model.layers)
    plan = HybridPlan(
        str(folder / "graph.npz"), graph.fingerprint, Cluster.parse("1x1:h100"), "roofline", "fp32",
        batch=BATCH, micro_batch=micro_batch, stages=(HybridStage(((0, layers),), 1),),
    )  # fmt: skip
    plan.save(folder / "plan.json")
    weights = sum(x.numel() for x in model.parameters())
    row: Row = {"model": name, "micro_batch": micro_batch, "weights": weights}
    source = f"{SOURCE}:{name}"
    if name == MODELS[0]:  # states of larger ones take minutes on their way between processes
        done = run(
            folder / "plan.json", source, "decoder_batch", steps, 1,
            folder / "calibration.json", kind,
        )  # fmt: skip
        row["agrees"] = done.agrees
    words, expected = predicted(plan, graph, Calibration.load(folder / "calibration.json"), kind)
    (answer,) = start(source, "decoder_batch", words, steps, expected.adam, kind, single=False)
    seconds = np.add(answer["step"], answer["update"]) if expected.updates else answer["step"]
    return {
        **row,
        "seconds": expected.seconds,
        "step": Timing.of(list(seconds))._asdict(),
        "bytes": expected.memory[0],
        "peak_bytes": answer["peak_bytes"],
    }


@measurement(about={"steps": "that are timed of each plan", "kind": "cpu, to try it without a GPU"})
def clock_gpu(
    steps: int = 20, kind: str = "cuda", models: tuple[str, ...] = MODELS
) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory(prefix="parenvs-") as place:
        folder = Path(place)
        progress("calibrating")
        found = calibrated(kind, 1, steps)
        found.save(folder / "calibration.json")
        plans = partial(of_plan, folder=folder, steps=steps, kind=kind)
        return {
            "device": found.provenance["device"],
            "torch": torch.__version__,
            "steps": steps,
            "missing": found.missing,
            "kernels": [
                x.to_json() for x in found.rows if x.kind in ("matmul", "copy")
            ],
            "layers": [of_layers(name, steps, kind) for name in models],
            "plans": [plans(name, size) for name in models for size in (BATCH, BATCH // 4)],
        }  # fmt: skip


@clock_gpu.page
def page(data: dict[str, Any]) -> list[str]:
    kernels: list[Column] = [
        ("kernel", "{kind}"),
        ("precision", lambda row: row.get("precision") or ""),
        ("m x k x n, or bytes", _size),
        ("ms", "{seconds:.4f*1e3}"),
        ("quartiles", "{low:.4f*1e3} to {high:.4f*1e3}"),
        ("TFLOP/s, or TB/s", _rate),
    ]
    layers: list[Column] = [
        ("model", "{model}"),
        ("ms of layers, each alone", "{layers:.2f*1e3}"),
        ("ms of the whole", "{whole:.2f*1e3}"),
        ("ratio", lambda row: f"{row['layers'] / row['whole']:.2f}"),
    ]
    plans: list[Column] = [
        ("model", "{model}"),
        ("weights", "{weights:,}"),
        ("micro-batch", "{micro_batch}"),
        ("same training", lambda row: {None: "", True: "yes", False: "no"}[row.get("agrees")]),
        ("ms predicted", lambda row: f"{1e3 * row['seconds']:.1f}"),
        ("median", "{step[seconds]:.1f*1e3}"),
        ("quartiles", "{step[low]:.1f*1e3} to {step[high]:.1f*1e3}"),
        ("predicted / median", lambda row: f"{row['seconds'] / row['step']['seconds']:.2f}"),
        ("GB predicted", lambda row: f"{row['bytes'] / 1e9:.2f}"),
        ("GB", lambda row: f"{row['peak_bytes'] / 1e9:.2f}"),
        ("ratio", lambda row: f"{row['bytes'] / row['peak_bytes']:.2f}"),
    ]
    errors = [abs(x["seconds"] / x["step"]["seconds"] - 1) for x in data["plans"]]
    held = [abs(x["bytes"] / x["peak_bytes"] - 1) for x in data["plans"]]
    return [
        f"One {data['device']}, PyTorch {data['torch']}. {data['steps']} runs each, behind a "
        "warm-up. What two GPUs and more would show (collectives, pipelines, several replicas) is "
        "not here: none were at hand.",
        f"## Steps\n\nPlans of one device, 8 texts of 512 words, with the update by Adam. Predicted by the "
        f"calibration below. Mean error of seconds: {percent(sum(errors) / len(errors), 1)}; of "
        f"memory: {percent(sum(held) / len(held), 1)}.",
        columns(data["plans"], plans),
        "## Layers\n\n`parenvs profile`: forward and backward passes.",
        columns(data["layers"], layers),
        "## Kernels\n\n`parenvs calibrate`.",
        columns(data["kernels"], kernels, left=3),
    ]


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


if __name__ == "__main__":
    main(clock_gpu)
