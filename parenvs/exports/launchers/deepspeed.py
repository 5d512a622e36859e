"""Plans with stages as DeepSpeed's configuration and arguments of ``PipelineModule``."""

from __future__ import annotations

import itertools
import json
from typing import Any

from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.exports.launchers.reading import dealt, stages_said
from parenvs.exports.stages import noted, recomputed, run_with, with_parts

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
    """Layers between checkpoints: none, or every layer."""
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
