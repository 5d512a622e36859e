"""Tiny JAX functions, about one for each primitive: what an HLO reader may meet."""
# ruff: noqa: SIM905 (lists of words are easier to read as one string)

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from single_ops import complexes, convolve, ints, shape

uints = partial(shape, dtype=jnp.uint32)
bools = partial(shape, dtype=jnp.bool_)
halves = partial(shape, dtype=jnp.bfloat16)

X = shape(6, 10)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def case(name: str, function: Callable[..., Any], *args: Any) -> None:
    """Adds a function and its arguments' shapes to the table."""
    assert name not in CASES
    CASES[name] = function, args


for key in (
    "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 "
    "expm1 floor integer_pow is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh "
    "sqrt square tan tanh"
).split():
    function = getattr(lax, key)
    case(key, partial(function, y=5) if key == "integer_pow" else function, X)
for key in "add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub".split():
    case(key, getattr(lax, key), X, X)
for key in (
    "bitwise_and bitwise_or bitwise_xor div max min mul rem shift_left shift_right_arithmetic "
    "shift_right_logical sub"
).split():
    case(f"int_{key}", getattr(lax, key), ints(6, 10), ints(6, 10))
for key in "abs bitwise_not clz neg population_count sign".split():
    case(f"int_{key}", getattr(lax, key), ints(6, 10))
case("int_pow", lambda x: x**3, ints(6, 10))
case("bool_logic", lambda a, b: (a & b) | ~a ^ b, bools(9), bools(9))
case("clamp", lambda x: lax.clamp(-1.0, x, 1.0), X)
case("select_n", lambda p, a, b: lax.select(p, a, b), bools(6, 10), X, X)
case("where_scalar", lambda x: jnp.where(x > 0, x, 0.0), X)
case("complex", lambda a, b: lax.complex(a, b) * lax.complex(b, a), X, X)
case("complex_parts", lambda z: lax.real(z) + lax.imag(z) + abs(z), complexes(5, 7))
case("complex_exp", lambda z: jnp.exp(lax.conj(z)), complexes(5, 7))
case("complex_dot", lambda a, b: a @ b, complexes(5, 7), complexes(7, 3))
case("convert", lambda x: x.astype(jnp.bfloat16), X)
case("convert_int", lambda x: x.astype(jnp.int8), X)
case("bitcast_convert", lambda x: lax.bitcast_convert_type(x, jnp.int32), X)
case("bitcast_convert_wider", lambda x: lax.bitcast_convert_type(x, jnp.uint8), X)
case("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), X)
case("stop_gradient", lambda x: lax.stop_gradient(x) + 1, X)

# Data movement.
case("broadcast", lambda x: jnp.broadcast_to(x, (4, 6, 10)), X)
case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (6, 3, 10), (0, 2)), X)
case("expand_dims", lambda x: x[:, None], X)
case("concatenate", lambda a, b: jnp.concatenate([a, b, a], 1), X, shape(6, 3))
case("iota", lambda x: x + lax.broadcasted_iota(jnp.float32, (6, 10), 1), X)
case("pad", lambda x: lax.pad(x, 0.0, [(1, 2, 0), (0, 3, 1)]), X)
case("pad_negative", lambda x: lax.pad(x, 0.0, [(-1, 2, 0), (0, -3, 1)]), X)
case("reshape", lambda x: x.reshape(3, 4, 5), X)
case("rev", lambda x: lax.rev(x, (0,)), X)
case("slice", lambda x: x[1:4, ::3], X)
case("slice_gradient", jax.grad(lambda x: jnp.sum(x[1:4, ::3] ** 2)), X)
case("squeeze", lambda x: x[:, 0], shape(6, 1, 10))
case("transpose", lambda x: x.T, X)
case("transpose_3d", lambda x: x.transpose(2, 0, 1), shape(3, 4, 5))
case("transpose_of_ones", lambda x: x.transpose(1, 0, 2), shape(1, 4, 5))
case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 10)), X, ints())
case("dynamic_index", lambda x, i: lax.dynamic_index_in_dim(x, i), X, ints())
case(
    "dynamic_update_slice",
    lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 1)),
    X,
    shape(2, 3),
    ints(),
)
case("copy", lambda x: lax.optimization_barrier(jnp.copy(x)) * 2, X)
case("optimization_barrier", lambda x, y: lax.optimization_barrier((x * 2, y + 1)), X, X)

# Gather and scatter.
TABLE, PLACES = shape(20, 8), ints(3, 5)
UPDATES = shape(3, 5, 8)
case("take", lambda t, i: jnp.take(t, i, axis=0), TABLE, PLACES)
case("take_clip", lambda t, i: jnp.take(t, i, axis=0, mode="clip"), TABLE, PLACES)
case("take_gradient", jax.grad(lambda t, i: jnp.sum(t[i] ** 2)), TABLE, PLACES)
case("take_along_axis", lambda t, i: jnp.take_along_axis(t, i, 1), shape(3, 8), PLACES)
case("gather_batched", jax.vmap(lambda t, i: t[i]), shape(3, 20, 8), PLACES)
case("scatter", lambda t, i, u: t.at[i].set(u), TABLE, PLACES, UPDATES)
case("scatter_add", lambda t, i, u: t.at[i].add(u), TABLE, PLACES, UPDATES)
case("scatter_mul", lambda t, i, u: t.at[i].mul(u), TABLE, PLACES, UPDATES)
case("scatter_min", lambda t, i, u: t.at[i].min(u), TABLE, PLACES, UPDATES)
case("scatter_batched", jax.vmap(lambda t, i, u: t.at[i].add(u)), shape(3, 20, 8), PLACES, UPDATES)
case("one_hot", lambda i: jax.nn.one_hot(i, 7), PLACES)

# Products.
case("dot", lambda a, b: a @ b, X, shape(10, 7))
case("dot_vector", lambda a, b: a @ b, shape(10), shape(10))
case("dot_batch", lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b), *[shape(2, 3, 5, 7)] * 2)
case("dot_two", lambda a, b: jnp.einsum("abc,cbd->ad", a, b), shape(2, 3, 4), shape(4, 3, 6))
case("dot_outer", lambda a, b: jnp.einsum("a,b->ab", a, b), shape(4), shape(6))
case(
    "dot_half",
    lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32),
    halves(4, 6),
    halves(6, 3),
)
case("dot_gradient", jax.grad(lambda a, b: jnp.sum((a @ b) ** 2), (0, 1)), X, shape(10, 7))


def squared(function: Callable[..., Any], *args: Any) -> Any:
    """Returns the sum of squares of a function's result."""
    return jnp.sum(function(*args) ** 2)


IMAGES, KERNEL = shape(2, 9, 8, 4), shape(3, 3, 4, 6)
case("conv", convolve(), IMAGES, KERNEL)
case("conv_valid", convolve(padding="VALID"), IMAGES, KERNEL)
case("conv_stride", convolve(window_strides=(2, 3)), IMAGES, KERNEL)
case("conv_padding", convolve(padding=((3, 1), (0, 4))), IMAGES, KERNEL)
case("conv_negative_padding", convolve(padding=((-1, 1), (0, -2))), IMAGES, KERNEL)
case("conv_dilated", convolve(rhs_dilation=(2, 3)), IMAGES, KERNEL)
case("conv_input_dilated", convolve(lhs_dilation=(2, 3), padding=((2, 2), (2, 1))), IMAGES, KERNEL)
case(
    "conv_all",
    convolve(
        lhs_dilation=(2, 3), rhs_dilation=(3, 2), window_strides=(3, 2), padding=((4, 3), (0, 2))
    ),
    IMAGES,
    KERNEL,
)
case("conv_groups", convolve(feature_group_count=2), IMAGES, shape(3, 3, 2, 6))
case("conv_depthwise", convolve(feature_group_count=4), IMAGES, shape(3, 3, 1, 8))
case("conv_batch_groups", convolve(batch_group_count=2), IMAGES, KERNEL)
case(
    "conv_1d",
    lambda x, k: lax.conv_general_dilated(x, k, (2,), "SAME"),
    shape(2, 3, 9),
    shape(5, 3, 4),
)
case(
    "conv_3d",
    lambda x, k: lax.conv(x, k, (1, 2, 1), "SAME"),
    shape(1, 2, 5, 6, 7),
    shape(3, 2, 3, 3, 3),
)
case(
    "conv_transpose",
    lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
    IMAGES,
    shape(3, 3, 4, 6),
)
for key, options in {
    "": {},
    "_stride": {"window_strides": (2, 3)},
    "_groups": {"feature_group_count": 2},
    "_dilated": {"rhs_dilation": (2, 1)},
}.items():
    kernel = shape(3, 3, 2, 6) if "groups" in key else KERNEL
    case(
        f"conv_gradient{key}",
        jax.grad(partial(squared, convolve(**options)), (0, 1)),
        IMAGES,
        kernel,
    )

# Reductions and windows.
case("reduce_sum", lambda x: x.sum(1), X)
case("reduce_all", lambda x: x.sum(), X)
case("reduce_max", lambda x: x.max(0), X)
case("reduce_prod", lambda x: x.prod(0), X)
case("reduce_and", lambda x: x.all(1), bools(6, 10))
case("reduce_nothing", lambda x: lax.reduce(x, 0.0, lax.add, (1,)), shape(6, 1))
case("reduce_custom", lambda x: lax.reduce(x, 0.0, lambda a, b: a * b + a, (1,)), X)
case("argmax", lambda x: x.argmax(1), X)
case("argmin", lambda x: x.argmin(0), X)
case("mean_gradient", jax.grad(lambda x: jnp.square(x.mean(0)).sum()), X)
case("softmax", jax.nn.softmax, X)
case("logsumexp", jax.nn.logsumexp, X)
POOL = (1, 2, 2, 1)
case("max_pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, POOL, POOL, "VALID"), IMAGES)
case(
    "max_pool_same",
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), POOL, "SAME"),
    IMAGES,
)
case(
    "avg_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), POOL, "SAME") / 9, IMAGES
)
case(
    "max_pool_gradient",
    jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, POOL, POOL, "VALID").sum()),
    IMAGES,
)
case(
    "avg_pool_gradient",
    jax.grad(lambda x: lax.reduce_window(x, 0.0, lax.add, POOL, POOL, "VALID").sum()),
    IMAGES,
)
case("cumsum", lambda x: jnp.cumsum(x, 1), X)
case("cumsum_long", lambda x: jnp.cumsum(x), shape(1000))
case("cumprod", lambda x: jnp.cumprod(x, 0), X)
case("cummax", lambda x: lax.cummax(x, 1), X)
case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), X)
case("cumsum_reverse", lambda x: lax.cumsum(x, 1, reverse=True), X)
case("sort", lambda x: jnp.sort(x, 1), X)
case("sort_pairs", lambda x, y: lax.sort((x, y), num_keys=1), X, X)
case("argsort", lambda x: jnp.argsort(x, 0), X)
case("top_k", lambda x: lax.top_k(x, 3), X)
case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), shape(16))

# Linear algebra.
case("fft", lambda x: jnp.fft.fft(x), complexes(4, 16))
case("fft_2d", lambda x: jnp.fft.fft2(x), complexes(3, 8, 16))
case("rfft", lambda x: jnp.fft.rfft(x), shape(4, 16))
case("irfft", lambda x: jnp.fft.irfft(x), complexes(4, 9))
case("fft_odd", lambda x: jnp.fft.fft(x), complexes(4, 12))
case("cholesky", lax.linalg.cholesky, shape(2, 5, 5))
case(
    "triangular_solve",
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    shape(2, 5, 5),
    shape(2, 5, 3),
)
case(
    "triangular_solve_right",
    lambda a, b: lax.linalg.triangular_solve(a, b),
    shape(5, 5),
    shape(3, 5),
)

# Control flow and calls.
case("cond", lambda p, x: lax.cond(p > 0, lambda y: y @ y.T, lambda y: y[:, :6] * 2, x), shape(), X)
case(
    "switch",
    lambda i, x: lax.switch(i, [jnp.tanh, lambda y: y * y + y, jnp.negative], x),
    ints(),
    X,
)
case("vmap", jax.vmap(lambda a, b: a @ b), shape(4, 3, 5), shape(4, 5))
case("map_one", lambda x: lax.map(lambda r: r * 2, x), shape(1, 10))
case("jit_nested", lambda x: jax.jit(jax.jit(jnp.tanh))(x) + jax.jit(jnp.square)(x), X)
case("custom_jvp", jax.grad(lambda x: jax.nn.relu(x).sum()), X)
case("custom_jvp_gelu", jax.grad(lambda x: jax.nn.gelu(x).sum()), X)
case("remat", jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ x.T).sum())), X)
case("silu", jax.nn.silu, X)
case("gelu_exact", lambda x: jax.nn.gelu(x, approximate=False), X)
case(
    "layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True)), X
)
case("batch_norm_grad", jax.grad(lambda x: jax.nn.standardize(x, 0).sum()), X)
case("rng_uniform", lambda k: jax.random.uniform(k, (7, 3)), uints(2))
case("rng_split", lambda k: jax.random.split(k, 3), uints(2))
case("rng_bit_generator", lambda k: lax.rng_bit_generator(k, (7, 3)), uints(4))
case(
    "dropout", lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x * 2, 0), uints(2), X
)
case("identity", lambda x: x, X)
case(
    "int8_dot",
    lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
    shape(4, 6, dtype=jnp.int8),
    shape(6, 2, dtype=jnp.int8),
)
case("float8", lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), X)
case("int4", lambda x: x.astype(jnp.int4) + jnp.int4(1), X)
