"""The models of Auto-MAP's paper: VGG, T5 and BERT, in float32 (arXiv 2007.04069)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, named_scope

import parenvs.datasets.models.blocks as nn
from parenvs.datasets.models.model import Array, Model, Tree, integers, weight

MASKED = -1e9
"""Number that is added to the attention scores of masked positions."""


float32_model = partial(Model, mixed=False)


def attention(
    weights: Tree,
    x: Array,
    memory: Array,
    heads: int,
    bias: Array | None = None,
    scale: float | None = None,
    size: int | None = None,
) -> Array:
    """Attend from ``x`` (batch, queries, width) to ``memory`` (batch, keys, width).

    ``bias`` is added to the scores, broadcast to (batch, heads, queries, keys); ``scale``
    multiplies the queries. Projections have biases, unless heads have a ``size`` of their own.
    """

    def projected(key: str, x: Array, features: int) -> Array:
        if size is None:
            return nn.dense(weights[key], x, features)
        return nn.linear(weights, key, x, features)

    inner = heads * size if size else x.shape[-1]
    q, k, v = (
        projected(key, y, inner).reshape(*y.shape[:2], heads, -1)
        for key, y in (("q", x), ("k", memory), ("v", memory))
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q if scale is None else q * scale, k)
    probabilities = jax.nn.softmax(scores if bias is None else scores + bias)
    context = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)
    return projected("o", context.reshape(*x.shape[:2], -1), x.shape[-1])


def feed_forward(
    weights: Tree, x: Array, hidden: int, activation: Callable[[Array], Array]
) -> Array:
    """Apply two dense layers, named as in arXiv 2007.04069 Table 3."""
    y = activation(nn.dense(weights["conv1"], x, hidden))
    return nn.dense(weights["conv2"], y, x.shape[-1])


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of integer labels (...) under logits (..., classes)."""
    classes = lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    one_hot = (labels[..., None] == classes).astype(logits.dtype)
    return -jnp.sum(one_hot * jax.nn.log_softmax(logits), -1).mean()


def vgg(
    blocks: Sequence[tuple[int, int]] = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)),
    hidden: int = 4096,
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 64,
) -> Model:
    """Return a VGG network; the defaults are VGG-19 (arXiv 1409.1556, Table 1, configuration E).

    ``blocks`` holds number and width of the 3x3 convolutions of each block, which a 2x2 max pool
    ends; fc1 and fc2 have ``hidden`` features.
    """

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["images"]
        for block, (convolutions, width) in enumerate(blocks, 1):
            for i in range(1, convolutions + 1):
                with named_scope(f"block{block}_conv{i}"):
                    x = jax.nn.relu(nn.conv(params[f"block{block}_conv{i}"], x, width))
            with named_scope(f"block{block}_pool"):
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(batch_size, -1)
        for layer in "fc1", "fc2":
            with named_scope(layer):
                x = jax.nn.relu(nn.dense(params[layer], x, hidden))
        with named_scope("predictions"):
            logits = nn.dense(params["predictions"], x, classes)
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    batch = nn.labeled_images(batch_size, image)
    depth = sum(convolutions for convolutions, _ in blocks) + 3
    description = f"VGG of {depth} layers, {image}x{image} images"
    return float32_model("vgg", description, "arXiv 1409.1556", loss, batch)


POSITION_BUCKETS = 32
POSITION_MAX_DISTANCE = 128


def t5(
    layers: int = 12,
    d_model: int = 768,
    d_ff: int = 3072,
    heads: int = 12,
    d_kv: int = 64,
    vocab: int = 32128,
    tokens: int = 512,
    batch_size: int = 64,
) -> Model:
    """Return a T5 encoder-decoder; the defaults are T5-base (arXiv 1910.10683, section 3.1.1).

    T5-3B and T5-11B are in section 3.7. As in T5, scores are not scaled, one table per stack gives
    the relative-position bias of all its self-attentions, and one embedding serves both inputs and,
    scaled by ``d_model**-0.5``, the softmax. Unlike in T5, feed-forward layers and normalizations
    have biases and the latter subtract the mean, as in Auto-MAP's T5 (arXiv 2007.04069, Table 3).
    Encoder and decoder have ``layers`` each; inputs and targets have ``tokens`` each.
    """
    norm = partial(nn.layer_norm, epsilon=1e-6)
    attend = partial(attention, heads=heads, size=d_kv)

    def stack(params: Tree, x: Array, bias: Array, memory: Array | None = None) -> Array:
        def block(weights: Tree, x: Array) -> Array:
            with named_scope("self"):
                y = norm(weights["self_norm"], x)
                x += attend(weights["self"], y, y, bias=bias)
            if memory is not None:
                with named_scope("cross"):
                    y = norm(weights["cross_norm"], x)
                    x += attend(weights["cross"], y, memory)
            with named_scope("ffn"):
                return x + feed_forward(weights, norm(weights["ffn_norm"], x), d_ff, jax.nn.relu)

        return norm(params["norm"], nn.run_stack(params, x, block, layers, scanned=False))

    def loss(params: Tree, batch: Tree) -> Array:
        embedding, targets = weight(params, "embedding", vocab, d_model), batch["targets"]
        buckets = POSITION_BUCKETS, heads
        with named_scope("encoder"):
            x = nn.embed(embedding, batch["inputs"])
            table = weight(params["encoder"], "positions", *buckets)
            bias = position_bias(table, tokens, causal=False)
            memory = stack(params["encoder"], x, bias)
        with named_scope("decoder"):
            start = jnp.zeros((batch_size, 1), targets.dtype)
            x = nn.embed(embedding, jnp.concatenate([start, targets[:, :-1]], 1))
            table = weight(params["decoder"], "positions", *buckets)
            bias = position_bias(table, tokens, causal=True)
            x = stack(params["decoder"], x, bias, memory)
        with named_scope("logits"):
            logits = jnp.einsum("btd,vd->btv", x * d_model**-0.5, embedding)
        with named_scope("loss"):
            return cross_entropy(logits, targets)

    batch = {"inputs": integers(batch_size, tokens), "targets": integers(batch_size, tokens)}
    description = f"T5, {layers}+{layers} layers, width {d_model}, FFN {d_ff}, {heads} heads"
    return float32_model("t5", description, "arXiv 1910.10683", loss, batch)


def position_bias(table: Array, tokens: int, causal: bool) -> Array:
    """Return T5's relative-position bias (heads, tokens, tokens), and the causal mask in it.

    Half of the buckets are for one distance each, the others grow logarithmically; the last one has
    all from ``POSITION_MAX_DISTANCE`` on (arXiv 1910.10683, section 2.1). Where both directions are
    seen, each has half of the buckets. ``table`` is (buckets, heads).
    """
    with named_scope("position_bias"):
        queries, keys = (lax.broadcasted_iota(jnp.int32, (tokens, tokens), i) for i in (0, 1))
        ahead = keys - queries
        distance = jnp.maximum(-ahead, 0) if causal else jnp.abs(ahead)
        buckets = len(table) if causal else len(table) // 2
        exact = buckets // 2
        growth = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact)
        growth = growth / math.log(POSITION_MAX_DISTANCE / exact) * (buckets - exact)
        bucket = jnp.minimum(exact + growth.astype(jnp.int32), buckets - 1)
        bucket = jnp.where(distance < exact, distance, bucket)
        if causal:
            return nn.embed(table, bucket).transpose(2, 0, 1) + jnp.where(ahead > 0, MASKED, 0.0)
        return nn.embed(table, bucket + jnp.where(ahead > 0, buckets, 0)).transpose(2, 0, 1)


def bert(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    intermediate: int = 4096,
    vocab: int = 30522,
    positions: int = 512,
    tokens: int = 512,
    predictions: int = 76,
    batch_size: int = 64,
) -> Model:
    """Return BERT with its two pre-training losses; the defaults are BERT-large.

    Sizes are those of arXiv 1810.04805, section 3, and of its released uncased vocabulary. As in
    the released code, only the masked positions (``predictions``), 15 % of 512, go through the
    vocabulary's softmax. The position table has ``positions`` rows, at least ``tokens``.
    """

    def loss(params: Tree, batch: Tree) -> Array:
        tables, norm = params["embeddings"], partial(nn.layer_norm, epsilon=1e-12)
        words = weight(tables, "words", vocab, hidden)
        with named_scope("embeddings"):
            x = nn.embed(words, batch["input_ids"])
            x += weight(tables, "positions", positions, hidden)[:tokens]
            x += nn.embed(weight(tables, "types", 2, hidden), batch["token_type_ids"])
            x = norm(tables["norm"], x)
        with named_scope("encoder"):
            bias = (1.0 - batch["attention_mask"].astype(jnp.float32))[:, None, None, :] * MASKED

            def block(weights: Tree, x: Array) -> Array:
                with named_scope("self"):
                    y = attention(weights["self"], x, x, heads, bias, (hidden // heads) ** -0.5)
                    x = norm(weights["self_norm"], x + y)
                with named_scope("ffn"):
                    x += feed_forward(weights, x, intermediate, jax.nn.gelu)
                    return norm(weights["ffn_norm"], x)

            x = nn.run_stack(params["encoder"], x, block, layers, scanned=False)
        with named_scope("next_sentence"):
            pooled = jnp.tanh(nn.dense(params["pooler"], x[:, 0], hidden))
            logits = nn.dense(params["next_sentence"], pooled, 2)
            sentence_loss = cross_entropy(logits, batch["nsp_labels"])
        with named_scope("mlm"):
            masked = jnp.take_along_axis(x, batch["mlm_positions"][..., None], axis=1, mode="clip")
            y = jax.nn.gelu(nn.dense(params["mlm"], masked, hidden))
            logits = jnp.einsum("bth,vh->btv", norm(params["mlm"]["norm"], y), words)
            logits += weight(params["mlm"], "output_bias", vocab)
            return cross_entropy(logits, batch["mlm_labels"]) + sentence_loss

    sequences = "input_ids", "token_type_ids", "attention_mask"
    batch = {
        **{key: integers(batch_size, tokens) for key in sequences},
        **{key: integers(batch_size, predictions) for key in ("mlm_positions", "mlm_labels")},
        "nsp_labels": integers(batch_size),
    }
    description = f"BERT, {layers} layers, width {hidden}, FFN {intermediate}, {heads} heads"
    return float32_model("bert", description, "arXiv 1810.04805", loss, batch)
