"""JAX models that the library's rules and formulas were not written for, to test them on."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import conv, dense, dense_shapes, embed, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.paper import MASKED, cross_entropy


def resnet50(batch_size: int = 64, image: int = 224, classes: int = 1000) -> Model:
    """Returns ResNet-50 v1.5 (arXiv 1512.03385, stride in the 3x3 convolution): 25.6 M parameters.

    Batch normalization uses the statistics of the batch; running averages are left out.
    """
    stages = (64, 3), (128, 4), (256, 6), (512, 3)  # width of the 3x3 convolutions, blocks

    def unit_shapes(size: int, inputs: int, outputs: int) -> Tree:
        return {"kernel": floats(size, size, inputs, outputs), "norm": norm_shapes(outputs)}

    def init() -> Tree:
        params, features = {"stem": unit_shapes(7, 3, 64)}, 64
        for stage, (width, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                params[f"stage{stage}_block{i}"] = block = {
                    "conv1": unit_shapes(1, features, width),
                    "conv2": unit_shapes(3, width, width),
                    "conv3": unit_shapes(1, width, 4 * width),
                }
                if i == 0:
                    block["shortcut"] = unit_shapes(1, features, 4 * width)
                features = 4 * width
        return {**params, "predictions": dense_shapes(features, classes)}

    def unit(weights: Tree, x: Array, stride: int = 1) -> Array:
        x = conv(weights["kernel"], x, stride)
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
        scale = weights["norm"]["scale"] * lax.rsqrt(variance + 1e-5)
        return (x - mean) * scale + weights["norm"]["bias"]

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("stem"):
            x = jax.nn.relu(unit(params["stem"], batch["images"], 2))
            padding = (0, 0), (1, 1), (1, 1), (0, 0)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
        for stage, (_, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                name, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 0 else 1
                with named_scope(name):
                    weights = params[name]
                    y = jax.nn.relu(unit(weights["conv1"], x))
                    y = jax.nn.relu(unit(weights["conv2"], y, stride))
                    y = unit(weights["conv3"], y)
                    shortcut = unit(weights["shortcut"], x, stride) if i == 0 else x
                    x = jax.nn.relu(y + shortcut)
        with named_scope("predictions"):
            logits = dense(params["predictions"], x.mean((1, 2)))
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    batch = {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)}
    source = "arXiv 1512.03385"
    return Model("resnet50", "ResNet-50 v1.5", source, init(), loss, batch, mixed=False)


def decoder_only(
    layers: int = 4,
    width: int = 512,
    heads: int = 8,
    kv_heads: int = 2,
    hidden: int = 1408,
    vocab: int = 32000,
    tokens: int = 256,
    batch_size: int = 16,
) -> Model:
    """Returns a decoder in the manner of LLaMA 2 (arXiv 2307.09288).

    It has RMSNorm, rotary embeddings, SwiGLU, grouped-query attention, no bias and an untied head.
    """
    size = width // heads

    def init() -> Tree:
        layer = {
            "attention_norm": floats(width),
            "q": floats(width, heads * size),
            "k": floats(width, kv_heads * size),
            "v": floats(width, kv_heads * size),
            "o": floats(heads * size, width),
            "ffn_norm": floats(width),
            "gate": floats(width, hidden),
            "up": floats(width, hidden),
            "down": floats(hidden, width),
        }
        return {
            "embedding": floats(vocab, width),
            "layers": [dict(layer) for _ in range(layers)],
            "norm": floats(width),
            "head": floats(width, vocab),
        }

    def rms_norm(scale: Array, x: Array) -> Array:
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale

    def rotate(x: Array) -> Array:
        """Rotates the features of (batch, tokens, ..., size) by angles that grow with tokens."""
        frequencies = 10000.0 ** (-jnp.arange(size // 2) * 2.0 / size)
        angles = jnp.arange(tokens)[:, None] * frequencies
        angles = angles.reshape(tokens, *[1] * (x.ndim - 3), size // 2)
        a, b = jnp.split(x, 2, axis=-1)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(weights: Tree, x: Array) -> Array:
        q = (x @ weights["q"]).reshape(batch_size, tokens, kv_heads, heads // kv_heads, size)
        k = (x @ weights["k"]).reshape(batch_size, tokens, kv_heads, size)
        v = (x @ weights["v"]).reshape(batch_size, tokens, kv_heads, size)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", rotate(q) * size**-0.5, rotate(k))
        causal = jnp.tril(jnp.ones((tokens, tokens), bool))
        probabilities = jax.nn.softmax(jnp.where(causal, scores, MASKED))
        context = jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, v)
        return context.reshape(batch_size, tokens, -1) @ weights["o"]

    def loss(params: Tree, batch: Tree) -> Array:
        x = embed(params["embedding"], batch["tokens"])
        for i, weights in enumerate(params["layers"]):
            with named_scope(f"layer_{i}"):
                x += attention(weights, rms_norm(weights["attention_norm"], x))
                y = rms_norm(weights["ffn_norm"], x)
                x += (jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"]
        with named_scope("head"):
            logits = rms_norm(params["norm"], x) @ params["head"]
            return cross_entropy(logits, batch["labels"])

    batch = {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)}
    description = f"decoder, {layers} layers of width {width}"
    source = "arXiv 2307.09288"
    return Model("decoder-only", description, source, init(), loss, batch, mixed=False)
