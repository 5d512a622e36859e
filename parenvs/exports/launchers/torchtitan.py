"""Plans with stages as torchtitan's configuration."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

from parenvs.core.stages import Stages
from parenvs.errors import InfeasibleError
from parenvs.exports.launchers.reading import Settings, dealt, stages_said
from parenvs.exports.stages import noted, recomputed, run_with

TORCHTITAN = "torchtitan 0.2"
"""Version whose configuration this is; its transformers call their layers ``layers.0``, ..."""
_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "tf32": "float32"}
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
"""Precision -> the converter of linear layers, and its options."""
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
    if zero and dp > 1:
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
    """Names of the modules of each part of the model."""
    parts = [[f"layers.{i}" for i in range(first, end)] for first, end in planned.parts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _torchtitan_recompute(planned: Stages) -> tuple[dict[str, object], Stages]:
    """What is recomputed, of all layers alike."""
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
    found = Settings.of(text, r"(?m)^(\w+) *= *([^\[\n]+)$")
    number = found.number
    pp, context = number("pipeline_parallel_degree", 1), number("context_parallel_degree", 1)
    shared, copies = number("data_parallel_shard_degree"), number("data_parallel_replicate_degree")
    tp, dp = number("tensor_parallel_degree", 1), shared * copies
    named = [len(re.findall(r"layers\.\d+", part)) for part in re.findall(r"(?m)^  \[.*\]", text)]
    sizes = named or [layers]
    parts = list(itertools.pairwise([0, *itertools.accumulate(sizes)]))
    schedules = {words: name for name, words in _SCHEDULES.items()}
    schedule = schedules.get(found.word("pipeline_parallel_schedule"), "1f1b")
    reshard = {"always": 3, "never": 2}.get(found.word("fsdp_reshard_after_forward"), 0)
    zero = reshard if pp == 1 else min(reshard, 1)
    precision = {words: name for name, words in _DTYPES.items() if name != "tf32"}[
        found.word("mixed_precision_param") or "bfloat16"
    ]
    for name, (converter, options) in _CONVERTERS.items():
        recipe = str(options.get("recipe_name", ""))
        if f"[{converter}]" in text and found.word("recipe_name") == recipe:
            precision = name
    micro = number("pipeline_parallel_microbatch_size", number("local_batch_size"))
    return stages_said(
        dealt(parts, pp, schedule == "zb-v"), dp * context, tp, zero,
        modes=[found.word("mode") or "none"] * sum(sizes),
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
        tensor_overlap=found.word("enable_async_tensor_parallel") == "true",
    )  # fmt: skip
