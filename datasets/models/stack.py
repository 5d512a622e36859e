"""Stacks of equal layers, written out one after another or as a loop over stacked weights."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax, named_scope

from parenvs.datasets.models.model import Array, Tree


def stack_shapes(layers: int, layer: Tree, scanned: bool) -> Tree:
    """Return the shapes of a stack.

    Args:
        layers: Number of layers.
        layer: Shapes of one layer.
        scanned: Whether each array has a leading dimension of layers, else each layer is apart, as
            ``layer_0``, ``layer_1``, ...
    """
    if not scanned:
        return {f"layer_{i}": layer for i in range(layers)}
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((layers, *x.shape), x.dtype), layer)


KEPT = "kept"
"""Name of the results that ``recomputing`` keeps besides products with weights."""


def recomputing(block: Callable[[Tree, Array], Array]) -> Callable[[Tree, Array], Array]:
    """Return a layer of which the backward pass computes again what is cheap.

    Kept are products with weights and what is called ``KEPT``; norms, activations and rotations
    are computed again (selective recomputation, arXiv 2205.05198).
    """
    policies = jax.checkpoint_policies
    policy = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(KEPT)
    )
    return jax.checkpoint(block, policy=policy)


def run_stack(
    weights: Tree, x: Array, block: Callable[[Tree, Array], Array], layers: int, scanned: bool
) -> Array:
    """Send ``x`` through the layers of ``stack_shapes``; ``block(weights, x)`` is one of them."""
    if scanned:
        return lax.scan(lambda y, layer: (block(layer, y), None), x, weights)[0]
    for i in range(layers):
        with named_scope(f"layer_{i}"):
            x = block(weights[f"layer_{i}"], x)
    return x
