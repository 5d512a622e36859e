"""XLA's own partitioner as a referee: Shardy's propagation, in process (extra ``jax``).

The mesh is text, so no devices are needed. Given the dimensions of a function's inputs that are to
be partitioned, Shardy propagates them through the whole program; where instructions disagree, its
second pass inserts reshards. Where our rules allow a partitioning there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from parenvs.errors import ParenvsError

_PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
# Without the full version no reshard is shown.
_RESHARD = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"
_AXIS = '{"x"}'


@dataclass(frozen=True)
class Propagation:
    """What Shardy makes of some decisions.

    Attributes:
        partitioned: (input, dimension) pairs that end up partitioned, sorted.
        reshards: types of the values that have to be resharded, in program order.
        all_reduces: number of all-reduces.
    """

    partitioned: tuple[tuple[int, int], ...]
    reshards: tuple[str, ...]
    all_reduces: int


class ShardyOracle:
    """Propagates partitionings of a lowered function's inputs over one mesh axis.

    Args:
        lowered: ``jax.jit(f, keep_unused=True).lower(...)``.
        devices: size of the mesh axis. Shardy does not propagate to a dimension that is no multiple
            of it.
    """

    def __init__(self, lowered: Any, devices: int = 2) -> None:
        if devices < 2:
            raise ParenvsError(f"a mesh axis needs at least 2 devices, not {devices}")
        module = lowered.compiler_ir("stablehlo")
        self._context = module.context
        text = module.operation.get_asm(enable_debug_info=False)
        start = text.index("{\n") + 2
        self._text = f'{text[:start]}  sdy.mesh @mesh = <["x"={devices}]>\n{text[start:]}'

    def propagate(self, decisions: Iterable[tuple[int, int]]) -> Propagation:
        """Partition (input, dimension) pairs and see what follows.

        Inputs are numbered as the flat arguments of the function, and as a graph's parameters.
        """
        from jaxlib.mlir import ir
        from jaxlib.mlir.passmanager import PassManager

        chosen: dict[int, set[int]] = {}
        for number, dimension in decisions:
            chosen.setdefault(number, set()).add(dimension)
        with self._context, ir.Location.unknown():
            module = ir.Module.parse(self._text)
            main = _main(module)
            attributes = _arguments(main)
            for number, dimensions in chosen.items():
                rank = ir.RankedTensorType(_inputs(main)[number]).rank
                parts = ", ".join(_AXIS if d in dimensions else "{?}" for d in range(rank))
                attributes[number]["sdy.sharding"] = ir.Attribute.parse(
                    f"#sdy.sharding<@mesh, [{parts}]>"
                )
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [ir.DictAttr.get(one) for one in attributes]
            )
            PassManager.parse(_PROPAGATE).run(module.operation)
            partitioned = tuple(
                (number, d)
                for number, one in enumerate(_arguments(_main(module)))
                for d, part in enumerate(_dimensions(str(one.get("sdy.sharding", ""))))
                if '"x"' in part
            )
            PassManager.parse(_RESHARD).run(module.operation)
            text = str(module.operation.get_asm(enable_debug_info=False))
        reshards = tuple(re.findall(r"sdy\.reshard .* : (\S+)", text))
        return Propagation(partitioned, reshards, text.count("sdy.all_reduce "))


def _main(module: Any) -> Any:
    for block in module.body.operations:
        operation = block.operation
        if operation.name == "func.func" and '"main"' in str(operation.attributes["sym_name"]):
            return operation
    raise ParenvsError("the lowered module has no function main")


def _inputs(main: Any) -> Any:
    from jaxlib.mlir import ir

    return ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs


def _arguments(main: Any) -> list[dict[str, Any]]:
    """Attributes of every argument, as dictionaries."""
    from jaxlib.mlir import ir

    if "arg_attrs" not in main.attributes:
        return [{} for _ in _inputs(main)]
    given: Any = [ir.DictAttr(one) for one in ir.ArrayAttr(main.attributes["arg_attrs"])]
    return [{item.name: item.attr for item in one} for one in given]


def _dimensions(sharding: str) -> list[str]:
    """``<@mesh, [{"x"}, {?}]>`` -> ``['"x"', '?']``."""
    inside = re.search(r"\[(.*)\]", sharding)
    return re.findall(r"\{([^}]*)\}", inside[1]) if inside else []
