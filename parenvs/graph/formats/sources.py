"""Makes graphs of what users have: a file, a JAX function or a PyTorch module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parenvs.errors import need_extra
from parenvs.graph.formats.parts import several_in_one
from parenvs.graph.graph import Graph
from parenvs.graph.pytorch.read import OPTIONS, lower_module
from parenvs.graph.reader import read_file, read_proto


def from_hlo(path: str | os.PathLike[str], **options: Any) -> Graph:
    """Read ``.pb`` (a serialized HloModuleProto), ``.txt`` (HLO text), ``.mlir`` or ``.npz``.

    Args:
        path: the file; its ending tells the format. ``.mlir`` is StableHLO (extra ``jax``).
        **options: ``name``, and what the entry parameters are where it is not to be found out:
            ``variables``, ``batch``, ``frozen`` and ``batch_size``; see
            ``parenvs.graph.roles.with_roles``. A ``.npz`` keeps what it was saved with.

    Raises:
        HloError: the file is no HLO, is truncated, or holds an unknown opcode.
    """
    file = Path(path)
    if file.suffix == ".npz":
        graph = Graph.load(file)
        for note in graph.notes:
            warnings.warn(f"{file}: {note}", stacklevel=2)
        return graph
    return read_file(file, **options)


def from_jax(function: Callable[..., Any], *args: Any, **options: Any) -> Graph:
    """Lower a JAX function abstractly and read the module (extra ``jax``).

    >>> import jax, parenvs
    >>> weight = jax.ShapeDtypeStruct((4, 8), "float32")
    >>> parenvs.from_jax(lambda w: (w * w).sum(), weight).paths
    ['w']

    Args:
        function: the training step or forward pass.
        *args: its arguments, arrays or ``jax.ShapeDtypeStruct``.
        **options: as for ``from_hlo``.

    Raises:
        ParenvsError: JAX is missing.
    """
    with need_extra("jax", "planning a function"):
        import jax
    jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    where = getattr(function, "__name__", "function")
    lowered = jitted.lower(*args)
    told = {"results": results_of(lowered), "told": several_in_one(jitted, args, {})}
    return read_proto(proto_of(lowered), where=where, **told, **options)


def from_torch(
    module: Any, *inputs: Any, reading: dict[str, Any] | None = None, **keywords: Any
) -> Graph:
    """Export a PyTorch module and read its training step (extra ``torch``).

    Nothing is allocated, so that a module on the meta device may have any size.

    Args:
        module: the ``torch.nn.Module``, in the mode that it is planned in.
        *inputs: example inputs of its ``forward``; tensors count by shape and type only.
        reading: options as for ``from_hlo``.
        **keywords: ``loss``, ``targets``, ``optimiser`` and ``masters``, see
            ``parenvs.graph.pytorch.read.lower_module``; any other is an input by keyword.

    Raises:
        ParenvsError: see ``lower_module``.
    """
    own = {key: keywords.pop(key) for key in OPTIONS if key in keywords}
    return lower_module(module, inputs, keywords, **own).graph(**reading or {})


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
