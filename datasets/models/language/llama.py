"""Llama 3, a decoder with grouped queries (arXiv 2407.21783)."""

from jax import named_scope

from parenvs.datasets.models.blocks import (
    attention,
    cross_entropy,
    gated_feed_forward,
    rms_norm,
)
from parenvs.datasets.models.layers import embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adamw
from parenvs.datasets.models.stack import recomputing, run_stack, stack_shapes

CHUNK = 512
"""Queries that attend at a time."""
THETA = 500_000.0
"""Base of the rotary positions (arXiv 2407.21783, Table 3)."""


def llama(
    layers: int = 32,
    width: int = 4096,
    hidden: int = 14336,
    heads: int = 32,
    kv_heads: int = 8,
    vocab: int = 128256,
    tokens: int = 8192,
    batch_size: int = 16,
    scanned: bool = False,
    trained_as: str = "torchtitan, benchmarks: Llama 3.1 8B on 8 H100, 2 sequences on each",
    name: str = "llama",
) -> Model:
    """Return Llama 3 with grouped queries, rotary positions, RMSNorm and SwiGLU, without biases.

    The defaults are Llama 3 8B (arXiv 2407.21783, Table 3; vocabulary with its special tokens as
    in the released configuration). Input and output tables are apart. Attention takes some
    queries at a time, and the backward pass computes again what is cheap, as fused kernels and
    selective recomputation do.

    Args:
        layers: Decoder layers.
        width: Residual width.
        hidden: Width inside the feed-forward blocks.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        vocab: Size of the vocabulary.
        tokens: Length of a sequence.
        batch_size: Sequences in a batch.
        scanned: Whether the layers are a loop over stacked weights.
        trained_as: Where batch and length come from.
        name: Instance name.
    """
    size = width // heads

    def init() -> Tree:
        layer = {
            "attention_norm": floats(width),
            "attention": {
                "q": floats(width, heads * size),
                "k": floats(width, kv_heads * size),
                "v": floats(width, kv_heads * size),
                "o": floats(heads * size, width),
            },
            "ffn_norm": floats(width),
            "ffn": {
                "gate": floats(width, hidden),
                "up": floats(width, hidden),
                "down": floats(hidden, width),
            },
        }
        return {
            "embedding": floats(vocab, width),
            "decoder": stack_shapes(layers, layer, scanned),
            "norm": floats(width),
            "head": floats(width, vocab),
        }

    def block(weights: Tree, x: Array) -> Array:
        with named_scope("attention"):
            y = rms_norm(weights["attention_norm"], x)
            x += attention(
                weights["attention"], y, y, heads, kv_heads, True, THETA, chunk=min(CHUNK, tokens)
            )
        with named_scope("ffn"):
            return x + gated_feed_forward(weights["ffn"], rms_norm(weights["ffn_norm"], x))

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = embed(params["embedding"], batch["tokens"])
        with named_scope("decoder"):
            x = run_stack(params["decoder"], x, recomputing(block), layers, scanned)
        with named_scope("head"):
            logits = rms_norm(params["norm"], x) @ params["head"]
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"Llama 3, {layers} layers, width {width}, SwiGLU {hidden}, {heads} heads on {kv_heads}",
        "arXiv 2407.21783",
        init,
        loss,
        {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)},
        batch_size,
        family="llama",
        trained_as=trained_as,
        mixed=True,
        optimiser=adamw(),
    )
