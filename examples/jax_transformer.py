"""A JAX transformer: planned, exported and trained on 8 virtual devices, beside a single one.

    python examples/jax_transformer.py

Three plans of one step: operators split over 8 devices, the batch split over 8, and both on a mesh
of 2 replicas with 4 ranks each. The losses of 20 steps are those of one device, also if the state
moves from the first plan to the last one half way.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

DEVICES = 8
_MANY = f"--xla_force_host_platform_device_count={DEVICES}"  # JAX counts devices as it starts
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_MANY}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import parenvs  # noqa: E402
from parenvs.core.plan import Plan  # noqa: E402
from parenvs.exports.jax import shardings  # noqa: E402
from parenvs.tasks.hybrid.space import Constraints  # noqa: E402

LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH = 1, 32, 8, 8, 64, 16
Tree = dict[str, Any]
Trees = tuple[Tree, Tree, Tree]


def init(random: np.random.Generator) -> Tree:
    """Return random parameters."""

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32)

    layer = {"qkv": (WIDTH, 3, HEADS, WIDTH // HEADS), "out": (HEADS, WIDTH // HEADS, WIDTH)}
    layer |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = {
        f"layer_{i}": {name: matrix(*shape) for name, shape in layer.items()} for i in range(LAYERS)
    }
    return {"embedding": matrix(WORDS, WIDTH), **layers}


def loss(params: Tree, batch: Tree) -> jax.Array:
    """Return the mean cross entropy of the next words."""
    x = jnp.take(params["embedding"], batch["words"], axis=0, mode="clip")
    for i in range(LAYERS):
        layer = params[f"layer_{i}"]
        with jax.named_scope(f"layer_{i}"):
            q, k, v = jnp.moveaxis(jnp.einsum("btw,wchd->bcthd", norm(x), layer["qkv"]), 1, 0)
            scores = jnp.einsum("bthd,bshd->bhts", q, k) * (WIDTH // HEADS) ** -0.5
            scores = jnp.where(jnp.tri(TOKENS, dtype=bool), scores, -1e9)
            context = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
            x += jnp.einsum("bthd,hdw->btw", context, layer["out"])
            x += jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    logits = norm(x) @ params["embedding"].T
    chances = jax.nn.log_softmax(logits)
    picked = jnp.sum(chances * jax.nn.one_hot(batch["next"], WORDS), -1)
    return -jnp.mean(picked)


def norm(x: jax.Array) -> jax.Array:
    """Return ``x`` with a root mean square of 1."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def step(params: Tree, state: Tree, batch: Tree) -> tuple[Tree, Tree, jax.Array]:
    """Run one step of Adam without bias correction."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], gradients)
    params = jax.tree.map(lambda p, m, v: p - 3e-3 * m / (jnp.sqrt(v) + 1e-5), params, m, v)
    return params, {"m": m, "v": v}, value


def arguments() -> tuple[Tree, Tree, Tree]:
    """Return the first arguments of the step."""
    random = np.random.default_rng(0)
    params = init(random)
    words = random.integers(0, WORDS, (BATCH, TOKENS), dtype=np.int32)
    state = {name: jax.tree.map(np.zeros_like, params) for name in ("m", "v")}
    return params, state, {"words": words, "next": (3 * words + 1) % WORDS}


def plans(graph: parenvs.Graph) -> dict[str, Plan]:
    """Return a plan of each kind."""
    cluster = f"1x{DEVICES}:v100"
    found: dict[str, Plan] = {}
    for name, scope, reward in (
        ("operator", "variables", "paper"),
        ("data", "inputs", "step_time"),
    ):
        problem = parenvs.problem(
            graph, cluster, task="partition", scope=scope, reward=reward, uneven="forbid"
        )
        found[name] = parenvs.plan(problem, "exact").plan
    hybrid = parenvs.problem(
        graph, cluster, task="hybrid", precision="fp32", batch=BATCH, stack="roofline"
    )
    limits = Constraints(tp=4, pp=1, zero=(0,))
    found["hybrid"] = parenvs.plan(hybrid, "uniform", constraints=limits).plan
    return found


def compiled(own: Any = None) -> Any:
    """Return the step jitted, with shardings of the arguments that the results keep."""
    out = {} if own is None else {"out_shardings": (own[0], own[1], None)}
    return jax.jit(step, donate_argnums=(0, 1), keep_unused=True, **out)


def losses(steps: int, placed: Trees, run: Any) -> tuple[list[float], Trees]:
    """Train, and return the loss of each step and the next arguments.

    Args:
        steps: to run.
        placed: the first arguments.
        run: the jitted step.
    """
    params, state, batch = placed
    curve = []
    for _ in range(steps):
        params, state, value = run(params, state, batch)
        curve.append(float(value))
    return curve, (params, state, batch)


def main() -> None:
    """Train under every plan, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    graph = parenvs.from_jax(step, *arguments(), name="transformer")
    single, _ = losses(steps, arguments(), compiled())
    print(f"one device: loss {single[0]:.4f} -> {single[-1]:.4f}")
    runs: dict[str, tuple[Any, Any]] = {}
    for name, plan in plans(graph).items():
        sizes = (DEVICES,)
        if isinstance(plan, parenvs.HybridPlan):
            sizes = (DEVICES // plan.stages[0].tp, plan.stages[0].tp)
        devices = np.array(jax.devices()).reshape(sizes)
        mesh = jax.sharding.Mesh(devices, ("data", "model")[-len(sizes) :])
        first = arguments()
        own = shardings(plan, mesh, first, graph)
        runs[name] = compiled(own), own
        curve, _ = losses(steps, jax.device_put(first, own), runs[name][0])
        worst = max(abs(a / b - 1) for a, b in zip(curve, single, strict=True))
        split = sum(not x.is_fully_replicated for x in jax.tree.leaves(own[0]))
        print(
            f"{name}: {split} parameters split over {'x'.join(map(str, sizes))}, loss -> "
            f"{curve[-1]:.4f}, relative difference at most {worst:.1e}"
        )
        assert worst < 1e-4, name
    curve, placed = [], arguments()
    for name in ("operator", "hybrid"):  # half of the steps each: the state moves in between
        run, own = runs[name]
        more, placed = losses(steps // 2, jax.device_put(placed, own), run)
        curve += more
    worst = max(abs(a / b - 1) for a, b in zip(curve, single, strict=False))
    print(
        f"operator, then hybrid: loss -> {curve[-1]:.4f}, relative difference at most {worst:.1e}"
    )
    assert worst < 1e-4


if __name__ == "__main__":
    main()
