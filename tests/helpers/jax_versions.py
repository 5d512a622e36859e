"""Which JAX a test needs."""

from functools import cache

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


@cache
def counts_results_in_tuples():
    """Whether XLA's analysis counts results that are in a tuple; older ones count its pointers."""
    jax = pytest.importorskip("jax")
    values = jax.numpy.zeros((8, 7), "float32")
    cost = jax.jit(lambda x: jax.lax.top_k(x, 3)).lower(values).cost_analysis()
    return cost["bytes accessedout{}"] >= 8 * 3 * (4 + 4)
