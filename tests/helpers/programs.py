"""Programs as people write them, each with the truth about its inputs and phases. Needs JAX.

The truth is written down beside the arguments: a tree of role names that is a prefix of theirs.
The FLOPs of each phase are counted in the jaxprs of the loss, of the gradients and of the whole
step; what ``parenvs`` finds has no part in it.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, named_scope

from parenvs.graph.graph import Graph, Role

VARIABLE, OPTIMIZER, STATISTICS, FROZEN, BATCH, SCALAR = (
    "VARIABLE",
    "OPTIMIZER",
    "STATISTICS",
    "FROZEN",
    "BATCH",
    "SCALAR",
)
"""Names of roles. Scalars and random keys, which all devices hold alike, are ``SCALAR``."""
SAMPLES = 24
"""Samples per batch of every program."""
Array = jax.Array
Tree = Any


@dataclass(frozen=True)
class Program:
    """A function, its abstract arguments, and what is true of them.

    Attributes:
        function: the step or forward pass.
        args: abstract arguments.
        truth: role names, as trees that are prefixes of the arguments.
        loss: the forward pass alone, from the same arguments.
        gradients: the forward and the backward pass, from the same arguments.
    """

    function: Callable[..., Any]
    args: tuple[Tree, ...]
    truth: tuple[Tree, ...]
    loss: Callable[..., Any]
    gradients: Callable[..., Any]

    @cached_property
    def lowered(self) -> Any:
        """The lowered function, which keeps inputs that it does not use."""
        jitted = self.function
        if not hasattr(jitted, "lower"):
            jitted = jax.jit(jitted, keep_unused=True)
        return jitted.lower(*self.args)

    @property
    def roles(self) -> list[str]:
        """Role of each leaf of the arguments, in order; numbers that no one trains are scalars."""
        role_of = jax.tree.map(
            lambda role, part: jax.tree.map(lambda _: role, part), self.truth, self.args
        )
        pairs = zip(jax.tree.leaves(role_of), jax.tree.leaves(self.args), strict=True)
        return [role if leaf.shape or role == VARIABLE else SCALAR for role, leaf in pairs]

    @property
    def paths(self) -> list[str]:
        """Path of each leaf, like ``layers/0/q``; after the argument where that has to tell it."""
        names = list(inspect.signature(self.function).parameters)
        paths = []
        for (argument, *keys), _ in jax.tree_util.tree_flatten_with_path(self.args)[0]:
            parts = [
                next(str(getattr(key, x)) for x in ("key", "idx", "name") if hasattr(key, x))
                for key in keys
            ]
            paths.append((names[argument.idx], "/".join(parts)))
        shared = [told in (VARIABLE, FROZEN, BATCH) for told in self.roles]
        alike = Counter(itertools.compress((path or name for name, path in paths), shared))
        own = itertools.compress(paths, shared)
        mixed = {name for name, path in own if alike[path or name] > 1}
        return [
            f"{name}/{path}" if path and name in mixed else path or name for name, path in paths
        ]

    @property
    def flops(self) -> tuple[float, float, float]:
        """FLOPs of the products and convolutions of the forward, backward and update phase."""
        loss, gradients, step = (
            product_flops(jax.make_jaxpr(f)(*self.args).jaxpr)
            for f in (self.loss, self.gradients, self.function)
        )
        return loss, gradients - loss, step - gradients


def product_flops(jaxpr: Any) -> float:
    """FLOPs of all ``dot_general`` and ``conv_general_dilated`` of a jaxpr, loops counted out."""
    total = 0.0
    for equation in jaxpr.eqns:
        out = equation.outvars[0].aval
        if equation.primitive.name == "dot_general":
            (contracting, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2.0 * out.size * math.prod(left[d] for d in contracting)
        elif equation.primitive.name == "conv_general_dilated":
            total += convolution_flops(equation)
        trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += trips * sum(map(product_flops, _inner(equation.params)))
    return total


def roles_of(graph: Graph) -> list[tuple[str, str]]:
    """Path and role of each input; a weight that was taken apart counts once if its parts agree."""
    found: list[tuple[str, str]] = []
    for path, role in zip(graph.paths, graph.parameter_role.tolist(), strict=True):
        whole, _, part = path.rpartition("/") if re.search(r"/\d+:\d+$", path) else (path, "", "")
        one = (whole, Role(role).name)
        if not part or int(part.partition(":")[0]) == 0 or found[-1:] != [one]:
            found.append(one)
    return found


def phase_flops(graph: Graph) -> tuple[float, float, float]:
    """The same of a graph, of each phase; in loops times the iterations."""
    total = [0.0, 0.0, 0.0]
    for i in np.flatnonzero(graph.flops):
        if graph.opcodes[graph.opcode[i]] not in ("dot", "convolution"):
            continue
        flops, outer = graph.flops[i], graph.parent[i]
        while outer >= 0:
            attribute = json.loads(graph.strings[graph.attribute[outer]] or "{}")
            flops *= attribute.get("trip_count", 1)
            outer = graph.parent[outer]
        total[graph.phase[i]] += float(flops)
    forward, backward, update = total
    return forward, backward, update


def convolution_flops(equation: Any) -> float:
    """FLOPs of a convolution: two for every tap that falls on a value of the input."""
    options, (image, kernel) = equation.params, (x.aval.shape for x in equation.invars)
    out, numbers = equation.outvars[0].aval.shape, options["dimension_numbers"]
    total = 2.0 * kernel[numbers.rhs_spec[1]]
    total *= out[numbers.out_spec[0]] * out[numbers.out_spec[1]]
    for i in range(len(image) - 2):
        places = np.arange(out[numbers.out_spec[i + 2]])[:, None] * options["window_strides"][i]
        taps = np.arange(kernel[numbers.rhs_spec[i + 2]]) * options["rhs_dilation"][i]
        x, holes = places + taps - options["padding"][i][0], options["lhs_dilation"][i]
        inside = (x >= 0) & (x <= (image[numbers.lhs_spec[i + 2]] - 1) * holes) & (x % holes == 0)
        total *= int(inside.sum())
    return total


def _inner(params: dict[str, Any]) -> list[Any]:
    """Jaxprs among the parameters of an equation."""
    values = [x for v in params.values() for x in (v if isinstance(v, tuple) else (v,))]
    jaxprs = [getattr(value, "jaxpr", value) for value in values]
    return [jaxpr for jaxpr in jaxprs if hasattr(jaxpr, "eqns")]


# What programs are made of


class AdamState(NamedTuple):
    """State of Adam, as in optax."""

    count: Array
    mu: Tree
    nu: Tree


class ScheduleState(NamedTuple):
    """State of a schedule of the learning rate, as in optax."""

    count: Array


class EmptyState(NamedTuple):
    """State of a part without state, as in optax."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("step", "params", "opt_state", "extra"),
    meta_fields=(),
)
@dataclass
class TrainState:
    """Everything that a step carries on, as in flax; ``extra`` is what a program adds."""

    step: Array
    params: Tree
    opt_state: Tree
    extra: Tree


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of int32."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)
"""An abstract random key."""


def adam_state(params: Tree) -> AdamState:
    """Abstract state of Adam."""
    return AdamState(integers(), params, params)


def adam(
    gradients: Tree, state: AdamState, params: Tree, rate: Any = 1e-3
) -> tuple[Tree, AdamState]:
    """New parameters and state."""
    count = state.count + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.mu, gradients)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state.nu, gradients)
    first, second = 1 - 0.9**count, 1 - 0.999**count
    params = jax.tree.map(
        lambda p, m, v: p - rate * (m / first) / (jnp.sqrt(v / second) + 1e-8), params, mu, nu
    )
    return params, AdamState(count, mu, nu)


def sgd(gradients: Tree, params: Tree) -> Tree:
    """New parameters."""
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def layer(inputs: int, outputs: int) -> Tree:
    """Abstract weights of a dense layer."""
    return {"kernel": floats(inputs, outputs), "bias": floats(outputs)}


def dense(weights: Tree, x: Array) -> Array:
    """A dense layer."""
    return x @ weights["kernel"] + weights["bias"]


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Mean cross entropy of whole-number labels."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -picked.mean()


MLP = {"layers": [layer(16, 64), layer(64, 64)], "head": layer(64, 10)}
"""Weights of a perceptron."""
VECTORS = {"x": floats(SAMPLES, 16), "y": integers(SAMPLES)}
"""A batch for it."""


def mlp(params: Tree, batch: Tree) -> Array:
    """Loss of a perceptron."""
    x = batch["x"]
    for weights in params["layers"]:
        x = jax.nn.relu(dense(weights, x))
    return cross_entropy(dense(params["head"], x), batch["y"])


def optimized(
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]],
    state: Tree,
    loss: Callable[[Tree, Tree], Array] = mlp,
    params: Tree = MLP,
    batch: Tree = VECTORS,
    compute: Callable[[Tree, Tree], Any] | None = None,
    truth: Tree = OPTIMIZER,
    read: Callable[[Tree, Tree], Tree] = lambda params, state: params,
) -> Program:
    """``step(params, opt_state, batch)`` with an optimizer of one's own.

    Args:
        update: of gradients, state and params; returns new params and state.
        state: abstract state.
        loss: of params and batch, whose abstract arguments follow.
        compute: loss and gradients of both (default: as JAX has them).
        truth: roles of the state.
        read: weights at which the gradient is taken, of params and state.
    """
    compute = compute or jax.value_and_grad(loss)

    def gradients_of(params: Tree, opt_state: Tree, batch: Tree) -> Any:
        return compute(read(params, opt_state), batch)

    def step(params: Tree, opt_state: Tree, batch: Tree) -> Any:
        value, gradients = gradients_of(params, opt_state, batch)
        with named_scope("update"):
            params, opt_state = update(gradients, opt_state, params)
        return params, opt_state, value

    return Program(
        step,
        (params, state, batch),
        (VARIABLE, truth, BATCH),
        lambda params, opt_state, batch: loss(read(params, opt_state), batch),
        gradients_of,
    )


def adam_program(loss: Callable[[Tree, Tree], Array], params: Tree, batch: Tree) -> Program:
    """``step(params, opt_state, batch)`` with Adam, and the truth of its inputs."""
    return optimized(adam, adam_state(params), loss, params, batch)


# The programs


def train_state() -> Program:
    """A train state as argument 0: parameters, moments and counters in one."""

    def step(state: TrainState, batch: Tree) -> tuple[TrainState, Tree]:
        value, gradients = jax.value_and_grad(mlp)(state.params, batch)
        with named_scope("update"):
            params, opt_state = adam(gradients, state.opt_state, state.params)
            return TrainState(state.step + 1, params, opt_state, {}), {"loss": value}

    return Program(
        step,
        (TrainState(integers(), MLP, adam_state(MLP), {}), VECTORS),
        (TrainState(SCALAR, VARIABLE, OPTIMIZER, {}), BATCH),
        lambda state, batch: mlp(state.params, batch),
        lambda state, batch: jax.value_and_grad(mlp)(state.params, batch),
    )


def chained_optimizer() -> Program:
    """Clipping by global norm, Adam, and a cosine schedule, chained as in optax."""

    def step(params: Tree, opt_state: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(mlp)(params, batch)
        with named_scope("update"):
            _, moments, schedule = opt_state
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
            factor = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
            gradients = jax.tree.map(lambda g: g * factor, gradients)
            rate = 0.5e-3 * (1 + jnp.cos(jnp.pi * jnp.minimum(schedule.count / 1000, 1.0)))
            params, moments = adam(gradients, moments, params, rate)
            opt_state = (EmptyState(), moments, ScheduleState(schedule.count + 1))
        return params, opt_state, {"loss": value, "norm": norm}

    return Program(
        step,
        (MLP, (EmptyState(), adam_state(MLP), ScheduleState(integers())), VECTORS),
        (VARIABLE, OPTIMIZER, BATCH),
        lambda params, opt_state, batch: mlp(params, batch),
        lambda params, opt_state, batch: jax.value_and_grad(mlp)(params, batch),
    )


STACK = {
    "embedding": floats(100, 16),
    "blocks": {"up": floats(3, 16, 32), "down": floats(3, 32, 16), "scale": floats(3, 16)},
    "head": layer(16, 100),
}
"""Weights of three equal blocks in one array each."""
TOKENS = {"tokens": integers(SAMPLES, 12), "labels": integers(SAMPLES, 12)}
"""A batch of sentences."""


def block(weights: Tree, x: Array) -> Array:
    """A residual block with a norm."""
    y = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weights["scale"]
    return x + jax.nn.gelu(y @ weights["up"]) @ weights["down"]


def scan_layers() -> Program:
    """The blocks as one ``lax.scan`` over stacked weights."""

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        x, _ = lax.scan(lambda x, weights: (block(weights, x), None), x, params["blocks"])
        return cross_entropy(dense(params["head"], x), batch["labels"])

    return adam_program(loss, STACK, TOKENS)


def remat() -> Program:
    """Blocks that the backward pass computes again."""
    blocks = [{"up": floats(16, 32), "down": floats(32, 16), "scale": floats(16)}] * 3

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        for weights in params["blocks"]:
            x = jax.checkpoint(block)(weights, x)
        return cross_entropy(dense(params["head"], x), batch["labels"])

    return adam_program(loss, {**STACK, "blocks": blocks}, TOKENS)


def mixed_precision() -> Program:
    """Masters in float32, computation in bfloat16."""

    def loss(params: Tree, batch: Tree) -> Array:
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        return mlp(half, {**batch, "x": batch["x"].astype(jnp.bfloat16)}).astype(jnp.float32)

    return adam_program(loss, MLP, VECTORS)


def experts() -> Program:
    """A mixture of experts with the two best of each token."""
    params = {
        "embedding": floats(100, 16),
        "gate": floats(16, 4),
        "up": floats(4, 16, 32),
        "down": floats(4, 32, 16),
        "head": layer(16, 100),
    }

    def loss(params: Tree, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        scores, chosen = lax.top_k(x @ params["gate"], 2)
        weights = jax.nn.softmax(scores)[..., None] * jax.nn.one_hot(chosen, 4)
        hidden = jax.nn.relu(jnp.einsum("btd,edh->bteh", x, params["up"]))
        y = jnp.einsum("bteh,ehd->bted", hidden, params["down"])
        x = x + jnp.einsum("bted,bte->btd", y, weights.sum(-2))
        return cross_entropy(dense(params["head"], x), batch["labels"])

    return adam_program(loss, params, TOKENS)


def convolve(kernel: Array, x: Array, stride: int = 1) -> Array:
    """A convolution of images in NHWC, padded to the same size."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def u_net() -> Program:
    """A U-Net with one skip connection, trained by SGD with momentum."""
    params = {
        "down_0": floats(3, 3, 3, 8),
        "down_1": floats(3, 3, 8, 16),
        "middle": floats(3, 3, 16, 16),
        "up_1": floats(3, 3, 16, 8),
        "up_0": floats(3, 3, 16, 8),
        "out": floats(1, 1, 8, 3),
    }
    batch = {"noisy": floats(SAMPLES, 8, 8, 3), "clean": floats(SAMPLES, 8, 8, 3)}

    def loss(params: Tree, batch: Tree) -> Array:
        skip = jax.nn.silu(convolve(params["down_0"], batch["noisy"]))
        x = jax.nn.silu(convolve(params["down_1"], skip, 2))
        x = jax.nn.silu(convolve(params["middle"], x))
        x = jax.image.resize(x, (SAMPLES, 8, 8, 16), "nearest")
        x = jax.nn.silu(convolve(params["up_1"], x))
        x = jax.nn.silu(convolve(params["up_0"], jnp.concatenate([x, skip], -1)))
        return jnp.mean((convolve(params["out"], x) - batch["clean"]) ** 2)

    def step(params: Tree, momentum: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        with named_scope("update"):
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
            params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        return params, momentum, value

    return Program(
        step,
        (params, params, batch),
        (VARIABLE, OPTIMIZER, BATCH),
        lambda params, momentum, batch: loss(params, batch),
        lambda params, momentum, batch: jax.value_and_grad(loss)(params, batch),
    )


def lstm() -> Program:
    """An LSTM, as a ``lax.scan`` over time."""
    params = {
        "embedding": floats(100, 16),
        "input": floats(16, 128),
        "hidden": floats(32, 128),
        "bias": floats(128),
        "head": layer(32, 100),
    }

    def loss(params: Tree, batch: Tree) -> Array:
        def cell(carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            memory, hidden = carry
            gates = x @ params["input"] + hidden @ params["hidden"] + params["bias"]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
            return (memory, hidden), hidden

        x = params["embedding"][batch["tokens"]].swapaxes(0, 1)
        start = jnp.zeros((SAMPLES, 32)), jnp.zeros((SAMPLES, 32))
        _, hidden = lax.scan(cell, start, x)
        return cross_entropy(dense(params["head"], hidden.swapaxes(0, 1)), batch["labels"])

    return adam_program(loss, params, TOKENS)


def donated() -> Program:
    """A step whose parameters and state are donated."""
    plain = adam_program(mlp, MLP, VECTORS)
    step = jax.jit(plain.function, donate_argnums=(0, 1), keep_unused=True)
    return Program(step, plain.args, plain.truth, plain.loss, plain.gradients)


ADAPTERS = [{"a": floats(16, 2), "b": floats(2, 64)}, {"a": floats(64, 2), "b": floats(2, 64)}]
"""LoRA adapters of rank 2 of the layers of ``MLP``."""


def adapted(adapters: Tree, base: Tree, batch: Tree) -> Array:
    """Loss of the perceptron with adapters."""
    layers = [
        {**weights, "kernel": weights["kernel"] + adapter["a"] @ adapter["b"]}
        for weights, adapter in zip(base["layers"], adapters, strict=True)
    ]
    return mlp({**base, "layers": layers}, batch)


def lora() -> Program:
    """LoRA: the base model is an argument of its own that does not come back."""

    def step(adapters: Tree, opt_state: AdamState, base: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(adapted)(adapters, base, batch)
        with named_scope("update"):
            adapters, opt_state = adam(gradients, opt_state, adapters)
        return adapters, opt_state, value

    return Program(
        step,
        (ADAPTERS, adam_state(ADAPTERS), MLP, VECTORS),
        (VARIABLE, OPTIMIZER, FROZEN, BATCH),
        lambda adapters, opt_state, base, batch: adapted(adapters, base, batch),
        lambda adapters, opt_state, base, batch: jax.value_and_grad(adapted)(adapters, base, batch),
    )


def accumulation() -> Program:
    """The mean gradient of four micro-batches, by a ``lax.scan``."""

    def over_micro_batches(compute: Any, params: Tree, batch: Tree) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(4, SAMPLES // 4, *x.shape[1:]), batch)
        shapes = jax.eval_shape(compute, params, jax.tree.map(lambda x: x[0], parts))
        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def add(total: Tree, part: Tree) -> tuple[Tree, None]:
            return jax.tree.map(lambda x, new: x + new / 4, total, compute(params, part)), None

        return lax.scan(add, start, parts)[0]

    gradients_of = partial(over_micro_batches, jax.value_and_grad(mlp))
    loss = partial(over_micro_batches, mlp)
    return optimized(adam, adam_state(MLP), loss, compute=gradients_of)


def perceptron(w1: Array, b1: Array, w2: Array, b2: Array, x: Array) -> Array:
    """Loss of an autoencoder, whose weights are arguments."""
    return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - x) ** 2)


WEIGHTS = floats(16, 32), floats(32), floats(32, 16), floats(16)
"""Its weights."""


def separate_arguments() -> Program:
    """Every weight is an argument of its own."""
    gradients_of = jax.value_and_grad(perceptron, argnums=(0, 1, 2, 3))

    def step(w1: Array, b1: Array, w2: Array, b2: Array, x: Array) -> Any:
        value, gradients = gradients_of(w1, b1, w2, b2, x)
        with named_scope("update"):
            return sgd(gradients, (w1, b1, w2, b2)), value

    args = (*WEIGHTS, floats(SAMPLES, 16))
    return Program(step, args, (*[VARIABLE] * 4, BATCH), perceptron, gradients_of)


def separate_forward() -> Program:
    """A loss whose weights are arguments, without a step."""
    args = (*WEIGHTS, floats(SAMPLES, 16))
    return Program(perceptron, args, (*[VARIABLE] * 4, BATCH), perceptron, perceptron)


def gradients_only() -> Program:
    """A function that returns the loss and the gradients; the update is made elsewhere."""

    def gradients(params: Tree, batch: Tree) -> tuple[Array, Tree]:
        return jax.value_and_grad(mlp)(params, batch)

    return Program(gradients, (MLP, VECTORS), (VARIABLE, BATCH), mlp, gradients)


def batch_first() -> Program:
    """``step(batch, params)``."""

    def step(batch: Tree, params: Tree) -> Tree:
        gradients = jax.grad(mlp)(params, batch)
        with named_scope("update"):
            return sgd(gradients, params)

    return Program(
        step,
        (VECTORS, MLP),
        (BATCH, VARIABLE),
        lambda batch, params: mlp(params, batch),
        lambda batch, params: jax.value_and_grad(mlp)(params, batch),
    )


def batch_norm() -> Program:
    """Batch normalization with running statistics, which no gradient changes."""
    norm = {"scale": floats(8), "bias": floats(8)}
    params = {"stem": floats(3, 3, 3, 8), "norm": norm, "head": layer(8, 10)}
    statistics = {"norm": {"mean": floats(8), "var": floats(8)}}
    batch = {"images": floats(SAMPLES, 8, 8, 3), "labels": integers(SAMPLES)}

    def loss(params: Tree, statistics: Tree, batch: Tree) -> tuple[Array, Tree]:
        x = convolve(params["stem"], batch["images"])
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
        scale = lax.rsqrt(var + 1e-5) * params["norm"]["scale"]
        x = jax.nn.relu((x - mean) * scale + params["norm"]["bias"])
        new = jax.tree.map(
            lambda old, now: 0.9 * old + 0.1 * now, statistics, {"norm": {"mean": mean, "var": var}}
        )
        logits = dense(params["head"], x.mean((1, 2)))
        return cross_entropy(logits, batch["labels"]), new

    gradients_of = jax.value_and_grad(loss, has_aux=True)

    def step(state: TrainState, batch: Tree) -> tuple[TrainState, Array]:
        (value, new), gradients = gradients_of(state.params, state.extra, batch)
        with named_scope("update"):
            params, opt_state = adam(gradients, state.opt_state, state.params)
            return TrainState(state.step + 1, params, opt_state, new), value

    return Program(
        step,
        (TrainState(integers(), params, adam_state(params), statistics), batch),
        (TrainState(SCALAR, VARIABLE, OPTIMIZER, STATISTICS), BATCH),
        lambda state, batch: loss(state.params, state.extra, batch),
        lambda state, batch: gradients_of(state.params, state.extra, batch),
    )


def moving_average() -> Program:
    """A moving average of the weights, which the forward pass does not read."""

    def step(params: Tree, average: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(mlp)(params, batch)
        with named_scope("update"):
            params = sgd(gradients, params)
            average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params)
        return params, average, value

    return Program(
        step,
        (MLP, MLP, VECTORS),
        (VARIABLE, OPTIMIZER, BATCH),
        lambda params, average, batch: mlp(params, batch),
        lambda params, average, batch: jax.value_and_grad(mlp)(params, batch),
    )


def forward() -> Program:
    """A forward pass."""

    def predict(params: Tree, x: Array) -> Array:
        for weights in params["layers"]:
            x = jax.nn.relu(dense(weights, x))
        return dense(params["head"], x)

    return Program(predict, (MLP, VECTORS["x"]), (VARIABLE, BATCH), predict, predict)


def plain_sgd() -> Program:
    """SGD, which has no state."""

    def step(params: Tree, batch: Tree) -> tuple[Tree, Array]:
        value, gradients = jax.value_and_grad(mlp)(params, batch)
        with named_scope("update"):
            return sgd(gradients, params), value

    def gradients(params: Tree, batch: Tree) -> Any:
        return jax.value_and_grad(mlp)(params, batch)

    return Program(step, (MLP, VECTORS), (VARIABLE, BATCH), mlp, gradients)


def tied_embedding() -> Program:
    """An embedding that is the head too."""
    params = {"embedding": floats(100, 16), "layer": layer(16, 16)}

    def loss(params: Tree, batch: Tree) -> Array:
        x = jnp.tanh(dense(params["layer"], params["embedding"][batch["tokens"]]))
        return cross_entropy(x @ params["embedding"].T, batch["labels"])

    return adam_program(loss, params, TOKENS)


def dropout() -> Program:
    """Dropout from a key in the train state, which is split in every step."""

    def loss(params: Tree, batch: Tree, key: Array) -> Array:
        keep = jax.random.bernoulli(key, 0.9, batch["x"].shape)
        return mlp(params, {**batch, "x": jnp.where(keep, batch["x"] / 0.9, 0.0)})

    def step(state: TrainState, batch: Tree) -> tuple[TrainState, Array]:
        key, new_key = jax.random.split(state.extra["key"])
        value, gradients = jax.value_and_grad(loss)(state.params, batch, key)
        with named_scope("update"):
            params, opt_state = adam(gradients, state.opt_state, state.params)
            return TrainState(state.step + 1, params, opt_state, {"key": new_key}), value

    return Program(
        step,
        (TrainState(integers(), MLP, adam_state(MLP), {"key": KEY}), VECTORS),
        (TrainState(SCALAR, VARIABLE, OPTIMIZER, SCALAR), BATCH),
        lambda state, batch: loss(state.params, batch, state.extra["key"]),
        lambda state, batch: jax.value_and_grad(loss)(state.params, batch, state.extra["key"]),
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    program.__name__: program
    for program in (
        train_state,
        chained_optimizer,
        scan_layers,
        remat,
        mixed_precision,
        experts,
        u_net,
        lstm,
        donated,
        lora,
        accumulation,
        separate_arguments,
        separate_forward,
        gradients_only,
        batch_first,
        batch_norm,
        moving_average,
        forward,
        plain_sgd,
        tied_embedding,
        dropout,
    )
}
"""Name -> what makes the program."""
