"""JAX models that the library's rules and formulas were not written for, to test them on."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import conv, dense, embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers, weight
from parenvs.datasets.models.paper import MASKED, cross_entropy


def resnet50(batch_size: int = 64, image: int = 224, classes: int = 1000) -> Model:
    """Returns ResNet-50 v1.5 (arXiv 1512.03385, stride in the 3x3 convolution): 25.6 M parameters.

    Batch normalization uses the statistics of the batch; running averages are left out.
    """
    stages = (64, 3), (128, 4), (256, 6), (512, 3)  # width of the 3x3 convolutions, blocks

    def unit(weights: Tree, x: Array, width: int, size: int = 1, stride: int = 1) -> Array:
        x = conv(weights, x, width, size, stride, bias=False)
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
        scale = weight(weights["norm"], "scale", width) * lax.rsqrt(variance + 1e-5)
        return (x - mean) * scale + weight(weights["norm"], "bias", width)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("stem"):
            x = jax.nn.relu(unit(params["stem"], batch["images"], 64, 7, 2))
            padding = (0, 0), (1, 1), (1, 1), (0, 0)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
        for stage, (width, blocks) in enumerate(stages, 1):
            for i in range(blocks):
                name, stride = f"stage{stage}_block{i}", 2 if stage > 1 and i == 0 else 1
                with named_scope(name):
                    weights = params[name]
                    y = jax.nn.relu(unit(weights["conv1"], x, width))
                    y = jax.nn.relu(unit(weights["conv2"], y, width, 3, stride))
                    y = unit(weights["conv3"], y, 4 * width)
                    x = unit(weights["shortcut"], x, 4 * width, 1, stride) if i == 0 else x
                    x = jax.nn.relu(y + x)
        with named_scope("predictions"):
            logits = dense(params["predictions"], x.mean((1, 2)), classes)
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    batch = {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)}
    source = "arXiv 1512.03385"
    return Model("resnet50", "ResNet-50 v1.5", source, loss, batch, mixed=False)


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

    def linear(weights: Tree, name: str, x: Array, features: int) -> Array:
        return x @ weight(weights, name, x.shape[-1], features)

    def rms_norm(weights: Tree, name: str, x: Array) -> Array:
        scale = weight(weights, name, width)
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
        q = linear(weights, "q", x, width)
        q = q.reshape(batch_size, tokens, kv_heads, heads // kv_heads, size)
        k = linear(weights, "k", x, kv_heads * size).reshape(batch_size, tokens, kv_heads, size)
        v = linear(weights, "v", x, kv_heads * size).reshape(batch_size, tokens, kv_heads, size)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", rotate(q) * size**-0.5, rotate(k))
        causal = jnp.tril(jnp.ones((tokens, tokens), bool))
        probabilities = jax.nn.softmax(jnp.where(causal, scores, MASKED))
        context = jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, v)
        return linear(weights, "o", context.reshape(batch_size, tokens, -1), width)

    def loss(params: Tree, batch: Tree) -> Array:
        x = embed(weight(params, "embedding", vocab, width), batch["tokens"])
        for i in range(layers):
            weights = params["layers"][str(i)]
            with named_scope(f"layer_{i}"):
                x += attention(weights, rms_norm(weights, "attention_norm", x))
                y = rms_norm(weights, "ffn_norm", x)
                gate = jax.nn.silu(linear(weights, "gate", y, hidden))
                x += linear(weights, "down", gate * linear(weights, "up", y, hidden), width)
        with named_scope("head"):
            logits = linear(params, "head", rms_norm(params, "norm", x), vocab)
            return cross_entropy(logits, batch["labels"])

    batch = {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)}
    description = f"decoder, {layers} layers of width {width}"
    source = "arXiv 2307.09288"
    return Model("decoder-only", description, source, loss, batch, mixed=False)
