"""Layers and blocks of the models; the first argument is their part of the parameters.

They run in bfloat16; normalizations, softmax and losses in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax, named_scope
from jax.ad_checkpoint import checkpoint_name

from parenvs.datasets.models.model import Array, Shapes, Tree, floats, integers, weight

Layer = Callable[[Tree, Array], Array]


def linear(weights: Tree, name: str, x: Array, features: int) -> Array:
    """Multiply the last dimension of ``x`` by a kernel without a bias."""
    return jnp.dot(x, weight(weights, name, x.shape[-1], features))


def dense(weights: Tree, x: Array, features: int) -> Array:
    """Multiply the last dimension of ``x`` by a kernel, and add the bias."""
    return linear(weights, "kernel", x, features) + weight(weights, "bias", features)


def conv(
    weights: Tree,
    x: Array,
    features: int,
    size: int = 3,
    stride: int = 1,
    padding: str = "SAME",
    groups: int = 1,
    bias: bool = True,
) -> Array:
    """Convolve NHWC images with a square HWIO kernel, and add the bias if there is one."""
    kernel = weight(weights, "kernel", size, size, x.shape[-1] // groups, features)
    how: Tree = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
    x = lax.conv_general_dilated(x, kernel, (stride, stride), padding, **how)
    return x + weight(weights, "bias", features) if bias else x


def embed(table: Array, ids: Array) -> Array:
    """Gather rows of a table; ids are clipped to its range."""
    return jnp.take(table, ids, axis=0, mode="clip")


KEPT = "kept"
"""Name of the results that ``recomputing`` keeps besides products with weights."""


def recomputing(block: Layer) -> Layer:
    """Return a layer whose backward pass recomputes norms, activations and rotations.

    Products with weights and what is called ``KEPT`` stay (arXiv 2205.05198).
    """
    policies = jax.checkpoint_policies
    policy = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(KEPT)
    )
    recomputed = jax.checkpoint(block, policy=policy)
    # What collects shapes is no tree of arrays, which jax.checkpoint takes.
    return lambda w, x: block(w, x) if isinstance(w, Shapes) else recomputed(w, x)


def run_stack(weights: Tree, x: Array, block: Layer, layers: int, scanned: bool) -> Array:
    """Send ``x`` through a stack of equal layers; ``block(weights, x)`` is one of them.

    With ``scanned`` each array has a leading dimension of layers, else each layer is apart, as
    ``layer_0``, ``layer_1``, ...
    """
    if isinstance(weights, Shapes):
        layer = Shapes(weights.dtype)
        x, shapes = block(layer, x), layer.plain()
        stacked = jax.tree.map(lambda leaf: floats(layers, *leaf.shape), shapes)
        weights.update(stacked if scanned else {f"layer_{i}": shapes for i in range(layers)})
        return x
    if scanned:
        return lax.scan(lambda y, layer: (block(layer, y), None), x, weights)[0]
    for i in range(layers):
        with named_scope(f"layer_{i}"):
            x = block(weights[f"layer_{i}"], x)
    return x


def rms_norm(weights: Tree, name: str, x: Array) -> Array:
    """Divide the last dimension of ``x`` by its root mean square, and scale it."""
    with named_scope("norm"):
        # Squares of bfloat16 lose too many digits to be averaged.
        y = x.astype(jnp.float32)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
        return y.astype(x.dtype) * weight(weights, name, x.shape[-1])


def layer_norm(weights: Tree | None, x: Array, epsilon: float = 1e-5) -> Array:
    """Normalize the last dimension of ``x`` (..., width) to mean 0 and variance 1.

    ``weights`` are ``scale`` and ``bias``, if there are any.
    """
    with named_scope("norm"):
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True)
        y = (y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon)).astype(x.dtype)
        return y if weights is None else scaled(weights, y)


def scaled(weights: Tree, x: Array) -> Array:
    """Scale the last dimension of ``x``, and add a bias."""
    width = x.shape[-1]
    return x * weight(weights, "scale", width) + weight(weights, "bias", width)


def group_norm(weights: Tree, x: Array, groups: int = 32, epsilon: float = 1e-5) -> Array:
    """Normalize groups of the features of (batch, height, width, features) over each image."""
    with named_scope("norm"):
        # (batch, height, width, groups, features of a group)
        y = x.astype(jnp.float32).reshape(*x.shape[:3], groups, -1)
        y = y - y.mean((1, 2, 4), keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean((1, 2, 4), keepdims=True) + epsilon)
        return scaled(weights, y.astype(x.dtype).reshape(x.shape))


def rotated(x: Array, theta: float) -> Array:
    """Rotate the features of (batch, tokens, ..., size) by angles that grow with the token.

    The first half of the features is rotated with the second (arXiv 2104.09864, equation 34).
    """
    with named_scope("rotary"):
        tokens, half = x.shape[1], x.shape[-1] // 2
        position = lax.broadcasted_iota(jnp.float32, (tokens, half), 0)
        frequency = theta ** (-lax.broadcasted_iota(jnp.float32, (tokens, half), 1) / half)
        angle = (position * frequency).reshape(tokens, *[1] * (x.ndim - 3), half)
        sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q: Array, k: Array, v: Array, causal: bool = False, first: Array | None = None) -> Array:
    """Return the values that queries attend to; a group of query heads shares a head of keys.

    Args:
        q: (batch, queries, heads of keys, heads in a group, size), as is the result.
        k: (batch, keys, heads of keys, size).
        v: (batch, keys, heads of keys, size).
        causal: Whether a token sees only itself and those before it.
        first: Place of the first query among the keys (default: 0).
    """
    # softmax(q k^T / sqrt(size)) v; softmax in float32, as bfloat16 loses small probabilities.
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    if causal:
        rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape[-2:], i) for i in (0, 1))
        rows = rows if first is None else rows + first
        scores = jnp.where(columns <= rows, scores, -1e9)
    probabilities = jax.nn.softmax(scores).astype(q.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, v)


def attend_in_chunks(q: Array, k: Array, v: Array, chunk: int) -> Array:
    """Attend causally, ``chunk`` queries at a time, as a loop (arXiv 2112.05682); see ``attend``.

    The backward pass recomputes the scores, so only one chunk's are in memory at any time.
    """
    batch, queries, *trailing = q.shape
    # The loop's dimension leads, as scan goes through the first.
    chunks = q.reshape(batch, queries // chunk, chunk, *trailing).swapaxes(0, 1)
    core = jax.checkpoint(attend, static_argnums=3)

    def one(first: Array, part: Array) -> tuple[Array, Array]:
        return first + chunk, core(part, k, v, True, first)

    _, outputs = lax.scan(one, jnp.int32(0), chunks)
    # The result is kept, or ``recomputing`` would run the whole loop a second time.
    return checkpoint_name(outputs.swapaxes(0, 1).reshape(q.shape), KEPT)


def attention(
    weights: Tree,
    x: Array,
    memory: Array,
    heads: int,
    kv_heads: int | None = None,
    causal: bool = False,
    theta: float | None = None,
    recompute: bool = False,
    chunk: int | None = None,
    biases: str = "qkvo",
) -> Array:
    """Attend from ``x`` to ``memory``, and return (batch, queries, width).

    Args:
        weights: Projections q, k, v and o, of which ``biases`` have one.
        x: (batch, queries, width).
        memory: (batch, keys, width of the memory).
        heads: Heads of queries.
        kv_heads: Heads of keys and values (default: as many), arXiv 2305.13245.
        causal: Whether a token sees only itself and those before it.
        theta: Base of rotary positions; None leaves them out.
        recompute: Whether the backward pass recomputes scores (arXiv 2205.05198, section 5).
        chunk: Queries that attend at a time, see ``attend_in_chunks``; None: all at once.
        biases: Letters of the projections that have one.
    """

    def projected(key: str, x: Array, features: int) -> Array:
        if key in biases:
            return dense(weights[key], x, features)
        return linear(weights, key, x, features)

    batch, queries, width = x.shape
    groups = kv_heads or heads
    keyed = width // heads * groups
    q = projected("q", x, width).reshape(batch, queries, groups, heads // groups, -1)
    k = projected("k", memory, keyed).reshape(batch, memory.shape[1], groups, -1)
    v = projected("v", memory, keyed).reshape(batch, memory.shape[1], groups, -1)
    if theta is not None:
        q, k = rotated(q, theta), rotated(k, theta)
    if chunk is not None:
        context = attend_in_chunks(q, k, v, chunk)
    else:
        core = jax.checkpoint(attend, static_argnums=3) if recompute else attend
        context = core(q, k, v, causal)
    return projected("o", context.reshape(batch, queries, -1), width)


def feed_forward(weights: Tree, x: Array, hidden: int) -> Array:
    """Apply two dense layers, ``up`` and ``down``, with an activation between them."""
    return dense(weights["down"], jax.nn.gelu(dense(weights["up"], x, hidden)), x.shape[-1])


def transformer_layer(
    weights: Tree, x: Array, heads: int, hidden: int, causal: bool = False, recompute: bool = False
) -> Array:
    """Apply self-attention and a feed-forward block, both behind a norm and beside a residual."""
    with named_scope("attention"):
        y = layer_norm(weights["attention_norm"], x)
        x += attention(weights["attention"], y, y, heads, causal=causal, recompute=recompute)
    with named_scope("ffn"):
        y = layer_norm(weights["ffn_norm"], x)
        return x + feed_forward(weights["ffn"], y, hidden)


def patches(weights: Tree, images: Array, size: int, width: int) -> Array:
    """Make a token of each square of ``size`` pixels: (batch, tokens, width)."""
    x = conv(weights, images.astype(jnp.bfloat16), width, size, size, "VALID")
    return x.reshape(len(x), -1, width)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of integer labels (...) under logits (..., classes).

    It is the log of the sum of exponentials minus the label's logit, in float32; the label's is
    found by comparison, so that the classes can be partitioned.
    """
    logits = logits.astype(jnp.float32)
    classes = lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    # A gather along the classes could not be partitioned; a comparison with an iota can.
    true = jnp.where(labels[..., None] == classes, logits, 0.0).sum(-1)
    return (jax.nn.logsumexp(logits, -1) - true).mean()


def log_features(steps: Array, width: int) -> Array:
    """Return sines and cosines (batch, width) of diffusion steps (batch,): arXiv 2006.11239."""
    half = width // 2
    frequency = 10000.0 ** (-lax.broadcasted_iota(jnp.float32, (1, half), 1) / half)
    angle = steps.astype(jnp.float32)[:, None] * frequency
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)


def classified(params: Tree, batch: Tree, classes: int, features: Callable[[], Array]) -> Array:
    """Return the loss of a classifier whose last layer reads ``features()``."""
    with named_scope("predictions"):
        logits = dense(params["predictions"], features(), classes)
    with named_scope("loss"):
        return cross_entropy(logits, batch["labels"])


def labeled_images(batch_size: int, image: int) -> Tree:
    """Return the shapes of a batch of square RGB images, each with the number of its class."""
    return {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)}


def noised_latents(batch_size: int, image: int, features: int) -> Tree:
    """Return the shapes of a batch of latents, their noise, and the diffusion step of each."""
    latents = floats(batch_size, image, image, features)
    return {"latents": latents, "noise": latents, "steps": integers(batch_size)}


def labeled_tokens(batch_size: int, tokens: int) -> Tree:
    """Return the shapes of a batch of token sequences, each with the tokens to be predicted."""
    return {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)}
