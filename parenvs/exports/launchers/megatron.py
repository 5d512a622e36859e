"""Plans with stages as flags of Megatron-LM."""

from __future__ import annotations

import itertools
import re

from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError
from parenvs.exports.launchers.reading import Settings, dealt, stages_said
from parenvs.exports.stages import noted, recomputed, run_with

MEGATRON = "Megatron-LM core 0.14"
"""Version whose flags these are; ``--pipeline-model-parallel-layout`` is experimental there."""
_RECIPES = {
    "fp8": ["--fp8-format hybrid", "--fp8-recipe tensorwise"],
    "fp8-block": ["--fp8-format e4m3", "--fp8-recipe blockwise"],
    "mxfp8": ["--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--fp4-format e2m1", "--fp4-recipe nvfp4"],
}
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
_ATTENTION = {"fused": "flash", "written": "unfused"}
_PART = re.compile(r"t(?:\*(\d+))?")


def megatron_flags(planned: Stages) -> tuple[list[str], Stages]:
    """Return the flags of a plan, one a line, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: Megatron cannot express the plan; the line names the field.
    """
    planned.refuse_stacks("Megatron")
    if planned.schedule not in ("1f1b", "interleaved"):
        raise InfeasibleError(
            f"schedule: Megatron runs 1f1b and interleaved, not {planned.schedule}"
        )
    tp, zero = planned.same("tp", "Megatron"), planned.same("zero", "Megatron")
    planned.same("dp", "Megatron")
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
    recompute, planned = _megatron_recompute(planned)
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
    return [f'--pipeline-model-parallel-layout "{megatron_layout(sizes)}"']


def megatron_layout(sizes: list[int]) -> str:
    """Write numbers of layers as Megatron's layout, ``Et*3|(t*2|)*4t*3L``."""
    words = ["t" if n == 1 else f"t*{n}" if n else "" for n in sizes]
    inner = ""
    for word, group in itertools.groupby(words[1:-1]):
        count = len(list(group))
        inner += f"({word}|)*{count}" if count > 1 else f"{word}|"
    return f"E{words[0]}|{inner}{words[-1]}L"


def _megatron_recompute(planned: Stages) -> tuple[list[str], Stages]:
    """What is recomputed: nothing, attentions, or the first layers of each chunk in full."""
    modes = set(planned.modes)
    if modes == {"none"}:
        return [], planned
    if "full" not in modes:
        alike = planned if len(modes) == 1 else recomputed(planned, "selective", "Megatron")
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
    """Precision, attention, gradients and sends, where the plan says them."""
    lines: list[str] = []
    if planned.attention:
        lines.append(f"--attention-backend {_ATTENTION[planned.attention]}")
    if planned.precision in ("bf16", "fp16"):
        lines.append(f"--{planned.precision}")
    elif planned.precision in _RECIPES:
        lines += ["--bf16", *_RECIPES[planned.precision]]
        if planned.precision == "nvfp4":
            words = "precision: nvfp4 is newer than these flags; core 0.15 has it"
            planned = noted(planned, words)
    elif planned.precision not in ("", "fp32", "tf32"):
        raise InfeasibleError(
            f"precision: Megatron has no {planned.precision}; plan with --precision bf16 or fp8"
        )
    if planned.precision in ("bf16", *_RECIPES):
        in_fp32 = planned.gradient_bytes == 4
        lines.append("--accumulate-allreduce-grads-in-fp32" if in_fp32 else "--grad-reduce-in-bf16")
    if planned.gradient_overlap:
        lines.append("--overlap-grad-reduce")
        lines += ["--overlap-param-gather"] if any(x.zero for x in planned.stages) else []
    lines += ["--tp-comm-overlap"] if planned.tensor_overlap and planned.sequence_parallel else []
    if planned.chunks > 1 and planned.p2p == "blocking":
        lines.append("--no-overlap-p2p-communication")
    elif planned.chunks == 1 and planned.p2p == "overlapped" and len(planned.stages) > 1:
        words = "p2p: Megatron overlaps sends of interleaved schedules only; they block"
        planned = run_with(planned, words, p2p="blocking")
    return lines, planned


def megatron_text(planned: Stages, lines: list[str]) -> str:
    """Return flags as an array of a shell script."""
    servers = planned.plan.cluster.devices_per_server
    nodes = -(-planned.devices // servers)
    head = [
        f"# {MEGATRON}; {planned.plan.instance} on {planned.plan.cluster}",
        f"# torchrun --nnodes {nodes} --nproc-per-node {min(planned.devices, servers)} "
        'pretrain_gpt.py "${PARALLEL_ARGS[@]}" ...',
    ]
    return "\n".join([*head, "PARALLEL_ARGS=(", *(f"  {line}" for line in lines), ")", ""])


def read_megatron(text: str, layers: int) -> Stages:
    """Return the stages that flags say, as Megatron takes them.

    What they leave out is Megatron's default. The number of devices is that of ``torchrun``.

    Args:
        text: a script or a line with flags.
        layers: of the model, where the flags do not say it.

    Raises:
        ParenvsError: a flag is missing or is no number; the line names it.
    """
    found = Settings.of(text, r"(--[\w-]+)(?:[ =]+(?!--)(\"[^\"]*\"|[^\s\\)]+))?")
    number = found.number
    layers, pp = number("--num-layers", layers), number("--pipeline-model-parallel-size", 1)
    tp, context = number("--tensor-model-parallel-size", 1), number("--context-parallel-size", 1)
    devices = number("--nnodes", 1) * number("--nproc-per-node")
    dp = devices // (tp * pp * context)
    sharded = {words: zero for zero, words in _SHARDED.items()}
    zero = sharded.get(
        found.word("--data-parallel-sharding-strategy"), int("--use-distributed-optimizer" in found)
    )
    precision = "bf16" if "--bf16" in found else "fp16" if "--fp16" in found else "fp32"
    for name, recipe in _RECIPES.items():
        kind, _, word = recipe[1].partition(" ")
        precision = name if found.word(kind) == word else precision
    parts = _parts_said(found, layers, pp)
    count = number("--num-distributed-optimizer-instances", 1)
    chunks = len(parts) // pp
    overlapped = chunks > 1 and "--no-overlap-p2p-communication" not in found
    p2p = "" if pp == 1 else "overlapped" if overlapped else "blocking"
    return stages_said(
        dealt(parts, pp), dp * context, tp, zero,
        modes=_modes_said(found, parts, layers),
        batch=number("--global-batch-size"),
        micro_batch=number("--micro-batch-size"),
        schedule="interleaved" if chunks > 1 else "1f1b",
        sequence_parallel="--sequence-parallel" in found,
        context=context,
        expert=number("--expert-model-parallel-size", 1),
        expert_tp=number("--expert-tensor-parallel-size", 0),
        shard=dp * context // count if count > 1 else 0,
        precision=precision,
        gradient_bytes=2 if "--grad-reduce-in-bf16" in found else 4,
        gradient_overlap="--overlap-grad-reduce" in found,
        p2p=p2p,
        attention={v: k for k, v in _ATTENTION.items()}.get(found.word("--attention-backend"), ""),
        tensor_overlap="--tp-comm-overlap" in found,
    )  # fmt: skip


def _parts_said(found: Settings, layers: int, pp: int) -> list[tuple[int, int]]:
    """Ranges of layers in the model's order."""
    layout = found.word("--pipeline-model-parallel-layout")
    first = found.number("--decoder-first-pipeline-num-layers", 0)
    last = found.number("--decoder-last-pipeline-num-layers", 0)
    if layout:
        while group := re.search(r"\(([^)]+)\)\*(\d+)", layout):
            layout = layout.replace(group[0], group[1] * int(group[2]), 1)
        sizes = [sum(int(n or 1) for n in _PART.findall(part)) for part in layout.split("|")]
    elif first or last:
        inner = layers - first - last
        sizes = [first, *[inner // max(pp - 2, 1)] * (pp - 2), last]
    else:
        each = found.number("--num-layers-per-virtual-pipeline-stage", layers // pp)
        sizes = [each] * (layers // each)
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _modes_said(found: Settings, parts: list[tuple[int, int]], layers: int) -> list[str]:
    """What is recomputed of each layer."""
    kind = found.word("--recompute-granularity") or "none"
    if found.word("--recompute-method") != "block":
        return [kind] * layers
    count, modes = found.number("--recompute-num-layers"), ["none"] * layers
    for first, end in parts:
        modes[first : min(first + count, end)] = [kind] * min(count, end - first)
    return modes
