"""Makes graphs of what users have: a file, a JAX function or a PyTorch module."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parenvs.errors import ParenvsError, listed, need_extra, shown
from parenvs.files import FUNCTION, StrPath
from parenvs.graph.graph import Graph, Role
from parenvs.graph.pytorch.nodes import TITLE, RefusedError


def stamp(instance: str) -> int | None:
    """Return the time of the last change of a function's file, or None without a file."""
    module = split_name(instance)[0]
    try:
        return Path(module).stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def split_name(instance: str) -> tuple[str, str]:
    """Return the module (or file) and the name of an instance that names a function."""
    match = FUNCTION.fullmatch(instance)
    if match is None:
        raise ParenvsError(f"{instance!r} names no function: give FILE.py:NAME")
    return match["module"], match["name"]


OPTIONS = ("loss", "targets", "optimizer", "masters")
"""Options of ``lower_module`` that are no inputs of a module."""


@dataclass(frozen=True)
class Lowered:
    """A module of HLO, and what is known of it.

    Attributes:
        proto: serialized HloModuleProto.
        name: of the class of a PyTorch module.
        roles: role of each argument of the step, if known.
        notes: what was assumed, in sentences.
        results: names of the outputs of a JAX function.
        buffers, traits: see ``Graph``.
        kept: whether it was read from the user's cache, see ``parenvs.graph.cache``.
    """

    proto: bytes
    name: str = ""
    roles: tuple[Role, ...] = ()
    notes: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    buffers: tuple[str, ...] | None = None
    traits: Mapping[str, str] = field(default_factory=dict)
    kept: bool = False

    def graph(self, where: str | None = None, **options: Any) -> Graph:
        """Read the graph; ``options`` are those of ``parenvs.graph.reader.read_module``."""
        from parenvs.graph.reader import read_proto

        options.setdefault("name", self.name)
        role = {"known": self.roles or None, "told": self.notes, "results": self.results}
        graph = read_proto(self.proto, where or self.name, **role, **options)
        return replace(graph, buffers=self.buffers, traits=self.traits)


def of_program(thing: Any) -> Any:
    """Return the module of an ``ExportedProgram``; anything else as it is."""
    torch = sys.modules["torch"]
    if not isinstance(thing, torch.export.ExportedProgram):
        return thing
    has_guards = "check_guards" in inspect.signature(thing.module).parameters
    module = thing.module(check_guards=False) if has_guards else thing.module()
    # An exported program has lost its module's class but for these records of tracing.
    stacks = (node.meta.get("nn_module_stack") for node in thing.graph.nodes)
    classes = [next(iter(stack.values()))[1] for stack in stacks if stack]
    class_ = classes[0] if classes else type(module)
    name = class_ if isinstance(class_, str) else class_.__name__
    setattr(module, TITLE, name.rpartition(".")[2])
    module.example_inputs = thing.example_inputs
    return module


def example_inputs(module: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the inputs that an exported program was made with; None for another module."""
    return module.example_inputs if hasattr(module, TITLE) else None


def lower_module(
    module: Any,
    inputs: Sequence[Any] | None = None,
    keywords: Mapping[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    optimizer: str = "adam",
    masters: bool = False,
) -> Lowered:
    """Export a module and lower its training step; nothing is allocated.

    ``module`` is a ``torch.nn.Module``, or an ``ExportedProgram``, which needs no inputs. See
    ``parenvs.graph.pytorch.export.exported`` for inputs, keywords, loss and targets, and
    ``parenvs.graph.pytorch.step.Step.of`` for the optimizer and masters.

    Raises:
        ParenvsError: PyTorch or JAX is missing, PyTorch cannot export the module, or an operation
            has no expression; the line names it and the submodule that uses it.
    """
    with need_extra("torch", "planning a PyTorch module"):
        import jax  # noqa: F401
        import torch

        if not hasattr(torch.export, "default_decompositions"):
            raise ImportError(f"PyTorch {torch.__version__} is too old")
        from parenvs.graph.pytorch.export import exported
        from parenvs.graph.pytorch.step import Step
    module = of_program(module)
    example = (tuple(inputs or ()), dict(keywords or {}))
    example = (example_inputs(module) or example) if example == ((), {}) else example

    def lower_step() -> tuple[Any, Any]:
        program = exported(module, *example, loss, targets)
        return program, Step.of(program, optimizer, masters)

    try:
        program, step = lower_step()
    except RefusedError as error:
        # In evaluation mode there may be no dropout or statistics that were the reason.
        raise RefusedError(error.what, _eval_remedy(module, lower_step) + error.remedy) from error
    notes = program.notes
    fused = step.program.fused
    if fused:
        paths = sorted(fused, key=lambda path: -len(fused[path]))
        shape = ", ".join(str(n) for group in fused[paths[0]] for n in group)
        notes += (
            f"{listed(paths, 1)} hold several weights in one, which are taken apart; they are "
            f"planned as ({shape}), part by part",
        )
    buffers = tuple(item.path for item in program.inputs if item.kind == "buffer")
    known = step.lowered(), program.name, step.roles, notes
    return Lowered(*known, buffers=buffers, traits=program.traits)


def _eval_remedy(module: Any, lower_step: Callable[[], Any]) -> str:
    """What to do first, if a module that is refused in training is read in evaluation mode."""
    training = [item for item in module.modules() if item.training]
    if not training or example_inputs(module) is not None:
        return ""
    try:
        module.eval()
        lower_step()
    except ParenvsError:
        return ""
    finally:
        for item in training:
            item.training = True
    return (
        "call .eval() on the module first: then it is read, without dropout and with the "
        "statistics that it has; or "
    )


def from_hlo(path: StrPath, **options: Any) -> Graph:
    """Read ``.pb`` (a serialized HloModuleProto), ``.txt`` (HLO text), ``.mlir`` or ``.npz``.

    Args:
        path: the file; its ending tells the format. ``.mlir`` is StableHLO (extra ``jax``).
        **options: ``name``, and what the entry parameters are where it is not to be found out:
            ``variables``, ``batch``, ``frozen`` and ``batch_size``; see
            ``parenvs.graph.roles.with_roles``. A ``.npz`` keeps what it was saved with.

    Raises:
        HloError: the file is no HLO, is truncated, or holds an unknown opcode.
    """
    if not isinstance(path, str | os.PathLike):
        raise ParenvsError(f"from_hlo takes the path of a file, not {shown(path)}")
    file = Path(path)
    if file.suffix == ".npz":
        graph = Graph.load(file)
        for note in graph.notes:
            warnings.warn(f"{file}: {note}", stacklevel=2)
        return graph
    from parenvs.graph.reader import read_file

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
    where = getattr(function, "__name__", "function")
    return lower_function(function, args, {}, parts).graph(where, **options)


def from_torch(
    module: Any, *inputs: Any, reading: dict[str, Any] | None = None, **keywords: Any
) -> Graph:
    """Export a PyTorch module and read its training step (extra ``torch``).

    Nothing is allocated, so that a module on the meta device may have any size.

    Args:
        module: the ``torch.nn.Module``, in the mode that it is planned in.
        *inputs: example inputs of its ``forward``; tensors count by shape and type only.
        reading: options as for ``from_hlo``.
        **keywords: ``loss``, ``targets``, ``optimizer`` and ``masters``, see
            ``parenvs.graph.sources.lower_module``; any other is an input by keyword.

    Raises:
        ParenvsError: see ``lower_module``.
    """
    options = {key: keywords.pop(key) for key in OPTIONS if key in keywords}
    return lower_module(module, inputs, keywords, **options).graph(**reading or {})


def in_parts(
    function: Callable[..., Any], *args: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Take weights of a JAX function apart that are several in one (extra ``jax``).

    What ``jnp.split``, or slices that make up the whole, take apart behind a weight's product
    (queries, keys and values, say) becomes arrays of its own: ``params['qkv']`` a dictionary of
    parts, ``params['qkv']['000:064']``; so do its optimizer state and its new value. So partitions
    can split it by heads.

    Args:
        function: the training step or forward pass.
        *args: its arguments, arrays or ``jax.ShapeDtypeStruct``.

    Returns:
        A function that computes the same, and its arguments with the parts. Function and arguments
        are those that were given, if nothing is to be taken apart.

    Raises:
        ParenvsError: JAX is missing.
    """
    with need_extra("jax", "planning a function"):
        from parenvs.graph.parts import split_fused
    if not callable(function):
        raise ParenvsError(f"in_parts takes a function, not {shown(function)}")
    result = split_fused(function, args, {})
    return (function, tuple(args)) if result is None else (result.function, result.positional)


def lower_function(
    function: Any, positional: Sequence[Any], named: dict[str, Any], parts: bool = True
) -> Lowered:
    """Lower a JAX function, jitted or not, with arrays or shapes; ``parts`` as of ``from_jax``."""
    with need_extra("jax", "planning a function"):
        import jax

        from parenvs.graph.parts import split_fused
    from parenvs.graph.reader import proto_of, results_of

    jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    notes: tuple[str, ...] = ()
    result = split_fused(jitted, positional, named) if parts and hasattr(jitted, "trace") else None
    if result is not None:
        jitted, notes = jax.jit(result.function, keep_unused=True), (result.note,)
        positional, named = result.positional, result.named
    lowered = jitted.lower(*positional, **named)
    return Lowered(proto_of(lowered), notes=notes, results=results_of(lowered))
