"""Normalisations; their statistics are float32 where the input is half as wide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from parenvs.graph.pytorch.operations.reductions import moments
from parenvs.graph.pytorch.operations.table import operation


def _wide(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """What has mean 0 and variance 1 along ``axes``, the mean, and 1 over the deviation."""
    x = _wide(x)
    variance, mean = moments(x, axes)
    scale = lax.rsqrt(variance + eps)
    return (x - mean) * scale, mean, scale


@operation("native_layer_norm")
def _layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    result, mean, scale = _normalised(x, axes, eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, scale


@operation("rms_norm", "_fused_rms_norm")
def _rms_norm(
    x: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None
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
    weight: Array | None,
    bias: Array | None,
    count: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    split = x.reshape(count, groups, channels // groups, *x.shape[2:])
    result, mean, scale = _normalised(split, tuple(range(2, split.ndim)), eps)
    result = result.reshape(x.shape)
    result = _scaled(result, weight, bias)
    return result, mean.reshape(count, groups), scale.reshape(count, groups)


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """Scale and shift each channel, dimension 1."""
    over = [1] * (x.ndim - 2)
    x = x if weight is None else x * weight.reshape(-1, *over)
    return x if bias is None else x + bias.reshape(-1, *over)


@operation("_native_batch_norm_legit_functional")
def _batch_norm_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
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
    variance, centre = moments(wide, axes, keepdims=False)
    variance = variance * (count / max(count - 1, 1))
    new_mean = (1 - momentum) * running_mean + momentum * centre
    new_var = (1 - momentum) * running_var + momentum * variance
    return result, mean, scale, new_mean, new_var


@operation("_native_batch_norm_legit_no_training")
def _batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    over = [1] * (x.ndim - 2)
    scale = lax.rsqrt(_wide(running_var) + eps)
    result = (_wide(x) - running_mean.reshape(-1, *over)) * scale.reshape(-1, *over)
    return _scaled(result, weight, bias), running_mean, scale


@operation("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    return _batch_norm_of(x, weight, bias, eps)


def _batch_norm_of(
    x: Array, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise each channel by the batch's own statistics."""
    result, mean, scale = _normalised(x, (0, *range(2, x.ndim)), eps)
    return _scaled(result, weight, bias), mean.reshape(-1), scale.reshape(-1)
