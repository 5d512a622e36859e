"""Training steps of JAX as people write them, and which output feeds which input, by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

S = jax.ShapeDtypeStruct
PARAMS = {"a": S((8, 16), "float32"), "b": S((16,), "float32"), "c": S((16, 8), "float32")}
BATCH = (S((16, 8), "float32"), S((16, 8), "float32"))
COUNT = S((), "int32")


class Adam(NamedTuple):
    """A state as optimizers have it: a counter and two trees like the weights."""

    count: Any
    mu: Any
    nu: Any


class Empty(NamedTuple):
    """What an optimizer without state has."""


STATE = (Adam(COUNT, PARAMS, PARAMS), Empty())


def loss_of(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] - y) ** 2)


def updated(grads, state, p):
    adam, empty = state
    count = adam.count + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, adam.mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, adam.nu, grads)

    def new(w, m, v):
        return w - 1e-2 * m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

    return jax.tree.map(new, p, mu, nu), (Adam(count, mu, nu), empty)


def adam(p, state, batch):
    loss, grads = jax.value_and_grad(loss_of)(p, *batch)
    return *updated(grads, state, p), loss


def loss_first(state, p, batch):
    *new, loss = adam(p, state, batch)
    return loss, *new


def train_state(held, batch):
    p, state, loss = adam(held["params"], held["opt"], batch)
    return {"params": p, "opt": state, "step": held["step"] + 1}, {"loss": loss, "twice": 2 * loss}


def sgd(p, step, batch):
    loss, grads = jax.value_and_grad(loss_of)(p, *batch)
    rate = 1e-2 / (1 + step.astype(jnp.float32))
    return jax.tree.map(lambda w, g: w - rate * g, p, grads), step + 1, loss


def with_key(p, key, batch):
    key, own = jax.random.split(key)
    x = batch[0] + 0.1 * jax.random.normal(own, batch[0].shape)
    loss, grads = jax.value_and_grad(loss_of)(p, x, batch[1])
    return loss, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), key


def gradients_too(p, batch):
    loss, grads = jax.value_and_grad(loss_of)(p, *batch)
    return grads, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), loss


def target(p, slow, batch):
    def loss(p):
        return loss_of(p, batch[0], loss_of(slow, *batch) + batch[1])

    value, grads = jax.value_and_grad(loss)(p)
    p = jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)
    return p, jax.tree.map(lambda s, w: 0.9 * s + 0.1 * w, slow, p), value


def scaled(p, scale, batch):
    value, grads = jax.value_and_grad(lambda p: scale * loss_of(p, *batch))(p)
    fine = jnp.isfinite(value)
    p = jax.tree.map(lambda w, g: jnp.where(fine, w - 0.1 * g / scale, w), p, grads)
    return p, jnp.where(fine, scale * 2, scale / 2), value / scale


def correct(p, batch):
    x, labels = batch

    def loss(p):
        logits = jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -picked.mean(), (logits.argmax(-1) == labels).sum()

    (value, right), grads = jax.value_and_grad(loss, has_aux=True)(p)
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), value, right


def not_finite(p, state, batch):
    *new, loss = adam(p, state, batch)
    return *new, jnp.log(loss - 1)


def two_losses(p, state, batch):
    *new, loss = adam(p, state, batch)
    return *new, loss, jnp.sqrt(loss)


def no_loss(p, state, batch):
    return adam(p, state, batch)[:2]


IDS = (S((16, 8), "float32"), S((16,), "int32"))
KEY = S((2,), "uint32")
SCALE = S((), "float32")
HELD = {"params": PARAMS, "opt": STATE, "step": COUNT}
STEPS = {
    # name: (function, arguments, output -> input, the loss)
    "adam": (adam, (PARAMS, STATE, BATCH), {k: k for k in range(10)}, 10),
    "loss_first": (loss_first, (STATE, PARAMS, BATCH),
                   {1: 7, 2: 8, 3: 9, **{k + 4: k for k in range(7)}}, 0),
    "train_state": (train_state, (HELD, BATCH), {k: k for k in range(11)}, 11),
    "sgd": (sgd, (PARAMS, COUNT, BATCH), {k: k for k in range(4)}, 4),
    "with_key": (with_key, (PARAMS, KEY, BATCH), {1: 0, 2: 1, 3: 2, 4: 3}, 0),
    "gradients_too": (gradients_too, (PARAMS, BATCH), {3: 0, 4: 1, 5: 2}, 6),
    "target": (target, (PARAMS, PARAMS, BATCH), {k: k for k in range(6)}, 6),
    "scaled": (scaled, (PARAMS, SCALE, BATCH), {k: k for k in range(4)}, 4),
    "correct": (correct, (PARAMS, IDS), {k: k for k in range(3)}, 3),
}  # fmt: skip
