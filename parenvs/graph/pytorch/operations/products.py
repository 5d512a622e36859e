"""Matrix products, attention, and experts' products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.table import operation, random

_HALF = (jnp.bfloat16, jnp.float16)


@operation("linear")
def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Contract with the weight's last dimension as it lies, without a transposed copy."""
    product = lax.dot_general(x, weight, (((x.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return product if bias is None else product + bias


@operation("mm", "bmm", "mv", "dot", "matmul")
def _matmul(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y)


@operation("addmm", "baddbmm", "addmv")
def _addmm(start: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = jnp.matmul(x, y)
    product = product if alpha == 1 else alpha * product
    return product + (start if beta == 1 else beta * start) if beta else product


@operation("_int_mm")
def _whole_numbers(x: Array, y: Array) -> Array:
    return lax.dot(x, y, preferred_element_type=jnp.int32)


@operation("_weight_int8pack_mm")
def _packed_product(x: Array, weight: Array, scales: Array) -> Array:
    return _linear(x, weight.astype(x.dtype)) * scales


@operation("_scaled_mm")
def _scaled_product(
    x: Array,
    y: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None = None,
    scale_result: Array | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Array:
    """Multiply 8-bit matrices and scale the product: by one number each, or row and column."""
    rows = scale_a.ndim < 2 or scale_a.shape in ((1, 1), (x.shape[0], 1))
    columns = scale_b.ndim < 2 or scale_b.shape in ((1, 1), (1, y.shape[1]))
    if not (rows and columns):
        raise NotImplementedError("scales of blocks of a matrix")
    made = lax.dot(x, y, preferred_element_type=jnp.float32)
    made = made * scale_a.astype(jnp.float32) * scale_b.astype(jnp.float32)
    made = made if bias is None else made + bias.astype(jnp.float32)
    made = made if scale_result is None else made * scale_result
    return made.astype(out_dtype or x.dtype)


@operation("_cdist_forward")
def _distances(x: Array, y: Array, p: float = 2.0, compute_mode: int | None = None) -> Array:
    """Distances of all rows to each other: Euclidean ones by a product, as PyTorch's are."""
    if p != 2:
        away = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
        return jnp.max(away, -1) if math.isinf(p) else jnp.sum(away**p, -1) ** (1 / p)
    squares = jnp.sum(x * x, -1)[..., :, None] + jnp.sum(y * y, -1)[..., None, :]
    squares = squares - 2 * jnp.matmul(x, jnp.swapaxes(y, -1, -2))
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


@operation("einsum")
def _einsum(equation: str, operands: Sequence[Array], path: Any = None) -> Array:
    return jnp.einsum(equation, *operands)


@operation("_trilinear")
def _trilinear(
    x: Array,
    weight: Array,
    y: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    parts = [
        jnp.expand_dims(part, tuple(dims))
        for part, dims in ((x, expand1), (weight, expand2), (y, expand3))
    ]
    return jnp.sum(parts[0] * parts[1] * parts[2], tuple(sumdim))


@random("scaled_dot_product_attention")
def _attention(
    query: Array,
    key_: Array,
    value: Array,
    attn_mask: Array | None = None,
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
    letters = "gqd" if groups > 1 else "qd"
    result = letters[:-1] + "k"
    scores = jnp.einsum(
        f"...{letters},...kd->...{result}", query, key_, preferred_element_type=wide
    )
    scores = scores * scale
    if is_causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        columns = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
        scores = jnp.where(rows >= columns, scores, -jnp.inf)
    if attn_mask is not None:
        if groups > 1 and attn_mask.ndim > 2:
            some = attn_mask.shape[-3] > 1
            split = (attn_mask.shape[-3] // groups, groups) if some else (1, 1)
            attn_mask = attn_mask.reshape(*attn_mask.shape[:-3], *split, *attn_mask.shape[-2:])
        if attn_mask.dtype == jnp.bool_:
            scores = jnp.where(attn_mask, scores, -jnp.inf)
        else:
            scores = scores + attn_mask.astype(wide)
    weights = jax.nn.softmax(scores, -1)
    if dropout_p > 0:
        weights = key.dropout(weights, dropout_p)
    weights = weights.astype(value.dtype)
    mixed = jnp.einsum(f"...{result},...kd->...{letters}", weights, value)
    if groups > 1:
        mixed = mixed.reshape(*mixed.shape[:-4], heads, *mixed.shape[-2:])
    return mixed


@operation("transformers.grouped_mm_fallback", "_grouped_mm")
def _grouped_product(
    x: Array, weight: Array, offs: Array | None = None, bias: Any = None, out_dtype: Any = None
) -> Array:
    """Multiply rows, sorted by expert, with the matrices of their experts.

    Every expert is taken to have the same number of rows, as how many it has depends on values: the
    product costs what it costs, and experts can be split, but rows may meet another's matrix.
    """
    experts, rows = weight.shape[0], x.shape[0]
    each = -(-rows // experts)
    x = jnp.pad(x, ((0, each * experts - rows), (0, 0))) if rows % experts else x
    product = jnp.einsum("erd,edf->erf", x.reshape(experts, each, -1), weight)
    return product.reshape(experts * each, -1)[:rows]
