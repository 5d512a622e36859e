"""What frameworks run of plans: the best plan for each, beside the best of all, and read back.

``at best`` is proven of uniform plans that the framework runs as they are, by the closed form. The
file that is exported of it is read back by the framework's own words, and what it says is judged.
"""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import Any

from benchmarks.framework import Case, Column, Row, columns, main, measurement, percent
from parenvs import problem, solve
from parenvs.errors import ParenvsError
from parenvs.exports.formats import exported
from parenvs.tasks.hybrid.plan import HybridPlan

CASES = (
    ("llama3-8b", "1x8:h100", 64, "nemo-2026"),
    ("llama3-8b", "8x8:h100", 512, "titan-2025"),
    ("llama3-70b", "8x8:h100", 512, "nemo-2026"),
    ("llama3-70b", "16x8:h100", 1024, "titan-2025"),
    ("llama3-405b", "128x8:h100", 1024, "nemo-2026"),
    ("gpt3-175b", "64x8:h100", 1536, "nemo-2026"),
    ("mixtral-8x7b", "8x8:h100", 256, "nemo-2026"),
)
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed")
SECONDS = 20.0


def megatron(text: str) -> dict[str, Any]:
    """What flags of Megatron say, as constraints of plans."""
    found = dict(re.findall(r"^  (--\S+) ?(.*)$", text, re.M))
    number = {key: int(value) for key, value in found.items() if value.isdecimal()}
    layers, stages = number["--num-layers"], number["--pipeline-model-parallel-size"]
    each = number.get("--num-layers-per-virtual-pipeline-stage")
    chunks = layers // (stages * each) if each else 1
    if "--pipeline-model-parallel-layout" in found:
        chunks = _parts(found["--pipeline-model-parallel-layout"].strip('"')) // stages
    full = found.get("--recompute-granularity")
    zero = 1 if "--use-distributed-optimizer" in found else 0
    zero = {"optim_grads": 2, "optim_grads_params": 3}.get(
        found.get("--data-parallel-sharding-strategy", ""), zero
    )
    return {
        "tp": number["--tensor-model-parallel-size"],
        "pp": stages,
        "micro_batch": number["--micro-batch-size"],
        "chunks": chunks,
        "context": number.get("--context-parallel-size", 1),
        "expert": number.get("--expert-model-parallel-size", 1),
        "sequence_parallel": "--sequence-parallel" in found,
        "recompute": (full or "none",),
        "zero": (zero,),
        "instances": number.get("--num-distributed-optimizer-instances", 1),
    }


def _parts(layout: str) -> int:
    """Number of parts of a layout of Megatron."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda x: x[1] * int(x[2]), layout)
    return layout.count("|") + 1


def torchtitan(text: str) -> dict[str, Any]:
    """What a configuration of torchtitan says, as constraints of plans."""
    found = dict(re.findall(r"^(\w+) = (.+)$", text, re.M))
    value = {key: json.loads(words) for key, words in found.items() if words[0] != "["}
    stages, context = value["pipeline_parallel_degree"], value["context_parallel_degree"]
    dealt = len(re.findall(r'^  \["', text, re.M))  # parts of the model
    sharded, copies = value["data_parallel_shard_degree"], value["data_parallel_replicate_degree"]
    always = value.get("fsdp_reshard_after_forward") == "always"
    shared = (
        (3 if always else 2)
        if sharded * context > 1 or "fsdp_reshard_after_forward" in value
        else 0
    )
    micro = value.get("pipeline_parallel_microbatch_size", value["local_batch_size"])
    return {
        "tp": value["tensor_parallel_degree"],
        "pp": stages,
        "micro_batch": micro,
        "chunks": dealt // stages if stages > 1 else 1,
        "schedule": {"ZBVZeroBubble": "zb-v"}.get(value.get("pipeline_parallel_schedule", "")),
        "context": context,
        "expert": value["expert_parallel_degree"],
        "sequence_parallel": value["tensor_parallel_degree"] > 1,
        "recompute": (value["mode"],),
        "zero": (min(shared, 1) if stages > 1 else shared,),
        "instances": copies if shared else 1,
    }


def deepspeed(text: str) -> dict[str, Any]:
    """What a configuration of DeepSpeed says, as constraints of plans."""
    content = json.loads(text)
    topology = content.get("topology", {"num_pp": 1, "num_mp": 1})
    config = content["config"]
    every = content.get("PipelineModule", {}).get("activation_checkpoint_interval")
    return {
        "tp": topology["num_mp"],
        "pp": topology["num_pp"],
        "micro_batch": config["train_micro_batch_size_per_gpu"],
        "chunks": 1,
        "zero": (config["zero_optimization"]["stage"],),
        "mics": config["zero_optimization"].get("mics_shard_size", 0),
        **({} if every is None else {"recompute": ("full" if every else "none",)}),
    }


READERS = {"megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed}


def again(framework: str, text: str, target: Any, plan: HybridPlan) -> float:
    """Seconds of the best plan that keeps to what an exported file says."""
    said = READERS[framework](text)
    replicas = sum(x.devices for x in plan.stages) // (said["tp"] * said["pp"])
    instances, shared = said.pop("instances", 1), said.pop("mics", None)
    shard = replicas // instances if instances > 1 else 0
    said["shard"] = shard if shared is None else shared
    if framework == "deepspeed":
        said["sequence_parallel"] = plan.sequence_parallel  # the model's code says it
        said.setdefault("recompute", tuple({*plan.stages[0].recompute} or {"none"}))
    return solve(target, "uniform", constraints={**said, "framework": framework}).cost


def words(plan: HybridPlan) -> str:
    """A plan's degrees."""
    stage = plan.stages[0]
    parts = [f"tp {stage.tp}", f"pp {len(plan.stages)}"]
    parts += [f"dp {stage.devices // (stage.tp * plan.context)}", f"micro-batch {plan.micro_batch}"]
    parts += [
        f"{name} {getattr(plan, name)}"
        for name in ("chunks", "context", "expert", "shard")
        if getattr(plan, name) > 1
    ]
    parts += [f"ZeRO {stage.zero}"] if stage.zero else []
    parts += [plan.schedule] if plan.schedule not in ("1f1b", "interleaved") else []
    parts += [f"recompute {' and '.join(stage.recompute)}"] if stage.recompute else []
    return ", ".join(parts)


def best(shape: str, cluster: str, batch: int, stack: str) -> Row:
    target = problem(shape, cluster, task="hybrid", batch=batch, stack=stack)
    free = solve(target, time_limit=SECONDS)
    rows = []
    for framework in FRAMEWORKS:
        row: Row = {"framework": framework}
        try:
            own = exported(free.plan, framework)
            row["free_loss"] = own.loss if math.isfinite(own.loss) else "does not run"
        except ParenvsError as error:
            row["free_loss"] = str(error).partition(":")[0]
        try:
            answer = solve(target, constraints={"framework": framework})
        except ParenvsError as error:
            rows.append({**row, "refused": str(error)})
            continue
        found = exported(answer.plan, framework)
        rows.append({
            **row, "plan": words(answer.plan), "seconds": answer.cost, "took": answer.seconds,
            "export_loss": found.loss, "again": again(framework, found.text, target, answer.plan),
        })  # fmt: skip
    return {"free": free.cost, "free_plan": words(free.plan), "took": free.seconds, "rows": rows}


@measurement(key="shape cluster batch stack")
def frameworks() -> list[Case]:
    names = ("shape", "cluster", "batch", "stack")
    return [(dict(zip(names, case, strict=True)), partial(best, *case)) for case in CASES]


@frameworks.page
def page(rows: list[Row]) -> list[str]:
    flat = [{**case, **row} for case in rows for row in case["rows"] if "plan" in row]
    same = sum(abs(x["again"] / x["seconds"] - 1) < 1e-6 for x in flat)
    kept = sum(x["export_loss"] == 0 for x in flat)
    worst = max(x["seconds"] / x["free"] - 1 for x in flat if x["framework"] != "deepspeed")
    return [
        f"Of {len(flat)} plans for a framework, {kept} are exported without loss, and {same} take "
        "the same judged seconds when the exported file is read back. Megatron's and torchtitan's "
        f"are at most {percent(worst, 2)} longer than the best plan of all, whose own export "
        "stands in the last column: the share by which it is longer there, or the field that "
        "stands against it.",
        columns(flat, COLUMNS, left=6),
    ]


def _free(row: Row) -> str:
    """What becomes of the best plan of all in a framework."""
    loss = row["free_loss"]
    return loss if isinstance(loss, str) else percent(loss, 2)


COLUMNS: list[Column] = [
    ("model", "{shape}"),
    ("devices", "{cluster}"),
    ("batch", "{batch:,}"),
    ("stack", "{stack}"),
    ("framework", "{framework}"),
    ("plan", "{plan}"),
    ("s a step", "{seconds:.4g}"),
    ("over the best of all", lambda row: percent(row["seconds"] / row["free"] - 1, 2)),
    ("read back", lambda row: percent(row["again"] / row["seconds"] - 1, 2)),
    ("s of planning", "{took:.1f}"),
    ("the best of all, exported", _free),
]


if __name__ == "__main__":
    main(frameworks)
