"""The shipped models: sizes against published ones, load times, exact plans, and Llama's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from benchmarks.framework import (
    Column,
    cell,
    columns,
    main,
    measurement,
    percent,
    progress,
    table,
)
from parenvs import Pipeline, load_profile
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_full
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.graph.graph import Graph, Phase
from parenvs.shipped import PAPER, data_folder, manifest, names
from parenvs.tasks.partition.formulas import Memory
from parenvs.tasks.partition.problem import Partitioning, load_partitioning
from parenvs.tasks.pipeline.plan import TIED
from parenvs.tasks.pipeline.problem import stages_on

SERVER = "1x8:a100"
"""Devices of the partition plans."""
CLUSTERS = ("C", "2x8:a100", "4x8:h100")
"""Clusters of the pipeline plans; each server is a stage."""
MOST_SECONDS = 30.0
"""Time limit of a search for a pipeline plan."""
LLAMA, LLAMA_SERVER, PARAMETERS = "llama3-8b", "1x8:h100", 8_030_261_248
MEASURED = 82.4 * 2**30
"""Bytes of a device as torchtitan measured them: Llama 3.1 8B, 2 x 8,192 tokens on each of 8 H100,
weights, gradients and moments sharded, selective recomputation (docs of torchtitan, benchmarks)."""


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and the seconds that it took."""
    begin = time.perf_counter()
    result = call()
    return result, time.perf_counter() - begin


def processing(call: Callable[[], Any]) -> float:
    """Seconds of the processor that a call takes."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def sizes(name: str) -> dict[str, Any]:
    """What a model is, against what is published of it."""
    from published_models import published

    entry, known = manifest()["instances"][name], published(name)
    train, forward = entry["graphs"]["train"], entry["graphs"]["forward"]
    path = data_folder() / train["file"]
    milliseconds = 1e3 * min(processing(lambda: Graph.load(path)) for _ in range(5))
    return {
        "model": name,
        "family": entry["family"],
        "precision": entry["precision"],
        "optimiser": entry["optimiser"],
        "batch_size": entry["batch_size"],
        "trained_as": entry["trained_as"],
        "parameters": train["parameters"],
        "parameters_published": known.parameters,
        "parameters_source": known.source,
        "flops": forward["flops"] / entry["batch_size"],
        "flops_published": known.flops,
        "flops_source": known.flops_source,
        "training_over_forward": train["flops"] / forward["flops"],
        "instructions": train["instructions"],
        "megabytes": (train["bytes"] + forward["bytes"]) / 1e6,
        "load_milliseconds": milliseconds,
        "pivots": len(load_profile(name, "C")),
        "variables": train["variables"],
    }


def partition(name: str) -> dict[str, Any]:
    """The exact partition plans of one server: the fastest one, and the fastest that fits."""
    problem, build_seconds = timed(lambda: load_partitioning(name, SERVER, reward="step_time"))
    found: dict[str, Any] = {
        "model": name,
        "classes": len(problem.decidable("all")),
        "build_seconds": build_seconds,
    }
    for key, limit in (("any", None), ("fits", problem.cluster.memory_limit)):
        try:
            answer, seconds = timed(lambda limit=limit: exact_partition(problem, limit))
        except InfeasibleError as error:
            found[key] = {"error": str(error)}
            continue
        report = answer.report
        found[key] = {
            "proven": answer.proven,
            "legal": report.legal,
            "seconds": seconds,
            "step_seconds": report.step_seconds,
            "memory_bytes": report.memory.peak,
        }
    found["replicated_seconds"] = problem.replicate_seconds
    return found


def pipeline(name: str, cluster_name: str) -> dict[str, Any]:
    """The shortest pipeline plan, one stage a server."""
    cluster = Cluster.parse(cluster_name)
    tied = TIED[name not in PAPER]
    problem = Pipeline(
        load_profile(name, cluster), cluster, stages_on(cluster, None), instance=name, tied=tied
    )
    found: dict[str, Any] = {"model": name, "cluster": cluster_name}
    begin = time.perf_counter()
    try:
        answer = exact_full(problem, time_limit=MOST_SECONDS)
    except InfeasibleError as error:
        return found | {"seconds": time.perf_counter() - begin, "error": str(error)}
    length = float(problem.length(answer.plan.cuts, answer.plan.device_cuts))
    return found | {
        "seconds": time.perf_counter() - begin,
        "status": answer.status,
        "length_seconds": length,
        "bound_seconds": answer.bound,
        "busy": problem.bubble_free / length,
        "device_cuts": answer.plan.device_cuts,
        "after": [str(problem.profile.names[cut - 1]) for cut in answer.plan.cuts],
    }


@cache
def llama() -> Partitioning:
    """Llama 3 8B on one server."""
    return load_partitioning(LLAMA, LLAMA_SERVER)


def copies(problem: Partitioning, memory: Memory, chosen: np.ndarray) -> float:
    """Bytes of the bfloat16 copies of weights that are alive at the peak."""
    footprint, graph = problem.footprint, problem.graph
    size = footprint.bytes * footprint.scale(chosen)
    alive = footprint.transient & (footprint.first <= memory.at) & (memory.at <= footprint.last)
    casts = [
        t
        for t in np.flatnonzero(alive).tolist()
        if "cast/" in graph.op_names(footprint.first[t : t + 1])[0]
    ]
    return float(size[casts].sum())


def llama_by_hand(devices: int, rows: int, tokens: int = 8192) -> dict[str, float]:
    """Bytes on a device of data parallelism at the loss, by formula, part by part.

    Args:
        devices: number of devices.
        rows: sequences in the batch.
        tokens: length of a sequence.
    """
    layers, width, hidden, kv, vocab = 32, 4096, 14336, 1024, 128256
    own = rows * tokens / devices
    # Of a layer: its input, q and the context, k and v, o, gate and up, all bfloat16.
    layer = 2 * (width + 2 * width + 2 * kv + width + 2 * hidden)
    head = (4 + 4 + 2 + 2) * width  # the last norm: float32 input and product, bfloat16 ones
    return {
        "master weights": 4.0 * PARAMETERS,
        "moments of Adam": 8.0 * PARAMETERS,
        "bfloat16 copies": 2.0 * (PARAMETERS - vocab * width),  # the embedding's is done with
        "gradients": 0.0,  # the backward pass begins
        "activations of the layers": own * layers * layer,
        "activations of head and loss": own * (3 * 4 * vocab + head),
    }


def llama_memory() -> dict[str, Any]:
    problem = llama()
    chosen = problem.chosen({"tokens": 0})
    assert problem.legal(chosen)
    footprint = problem.footprint
    memory = footprint.memory(chosen)
    of_copies = copies(problem, memory, chosen)
    judged = {
        "master weights": memory.parameters,
        "moments of Adam": memory.optimiser,
        "bfloat16 copies": of_copies,
        "gradients": memory.gradients,
        "activations": memory.activations - of_copies,
    }
    by_hand = llama_by_hand(8, problem.graph.batch_size)
    activations = sum(by_hand.pop(key) for key in list(by_hand) if key.startswith("activations"))
    last = int(np.flatnonzero(problem.graph.phase == Phase.BACKWARD)[-1])
    alive = footprint.gradient & (footprint.first <= last) & (last <= footprint.last)
    return {
        "judged": judged,
        "by_hand": {**by_hand, "activations": activations},
        "at": str(problem.graph.op_names(np.array([memory.at]))[0]),
        "sharded": judged["activations"] + 16 * PARAMETERS / 8,
        "gradients_at_end": float((footprint.bytes * footprint.scale(chosen))[alive].sum()),
    }


def memory_rows(found: dict[str, Any]) -> list[list[str]]:
    """Part by part, all, and the gradients when all of them are there, in bfloat16."""
    judged, by_hand = found["judged"], found["by_hand"]
    parts = {part: (judged[part], by_hand[part]) for part in judged}
    parts["all"] = sum(judged.values()), sum(by_hand.values())
    end = "gradients, when the backward pass ends"
    parts[end] = found["gradients_at_end"], 2.0 * PARAMETERS
    return [
        [part, f"{ours / 1e9:.2f}", f"{hand / 1e9:.2f}", percent(ours / hand - 1) if hand else ""]
        for part, (ours, hand) in parts.items()
    ]


SIZES: list[Column] = [
    ("model", "{model}"),
    ("family", "{family}"),
    ("batch", "{batch_size:,}"),
    ("parameters", "{parameters:,}"),
    ("of published", lambda row: percent(row["parameters"] / row["parameters_published"] - 1, 2)),
    ("source", "{parameters_source}"),
    ("FLOPs of an example, forward", "{flops:.3e}"),
    ("of published", lambda row: percent(row["flops"] / row["flops_published"] - 1, 1)),
    ("source", "{flops_source}"),
    ("training / forward", "{training_over_forward:.2f}"),
]
FILES: list[Column] = [
    ("model", "{model}"),
    ("instructions", "{instructions:,}"),
    ("MB", "{megabytes:.2f}"),
    ("load (ms)", "{load_milliseconds:.0f}"),
    ("pivots", "{pivots:,}"),
    ("variables", "{variables}"),
    ("classes", "{classes}"),
    ("build (s)", "{build_seconds:.2f}"),
    ("exact (s)", "{any[seconds]:.2f}"),
    ("proven", lambda row: "yes" if row["any"]["proven"] else "no"),
    (
        "faster than replicated",
        lambda row: f"{row['replicated_seconds'] / row['any']['step_seconds']:.2f}",
    ),
    ("memory (GB)", "{any[memory_bytes]:.0f/1e9}"),
    ("with a limit of 72 GB", lambda row: cell("{fits[memory_bytes]:.0f/1e9}", row) or "no"),
]
"""Of sizes and partitions of a model together."""


def pipeline_row(raws: list[dict[str, Any]]) -> list[object]:
    """The pipeline plans of a model: seconds of the search, and share of busy time."""
    row: list[object] = [raws[0]["model"]]
    for raw in raws:
        proof = raw.get("status", "does not fit")
        if proof == "feasible":
            proof = f"within {percent(raw['length_seconds'] / raw['bound_seconds'] - 1)}"
        row += [f"{raw['seconds']:.2f}", proof, cell("{busy:.2f}", raw)]
    return row


@measurement(title="Shipped models: sizes and exact plans", among={"instances": names()})
def models(instances: tuple[str, ...] = names()) -> dict[str, Any]:
    data: dict[str, Any] = {"sizes": [], "partitions": [], "pipelines": []}
    for name in instances:
        progress(name)
        data["sizes"].append(sizes(name))
        data["partitions"].append(partition(name))
        data["pipelines"].append([pipeline(name, cluster) for cluster in CLUSTERS])
    return {**data, "llama": llama_memory()}


@models.page
def page(data: dict[str, Any]) -> list[str]:
    raws, partitions, memory = data["sizes"], data["partitions"], data["llama"]
    header = ["model"]
    for cluster in CLUSTERS:
        header += [f"{cluster} (s)", "proof", "busy"]
    worst_load = max(raws, key=lambda raw: raw["load_milliseconds"])
    slowest = max(partitions, key=lambda raw: raw["any"]["seconds"])
    return [
        f"{len({raw['family'] for raw in raws})} families, "
        f"{sum(raw['megabytes'] for raw in raws):.1f} MB in all. Largest load time, of the "
        f"processor: {worst_load['load_milliseconds']:.0f} ms ({worst_load['model']}).",
        "## Sizes",
        "`of published`: ours / published - 1. `formula`: tests/helpers/published_models.py, "
        "without elementwise instructions. Published FLOPs of convolutions count padding, ours do "
        "not. A training step takes more than three forward passes where the backward pass "
        "computes something again.",
        columns(raws, SIZES, left=2),
        "## Files and partition plans",
        f"`MB`: training step and forward pass. Partitions of {SERVER}, step time, batch included: "
        f"the fastest plan whatever its memory, and the memory of the fastest that fits, if one "
        f"does. Slowest proof: {slowest['any']['seconds']:.2f} s ({slowest['model']}). The "
        "whole batch is there at once, instructions are unfused and optimiser state is split "
        "only with its weight, so that large models need more than one server.",
        columns([{**one, **other} for one, other in zip(raws, partitions, strict=True)], FILES),
        "## Pipeline plans",
        "One stage a server, micro-batches of 16 samples, 16 of them; seconds until the proof. "
        "`busy`: bubble-free time / length. A stage holds its weights and their gradients "
        "(copies = 2), float32.",
        table(header, map(pipeline_row, data["pipelines"])),
        "## Memory of Llama 3 8B on 8 H100",
        f"Data parallelism of {LLAMA}, two sequences of 8,192 tokens on a device, GB at the "
        f"peak (`{memory['at']}`), by the judge and by a formula.",
        table(["part", "judge", "formula", "difference"], memory_rows(memory)),
        "The state does not fit: data parallelism holds 12 bytes a parameter on every device. With "
        "weights, gradients and moments sharded over 8 devices (16 bytes a parameter / 8) the "
        f"judge's activations make {memory['sharded'] / 1e9:.1f} GB. torchtitan measures "
        f"{MEASURED / 1e9:.1f} GB (82.4 GiB) for this model, batch and sharding. Not in ours: "
        "gathered weights and buffers of communication, fragmentation. Not in theirs: the three "
        "float32 arrays as large as the logits that the unfused loss holds, which fused code "
        "makes one or two; theirs keeps every other product and computes the others again.",
    ]


if __name__ == "__main__":
    main(models)
