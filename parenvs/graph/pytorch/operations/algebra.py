"""Decompositions, inverses and determinants of matrices."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import linalg

from parenvs.graph.pytorch.operations.table import operation


def _done(x: Array) -> Array:
    """What PyTorch's checked operations say of each matrix: 0, no error."""
    return jnp.zeros(x.shape[:-2], jnp.int32)


@operation("linalg_cholesky_ex")
def _cholesky(x: Array, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    lower = lax.linalg.cholesky(x)
    return (jnp.conj(lower.swapaxes(-1, -2)) if upper else lower), _done(x)


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


@operation("linalg_inv_ex")
def _inverse(x: Array, check_errors: bool = False) -> tuple[Array, Array]:
    return jnp.linalg.inv(x), _done(x)


@operation("_linalg_solve_ex")
def _solve(a: Array, y: Array, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    vector = y.ndim == 1 or (a.ndim - 1 == y.ndim and y.shape == a.shape[:-1])
    if vector:
        return jnp.linalg.solve(a, y[..., None])[..., 0], None, None, _done(a)
    if not left:
        turned = jnp.linalg.solve(a.swapaxes(-1, -2), y.swapaxes(-1, -2))
        return turned.swapaxes(-1, -2), None, None, _done(a)
    return jnp.linalg.solve(a, y), None, None, _done(a)


@operation("_linalg_det")
def _determinant(x: Array) -> tuple[Any, ...]:
    return jnp.linalg.det(x), None, None


@operation("_linalg_slogdet")
def _sign_and_logarithm(x: Array) -> tuple[Any, ...]:
    return (*jnp.linalg.slogdet(x), None, None)


@operation("linalg_qr")
def _qr(x: Array, mode: str = "reduced") -> tuple[Array, ...]:
    if mode == "r":
        return jnp.zeros((0,), x.dtype), jnp.linalg.qr(x, "r")
    return tuple(jnp.linalg.qr(x, mode))


@operation("_linalg_svd")
def _svd(
    x: Array, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None
) -> tuple[Any, ...]:
    if not compute_uv:
        return None, jnp.linalg.svd(x, compute_uv=False), None
    return tuple(jnp.linalg.svd(x, full_matrices))


@operation("_linalg_eigh")
def _eigh(x: Array, lower: str = "L", compute_v: bool = True) -> tuple[Any, ...]:
    values, vectors = jnp.linalg.eigh(x, UPLO=lower, symmetrize_input=False)
    return values, vectors


@operation("linalg_matrix_exp")
def _exponential(x: Array) -> Array:
    return linalg.expm(x)


@operation("linalg_pinv.atol_rtol_tensor")
def _pseudo_inverse(
    x: Array, atol: Array | None = None, rtol: Array | None = None, hermitian: bool = False
) -> Array:
    if atol is not None:
        raise NotImplementedError("a pseudo-inverse with an absolute tolerance")
    return jnp.linalg.pinv(x, rtol=rtol, hermitian=hermitian)
