"""What JAX makes of a function that it lowers, for the reader."""

from __future__ import annotations

from typing import Any


def proto_of(lowered: Any) -> bytes:
    """Serialize ``lowered``, the result of ``jax.jit(f, keep_unused=True).lower(...)``."""
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def results_of(lowered: Any) -> tuple[str, ...]:
    """Name of each array that a lowered function returns, like ``[0]['q']``; none if unknown."""
    import jax

    tree = getattr(lowered, "out_tree", None)
    if tree is None:
        return ()
    leaves = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths = jax.tree_util.tree_flatten_with_path(leaves)[0]
    return tuple(jax.tree_util.keystr(path) for path, _ in paths)
