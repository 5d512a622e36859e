"""Finds the HLO module that a graph was read from, and turns it into StableHLO for Shardy.

A graph holds arrays only, so the module that it was read from is needed again (extra ``jax``).

Shardy gets that HLO, converted to StableHLO as in XLA itself. It must not get the StableHLO that
JAX lowers to: that contains CHLO, which Shardy does not know, so that it stops propagating there
and inserts no reshard either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from parenvs.errors import ParenvsError, need_extra, one_line, shown
from parenvs.graph import proto as messages
from parenvs.graph.graph import Graph
from parenvs.graph.reader import hlo_of, is_stablehlo, read_proto
from parenvs.graph.sources import Lowered, proto_of
from parenvs.instances import load_graph
from parenvs.shipped import manifest

_PARSERS = ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension")
"""Modules in which versions of jaxlib keep their parser of HLO text."""
_DIALECTS = ("stablehlo", "func", "sdy", "builtin")
"""Dialects whose operations Shardy knows."""
MODULE_SUFFIXES = (".pb", ".txt", ".hlo")
"""Endings of files that hold a module."""
_RULE = "xla.sdy.sharding_rule"
"""Attribute in which JAX gives the sharding rule of a custom call."""
_IDENTITY = "stablehlo.optimization_barrier"
"""Returns its operand, of whatever type; Shardy ties every dimension to the result's."""


@dataclass(frozen=True)
class Module:
    """An HLO module and the graph that the reader makes of it.

    Attributes:
        proto: serialized HloModuleProto.
        graph: the graph, with the reader's default variables and batch size.
        where: file or function, for error messages.
        remedy: words for error messages: what to do if another module is needed.
    """

    proto: bytes
    graph: Graph
    where: str
    remedy: str = "give the one that it was read from"


def module_of(source: Any) -> Module:
    """Load the module that ``source`` names.

    Args:
        source: what ``jax.jit(f, keep_unused=True).lower(...)`` returns, the path of a ``.pb``,
            ``.txt`` or ``.mlir``, what ``parenvs.graph.sources.lower_module`` returns, or a
            shipped name, whose training step is lowered again. A ``.npz`` holds no module; the
            ``.pb`` or ``.txt`` of its name beside it is taken.

    Raises:
        ParenvsError: ``source`` is none of these, or a ``.npz`` with no module beside it.
    """
    if isinstance(source, Lowered):
        return Module(source.proto, source.graph(), f"the training step of {source.name}")
    if hasattr(source, "compiler_ir"):
        proto = proto_of(source)
        return Module(proto, read_proto(proto, "the lowered function"), "the lowered function")
    if not isinstance(source, str | os.PathLike):
        raise ParenvsError(
            "source: give what jax.jit(f, keep_unused=True).lower(...) returns, or a path, not "
            f"{shown(source)}"
        )
    text = os.fspath(source)
    if text in manifest()["instances"]:
        return _shipped(text)
    path = Path(text)
    if path.suffix == ".npz" and (beside := _beside(path)) is not None:
        return module_of(beside)
    graph = load_graph(text)
    if path.suffix == ".npz":
        raise ParenvsError(
            f"{text}: holds arrays only, and Shardy needs the module: give the .pb or .txt that it "
            "was made from, or the lowered function, as the source"
        )
    data = path.read_bytes()
    if is_stablehlo(data):
        return Module(hlo_of(data, text), graph, text)
    if path.suffix == ".pb":
        return Module(_unwrapped(data), graph, text)
    return Module(proto_of_text(data.decode(), text), graph, text)


def has_module(instance: str) -> bool:
    """Return whether ``module_of`` finds a module by the instance of a plan alone."""
    if instance in manifest()["instances"]:
        return True
    path = Path(instance)
    return path.suffix in MODULE_SUFFIXES or (path.suffix == ".npz" and _beside(path) is not None)


def _beside(path: Path) -> Path | None:
    """Return the module of the same name in a graph's folder, as ``parenvs plan`` writes it."""
    files = (path.with_suffix(suffix) for suffix in MODULE_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def _unwrapped(data: bytes) -> bytes:
    """Return the serialized HloModuleProto, which tools may wrap in an HloProto."""
    try:
        if messages.Module.FromString(data).computations:  # type: ignore[attr-defined]
            return data
    except DecodeError:
        pass
    return messages.Wrapper.FromString(data).module.SerializeToString()  # type: ignore[attr-defined]


@lru_cache(maxsize=2)
def _shipped(name: str) -> Module:
    """Lower the training step of a shipped model again."""
    import jax

    from parenvs.datasets.models import MODELS, train_step

    function, args = train_step(MODELS[name])
    proto = proto_of(jax.jit(function, keep_unused=True).lower(*args))
    made_with = manifest()["jax"]
    return Module(
        proto,
        read_proto(proto, name),
        f"{name}, lowered again with JAX {jax.__version__}",
        f"JAX {made_with} made the shipped graph: pip install jax=={made_with}",
    )


def proto_of_text(text: str, where: str) -> bytes:
    """Parse HLO text with jaxlib, and serialize the module.

    Args:
        text: the text of one module.
        where: its file, for error messages.

    Raises:
        ParenvsError: jaxlib cannot parse the text, or is too old.
    """
    for name in _PARSERS:
        try:
            parse = import_module(name).hlo_module_from_text
        except (ImportError, AttributeError):
            continue
        try:
            return parse(text).as_serialized_hlo_module_proto()
        except (RuntimeError, ValueError) as error:
            raise ParenvsError(f"{where}: jaxlib cannot parse it: {one_line(error)}") from None
    raise _too_old("hlo_module_from_text; or give a .pb")


def need_jax() -> None:
    """Raise a ``ParenvsError`` with the command that installs JAX, if JAX is missing."""
    with need_extra("jax", "verifying"):
        import jax  # noqa: F401


def _too_old(what: str) -> ParenvsError:
    """Return the error that the installed JAX has no ``what``."""
    from jax import __version__

    return ParenvsError(f"JAX {__version__} has no {what}; pip install --upgrade jax")


def stablehlo(proto: bytes) -> tuple[Any, str]:
    """Convert a serialized HloModuleProto to StableHLO that Shardy knows.

    Returns:
        An MLIR context, and the module as text; tuples among its inputs are flattened.

    Raises:
        ParenvsError: JAX is missing or too old, or cannot convert the module.
    """
    need_jax()
    try:
        from jax.extend.mlir import hlo_to_stablehlo
        from jax.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir
    except ImportError:
        raise _too_old("jax.extend.mlir.hlo_to_stablehlo, which verifying needs") from None
    context = make_ir_context()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(hlo_to_stablehlo(proto))
        except (ir.MLIRError, RuntimeError, ValueError) as error:
            raise ParenvsError(
                f"jaxlib cannot turn the HLO into StableHLO: {one_line(error)}"
            ) from None
        for operation in [x for x in walk(module) if x.name.split(".")[0] not in _DIALECTS]:
            _replace(operation)
        for operation in [x for x in walk(module) if x.name == "stablehlo.custom_call"]:
            _import_custom_call(operation)
        return context, str(module.operation.get_asm(enable_debug_info=False))


def _import_custom_call(operation: Any) -> None:
    """Give a custom call the sharding rule that JAX wrote, and several results for a tuple."""
    from jaxlib.mlir import ir

    frontend = "mhlo.frontend_attributes"
    if frontend in operation.attributes:
        given = ir.DictAttr(operation.attributes[frontend])
        if _RULE in given:
            rule = ir.Attribute.parse(ir.StringAttr(given[_RULE]).value)
            operation.attributes["sdy.sharding_rule"] = rule
    kind = operation.results[0].type if len(operation.results) == 1 else None
    if isinstance(kind, ir.TupleType):
        types = [kind.get_type(k) for k in range(kind.num_types)]
        attributes = {name: operation.attributes[name] for name in operation.attributes}
        new = _put(operation, operation.name, types, attributes)
        for use in list(operation.results[0].uses):
            part = use.owner.operation
            index = ir.IntegerAttr(part.attributes["index"]).value
            part.results[0].replace_all_uses_with(new.results[index])
            part.erase()
        operation.erase()


def _replace(operation: Any) -> None:
    """Replace an operation that Shardy does not know by one that it knows."""
    from jaxlib.mlir import ir

    results = [x.type for x in operation.results]
    if operation.name == "mhlo.topk":
        target = {"call_target_name": ir.StringAttr.get("mhlo.topk")}
        new = _put(operation, "stablehlo.custom_call", results, target)
    elif [x.type for x in operation.operands] == results:
        new = _put(operation, _IDENTITY, results, {})
    else:
        raise ParenvsError(
            f"the module holds {operation.name}, of which Shardy knows nothing; give the HLO as it "
            "is before XLA's optimisation"
        )
    for old_value, new_value in zip(operation.results, new.results, strict=True):
        old_value.replace_all_uses_with(new_value)
    operation.erase()


def _put(operation: Any, name: str, results: list[Any], attributes: dict[str, Any]) -> Any:
    """Insert and return a new operation with the operands of ``operation``, before it."""
    from jaxlib.mlir import ir

    return ir.Operation.create(
        name,
        results=results,
        operands=list(operation.operands),
        attributes=attributes,
        ip=ir.InsertionPoint(operation),
    )


def walk(module: Any) -> Iterator[Any]:
    """Yield all operations inside ``module``, or inside an operation, in order."""
    for region in module.operation.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from walk(view)
