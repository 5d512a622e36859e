"""T5, the encoder-decoder transformer (arXiv 1910.10683)."""

import math

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.layers import (
    MASKED,
    attention,
    cross_entropy,
    embed,
    feed_forward,
    ffn_shapes,
    layer_norm,
    norm_shapes,
)
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers

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
    name: str = "t5",
) -> Model:
    """Return a T5 encoder-decoder; the defaults are T5-base (arXiv 1910.10683, section 3.1.1).

    T5-3B and T5-11B are in section 3.7. As in T5, scores are not scaled, one table per stack gives
    the relative-position bias of all its self-attentions, and one embedding serves both inputs and,
    scaled by ``d_model**-0.5``, the softmax. Unlike in T5, feed-forward layers and normalisations
    have biases and the latter subtract the mean, as in Auto-MAP's T5 (arXiv 2007.04069, Table 3).

    Args:
        layers: Layers of the encoder, and of the decoder.
        d_model: Residual width.
        d_ff: Hidden width of the feed-forward blocks.
        heads: Attention heads.
        d_kv: Width of a head.
        vocab: Size of the vocabulary.
        tokens: Length of inputs and of targets.
        batch_size: Pairs of sequences in a batch.
        name: Instance name.
    """

    def attention_shapes() -> Tree:
        kernels = {key: floats(d_model, heads * d_kv) for key in "qkv"}
        return kernels | {"o": floats(heads * d_kv, d_model)}

    def stack_shapes(*attentions: str) -> Tree:
        stack = {"positions": floats(POSITION_BUCKETS, heads), "norm": norm_shapes(d_model)}
        for i in range(layers):
            stack[f"layer_{i}"] = {
                **{block: attention_shapes() for block in attentions},
                **{f"{block}_norm": norm_shapes(d_model) for block in (*attentions, "ffn")},
                **ffn_shapes(d_model, d_ff),
            }
        return stack

    def init() -> Tree:
        return {
            "embedding": floats(vocab, d_model),
            "encoder": stack_shapes("self"),
            "decoder": stack_shapes("self", "cross"),
        }

    def stack(params: Tree, x: Array, bias: Array, memory: Array | None = None) -> Array:
        for i in range(layers):
            weights = params[f"layer_{i}"]
            with named_scope(f"layer_{i}"):
                with named_scope("self"):
                    y = layer_norm(weights["self_norm"], x)
                    x += attention(weights["self"], y, y, heads, bias)
                if memory is not None:
                    with named_scope("cross"):
                        y = layer_norm(weights["cross_norm"], x)
                        x += attention(weights["cross"], y, memory, heads)
                with named_scope("ffn"):
                    y = layer_norm(weights["ffn_norm"], x)
                    x += feed_forward(weights, y, jax.nn.relu)
        return layer_norm(params["norm"], x)

    def loss(params: Tree, batch: Tree) -> Array:
        embedding, targets = params["embedding"], batch["targets"]
        with named_scope("encoder"):
            x = embed(embedding, batch["inputs"])
            bias = position_bias(params["encoder"]["positions"], tokens, causal=False)
            memory = stack(params["encoder"], x, bias)
        with named_scope("decoder"):
            start = jnp.zeros((batch_size, 1), targets.dtype)
            x = embed(embedding, jnp.concatenate([start, targets[:, :-1]], 1))
            bias = position_bias(params["decoder"]["positions"], tokens, causal=True)
            x = stack(params["decoder"], x, bias, memory)
        with named_scope("logits"):
            logits = jnp.einsum("btd,vd->btv", x * d_model**-0.5, embedding)
        with named_scope("loss"):
            return cross_entropy(logits, targets)

    batch = {"inputs": integers(batch_size, tokens), "targets": integers(batch_size, tokens)}
    description = f"T5, {layers}+{layers} layers, width {d_model}, FFN {d_ff}, {heads} heads"
    return Model(name, description, "arXiv 1910.10683", init, loss, batch, batch_size, family="t5")


def position_bias(table: Array, tokens: int, causal: bool) -> Array:
    """Return T5's relative-position bias (heads, tokens, tokens), and the causal mask in it.

    Half of the buckets are for one distance each, the others grow logarithmically; the last one has
    all from ``POSITION_MAX_DISTANCE`` on (arXiv 1910.10683, section 2.1). Where both directions are
    seen, each has half of the buckets. Buckets depend on no input.

    Args:
        table: (buckets, heads).
        tokens: Length of the sequence.
        causal: Whether a token sees only itself and those before it.
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
            return embed(table, bucket).transpose(2, 0, 1) + jnp.where(ahead > 0, MASKED, 0.0)
        return embed(table, bucket + jnp.where(ahead > 0, buckets, 0)).transpose(2, 0, 1)
