"""What plans are exported to, by name."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from parenvs.core.plan import Plan
from parenvs.core.stages import Stage, Stages
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.exports.stages import (
    layout_of,
    loss,
    noted,
    recomputed,
    run_with,
    stages_of,
    with_parts,
)
from parenvs.graph.graph import Graph


class Settings(dict[str, str]):
    """Settings by name, as texts; those without a value are empty."""

    @classmethod
    def of(cls, text: str, pattern: str) -> Settings:
        """Return the settings in a text; ``pattern`` has a group for a name and one for a value."""
        return cls({name: value.strip("\"'") for name, value in re.findall(pattern, text)})

    def word(self, name: str) -> str:
        """Return a setting, or an empty text."""
        return self.get(name, "")

    def number(self, name: str, default: int | None = None) -> int:
        """Return a setting that is a whole number.

        Raises:
            ParenvsError: it is missing and has no default, or is no such number.
        """
        value = self.get(name, default)
        try:
            return int(value)  # type: ignore[arg-type]  # of None, too
        except (TypeError, ValueError):
            given = "is missing" if value is None else f"must be a whole number, not {value!r}"
            raise ParenvsError(f"{name} {given} in the settings") from None


def dealt(
    parts: Sequence[tuple[int, int]], stages: int, turns: bool = False
) -> list[tuple[tuple[int, int], ...]]:
    """Return the parts of each stage: chunk c of stage s is part c S + s.

    Args:
        parts: ranges of layers in the model's order.
        stages: S.
        turns: whether a micro-batch turns at the last stage: stage s has parts s and 2 S - 1 - s.
    """
    if turns:
        return [(parts[s], parts[2 * stages - 1 - s]) for s in range(stages)]
    return [tuple(parts[s::stages]) for s in range(stages)]


def stages_said(
    layers: Sequence[tuple[tuple[int, int], ...]],
    ranks: int,
    tp: int,
    zero: int,
    modes: Sequence[str],
    **fields: Any,
) -> Stages:
    """Return stages that are all alike but for their layers.

    Args:
        layers: ranges of layers of each stage, one for each chunk.
        ranks: replicas of a stage, times the ranks that share tokens.
        tp: ranks that share every matrix.
        zero: 0 to 3.
        modes: what is recomputed of each layer of the model.
        **fields: of ``Stages``.
    """
    alike = tuple(
        Stage(own, ranks * tp, tp, zero, tuple(m for a, b in own for m in modes[a:b]))
        for own in layers
    )
    count = len(modes)
    return Stages(
        plan=None, run=None, replan=lambda stages: None, stages=alike,
        names=tuple(f"layer_{k}" for k in range(count)), chunks=len(layers[0]), **fields,
    )  # fmt: skip


DEEPSPEED = "DeepSpeed 0.16"
"""Version whose configuration this is."""


def deepspeed_config(planned: Stages) -> tuple[dict[str, Any], Stages]:
    """Return the configuration as JSON types, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: DeepSpeed cannot express the plan; the line names the field.
    """
    tp, dp, zero = (planned.same(field, "DeepSpeed") for field in ("tp", "dp", "zero"))
    stages = len(planned.stages)
    if planned.shard and zero != 3:
        raise InfeasibleError(
            f"shard: DeepSpeed shares the states of ZeRO {zero} among all replicas; plan with "
            "--shard 0, or with --zero 3 (MiCS)"
        )
    if planned.schedule not in ("1f1b", "early", "interleaved"):
        raise InfeasibleError(f"schedule: DeepSpeed runs 1f1b, not {planned.schedule}")
    if planned.chunks > 1:
        raise InfeasibleError("chunks: DeepSpeed's pipelines are not interleaved; plan with one")
    if planned.context > 1:
        raise InfeasibleError("context: DeepSpeed's configuration has no ring of key blocks")
    if planned.expert > 1:
        raise InfeasibleError(
            "expert: DeepSpeed deals out experts in the model's code (MoE(ep_size=...)); plan with "
            "--expert 1"
        )
    if tp > 1 and stages == 1:
        raise InfeasibleError(
            "stages[0].tp: DeepSpeed splits matrices by the topology of its pipelines; plan with "
            "--tp 1 or with stages"
        )
    config: dict[str, Any] = {
        "train_batch_size": planned.batch,
        "train_micro_batch_size_per_gpu": planned.micro_batch,
        "gradient_accumulation_steps": planned.micro_batches,
        "zero_optimization": {
            "stage": zero,
            **({"mics_shard_size": planned.shard} if planned.shard else {}),
        },
    }
    if planned.gradient_overlap and (stages > 1 or not zero):
        words = "gradient_overlap: DeepSpeed sums gradients of pipelines and of ZeRO 0 at the end"
        planned = run_with(planned, words, gradient_overlap=False)
    elif planned.gradient_bytes:
        config["zero_optimization"]["overlap_comm"] = planned.gradient_overlap
    if planned.gradient_bytes:
        half = "fp16" if planned.precision == "fp16" else "bf16"
        config["communication_data_type"] = "fp32" if planned.gradient_bytes == 4 else half
        config["data_types"] = {"grad_accum_dtype": config["communication_data_type"]}
    if planned.precision in ("bf16", "fp16"):
        config[planned.precision] = {"enabled": True}
    elif planned.precision not in ("", "fp32", "tf32"):
        raise InfeasibleError(
            f"precision: DeepSpeed has no {planned.precision}; plan with --precision bf16"
        )
    content: dict[str, Any] = {"written_for": DEEPSPEED, "config": config}
    if tp > 1:
        content["model"] = {"sequence_parallel": planned.sequence_parallel}
    if stages > 1:
        every, planned = _checkpoint_interval(_even_parts(planned))
        content["PipelineModule"] = {
            "num_stages": stages,
            "partition_method": "uniform",
            "activation_checkpoint_interval": every,
        }
        content["topology"] = {"num_pp": stages, "num_mp": tp, "num_dp": dp}
        content["parts"] = [0, *(end for _, end in planned.parts)]
        words = (
            f"partition_method: uniform counts the {len(planned.names)} layers if embedding and "
            "head are inside the first and the last of them"
        )
        planned = noted(planned, words)
        if tp > 1:
            words = (
                "stages[0].tp: pass topology as PipeModelDataParallelTopology, and split the "
                "matrices in the layers' code, as Megatron-DeepSpeed does"
            )
            planned = noted(planned, words)
    elif set(planned.modes) != {"none"}:
        words = "recompute: call deepspeed.checkpointing in the layers' code"
        content["model"] = {"recompute": list(planned.modes)}
        planned = noted(planned, words)
    return content, planned


def _even_parts(planned: Stages) -> Stages:
    """Deal out the layers as ``partition_method="uniform"`` does: one more to the first stages."""
    stages, layers = len(planned.stages), len(planned.names)
    size, more = divmod(layers, stages)
    ends = [k * size + min(k, more) for k in range(stages + 1)]
    parts = tuple(itertools.pairwise(ends))
    return planned if parts == planned.parts else with_parts(planned, parts, "DeepSpeed")


def _checkpoint_interval(planned: Stages) -> tuple[int, Stages]:
    modes = set(planned.modes)
    if len(modes) > 1 or "selective" in modes:
        return 1, recomputed(planned, "full", "DeepSpeed")
    return (1 if modes == {"full"} else 0), planned


def deepspeed_text(content: dict[str, Any]) -> str:
    """Return the configuration as JSON."""
    return json.dumps(content, indent=1) + "\n"


def read_deepspeed(text: str, layers: int) -> Stages:
    """Return the stages that a configuration says, as DeepSpeed takes it.

    Args:
        text: what ``text`` writes, or a configuration alone, JSON.
        layers: of the model.

    Raises:
        ParenvsError: a key is missing or is no number; the line names it.
    """
    content = json.loads(text)
    config = content.get("config", content)
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        if not isinstance(config.get(name), int):
            raise ParenvsError(f"{name} must be a whole number in the settings")
    batch, micro = config["train_batch_size"], config["train_micro_batch_size_per_gpu"]
    topology = content.get("topology", {"num_pp": 1, "num_mp": 1})
    tp, pp = topology["num_mp"], topology["num_pp"]
    dp = batch // (micro * config.get("gradient_accumulation_steps", 1))
    shared = config.get("zero_optimization", {"stage": 0})
    ends = content.get("parts", [0, layers])
    every = content.get("PipelineModule", {}).get("activation_checkpoint_interval", 0)
    own = content.get("model", {})
    half = [x for x in ("bf16", "fp16") if config.get(x, {}).get("enabled")]
    return stages_said(
        dealt(list(itertools.pairwise(ends)), pp), dp, tp, shared["stage"],
        modes=own.get("recompute", ["full" if every else "none"] * ends[-1]),
        batch=batch,
        micro_batch=micro,
        sequence_parallel=own.get("sequence_parallel", False),
        shard=shared.get("mics_shard_size", 0),
        precision=half[0] if half else "fp32",
        gradient_bytes=4 if config.get("communication_data_type") == "fp32" else 2,
        gradient_overlap=bool(shared.get("overlap_comm", shared["stage"] == 3)) and pp == 1,
    )  # fmt: skip


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
    stages = len(planned.stages)
    # Even stages need no flag; an uneven first or last one has its own; all else is a layout.
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
    settings = Settings.of(text, r"(--[\w-]+)(?:[ =]+(?!--)(\"[^\"]*\"|[^\s\\)]+))?")
    number = settings.number
    layers, pp = number("--num-layers", layers), number("--pipeline-model-parallel-size", 1)
    tp, context = number("--tensor-model-parallel-size", 1), number("--context-parallel-size", 1)
    devices = number("--nnodes", 1) * number("--nproc-per-node")
    dp = devices // (tp * pp * context)
    sharded = {words: zero for zero, words in _SHARDED.items()}
    zero = sharded.get(
        settings.word("--data-parallel-sharding-strategy"),
        int("--use-distributed-optimizer" in settings),
    )
    precision = "bf16" if "--bf16" in settings else "fp16" if "--fp16" in settings else "fp32"
    for name, recipe in _RECIPES.items():
        kind, _, word = recipe[1].partition(" ")
        precision = name if settings.word(kind) == word else precision
    attentions = {backend: kind for kind, backend in _ATTENTION.items()}
    parts = _parts_said(settings, layers, pp)
    count = number("--num-distributed-optimizer-instances", 1)
    chunks = len(parts) // pp
    overlapped = chunks > 1 and "--no-overlap-p2p-communication" not in settings
    p2p = "" if pp == 1 else "overlapped" if overlapped else "blocking"
    return stages_said(
        dealt(parts, pp), dp * context, tp, zero,
        modes=_modes_said(settings, parts, layers),
        batch=number("--global-batch-size"),
        micro_batch=number("--micro-batch-size"),
        schedule="interleaved" if chunks > 1 else "1f1b",
        sequence_parallel="--sequence-parallel" in settings,
        context=context,
        expert=number("--expert-model-parallel-size", 1),
        expert_tp=number("--expert-tensor-parallel-size", 0),
        shard=dp * context // count if count > 1 else 0,
        precision=precision,
        gradient_bytes=2 if "--grad-reduce-in-bf16" in settings else 4,
        gradient_overlap="--overlap-grad-reduce" in settings,
        p2p=p2p,
        attention=attentions.get(settings.word("--attention-backend"), ""),
        tensor_overlap="--tp-comm-overlap" in settings,
    )  # fmt: skip


def _parts_said(settings: Settings, layers: int, pp: int) -> list[tuple[int, int]]:
    layout = settings.word("--pipeline-model-parallel-layout")
    first = settings.number("--decoder-first-pipeline-num-layers", 0)
    last = settings.number("--decoder-last-pipeline-num-layers", 0)
    if layout:
        while group := re.search(r"\(([^)]+)\)\*(\d+)", layout):
            layout = layout.replace(group[0], group[1] * int(group[2]), 1)
        sizes = [sum(int(n or 1) for n in _PART.findall(part)) for part in layout.split("|")]
    elif first or last:
        inner = layers - first - last
        sizes = [first, *[inner // max(pp - 2, 1)] * (pp - 2), last]
    else:
        per_chunk = settings.number("--num-layers-per-virtual-pipeline-stage", layers // pp)
        sizes = [per_chunk] * (layers // per_chunk)
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _modes_said(settings: Settings, parts: list[tuple[int, int]], layers: int) -> list[str]:
    kind = settings.word("--recompute-granularity") or "none"
    if settings.word("--recompute-method") != "block":
        return [kind] * layers
    count, modes = settings.number("--recompute-num-layers"), ["none"] * layers
    for first, end in parts:
        modes[first : min(first + count, end)] = [kind] * min(count, end - first)
    return modes


TORCHTITAN = "torchtitan 0.2"
"""Version whose configuration this is; its transformers call their layers ``layers.0``, ..."""
_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
# Precision -> the converter of linear layers, and its options.
_CONVERTERS: dict[str, tuple[str, dict[str, object]]] = {
    "fp8": (
        "quantize.linear.float8",
        {
            "enable_fsdp_float8_all_gather": True,
            "precompute_float8_dynamic_scale_for_fsdp": True,
        },
    ),
    "fp8-row": ("quantize.linear.float8", {"recipe_name": "rowwise"}),
    "mxfp8": ("quantize.linear.mx", {"recipe_name": "mxfp8_cublas"}),
}
TomlTable = dict[str, dict[str, object]]


def torchtitan_table(planned: Stages) -> tuple[TomlTable, Stages]:
    """Return section -> key -> value, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: torchtitan cannot express the plan; the line names the field.
    """
    planned.refuse_stacks("torchtitan")
    if planned.schedule not in _SCHEDULES:
        raise InfeasibleError(f"schedule: torchtitan has no {planned.schedule}")
    if planned.precision not in (*_DTYPES, *_CONVERTERS):
        raise InfeasibleError(
            f"precision: {planned.precision} is no mixed precision of torchtitan; plan with "
            "--precision bf16"
        )
    tp, dp, zero = (planned.same(field, "torchtitan") for field in ("tp", "dp", "zero"))
    mode, planned = _torchtitan_recompute(planned)
    if tp > 1 and not planned.sequence_parallel:
        words = "sequence_parallel: torchtitan's tensor parallelism shares the tokens, too"
        planned = run_with(planned, words, sequence_parallel=True)
    if zero == 1:
        words = "zero: torchtitan shares gradients with the states; ZeRO 1 becomes 2"
        (first, *more) = planned.run.stages
        run = {} if more else {"stages": (replace(first, zero=2),)}
        planned = run_with(planned, words, **run)
    if planned.gradient_bytes == 2:
        words = "gradient_bytes: torchtitan sums gradients in fp32"
        planned = run_with(planned, words, gradient_bytes=4)
    # torchtitan shares states over data x context ranks together.
    sharing, remainder = divmod(planned.shard or dp * planned.context, planned.context)
    if remainder:
        raise InfeasibleError(
            f"shard: torchtitan shares states among whole groups of context ranks, and "
            f"{planned.shard} is no multiple of {planned.context}"
        )
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": dp // sharing if zero else dp,
        "data_parallel_shard_degree": sharing if zero else 1,
        "tensor_parallel_degree": tp,
        "context_parallel_degree": planned.context,
        "expert_parallel_degree": planned.expert,
        **({"expert_tensor_parallel_degree": planned.expert_tp} if planned.expert_tp else {}),
        "pipeline_parallel_degree": len(planned.stages),
    }
    # States are shared over context ranks, too, where there is a single replica.
    if zero and dp * planned.context > 1:
        parallelism["fsdp_reshard_after_forward"] = "always" if zero == 3 else "never"
    if len(planned.stages) > 1:
        parallelism["pipeline_parallel_schedule"] = _SCHEDULES[planned.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = planned.micro_batch
        parallelism["module_fqns_per_model_part"] = _torchtitan_modules(planned)
    local = planned.micro_batch * (planned.micro_batches if len(planned.stages) > 1 else 1)
    training: dict[str, object] = {"local_batch_size": local, "global_batch_size": planned.batch}
    training["mixed_precision_param"] = _DTYPES.get(planned.precision, "bfloat16")
    if zero and planned.gradient_bytes:
        training["mixed_precision_reduce"] = "float32"
    if tp > 1 and planned.tensor_overlap:
        parallelism["enable_async_tensor_parallel"] = True
    sections: TomlTable = {
        "parallelism": parallelism, "training": training, "activation_checkpoint": mode,
    }  # fmt: skip
    if planned.precision in _CONVERTERS:
        converter, options = _CONVERTERS[planned.precision]
        sections["model"] = {"converters": [converter]}
        sections[converter] = dict(options)
        sections["compile"] = {"enable": True}
    return sections, planned


def _torchtitan_modules(planned: Stages) -> list[list[str]]:
    parts = [[f"layers.{i}" for i in range(first, end)] for first, end in planned.parts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _torchtitan_recompute(planned: Stages) -> tuple[dict[str, object], Stages]:
    modes = set(planned.modes)
    if len(modes) > 1:
        mode = "full" if "full" in modes else "selective"
        planned = recomputed(planned, mode, "torchtitan")
    else:
        (mode,) = modes
    if mode == "selective":
        words = "recompute: torchtitan's selective mode keeps products, and recomputes more"
        return {"mode": mode, "selective_ac_option": "op"}, noted(planned, words)
    return {"mode": mode}, planned


def torchtitan_text(planned: Stages, sections: TomlTable) -> str:
    """Return the configuration as TOML."""
    lines = [f"# {TORCHTITAN}; {planned.plan.instance} on {planned.plan.cluster}"]
    for section, pairs in sections.items():
        lines += ["", f"[{section}]"]
        for key, value in pairs.items():
            if key == "module_fqns_per_model_part":
                assert isinstance(value, list)
                lines += [f"{key} = [", *(f"  {json.dumps(part)}," for part in value), "]"]
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join([*lines, ""])


def read_torchtitan(text: str, layers: int) -> Stages:
    """Return the stages that a configuration says, as torchtitan takes it.

    Args:
        text: the configuration, TOML; each degree is in it.
        layers: of the model, where the parts of the model do not say it.

    Raises:
        ParenvsError: a key is missing or is no number; the line names it.
    """
    settings = Settings.of(text, r"(?m)^(\w+) *= *([^\[\n]+)$")
    number = settings.number
    pp, context = number("pipeline_parallel_degree", 1), number("context_parallel_degree", 1)
    shared, copies = number("data_parallel_shard_degree"), number("data_parallel_replicate_degree")
    tp, dp = number("tensor_parallel_degree", 1), shared * copies
    named = [len(re.findall(r"layers\.\d+", part)) for part in re.findall(r"(?m)^  \[.*\]", text)]
    sizes = named or [layers]
    parts = list(itertools.pairwise([0, *itertools.accumulate(sizes)]))
    schedules = {words: name for name, words in _SCHEDULES.items()}
    schedule = schedules.get(settings.word("pipeline_parallel_schedule"), "1f1b")
    reshard = {"always": 3, "never": 2}.get(settings.word("fsdp_reshard_after_forward"), 0)
    zero = reshard if pp == 1 else min(reshard, 1)
    precision = {words: name for name, words in _DTYPES.items() if name != "tf32"}[
        settings.word("mixed_precision_param") or "bfloat16"
    ]
    for name, (converter, options) in _CONVERTERS.items():
        recipe = str(options.get("recipe_name", ""))
        if f"[{converter}]" in text and settings.word("recipe_name") == recipe:
            precision = name
    micro = number("pipeline_parallel_microbatch_size", number("local_batch_size"))
    return stages_said(
        dealt(parts, pp, schedule == "zb-v"), dp * context, tp, zero,
        modes=[settings.word("mode") or "none"] * sum(sizes),
        batch=number("global_batch_size"),
        micro_batch=micro,
        schedule=schedule,
        sequence_parallel=tp > 1,
        context=context,
        expert=number("expert_parallel_degree", 1),
        expert_tp=number("expert_tensor_parallel_degree", 0),
        shard=shared * context if zero and copies > 1 else 0,
        precision=precision,
        gradient_bytes=4,
        gradient_overlap=None,
        tensor_overlap=settings.word("enable_async_tensor_parallel") == "true",
    )  # fmt: skip


ROUNDED = 5e-4
"""Share by which a step may be longer without a word."""


@dataclass(frozen=True)
class Exported:
    """A plan in the words of a framework.

    Attributes:
        notes: what the plan says and the file cannot, and what had to be rounded, in sentences.
        loss: share by which a step is longer as it runs than as it was planned.
    """

    text: str
    notes: tuple[str, ...] = ()
    loss: float = 0.0


def exported(plan: Plan, to: str, graph: Graph | None = None) -> Exported:
    """Write a plan in the words of a framework.

    Args:
        plan: the plan.
        to: one of ``FORMATS``.
        graph: that it was made for (default: the plan's instance).

    Raises:
        ParenvsError: an unknown framework, or one that cannot express the plan; the line names the
            field of the plan that stands against it.
    """
    if to not in FORMATS:
        raise ParenvsError(
            f"--to {shown(to)} is unknown{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}"
        )
    return FORMATS[to](plan, graph)


def runs_in(plan: Plan, graph: Graph | None = None) -> dict[str, float | str]:
    """Return, of each framework, the share by which a step is longer as it runs the plan.

    Args:
        plan: a legal plan of any task.
        graph: that it was made for (default: the plan's instance).

    Returns:
        Framework -> that share, or why it does not run the plan: a sentence that begins with the
        field that stands against it.
    """
    losses: dict[str, float | str] = {}
    for name in FORMATS:
        try:
            loss = exported(plan, name, graph).loss
        except ParenvsError as error:
            losses[name] = str(error)
        else:
            losses[name] = loss if isfinite(loss) else "memory: as it runs there it does not fit"
    return losses


def runs_words(found: Mapping[str, float | str]) -> str:
    """Return what ``runs_in`` returns as a line."""
    runs = [
        name + (f" ({loss:+.1%})" if loss >= ROUNDED else "")
        for name, loss in found.items()
        if not isinstance(loss, str)
    ]
    reasons: dict[str, list[str]] = {}
    for name, why in found.items():
        if isinstance(why, str):
            field = why.partition(":")[0]
            reasons.setdefault("instance" if " " in field else field, []).append(name)
    others = [f"{', '.join(names)} ({field})" for field, names in reasons.items()]
    reported = [f"runs in: {', '.join(runs) or 'no framework as it is'}"]
    return "; not in ".join(reported + ([", ".join(others)] if others else []))


def read_back(text: str, layers: int) -> Stages:
    """Return the stages that the settings of a launcher say.

    Args:
        text: flags of Megatron, TOML of torchtitan or JSON of DeepSpeed, told apart by their form.
        layers: of the model, where they do not say it.

    Raises:
        ParenvsError: a setting is missing or is no number; the line names it.
    """
    launcher = read_megatron
    if text.lstrip().startswith("{"):
        launcher = read_deepspeed
    elif "[parallelism]" in text:
        launcher = read_torchtitan
    return launcher(text, layers)


def _jax(plan: Plan, graph: Graph | None) -> Exported:
    from parenvs.exports.jax import document

    content = document(layout_of(plan, graph))
    lines = []
    for key, value in content.items():
        if key in ("inputs", "outputs"):  # a line for each
            rows = ",\n  ".join(map(json.dumps, value))
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return Exported("{\n" + ",\n".join(lines) + "\n}\n", tuple(content["notes"]))


def _torch(plan: Plan, graph: Graph | None) -> Exported:
    from parenvs.exports.torch import export

    words, _, planned = export(plan, graph)
    text = json.dumps(words.to_json(), indent=1) + "\n"
    return Exported(text, words.notes, 0.0 if planned is None else loss(planned))


def _megatron(plan: Plan, graph: Graph | None) -> Exported:
    lines, planned = megatron_flags(stages_of(plan, graph))
    return _of_stages(megatron_text(planned, lines), planned)


def _torchtitan(plan: Plan, graph: Graph | None) -> Exported:
    sections, planned = torchtitan_table(stages_of(plan, graph))
    return _of_stages(torchtitan_text(planned, sections), planned)


def _deepspeed(plan: Plan, graph: Graph | None) -> Exported:
    content, planned = deepspeed_config(stages_of(plan, graph))
    return _of_stages(deepspeed_text(content), planned)


def _of_stages(text: str, planned: Stages) -> Exported:
    return Exported(text, planned.notes, loss(planned))


FORMATS: dict[str, Callable[[Plan, Graph | None], Exported]] = {
    "jax": _jax,
    "torch": _torch,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
}
