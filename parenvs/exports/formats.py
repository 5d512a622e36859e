"""What plans are exported to, by name."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from parenvs.core.plan import Plan
from parenvs.core.stages import Stage, Stages
from parenvs.errors import ParenvsError, refuse_unknown
from parenvs.exports.stages import (
    layout_of,
    loss,
    noted,
    recomputed,
    refuse,
    refuse_others,
    run_with,
    stages_of,
    with_parts,
)
from parenvs.graph.graph import Graph

Parts = Sequence[tuple[int, int]]
"""Ranges of layers, in the model's order."""


def settings_in(text: str, pattern: str) -> dict[str, str]:
    """Return name -> value, empty where it has none; ``pattern`` has a group for each."""
    return {name: value.strip("\"'") for name, value in re.findall(pattern, text)}


def number_in(settings: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a setting that is a whole number.

    Raises:
        ParenvsError: it is missing and has no default, or is no such number.
    """
    value = settings.get(name, default)
    if value is None:
        raise ParenvsError(f"{name} is missing in the settings")
    try:
        return int(value)
    except ValueError:
        raise ParenvsError(
            f"{name} must be a whole number, not {value!r} in the settings"
        ) from None


def parts_of(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges of parts that have so many layers."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def stages_from(
    parts: Parts, count: int, ranks: int, tp: int, zero: int, modes: Sequence[str], **fields: Any
) -> Stages:
    """Return stages that are all alike but for their layers.

    Args:
        parts: one for each chunk of each stage.
        count: S, number of stages.
        ranks: replicas of a stage, times the ranks that share tokens.
        tp: ranks that share every matrix.
        zero: 0 to 3.
        modes: what is recomputed of each layer of the model.
        **fields: of ``Stages``.
    """
    # Chunk c of stage s is part c S + s; in a V-shaped schedule the second chunks come back.
    layers = [tuple(parts[stage::count]) for stage in range(count)]
    if fields.get("schedule") == "zb-v":
        layers = [(parts[stage], parts[2 * count - 1 - stage]) for stage in range(count)]
    stages = tuple(
        Stage(ranges, ranks * tp, tp, zero, tuple(x for a, b in ranges for x in modes[a:b]))
        for ranges in layers
    )
    names = tuple(f"layer_{k}" for k in range(len(modes)))
    return Stages(
        plan=None, run=None, replan=lambda stages: None, stages=stages, names=names,
        chunks=len(layers[0]), **fields,
    )  # fmt: skip


_PLAIN = ("", "fp32", "tf32", "bf16", "fp16")
"""Precisions that need no more than a flag; of some models none is planned."""
_HALF = ("bf16", "fp16")

DEEPSPEED = "DeepSpeed 0.16"
"""Version whose configuration this is."""


def deepspeed_config(planned: Stages) -> tuple[str, Stages]:
    """Return the configuration as JSON, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: DeepSpeed cannot express the plan; the line names the field.
    """
    tp, dp, zero = (planned.same(field, "DeepSpeed") for field in ("tp", "dp", "zero"))
    stages, precision = len(planned.stages), planned.precision
    refuse(
        (
            planned.shard and zero != 3,
            f"shard: DeepSpeed shares the states of ZeRO {zero} among all replicas; plan with "
            "--shard 0, or with --zero 3 (MiCS)",
        ),
        (planned.chunks > 1, "chunks: DeepSpeed's pipelines are not interleaved; plan with one"),
        (planned.context > 1, "context: DeepSpeed's configuration has no ring of key blocks"),
        (
            planned.expert > 1,
            "expert: DeepSpeed deals out experts in the model's code (MoE(ep_size=...)); plan with "
            "--expert 1",
        ),
        (
            tp > 1 and stages == 1,
            "stages[0].tp: DeepSpeed splits matrices by the topology of its pipelines; plan with "
            "--tp 1 or with stages",
        ),
    )
    refuse_others(planned, "DeepSpeed", ("1f1b", "early", "interleaved"), _PLAIN)
    zero_config: dict[str, Any] = {"stage": zero}
    if planned.shard:
        zero_config["mics_shard_size"] = planned.shard
    config: dict[str, Any] = {
        "train_batch_size": planned.batch,
        "train_micro_batch_size_per_gpu": planned.micro_batch,
        "gradient_accumulation_steps": planned.micro_batches,
        "zero_optimization": zero_config,
    }
    if planned.gradient_overlap and (stages > 1 or not zero):
        words = "gradient_overlap: DeepSpeed sums gradients of pipelines and of ZeRO 0 at the end"
        planned = run_with(planned, words, gradient_overlap=False)
    elif planned.gradient_bytes:
        zero_config["overlap_comm"] = planned.gradient_overlap
    if planned.gradient_bytes:
        half = "fp16" if precision == "fp16" else "bf16"
        config["communication_data_type"] = "fp32" if planned.gradient_bytes == 4 else half
        config["data_types"] = {"grad_accum_dtype": config["communication_data_type"]}
    if precision in _HALF:
        config[precision] = {"enabled": True}
    content: dict[str, Any] = {"written_for": DEEPSPEED, "config": config}
    if tp > 1:
        content["model"] = {"sequence_parallel": planned.sequence_parallel}
    if stages == 1:
        if set(planned.modes) != {"none"}:
            words = "recompute: call deepspeed.checkpointing in the layers' code"
            content["model"] = {"recompute": list(planned.modes)}
            planned = noted(planned, words)
        return _json(content), planned
    # partition_method="uniform" gives the first stages the layers that are left over.
    size, remainder = divmod(len(planned.names), stages)
    parts = tuple(parts_of(size + (k < remainder) for k in range(stages)))
    if parts != planned.parts:
        planned = with_parts(planned, parts, "DeepSpeed")
    # Stages without layers of their own have no modes, also behind the move.
    modes = {mode for stage in planned.stages for mode in stage.modes}
    if len(modes) > 1 or "selective" in modes:
        planned = recomputed(planned, "full", "DeepSpeed")
    content["PipelineModule"] = {
        "num_stages": stages,
        "partition_method": "uniform",
        "activation_checkpoint_interval": int(modes != {"none"}),
    }
    content["topology"] = {"num_pp": stages, "num_mp": tp, "num_dp": dp}
    content["parts"] = [0, *(end for _, end in planned.parts)]
    notes = [
        f"partition_method: uniform counts the {len(planned.names)} layers if embedding and "
        "head are inside the first and the last of them",
        "stages[0].tp: pass topology as PipeModelDataParallelTopology, and split the "
        "matrices in the layers' code, as Megatron-DeepSpeed does",
    ]
    return _json(content), noted(planned, *notes[: 1 + (tp > 1)])


def _json(content: dict[str, Any]) -> str:
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
    pp = topology["num_pp"]
    sharing = config.get("zero_optimization", {"stage": 0})
    ends = content.get("parts", [0, layers])
    interval = content.get("PipelineModule", {}).get("activation_checkpoint_interval", 0)
    model = content.get("model", {})
    half_precision = [x for x in _HALF if config.get(x, {}).get("enabled")]
    return stages_from(
        list(itertools.pairwise(ends)), pp,
        batch // (micro * config.get("gradient_accumulation_steps", 1)),
        topology["num_mp"], sharing["stage"],
        modes=model.get("recompute", ["full" if interval else "none"] * ends[-1]),
        batch=batch,
        micro_batch=micro,
        sequence_parallel=model.get("sequence_parallel", False),
        shard=sharing.get("mics_shard_size", 0),
        precision=half_precision[0] if half_precision else "fp32",
        gradient_bytes=4 if config.get("communication_data_type") == "fp32" else 2,
        gradient_overlap=bool(sharing.get("overlap_comm", sharing["stage"] == 3)) and pp == 1,
    )  # fmt: skip


MEGATRON = "Megatron-LM core 0.14"
"""Version whose flags these are; ``--pipeline-model-parallel-layout`` is experimental there."""
_RECIPES = {
    "fp8": ["--fp8-format hybrid", "--fp8-recipe tensorwise"],
    "fp8-block": ["--fp8-format e4m3", "--fp8-recipe blockwise"],
    "mxfp8": ["--fp8-format e4m3", "--fp8-recipe mxfp8"],
    "nvfp4": ["--fp4-format e2m1", "--fp4-recipe nvfp4"],
}
# ZeRO level -> what Megatron-FSDP shards.
_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
# Attention of the cost model's stack -> the kernel that computes it so.
_ATTENTION = {"fused": "flash", "written": "unfused"}
_PART = re.compile(r"t(?:\*(\d+))?")


def megatron_flags(planned: Stages) -> tuple[str, Stages]:
    """Return flags as an array of a shell script, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: Megatron cannot express the plan; the line names the field.
    """
    planned.refuse_models("Megatron")
    precision = planned.precision
    refuse_others(planned, "Megatron", ("1f1b", "interleaved"), (*_PLAIN, *_RECIPES))
    tp, zero = planned.same("tp", "Megatron"), planned.same("zero", "Megatron")
    planned.same("dp", "Megatron")
    stages = len(planned.stages)
    groups = planned.replicas[0] * planned.context // (planned.shard or 1)
    in_fp32 = planned.gradient_bytes == 4
    recompute, planned = _megatron_recompute(planned)
    lines: list[tuple[str, object]] = [
        (f"--num-layers {len(planned.names)}", True),
        (f"--tensor-model-parallel-size {tp}", True),
        ("--sequence-parallel", planned.sequence_parallel),
        (f"--pipeline-model-parallel-size {stages}", True),
        *((line, True) for line in _layer_flags(planned)),
        (f"--context-parallel-size {planned.context}", planned.context > 1),
        (f"--expert-model-parallel-size {planned.expert}", planned.expert > 1),
        (f"--expert-tensor-parallel-size {planned.expert_tp}", planned.expert_tp),
        (f"--micro-batch-size {planned.micro_batch}", True),
        (f"--global-batch-size {planned.batch}", True),
        ("--use-distributed-optimizer", zero),
        (f"--num-distributed-optimizer-instances {groups}", planned.shard),
        ("--use-megatron-fsdp", zero > 1),
        (f"--data-parallel-sharding-strategy {_SHARDED.get(zero)}", zero > 1),
        ("--no-gradient-accumulation-fusion", zero > 1),
        ("--ckpt-format fsdp_dtensor", zero > 1),
        *((line, True) for line in recompute),
        (f"--attention-backend {_ATTENTION.get(planned.attention)}", planned.attention),
        ("--fp16", precision == "fp16"),
        ("--bf16", precision in ("bf16", *_RECIPES)),
        *((line, True) for line in _RECIPES.get(precision, ())),
        (
            "--accumulate-allreduce-grads-in-fp32" if in_fp32 else "--grad-reduce-in-bf16",
            precision in ("bf16", *_RECIPES),
        ),
        ("--overlap-grad-reduce", planned.gradient_overlap),
        ("--overlap-param-gather", planned.gradient_overlap and zero),
        ("--tp-comm-overlap", planned.tensor_overlap and planned.sequence_parallel),
        ("--no-overlap-p2p-communication", planned.chunks > 1 and planned.p2p == "blocking"),
    ]
    if precision == "nvfp4":
        planned = noted(planned, "precision: nvfp4 is newer than these flags; core 0.15 has it")
    if planned.chunks == 1 and planned.p2p == "overlapped" and stages > 1:
        words = "p2p: Megatron overlaps sends of interleaved schedules only; they block"
        planned = run_with(planned, words, p2p="blocking")
    cluster = planned.plan.cluster
    per_server = cluster.devices_per_server
    script = [
        f"# {MEGATRON}; {planned.plan.instance} on {cluster}",
        f"# torchrun --nnodes {-(-planned.devices // per_server)} --nproc-per-node "
        f'{min(planned.devices, per_server)} pretrain_gpt.py "${{PARALLEL_ARGS[@]}}" ...',
        "PARALLEL_ARGS=(",
        *(f"  {line}" for line, holds in lines if holds),
        ")",
        "",
    ]
    return "\n".join(script), planned


def _layer_flags(planned: Stages) -> list[str]:
    """Flags that divide layers: none if even, first and last stage, or else a layout."""
    sizes = [end - first for first, end in planned.parts]
    if len(set(sizes)) == 1:
        flag = f"--num-layers-per-virtual-pipeline-stage {sizes[0]}"
        return [flag] if planned.chunks > 1 else []
    if planned.chunks == 1 and len(set(sizes[1:-1])) <= 1:
        return [
            f"--decoder-first-pipeline-num-layers {sizes[0]}",
            f"--decoder-last-pipeline-num-layers {sizes[-1]}",
        ]
    return [f'--pipeline-model-parallel-layout "{megatron_layout(sizes)}"']


def megatron_layout(sizes: list[int]) -> str:
    """Write numbers of layers as Megatron's layout, ``Et*3|(t*2|)*4t*3L``."""
    # E: embedding, t: a transformer layer, L: loss; | ends the part of a chunk.
    words = ["t" if n == 1 else f"t*{n}" if n else "" for n in sizes]
    inner = ""
    for word, group in itertools.groupby(words[1:-1]):
        count = len(list(group))
        inner += f"({word}|)*{count}" if count > 1 else f"{word}|"
    return f"E{words[0]}|{inner}{words[-1]}L"


def _megatron_recompute(planned: Stages) -> tuple[list[str], Stages]:
    """Return the flags of recomputation, and the stages as Megatron runs them."""
    modes = set(planned.modes)
    if modes == {"none"}:
        return [], planned
    if "full" not in modes:
        if len(modes) > 1:
            planned = recomputed(planned, "selective", "Megatron")
        return ["--recompute-granularity selective"], planned
    method, count = "uniform", 1
    if modes != {"full"}:
        parts = [planned.modes[first:end] for first, end in planned.parts]
        full = parts[0].count("full")
        # The method "block" recomputes the first layers of each chunk, as many in each.
        if all(part == ("full",) * full + ("none",) * (len(part) - full) for part in parts):
            method, count = "block", full
        else:
            planned = recomputed(planned, "full", "Megatron, but for equal numbers of full ones,")
    return [
        "--recompute-granularity full",
        f"--recompute-method {method}",
        f"--recompute-num-layers {count}",
    ], planned


def read_megatron(text: str, layers: int) -> Stages:
    """Return the stages that flags say, as Megatron takes them.

    What they leave out is Megatron's default. The number of devices is that of ``torchrun``.

    Args:
        text: a script or a line with flags.
        layers: of the model, where the flags do not say it.

    Raises:
        ParenvsError: a flag is missing or is no number; the line names it.
    """
    settings = settings_in(text, r"(--[\w-]+)(?:[ =]+(?!--)(\"[^\"]*\"|[^\s\\)]+))?")
    number = partial(number_in, settings)
    layers, pp = number("--num-layers", layers), number("--pipeline-model-parallel-size", 1)
    tp, context = number("--tensor-model-parallel-size", 1), number("--context-parallel-size", 1)
    ranks = number("--nnodes", 1) * number("--nproc-per-node") // (tp * pp * context) * context
    sharded = {words: zero for zero, words in _SHARDED.items()}
    shares_states = int("--use-distributed-optimizer" in settings)
    zero = sharded.get(settings.get("--data-parallel-sharding-strategy", ""), shares_states)
    precision = "bf16" if "--bf16" in settings else "fp16" if "--fp16" in settings else "fp32"
    for name, recipe in _RECIPES.items():
        kind, _, word = recipe[1].partition(" ")
        precision = name if settings.get(kind) == word else precision
    attentions = {backend: kind for kind, backend in _ATTENTION.items()}
    parts = _megatron_parts(settings, layers, pp)
    modes = [settings.get("--recompute-granularity") or "none"] * layers
    if settings.get("--recompute-method") == "block":
        count = number("--recompute-num-layers")
        for first, end in parts:
            left = range(min(first + count, end), end)
            modes[left.start : end] = ["none"] * len(left)
    instances = number("--num-distributed-optimizer-instances", 1)
    chunks = len(parts) // pp
    overlapped = chunks > 1 and "--no-overlap-p2p-communication" not in settings
    return stages_from(
        parts, pp, ranks, tp, zero,
        modes=modes,
        batch=number("--global-batch-size"),
        micro_batch=number("--micro-batch-size"),
        schedule="interleaved" if chunks > 1 else "1f1b",
        sequence_parallel="--sequence-parallel" in settings,
        context=context,
        expert=number("--expert-model-parallel-size", 1),
        expert_tp=number("--expert-tensor-parallel-size", 0),
        shard=ranks // instances if instances > 1 else 0,
        precision=precision,
        gradient_bytes=2 if "--grad-reduce-in-bf16" in settings else 4,
        gradient_overlap="--overlap-grad-reduce" in settings,
        p2p="" if pp == 1 else "overlapped" if overlapped else "blocking",
        attention=attentions.get(settings.get("--attention-backend", ""), ""),
        tensor_overlap="--tp-comm-overlap" in settings,
    )  # fmt: skip


def _megatron_parts(settings: Mapping[str, str], layers: int, pp: int) -> list[tuple[int, int]]:
    """Return the layers of each part: by a layout, by first and last stage, or even ones."""
    layout = settings.get("--pipeline-model-parallel-layout")
    first = number_in(settings, "--decoder-first-pipeline-num-layers", 0)
    last = number_in(settings, "--decoder-last-pipeline-num-layers", 0)
    if layout:
        while group := re.search(r"\(([^)]+)\)\*(\d+)", layout):
            layout = layout.replace(group[0], group[1] * int(group[2]), 1)
        return parts_of(sum(int(n or 1) for n in _PART.findall(x)) for x in layout.split("|"))
    if first or last:
        inner = layers - first - last
        return parts_of([first, *[inner // max(pp - 2, 1)] * (pp - 2), last])
    size = number_in(settings, "--num-layers-per-virtual-pipeline-stage", layers // pp)
    return parts_of([size] * (layers // size))


TORCHTITAN = "torchtitan 0.2"
"""Version whose configuration this is; its transformers call their layers ``layers.0``, ..."""
_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
# Precision -> the converter of linear layers, and its options.
_CONVERTERS: dict[str, tuple[str, dict[str, object]]] = {
    "fp8": (
        "quantize.linear.float8",
        {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True},
    ),
    "fp8-row": ("quantize.linear.float8", {"recipe_name": "rowwise"}),
    "mxfp8": ("quantize.linear.mx", {"recipe_name": "mxfp8_cublas"}),
}
TomlTable = dict[str, dict[str, object]]


def torchtitan_config(planned: Stages) -> tuple[str, Stages]:
    """Return the configuration as TOML, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: torchtitan cannot express the plan; the line names the field.
    """
    planned.refuse_models("torchtitan")
    precision, context = planned.precision, planned.context
    refuse_others(planned, "torchtitan", _SCHEDULES, (*_DTYPES, *_CONVERTERS))
    tp, dp, zero = (planned.same(field, "torchtitan") for field in ("tp", "dp", "zero"))
    modes = sorted(set(planned.modes))
    if len(modes) > 1:
        modes = ["full" if "full" in modes else "selective"]
        planned = recomputed(planned, modes[0], "torchtitan")
    checkpoint: dict[str, object] = {"mode": modes[0]}
    if modes == ["selective"]:
        checkpoint["selective_ac_option"] = "op"
        words = "recompute: torchtitan's selective mode keeps products, and recomputes more"
        planned = noted(planned, words)
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
    sharing_ranks, remainder = divmod(planned.shard or dp * context, context)
    refuse((
        remainder,
        f"shard: torchtitan shares states among whole groups of context ranks, and "
        f"{planned.shard} is no multiple of {context}",
    ))  # fmt: skip
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": dp // sharing_ranks if zero else dp,
        "data_parallel_shard_degree": sharing_ranks if zero else 1,
        "tensor_parallel_degree": tp,
        "context_parallel_degree": context,
        "expert_parallel_degree": planned.expert,
        **({"expert_tensor_parallel_degree": planned.expert_tp} if planned.expert_tp else {}),
        "pipeline_parallel_degree": len(planned.stages),
    }
    # States are shared over context ranks, too, where there is a single replica.
    if zero and dp * context > 1:
        parallelism["fsdp_reshard_after_forward"] = "always" if zero == 3 else "never"
    batch = planned.micro_batch
    if len(planned.stages) > 1:
        batch *= planned.micro_batches
        modules = [[f"layers.{k}" for k in range(first, end)] for first, end in planned.parts]
        modules[0].insert(0, "tok_embeddings")
        modules[-1] += ["norm", "output"]
        parallelism["pipeline_parallel_schedule"] = _SCHEDULES[planned.schedule]
        parallelism["pipeline_parallel_microbatch_size"] = planned.micro_batch
        parallelism["module_fqns_per_model_part"] = modules
    training: dict[str, object] = {"local_batch_size": batch, "global_batch_size": planned.batch}
    training["mixed_precision_param"] = _DTYPES.get(precision, "bfloat16")
    if zero and planned.gradient_bytes:
        training["mixed_precision_reduce"] = "float32"
    if tp > 1 and planned.tensor_overlap:
        parallelism["enable_async_tensor_parallel"] = True
    sections: TomlTable = {
        "parallelism": parallelism, "training": training, "activation_checkpoint": checkpoint,
    }  # fmt: skip
    if precision in _CONVERTERS:
        converter, options = _CONVERTERS[precision]
        sections["model"] = {"converters": [converter]}
        sections[converter] = options
        sections["compile"] = {"enable": True}
    lines = [f"# {TORCHTITAN}; {planned.plan.instance} on {planned.plan.cluster}"]
    for section, pairs in sections.items():
        lines += ["", f"[{section}]"]
        for key, value in pairs.items():
            text = json.dumps(value)
            if key == "module_fqns_per_model_part":  # a line for each part
                text = text.replace("[[", "[\n  [").replace("], ", "],\n  ").replace("]]", "],\n]")
            lines.append(f"{key} = {text}")
    return "\n".join([*lines, ""]), planned


def read_torchtitan(text: str, layers: int) -> Stages:
    """Return the stages that a configuration says, as torchtitan takes it.

    Args:
        text: the configuration, TOML; each degree is in it.
        layers: of the model, where the parts of the model do not say it.

    Raises:
        ParenvsError: a key is missing or is no number; the line names it.
    """
    settings = settings_in(text, r"(?m)^(\w+) *= *([^\[\n]+)$")
    number = partial(number_in, settings)
    pp, context = number("pipeline_parallel_degree", 1), number("context_parallel_degree", 1)
    shared, copies = number("data_parallel_shard_degree"), number("data_parallel_replicate_degree")
    tp = number("tensor_parallel_degree", 1)
    sizes = [len(re.findall(r"layers\.\d+", part)) for part in re.findall(r"(?m)^  \[.*\]", text)]
    parts = parts_of(sizes or [layers])
    schedules = {words: name for name, words in _SCHEDULES.items()}
    reshard = {"always": 3, "never": 2}.get(settings.get("fsdp_reshard_after_forward", ""), 0)
    # Plans with pipelines have ZeRO 0 or 1, which torchtitan runs as 2.
    zero = reshard if pp == 1 else min(reshard, 1)
    # fp32 and tf32 have the same setting; tf32 is a switch of PyTorch's.
    precisions = {words: name for name, words in _DTYPES.items() if name != "tf32"}
    precision = precisions[settings.get("mixed_precision_param") or "bfloat16"]
    for name, (converter, options) in _CONVERTERS.items():
        recipe = options.get("recipe_name", "")
        if f"[{converter}]" in text and settings.get("recipe_name", "") == recipe:
            precision = name
    return stages_from(
        parts, pp, shared * copies * context, tp, zero,
        modes=[settings.get("mode") or "none"] * parts[-1][1],
        batch=number("global_batch_size"),
        micro_batch=number("pipeline_parallel_microbatch_size", number("local_batch_size")),
        schedule=schedules.get(settings.get("pipeline_parallel_schedule", ""), "1f1b"),
        sequence_parallel=tp > 1,
        context=context,
        expert=number("expert_parallel_degree", 1),
        expert_tp=number("expert_tensor_parallel_degree", 0),
        shard=shared * context if zero and copies > 1 else 0,
        precision=precision,
        gradient_bytes=4,
        gradient_overlap=None,
        tensor_overlap=settings.get("enable_async_tensor_parallel") == "true",
    )  # fmt: skip


ACCELERATE = "Accelerate 1.15"
"""Version whose configuration this is."""
_REDONE = ("fsdp_activation_checkpointing", "gradient_checkpointing")
"""Settings that recompute activations."""


def accelerate_config(planned: Stages) -> tuple[str, Stages]:
    """Return the configuration as YAML, and the stages as they run, with notes on that.

    Raises:
        InfeasibleError: Accelerate cannot express the plan; the line names the field.
    """
    refuse(
        (len(planned.stages) > 1, "stages: Accelerate has no pipelines; plan with --stages 1"),
        (planned.expert > 1, "expert: Accelerate has no axis of experts; plan with --expert 1"),
    )
    refuse_others(planned, "Accelerate", ("1f1b", "early", "interleaved"), _PLAIN)
    ((stage,), context, shard) = planned.stages, planned.context, planned.shard
    dp, tp, zero, half = planned.replicas[0], stage.tp, stage.zero, planned.precision in _HALF
    ranks, remainder = divmod(shard or dp * context, context)
    refuse(
        (
            not zero and (tp > 1 or context > 1),
            "stages[0].zero: Accelerate shares matrices and tokens beside FSDP2 alone; plan with "
            "--zero 3",
        ),
        (
            tp > 1 and dp * context == 1,
            "stages[0].tp: Accelerate needs replicas, or ranks of context, beside tp for FSDP2",
        ),
        (
            remainder,
            f"shard: Accelerate shares states among whole groups of context ranks, and {shard} is "
            f"no multiple of {context}",
        ),
    )
    if {*planned.modes} - {"none", "full"} or len({*planned.modes}) > 1:
        planned = recomputed(planned, "full", "Accelerate")
    if planned.sequence_parallel:
        words = "sequence_parallel: the tensor parallelism of Transformers does not share tokens"
        planned = run_with(planned, words, sequence_parallel=False)
    if zero == 1:
        words, zero = "zero: FSDP2 shares gradients with the states; ZeRO 1 becomes 2", 2
        planned = run_with(planned, words, stages=(replace(planned.run.stages[0], zero=2),))
    summed = 2 if zero and half else 4
    if planned.gradient_bytes not in (0, summed):
        words = f"gradient_bytes: Accelerate sums gradients in {8 * summed} bits here"
        planned = run_with(planned, words, gradient_bytes=summed)
    redone = "full" in planned.modes
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if zero else "MULTI_GPU",
        "mixed_precision": planned.precision if half else "no",
        "num_machines": -(-planned.devices // planned.plan.cluster.devices_per_server),
        "num_processes": planned.devices,
        "machine_rank": 0,
    }
    if zero:
        settings["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": redone,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        degrees = {"dp_replicate": dp // ranks, "dp_shard": ranks, "tp": tp, "cp": context}
        settings["parallelism_config"] = {
            f"parallelism_config_{name}_size": size for name, size in degrees.items()
        }
    trainer = {
        "per_device_train_batch_size": planned.micro_batch,
        "gradient_accumulation_steps": planned.micro_batches,
        **({} if zero or not redone else {"gradient_checkpointing": True}),
    }
    if tp > 1:
        words = 'stages[0].tp: load the model with from_pretrained(..., tp_plan="auto")'
        planned = noted(planned, words)
    lines = [
        f"# {ACCELERATE}; {planned.plan.instance} on {planned.plan.cluster}",
        f"# TrainingArguments({', '.join(f'{name}={value}' for name, value in trainer.items())})",
        *_yaml(settings),
    ]
    return "\n".join([*lines, ""]), planned


def _yaml(settings: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", *_yaml(value, indent + "  ")]
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append(f"{indent}{name}: {text}")
    return lines


def read_accelerate(text: str, layers: int) -> Stages:
    """Return the stages that a configuration says, as Accelerate takes it.

    Args:
        text: the configuration, YAML, and in a comment what ``TrainingArguments`` has of the batch.
        layers: of the model.

    Raises:
        ParenvsError: a key is missing or is no number; the line names it.
    """
    settings = settings_in(text, r"(\w+)(?:: *|=)([^\s,()]+)")
    number = partial(number_in, settings)
    tp, context = (number(f"parallelism_config_{x}_size", 1) for x in ("tp", "cp"))
    ranks = number("num_processes") // tp
    copies = number("parallelism_config_dp_replicate_size", 1)
    kept = settings.get("fsdp_reshard_after_forward", "true") in ("false", "SHARD_GRAD_OP")
    zero = 0 if settings.get("distributed_type") != "FSDP" else 2 if kept else 3
    precision = settings.get("mixed_precision", "no")
    micro, times = number("per_device_train_batch_size"), number("gradient_accumulation_steps", 1)
    redone = (settings.get(name, "") for name in _REDONE)
    return stages_from(
        parts_of([layers]), 1, ranks, tp, zero,
        modes=["full" if "true" in map(str.lower, redone) else "none"] * layers,
        batch=micro * times * (ranks // context),
        micro_batch=micro,
        context=context,
        shard=ranks // copies if copies > 1 and zero else 0,
        precision=precision if precision in _HALF else "fp32",
        gradient_bytes=2 if zero and precision in _HALF else 4,
        gradient_overlap=None,
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


def export(plan: Plan, to: str, graph: Graph | None = None) -> Exported:
    """Write a plan in the words of a framework.

    Args:
        plan: the plan.
        to: one of ``FORMATS``.
        graph: that it was made for (default: the plan's instance).

    Raises:
        ParenvsError: an unknown framework, or one that cannot express the plan; the line names the
            field of the plan that stands against it.
    """
    refuse_unknown("--to: no framework", to, FORMATS)
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
            loss = export(plan, name, graph).loss
        except Exception as error:  # no exporter that fails takes the plan with it
            losses[name] = str(error) if isinstance(error, ParenvsError) else f"exporter: {error!r}"
        else:
            losses[name] = loss if isfinite(loss) else "memory: as it runs there it does not fit"
    return losses


def runs_words(losses: Mapping[str, float | str]) -> str:
    """Return what ``runs_in`` returns as a line."""
    runs: list[str] = []
    refusals: dict[str, list[str]] = defaultdict(list)
    for name, share in losses.items():
        if isinstance(share, str):
            field = share.partition(":")[0]
            refusals["instance" if " " in field else field].append(name)
        else:
            runs.append(name + (f" ({share:+.1%})" if share >= ROUNDED else ""))
    others = ", ".join(f"{', '.join(names)} ({field})" for field, names in refusals.items())
    line = f"runs in: {', '.join(runs) or 'no framework as it is'}"
    return f"{line}; not in {others}" if others else line


def read_back(text: str, layers: int) -> Stages:
    """Return the stages that the settings of a launcher say.

    Args:
        text: flags of Megatron, TOML of torchtitan, JSON of DeepSpeed or YAML of Accelerate, told
            apart by their form.
        layers: of the model, where they do not say it.

    Raises:
        ParenvsError: a setting is missing or is no number; the line names it.
    """
    if text.lstrip().startswith("{"):
        return read_deepspeed(text, layers)
    if re.search(r"(?m)^distributed_type:", text):
        return read_accelerate(text, layers)
    if "[parallelism]" in text:
        return read_torchtitan(text, layers)
    return read_megatron(text, layers)


def _jax(plan: Plan, graph: Graph | None) -> Exported:
    from parenvs.exports.jax import document

    content = document(layout_of(plan, graph))
    lines = []
    for key, value in content.items():
        text = json.dumps(value)
        if key in ("inputs", "outputs"):  # a line for each
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        lines.append(f' "{key}": {text}')
    return Exported("{\n" + ",\n".join(lines) + "\n}\n", tuple(content["notes"]))


def _torch(plan: Plan, graph: Graph | None) -> Exported:
    from parenvs.exports.torch import export

    words, _, planned = export(plan, graph)
    return Exported(_json(words.to_json()), words.notes, 0.0 if planned is None else loss(planned))


def _launcher(
    convert: Callable[[Stages], tuple[str, Stages]],
) -> Callable[[Plan, Graph | None], Exported]:
    def write(plan: Plan, graph: Graph | None) -> Exported:
        text, planned = convert(stages_of(plan, graph))
        return Exported(text, planned.notes, loss(planned))

    return write


FORMATS: dict[str, Callable[[Plan, Graph | None], Exported]] = {
    "jax": _jax,
    "torch": _torch,
    "megatron": _launcher(megatron_flags),
    "torchtitan": _launcher(torchtitan_config),
    "deepspeed": _launcher(deepspeed_config),
    "accelerate": _launcher(accelerate_config),
}
