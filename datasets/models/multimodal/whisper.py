"""Whisper, an encoder-decoder from speech to text (arXiv 2212.04356)."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    cross_entropy,
    feed_forward,
    feed_forward_shapes,
    layer_norm,
    log_features,
)
from parenvs.datasets.models.layers import dense_shapes, embed, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adam


def whisper(
    layers: int = 32,
    width: int = 1280,
    heads: int = 20,
    frequencies: int = 80,
    frames: int = 3000,
    vocab: int = 51865,
    tokens: int = 448,
    batch_size: int = 256,
    name: str = "whisper",
) -> Model:
    """Return Whisper; the defaults are the large model (arXiv 2212.04356, Table 1).

    Two convolutions over time halve the frames of a log-mel spectrogram. The encoder's positions
    are sines, the decoder's are learned, and keys have no bias. One table serves as embedding
    and, transposed, as output.

    Args:
        layers: Layers of the encoder, and of the decoder.
        width: Residual width; feed-forward blocks are four times as wide.
        heads: Attention heads.
        frequencies: Mel bins of a frame.
        frames: Frames of a segment of 30 seconds.
        vocab: Size of the vocabulary.
        tokens: Length of a text.
        batch_size: Segments in a batch.
        name: Instance name.
    """

    def stack(*attentions: str) -> Tree:
        layer = {
            **{key: attention_shapes(width, "qvo") for key in attentions},
            **{f"{key}_norm": norm_shapes(width) for key in (*attentions, "ffn")},
            "ffn": feed_forward_shapes(width, 4 * width),
        }
        return {f"layer_{i}": layer for i in range(layers)}

    def init() -> Tree:
        return {
            "conv1": dense_shapes(3, frequencies, width),
            "conv2": dense_shapes(3, width, width),
            "encoder": {**stack("self"), "norm": norm_shapes(width)},
            "embedding": floats(vocab, width),
            "positions": floats(tokens, width),
            "decoder": {**stack("self", "cross"), "norm": norm_shapes(width)},
        }

    def convolved(weights: Tree, x: Array, stride: int) -> Array:
        x = lax.conv_general_dilated(
            x, weights["kernel"], (stride,), ((1, 1),), dimension_numbers=("NHC", "HIO", "NHC")
        )
        return jax.nn.gelu(x + weights["bias"])

    def run(params: Tree, x: Array, memory: Array | None) -> Array:
        for i in range(layers):
            weights = params[f"layer_{i}"]
            with named_scope(f"layer_{i}"):
                with named_scope("self"):
                    y = layer_norm(weights["self_norm"], x)
                    x += attention(weights["self"], y, y, heads, causal=memory is not None)
                if memory is not None:
                    with named_scope("cross"):
                        y = layer_norm(weights["cross_norm"], x)
                        x += attention(weights["cross"], y, memory, heads)
                with named_scope("ffn"):
                    x += feed_forward(weights["ffn"], layer_norm(weights["ffn_norm"], x))
        return layer_norm(params["norm"], x)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("frames"):
            x = convolved(params["conv1"], batch["frames"].astype(jnp.bfloat16), 1)
            x = convolved(params["conv2"], x, 2)
            x += log_features(jnp.arange(x.shape[1]), width).astype(x.dtype)
        with named_scope("encoder"):
            memory = run(params["encoder"], x, None)
        with named_scope("decoder"):
            y = embed(params["embedding"], batch["tokens"]) + params["positions"]
            y = run(params["decoder"], y, memory)
        with named_scope("head"):
            logits = jnp.einsum("btd,vd->btv", y, params["embedding"])
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"Whisper, {layers}+{layers} layers, width {width}, {frames} frames, {tokens} tokens",
        "arXiv 2212.04356",
        init,
        loss,
        {
            "frames": floats(batch_size, frames, frequencies),
            "tokens": integers(batch_size, tokens),
            "labels": integers(batch_size, tokens),
        },
        batch_size,
        family="whisper",
        trained_as="arXiv 2212.04356, Table 17: batch 256, AdamW",
        mixed=True,
        optimiser=adam(1.75e-4, beta2=0.98, decay=0.1),
    )
