"""Makes graphs of what users have: a file, a JAX function or a PyTorch module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parenvs.errors import need_extra
from parenvs.graph.formats.lowering import proto_of, results_of
from parenvs.graph.formats.parts import parted
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


def from_jax(function: Callable[..., Any], *args: Any, parts: bool = True, **options: Any) -> Graph:
    """Lower a JAX function abstractly and read the module (extra ``jax``).

    >>> import jax, parenvs
    >>> weight = jax.ShapeDtypeStruct((4, 8), "float32")
    >>> parenvs.from_jax(lambda w: (w * w).sum(), weight).paths
    ['w']

    Args:
        function: the training step or forward pass.
        *args: its arguments, arrays or ``jax.ShapeDtypeStruct``.
        parts: whether weights that are several in one are read part by part, with a note, as
            ``parenvs.in_parts`` takes them apart.
        **options: as for ``from_hlo``.

    Raises:
        ParenvsError: JAX is missing.
    """
    with need_extra("jax", "planning a function"):
        import jax
    jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    where = getattr(function, "__name__", "function")
    lowered, notes = lowered_of(jitted, args, {}, parts)
    told = {"results": results_of(lowered), "told": notes}
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


def lowered_of(
    jitted: Any, positional: Sequence[Any], named: dict[str, Any], parts: bool = True
) -> tuple[Any, tuple[str, ...]]:
    """Lower a jitted function, and return notes on how.

    Args:
        jitted: the function.
        positional: its arguments, arrays or shapes.
        named: likewise, by name.
        parts: see ``from_jax``.
    """
    import jax

    found = None
    if parts and hasattr(jitted, "trace"):
        found = parted(jitted, positional, named)
    if found is None:
        return jitted.lower(*positional, **named), ()
    again = jax.jit(found.function, keep_unused=True)
    return again.lower(*found.positional, **found.named), (found.note,)
