"""Exported plans, compiled and run: collectives, memory and losses beside what is predicted.

Needs the extras ``jax`` and ``torch``. Every row is written as soon as it is there; a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import ROOT, parser, progress, publish, table

from parenvs import HybridPlan, HybridStage
from parenvs.agents.exact.partition import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.errors import ParenvsError
from parenvs.exports.compilation import compile_plan
from parenvs.instances import load_graph, load_model, load_partitioning
from parenvs.plan import Plan
from parenvs.shipped import names

GRAPHS = ("vgg-19", "t5-base", "big-lstm", "dlrm-criteo", "resnet-50", "llama3-8b-scanned")
"""Shipped graphs that are compiled by default: a minute each on two cores."""
DEVICES, TP = 8, 4
TIMEOUT = 3600.0
"""Seconds after which a compiler is stopped."""
STEPS = 20
TOLERANCE = 1e-4
_RUNS = (
    ("jax_transformer.py",),
    ("torch_transformer.py",),
    ("torch_transformer.py", "--processes", "4"),
)


def partition(name: str, task: str, reward: str) -> Plan:
    """The exact plan of a shipped graph that splits evenly."""
    cluster = choose_cluster(devices=DEVICES)
    problem = load_partitioning(name, cluster, uneven="forbid", task=task, reward=reward)
    return problem.plan(exact_partition(problem).chosen)


def hybrid(name: str) -> Plan:
    """Two replicas of four tp ranks, the whole batch at once."""
    model, graph = load_model(name), load_graph(name)
    stage = HybridStage(((0, len(model)),), DEVICES, tp=TP)
    cluster = choose_cluster(devices=DEVICES)
    roomy = replace(cluster.device, memory_bytes=1e15)  # a virtual device has any memory
    return HybridPlan(
        name, model.fingerprint, replace(cluster, device=roomy), "roofline", "fp32",
        batch=graph.batch_size, micro_batch=graph.batch_size * TP // DEVICES, stages=(stage,),
    )  # fmt: skip


KINDS: dict[str, Callable[[str], Plan]] = {
    "operators": lambda name: partition(name, "operator-partition", "paper"),
    "batch": lambda name: partition(name, "data-parallel", "step_time"),
    f"{DEVICES // TP} x {TP}": hybrid,
}
"""Kind of a plan -> the plan of a shipped graph."""


def compiled(name: str, kind: str) -> dict[str, Any]:
    """Compile a plan of a shipped graph; what cannot be exported gives its reason."""
    begin = time.perf_counter()
    try:
        found = compile_plan(KINDS[kind](name), timeout_seconds=TIMEOUT)
    except ParenvsError as error:
        return {"refused": str(error)}
    row = found.to_json()
    return {key: row[key] for key in row if key != "notes"} | {
        "notes": list(found.notes),
        "wall": time.perf_counter() - begin,
    }


def t5_losses() -> list[dict[str, Any]]:
    """Train T5 of the shipped code, small, under every kind of plan; in a process of its own."""
    import jax
    import numpy as np

    from parenvs import Graph
    from parenvs.datasets.models import t5, train_step
    from parenvs.exports.jax import shardings
    from parenvs.hybrid.model import HybridModel

    model = t5(2, 64, 128, 8, 8, vocab=64, tokens=16, batch_size=16, name="t5-small")
    function, shapes = train_step(model)
    graph = Graph.from_jax(function, *shapes, name="t5-small")
    random = np.random.default_rng(0)

    def first() -> Any:
        params = jax.tree.map(
            lambda x: (
                np.ones(x.shape, x.dtype)  # scales of norms, and biases
                if len(x.shape) == 1
                else random.normal(scale=x.shape[0] ** -0.5, size=x.shape).astype(x.dtype)
            ),
            shapes[0],
        )
        state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes[1])
        words = {key: random.integers(0, 64, x.shape, np.int32) for key, x in shapes[2].items()}
        return params, state, words

    start = first()

    def curve(own: Any = None) -> list[float]:
        out = {} if own is None else {"out_shardings": (own[0], own[1], None)}
        run = jax.jit(function, donate_argnums=(0, 1), keep_unused=True, **out)
        params, state, batch = start if own is None else jax.device_put(start, own)
        losses = []
        for _ in range(STEPS):
            params, state, value = run(params, state, batch)
            losses.append(float(value))
        return losses

    single = curve()
    rows = []
    cluster = choose_cluster(devices=DEVICES)
    stage = HybridStage(((0, len(HybridModel.of_graph(graph))),), DEVICES, tp=TP)
    plans: dict[str, Plan] = {
        "2 x 4": HybridPlan(
            graph.name, graph.fingerprint, cluster, "roofline", "fp32", batch=16, micro_batch=8,
            stages=(stage,),
        )
    }  # fmt: skip
    for kind, task, reward in (
        ("operators", "operator-partition", "paper"),
        ("batch", "data-parallel", "step_time"),
    ):
        problem = graph.partitioning(cluster, reward, task=task, uneven="forbid")
        plans[kind] = problem.plan(exact_partition(problem).chosen)
    for kind, plan in plans.items():
        sizes = (DEVICES // TP, TP) if kind == "2 x 4" else (DEVICES,)
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), ("a", "b")[: len(sizes)])
        own = shardings(plan, mesh, start, graph)
        assert any(not x.is_fully_replicated for x in jax.tree.leaves(own)), kind
        losses = curve(own)
        worst = max(abs(a / b - 1) for a, b in zip(losses, single, strict=True))
        rows.append({"run": "T5 of the shipped code, 2 + 2 layers", "plan": kind, "worst": worst})
        rows[-1] |= {"first": single[0], "last": losses[-1]}
    return rows


def losses(which: str) -> list[dict[str, Any]]:
    """Losses of an example, or of T5, in processes of its own."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [str(ROOT / "examples" / which.split()[0]), *which.split()[1:]]
    if which == "t5":
        command, own["XLA_FLAGS"] = [__file__, "--t5"], flags
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if ended.returncode:
        return [{"run": which, "plan": "", "failed": ended.stderr.strip().splitlines()[-1]}]
    if which == "t5":
        return json.loads(ended.stdout)
    head, *lines = [line for line in ended.stdout.splitlines() if ": " in line]
    start = float(re.findall(r"\d+\.\d+", head)[0])
    rows = []
    for line in lines:
        plan, words = line.split(": ", 1)
        words = words.replace(", loss ->", "; loss ->")
        last = float(re.findall(r"loss -> (\d+\.\d+)", words)[0])
        row = {"run": which, "plan": plan, "worst": float(words.rsplit(" ", 1)[1])}
        rows.append(row | {"first": start, "last": last, "told": words.split("; ")[:-1]})
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of a compiled plan."""
    head = [row["graph"], row["kind"]]
    if "refused" in row:
        return [*head, row["refused"].split(";")[0], *[""] * 6]
    found = row["collectives"].get("all-reduce", {"arrays": 0, "bytes": 0.0})
    others = ", ".join(
        f"{x['arrays']} {kind} of {x['bytes'] / 1e9:.3f} GB"
        for kind, x in row["collectives"].items()
        if kind != "all-reduce"
    )
    predicted = row["predicted"]
    return [
        *head,
        f"{row['asked'] - len(row['changed']):,} of {row['asked']:,}",
        f"{predicted['arrays']:,} / {found['arrays']:,}",
        f"{predicted['bytes'] / 1e9:.4f} / {found['bytes'] / 1e9:.4f}",
        others or "none",
        f"{predicted['peak_bytes'] / 1e9:.2f} / {row['peak_bytes'] / 1e9:.2f}",
        f"{predicted['peak_bytes'] / row['peak_bytes']:.2f}",
        f"{row['seconds']:.0f}",
    ]


def main() -> int:
    """Fill in the missing rows, and write the page; the status is 1 if losses differ."""
    options = parser(__doc__)
    options.add_argument(
        "--graphs", nargs="*", default=GRAPHS, choices=names(), help="shipped graphs to compile"
    )
    options.add_argument("--t5", action="store_true", help="only print the losses of T5 as JSON")
    chosen = options.parse_args()
    if chosen.t5:
        print(json.dumps(t5_losses()))
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    path: Path = chosen.out / "exports.jsonl"
    rows = [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []

    def add(row: dict[str, Any]) -> None:
        progress(json.dumps(row)[:300])
        rows.append(row)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    for which in ("t5", *(" ".join(words) for words in _RUNS)):
        if not any(x.get("asked_for") == which for x in rows):
            for row in losses(which):
                add(row | {"asked_for": which})
    for name in chosen.graphs:
        for kind in KINDS:
            if not any((x.get("graph"), x.get("kind")) == (name, kind) for x in rows):
                add({"graph": name, "kind": kind, **compiled(name, kind)})
    order = {name: k for k, name in enumerate(names())}
    kinds = list(KINDS)
    graphs = sorted(
        (x for x in rows if "graph" in x), key=lambda x: (order[x["graph"]], kinds.index(x["kind"]))
    )
    curves = [x for x in rows if "run" in x]
    done = [x for x in graphs if "refused" not in x]
    same = sum(x["agrees"] for x in done)
    header = ["graph", "plan", "shardings kept", "all-reduced arrays, predicted / XLA"]
    header += ["their GB", "other collectives", "GB a device", "ratio", "compiled in s"]
    sections = [
        f"Losses of {STEPS} steps on virtual devices and local processes, beside one device: "
        "largest relative difference.",
        table(
            ["run", "plan", "as what, collectives of a step", "first loss", "last", "difference"],
            [
                [
                    x["run"],
                    x["plan"],
                    "; ".join(x.get("told", [])),
                    f"{x['first']:.4f}",
                    f"{x['last']:.4f}",
                    f"{x['worst']:.1e}",
                ]
                if "worst" in x
                else [x["run"], x["plan"], x["failed"], "", "", ""]
                for x in curves
            ],
            left=3,
        ),
        f"Training steps of shipped graphs, full size, compiled for {DEVICES} virtual CPU devices. "
        "`operators`: the exact plan under the paper's reward, `batch`: the exact data-parallel "
        f"plan, both with `uneven=forbid`; `{DEVICES // TP} x {TP}`: a hybrid plan of "
        f"{DEVICES // TP} replicas with {TP} tp ranks. As predicted (all shardings kept, as many "
        f"all-reduced arrays, no other collective): {same} of {len(done)}. Memory is XLA's for "
        "CPUs: inputs, outputs that replace none, temporary tensors. XLA's CPU compiler widens "
        "bfloat16 to float32, in all-reduces too: bytes of graphs in mixed precision (big-lstm, "
        "dlrm-criteo, resnet-50, llama3-8b) are up to twice the predicted ones there, and so are "
        "temporary tensors. VGG's backward max pooling becomes scatters and index tensors that the "
        "graph does not hold. T5's temporary tensors are a fifth above ours, as in "
        "[memory](memory.md).",
        table(header, [cells(x) for x in graphs], left=3),
    ]
    publish("exports", sections, [], chosen.out)
    return int(any(x.get("worst", 1.0) > TOLERANCE for x in curves))


if __name__ == "__main__":
    sys.exit(main())
