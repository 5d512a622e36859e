"""Layers that the models share, and the shapes of their parameters."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.model import Array, Tree, floats


def dense_shapes(*kernel: int) -> Tree:
    """Return the shapes of a dense or convolution layer, output features last, with its bias."""
    return {"kernel": floats(*kernel), "bias": floats(kernel[-1])}


def norm_shapes(width: int) -> Tree:
    """Return the shapes of a normalisation over ``width`` features."""
    return {"scale": floats(width), "bias": floats(width)}


def ffn_shapes(width: int, hidden: int) -> Tree:
    """Return the shapes of a feed-forward block, named as in arXiv 2007.04069 Table 3."""
    return {"conv1": dense_shapes(width, hidden), "conv2": dense_shapes(hidden, width)}


# The layers: the first argument of each is its own part of the parameters.

MASKED = -1e9
"""Number that is added to the attention scores of masked positions."""


def dense(weights: Tree | Array, x: Array) -> Array:
    """Multiply the last dimension of ``x`` by a kernel, and add the bias if there is one."""
    if isinstance(weights, dict):
        return jnp.dot(x, weights["kernel"]) + weights["bias"]
    return jnp.dot(x, weights)


def conv(kernel: Array, x: Array, stride: int = 1, padding: str = "SAME", groups: int = 1) -> Array:
    """Convolve NHWC images with an HWIO kernel, ``SAME`` gives ``ceil(size / stride)`` outputs."""
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def layer_norm(weights: Tree, x: Array, epsilon: float = 1e-6) -> Array:
    """Normalise the last dimension of ``x`` to mean 0 and variance 1, then scale and shift it."""
    with named_scope("norm"):
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(variance + epsilon) * weights["scale"] + weights["bias"]


def embed(table: Array, ids: Array) -> Array:
    """Gather rows of a table; ids are clipped to its range."""
    return jnp.take(table, ids, axis=0, mode="clip")


def attention(
    weights: Tree,
    x: Array,
    memory: Array,
    heads: int,
    bias: Array | None = None,
    scale: float | None = None,
) -> Array:
    """Attend from ``x`` (batch, queries, width) to ``memory`` (batch, keys, width).

    The projections q, k, v and o have 2-D kernels. ``bias`` is added to the scores, broadcast to
    (batch, heads, queries, keys); ``scale`` multiplies the queries.
    """

    def split_heads(y: Array) -> Array:
        return y.reshape(*y.shape[:2], heads, -1)

    q = split_heads(dense(weights["q"], x))
    k = split_heads(dense(weights["k"], memory))
    v = split_heads(dense(weights["v"], memory))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q if scale is None else q * scale, k)
    probabilities = jax.nn.softmax(scores if bias is None else scores + bias)
    context = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)
    return dense(weights["o"], context.reshape(*x.shape[:2], -1))


def feed_forward(weights: Tree, x: Array, activation: Callable[[Array], Array]) -> Array:
    """Apply two dense layers with an activation between them."""
    return dense(weights["conv2"], activation(dense(weights["conv1"], x)))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of integer labels (...) under logits (..., classes)."""
    classes = lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    one_hot = (labels[..., None] == classes).astype(logits.dtype)
    return -jnp.sum(one_hot * jax.nn.log_softmax(logits), -1).mean()
