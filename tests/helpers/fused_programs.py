"""Transformer blocks whose queries, keys and values are one weight, taken apart in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HEADS, PAIRS, SIZE, WIDTH, HIDDEN, SAMPLES, TOKENS, LAYERS = 8, 2, 4, 32, 48, 4, 6, 3
"""Heads of queries, those of keys and values of grouped queries, and sizes."""
OWN = HEADS * SIZE
Tree = Any
Form = Callable[[Any, Any], Any]


def split(w, x):
    """One split."""
    return jnp.split(x @ w, 3, -1)


def split_twice(w, x):
    """A split of what a split leaves."""
    q, rest = jnp.split(x @ w, [OWN], -1)
    return q, *jnp.split(rest, 2, -1)


def slices(w, x):
    """Slices that make up the whole."""
    y = x @ w
    return y[..., :OWN], y[..., OWN : 2 * OWN], y[..., 2 * OWN :]


def reshaped(w, x):
    """A dimension of three, of which each is taken by its number."""
    y = (x @ w).reshape(SAMPLES, TOKENS, 3, HEADS, SIZE)
    return y[:, :, 0], y[:, :, 1], y[:, :, 2]


def moved(w, x):
    """A dimension of three that is put first."""
    return tuple(jnp.moveaxis((x @ w).reshape(SAMPLES, TOKENS, 3, HEADS, SIZE), 2, 0))


def unstacked(w, x):
    """A dimension of three that is unstacked."""
    return jnp.unstack((x @ w).reshape(SAMPLES, TOKENS, 3, OWN), axis=2)


def dynamic(w, x):
    """Dynamic slices at constant places."""
    y = x @ w
    return [lax.dynamic_slice_in_dim(y, k * OWN, OWN, 2) for k in range(3)]


def transposed(w, x):
    """Outputs come first in the weight."""
    return jnp.split(jnp.einsum("btd,fd->btf", x, w), 3, -1)


def of_weight(w, x):
    """The weight is taken apart itself."""
    return [x @ one for one in jnp.split(w, 3, 1)]


def cast(w, x):
    """The product is of half precision."""
    y = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
    return jnp.split(y.astype(jnp.float32), 3, -1)


def grouped(w, x):
    """Fewer heads of keys and values than of queries."""
    return jnp.split(x @ w, [OWN, OWN + PAIRS * SIZE], -1)


def grouped_heads(w, x):
    """The same, taken apart as heads."""
    y = (x @ w).reshape(SAMPLES, TOKENS, HEADS + 2 * PAIRS, SIZE)
    return y[:, :, :HEADS], y[:, :, HEADS : HEADS + PAIRS], y[:, :, HEADS + PAIRS :]


def by_head(w, x):
    """Queries, keys and values of each head beside each other: one dimension that can be split."""
    return jnp.split((x @ w).reshape(SAMPLES, TOKENS, HEADS, 3 * SIZE), 3, -1)


def with_axis(w, x):
    """The weight has a dimension of three and one of heads: these can be split as they are."""
    y = jnp.einsum("btd,dnhk->btnhk", x, w)
    return y[:, :, 0], y[:, :, 1], y[:, :, 2]


def axis_first(w, x):
    """The dimension of three comes first."""
    return tuple(jnp.einsum("btd,ndhk->nbthk", x, w))


FORMS: dict[Form, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    **dict.fromkeys(
        (split, split_twice, slices, reshaped, moved, unstacked, dynamic, of_weight, cast),
        ((WIDTH, 3 * OWN), 1, (OWN,) * 3),
    ),
    transposed: ((3 * OWN, WIDTH), 0, (OWN,) * 3),
    grouped: ((WIDTH, OWN + 2 * PAIRS * SIZE), 1, (OWN, PAIRS * SIZE, PAIRS * SIZE)),
    grouped_heads: ((WIDTH, OWN + 2 * PAIRS * SIZE), 1, (OWN, PAIRS * SIZE, PAIRS * SIZE)),
    by_head: ((WIDTH, 3 * OWN), 1, ()),
    with_axis: ((WIDTH, 3, HEADS, SIZE), 2, ()),
    axis_first: ((3, WIDTH, HEADS, SIZE), 2, ()),
}
"""Form -> shape of its weight, the dimension of heads, and sizes of parts, if there are any."""


def attention(q, k, v):
    """Softmax attention, of grouped queries if there are fewer keys."""
    q, k, v = (x.reshape(SAMPLES, TOKENS, -1, SIZE) for x in (q, k, v))
    q = q.reshape(SAMPLES, TOKENS, k.shape[2], -1, SIZE)
    scores = jax.nn.softmax(jnp.einsum("bqhgk,bthk->bhgqt", q, k) / SIZE**0.5)
    return jnp.einsum("bhgqt,bthk->bqhgk", scores, v).reshape(SAMPLES, TOKENS, -1)


def block(form: Form, p: Tree, x: Any) -> Any:
    """Attention and a gated network whose gate is in one weight, too."""

    def normed(x: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1)

    x = x + attention(*form(p["fused"], normed(x))) @ p["out"]
    gate, up = jnp.split(normed(x) @ p["up"], 2, -1)
    return x + jax.nn.silu(gate) * up @ p["down"]


def weights(form: Form, *layers: int) -> Tree:
    """Its weights, of one layer or of several in front."""
    shapes = {
        "fused": FORMS[form][0],
        "out": (OWN, WIDTH),
        "up": (WIDTH, 2 * HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    return {k: jax.ShapeDtypeStruct((*layers, *s), jnp.float32) for k, s in shapes.items()}


def step_of(form: Form, loop: str = "") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step of momentum and its arguments: one block, or a loop over several.

    Args:
        form: how the weight is taken apart.
        loop: "", "scan" over checkpointed blocks, or "fori" over what is taken from stacks.
    """
    run = jax.checkpoint(lambda p, x: block(form, p, x))

    def loss(p: Tree, x: Any) -> Any:
        if loop == "scan":
            x = lax.scan(lambda x, p: (run(p, x), None), x, p)[0]
        elif loop == "fori":
            x = lax.fori_loop(
                0, LAYERS, lambda k, x: block(form, jax.tree.map(lambda w: w[k], p), x), x
            )
        else:
            x = block(form, p, x)
        return jnp.square(x - 1).mean()

    def step(params: Tree, momentum: Tree, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value

    own = weights(form, *[LAYERS] * bool(loop))
    return step, (own, own, jax.ShapeDtypeStruct((SAMPLES, TOKENS, WIDTH), jnp.float32))
