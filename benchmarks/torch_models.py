"""PyTorch models of torchvision, transformers and our own: import, gradients, FLOPs, plans.

Needs torch, torchvision and transformers besides the extra ``jax``. Each model is measured in a
process of its own: at full size on the meta device, and small with random weights against PyTorch.
"""

from __future__ import annotations

import json
import math
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.framework import (
    Column,
    Row,
    apart,
    columns,
    main,
    measurement,
    progress,
)

DEVICES = 8
SEQUENCE = 2048


@dataclass(frozen=True)
class TorchModel:
    """A model of a public library.

    Attributes:
        source: the class, and what its sizes are of.
        full: returns the module, its keyword inputs, loss and targets, at the size that is planned.
        small: the same at small width, without dropout.
        split: (glob, dimension) of the variables that Megatron splits, as they are planned.
        masters: whether weights are bf16 with float32 masters.
        read_only: leave out plans and gradients; to see how far the import goes.
    """

    source: str
    full: Callable[[], Any]
    small: Callable[[], Any]
    split: Sequence[tuple[str, int]] = ()
    masters: bool = False
    read_only: bool = False


@dataclass
class Case:
    """A module with its inputs."""

    module: Any
    keywords: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()
    loss: Any = None
    targets: tuple[Any, ...] = ()


def torchvision() -> Any:
    """Import torchvision; its compiled operations are not needed, and may not fit the build."""
    import torch

    register = torch.library.register_fake

    def known(name: Any, *args: Any, **options: Any) -> Any:
        if str(name).startswith("torchvision::"):
            return lambda function: function
        return register(name, *args, **options)

    torch.library.register_fake = known
    import torchvision

    torch.library.register_fake = register
    return torchvision


def transformers() -> Any:
    """Import transformers, which imports torchvision."""
    torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def images(make: Callable[[Any], Any], count: int, size: int, classes: int, dense: bool = False):
    """A module of torchvision with cross entropy; ``dense`` labels every pixel."""
    import torch
    from torch.nn import functional

    def loss(output: Any, labels: Any) -> Any:
        return functional.cross_entropy(output["out"] if dense else output, labels)

    module = make(torchvision())
    labels = torch.randint(0, classes, (count, size, size) if dense else (count,))
    return Case(module, {}, (torch.randn(count, 3, size, size),), loss, (labels,))


def language(
    name: str, config: str, batch: int, length: int, bf16: bool = False, **sizes: Any
) -> Case:
    """A module of transformers, with its own loss."""
    import torch

    library = transformers()
    made = getattr(library, config)(**sizes)
    module = getattr(library, name)(made)
    module = module.bfloat16() if bf16 else module
    ids = torch.randint(0, made.vocab_size, (batch, length))
    return Case(module.train(), {"input_ids": ids, "labels": ids})


def own(name: str) -> Case:
    """One of the modules of the tests."""
    from torch_modules import MODULES

    module, inputs = MODULES[name]()
    return Case(module, {}, tuple(inputs))


def own_unet() -> Case:
    """The tests' U-Net at the width and size of latent diffusion."""
    import torch

    from torch_modules import UNet

    image = torch.randn(16, 3, 64, 64)
    return Case(UNet(320, 8), {}, (image, torch.zeros(16, dtype=torch.long), image))


TINY: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
CAUSAL = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": 2}
ATTENTION = (("*/self_attn/[qkv]_proj/weight", 0), ("*/o_proj/weight", 1))
LLAMA = (
    *ATTENTION,
    ("*/mlp/gate_proj/weight", 0),
    ("*/mlp/up_proj/weight", 0),
    ("*/mlp/down_proj/weight", 1),
)
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
LLAMA_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
             "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip


def small_llama() -> Case:
    return language("LlamaForCausalLM", "LlamaConfig", 2, 16, **TINY, **CAUSAL)


def small_experts(name: str, **sizes: Any) -> Case:
    """The exact form: each token's matrices are gathered."""
    how = {"experts_implementation": "batched_mm", **sizes}
    return language(f"{name}ForCausalLM", f"{name}Config", 2, 16, **TINY, **CAUSAL, **how)


MODELS = {
    "vit-b-16": TorchModel(
        "torchvision `vit_b_16`, batch 64",
        lambda: images(lambda tv: tv.models.vit_b_16(), 64, 224, 1000),
        lambda: images(lambda tv: tv.models.VisionTransformer(
            32, 8, 2, 4, 32, 48, num_classes=10), 2, 32, 10),
        (("*/self_attention/in_proj_weight", 1), ("*/self_attention/in_proj_bias", 1),
         ("*/out_proj/weight", 1), ("*/mlp/0/weight", 0), ("*/mlp/0/bias", 0),
         ("*/mlp/3/weight", 1)),
    ),
    "resnet-50": TorchModel(
        "torchvision `resnet50`, batch 64",
        lambda: images(lambda tv: tv.models.resnet50(), 64, 224, 1000),
        lambda: images(lambda tv: tv.models.resnet18(num_classes=10), 2, 64, 10),
    ),
    "deeplab-v3": TorchModel(
        "torchvision `deeplabv3_resnet50`, batch 8 of 512x512",
        lambda: images(lambda tv: tv.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None), 8, 512, 21, True),
        lambda: images(lambda tv: tv.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=5).eval(), 2, 32, 5, True),
    ),
    "u-net": TorchModel("ours (`tests/helpers`), width 320, batch 16 of 64x64", own_unet,
                        lambda: own("u-net")),
    "lstm": TorchModel("ours (`tests/helpers`), LSTM and GRU", lambda: own("recurrent"),
                       lambda: own("recurrent")),
    "gpt-2": TorchModel(
        "transformers `GPT2LMHeadModel`, 124 M, batch 8 of 1,024",
        lambda: language("GPT2LMHeadModel", "GPT2Config", 8, 1024),
        lambda: language("GPT2LMHeadModel", "GPT2Config", 2, 16, n_layer=2, n_embd=32, n_head=4,
                         vocab_size=96, n_positions=64, resid_pdrop=0, embd_pdrop=0,
                         attn_pdrop=0, bos_token_id=1, eos_token_id=2),
        (("*/attn/c_attn/weight", 2), ("*/attn/c_attn/bias", 1), ("*/attn/c_proj/weight", 0),
         ("*/mlp/c_fc/*weight", 1), ("*/mlp/c_fc/bias", 0), ("*/mlp/c_proj/weight", 0)),
    ),
    "bert-large": TorchModel(
        "transformers `BertForMaskedLM`, 335 M, batch 32 of 512",
        lambda: language("BertForMaskedLM", "BertConfig", 32, 512, hidden_size=1024,
                         num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
        lambda: language("BertForMaskedLM", "BertConfig", 2, 16, **TINY, hidden_dropout_prob=0,
                         attention_probs_dropout_prob=0),
        (("*/self/query/*", 0), ("*/self/key/*", 0), ("*/self/value/*", 0),
         ("*/attention/output/dense/weight", 1), ("*/intermediate/dense/*", 0),
         ("*layer/*[0-9]/output/dense/weight", 1)),
    ),
    "t5-base": TorchModel(
        "transformers `T5ForConditionalGeneration`, 223 M, batch 32 of 512",
        lambda: language("T5ForConditionalGeneration", "T5Config", 32, 512, d_model=768, d_ff=3072,
                         num_layers=12, num_heads=12, decoder_start_token_id=0),
        lambda: language("T5ForConditionalGeneration", "T5Config", 2, 16, vocab_size=96,
                         d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0,
                         decoder_start_token_id=0, pad_token_id=0),
        (("*Attention/q/weight", 0), ("*Attention/k/weight", 0), ("*Attention/v/weight", 0),
         ("*Attention/o/weight", 1), ("*/wi/weight", 0), ("*/wo/weight", 1)),
    ),
    "llama-3-8b": TorchModel(
        "transformers `LlamaForCausalLM` with the sizes of Llama-3 8B, batch 4 of 2,048",
        lambda: language("LlamaForCausalLM", "LlamaConfig", 4, SEQUENCE, True, **LLAMA_8B),
        small_llama, LLAMA, masters=True,
    ),
    "llama-3-70b": TorchModel(
        "the same with the sizes of Llama-3 70B",
        lambda: language("LlamaForCausalLM", "LlamaConfig", 4, SEQUENCE, True, **LLAMA_70B),
        small_llama, LLAMA, masters=True, read_only=True,
    ),
    "mixtral-8x7b": TorchModel(
        "transformers `MixtralForCausalLM`, 46.7 B, batch 4 of 2,048",
        lambda: language("MixtralForCausalLM", "MixtralConfig", 4, SEQUENCE, True),
        lambda: small_experts("Mixtral"), ATTENTION, masters=True,
    ),
    "qwen3-moe": TorchModel(
        "transformers `Qwen3MoeForCausalLM`, 8 layers of Qwen3-30B-A3B, batch 4 of 2,048",
        lambda: language("Qwen3MoeForCausalLM", "Qwen3MoeConfig", 4, SEQUENCE, True,
                         hidden_size=2048, num_hidden_layers=8, num_attention_heads=32,
                         num_key_value_heads=4, head_dim=128, moe_intermediate_size=768,
                         num_experts=128, num_experts_per_tok=8),
        lambda: small_experts("Qwen3Moe", num_experts=4, num_experts_per_tok=2, head_dim=8,
                              moe_intermediate_size=24), ATTENTION, masters=True,
    ),
}  # fmt: skip
"""Name -> model."""
SINGLE = ("gpt-2", "t5-base", "llama-3-8b", "mixtral-8x7b", "qwen3-moe")
"""Models that compute in float32 somewhere, whatever their weights are."""


def counted(case: Case) -> float:
    """FLOPs of the forward pass by PyTorch, attention by its products."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from parenvs.graph.pytorch.export import Loss

    def grouped(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
        return 2 * x[0] * x[1] * weight[-1]

    # The counter does not know the products of experts.
    names = (("aten", "_grouped_mm"), ("transformers", "grouped_mm_fallback"))
    custom = {
        getattr(getattr(torch.ops, space), name): grouped
        for space, name in names
        if hasattr(torch.ops, space) and hasattr(getattr(torch.ops, space), name)
    }
    whole = Loss(case.module, case.loss, len(case.targets))
    with (
        FlopCounterMode(display=False, custom_mapping=custom) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        whole(*case.inputs, *case.targets, **case.keywords)
    return float(counter.get_total_flops())


def ours(graph: Any) -> float:
    """FLOPs of the forward pass's products and convolutions, taps in the padding counted too."""
    import numpy as np

    from parenvs.graph.graph import Phase
    from parenvs.tasks.partition.formulas import runs

    total, times = 0.0, runs(graph, graph.flops)
    for index in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
        opcode = graph.opcodes[graph.opcode[index]]
        if opcode == "convolution":
            _, weight = graph.uses(np.array([index]))[1].tolist()
            (result,) = graph.makes(np.array([index]))[1].tolist()
            shape = graph.shape(weight)
            window = json.loads(graph.strings[graph.attribute[index]])["window"]["dimensions"]
            zeros = np.prod([dimension["base_dilation"] for dimension in window])
            taps = np.prod(shape[1:]) / zeros  # rows of zeros that transposed ones insert: none
            total += 2.0 * np.prod(graph.shape(result)) * taps * times[index]
        elif opcode == "dot":
            total += float(graph.flops[index]) * times[index]
    return total


def measured(name: str) -> dict[str, Any]:
    """Everything about a model."""
    import torch

    warnings.simplefilter("ignore")
    model = MODELS[name]
    with torch.device("meta"):
        case = model.full()
    from parenvs.graph.sources import lower_module

    parameters = sum(p.numel() for p in case.module.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, spent = time.perf_counter(), time.process_time()
    lowered = lower_module(
        case.module, case.inputs, case.keywords, case.loss, case.targets, masters=model.masters
    )
    graph = lowered.graph(name=name)
    raw: dict[str, Any] = {
        "model": name,
        "source": model.source,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - spent,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "before_bytes": 1024 * before,
        "instructions": len(graph.opcode),
        "module_megabytes": len(lowered.proto) / 1e6,
        "parameters": parameters,
        "variables": int(graph.variables.size),
        "elements": float(sum(
            math.prod(graph.shape(graph.parameter_tensor[i])) for i in graph.variables)),
        "notes": graph.notes,
        "versions": ", ".join(
            f"{x} {version(x)}" for x in ("torch", "torchvision", "transformers", "jax")),
    }  # fmt: skip
    progress(f"{name}: read")
    raw["flops"], raw["flops_torch"] = ours(graph), counted(case)
    if model.read_only:
        return raw
    raw |= plans(graph, lowered, model)
    progress(f"{name}: planned")
    from torch_agreement import agreement

    torch.manual_seed(0)
    small, double = model.small(), name not in SINGLE
    found = agreement(small.module, small.inputs, small.keywords, small.loss, small.targets, double)
    return raw | {
        "precision": "float64" if double else "float32",
        "loss_error": found.loss_error,
        "gradient_error": found.gradient_error,
        "gradients": found.gradients,
    }


def plans(graph: Any, lowered: Any, model: TorchModel) -> dict[str, Any]:
    """Megatron's plan and the best one, judged and verified."""
    from benchmarks.public_models import megatron
    from parenvs import Partitioning, verify
    from parenvs.agents.partition.exact import exact_partition
    from parenvs.cluster import choose_cluster

    problem = Partitioning.build(graph, choose_cluster(devices=DEVICES), reward="step_time")
    chosen = {"fastest": exact_partition(problem).report.chosen}
    raw: dict[str, Any] = {"plans": {}}
    if model.split:
        chosen["megatron"] = megatron(problem, model.split)
        raw["megatron_legal"] = bool(problem.legal(chosen["megatron"]))
    for name, classes in chosen.items():
        report = problem.report(problem.plan(classes))
        named = [path for path in report.plan.partition if "att" in path.lower()]
        verified = verify(graph, report.plan, lowered)
        raw["plans"][name] = {
            "legal": report.legal,
            "step_seconds": report.step_seconds,
            "split": len(report.plan.partition),
            "attention": len(named),
            "agrees": verified.agrees,
            "compared": verified.compared,
            "disagreements": len(verified.disagreements),
            "reshards": len(verified.reshards),
            "all_reduces": [verified.all_reduces, verified.predicted_all_reduces],
        }
    return raw


IMPORT: list[Column] = [
    ("model", "{model}"),
    ("what", "{source}"),
    ("M parameters", "{parameters:,.0f/1e6}"),
    ("instructions", "{instructions:,}"),
    ("s", "{cpu_seconds:.0f}"),
    ("GB", "{peak_bytes:.2f/1e9}"),
    ("before", "{before_bytes:.2f/1e9}"),
    ("FLOPs (PyTorch)", "{flops_torch:.4e}"),
    (
        "ours",
        lambda row: f"{row['flops'] / row['flops_torch']:.6f}" if row["flops_torch"] else "",
    ),
]


def of_plan(name: str, tell: Callable[[Row], str]) -> Callable[[Row], str]:
    """A column on a plan; empty where there is none."""
    return lambda row: tell(row["plans"][name]) if name in row["plans"] else ""


def verdict(plan: Row) -> str:
    """What Shardy says of a plan."""
    found, expected = plan["all_reduces"]
    agrees = "agrees" if plan["agrees"] else f"{plan['disagreements']} differ"
    return f"{agrees}, {found:,} / {expected:,}"


PLAN: list[Column] = [
    ("model", "{model}"),
    ("loss", "{loss_error:.0e}"),
    ("gradients", "{gradient_error:.0e} of {gradients}"),
    ("precision", "{precision}"),
    *(
        column
        for name in ("megatron", "fastest")
        for column in (
            (
                {"megatron": "Megatron legal", "fastest": "fastest legal"}[name],
                of_plan(name, lambda plan: "yes" if plan["legal"] else "no"),
            ),
            ("attention", of_plan(name, "{attention} of {split}".format_map)),
            ("Shardy", of_plan(name, verdict)),
        )
    ),
]


@measurement(
    title="Public models in PyTorch",
    key="model",
    among={"only": MODELS},
    about={"only": "models to measure"},
)
def torch_models(only: tuple[str, ...] = tuple(MODELS)) -> Iterator[tuple[Row, Any]]:
    for name in only:
        yield {"model": name}, partial(apart, measured, name)


@torch_models.page
def page(rows: list[Row]) -> list[str]:
    notes = [f"* {row['model']}: {note}" for row in rows for note in row["notes"]]
    versions = dict.fromkeys(row["versions"] for row in rows)
    return [
        f"{' or '.join(versions)}. Every model is on the meta device when it is imported; the "
        "seconds are of one core, from the module to the graph of its training step with Adam. GB: "
        "the most memory of the process, and what it held before the import. FLOPs: of the forward "
        "pass by "
        "`torch.utils.flop_counter` with MATH attention, and ours as a share of it (products and "
        "convolutions; taps in the padding counted, as it does). Rows of models that the command "
        "does not name are of earlier runs.",
        columns(rows, IMPORT),
        f"Errors: at small width with random weights, relative to the largest element. Plans on "
        f"{DEVICES} devices: Megatron's, by hand, and the fastest that the search proves. "
        "Attention: variables of attention among all that are split. Shardy: whether every "
        "input that it compares is split alike without a reshard; its all-reduces and those "
        "predicted. The small mixtures of experts gather each token's matrices (`batched_mm`), the "
        "exact form; the full ones take their experts as equally loaded.",
        columns([row for row in rows if "plans" in row], PLAN),
        *(["Notes of the reader:\n\n" + "\n".join(notes)] if notes else []),
    ]


if __name__ == "__main__":
    main(torch_models)
