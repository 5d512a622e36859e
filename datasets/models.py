"""JAX code of the shipped models: VGG-19, T5-base, T5-3B, T5-11B and BERT-48.

Each model is a `Model`: shapes of parameters and batch, and a loss. No weight is ever allocated,
so that the largest one lowers to HLO in seconds on a laptop:

    fn, args = train_step(MODELS["t5-11b"])
    lowered = jax.jit(fn, keep_unused=True).lower(*args)

Parameters are nested dicts of float32 arrays. Layers are unrolled, each in a `named_scope`, so
that the path of a variable (`encoder/layer_0/self/q`) and the `op_name` of an instruction both tell
where it belongs. Dropout is left out: it adds random bits to a graph, and nothing to its plans.
Losses compare labels with an iota instead of gathering, so that the classes can be partitioned.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, named_scope

Tree = dict[str, Any]
Array = jax.Array


@dataclass(frozen=True, eq=False)
class Model:
    """A training problem, by its shapes.

    Attributes:
        name: Lower-case instance name.
        description: One line for listings.
        source: Where the architecture and its sizes come from.
        init: Returns the parameters, a pytree of `jax.ShapeDtypeStruct`.
        loss: `loss(params, batch)`, a float32 scalar.
        batch: The batch, a dict of `jax.ShapeDtypeStruct`.
        batch_size: Examples in a batch.
    """

    name: str
    description: str
    source: str
    init: Callable[[], Tree]
    loss: Callable[[Tree, Tree], Array]
    batch: Tree
    batch_size: int


def forward(model: Model) -> tuple[Callable[..., Array], tuple[Any, ...]]:
    """Returns `forward(params, batch) -> loss`, and the shapes of its arguments."""

    def forward(params: Tree, batch: Tree) -> Array:
        return model.loss(params, batch)

    return forward, (model.init(), model.batch)


def train_step(
    model: Model,
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Callable[..., tuple[Tree, Tree, Array]], tuple[Any, ...]]:
    """Returns one training step with Adam (arXiv 1412.6980), and the shapes of its arguments.

    The step is `step(params, opt_state, batch) -> (params, opt_state, loss)`. `opt_state` holds the
    moments `m` and `v`, shaped like the parameters, and `count`, the int32 number of steps taken.
    The bias correction has the efficient form that ends section 2 of the paper.
    """

    def step(params: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Array]:
        loss, grads = jax.value_and_grad(model.loss)(params, batch)
        with named_scope("adam"):
            count = opt_state["count"] + 1
            time = count.astype(jnp.float32)
            rate = learning_rate * jnp.sqrt(1 - beta2**time) / (1 - beta1**time)

            def update(param: Array, grad: Array, m: Array, v: Array) -> tuple[Array, ...]:
                m = beta1 * m + (1 - beta1) * grad
                v = beta2 * v + (1 - beta2) * jnp.square(grad)
                return param - rate * m / (jnp.sqrt(v) + epsilon), m, v

            updated = jax.tree.map(update, params, grads, opt_state["m"], opt_state["v"])
            params, m, v = jax.tree.transpose(jax.tree.structure(params), None, updated)
        return params, {"m": m, "v": v, "count": count}, loss

    params = model.init()
    opt_state = {"m": params, "v": params, "count": integers()}
    return step, (params, opt_state, model.batch)


# Shapes.


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns a float32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns an int32 array's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def dense_shapes(*kernel: int) -> Tree:
    """Returns the shapes of a dense or convolution layer, output features last, with its bias."""
    return {"kernel": floats(*kernel), "bias": floats(kernel[-1])}


def norm_shapes(width: int) -> Tree:
    """Returns the shapes of a normalisation over `width` features."""
    return {"scale": floats(width), "bias": floats(width)}


def ffn_shapes(width: int, hidden: int) -> Tree:
    """Returns the shapes of a feed-forward block, named as in arXiv 2007.04069 Table 3."""
    return {"conv1": dense_shapes(width, hidden), "conv2": dense_shapes(hidden, width)}


# Layers. The first argument of each is its own part of the parameters.

MASKED = -1e9
"""Added to attention scores that are not to count."""


def dense(weights: Tree | Array, x: Array) -> Array:
    """Multiplies the last dimension of `x` by a kernel, and adds the bias if there is one."""
    if isinstance(weights, dict):
        return jnp.dot(x, weights["kernel"]) + weights["bias"]
    return jnp.dot(x, weights)


def conv(kernel: Array, x: Array, stride: int = 1) -> Array:
    """Convolves NHWC images with an HWIO kernel, padded to `ceil(size / stride)` outputs."""
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def layer_norm(weights: Tree, x: Array, epsilon: float = 1e-6) -> Array:
    """Normalises the last dimension of `x` to mean 0 and variance 1, then scales and shifts it."""
    with named_scope("norm"):
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(variance + epsilon) * weights["scale"] + weights["bias"]


def embed(table: Array, ids: Array) -> Array:
    """Gathers rows of a table; ids are clipped to its range."""
    return jnp.take(table, ids, axis=0, mode="clip")


def attention(
    weights: Tree,
    x: Array,
    memory: Array,
    heads: int,
    bias: Array | None = None,
    scale: float | None = None,
) -> Array:
    """Attends from `x` to `memory`.

    Args:
        weights: Projections q, k, v and o, all with 2-D kernels.
        x: (batch, queries, width).
        memory: (batch, keys, width).
        heads: Number of heads.
        bias: Added to the scores, broadcast to (batch, heads, queries, keys).
        scale: Multiplies the queries.

    Returns:
        (batch, queries, width).
    """

    def split_heads(y: Array) -> Array:
        return y.reshape(*y.shape[:2], heads, -1)

    q = split_heads(dense(weights["q"], x))
    k = split_heads(dense(weights["k"], memory))
    v = split_heads(dense(weights["v"], memory))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q if scale is None else q * scale, k)
    probabilities = jax.nn.softmax(scores if bias is None else scores + bias)
    context = jnp.einsum("bhqk,bkhd->bqhd", probabilities, v)
    return dense(weights["o"], context.reshape(*x.shape[:2], -1))


def feed_forward(weights: Tree, x: Array, activation: Callable[[Array], Array]) -> Array:
    """Applies two dense layers with an activation between them."""
    return dense(weights["conv2"], activation(dense(weights["conv1"], x)))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the mean cross-entropy of integer labels (...) under logits (..., classes)."""
    classes = lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    one_hot = (labels[..., None] == classes).astype(logits.dtype)
    return -jnp.sum(one_hot * jax.nn.log_softmax(logits), -1).mean()


# VGG.


def vgg(
    blocks: Sequence[tuple[int, int]] = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)),
    hidden: int = 4096,
    classes: int = 1000,
    image: int = 224,
    batch_size: int = 64,
    name: str = "vgg",
) -> Model:
    """Returns a VGG network; the defaults are VGG-19 (arXiv 1409.1556, Table 1, configuration E).

    Args:
        blocks: Number and width of the 3x3 convolutions of each block, which a 2x2 max pool ends.
        hidden: Width of fc1 and fc2.
        classes: Number of classes.
        image: Height and width of the RGB images.
        batch_size: Images in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        params, features = {}, 3
        for block, (convolutions, width) in enumerate(blocks, 1):
            for i in range(1, convolutions + 1):
                params[f"block{block}_conv{i}"] = dense_shapes(3, 3, features, width)
                features = width
        flat = features * (image >> len(blocks)) ** 2
        return params | {
            "fc1": dense_shapes(flat, hidden),
            "fc2": dense_shapes(hidden, hidden),
            "predictions": dense_shapes(hidden, classes),
        }

    def loss(params: Tree, batch: Tree) -> Array:
        x = batch["images"]
        for block, (convolutions, _) in enumerate(blocks, 1):
            for i in range(1, convolutions + 1):
                with named_scope(f"block{block}_conv{i}"):
                    weights = params[f"block{block}_conv{i}"]
                    x = jax.nn.relu(conv(weights["kernel"], x) + weights["bias"])
            with named_scope(f"block{block}_pool"):
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(batch_size, -1)
        for layer in "fc1", "fc2":
            with named_scope(layer):
                x = jax.nn.relu(dense(params[layer], x))
        with named_scope("predictions"):
            logits = dense(params["predictions"], x)
        with named_scope("loss"):
            return cross_entropy(logits, batch["labels"])

    batch = {"images": floats(batch_size, image, image, 3), "labels": integers(batch_size)}
    depth = sum(convolutions for convolutions, _ in blocks) + 3
    description = f"VGG of {depth} layers, {image}x{image} images"
    return Model(name, description, "arXiv 1409.1556", init, loss, batch, batch_size)


# T5.

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
    """Returns a T5 encoder-decoder; the defaults are T5-base (arXiv 1910.10683, section 3.1.1).

    T5-3B and T5-11B are in section 3.7. As in T5, scores are not scaled, one table per stack gives
    the relative-position bias of all its self-attentions, and one embedding serves both inputs and,
    scaled by `d_model**-0.5`, the softmax. Unlike in T5, feed-forward layers and normalisations
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
    return Model(name, description, "arXiv 1910.10683", init, loss, batch, batch_size)


def position_bias(table: Array, tokens: int, causal: bool) -> Array:
    """Returns T5's relative-position bias (heads, tokens, tokens), and the causal mask in it.

    Half of the buckets are for one distance each, the others grow logarithmically; the last one has
    all from `POSITION_MAX_DISTANCE` on (arXiv 1910.10683, section 2.1). Where both directions are
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


# BERT.


def bert(
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    intermediate: int = 4096,
    vocab: int = 30522,
    positions: int = 512,
    tokens: int = 512,
    predictions: int = 76,
    batch_size: int = 64,
    name: str = "bert",
) -> Model:
    """Returns BERT with its two pre-training losses; the defaults are BERT-large.

    Sizes are those of arXiv 1810.04805, section 3, and of its released uncased vocabulary. As in
    the released code, only the masked positions, 15 % of 512, go through the vocabulary's softmax.

    Args:
        layers: Encoder layers.
        hidden: Residual width.
        heads: Attention heads.
        intermediate: Hidden width of the feed-forward blocks.
        vocab: Size of the vocabulary.
        positions: Rows of the position table, at least `tokens`.
        tokens: Length of a sequence.
        predictions: Masked positions of a sequence.
        batch_size: Sequences in a batch.
        name: Instance name.
    """

    def init() -> Tree:
        encoder = {
            f"layer_{i}": {
                "self": {key: dense_shapes(hidden, hidden) for key in "qkvo"},
                "self_norm": norm_shapes(hidden),
                "ffn_norm": norm_shapes(hidden),
                **ffn_shapes(hidden, intermediate),
            }
            for i in range(layers)
        }
        embeddings = {
            "words": floats(vocab, hidden),
            "positions": floats(positions, hidden),
            "types": floats(2, hidden),
            "norm": norm_shapes(hidden),
        }
        return {
            "embeddings": embeddings,
            "encoder": encoder,
            "pooler": dense_shapes(hidden, hidden),
            "next_sentence": dense_shapes(hidden, 2),
            "mlm": {
                **dense_shapes(hidden, hidden),
                "norm": norm_shapes(hidden),
                "output_bias": floats(vocab),
            },
        }

    def loss(params: Tree, batch: Tree) -> Array:
        tables, norm = params["embeddings"], partial(layer_norm, epsilon=1e-12)
        with named_scope("embeddings"):
            x = embed(tables["words"], batch["input_ids"]) + tables["positions"][:tokens]
            x = norm(tables["norm"], x + embed(tables["types"], batch["token_type_ids"]))
        with named_scope("encoder"):
            bias = (1.0 - batch["attention_mask"].astype(jnp.float32))[:, None, None, :] * MASKED
            for i in range(layers):
                weights = params["encoder"][f"layer_{i}"]
                with named_scope(f"layer_{i}"):
                    with named_scope("self"):
                        y = attention(weights["self"], x, x, heads, bias, (hidden // heads) ** -0.5)
                        x = norm(weights["self_norm"], x + y)
                    with named_scope("ffn"):
                        x = norm(weights["ffn_norm"], x + feed_forward(weights, x, jax.nn.gelu))
        with named_scope("next_sentence"):
            pooled = jnp.tanh(dense(params["pooler"], x[:, 0]))
            logits = dense(params["next_sentence"], pooled)
            sentence_loss = cross_entropy(logits, batch["nsp_labels"])
        with named_scope("mlm"):
            masked = jnp.take_along_axis(
                x, batch["mlm_positions"][..., None], axis=1, mode="clip"
            )
            y = norm(params["mlm"]["norm"], jax.nn.gelu(dense(params["mlm"], masked)))
            logits = jnp.einsum("bth,vh->btv", y, tables["words"]) + params["mlm"]["output_bias"]
            return cross_entropy(logits, batch["mlm_labels"]) + sentence_loss

    sequences = "input_ids", "token_type_ids", "attention_mask"
    batch = {
        **{key: integers(batch_size, tokens) for key in sequences},
        **{key: integers(batch_size, predictions) for key in ("mlm_positions", "mlm_labels")},
        "nsp_labels": integers(batch_size),
    }
    description = f"BERT, {layers} layers, width {hidden}, FFN {intermediate}, {heads} heads"
    return Model(name, description, "arXiv 1810.04805", init, loss, batch, batch_size)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        vgg(name="vgg-19"),
        t5(name="t5-base"),
        t5(24, 1024, 16384, 32, 128, name="t5-3b"),
        t5(24, 1024, 65536, 128, 128, name="t5-11b"),
        bert(48, name="bert-48"),
    )
}
"""The shipped models, by instance name."""
