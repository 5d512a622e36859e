"""The table of ATen operations: name -> function of JAX arrays, filled by the modules beside it.

A function takes an operation's arguments as PyTorch's schema orders and names them. What it returns
is cast to the type that PyTorch gives the result, so that a function need not care for promotion.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import linalg, special

Operation = Callable[..., Any]

OPERATIONS: dict[str, Operation] = {}
"""Name without ``aten.`` and ``.default``, like ``add.Tensor`` -> its function."""
RANDOM: set[str] = set()
"""Operations that draw numbers; their functions take a random key as ``key``."""
ELEMENTWISE: set[str] = set()
"""Operations whose results have the shape of their operands, broadcast."""
PLACE = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
"""Arguments that only say where and how a tensor is stored, which functions are not given."""


def operation(*names: str, kind: set[str] | None = None) -> Callable[[Operation], Operation]:
    """Enter the decorated function under the names of the operations that it computes.

    ``kind`` is ``ELEMENTWISE`` or ``RANDOM``, if the operations are of these.
    """
    if kind is not None:
        kind.update(names)

    def register_function(function: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register_function


def register(functions: dict[str, Operation], kind: set[str] | None = None) -> None:
    """Enter functions by the names of the operations that they compute, separated by spaces."""
    for names, function in functions.items():
        operation(*names.split(), kind=kind)(function)


_SAME_NAME = (
    "abs angle bitwise_not ceil cos cosh exp exp2 expm1 floor isinf isnan log log10 log1p log2 "
    "logical_and logical_not logical_or logical_xor round sign sin sinh sqrt tan tanh trunc"
)
_INVERSE, _COMPARISONS = "cos cosh sin sinh tan tan2 tanh", "eq ge gt le lt ne"
register(
    {
        **{name: getattr(jnp, name) for name in _SAME_NAME.split()},
        **{f"a{name}": getattr(jnp, f"arc{name}") for name in _INVERSE.split()},
        **{name: getattr(special, name) for name in ("digamma", "erf", "erfc", "erfinv")},
        **{f"{x}.Tensor {x}.Scalar": getattr(operator, x) for x in _COMPARISONS.split()},
        "lgamma": special.gammaln,
        "neg": jnp.negative,
        "reciprocal": lambda x: 1 / x,
        "relu": jax.nn.relu,
        "rsqrt": lax.rsqrt,
        "sigmoid": jax.nn.sigmoid,
        "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
        "parenvs.stop_gradient": lax.stop_gradient,
        "alias clone lift_fresh lift_fresh_copy": lambda x: x,
        "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor": operator.and_,
        "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor": operator.or_,
        "bitwise_xor.Tensor bitwise_xor.Scalar": operator.xor,
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": operator.lshift,
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": operator.rshift,
        "fmax maximum": jnp.maximum,
        "fmin minimum": jnp.minimum,
        "fmod.Tensor fmod.Scalar": jnp.fmod,
        "div.Tensor div.Scalar": operator.truediv,
        "mul.Tensor mul.Scalar": operator.mul,
        "remainder.Tensor remainder.Scalar": jnp.remainder,
        "where.self": jnp.where,
        "add.Tensor add.Scalar": lambda x, y, alpha=1: x + _times(y, alpha),
        "sub.Tensor sub.Scalar": lambda x, y, alpha=1: x - _times(y, alpha),
        "hardtanh": lambda x, low=-1.0, high=1.0: _bounded(x, low, high),
        "elu": lambda x, alpha=1, scale=1, input_scale=1: (
            scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0) * input_scale))
        ),
        "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
        "_conj": jnp.conj,
        "complex": lambda x, y: x + 1j * y,
        "polar": lambda length, angle: length * (jnp.cos(angle) + 1j * jnp.sin(angle)),
    },
    ELEMENTWISE,
)


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else x * factor


def _bounded(x: Array, low: Any, high: Any) -> Array:
    # At a bound the gradient is 1, as in PyTorch; that of jnp.clip is a half.
    if low is not None:
        x = jnp.where(x < low, jnp.asarray(low, x.dtype), x)
    return x if high is None else jnp.where(x > high, jnp.asarray(high, x.dtype), x)


@operation("clamp", "clamp.Tensor", kind=ELEMENTWISE)
def _clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    dtype = jnp.result_type(x, *(bound for bound in (min, max) if bound is not None))
    return _bounded(x.astype(dtype), min, max)


@operation("div.Tensor_mode", "div.Scalar_mode", kind=ELEMENTWISE)
def _divide_rounded(x: Array, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    dtype = jnp.result_type(x, y)
    if rounding_mode == "trunc" and jnp.issubdtype(dtype, jnp.integer):
        return lax.div(*jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(y, dtype)))
    return jnp.trunc(x / y) if rounding_mode == "trunc" else x / y


@operation("pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor_Tensor", kind=ELEMENTWISE)
def _power(x: Any, exponent: Any) -> Array:
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and abs(exponent) < 64:
        return lax.integer_pow(x, int(exponent))
    if isinstance(exponent, float) and math.isclose(exponent, 0.5):
        return jnp.sqrt(x)
    return jnp.power(x, exponent)


@operation("_to_copy", "prims.convert_element_type", kind=ELEMENTWISE)
def _cast(x: Array, dtype: Any = None) -> Array:
    return x if dtype is None else x.astype(dtype)


# PyTorch's numbers of normalizations: of inverse transforms they count from behind.
_NORMS = ("backward", "ortho", "forward")


@operation("_fft_c2c")
def _complex(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    if forward:
        return jnp.fft.fftn(x, axes=dim, norm=_NORMS[normalization])
    return jnp.fft.ifftn(x, axes=dim, norm=_NORMS[2 - normalization])


@operation("_fft_r2c")
def _from_real(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    function = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return function(x, axes=dim, norm=_NORMS[normalization])


@operation("_fft_c2r")
def _to_real(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    sizes = [*(x.shape[d] for d in dim[:-1]), last_dim_size]
    return jnp.fft.irfftn(x, sizes, axes=dim, norm=_NORMS[2 - normalization])


def _no_error(x: Array) -> Array:
    return jnp.zeros(x.shape[:-2], jnp.int32)


@operation("linalg_cholesky_ex")
def _cholesky(x: Array, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    lower = lax.linalg.cholesky(x)
    return (jnp.conj(lower.mT) if upper else lower), _no_error(x)


@operation("cholesky_solve")
def _cholesky_solve(y: Array, factor: Array, upper: bool = False) -> Array:
    first = lax.linalg.triangular_solve(
        factor, y, left_side=True, lower=not upper, transpose_a=upper
    )
    return lax.linalg.triangular_solve(
        factor, first, left_side=True, lower=not upper, transpose_a=not upper
    )


@operation("linalg_solve_triangular", "triangular_solve")
def _solve_triangular(
    a: Array, y: Array, upper: bool = True, left: bool = True, unitriangular: bool = False
) -> Array:
    shape = jnp.broadcast_shapes(a.shape[:-2], y.shape[:-2])
    a = jnp.broadcast_to(a, shape + a.shape[-2:])
    y = jnp.broadcast_to(y, shape + y.shape[-2:])
    return lax.linalg.triangular_solve(
        a, y, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@operation("_linalg_solve_ex")
def _solve(a: Array, y: Array, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    vector = y.ndim == 1 or (a.ndim - 1 == y.ndim and y.shape == a.shape[:-1])
    if vector:
        result = jnp.linalg.solve(a, y[..., None])[..., 0]
    elif left:
        result = jnp.linalg.solve(a, y)
    else:  # x a = y is a^T x^T = y^T
        result = jnp.linalg.solve(a.mT, y.mT).mT
    return result, None, None, _no_error(a)


@operation("_linalg_svd")
def _svd(
    x: Array, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[Any, ...]:
    if not compute_uv:
        return None, jnp.linalg.svd(x, compute_uv=False), None
    return tuple(jnp.linalg.svd(x, full_matrices))


@operation("linalg_pinv.atol_rtol_tensor")
def _pseudo_inverse(
    x: Array, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False
) -> Array:
    if atol is not None:
        raise NotImplementedError("a pseudo-inverse with an absolute tolerance")
    return jnp.linalg.pinv(x, rtol=rtol, hermitian=hermitian)


register(
    {
        "copy": lambda target, source: jnp.broadcast_to(source, target.shape).astype(target.dtype),
        "view_as_complex": lambda x: lax.complex(x[..., 0], x[..., 1]),
        "view_as_real": lambda x: jnp.stack([jnp.real(x), jnp.imag(x)], -1),
        "linalg_qr": lambda x, mode="reduced": (
            (jnp.zeros((0,), x.dtype), jnp.linalg.qr(x, mode))
            if mode == "r"
            else tuple(jnp.linalg.qr(x, mode))
        ),
        "_linalg_eigh": lambda x, lower="L", compute_v=True: tuple(
            jnp.linalg.eigh(x, UPLO=lower, symmetrize_input=False)
        ),
        "linalg_inv_ex": lambda x, check_errors=False: (jnp.linalg.inv(x), _no_error(x)),
        "_linalg_det": lambda x: (jnp.linalg.det(x), None, None),
        "_linalg_slogdet": lambda x: (*jnp.linalg.slogdet(x), None, None),
        "linalg_matrix_exp": linalg.expm,
    }
)
