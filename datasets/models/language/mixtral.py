"""Mixtral, a decoder whose feed-forward blocks are mixtures of experts (arXiv 2401.04088)."""

import jax
import jax.numpy as jnp
from jax import lax, named_scope

from parenvs.datasets.models.blocks import attention, cross_entropy, rms_norm
from parenvs.datasets.models.layers import embed
from parenvs.datasets.models.model import Array, Model, Tree, floats, integers
from parenvs.datasets.models.optimisers import adamw
from parenvs.datasets.models.stack import run_stack, stack_shapes

CHUNK = 512
"""Queries that attend at a time."""
THETA = 1_000_000.0
"""Base of the rotary positions, as in the released configuration."""


def mixtral(
    layers: int = 32,
    width: int = 4096,
    hidden: int = 14336,
    experts: int = 8,
    heads: int = 32,
    kv_heads: int = 8,
    vocab: int = 32000,
    tokens: int = 4096,
    group: int = 1024,
    batch_size: int = 256,
    scanned: bool = False,
    name: str = "mixtral",
) -> Model:
    """Return Mixtral, of which each token uses two experts; the defaults are Mixtral 8x7B.

    Sizes are those of arXiv 2401.04088, Table 1. Tokens are sent to experts as in GShard (arXiv
    2006.16668, section 2.2): in groups, and by products with arrays of ones and zeros, so that the
    program is static and the experts are a dimension like any other. An expert takes as many
    tokens of a group as two for each token make on average; what is beyond that passes it by. The
    loss that balances the experts is left out. Attention takes some queries at a time.

    Args:
        layers: Decoder layers.
        width: Residual width.
        hidden: Width inside an expert.
        experts: Number of experts.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        vocab: Size of the vocabulary.
        tokens: Length of a sequence, a multiple of ``group``.
        group: Tokens that are sent to the experts together.
        batch_size: Sequences in a batch.
        scanned: Whether the layers are a loop over stacked weights.
        name: Instance name.
    """
    size, capacity = width // heads, 2 * group // experts

    def init() -> Tree:
        layer = {
            "attention_norm": floats(width),
            "attention": {
                "q": floats(width, heads * size),
                "k": floats(width, kv_heads * size),
                "v": floats(width, kv_heads * size),
                "o": floats(heads * size, width),
            },
            "experts_norm": floats(width),
            "experts": {
                "router": floats(width, experts),
                "gate": floats(experts, width, hidden),
                "up": floats(experts, width, hidden),
                "down": floats(experts, hidden, width),
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
        with named_scope("experts"):
            y = rms_norm(weights["experts_norm"], x)
            return x + mixture(weights["experts"], y, group, capacity)

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = embed(params["embedding"], batch["tokens"])
        with named_scope("decoder"):
            x = run_stack(params["decoder"], x, block, layers, scanned)
        with named_scope("head"):
            logits = rms_norm(params["norm"], x) @ params["head"]
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    return Model(
        name,
        f"Mixtral, {layers} layers, width {width}, {experts} experts of {hidden}, two a token",
        "arXiv 2401.04088",
        init,
        loss,
        {"tokens": integers(batch_size, tokens), "labels": integers(batch_size, tokens)},
        batch_size,
        family="mixtral",
        trained_as="Megatron-LM, megatron/core/transformer/moe/README.md: Mixtral 8x7B",
        mixed=True,
        optimiser=adamw(),
    )


def mixture(weights: Tree, x: Array, group: int, capacity: int) -> Array:
    """Send each token of ``x`` (batch, tokens, width) to two experts, and add what they return.

    Args:
        weights: ``router`` (width, experts); ``gate`` and ``up`` (experts, width, hidden) and
            ``down`` (experts, hidden, width).
        x: (batch, tokens, width).
        group: Tokens that are sent together.
        capacity: Tokens of a group that an expert takes.
    """
    grouped = x.reshape(-1, group, x.shape[-1])
    with named_scope("router"):
        gates = jax.nn.softmax((grouped @ weights["router"]).astype(jnp.float32))
        dispatch, combine = two_experts(gates, capacity)
    with named_scope("dispatch"):
        sent = jnp.einsum("gtec,gtd->egcd", dispatch.astype(x.dtype), grouped)
    with named_scope("expert"):
        gate = jax.nn.silu(jnp.einsum("egcd,edf->egcf", sent, weights["gate"]))
        up = jnp.einsum("egcd,edf->egcf", sent, weights["up"])
        outputs = jnp.einsum("egcf,efd->egcd", gate * up, weights["down"])
    with named_scope("combine"):
        return jnp.einsum("gtec,egcd->gtd", combine.astype(x.dtype), outputs).reshape(x.shape)


def two_experts(gates: Array, capacity: int) -> tuple[Array, Array]:
    """Choose the two experts of each token and its place in them (arXiv 2006.16668, algorithm 1).

    Args:
        gates: (groups, tokens, experts), the probabilities of the router.
        capacity: Places of an expert for a group.

    Returns:
        Whether a token takes a place, and by how much its result counts: both (groups, tokens,
        experts, capacity) float32. The two weights of a token sum to one.
    """
    taken = jnp.zeros_like(gates[:, 0])  # places that are taken, (groups, experts)
    left, chosen = gates, []
    for _ in range(2):
        best = left.max(-1, keepdims=True)
        expert = lax.stop_gradient(left == best).astype(gates.dtype)
        position = jnp.cumsum(expert, axis=1) - expert + taken[:, None]
        taken = taken + expert.sum(1)
        chosen.append((expert, position))
        left = jnp.where(expert > 0, -1.0, left)
    weight = [(expert * gates).sum(-1) for expert, _ in chosen]
    total = weight[0] + weight[1]
    shape = (*gates.shape, capacity)
    positions = lax.broadcasted_iota(jnp.float32, shape, 3)
    dispatch, combine = jnp.zeros(shape), jnp.zeros(shape)
    for (expert, position), share in zip(chosen, weight, strict=True):
        takes = jnp.where(position[..., None] == positions, expert[..., None], 0.0)
        dispatch = dispatch + takes
        combine = combine + takes * (share / total)[..., None, None]
    return dispatch, combine
