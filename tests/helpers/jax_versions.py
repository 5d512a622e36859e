"""Which JAX a test needs."""

import pytest


def jax_that_verifies():
    """JAX, if it can turn HLO into StableHLO; else the test or the module of tests is skipped."""
    jax = pytest.importorskip("jax")
    if not hasattr(pytest.importorskip("jax.extend.mlir"), "hlo_to_stablehlo"):
        pytest.skip("verifying needs a newer JAX", allow_module_level=True)
    return jax


def jax_that_names_derivatives():
    """JAX, if it marks the derivatives of functions without names; else the test is skipped.

    Older ones leave ``jvp()`` out, so that nothing tells forward and backward in a loop apart.
    """
    jax = pytest.importorskip("jax")
    lowered = jax.jit(jax.grad(lambda x: jax.numpy.sin(x))).lower(1.0)
    if "jvp()" not in lowered.as_text(debug_info=True):
        pytest.skip("a newer JAX marks derivatives of what has no name")
    return jax
