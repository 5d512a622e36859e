"""Tiny JAX functions around one HLO instruction each, with even sizes, for shardy.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

OPS: dict[str, dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
"""Functions and the shapes of their arguments, by opcode and by what is special about them."""


def op(opcode: str, name: str, function: Callable[..., Any], *args: Any) -> None:
    """Adds a function to the table."""
    group = OPS.setdefault(opcode, {})
    assert name not in group, (opcode, name)
    group[name] = function, args


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape of an argument."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def gradient(function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """Gradient of a sum of squares by the first arguments."""
    return jax.grad(lambda *args: jnp.sum(function(*args) ** 2), tuple(range(count)))


ints = partial(shape, dtype=jnp.int32)
words = partial(shape, dtype=jnp.uint32)
complexes = partial(shape, dtype=jnp.complex64)
X, CUBE = shape(4, 6), shape(4, 6, 8)

# Elementwise instructions.
op("add", "two arrays", lax.add, X, X)
op("add", "one array twice", lambda x: x + x, X)
op("add", "an array and its transpose", lambda x: x + x.T, shape(4, 4))
op("clamp", "by arrays", lax.clamp, X, X, X)
op("clamp", "by numbers", lax.clamp, shape(), X, shape())
op("compare", "two arrays", lax.lt, X, X)
op("select", "by an array", lax.select, shape(4, 6, dtype=jnp.bool_), X, X)
op("select", "by a number", lambda p, a, b: lax.select_n(p > 0, a, b), shape(), X, X)
op("convert", "to 16 bits", lambda x: x.astype(jnp.bfloat16), X)
op("reduce-precision", "to 16 bits", lambda x: lax.reduce_precision(x, 8, 7), X)
op("complex", "of two parts", lax.complex, X, X)
op("real", "and imag", lambda z: (lax.real(z), lax.imag(z)), complexes(4, 6))
op("bitcast-convert", "same width", lambda x: lax.bitcast_convert_type(x, jnp.int32), X)
op("bitcast-convert", "to bytes", lambda x: lax.bitcast_convert_type(x, jnp.uint8), X)
op(
    "bitcast-convert",
    "from bytes",
    lambda x: lax.bitcast_convert_type(x, jnp.float32),
    shape(6, 4, dtype=jnp.uint8),
)
op("opt-barrier", "two arrays", lambda a, b: lax.optimization_barrier((a * 2, b)), X, X)
op("iota", "added", lambda x: x + lax.broadcasted_iota(x.dtype, (4, 6), 1), X)

# Shapes.
op("broadcast", "in front", lambda x: jnp.broadcast_to(x, (8, 4, 6)), X)
op("broadcast", "in between", lambda x: lax.broadcast_in_dim(x, (4, 2, 6), (0, 2)), X)
op("broadcast", "against an array", lambda a, b: a + b, X, shape(6))
op("broadcast", "size 1", lambda a, b: a + b, shape(4, 1), X)
op("broadcast", "outer", lambda a, b: a[:, None] * b, shape(4), shape(6))
op("transpose", "two", jnp.transpose, X)
op("transpose", "three", lambda x: x.transpose(2, 0, 1), CUBE)
op("reshape", "split", lambda x: x.reshape(4, 2, 4), shape(4, 8))
op("reshape", "merge", lambda x: x.reshape(24, 8), CUBE)
op("reshape", "merge all", lambda x: x.reshape(-1), CUBE)
op("reshape", "across", lambda x: x.reshape(8, 6), shape(12, 4))
op("reshape", "across and back", lambda x: x.reshape(2, 8, 4), shape(4, 4, 4))
op("reshape", "ones", lambda x: x.reshape(4, 1, 6, 1), X)
op("reshape", "heads", lambda x: x.reshape(2, 4, 4, 2).transpose(0, 2, 1, 3), shape(2, 4, 8))
op("concatenate", "two", lambda a, b: jnp.concatenate([a, b], 1), X, shape(4, 2))
op("concatenate", "one array twice", lambda a, b: jnp.concatenate([a, b, a]), X, X)
op("slice", "rows", lambda x: x[:2], X)
op("slice", "stride", lambda x: x[:, ::3], X)
op("slice", "gradient", gradient(lambda x: x[1:3]), X)
op("pad", "edges", lambda x: lax.pad(x, 0.0, [(1, 1, 0), (0, 0, 0)]), X)
op("pad", "interior", lambda x: lax.pad(x, 0.0, [(0, 1, 1), (0, 0, 0)]), X)
op("pad", "negative", lambda x: lax.pad(x, 0.0, [(0, 0, 0), (-1, -1, 0)]), X)
op("pad", "same size", lambda x: lax.pad(x, 0.0, [(0, 0, 0), (-2, 2, 0)]), X)
op("reverse", "rows", lambda x: x[::-1], X)
op("reverse", "both", lambda x: lax.rev(x * 2, (0, 1)), X)
op("dynamic-slice", "rows", lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 6)), X, ints())
op("dynamic-slice", "one row", lax.dynamic_index_in_dim, X, ints())
op("dynamic-slice", "whole", lambda x, i: lax.dynamic_slice(x, (i, i), (4, 6)), X, ints())
op(
    "dynamic-update-slice",
    "rows",
    lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)),
    *(X, shape(2, 6), ints()),
)
op(
    "dynamic-update-slice",
    "one row",
    lambda x, y, i: lax.dynamic_update_index_in_dim(x, y, i, 0),
    *(X, shape(6), ints()),
)
op(
    "dynamic-update-slice",
    "cache",
    lambda x, y, i: lax.dynamic_update_slice(x, y, (0, i, 0)),
    *(CUBE, shape(4, 2, 8), ints()),
)


# Gather and scatter.
def gather(
    offset: Iterable[int],
    collapsed: Iterable[int],
    start: Iterable[int],
    sizes: Iterable[int],
    batching: Iterable[int] = (),
) -> Callable[..., Any]:
    """A bare gather, with no clipping of the indices around it."""
    numbers = lax.GatherDimensionNumbers(
        tuple(offset), tuple(collapsed), tuple(start), tuple(batching), tuple(batching)
    )
    return lambda x, i: lax.gather(x, i, numbers, tuple(sizes), mode="promise_in_bounds")


def scatter(
    window: Iterable[int],
    inserted: Iterable[int],
    start: Iterable[int],
    batching: Iterable[int] = (),
    how: Callable[..., Any] = lax.scatter_add,
) -> Callable[..., Any]:
    """A bare scatter."""
    numbers = lax.ScatterDimensionNumbers(
        tuple(window), tuple(inserted), tuple(start), tuple(batching), tuple(batching)
    )
    return lambda x, i, u: how(x, i, u, numbers, mode="promise_in_bounds")


TABLE, PLACES = shape(10, 8), ints(4, 6, 1)
op("gather", "rows", gather([2], [0], [0], [1, 8]), TABLE, PLACES)
op("gather", "columns", gather([2], [1], [1], [10, 1]), TABLE, PLACES)
op("gather", "parts of rows", gather([2], [0], [0], [1, 4]), TABLE, PLACES)
op("gather", "windows", gather([1, 2], [], [0], [2, 8]), TABLE, ints(4, 1))
op("gather", "points", gather([], [0, 1], [0, 1], [1, 1]), TABLE, ints(4, 6, 2))
op("gather", "points, two index arrays", lambda x, i, j: x[i, j], TABLE, ints(4), ints(4))
op("gather", "batch", gather([2], [1], [1], [1, 1, 8], [0]), shape(4, 10, 8), PLACES)
op("gather", "take", lambda x, i: jnp.take(x, i, axis=0), TABLE, ints(4, 6))
op("gather", "take along", lambda x, i: jnp.take_along_axis(x, i, 1), X, ints(4, 2))
op("gather", "gradient", gradient(gather([2], [0], [0], [1, 8])), TABLE, PLACES)
UPDATES = shape(4, 6, 8)
for key, how in {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
    "set": lax.scatter,
}.items():
    op("scatter", key, scatter([2], [0], [0], how=how), TABLE, PLACES, UPDATES)
op("scatter", "columns", scatter([2], [1], [1]), TABLE, PLACES, shape(4, 6, 10))
op("scatter", "parts of rows", scatter([2], [0], [0]), TABLE, PLACES, shape(4, 6, 4))
op("scatter", "windows", scatter([1, 2], [], [0]), TABLE, ints(4, 1), shape(4, 2, 8))
op("scatter", "points", scatter([], [0, 1], [0, 1]), TABLE, ints(4, 6, 2), X)
op("scatter", "batch", scatter([2], [1], [1], [0]), shape(4, 10, 8), PLACES, UPDATES)
op("scatter", "at", lambda x, i, u: x.at[i].add(u), TABLE, ints(4), shape(4, 8))
op(
    "scatter",
    "gradient",
    lambda x, i, u: gradient(lambda a, b: scatter([2], [0], [0])(a, i, b), 2)(x, u),
    *(TABLE, PLACES, UPDATES),
)

# Products.
op("dot", "matrices", lambda a, b: a @ b, X, shape(6, 8))
op("dot", "vectors", jnp.dot, shape(6), shape(6))
op("dot", "batch", lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b), *[shape(2, 4, 6, 8)] * 2)
op("dot", "two contracted", lambda a, b: jnp.einsum("abc,cbd->ad", a, b), CUBE, shape(8, 6, 2))
op("dot", "outer", lambda a, b: jnp.einsum("a,b->ab", a, b), shape(4), shape(6))
op("dot", "with itself", lambda x: x @ x.T, X)
op("dot", "a square with itself", lambda x: x @ x, shape(4, 4))
op("dot", "a chain of one matrix", lambda x, w: x @ w @ w, X, shape(6, 6))
op("dot", "three", lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), X, shape(6, 8), shape(8, 2))
op("dot", "gradient", gradient(lambda a, b: a @ b, 2), X, shape(6, 8))


def convolve(**options: Any) -> Callable[..., Any]:
    """A 2-D convolution of NHWC images with an HWIO kernel."""
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=numbers, **options)


IMAGES, KERNEL = shape(4, 8, 8, 4), shape(3, 3, 4, 6)
for key, options, kernel in (
    ("same", {}, KERNEL),
    ("stride", {"window_strides": (2, 2)}, KERNEL),
    ("1x1", {}, shape(1, 1, 4, 6)),
    ("even kernel", {"padding": "VALID"}, shape(2, 2, 4, 6)),
    ("dilated", {"rhs_dilation": (2, 2)}, KERNEL),
    ("dilated input", {"lhs_dilation": (2, 2), "padding": ((2, 2), (2, 1))}, KERNEL),
    ("groups", {"feature_group_count": 2}, shape(3, 3, 2, 8)),
    ("depthwise", {"feature_group_count": 4}, shape(3, 3, 1, 8)),
    ("batch groups", {"batch_group_count": 2}, KERNEL),
):
    op("convolution", key, convolve(**options), IMAGES, kernel)
    if "batch" not in key:
        op("convolution", f"{key}, gradient", gradient(convolve(**options), 2), IMAGES, kernel)
op(
    "convolution",
    "1-D",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"),
    *(shape(2, 4, 8), shape(6, 4, 3)),
)

# Reductions and windows.
op("reduce", "sum", lambda x: x.sum(1), CUBE)
op("reduce", "max of two dimensions", lambda x: x.max((0, 2)), CUBE)
op("reduce", "all", jnp.sum, X)
op("reduce", "argmax", lambda x: x.argmax(1), CUBE)
op("reduce", "and", lambda x: x.all(0), shape(4, 6, dtype=jnp.bool_))
op("reduce", "custom", lambda x: lax.reduce(x, 0.0, lambda a, b: a * b + a, (1,)), X)
op(
    "reduce",
    "two arrays",
    lambda a, b: lax.reduce(
        (a, b), (0.0, 1.0), lambda x, y: (x[0] + y[0], jnp.maximum(x[1], y[1])), (1,)
    ),
    *(CUBE, CUBE),
)
op("reduce", "softmax", jax.nn.softmax, X)
op("reduce", "gradient", gradient(lambda x: x.max(1)), X)
POOL = (1, 2, 2, 1)


def pool(how: Callable[..., Any], start: float, size: tuple[int, ...] = POOL) -> Callable[..., Any]:
    """A reduction over windows of NHWC images with stride 2."""
    return lambda x: lax.reduce_window(x, start, how, size, POOL, "SAME")


op("reduce-window", "max pool", pool(lax.max, -jnp.inf), IMAGES)
op("reduce-window", "overlapping", pool(lax.max, -jnp.inf, (1, 3, 3, 1)), IMAGES)
op("reduce-window", "average pool", pool(lax.add, 0.0), IMAGES)
op("reduce-window", "average pool, gradient", gradient(pool(lax.add, 0.0)), IMAGES)
op("reduce-window", "cumsum", lambda x: jnp.cumsum(x, 1), X)
op("reduce-window", "cumsum, reverse", lambda x: lax.cumsum(x, 0, reverse=True), X)
op("reduce-window", "cumsum, gradient", gradient(lambda x: jnp.cumsum(x, 1)), X)
op("reduce-window", "cumprod", lambda x: jnp.cumprod(x, 0), X)
op("reduce-window", "cummax", lambda x: lax.cummax(x, 1), X)
op("reduce-window", "cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), X)
op("select-and-scatter", "max pool", gradient(pool(lax.max, -jnp.inf)), IMAGES)
op("select-and-scatter", "overlapping", gradient(pool(lax.max, -jnp.inf, (1, 3, 3, 1))), IMAGES)
op("sort", "rows", lambda x: jnp.sort(x, 0), X)
op("sort", "pairs", lambda x, y: lax.sort((x, y), num_keys=1), X, X)
op("sort", "argsort", lambda x: jnp.argsort(x, 1), X)
op("sort", "one dimension", lambda x: jnp.sort(x * 2), shape(6))
op("topk", "rows", lambda x: lax.top_k(x, 2), CUBE)
op("topk", "gradient", gradient(lambda x: lax.top_k(x, 2)[0]), X)


# Linear algebra.
class On:
    """Lowers a function for another platform than this one's, which has other custom calls."""

    def __init__(self, platform: str, function: Callable[..., Any]) -> None:
        self.platform, self.function = platform, function

    def lower(self, *args: Any) -> Any:
        """Lower the function like ``jax.jit(function).lower``."""
        traced = jax.jit(self.function, keep_unused=True).trace(*args)
        return traced.lower(lowering_platforms=(self.platform,))


SQUARES, SIDES = shape(4, 6, 6), shape(4, 6, 8)
op("fft", "last", jnp.fft.fft, complexes(4, 8))
op("fft", "last two", jnp.fft.fft2, complexes(4, 8, 8))
op("fft", "real", jnp.fft.rfft, shape(4, 8))
op("fft", "to real", lambda x: jnp.fft.irfft(x, 6), complexes(4, 4))
left = partial(lax.linalg.triangular_solve, left_side=True, lower=True)
LINEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (partial(lax.linalg.cholesky, symmetrize_input=False), (SQUARES,)),
    "left": (left, (SQUARES, SIDES)),
    "transposed": (partial(left, transpose_a=True), (SQUARES, SIDES)),
    "right": (lax.linalg.triangular_solve, (SQUARES, shape(4, 8, 6))),
    "qr": (lambda x: jnp.linalg.qr(x), (SIDES,)),
    "eigh": (partial(lax.linalg.eigh, symmetrize_input=False), (SQUARES,)),
    "eig": (lambda x: lax.linalg.eig(x), (SQUARES,)),
    "svd": (lambda x: lax.linalg.svd(x), (SIDES,)),
    "lu": (lax.linalg.lu, (SQUARES,)),
    "two batches": (lambda x: lax.linalg.eigh(x), (shape(2, 4, 6, 6),)),
    "householder": (lax.linalg.householder_product, (SQUARES, shape(4, 6))),
    "tridiagonal": (lax.linalg.tridiagonal_solve, (*[shape(4, 6)] * 3, SIDES)),
}
for opcode, platform, keys in (
    ("custom-call", "cpu", list(LINEAR)),
    ("custom-call", "cuda", ["cholesky", "qr", "eigh", "svd", "lu", "householder", "tridiagonal"]),
    ("custom-call", "tpu", ["qr", "eigh", "lu", "householder"]),
    ("cholesky", "tpu", ["cholesky"]),
    ("triangular-solve", "tpu", ["left", "transposed", "right"]),
):
    for key in keys:
        op(opcode, f"{key}, {platform}", On(platform, LINEAR[key][0]), *LINEAR[key][1])
op("custom-call", "callback", lambda x: jax.pure_callback(lambda y: y, X, x * 2), X)


# Control flow and calls.
def layer(x: Any, weights: Any) -> tuple[Any, None]:
    """A residual layer, for loops."""
    up, down = weights
    return x + jnp.tanh(x @ up) @ down, None


def stacked(x: Any, up: Any, down: Any) -> Any:
    """A scan over stacked layers."""
    return lax.scan(layer, x, (up, down))[0]


STACK = (X, shape(2, 6, 8), shape(2, 8, 6))
op("while", "scan over layers", stacked, *STACK)
op("while", "scan over layers, gradient", gradient(stacked, 3), *STACK)
op("while", "map", lambda x: lax.map(lambda r: r * 2, x), X)
op(
    "while",
    "fori",
    lambda x, w: lax.fori_loop(0, 4, lambda i, y: jnp.tanh(y @ w), x),
    X,
    shape(6, 6),
)
op("while", "carried sum", lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(6), x), X)
op("while", "condition", lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y * 2, x), X)
op("call", "nested", lambda x, w: jax.jit(jax.jit(jnp.dot))(x, w) * 2, X, shape(6, 8))
op("call", "remat", jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ x.T).sum())), X)
op(
    "conditional",
    "two branches",
    lambda p, x, w: lax.cond(p > 0, lambda y: jnp.tanh(y @ w), lambda y: y, x),
    *(shape(), X, shape(6, 6)),
)
op(
    "conditional",
    "three branches",
    lambda i, x: lax.switch(i, [jnp.tanh, lambda y: y * y + y, jnp.negative], x),
    *(ints(), X),
)
op(
    "rng-bit-generator",
    "bits",
    lambda k, x: lax.rng_bit_generator(k, (4, 6))[1] + x,
    words(4),
    words(4, 6),
)
op("rng-bit-generator", "state and bits", lambda k: lax.rng_bit_generator(k, (4, 6)), words(4))
op("rng", "uniform", lambda a, x: lax.rng_uniform(a, 1.0, (4, 6)) + x, shape(), X)
op("threefry", "bits", lambda k, x: jax.random.bits(k, (4, 6)) + x, words(2), words(4, 6))
