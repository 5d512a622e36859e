"""XLA's own partitioner as a referee: Shardy's propagation, in process (extra ``jax``).

The mesh is text, so no devices are needed. Given the dimensions of a module's inputs that are to be
partitioned, Shardy propagates them through the whole program; where instructions disagree, its
second pass inserts reshards. Where our rules allow a partitioning there are none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from parenvs.errors import ParenvsError
from parenvs.shardy.module import one_line, proto_of, stablehlo, walk

_PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
# Without the full version no reshard is shown.
_RESHARD = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"
_AXIS = '{"x"}'
_COLLECTIVES = (
    "all_gather", "all_reduce", "all_slice", "all_to_all", "collective_permute", "reduce_scatter",
)  # fmt: skip


@dataclass(frozen=True)
class Propagation:
    """What Shardy makes of some decisions.

    Attributes:
        partitioned: (input, dimension) pairs that end up partitioned, sorted.
        reshards: types of the values that have to be resharded, in program order.
        collectives: number of each collective (``all_reduce``, ...), sorted by name; one in a
            function counts once for each call, one in a loop once.
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
        ParenvsError: no JAX, one that is too old, or a module that it cannot take.
    """

    def __init__(self, module: Any, devices: int = 2) -> None:
        if devices < 2:
            raise ParenvsError(f"a mesh axis needs at least 2 devices, not {devices}")
        data = module if isinstance(module, bytes) else proto_of(module)
        self._context, text = stablehlo(data)
        start = text.index("{\n") + 2
        self._text = f'{text[:start]}  sdy.mesh @mesh = <["x"={devices}]>\n{text[start:]}'

    def propagate(self, decisions: Iterable[tuple[int, int]]) -> Propagation:
        """Partition (input, dimension) pairs and see what follows.

        Inputs are numbered as the flat arguments of the function, and as a graph's parameters.

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
                parts = ", ".join(_AXIS if d in dimensions else "{?}" for d in range(rank))
                attributes[number]["sdy.sharding"] = ir.Attribute.parse(
                    f"#sdy.sharding<@mesh, [{parts}]>"
                )
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [ir.DictAttr.get(one) for one in attributes]
            )
            try:
                PassManager.parse(_PROPAGATE).run(module.operation)
                partitioned = _partitioned(_main(module))
                PassManager.parse(_RESHARD).run(module.operation)
            except (ir.MLIRError, ValueError) as error:
                raise ParenvsError(f"Shardy cannot take the module: {one_line(error)}") from None
            return Propagation(partitioned, *_communication(module))


def _main(module: Any) -> Any:
    for name, operation in _functions(module):
        if name == "main":
            return operation
    raise ParenvsError("the lowered module has no function main")


def _functions(module: Any) -> Iterator[tuple[str, Any]]:
    for view in module.body.operations:
        if view.operation.name == "func.func":
            yield str(view.operation.attributes["sym_name"]).strip('"'), view.operation


def _inputs(main: Any) -> Any:
    from jaxlib.mlir import ir

    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs


def _partitioned(main: Any) -> tuple[tuple[int, int], ...]:
    """(input, dimension) pairs that the propagation left partitioned."""
    from jaxlib.mlir import ir

    if "arg_attrs" not in main.attributes:
        return ()
    found: list[dict[str, Any]] = [
        {item.name: item.attr for item in one}
        for one in cast("Any", map(ir.DictAttr, ir.ArrayAttr(main.attributes["arg_attrs"])))
    ]
    return tuple(
        (number, d)
        for number, one in enumerate(found)
        for d, part in enumerate(_dimensions(str(one.get("sdy.sharding", ""))))
        if '"x"' in part
    )


def _dimensions(sharding: str) -> list[str]:
    """``<@mesh, [{"x"}, {?}]>`` -> ``['"x"', '?']``."""
    inside = re.search(r"\[(.*)\]", sharding)
    return re.findall(r"\{([^}]*)\}", inside[1]) if inside else []


def _communication(module: Any) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Types of the reshards, and the number of each collective, of those in functions per call."""
    reshards: list[str] = []
    found: dict[str, Counter[str]] = {}
    calls: dict[str, Counter[str]] = {}
    for name, function in _functions(module):
        found[name], calls[name] = Counter(), Counter()
        for operation in walk(function):
            kind = operation.name.removeprefix("sdy.")
            if kind == "reshard":
                reshards.append(str(operation.results[0].type))
            elif kind in _COLLECTIVES:
                found[name][kind] += 1
            elif operation.name == "func.call":
                calls[name][str(operation.attributes["callee"]).removeprefix("@")] += 1

    @cache
    def total(name: str) -> Counter[str]:
        every = found[name].copy()
        for callee, times in calls[name].items():
            for kind, count in total(callee).items():
                every[kind] += times * count
        return every

    return tuple(reshards), tuple(sorted(total("main").items()))
