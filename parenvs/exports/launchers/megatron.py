"""Plans with stages as flags of Megatron-LM."""

from __future__ import annotations

import itertools

from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError
from parenvs.exports.stages import noted, recomputed, run_with

WRITTEN_FOR = "Megatron-LM core 0.14"
"""Version whose flags these are; ``--pipeline-model-parallel-layout`` is experimental there."""
_NAME = "Megatron"
_RECIPES = {
    "fp8": ["--fp8-format hybrid", "--fp8-recipe tensorwise"],
    "fp8-block": ["--fp8-format e4m3", "--fp8-recipe blockwise"],
    "mxfp8": ["--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--fp4-format e2m1", "--fp4-recipe nvfp4"],
}
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}


def flags(planned: Stages) -> tuple[list[str], Stages]:
    """Return the flags of a plan, one a line, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: Megatron cannot express the plan; the line names the field.
    """
    planned.refuse_stacks(_NAME)
    if planned.schedule not in ("1f1b", "interleaved"):
        raise InfeasibleError(
            f"schedule: Megatron runs 1f1b and interleaved, not {planned.schedule}"
        )
    tp, zero = planned.same("tp", _NAME), planned.same("zero", _NAME)
    planned.same("dp", _NAME)
    stages = len(planned.stages)
    lines = [f"--num-layers {len(planned.names)}", f"--tensor-model-parallel-size {tp}"]
    lines += ["--sequence-parallel"] if planned.sequence_parallel else []
    lines.append(f"--pipeline-model-parallel-size {stages}")
    lines += _division(planned)
    lines += [f"--context-parallel-size {planned.context}"] if planned.context > 1 else []
    lines += [f"--expert-model-parallel-size {planned.expert}"] if planned.expert > 1 else []
    if planned.expert_tp:
        lines.append(f"--expert-tensor-parallel-size {planned.expert_tp}")
    lines.append(f"--micro-batch-size {planned.micro_batch}")
    lines.append(f"--global-batch-size {planned.batch}")
    lines += ["--use-distributed-optimizer"] if zero else []
    if planned.shard:
        groups = planned.replicas[0] * planned.context // planned.shard
        lines.append(f"--num-distributed-optimizer-instances {groups}")
    if zero > 1:
        lines.append("--use-megatron-fsdp")
        lines.append(f"--data-parallel-sharding-strategy {_SHARDED[zero]}")
        lines += ["--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor"]
    recompute, planned = _recompute(planned)
    own, planned = _of_stack(planned)
    return [*lines, *recompute, *own], planned


def _division(planned: Stages) -> list[str]:
    """How the layers are dealt out to stages and chunks."""
    stages = len(planned.stages)
    sizes = [end - first for first, end in planned.parts]
    if len(set(sizes)) == 1:
        if planned.chunks == 1:
            return []
        return [f"--num-layers-per-virtual-pipeline-stage {sizes[0]}"]
    if planned.chunks == 1 and len(set(sizes[1:-1])) <= 1:
        return [
            f"--decoder-first-pipeline-num-layers {sizes[0]}",
            f"--decoder-last-pipeline-num-layers {sizes[-1]}",
        ]
    assert len(sizes) == stages * planned.chunks
    return [f'--pipeline-model-parallel-layout "{layout(sizes)}"']


def layout(sizes: list[int]) -> str:
    """Write numbers of layers as Megatron's layout, ``Et*3|(t*2|)*4t*3L``."""
    words = ["t" if n == 1 else f"t*{n}" if n else "" for n in sizes]
    inner = ""
    for word, group in itertools.groupby(words[1:-1]):
        count = len(list(group))
        inner += f"({word}|)*{count}" if count > 1 else f"{word}|"
    return f"E{words[0]}|{inner}{words[-1]}L"


def _recompute(planned: Stages) -> tuple[list[str], Stages]:
    """What is recomputed: nothing, attentions, or the first layers of each chunk in full."""
    modes = set(planned.modes)
    if modes == {"none"}:
        return [], planned
    if "full" not in modes:
        alike = planned if len(modes) == 1 else recomputed(planned, "selective", _NAME)
        return ["--recompute-granularity selective"], alike
    full = ["--recompute-granularity full"]
    if modes == {"full"}:
        return [*full, "--recompute-method uniform", "--recompute-num-layers 1"], planned
    counts = {
        sum(mode == "full" for mode in planned.modes[first:end]) for first, end in planned.parts
    }
    leading = all(
        planned.modes[first:end] == ("full",) * count + ("none",) * (end - first - count)
        for first, end in planned.parts
        for count in [planned.modes[first:end].count("full")]
    )
    if len(counts) == 1 and leading:
        (count,) = counts
        return [*full, "--recompute-method block", f"--recompute-num-layers {count}"], planned
    alike = recomputed(planned, "full", "Megatron, but for equal numbers of full ones,")
    return [*full, "--recompute-method uniform", "--recompute-num-layers 1"], alike


def _of_stack(planned: Stages) -> tuple[list[str], Stages]:
    """Precision, gradients and sends, where the plan says them."""
    lines: list[str] = []
    if planned.precision in ("bf16", "fp16"):
        lines.append(f"--{planned.precision}")
    elif planned.precision in _RECIPES:
        lines += ["--bf16", *_RECIPES[planned.precision]]
        if planned.precision == "nvfp4":
            words = "precision: nvfp4 is newer than these flags; core 0.15 has it"
            planned = noted(planned, words)
    elif planned.precision not in ("fp32", "tf32"):
        raise InfeasibleError(
            f"precision: Megatron has no {planned.precision}; plan with --precision bf16 or fp8"
        )
    if planned.precision in ("bf16", *_RECIPES):
        in_fp32 = planned.gradient_bytes == 4
        lines.append("--accumulate-allreduce-grads-in-fp32" if in_fp32 else "--grad-reduce-in-bf16")
    lines += ["--overlap-grad-reduce"] if planned.gradient_overlap else []
    if planned.chunks > 1 and planned.p2p == "blocking":
        lines.append("--no-overlap-p2p-communication")
    elif planned.chunks == 1 and planned.p2p == "overlapped" and len(planned.stages) > 1:
        words = "p2p: Megatron overlaps sends of interleaved schedules only; they block"
        planned = run_with(planned, words, p2p="blocking")
    return lines, planned


def text(planned: Stages, lines: list[str]) -> str:
    """Return flags as an array of a shell script."""
    servers = planned.plan.cluster.devices_per_server
    nodes = -(-planned.devices // servers)
    head = [
        f"# {WRITTEN_FOR}; {planned.plan.instance} on {planned.plan.cluster}",
        f"# torchrun --nnodes {nodes} --nproc-per-node {min(planned.devices, servers)} "
        'pretrain_gpt.py "${PARALLEL_ARGS[@]}" ...',
    ]
    return "\n".join([*head, "PARALLEL_ARGS=(", *(f"  {line}" for line in lines), ")", ""])
