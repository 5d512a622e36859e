"""Mixtures of experts: training steps that route tokens by one-hot einsums, by top-k, by indices.

``MIXTURES`` holds functions of (params, x (batch, tokens, width)); ``training_step`` makes steps.
"""

import jax
import jax.numpy as jnp
from jax import lax

BATCH, TOKENS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 8, 16, 32, 64, 8, 8


def network(params, x):
    """Every expert's layers on (experts, rows, width)."""
    hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", x, params["up"]))
    return jnp.einsum("ech,ehd->ecd", hidden, params["down"])


def routed(params, x):
    """Rows, probabilities, and the experts that were chosen, as numbers and one-hot."""
    rows = x.reshape(-1, WIDTH)
    probabilities = jax.nn.softmax(rows @ params["gate"])
    chosen = jnp.argmax(probabilities, -1)
    return rows, probabilities, chosen, jax.nn.one_hot(chosen, EXPERTS)


def dense(params, x):
    """Every expert takes every token; a one-hot product chooses."""
    rows, probabilities, _, mask = routed(params, x)
    every = network(params, jnp.broadcast_to(rows, (EXPERTS, *rows.shape)))
    return jnp.einsum("ne,end->nd", mask * probabilities, every)


def capacity(params, x):
    """One-hot dispatch and combination with a capacity (GShard, Switch)."""
    rows, probabilities, _, mask = routed(params, x)
    place = (jnp.cumsum(mask, 0) * mask - 1).astype(jnp.int32)
    dispatch = jax.nn.one_hot(place, CAPACITY) * mask[..., None]
    made = network(params, jnp.einsum("nec,nd->ecd", dispatch, rows))
    combine = dispatch * (probabilities * mask).sum(-1)[:, None, None]
    return jnp.einsum("nec,ecd->nd", combine, made)


def top_two(params, x):
    """Gates of the two largest."""
    rows, probabilities, _, _ = routed(params, x)
    values, chosen = lax.top_k(probabilities, 2)
    gates = (jax.nn.one_hot(chosen, EXPERTS) * values[..., None]).sum(1)
    every = network(params, jnp.broadcast_to(rows, (EXPERTS, *rows.shape)))
    return jnp.einsum("ne,end->nd", gates, every)


def scattered(params, x):
    """Dispatch by scatter, combination by gather."""
    rows, probabilities, chosen, mask = routed(params, x)
    place = (jnp.cumsum(mask, 0) * mask).sum(-1).astype(jnp.int32) - 1
    buffer = jnp.zeros((EXPERTS, CAPACITY, WIDTH)).at[chosen, place].add(rows, mode="drop")
    made = network(params, buffer).at[chosen, place].get(mode="fill", fill_value=0)
    return made * jnp.take_along_axis(probabilities, chosen[:, None], 1)


def in_a_loop(params, x):
    """One expert after the other."""
    rows, _, chosen, _ = routed(params, x)

    def body(total, expert):
        up, down, number = expert
        mine = jax.nn.gelu(rows @ up) @ down
        return total + jnp.where((chosen == number)[:, None], mine, 0), None

    experts = params["up"], params["down"], jnp.arange(EXPERTS)
    return lax.scan(body, jnp.zeros_like(rows), experts)[0]


def two_routers(params, x):
    """The largest and the smallest gate choose, and both are balanced by a loss of their own."""
    first = capacity(params, x)
    return first + dense({**params, "gate": -params["gate"]}, x)


MIXTURES = (dense, capacity, top_two, scattered, in_a_loop, two_routers)


def training_step(mixture):
    """A step of gradient descent with the loss that balances the experts, and its arguments."""

    def loss(params, batch):
        made = mixture(params, batch["x"]).reshape(batch["x"].shape)
        _, probabilities, _, mask = routed(params, batch["x"])
        balance = EXPERTS * (mask.mean(0) * probabilities.mean(0)).sum()
        return jnp.square(made + batch["x"] - batch["y"]).mean() + 0.01 * balance

    def step(params, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {
        "gate": floats(WIDTH, EXPERTS),
        "up": floats(EXPERTS, WIDTH, HIDDEN),
        "down": floats(EXPERTS, HIDDEN, WIDTH),
    }
    tokens = floats(BATCH, TOKENS, WIDTH)
    return step, (params, {"x": tokens, "y": tokens})
