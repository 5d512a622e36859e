"""Programs of further architectures, algorithms and optimizers, each with the truth beside it.

Codebooks, queues and teachers that follow; memories that samples carry on; policies and critics;
fields, filters and flows; optimizers with preconditioners and averages. Needs JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from hard_programs import network, stepped, two_layers
from jax import lax, named_scope

from programs import (  # isort: skip
    BATCH, FROZEN, KEY, MLP, OPTIMIZER, SAMPLES, SCALAR, STATISTICS, TOKENS, VARIABLE, VECTORS,
    AdamState, Array, Program, Tree, adam, adam_program, adam_state, cross_entropy, dense, floats,
    integers, layer, mlp, optimized,
)  # fmt: skip


def unit(x: Array) -> Array:
    """Vectors of length one."""
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def averaged(rate: float, old: Tree, new: Tree) -> Tree:
    """A moving average of all leaves."""
    return jax.tree.map(lambda o, n: (1 - rate) * o + rate * n, old, new)


def with_state(
    loss: Callable[..., tuple[Array, Tree]],
    params: Tree,
    state: Tree,
    batch: Tree,
    truth: Tree,
    follow: Callable[[Tree, Tree], Tree] = lambda params, state: state,
) -> Program:
    """``step(params, opt_state, state, batch)`` with Adam, whose loss returns the new state too.

    Args:
        loss: of params, state and batch; returns the loss and the new state.
        params, state, batch: abstract arguments.
        truth: roles of the state.
        follow: what the state becomes once the weights are new.
    """
    gradients_of = jax.value_and_grad(loss, has_aux=True)

    def step(params: Tree, opt_state: AdamState, state: Tree, batch: Tree) -> Any:
        (value, state), gradients = gradients_of(params, state, batch)
        with named_scope("update"):
            params, opt_state = adam(gradients, opt_state, params)
            state = follow(params, state)
        return params, opt_state, state, value

    return Program(
        step,
        (params, adam_state(params), state, batch),
        (VARIABLE, OPTIMIZER, truth, BATCH),
        lambda params, opt_state, state, batch: loss(params, state, batch),
        lambda params, opt_state, state, batch: gradients_of(params, state, batch),
    )


# Codebooks, queues, teachers


def codebook_by_averages() -> Program:
    """VQ-VAE whose codes are moving averages of what falls on them; no gradient reaches them."""
    params = {"encoder": two_layers(12, 32, 8), "decoder": two_layers(8, 32, 12)}
    state = {"codes": floats(16, 8), "sizes": floats(16), "sums": floats(16, 8)}

    def loss(params: Tree, state: Tree, x: Array) -> tuple[Array, Tree]:
        hidden = network(params["encoder"], x)
        codes = state["codes"]
        distance = (hidden**2).sum(-1)[:, None] - 2 * hidden @ codes.T + (codes**2).sum(-1)
        chosen = jax.nn.one_hot(distance.argmin(-1), 16)
        near = chosen @ codes
        straight = hidden + lax.stop_gradient(near - hidden)
        sizes = 0.99 * state["sizes"] + 0.01 * chosen.sum(0)
        sums = 0.99 * state["sums"] + 0.01 * chosen.T @ lax.stop_gradient(hidden)
        commitment = jnp.mean((hidden - lax.stop_gradient(near)) ** 2)
        new = {"codes": sums / (sizes[:, None] + 1e-5), "sizes": sizes, "sums": sums}
        return jnp.mean((network(params["decoder"], straight) - x) ** 2) + commitment, new

    return with_state(loss, params, state, floats(SAMPLES, 12), STATISTICS)


def memory_bank() -> Program:
    """Features of all samples are kept by their number, and those of the batch written anew."""
    params, state = two_layers(12, 32, 8), {"bank": floats(200, 8)}

    def loss(params: Tree, state: Tree, batch: Tree) -> tuple[Array, Tree]:
        feature = unit(network(params, batch["x"]))
        logits = feature @ state["bank"].T / 0.1
        kept = 0.5 * state["bank"][batch["number"]] + 0.5 * lax.stop_gradient(feature)
        bank = state["bank"].at[batch["number"]].set(unit(kept))
        return cross_entropy(logits, batch["number"]), {"bank": bank}

    batch = {"x": floats(SAMPLES, 12), "number": integers(SAMPLES)}
    return with_state(loss, params, state, batch, STATISTICS)


# Memories that samples carry on


def segment_memory() -> Program:
    """Transformer-XL: each layer attends to what it saw in the segment before."""
    names = ("query", "key", "value", "out")
    params = {
        "embedding": floats(50, 16),
        "layers": [{name: floats(16, 16) for name in names} for _ in range(2)],
        "head": layer(16, 50),
    }

    def loss(params: Tree, memory: Tree, batch: Tree) -> tuple[Array, Tree]:
        x, kept = params["embedding"][batch["tokens"]], []
        for weights, seen in zip(params["layers"], memory, strict=True):
            kept.append(lax.stop_gradient(x))
            context = jnp.concatenate([seen, x], axis=1)
            query, key, value = x @ weights["query"], context @ weights["key"], None
            value = context @ weights["value"]
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key) / 4)
            x = x + jnp.einsum("bqk,bkd->bqd", scores, value) @ weights["out"]
        return cross_entropy(dense(params["head"], x), batch["labels"]), kept

    memory = [floats(SAMPLES, 12, 16)] * 2
    return with_state(loss, params, memory, TOKENS, BATCH)


# Policies and critics


def soft_actor_critic() -> Program:
    """SAC: an actor, two critics with targets that follow, and a trained temperature."""
    params = {
        "actor": two_layers(5, 32, 4),
        "critics": [two_layers(7, 32, 1), two_layers(7, 32, 1)],
        "temperature": floats(),
    }

    def value(critics: Tree, seen: Array, action: Array) -> list[Array]:
        both = jnp.concatenate([seen, action], -1)
        return [network(weights, both)[:, 0] for weights in critics]

    def act(actor: Tree, seen: Array, key: Array) -> tuple[Array, Array]:
        mean, spread = jnp.split(network(actor, seen), 2, -1)
        noise = jax.random.normal(key, mean.shape)
        return jnp.tanh(mean + jnp.exp(spread) * noise), -(spread + noise**2 / 2).sum(-1)

    def loss(params: Tree, targets: Tree, batch: Tree, key: Array) -> Array:
        one, two = jax.random.split(key)
        warmth = jnp.exp(params["temperature"])
        action, said = act(lax.stop_gradient(params["actor"]), batch["next"], one)
        ahead = jnp.minimum(*value(targets, batch["next"], action)) - warmth * said
        aim = lax.stop_gradient(batch["reward"] + 0.99 * (1 - batch["done"]) * ahead)
        known = value(params["critics"], batch["seen"], batch["action"])
        critic = sum(jnp.mean((q - aim) ** 2) for q in known)
        action, said = act(params["actor"], batch["seen"], two)
        held = lax.stop_gradient(params["critics"])
        gain = jnp.minimum(*value(held, batch["seen"], action))
        actor = jnp.mean(lax.stop_gradient(warmth) * said - gain)
        return critic + actor - jnp.mean(warmth * lax.stop_gradient(said - 2))

    gradients_of = jax.value_and_grad(loss)

    def step(params: Tree, targets: Tree, opt_state: AdamState, batch: Tree, key: Array) -> Any:
        found, gradients = gradients_of(params, targets, batch, key)
        with named_scope("update"):
            params, opt_state = adam(gradients, opt_state, params)
            targets = averaged(0.005, targets, params["critics"])
        return params, targets, opt_state, found

    batch = {
        "seen": floats(SAMPLES, 5),
        "next": floats(SAMPLES, 5),
        "action": floats(SAMPLES, 2),
        "reward": floats(SAMPLES),
        "done": floats(SAMPLES),
    }
    state: Any = adam_state(
        {"actor": OPTIMIZER, "critics": OPTIMIZER, "temperature": SCALAR}
    )._replace(count=SCALAR)
    return Program(
        step,
        (params, params["critics"], adam_state(params), batch, KEY),
        (VARIABLE, FROZEN, state, BATCH, SCALAR),
        lambda params, targets, opt_state, batch, key: loss(params, targets, batch, key),
        lambda params, targets, opt_state, batch, key: gradients_of(params, targets, batch, key),
    )


def epochs_of_mini_batches() -> Program:
    """PPO's inner loop: a scan over shuffled parts of a batch, each with an update of its own."""

    def over(parts: int, batch: Tree, key: Array) -> Tree:
        order = jax.random.permutation(key, SAMPLES)
        return jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), batch)

    def run(gradients_of: Any, state: Tree, batch: Tree, key: Array) -> Any:
        def one(state: Tree, part: Tree) -> tuple[Tree, Array]:
            value, gradients = gradients_of(state[0], part)
            with named_scope("update"):
                return adam(gradients, state[1], state[0]), value

        return lax.scan(one, state, over(4, batch, key))

    def step(state: Tree, batch: Tree, key: Array) -> Any:
        state, values = run(jax.value_and_grad(mlp), state, batch, key)
        return state, values.mean()

    def forward(state: Tree, batch: Tree, key: Array) -> Array:
        return lax.scan(lambda _, part: (None, mlp(state[0], part)), None, over(4, batch, key))[
            1
        ].mean()

    return Program(
        step,
        ((MLP, adam_state(MLP)), VECTORS, KEY),
        ((VARIABLE, OPTIMIZER), BATCH, SCALAR),
        forward,
        step,
    )


# Fields, filters, flows, sets


def long_convolution() -> Program:
    """Hyena: a filter as long as the sequence, made of positions, applied by Fourier transforms."""
    params = {
        "embedding": floats(50, 16),
        "project": [floats(16, 16), floats(16, 16), floats(16, 16)],
        "filter": two_layers(5, 32, 16),
        "decay": floats(16),
        "head": layer(16, 50),
    }

    def loss(params: Tree, positions: Array, batch: Tree) -> Array:
        x = params["embedding"][batch["tokens"]]
        query, key, value = (x @ weights for weights in params["project"])
        filters = network(params["filter"], positions)
        filters = filters * jnp.exp(-jnp.abs(params["decay"]) * jnp.arange(12.0)[:, None])
        mixed = jnp.fft.rfft(key * value, 24, axis=1) * jnp.fft.rfft(filters, 24, axis=0)
        x = x + query * jnp.fft.irfft(mixed, 24, axis=1)[:, :12]
        return cross_entropy(dense(params["head"], x), batch["labels"])

    args = (params, floats(12, 5), TOKENS)
    return stepped(loss, args, (VARIABLE, FROZEN, BATCH))


def fixed_point() -> Program:
    """DEQ: a while loop finds a fixed point, and another one its gradient."""

    def once(weights: Tree, x: Array, z: Array) -> Array:
        return jnp.tanh(z @ weights["inner"] + dense(weights["outer"], x))

    def solved(f: Callable[[Array], Array], start: Array) -> Array:
        def goes_on(state: tuple[Array, Array, Array]) -> Array:
            before, now, count = state
            return (jnp.abs(now - before).max() > 1e-4) & (count < 20)

        def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            return state[1], f(state[1]), state[2] + 1

        return lax.while_loop(goes_on, body, (start, f(start), jnp.int32(0)))[1]

    @jax.custom_vjp
    def settled(weights: Tree, x: Array) -> Array:
        return solved(partial(once, weights, x), jnp.zeros((SAMPLES, 32)))

    def forward(weights: Tree, x: Array) -> tuple[Array, Any]:
        z = settled(weights, x)
        return z, (weights, x, z)

    def backward(kept: Any, slope: Array) -> tuple[Tree, Array]:
        weights, x, z = kept
        by_z = jax.vjp(partial(once, weights, x), z)[1]
        adjoint = solved(lambda u: slope + by_z(u)[0], slope)
        return jax.vjp(lambda w, x: once(w, x, z), weights, x)[1](adjoint)

    settled.defvjp(forward, backward)

    def loss(params: Tree, batch: Tree) -> Array:
        z = settled(params["cell"], batch["x"])
        return cross_entropy(dense(params["head"], z), batch["y"])

    params = {"cell": {"inner": floats(32, 32), "outer": layer(16, 32)}, "head": layer(32, 10)}
    return adam_program(loss, params, VECTORS)


def spectral_normalization() -> Program:
    """A critic whose weight is divided by its norm, which a vector of the last step finds."""
    params = {"first": layer(16, 64), "head": layer(64, 10)}

    def loss(params: Tree, state: Tree, batch: Tree) -> tuple[Array, Tree]:
        kernel = params["first"]["kernel"]
        held = lax.stop_gradient(kernel)
        left = unit(held @ state["right"])
        right = unit(left @ held)
        kernel = kernel / (left @ kernel @ right)
        x = jax.nn.relu(dense({**params["first"], "kernel": kernel}, batch["x"]))
        return cross_entropy(dense(params["head"], x), batch["y"]), {"right": right}

    return with_state(loss, params, {"right": floats(64)}, VECTORS, STATISTICS)


# Optimizers


def preconditioners() -> Program:
    """Shampoo: a matrix for the rows and one for the columns, whose inverse roots are kept too."""
    shapes = {"one": (16, 64), "two": (64, 10)}
    params = {name: floats(*shape) for name, shape in shapes.items()}
    state = {
        name: {k: floats(n, n) for k, n in (("left", a), ("right", b), ("roots", a))}
        for name, (a, b) in shapes.items()
    }

    def loss(params: Tree, batch: Tree) -> Array:
        return cross_entropy(jax.nn.relu(batch["x"] @ params["one"]) @ params["two"], batch["y"])

    def changed(weight: Array, g: Array, own: Tree) -> tuple[Array, Tree]:
        left, right = own["left"] + g @ g.T, own["right"] + g.T @ g
        roots = own["roots"]
        for _ in range(2):
            roots = 1.5 * roots - 0.5 * roots @ left @ roots @ roots
        step = roots @ g @ right / (jnp.trace(right) + 1e-6)
        return weight - 0.1 * step, {"left": left, "right": right, "roots": roots}

    def update(gradients: Tree, state: Tree, params: Tree) -> Any:
        new = {n: changed(params[n], gradients[n], state[n]) for n in params}
        return [{n: pair[i] for n, pair in new.items()} for i in (0, 1)]

    return optimized(update, state, loss, params)


def schedule_free() -> Program:
    """The gradient is taken between two sequences of weights; the mean one is what is kept."""

    def between(params: Tree, state: Tree) -> Tree:
        return averaged(0.9, state["fast"], params)

    def update(gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        fast = jax.tree.map(lambda z, g: z - 0.1 * g, state["fast"], gradients)
        count = state["count"] + 1
        share = 1.0 / count
        params = jax.tree.map(lambda x, z: (1 - share) * x + share * z, params, fast)
        return params, {"fast": fast, "count": count}

    truth = {"fast": VARIABLE, "count": SCALAR}
    state = {"fast": MLP, "count": integers()}
    return optimized(update, state, truth=truth, read=between)


def evolution() -> Program:
    """Evolution strategies: weights move by the fitness of noise around them; no gradient is."""

    def step(params: Tree, batch: Tree, key: Array) -> Any:
        leaves, form = jax.tree.flatten(params)
        noise = form.unflatten(
            [
                jax.random.normal(k, (8, *leaf.shape))
                for k, leaf in zip(jax.random.split(key, len(leaves)), leaves, strict=True)
            ]
        )
        tried = jax.tree.map(lambda p, n: p + 0.1 * n, params, noise)
        losses = jax.vmap(mlp, in_axes=(0, None))(tried, batch)
        with named_scope("update"):
            rank = (losses - losses.mean()) / (losses.std() + 1e-6)
            params = jax.tree.map(lambda p, n: p - 0.01 * jnp.tensordot(rank, n, 1), params, noise)
        return params, losses.mean()

    def loss(params: Tree, batch: Tree, key: Array) -> Array:
        return step(params, batch, key)[1]

    return Program(step, (MLP, VECTORS, KEY), (VARIABLE, BATCH, SCALAR), loss, loss)


ARCHITECTURES: dict[str, Callable[[], Program]] = {
    program.__name__: program
    for program in (
        codebook_by_averages,
        memory_bank,
        segment_memory,
        soft_actor_critic,
        epochs_of_mini_batches,
        long_convolution,
        fixed_point,
        spectral_normalization,
        preconditioners,
        schedule_free,
        evolution,
    )
}
"""Name -> what makes the program."""
