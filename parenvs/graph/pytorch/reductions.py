"""Sums, means, extremes, and what normalizes along a dimension."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations import RANDOM, Operation, operation, register
from parenvs.graph.pytorch.shapes import sort

Dims = int | Sequence[int] | None
Maybe = Array | None


def _axes(dims: Dims) -> tuple[int, ...] | None:
    if isinstance(dims, int):
        return (dims,)
    return tuple(dims) if dims else None


def _reduction(function: Callable[..., Array]) -> Operation:
    def reduce(x: Array, dim: Dims = None, keepdim: bool = False, **how: Any) -> Array:
        return function(x, _axes(dim), keepdims=keepdim, **how)

    return reduce


def _sum_type(x: Array, dtype: Any) -> Any:
    # PyTorch counts whole numbers and booleans in 64 bits.
    if dtype is None and not jnp.issubdtype(x.dtype, jnp.inexact):
        return jax.dtypes.canonicalize_dtype(jnp.int64)
    return dtype


@operation("sum.dim_IntList")
def _sum(x: Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return jnp.sum(x, _axes(dim), dtype=_sum_type(x, dtype), keepdims=keepdim)


def _extreme(*functions: Callable[..., Array]) -> Operation:
    return lambda x, dim, keepdim=False: tuple(f(x, dim, keepdims=keepdim) for f in functions)


def moments(
    x: Array, axes: tuple[int, ...] | None, correction: float = 0, keepdims: bool = True
) -> tuple[Array, Array]:
    """Return the variance and the mean along ``axes``, as PyTorch's ``var_mean``."""
    mean = jnp.mean(x, axes, keepdims=True)
    squares = jnp.square(jnp.abs(x - mean))
    count = x.size // mean.size
    variance = jnp.sum(squares, axes, keepdims=keepdims) / max(count - correction, 0)
    return variance, mean if keepdims else jnp.mean(x, axes)


@operation("var_mean.correction")
def _var_mean(
    x: Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return moments(x, _axes(dim), 1 if correction is None else correction, keepdim)


@operation("linalg_vector_norm")
def _vector_norm(
    x: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    x = x if dtype is None else x.astype(dtype)
    axes = _axes(dim)
    if ord == 2:
        # The inner ``where`` keeps the gradient at 0 finite: sqrt has none there.
        total = jnp.sum(jnp.square(jnp.abs(x)), axes, keepdims=keepdim)
        return jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), 0)
    if ord == 1:
        return jnp.sum(jnp.abs(x), axes, keepdims=keepdim)
    if ord == float("inf"):
        return jnp.max(jnp.abs(x), axes, keepdims=keepdim)
    return jnp.sum(jnp.abs(x) ** ord, axes, keepdims=keepdim) ** (1 / ord)


@operation("cumsum")
def _cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    return jnp.cumsum(x, dim, dtype=_sum_type(x, dtype)) if x.ndim else x


def _ranked(x: Array, rank: int, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The element of a rank along a dimension, and its index."""
    values, indices = sort(x, dim)
    pick = functools.partial(lax.index_in_dim, index=rank, axis=dim % x.ndim, keepdims=keepdim)
    return pick(values), pick(indices)


def _in_float(function: Operation) -> Operation:
    return lambda x, dim, widen=False: function(x.astype(jnp.float32) if widen else x, dim)


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _normalized(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """What has mean 0 and variance 1 along ``axes``, the mean, and 1 over the deviation."""
    x = _wide(x)
    variance, mean = moments(x, axes)
    scale = lax.rsqrt(variance + eps)
    return (x - mean) * scale, mean, scale


@operation("native_layer_norm")
def _layer_norm(
    x: Array, shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    result, mean, scale = _normalized(x, axes, eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


@operation("_fused_rms_norm")
def _rms_norm(
    x: Array, shape: Sequence[int], weight: Maybe = None, eps: float | None = None
) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = _wide(x)
    eps = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axes, keepdims=True) + eps)
    result = wide * scale
    return result if weight is None else result * weight, scale


@operation("native_group_norm")
def _group_norm(
    x: Array,
    weight: Maybe,
    bias: Maybe,
    count: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    split = x.reshape(count, groups, channels // groups, *x.shape[2:])
    result, mean, scale = _normalized(split, tuple(range(2, split.ndim)), eps)
    result = _scaled(result.reshape(x.shape), weight, bias)
    return result, mean.reshape(count, groups), scale.reshape(count, groups)


def _scaled(x: Array, weight: Maybe, bias: Maybe) -> Array:
    over = [1] * (x.ndim - 2)
    x = x if weight is None else x * weight.reshape(-1, *over)
    return x if bias is None else x + bias.reshape(-1, *over)


@operation("_native_batch_norm_legit_functional")
def _batch_norm_training(
    x: Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    if not training:
        result, mean, scale = _batch_norm(x, weight, bias, running_mean, running_var, 0.0, eps)
        return result, mean, scale, running_mean, running_var
    result, mean, scale = _batch_norm_of(x, weight, bias, eps)
    wide = lax.stop_gradient(_wide(x))
    axes = (0, *range(2, x.ndim))
    count = math.prod(x.shape[axis] for axis in axes)
    variance, center = moments(wide, axes, keepdims=False)
    # Running variances are unbiased, the one that normalizes is not.
    variance = variance * (count / max(count - 1, 1))
    new_mean = (1 - momentum) * running_mean + momentum * center
    new_var = (1 - momentum) * running_var + momentum * variance
    return result, mean, scale, new_mean, new_var


@operation("_native_batch_norm_legit_no_training")
def _batch_norm(
    x: Array, weight: Maybe, bias: Maybe, mean: Array, variance: Array, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    over = [1] * (x.ndim - 2)
    scale = lax.rsqrt(_wide(variance) + eps)
    result = (_wide(x) - mean.reshape(-1, *over)) * scale.reshape(-1, *over)
    return _scaled(result, weight, bias), mean, scale


def _batch_norm_of(x: Array, weight: Maybe, bias: Maybe, eps: float) -> tuple[Array, Array, Array]:
    result, mean, scale = _normalized(x, (0, *range(2, x.ndim)), eps)
    return _scaled(result, weight, bias), mean.reshape(-1), scale.reshape(-1)


_HALF = (jnp.bfloat16, jnp.float16)


@operation("linear")
def linear(x: Array, weight: Array, bias: Maybe = None) -> Array:
    """Multiply the last dimension of ``x`` with that of a matrix, (outputs, inputs)."""
    product = lax.dot_general(x, weight, (((x.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return product if bias is None else product + bias


@operation("addmm", "addmv")
def _addmm(start: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = jnp.matmul(x, y)
    product = product if alpha == 1 else alpha * product
    return product + (start if beta == 1 else beta * start) if beta else product


@operation("_cdist_forward")
def _distances(x: Array, y: Array, p: float = 2.0, compute_mode: int | None = None) -> Array:
    """Distances of all rows to each other: Euclidean ones by a product, as PyTorch's are."""
    if p != 2:
        gaps = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
        return jnp.max(gaps, -1) if math.isinf(p) else jnp.sum(gaps**p, -1) ** (1 / p)
    # |x - y|^2 = |x|^2 + |y|^2 - 2 x.y, so that the work is one matrix product.
    squares = jnp.sum(x * x, -1)[..., :, None] + jnp.sum(y * y, -1)[..., None, :]
    squares = squares - 2 * jnp.matmul(x, jnp.swapaxes(y, -1, -2))
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


@operation("_trilinear")
def _trilinear(
    x: Array, weight: Array, y: Array, *dims: Sequence[int], unroll_dim: int = 1
) -> Array:
    # New dimensions of each operand, then those that are summed over.
    operands = zip((x, weight, y), dims, strict=False)
    first, second, third = (jnp.expand_dims(part, tuple(new)) for part, new in operands)
    return jnp.sum(first * second * third, tuple(dims[3]))


@operation("scaled_dot_product_attention", kind=RANDOM)
def _attention(
    query: Array,
    key_: Array,
    value: Array,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    key: Any = None,
) -> Array:
    """Attend; the scores are float32 where the queries are half as wide.

    Groups of queries that share a key (``enable_gqa``) are a dimension of their own.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads, groups = query.shape[-3] if query.ndim > 2 else 1, 1
    if enable_gqa and key_.shape[-3] != heads:
        groups = heads // key_.shape[-3]
        shape = (*query.shape[:-3], key_.shape[-3], groups, *query.shape[-2:])
        query = query.reshape(shape)
    wide = jnp.float32 if query.dtype in _HALF else query.dtype
    query_axes = "gqd" if groups > 1 else "qd"
    score_axes = query_axes[:-1] + "k"
    scores = jnp.einsum(
        f"...{query_axes},...kd->...{score_axes}", query, key_, preferred_element_type=wide
    )
    scores = scores * scale
    if is_causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, -jnp.inf)
    if attn_mask is not None:
        if groups > 1 and attn_mask.ndim > 2:
            per_head = attn_mask.shape[-3] > 1
            split = (attn_mask.shape[-3] // groups, groups) if per_head else (1, 1)
            attn_mask = attn_mask.reshape(*attn_mask.shape[:-3], *split, *attn_mask.shape[-2:])
        if attn_mask.dtype == jnp.bool_:
            scores = jnp.where(attn_mask, scores, -jnp.inf)
        else:
            scores = scores + attn_mask.astype(wide)
    weights = jax.nn.softmax(scores, -1)
    if dropout_p > 0:
        weights = key.dropout(weights, dropout_p)
    weights = weights.astype(value.dtype)
    output = jnp.einsum(f"...{score_axes},...kd->...{query_axes}", weights, value)
    if groups > 1:
        output = output.reshape(*output.shape[:-4], heads, *output.shape[-2:])
    return output


@operation("transformers.grouped_mm_fallback", "_grouped_mm")
def _grouped_product(
    x: Array, weight: Array, offs: Maybe = None, bias: Any = None, out_dtype: Any = None
) -> Array:
    """Multiply rows, sorted by expert, with the matrices of their experts.

    Every expert is taken to have the same number of rows, as how many it has depends on values: the
    product costs what it costs, and experts can be split, but rows may meet another's matrix.
    """
    experts, rows = weight.shape[0], x.shape[0]
    count = -(-rows // experts)
    x = jnp.pad(x, ((0, count * experts - rows), (0, 0))) if rows % experts else x
    product = jnp.einsum("erd,edf->erf", x.reshape(experts, count, -1), weight)
    return product.reshape(experts * count, -1)[:rows]


register(
    {
        "mean mean.dim": _reduction(jnp.mean),
        "prod prod.dim_int": _reduction(jnp.prod),
        "amax": _reduction(jnp.max),
        "amin": _reduction(jnp.min),
        "any any.dim any.dims": _reduction(lambda x, *axes, **how: jnp.any(x != 0, *axes, **how)),
        "max": jnp.max,
        "min": jnp.min,
        "argmax": lambda x, dim=None, keepdim=False: jnp.argmax(x, dim, keepdims=keepdim),
        "argmin": lambda x, dim=None, keepdim=False: jnp.argmin(x, dim, keepdims=keepdim),
        "var.correction": lambda x, dim=None, correction=None, keepdim=False: _var_mean(
            x, dim, correction, keepdim
        )[0],
        "_softmax _safe_softmax": _in_float(jax.nn.softmax),
        "_log_softmax": _in_float(jax.nn.log_softmax),
        "cumprod": lambda x, dim, dtype=None: jnp.cumprod(x, dim, dtype=dtype),
        "max.dim": _extreme(jnp.max, jnp.argmax),
        "min.dim": _extreme(jnp.min, jnp.argmin),
        "median.dim nanmedian.dim": lambda x, dim=-1, keepdim=False: _ranked(
            x, (x.shape[dim] - 1) // 2, dim, keepdim
        ),
        "median nanmedian": lambda x: _ranked(x.ravel(), (x.size - 1) // 2, 0, False)[0],
        "_native_batch_norm_legit.no_stats": lambda x, weight, bias, training, momentum, eps: (
            _batch_norm_of(x, weight, bias, eps)
        ),
        "mm bmm matmul": jnp.matmul,
        "einsum": lambda equation, operands, path=None: jnp.einsum(equation, *operands),
    }
)
