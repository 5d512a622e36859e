"""Models of several kinds of data: CLIP, DLRM and Whisper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, named_scope

import parenvs.datasets.models.blocks as nn
from parenvs.datasets.models.model import (
    Array,
    Model,
    Optimizer,
    Tree,
    adam,
    floats,
    integers,
    weight,
)


def descent() -> Optimizer:
    """Return gradient descent, which has no state."""

    def update(params: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
        with named_scope("descent"):
            new = jax.tree.map(lambda w, g: w - 1.0 * g.astype(w.dtype), params, grads)
        return new, state

    return Optimizer("descent", lambda params: {}, update)


def quick_gelu(x: Array) -> Array:
    """Approximate a GELU by a sigmoid, as CLIP's released code does."""
    return x * jax.nn.sigmoid(1.702 * x)


def clip(
    image_layers: int = 24,
    image_width: int = 1024,
    text_layers: int = 12,
    text_width: int = 768,
    shared: int = 768,
    patch: int = 14,
    image: int = 224,
    vocab: int = 49408,
    tokens: int = 77,
    head: int = 64,
    batch_size: int = 32768,
) -> Model:
    """Return CLIP; the defaults are ViT-L/14 (arXiv 2103.00020, Table 20).

    The loss compares each image with each text of the batch by ``shared`` features, so that the
    batch cannot be split without an exchange. The text's feature is that of its last token, which
    has the highest id. ``head`` is the width of an attention head.
    """

    def encoded(weights: Tree, x: Array, layers: int, causal: bool) -> Array:
        width = x.shape[-1]
        how = {"heads": width // head, "hidden": 4 * width, "activation": quick_gelu}
        layer = partial(nn.transformer_layer, causal=causal, **how)
        return nn.run_stack(weights, x, layer, layers, scanned=False)

    def unit(x: Array) -> Array:
        y = x.astype(jnp.float32)
        return (y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True))).astype(x.dtype)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("image"):
            weights = params["image"]
            kernel = weight(weights, "patches", patch, patch, 3, image_width)
            x = batch["images"].astype(kernel.dtype)
            how = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
            x = lax.conv_general_dilated(x, kernel, (patch, patch), "VALID", **how)
            x = x.reshape(batch_size, -1, image_width)
            first = weight(weights, "class", 1, 1, image_width)
            x = jnp.concatenate([jnp.broadcast_to(first, (batch_size, 1, image_width)), x], 1)
            x += weight(weights, "positions", 1, x.shape[1], image_width)
            x = nn.layer_norm(weights["first_norm"], x)
            x = encoded(weights["encoder"], x, image_layers, False)
            x = nn.layer_norm(weights["norm"], x[:, 0])
            images = unit(x @ weight(weights, "projection", image_width, shared))
        with named_scope("text"):
            weights, ids = params["text"], batch["tokens"]
            y = nn.embed(weight(weights, "embedding", vocab, text_width), ids)
            y += weight(weights, "positions", tokens, text_width)
            y = encoded(weights["encoder"], y, text_layers, True)
            y = nn.layer_norm(weights["norm"], y)
            last = (ids == ids.max(-1, keepdims=True)).astype(y.dtype)
            y = jnp.einsum("btd,bt->bd", y, last)
            texts = unit(y @ weight(weights, "projection", text_width, shared))
        with named_scope("loss"):
            scale = jnp.exp(weight(params, "temperature", 1).astype(jnp.float32))
            logits = (images @ texts.T).astype(jnp.float32) * scale
            # Contrastive in both directions: an image's text is the one of its own index.
            pairs = lax.iota(jnp.int32, batch_size)
            return (nn.cross_entropy(logits, pairs) + nn.cross_entropy(logits.T, pairs)) / 2

    line = f"CLIP, image {image_layers} layers of {image_width}, text {text_layers} of {text_width}"
    trained_as = "arXiv 2103.00020, Table 18: batch 32,768, Adam with weight decay"
    batch = {"images": floats(batch_size, image, image, 3), "tokens": integers(batch_size, tokens)}
    source = "arXiv 2103.00020"
    optimizer = adam(4e-4, beta2=0.98, decay=0.2)
    return Model("clip", line, source, loss, batch, trained_as, optimizer)


CRITEO = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546,
    403_346, 10, 2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935,
    12_972, 108, 36,
)  # fmt: skip
"""Rows of the tables for Criteo's click logs of 1 TB, ids taken modulo 40 million."""


def dlrm(
    rows: Sequence[int] = CRITEO,
    width: int = 128,
    numbers: int = 13,
    bottom: Sequence[int] = (512, 256, 128),
    top: Sequence[int] = (1024, 1024, 512, 256, 1),
    batch_size: int = 65536,
) -> Model:
    """Return DLRM; the defaults are the model of MLPerf's recommendation task.

    The rows that categories select, and the numbers after dense layers, are multiplied with each
    other; the products go through more dense layers to one logit. The tables stay float32, and
    their gradients are as large as they are, where trainers update the rows alone.

    Args:
        rows: Rows of each embedding table.
        width: Width of the tables.
        numbers: Number of continuous features.
        bottom: Widths of the dense layers that the numbers go through; the last is ``width``.
        top: Widths of the dense layers after the products.
        batch_size: Examples in a batch.
    """

    def run(weights: Tree, x: Array, widths: Sequence[int], last: bool) -> Array:
        for i, features in enumerate(widths):
            with named_scope(f"dense_{i}"):
                x = nn.dense(weights[f"dense_{i}"], x, features)
                x = jax.nn.relu(x) if last or i + 1 < len(widths) else x
        return x

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("bottom"):
            x = run(params["bottom"], batch["numbers"].astype(jnp.bfloat16), bottom, True)
        with named_scope("tables"):
            features = [x]
            for i, count in enumerate(rows):
                with named_scope(f"table_{i}"):
                    table = weight(params["tables"], f"table_{i}", count, width)
                    row = nn.embed(table, batch[f"category_{i}"])
                    features.append(row.astype(x.dtype))
        with named_scope("products"):
            stacked = jnp.stack(features, 1)
            products = jnp.einsum("bid,bjd->bij", stacked, stacked)
            # Products are symmetric, so each pair is taken once, without the squares.
            below = [products[:, i, :i] for i in range(1, len(rows) + 1)]
            x = jnp.concatenate([x, *below], 1)
        with named_scope("top"):
            logit = run(params["top"], x, top, False)[:, 0].astype(jnp.float32)
        with named_scope("loss"):
            clicked = batch["clicked"].astype(jnp.float32)
            # Binary cross-entropy from logits: log(1 + e^z) - y z does not overflow.
            return (jax.nn.softplus(logit) - clicked * logit).mean()

    line = f"DLRM, {len(rows)} tables of width {width}, {sum(rows):,} rows"
    trained_as = "SparseOperationKit, DLRM benchmark: 65,536 examples on 8 A100"
    batch = {
        "numbers": floats(batch_size, numbers),
        **{f"category_{i}": integers(batch_size) for i in range(len(rows))},
        "clicked": integers(batch_size),
    }
    source = "arXiv 1906.00091; MLPerf Training v0.7"
    return Model("dlrm", line, source, loss, batch, trained_as, descent(), kept=("tables",))


def whisper(
    layers: int = 32,
    width: int = 1280,
    heads: int = 20,
    frequencies: int = 80,
    frames: int = 3000,
    vocab: int = 51865,
    tokens: int = 448,
    batch_size: int = 256,
) -> Model:
    """Return Whisper; the defaults are the large model (arXiv 2212.04356, Table 1).

    Two convolutions over time halve the ``frames`` of a log-mel spectrogram with ``frequencies``
    bins. The encoder's positions are sines, the decoder's are learned, and keys have no bias. One
    table serves as embedding and, transposed, as output. Encoder and decoder have ``layers`` each.
    """

    attention = partial(nn.attention, heads=heads, biases="qvo")

    def convolved(weights: Tree, x: Array, stride: int) -> Array:
        kernel, how = weight(weights, "kernel", 3, x.shape[-1], width), ("NHC", "HIO", "NHC")
        x = lax.conv_general_dilated(x, kernel, (stride,), ((1, 1),), dimension_numbers=how)
        return jax.nn.gelu(x + weight(weights, "bias", width))

    def run(params: Tree, x: Array, memory: Array | None) -> Array:
        for i in range(layers):
            weights = params[f"layer_{i}"]
            with named_scope(f"layer_{i}"):
                with named_scope("self"):
                    y = nn.layer_norm(weights["self_norm"], x)
                    x += attention(weights["self"], y, y, causal=memory is not None)
                if memory is not None:
                    with named_scope("cross"):
                        y = nn.layer_norm(weights["cross_norm"], x)
                        x += attention(weights["cross"], y, memory)
                with named_scope("ffn"):
                    y = nn.layer_norm(weights["ffn_norm"], x)
                    x += nn.feed_forward(weights["ffn"], y, 4 * width)
        return nn.layer_norm(params["norm"], x)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("frames"):
            x = convolved(params["conv1"], batch["frames"].astype(jnp.bfloat16), 1)
            x = convolved(params["conv2"], x, 2)
            x += nn.log_features(jnp.arange(x.shape[1]), width).astype(x.dtype)
        with named_scope("encoder"):
            memory = run(params["encoder"], x, None)
        with named_scope("decoder"):
            table = weight(params, "embedding", vocab, width)
            y = nn.embed(table, batch["tokens"]) + weight(params, "positions", tokens, width)
            y = run(params["decoder"], y, memory)
        with named_scope("head"):
            logits = jnp.einsum("btd,vd->btv", y, table)
        with named_scope("loss"):
            return nn.cross_entropy(logits, batch["labels"])

    line = f"Whisper, {layers}+{layers} layers, width {width}, {frames} frames, {tokens} tokens"
    trained_as = "arXiv 2212.04356, Table 17: batch 256, AdamW"
    batch = {
        "frames": floats(batch_size, frames, frequencies),
        "tokens": integers(batch_size, tokens),
        "labels": integers(batch_size, tokens),
    }
    source = "arXiv 2212.04356"
    optimizer = adam(1.75e-4, beta2=0.98, decay=0.1)
    return Model("whisper", line, source, loss, batch, trained_as, optimizer)


MULTIMODAL = {"clip-l14": clip(), "whisper-large": whisper(), "dlrm-criteo": dlrm()}
"""Shipped models of which the package has the graphs alone, by instance name."""
