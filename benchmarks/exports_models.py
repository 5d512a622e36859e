"""Public models, small, planned, exported and trained: losses beside those of one device.

Llama, ViT and a mixture of experts as public code writes them, in JAX on virtual devices and in
PyTorch on local processes. The two need packages that are no extras of parenvs, and not the same:

    pip install 'transformers==4.57.6' 'flax==0.12.8' 'optax==0.2.8' jaxtyping
    pip install --no-deps google-tunix==0.1.7
    python benchmarks/exports_models.py --only jax
    pip install 'transformers==5.23.0'
    python benchmarks/exports_models.py --only torch
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.framework import (
    ROOT,
    Case,
    Column,
    Row,
    Rows,
    apart,
    columns,
    main,
    measurement,
    progress,
)
from parenvs.errors import ParenvsError
from parenvs.exports.layout import layout_of

STEPS, TOLERANCE = 20, 1e-4
DEVICES, TP = 8, 4
PROCESSES = 2
SECONDS = 1800.0
"""After which a model's process is stopped."""
MODELS = {
    "jax": {
        "llama": "transformers 4.57.6, `FlaxLlamaForCausalLM`",
        "vit": "transformers 4.57.6, `FlaxViTForImageClassification`",
        "moe": "tunix 0.1.7, `Qwen3` with 4 experts, 2 a token, its dense routing",
    },
    "torch": {
        "llama": "transformers 5.23.0, `LlamaForCausalLM`",
        "vit": "transformers 5.23.0, `ViTForImageClassification`",
        "moe": "transformers 5.23.0, `MixtralForCausalLM`, 4 experts, 2 a token, `batched_mm`",
    },
}
"""Framework -> name -> what it is."""
PLANS = {
    "jax": ("operators", "batch", f"{DEVICES // TP} x {TP}"),
    "torch": ("operators", "batch", "tensor", "pipeline"),
}


@measurement(
    title="Models of public code under exported plans",
    key="framework model plan",
    wrong=lambda rows: any(row.get("worst", 0.0) > TOLERANCE for row in rows),
    among={"only": MODELS},
    about={"only": "of the frameworks"},
)
def exports_models(rows: Rows, only: tuple[str, ...] = tuple(MODELS)) -> Iterator[Case]:
    for framework in only:
        for name in MODELS[framework]:
            done = {row["plan"] for row in rows.of(framework=framework, model=name)}
            left = [plan for plan in PLANS[framework] if plan not in done]
            for row in trained(framework, name, left) if left else ():
                key = {"framework": framework, "model": name, "plan": row["plan"]}
                yield key, partial(dict, row)


def trained(framework: str, name: str, plans: list[str]) -> list[Row]:
    """Run a model under plans in a process of its own."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    flags += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    own = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if framework == "jax":
        own["XLA_FLAGS"] = flags
    try:
        return apart(_jax if framework == "jax" else _torch, name, plans, seconds=SECONDS, **own)
    except ParenvsError as error:
        progress(str(error))
        return []


COLUMNS: list[Column] = [
    ("framework", "{framework}"),
    ("model", "{model}"),
    ("plan", "{plan}"),
    ("as what, or what is missing", lambda row: row.get("told", row.get("missing", ""))),
    ("first loss", "{first:.4f}"),
    ("last", "{last:.4f}"),
    ("difference", "{worst:.1e}"),
]


@exports_models.page
def page(rows: list[Row]) -> list[str]:
    done = [x for x in rows if "worst" in x]
    order = {plan: k for plans in PLANS.values() for k, plan in enumerate(plans)}
    rows = sorted(
        rows,
        key=lambda x: (x["framework"], list(MODELS["jax"]).index(x["model"]), order[x["plan"]]),
    )
    listed = "; ".join(
        f"{framework} {name}: {what}"
        for framework, models in MODELS.items()
        for name, what in models.items()
    )
    known = {(x["framework"], x["model"], x["plan"]) for x in rows}
    every = [
        (f, name, plan) for f, models in MODELS.items() for name in models for plan in PLANS[f]
    ]
    left = [" ".join(x) for x in every if x not in known]
    equal = sum(x["worst"] <= TOLERANCE for x in done)
    return [
        f"Public models with 2 layers of width 32 or 64 and random weights: {listed}. Trained for "
        f"{STEPS} steps of Adam under plans made of their graphs, JAX on {DEVICES} virtual devices "
        f"(`operators` and `batch` exact, with `uneven=forbid`; `{DEVICES // TP} x {TP}` replicas "
        f"and tp ranks), PyTorch on {PROCESSES} processes (`operators` exact, automap's rules, "
        "`batch`, `tensor` a hybrid plan of 2 tp ranks, `pipeline` one of 2 stages with 2 "
        f"micro-batches). Losses within {TOLERANCE:g} of one device's: {equal} of {len(rows)} plans"
        f"; {len(rows) - len(done)} do not run, with the reason.",
        columns(rows, COLUMNS, left=4),
        *([f"Not run yet: {', '.join(left)}."] if left else []),
    ]


# --- JAX ---------------------------------------------------------------------------------------


def _jax_model(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The loss ``loss(params, batch)``, first parameters and batch of a model."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    random = np.random.default_rng(0)
    words = random.integers(0, 64, (16, 16), np.int32)
    text = {"tokens": words, "labels": (3 * words + 1) % 64}

    def entropy(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1])).mean()

    if name == "moe":
        return _tunix(text, entropy)
    import transformers as hf

    common = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
    common["intermediate_size"] = 128
    if name == "llama":
        config = hf.LlamaConfig(
            vocab_size=64, num_key_value_heads=4, max_position_embeddings=32, **common
        )
        model = hf.FlaxLlamaForCausalLM(config, input_shape=(1, 16))
        mask = jnp.ones((16, 16), jnp.int32)
        places = jnp.broadcast_to(jnp.arange(16), (16, 16))

        def text_loss(params: Any, batch: Any) -> Any:
            made = model(batch["tokens"], mask, places, params=params, train=False)
            return entropy(made.logits, batch["labels"])

        return text_loss, model.params, text
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = hf.ViTConfig(image_size=32, patch_size=8, num_labels=16, **common, **none)
    model = hf.FlaxViTForImageClassification(config, input_shape=(1, 32, 32, 3))
    pixels = random.normal(size=(16, 3, 32, 32)).astype(np.float32)

    def image_loss(params: Any, batch: Any) -> Any:
        made = model(batch["pixels"], params=params, train=False)
        return entropy(made.logits, batch["labels"])

    return image_loss, model.params, {"pixels": pixels, "labels": np.arange(16, dtype=np.int32)}


def _tunix(text: dict[str, Any], entropy: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Qwen3 with experts; the rest of its package, which trains, is not imported."""
    import importlib.util
    import types

    import jax.numpy as jnp
    from flax import nnx

    spec = importlib.util.find_spec("tunix")
    assert spec is not None and spec.submodule_search_locations
    package = types.ModuleType("tunix")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["tunix"] = package
    for part in ("models", "generate", "models.qwen3"):
        inner = types.ModuleType(f"tunix.{part}")
        inner.__path__ = [str(Path(package.__path__[0], *part.split(".")))]
        sys.modules[inner.__name__] = inner
    from tunix.models.qwen3 import model as qwen3

    config = qwen3.ModelConfig(
        num_layers=2, vocab_size=64, embed_dim=64, hidden_dim=64, num_heads=8, head_dim=8,
        num_kv_heads=4, rope_theta=10_000, norm_eps=1e-6, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    rule, state = nnx.split(qwen3.Qwen3(config, rngs=nnx.Rngs(0)))
    places = jnp.broadcast_to(jnp.arange(16), (16, 16))
    causal = jnp.broadcast_to(jnp.tri(16, dtype=bool), (16, 16, 16))

    def named(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {str(key): named(part) for key, part in tree.items()}

    def numbered(tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {int(k) if k.isdecimal() else k: numbered(part) for k, part in tree.items()}

    def loss(params: Any, batch: Any) -> Any:
        own = state.__class__(state)  # the same structure, with other values
        nnx.replace_by_pure_dict(own, numbered(params))
        logits, _ = nnx.merge(rule, own)(batch["tokens"], places, None, causal)
        return entropy(logits, batch["labels"])

    return loss, named(nnx.to_pure_dict(state)), text


def _jax(name: str, plans: list[str]) -> list[Row]:
    """Train a model under plans on virtual devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.compiled_plans import KINDS
    from parenvs import from_jax
    from parenvs.errors import one_line
    from parenvs.exports.jax import shardings

    loss, params, batch = _jax_model(name)
    params = jax.tree.map(np.asarray, params)
    state = {key: jax.tree.map(np.zeros_like, params) for key in ("m", "v")}

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], gradients)
        params = jax.tree.map(lambda p, m, v: p - 3e-3 * m / (jnp.sqrt(v) + 1e-5), params, m, v)
        return params, {"m": m, "v": v}, value

    first = params, state, batch
    graph = from_jax(step, *first, parts=False, name=name, batch_size=16)

    def curve(own: Any = None) -> list[float]:
        out = {} if own is None else {"out_shardings": (own[0], own[1], None)}
        run = jax.jit(step, donate_argnums=(0, 1), keep_unused=True, **out)
        params, state, batch = first if own is None else jax.device_put(first, own)
        values = []
        for _ in range(STEPS):
            params, state, value = run(params, state, batch)
            values.append(float(value))
        return values

    single, rows = curve(), []
    for kind in plans:
        try:
            plan = KINDS[kind](graph)
            sizes = [axis.size for axis in layout_of(plan, graph).axes]
            devices = np.array(jax.devices()).reshape(sizes)
            mesh = jax.sharding.Mesh(devices, ("a", "b")[: len(sizes)])
            own = shardings(plan, mesh, first, graph)
            split = sum(not x.is_fully_replicated for x in jax.tree.leaves(own[0]))
            placed = f"{split} of {len(jax.tree.leaves(params))} parameters split over "
            told = placed + " x ".join(map(str, sizes))
            rows.append(_row(kind, single, curve(own), told))
        except ParenvsError as error:
            rows.append({"plan": kind, "missing": one_line(error)})
    return rows


# --- PyTorch -----------------------------------------------------------------------------------


def torch_model(name: str) -> tuple[Any, Any, Any, Any]:
    """A module that gives logits, its loss, input and targets; the same in every process."""
    import torch
    import torch.nn.functional as functional
    import transformers as hf
    from torch import nn

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes["intermediate_size"] = 64
    causal: dict[str, Any] = {"vocab_size": 64, "num_key_value_heads": 2, "use_cache": False}
    causal |= {"max_position_embeddings": 16, "attn_implementation": "eager"}
    if name == "llama":
        model: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **causal))
    elif name == "moe":
        experts = {"num_local_experts": 4, "experts_implementation": "batched_mm"}
        model = hf.MixtralForCausalLM(hf.MixtralConfig(**sizes, **causal, **experts))
    else:
        sizes |= {"image_size": 32, "patch_size": 8, "num_labels": 16}
        sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = hf.ViTForImageClassification(hf.ViTConfig(**sizes, attn_implementation="eager"))

    class Logits(nn.Module):
        """A model of transformers as a function of one tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the logits."""
            return self.model(x).logits

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    seeded = torch.Generator().manual_seed(1)
    if name == "vit":
        return Logits(), loss, torch.randn(8, 3, 32, 32, generator=seeded), torch.arange(8)
    words = torch.randint(0, 64, (8, 8), generator=seeded)
    return Logits(), loss, words, (3 * words + 1) % 64


def torch_curve(name: str, plan: Any = None) -> tuple[list[float], dict[str, int]]:
    """Losses on one device, or as a plan says, and the collectives of a step."""
    import torch

    model, loss, inputs, targets = torch_model(name)
    parallel = None
    if plan is not None:
        from parenvs.exports.parallel import Parallel

        parallel = Parallel(model, loss, plan, inputs)
    optimiser = torch.optim.Adam((parallel or model).parameters(), 3e-3)
    values = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        if parallel is None:
            value = loss(model(inputs), targets)
            value.backward()
            values.append(value.item())
        else:
            values.append(parallel.step(inputs, targets))
        optimiser.step()
    return values, parallel.collectives(inputs, targets) if parallel else {}


def torch_work(rank: int, processes: int, port: int, job: dict[str, Any]) -> None:
    """Train in one of the processes; the first one leaves what it found in a file."""
    import torch_transformer as example

    example.join(rank, processes, port)
    found = torch_curve(job["name"], job["plan"])
    if rank == 0:
        Path(job["told"]).write_text(json.dumps(found), encoding="utf-8")


def _torch(name: str, plans: list[str]) -> list[Row]:
    """Train a model under plans on local processes."""
    import tempfile

    import parenvs
    import torch_transformer as example
    from parenvs import Cluster, HybridPlan, HybridStage, from_torch
    from parenvs.agents.partition.exact import exact_partition
    from parenvs.errors import one_line
    from parenvs.exports.torch import torch_plan
    from parenvs.tasks.hybrid.model import HybridModel

    model, loss, inputs, targets = torch_model(name)
    graph = from_torch(model, inputs, loss=loss, targets=(targets,))
    cluster = f"1x{PROCESSES}:v100"
    single, _ = torch_curve(name)
    rows: list[Row] = []

    def made(kind: str) -> Any:
        if kind in ("operators", "batch"):
            scope = "variables" if kind == "operators" else "inputs"
            reward = "paper" if kind == "operators" else "step_time"
            rules = "automap" if kind == "operators" else "shardy"
            problem = parenvs.problem(
                graph,
                cluster,
                "partition",
                scope=scope,
                reward=reward,
                uneven="forbid",
                rules=rules,
            )
            return torch_plan(exact_partition(problem).plan, graph)
        layers = len(HybridModel.of_graph(graph))
        parts = ((0, layers),) if kind == "tensor" else ((0, layers // 2), (layers // 2, layers))
        tp = PROCESSES if kind == "tensor" else 1
        stages = tuple(HybridStage((part,), PROCESSES // len(parts), tp=tp) for part in parts)
        return torch_plan(
            HybridPlan(
                graph.name, graph.fingerprint, Cluster.parse(cluster), "roofline", "fp32",
                batch=8, micro_batch=4, stages=stages,
            ), graph,
        )  # fmt: skip

    for kind in plans:
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "told.json"
            try:
                plan = made(kind)
                job = {"name": name, "plan": plan, "told": str(told)}
                example.start(PROCESSES, job, torch_work)
            except Exception as error:  # of any kind: the framework's, or ours
                named = re.findall(r"^[\w.]+(?:Error|Exception): .*", str(error), re.MULTILINE)
                words = one_line(named[-1] if named else error)[:240]
                rows.append({"plan": kind, "missing": words})
                continue
            values, counts = json.loads(told.read_text())
            kinds = ", ".join(f"{n} {x}" for x, n in counts.items()) or "no collective"
            rows.append(_row(kind, single, values, f"{plan.words}; {kinds}"))
    return rows


def _row(kind: str, single: list[float], curve: list[float], told: str) -> Row:
    worst = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
    return {"plan": kind, "told": told, "first": single[0], "last": curve[-1], "worst": worst}


if __name__ == "__main__":
    main(exports_models)
