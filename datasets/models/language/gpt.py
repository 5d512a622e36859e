"""GPT-3, the decoder with learned positions (arXiv 2005.14165)."""

import jax.numpy as jnp
from jax import named_scope

from parenvs.datasets.models.blocks import (
    attention,
    attention_shapes,
    cross_entropy,
    feed_forward,
    feed_forward_shapes,
    layer_norm,
)
from parenvs.datasets.models.layers import embed, norm_shapes
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adamw
from parenvs.datasets.models.stack import run_stack, stack_shapes


def gpt(
    layers: int = 96,
    width: int = 12288,
    heads: int = 96,
    vocab: int = 50257,
    tokens: int = 2048,
    batch_size: int = 1536,
    scanned: bool = False,
    name: str = "gpt",
) -> Model:
    """Return GPT-3; the defaults are its 175 B parameters (arXiv 2005.14165, Table 2.1).

    One table serves as embedding and, transposed, as output, as in GPT-2. All attentions are
    dense, where GPT-3's are dense and locally banded by turns. The backward pass computes the
    attention scores again.

    Args:
        layers: Decoder layers.
        width: Residual width; feed-forward blocks are four times as wide.
        heads: Attention heads.
        vocab: Size of the vocabulary.
        tokens: Length of a sequence, and rows of the position table.
        batch_size: Sequences in a batch.
        scanned: Whether the layers are a loop over stacked weights.
        name: Instance name.
    """

    def init() -> Tree:
        layer = {
            "attention_norm": norm_shapes(width),
            "attention": attention_shapes(width),
            "ffn_norm": norm_shapes(width),
            "ffn": feed_forward_shapes(width, 4 * width),
        }
        return {
            "embedding": floats(vocab, width),
            "positions": floats(tokens, width),
            "decoder": stack_shapes(layers, layer, scanned),
            "norm": norm_shapes(width),
        }

    def block(weights: Tree, x: Array) -> Array:
        with named_scope("attention"):
            y = layer_norm(weights["attention_norm"], x)
            x += attention(weights["attention"], y, y, heads, causal=True, recompute=True)
        with named_scope("ffn"):
            return x + feed_forward(weights["ffn"], layer_norm(weights["ffn_norm"], x))

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = embed(params["embedding"], batch["tokens"]) + params["positions"]
        with named_scope("decoder"):
            x = run_stack(params["decoder"], x, block, layers, scanned)
        with named_scope("head"):
            x = layer_norm(params["norm"], x)
            logits = jnp.einsum("btd,vd->btv", x, params["embedding"])
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"GPT-3, {layers} layers, width {width}, {heads} heads",
        "arXiv 2005.14165",
        init,
        loss,
        {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)},
        batch_size,
        family="gpt",
        trained_as="arXiv 2104.04473, section 5.1: GPT-3 of 175 B parameters, batch 1,536",
        mixed=True,
        optimiser=adamw(),
    )
