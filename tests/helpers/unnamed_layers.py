"""Transformer layers whose weights have no names, with the plan that Megatron would make by hand.

Each layer is a function of a list of weights and of activations (batch, tokens, width); ``PLANS``
holds what is split: position in the list, or a part of the weight there -> dimension.
"""

import jax
import jax.numpy as jnp
from jax import lax

BATCH, TOKENS, WIDTH, HEADS, SIZE, HIDDEN, WORDS = 4, 12, 32, 4, 8, 64, 48
EXPERTS = 2


def norm(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + 1e-6)


def heads_of(x, count=HEADS):
    return x.reshape(*x.shape[:2], count, -1)


def context(q, k, v):
    """Softmax attention of (batch, tokens, heads, size)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * SIZE**-0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    probabilities = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)


def merged(x):
    return x.reshape(*x.shape[:2], -1)


def rotate(x):
    angles = jnp.arange(x.shape[1])[:, None] * 0.1 ** jnp.arange(SIZE // 2)
    a, b = jnp.split(x, 2, -1)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def separate(w, x):
    """Pre-norm, no bias."""
    y = norm(x)
    x += merged(context(heads_of(y @ w[0]), heads_of(y @ w[1]), heads_of(y @ w[2]))) @ w[3]
    return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5]


def biases(w, x):
    """Post-norm, biases everywhere, relu."""
    q, k, v = (heads_of(x @ w[i] + w[i + 1]) for i in (0, 2, 4))
    x = norm(x + merged(context(q, k, v)) @ w[6] + w[7]) * w[8]
    return norm(x + jax.nn.relu(x @ w[9] + w[10]) @ w[11] + w[12]) * w[13]


def einsums(w, x):
    """Kernels of three dimensions, biases of two; exact gelu."""
    y = norm(x)
    q, k, v = (jnp.einsum("btw,whd->bthd", y, w[i]) + w[i + 1] for i in (0, 2, 4))
    x += jnp.einsum("bthd,hdw->btw", context(q, k, v), w[6])
    return x + jax.nn.gelu(norm(x) @ w[7], approximate=False) @ w[8]


def grouped(w, x):
    """Two query heads share keys and values; rotary positions; a gated network."""
    y = norm(x)
    q = rotate(heads_of(y @ w[0])).reshape(BATCH, TOKENS, 2, 2, SIZE)
    k, v = rotate(heads_of(y @ w[1], 2)), heads_of(y @ w[2], 2)
    probabilities = jax.nn.softmax(jnp.einsum("bqhgd,bkhd->bhgqk", q, k))
    x += merged(merged(jnp.einsum("bhgqk,bkhd->bqhgd", probabilities, v))) @ w[3]
    y = norm(x)
    return x + (jax.nn.silu(y @ w[4]) * (y @ w[5])) @ w[6]


def repeated(w, x):
    """The same with keys and values repeated, and normed queries; bilinear gates."""
    y = norm(x)
    k, v = (
        jnp.broadcast_to(heads_of(y @ w[i], 2)[:, :, :, None], (BATCH, TOKENS, 2, 2, SIZE))
        for i in (1, 2)
    )
    k, v = (z.reshape(BATCH, TOKENS, HEADS, SIZE) for z in (k, v))
    x += merged(context(norm(heads_of(y @ w[0])), k, v)) @ w[3]
    y = norm(x)
    return x + ((y @ w[4]) * (y @ w[5])) @ w[6]


def one_key(w, x):
    """All query heads share one key and one value, which stay whole."""
    y = norm(x)
    q, k, v = heads_of(y @ w[0]), y @ w[1], y @ w[2]
    probabilities = jax.nn.softmax(jnp.einsum("bqhd,bkd->bhqk", q, k))
    x += merged(jnp.einsum("bhqk,bkd->bqhd", probabilities, v)) @ w[3]
    return x + jnp.square(jax.nn.relu(norm(x) @ w[4])) @ w[5]


def parallel(w, x):
    """Attention and network read the same norm, and bfloat16 weights are cast at use."""
    w, y = [z.astype(jnp.bfloat16) for z in w], norm(x).astype(jnp.bfloat16)
    attended = merged(context(heads_of(y @ w[0]), heads_of(y @ w[1]), heads_of(y @ w[2]))) @ w[3]
    return x + (attended + jnp.tanh(y @ w[4]) @ w[5]).astype(x.dtype)


def cross(w, x):
    """Attention to another sequence, of other width and length, made from the first."""
    memory = jnp.tanh(jnp.concatenate([x, x[:, :4]], 1) * 2)
    q, k, v = heads_of(norm(x) @ w[0]), heads_of(memory @ w[1]), heads_of(memory @ w[2])
    probabilities = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    x += merged(jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)) @ w[3]
    return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5]


def transposed(w, x):
    """Kernels with the outputs first, as PyTorch has them."""
    y = norm(x)
    q, k, v = (heads_of(jnp.einsum("oi,bti->bto", z, y)) for z in w[:3])
    x += merged(context(q, k, v)) @ w[3].T
    return x + jax.nn.gelu(norm(x) @ w[4].T) @ w[5].T


def linear(w, x):
    """Attention without a softmax: keys times values first."""
    y = norm(x)
    q, k, v = (jnp.einsum("btw,whd->bthd", y, z) for z in w[:3])
    state = jnp.einsum("bkhd,bkhe->bhde", jax.nn.elu(k) + 1, v)
    x += jnp.einsum("bqhd,bhde,hew->bqw", jax.nn.elu(q) + 1, state, w[3])
    return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5]


def experts(w, x):
    """Two experts in place of the network, mixed by gates."""
    y = norm(x)
    x += merged(context(heads_of(y @ w[0]), heads_of(y @ w[1]), heads_of(y @ w[2]))) @ w[3]
    y = norm(x)
    hidden = jax.nn.gelu(jnp.einsum("btw,ewh->beth", y, w[4]))
    return x + jnp.einsum("bte,beth,ehw->btw", jax.nn.softmax(y @ w[6]), hidden, w[5])


def blockwise(w, x):
    """Keys and values in blocks, one after the other in a loop, with a running softmax."""
    y = norm(x)
    q, k, v = (heads_of(y @ z) for z in w[:3])
    blocks = [z.reshape(BATCH, 3, 4, HEADS, SIZE).swapaxes(0, 1) for z in (k, v)]

    def body(carry, block):
        largest, total, mixed = carry
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, block[0])
        new = jnp.maximum(largest, scores.max(-1))
        part, shrink = jnp.exp(scores - new[..., None]), jnp.exp(largest - new)
        added = jnp.einsum("bhqk,bkhd->bhqd", part, block[1])
        return (new, total * shrink + part.sum(-1), mixed * shrink[..., None] + added), None

    zeros = jnp.zeros((BATCH, HEADS, TOKENS))
    start = zeros - 1e9, zeros, jnp.zeros((BATCH, HEADS, TOKENS, SIZE))
    (_, total, mixed), _ = lax.scan(body, start, blocks)
    x += merged((mixed / total[..., None]).swapaxes(1, 2)) @ w[3]
    return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5]


def latents(w, x):
    """Queries are learned; what they read is added to every token (Perceiver)."""
    q = jnp.broadcast_to(norm(w[6]) @ w[0], (BATCH, 6, HEADS * SIZE))
    y = norm(x)
    probabilities = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", heads_of(q), heads_of(y @ w[1])))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", probabilities, heads_of(y @ w[2]))
    read = w[6] + merged(mixed) @ w[3]
    read += jax.nn.gelu(norm(read) @ w[4]) @ w[5]
    return x + read.mean(1, keepdims=True)


def folded(w, x):
    """Heads are folded into the batch, behind it: they cannot be split."""
    y = norm(x)
    q, k, v = (heads_of(y @ z).swapaxes(1, 2).reshape(BATCH * HEADS, TOKENS, SIZE) for z in w[:3])
    mixed = jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v
    x += merged(mixed.reshape(BATCH, HEADS, TOKENS, SIZE).swapaxes(1, 2)) @ w[3]
    return x + jax.nn.gelu(norm(x) @ w[4]) @ w[5]


def fused_by_head(w, x):
    """One kernel for queries, keys and values, those of a head side by side."""
    q, k, v = jnp.moveaxis((norm(x) @ w[0]).reshape(BATCH, TOKENS, HEADS, 3, SIZE), 3, 0)
    x += merged(context(q, k, v)) @ w[1]
    return x + jax.nn.gelu(norm(x) @ w[2]) @ w[3]


def fused(w, x):
    """One kernel for queries, keys and values, one third after the other (GPT-2)."""
    q, k, v = (heads_of(z) for z in jnp.split(norm(x) @ w[0], 3, -1))
    x += merged(context(q, k, v)) @ w[1]
    return x + jax.nn.gelu(norm(x) @ w[2]) @ w[3]


def fused_gate(w, x):
    """One kernel for the gate and what it gates."""
    y = norm(x)
    x += merged(context(heads_of(y @ w[0]), heads_of(y @ w[1]), heads_of(y @ w[2]))) @ w[3]
    gate, up = jnp.split(norm(x) @ w[4], 2, -1)
    return x + (jax.nn.silu(gate) * up) @ w[5]


_INNER, _PAIR = HEADS * SIZE, (2 * SIZE)
_QKV = [(WIDTH, _INNER)] * 3 + [(_INNER, WIDTH)]
_NETWORK = [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
_KERNEL = [(WIDTH, HEADS, SIZE), (HEADS, SIZE)]
_GROUPED = [(WIDTH, _INNER), (WIDTH, _PAIR), (WIDTH, _PAIR), (_INNER, WIDTH)]
_MEGATRON = {0: 1, 1: 1, 2: 1, 3: 0}
LAYERS = {
    separate: _QKV + _NETWORK,
    biases: [
        *([(WIDTH, _INNER), (_INNER,)] * 3), (_INNER, WIDTH), (WIDTH,), (WIDTH,),
        (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,), (WIDTH,),
    ],
    einsums: [*(_KERNEL * 3), (HEADS, SIZE, WIDTH), *_NETWORK],
    grouped: [*_GROUPED, _NETWORK[0], *_NETWORK],
    repeated: [*_GROUPED, _NETWORK[0], *_NETWORK],
    one_key: [(WIDTH, _INNER), (WIDTH, SIZE), (WIDTH, SIZE), (_INNER, WIDTH), *_NETWORK],
    parallel: _QKV + _NETWORK,
    cross: _QKV + _NETWORK,
    transposed: [shape[::-1] for shape in _QKV + _NETWORK],
    linear: [*([_KERNEL[0]] * 3), (HEADS, SIZE, WIDTH), *_NETWORK],
    experts: [*_QKV, *((EXPERTS, *shape) for shape in _NETWORK), (WIDTH, EXPERTS)],
    blockwise: _QKV + _NETWORK,
    latents: [*_QKV, *_NETWORK, (6, WIDTH)],
    folded: _QKV + _NETWORK,
    fused_by_head: [(WIDTH, 3 * _INNER), (_INNER, WIDTH), *_NETWORK],
    fused: [(WIDTH, 3 * _INNER), (_INNER, WIDTH), *_NETWORK],
    fused_gate: [*_QKV, (WIDTH, 2 * HIDDEN), (HIDDEN, WIDTH)],
}  # fmt: skip
"""Layer -> shapes of its weights."""
PLANS = {
    separate: {**_MEGATRON, 4: 1, 5: 0},
    biases: {0: 1, 1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 0, 9: 1, 10: 0, 11: 0},
    einsums: {0: 1, 1: 0, 2: 1, 3: 0, 4: 1, 5: 0, 6: 0, 7: 1, 8: 0},
    grouped: {**_MEGATRON, 4: 1, 5: 1, 6: 0},
    repeated: {**_MEGATRON, 4: 1, 5: 1, 6: 0},
    one_key: {0: 1, 3: 0, 4: 1, 5: 0},
    parallel: {**_MEGATRON, 4: 1, 5: 0},
    cross: {**_MEGATRON, 4: 1, 5: 0},
    transposed: {0: 0, 1: 0, 2: 0, 3: 1, 4: 0, 5: 1},
    linear: {**_MEGATRON, 4: 1, 5: 0},
    experts: {**_MEGATRON, 4: 2, 5: 1},
    blockwise: {**_MEGATRON, 4: 1, 5: 0},
    latents: {**_MEGATRON, 4: 1, 5: 0},
    folded: {4: 1, 5: 0},
    fused_by_head: {0: 1, 1: 0, 2: 1, 3: 0},
    fused: {"0/00:32": 1, "0/32:64": 1, "0/64:96": 1, 1: 0, 2: 1, 3: 0},
    fused_gate: {**_MEGATRON, "4/000:064": 1, "4/064:128": 1, 5: 0},
}
"""Layer -> Megatron's plan, where it needs no reshard: weight, or part of one -> dimension."""


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def training_step(layer, count=2, scan=False, remat=False, shapes=None):
    """A step with ``count`` layers between an embedding and a tied head, a pooler and a classifier.

    Args:
        layer: one of ``LAYERS``, or another function with the ``shapes`` of its weights.
        count: layers.
        scan: whether the layers run in a loop, over weights that are stacked in front.
        remat: whether each layer is computed again in the backward pass.
    """
    shapes = shapes or LAYERS[layer]
    if scan:
        layers = [floats(count, *shape) for shape in shapes]
    else:
        layers = [[floats(*shape) for shape in shapes] for _ in range(count)]
    params = [floats(WORDS, WIDTH), layers, [floats(WIDTH, WIDTH), floats(WIDTH, 4)]]
    tokens = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32)
    batch = {"read": tokens, "wanted": tokens}
    apply = jax.checkpoint(layer) if remat else layer

    def loss(params, batch):
        table, layers, (pooler, classifier) = params
        x = jnp.take(table, batch["read"], axis=0, mode="clip")
        if scan:
            x, _ = lax.scan(lambda x, w: (apply(w, x), None), x, layers)
        else:
            for weights in layers:
                x = apply(weights, x)
        x = norm(x)
        pooled = jnp.tanh(x[:, 0] @ pooler) @ classifier
        hits = jax.nn.one_hot(batch["wanted"], WORDS) * jax.nn.log_softmax(x @ table.T)
        return jax.nn.logsumexp(pooled, -1).mean() - hits.sum(-1).mean()

    def step(params, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    return step, (params, batch)
