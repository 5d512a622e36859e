"""Models of text: GPT-3, Llama 3, Mixtral and a recurrent language model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, named_scope

import parenvs.datasets.models.blocks as nn
from parenvs.datasets.models.model import Array, Model, Tree, adagrad, adamw, integers, weight


def gpt(
    layers: int = 96,
    width: int = 12288,
    heads: int = 96,
    vocab: int = 50257,
    tokens: int = 2048,
    batch_size: int = 1536,
    scanned: bool = False,
) -> Model:
    """Return GPT-3; the defaults are its 175 B parameters (arXiv 2005.14165, Table 2.1).

    One table serves as embedding and, transposed, as output, as in GPT-2. All attentions are
    dense, where GPT-3's are dense and locally banded by turns. The backward pass computes the
    attention scores again. Feed-forward blocks are four times as wide as the residual.
    """

    def loss(params: Tree, batch: Tree) -> Array:
        table = weight(params, "embedding", vocab, width)
        with named_scope("embedding"):
            x = nn.embed(table, batch["tokens"]) + weight(params, "positions", tokens, width)
        with named_scope("decoder"):
            how: Tree = {"heads": heads, "hidden": 4 * width, "causal": True, "recompute": True}
            block = partial(nn.transformer_layer, **how)
            x = nn.run_stack(params["decoder"], x, block, layers, scanned)
        with named_scope("head"):
            logits = jnp.einsum("btd,vd->btv", nn.layer_norm(params["norm"], x), table)
        with named_scope("loss"):
            return nn.cross_entropy(logits, batch["labels"])

    line = f"GPT-3, {layers} layers, width {width}, {heads} heads"
    trained_as = "arXiv 2104.04473, section 5.1: GPT-3 of 175 B parameters, batch 1,536"
    batch = nn.labeled_tokens(batch_size, tokens)
    return Model("gpt", line, "arXiv 2005.14165", loss, batch, trained_as, adamw())


CHUNK = 512
"""Queries that attend at a time."""
LLAMA_BASE, MIXTRAL_BASE = 5e5, 1e6
"""Bases of the rotary positions: arXiv 2407.21783, Table 3, and Mixtral's configuration."""


def _grouped_attention(weights: Tree, x: Array, heads: int, kv_heads: int, base: float) -> Array:
    with named_scope("attention"):
        y, chunk = nn.rms_norm(weights, "attention_norm", x), min(CHUNK, x.shape[1])
        how: Tree = {"causal": True, "theta": base, "chunk": chunk, "biases": ""}
        return x + nn.attention(weights["attention"], y, y, heads, kv_heads, **how)


def _decoder(
    block: nn.Layer, layers: int, width: int, vocab: int, scanned: bool
) -> Callable[[Tree, Tree], Array]:
    """The loss of a decoder with RMSNorm whose tables of inputs and outputs are apart."""

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = nn.embed(weight(params, "embedding", vocab, width), batch["tokens"])
        with named_scope("decoder"):
            x = nn.run_stack(params["decoder"], x, block, layers, scanned)
        with named_scope("head"):
            logits = nn.rms_norm(params, "norm", x) @ weight(params, "head", width, vocab)
        with named_scope("loss"):
            return nn.cross_entropy(logits, batch["labels"])

    return loss


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
) -> Model:
    """Return Llama 3 with grouped queries, rotary positions, RMSNorm and SwiGLU, without biases.

    The defaults are Llama 3 8B (arXiv 2407.21783, Table 3; vocabulary with its special tokens as
    in the released configuration). Input and output tables are apart. Attention takes some
    queries at a time, and the backward pass computes again what is cheap, as fused kernels and
    selective recomputation do. ``trained_as`` names the source of batch and length.
    """

    def block(weights: Tree, x: Array) -> Array:
        x = _grouped_attention(weights, x, heads, kv_heads, LLAMA_BASE)
        with named_scope("ffn"):
            # SwiGLU (arXiv 2002.05202): down (silu(gate x) * up x).
            y, ffn = nn.rms_norm(weights, "ffn_norm", x), weights["ffn"]
            y = jax.nn.silu(nn.linear(ffn, "gate", y, hidden)) * nn.linear(ffn, "up", y, hidden)
            return x + nn.linear(ffn, "down", y, width)

    loss = _decoder(nn.recomputing(block), layers, width, vocab, scanned)
    line = f"Llama 3, {layers} layers, width {width}, SwiGLU {hidden}, {heads} heads on {kv_heads}"
    batch = nn.labeled_tokens(batch_size, tokens)
    return Model("llama", line, "arXiv 2407.21783", loss, batch, trained_as, adamw())


def lstm(
    layers: int = 2,
    cells: int = 8192,
    width: int = 1024,
    vocab: int = 793_471,
    samples: int = 8192,
    tokens: int = 20,
    batch_size: int = 128,
) -> Model:
    """Return a recurrent language model; the defaults are BIG LSTM (arXiv 1602.02410, Table 1).

    It is trained with a sampled softmax: the true word against ``samples`` words that the whole
    batch shares (section 3.1), which are an input. Each layer is a loop over ``tokens`` steps;
    the output of its ``cells`` is projected to ``width``, which is that of the embedding, too.
    """

    def recurrence(weights: Tree, x: Array) -> Array:
        """Run a layer over (tokens, batch, width)."""
        # What inputs give the gates needs no recurrence: one product in front of the loop.
        gates = x @ weight(weights, "input", width, 4 * cells) + weight(weights, "bias", 4 * cells)
        recurrent = weight(weights, "recurrent", width, 4 * cells)
        projection = weight(weights, "projection", cells, width)

        def step(state: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
            hidden, cell = state
            # Input, forget and output gates, and the candidate g of the cell.
            i, f, g, o = jnp.split(inputs + hidden @ recurrent, 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = (jax.nn.sigmoid(o) * jnp.tanh(cell)) @ projection
            return (hidden, cell), hidden

        start = jnp.zeros(x.shape[1:], x.dtype), jnp.zeros((x.shape[1], cells), x.dtype)
        _, outputs = lax.scan(step, start, gates)
        return outputs

    def loss(params: Tree, batch: Tree) -> Array:
        with named_scope("embedding"):
            x = nn.embed(weight(params, "embedding", vocab, width), batch["tokens"])
            x = x.astype(jnp.bfloat16).transpose(1, 0, 2)
        with named_scope("lstm"):
            x = nn.run_stack(params["lstm"], x, recurrence, layers, scanned=False)
        with named_scope("softmax"):
            x, kernel = x.transpose(1, 0, 2), weight(params["softmax"], "kernel", vocab, width)
            bias = weight(params["softmax"], "bias", vocab)
            true = nn.embed(kernel, batch["labels"]).astype(x.dtype)
            # The true word is scored apart: it need not be among the samples.
            logit = (x * true).sum(-1).astype(jnp.float32)
            logit += nn.embed(bias, batch["labels"])
            drawn = nn.embed(kernel, batch["samples"]).astype(x.dtype)
            logits = jnp.einsum("btd,sd->bts", x, drawn).astype(jnp.float32)
            logits += nn.embed(bias, batch["samples"])
        with named_scope("loss"):
            # -log(e^true / (e^true + sum of e^sampled)), without overflow.
            return (jnp.logaddexp(jax.nn.logsumexp(logits, -1), logit) - logit).mean()

    line = f"LSTM language model, {layers} layers of {cells} cells, projected to {width}"
    trained_as = "arXiv 1602.02410, section 4.4: batch 128, 20 steps, Adagrad, 8,192 samples"
    batch = {
        "tokens": integers(batch_size, tokens),
        "labels": integers(batch_size, tokens),
        "samples": integers(samples),
    }
    source = "arXiv 1602.02410"
    kept = "embedding", "softmax"
    return Model("lstm", line, source, loss, batch, trained_as, adagrad(), kept=kept)


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
) -> Model:
    """Return Mixtral, of which each token uses two experts; the defaults are Mixtral 8x7B.

    Sizes are those of arXiv 2401.04088, Table 1. Tokens are sent to experts as in GShard (arXiv
    2006.16668, section 2.2): ``group`` at a time (a divisor of ``tokens``), and by products with
    arrays of ones and zeros, so that the program is static and the experts are a dimension like
    any other. An expert takes as many tokens of a group as two for each token make on average;
    what is beyond that passes it by. The loss that balances the experts is left out. Attention
    takes some queries at a time.
    """
    sizes = experts, hidden, group, 2 * group // experts

    def block(weights: Tree, x: Array) -> Array:
        x = _grouped_attention(weights, x, heads, kv_heads, MIXTRAL_BASE)
        with named_scope("experts"):
            return x + mixture(weights["experts"], nn.rms_norm(weights, "experts_norm", x), *sizes)

    loss = _decoder(block, layers, width, vocab, scanned)
    line = f"Mixtral, {layers} layers, width {width}, {experts} experts of {hidden}, two a token"
    trained_as = "Megatron-LM, megatron/core/transformer/moe/README.md: Mixtral 8x7B"
    batch = nn.labeled_tokens(batch_size, tokens)
    return Model("mixtral", line, "arXiv 2401.04088", loss, batch, trained_as, adamw())


def mixture(weights: Tree, x: Array, experts: int, hidden: int, group: int, capacity: int) -> Array:
    """Send each token of ``x`` (batch, tokens, width) to two experts, and add what they return.

    Args:
        weights: ``router`` (width, experts); ``gate`` and ``up`` (experts, width, hidden) and
            ``down`` (experts, hidden, width).
        x: (batch, tokens, width).
        experts: Number of experts.
        hidden: Width inside an expert.
        group: Tokens that are sent together.
        capacity: Tokens of a group that an expert takes.
    """
    width = x.shape[-1]
    grouped = x.reshape(-1, group, width)
    with named_scope("router"):
        router = weight(weights, "router", width, experts)
        gates = jax.nn.softmax((grouped @ router).astype(jnp.float32))
        dispatch, combine = two_experts(gates, capacity)
    with named_scope("dispatch"):
        sent = jnp.einsum("gtec,gtd->egcd", dispatch.astype(x.dtype), grouped)
    with named_scope("expert"):
        gate, up = (weight(weights, key, experts, width, hidden) for key in ("gate", "up"))
        y = jax.nn.silu(jnp.einsum("egcd,edf->egcf", sent, gate))
        y = y * jnp.einsum("egcd,edf->egcf", sent, up)
        outputs = jnp.einsum("egcf,efd->egcd", y, weight(weights, "down", experts, hidden, width))
    with named_scope("combine"):
        return jnp.einsum("gtec,egcd->gtd", combine.astype(x.dtype), outputs).reshape(x.shape)


def two_experts(gates: Array, capacity: int) -> tuple[Array, Array]:
    """Choose the two experts of each token and its place in them (arXiv 2006.16668, algorithm 1).

    Args:
        gates: (groups, tokens, experts), the probabilities of the router.
        capacity: Places of an expert for a group.

    Returns:
        Dispatch mask and combining weights, both (groups, tokens, experts, capacity) float32. The
        two weights of a token sum to one.
    """
    occupied = jnp.zeros_like(gates[:, 0])  # places that are occupied, (groups, experts)
    remaining, chosen = gates, []
    for _ in range(2):
        best = remaining.max(-1, keepdims=True)
        # One-hot over experts, in place of an index, so that it can be partitioned.
        expert = lax.stop_gradient(remaining == best).astype(gates.dtype)
        # A token's place is the number of tokens that chose the expert before it.
        position = jnp.cumsum(expert, axis=1) - expert + occupied[:, None]
        occupied = occupied + expert.sum(1)
        chosen.append((expert, position))
        # Probabilities are at least 0, so -1 is never chosen again.
        remaining = jnp.where(expert > 0, -1.0, remaining)
    first, second = weights = [(expert * gates).sum(-1) for expert, _ in chosen]
    total = first + second
    shape = (*gates.shape, capacity)
    positions = lax.broadcasted_iota(jnp.float32, shape, 3)
    dispatch, combine = jnp.zeros(shape), jnp.zeros(shape)
    for (expert, position), share in zip(chosen, weights, strict=True):
        # A position beyond the capacity equals none of ``positions``: the token is dropped.
        takes = jnp.where(position[..., None] == positions, expert[..., None], 0.0)
        dispatch = dispatch + takes
        combine = combine + takes * (share / total)[..., None, None]
    return dispatch, combine
