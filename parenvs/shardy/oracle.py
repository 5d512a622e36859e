"""Runs Shardy's propagation, in process (extra ``jax``).

Shardy is given some partitioned dimensions of a module's inputs and propagates them through the
whole program; where instructions disagree, its second pass inserts reshards. A partitioning that
the project's rules allow needs none. The mesh is a line of text, so no devices are needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from parenvs.errors import ParenvsError, one_line
from parenvs.graph.sources import proto_of
from parenvs.shardy.module import stablehlo, walk

_PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
_RESHARD = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"
"""Without the full version the pass shows no reshards."""
_AXIS = '{"x"}'
_COLLECTIVES = (
    "all_gather", "all_reduce", "all_slice", "all_to_all", "collective_permute", "reduce_scatter",
)  # fmt: skip


@dataclass(frozen=True)
class Propagation:
    """Result of propagating some decisions.

    Attributes:
        partitioned: (input, dimension) pairs that end up partitioned, sorted.
        reshards: types of the values that Shardy has to reshard, in program order.
        collectives: (name, count) of each collective (``all_reduce``, ...), sorted by name. A
            collective in a function counts once for each call, one in a loop once.
    """

    partitioned: tuple[tuple[int, int], ...]
    reshards: tuple[str, ...]
    collectives: tuple[tuple[str, int], ...]

    @property
    def all_reduces(self) -> int:
        """Number of all-reduces."""
        return dict(self.collectives).get("all_reduce", 0)


class ShardyOracle:
    """Propagates partitionings of a module's inputs over one mesh axis.

    Args:
        module: a serialized HloModuleProto, or what ``jax.jit(f, keep_unused=True).lower(...)``
            returns.
        devices: size of the mesh axis. Shardy does not propagate to a dimension that is no multiple
            of it.

    Raises:
        ParenvsError: JAX is missing or too old, or cannot convert the module.
    """

    def __init__(self, module: Any, devices: int = 2) -> None:
        if devices < 2:
            raise ParenvsError(f"a mesh axis needs at least 2 devices, not {devices}")
        data = module if isinstance(module, bytes) else proto_of(module)
        self._context, text = stablehlo(data)
        start = text.index("{\n") + 2
        self._text = f'{text[:start]}  sdy.mesh @mesh = <["x"={devices}]>\n{text[start:]}'

    def propagate(self, decisions: Iterable[tuple[int, int]]) -> Propagation:
        """Partition the inputs as decided, and let Shardy propagate.

        Args:
            decisions: (input, dimension) pairs to partition. Inputs are numbered as the flat
                arguments of the function, which is also the order of a graph's parameters.

        Raises:
            ParenvsError: the module holds something that Shardy does not support.
        """
        from jaxlib.mlir import ir
        from jaxlib.mlir.passmanager import PassManager

        chosen: dict[int, set[int]] = {}
        for number, dimension in decisions:
            chosen.setdefault(number, set()).add(dimension)
        with self._context, ir.Location.unknown():
            module = ir.Module.parse(self._text)
            main = _main(module)
            attributes: list[dict[str, Any]] = [{} for _ in _inputs(main)]
            for number, dimensions in chosen.items():
                rank = ir.RankedTensorType(_inputs(main)[number]).rank
                axes = ", ".join(_AXIS if d in dimensions else "{?}" for d in range(rank))
                attributes[number]["sdy.sharding"] = ir.Attribute.parse(
                    f"#sdy.sharding<@mesh, [{axes}]>"
                )
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [ir.DictAttr.get(by_name) for by_name in attributes]
            )
            try:
                PassManager.parse(_PROPAGATE).run(module.operation)
                partitioned = _partitioned(_main(module))
                PassManager.parse(_RESHARD).run(module.operation)
            except (ir.MLIRError, ValueError) as error:
                raise ParenvsError(f"Shardy cannot take the module: {one_line(error)}") from None
            return Propagation(partitioned, *_communication(module))


def _main(module: Any) -> Any:
    """Return the function ``main`` of a module."""
    for name, operation in _functions(module):
        if name == "main":
            return operation
    raise ParenvsError("the lowered module has no function main")


def _functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and operation of each function of a module."""
    for view in module.body.operations:
        if view.operation.name == "func.func":
            yield str(view.operation.attributes["sym_name"]).strip('"'), view.operation


def _inputs(main: Any) -> Any:
    """Return the types of a function's inputs."""
    from jaxlib.mlir import ir

    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs


def _partitioned(main: Any) -> tuple[tuple[int, int], ...]:
    """Return the (input, dimension) pairs that are partitioned after the propagation."""
    from jaxlib.mlir import ir

    if "arg_attrs" not in main.attributes:
        return ()
    attributes: list[dict[str, Any]] = [
        {item.name: item.attr for item in items}
        for items in cast("Any", map(ir.DictAttr, ir.ArrayAttr(main.attributes["arg_attrs"])))
    ]
    return tuple(
        (number, dimension)
        for number, by_name in enumerate(attributes)
        for dimension, axes in enumerate(_dimensions(str(by_name.get("sdy.sharding", ""))))
        if '"x"' in axes
    )


def _dimensions(sharding: str) -> list[str]:
    """Split a sharding by dimension: ``<@mesh, [{"x"}, {?}]>`` -> ``['"x"', '?']``."""
    dimensions = re.search(r"\[(.*)\]", sharding)
    return re.findall(r"\{([^}]*)\}", dimensions[1]) if dimensions else []


def _communication(module: Any) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Return the types of the reshards, and (name, count) of each collective.

    A collective in a function counts once for each call of the function.
    """
    reshards: list[str] = []
    own: dict[str, Counter[str]] = {}  # collectives of each function itself
    calls: dict[str, Counter[str]] = {}
    for name, function in _functions(module):
        own[name], calls[name] = Counter(), Counter()
        for operation in walk(function):
            kind = operation.name.removeprefix("sdy.")
            if kind == "reshard":
                reshards.append(str(operation.results[0].type))
            elif kind in _COLLECTIVES:
                own[name][kind] += 1
            elif operation.name == "func.call":
                calls[name][str(operation.attributes["callee"]).removeprefix("@")] += 1

    @cache
    def total(name: str) -> Counter[str]:
        counts = own[name].copy()
        for callee, times in calls[name].items():
            for kind, count in total(callee).items():
                counts[kind] += times * count
        return counts

    return tuple(reshards), tuple(sorted(total("main").items()))
