"""Transformers written with loops over layers, and the same ones written out. Needs JAX."""

import jax
import jax.numpy as jnp
from jax import lax

LAYERS, BATCH, LENGTH, WIDTH = 6, 4, 8, 16
SHAPES = {
    "scale": (WIDTH,), "q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH),
    "o": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "bias": (4 * WIDTH,), "down": (4 * WIDTH, WIDTH),
}  # fmt: skip


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


HEAD = {"embedding": shape(32, WIDTH), "output": shape(WIDTH, 32)}
STACKED = {**HEAD, "layers": {k: shape(LAYERS, *s) for k, s in SHAPES.items()}}
LISTED = {**HEAD, "layers": [{k: shape(*s) for k, s in SHAPES.items()}] * LAYERS}
TOKENS = shape(BATCH, LENGTH, dtype=jnp.int32)


def block(x, p):
    with jax.named_scope("attention"):
        h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)) * p["scale"]
        q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
        weights = jax.nn.softmax(jnp.einsum("bsd,btd->bst", q, k))
        x = x + jnp.einsum("bst,btd->bsd", weights, v) @ p["o"]
    with jax.named_scope("mlp"):
        return x + jax.nn.gelu(x @ p["up"] + p["bias"]) @ p["down"]


def cast(x, p):
    """A block in half precision, with variables that are cast in it."""
    return block(x, jax.tree.map(lambda a: a.astype(jnp.bfloat16), p)).astype(x.dtype)


def recurrent(x, p):
    """A layer that is a loop over time."""

    def step(state, row):
        state = jnp.tanh(row @ p["q"] + state @ p["k"])
        return state, state

    _, rows = lax.scan(step, jnp.zeros((BATCH, WIDTH)), x.swapaxes(0, 1))
    return x + rows.swapaxes(0, 1)


def scanned(body=block, **options):
    return lambda x, layers: lax.scan(lambda h, p: (body(h, p), None), x, layers, **options)[0]


def in_groups(x, layers):
    layers = jax.tree.map(lambda a: a.reshape(2, LAYERS // 2, *a.shape[1:]), layers)
    return lax.scan(lambda h, group: (scanned()(h, group), None), x, layers)[0]


def indexed(x, layers):
    def body(i, h):
        pick = lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False)  # noqa: E731
        return block(h, jax.tree.map(pick, layers))

    return lax.fori_loop(0, LAYERS, body, x)


def counted(x, layers):
    """A scan over the layers' numbers."""

    def body(h, i):
        return block(h, jax.tree.map(lambda a: a[i], layers)), None

    return lax.scan(body, x, jnp.arange(LAYERS))[0]


def cast_before(x, layers):
    layers = jax.tree.map(lambda a: a.astype(jnp.bfloat16), layers)
    return scanned()(x.astype(jnp.bfloat16), layers).astype(x.dtype)


def cast_apart(x, layers):
    for p in layers:
        x = block(x.astype(jnp.bfloat16), jax.tree.map(lambda a: a.astype(jnp.bfloat16), p))
    return x.astype(jnp.float32)


def joined(x, layers):
    return scanned()(x, jax.tree.map(lambda *a: jnp.stack(a), *layers))


def read_later(x, layers):
    """A result of every iteration is read after the loop."""
    x, rows = lax.scan(lambda h, p: ((new := block(h, p)), new @ p["o"]), x, layers)
    return x + rows.mean(0)


def read_later_apart(x, layers):
    rows = []
    for p in layers:
        x = block(x, p)
        rows.append(x @ p["o"])
    return x + jnp.stack(rows).mean(0)


def apart(body=block, order=1):
    def through(x, layers):
        for p in layers[::order]:
            x = body(x, p)
        return x

    return through


def loss(through):
    def function(params, tokens):
        x = through(params["embedding"][tokens], params["layers"])
        return jnp.mean(jax.nn.log_softmax(x @ params["output"])[:, :, 0])

    return function


def step(function):
    """A training step by gradient descent."""

    def train(params, tokens):
        gradients = jax.grad(function)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    return train


def accumulated(function):
    """A training step that sums the gradients of micro-batches in a loop."""

    def train(params, batches):
        def body(total, tokens):
            return jax.tree.map(jnp.add, total, jax.grad(function)(params, tokens)), None

        total, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, params), batches)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)

    return train


PAIRS = {
    "scan": (scanned(), apart()),
    "reverse": (scanned(reverse=True), apart(order=-1)),
    "two at a time": (scanned(unroll=2), apart()),
    "four at a time": (scanned(unroll=4), apart()),
    "fori_loop": (indexed, apart()),
    "numbers": (counted, apart()),
    "groups": (in_groups, apart()),
    "rematerialized": (scanned(jax.checkpoint(block)), apart(jax.checkpoint(block))),
    "cast inside": (scanned(cast), apart(cast)),
    "cast before": (cast_before, cast_apart),
    "joined": (joined, apart()),
    "read later": (read_later, read_later_apart),
    "recurrent": (scanned(recurrent), apart(recurrent)),
}
"""Name -> the layers written as a loop, and written out."""
