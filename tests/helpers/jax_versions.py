"""Which JAX a test needs."""

import pytest


def jax_that_verifies():
    """JAX, if it can turn HLO into StableHLO; else the test or the module of tests is skipped."""
    jax = pytest.importorskip("jax")
    if not hasattr(pytest.importorskip("jax.extend.mlir"), "hlo_to_stablehlo"):
        pytest.skip("verifying needs a newer JAX", allow_module_level=True)
    return jax
