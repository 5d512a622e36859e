"""Reads what compilers' passes have done to a module: its order, and what they left in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from parenvs.errors import HloError
from parenvs.graph.proto import SPLIT

ANNOTATIONS = (
    "Sharding",
    "xla.sdy.ShardingConstraint",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
)
"""Targets of custom calls that return their operand, and say how to partition it."""
_MANUAL = (
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
)
"""Targets of custom calls around code that is written for one device of several."""


def what_passes_left(module: Any) -> Iterator[str]:
    """Yield a sentence for each thing in a module that does not come from the model.

    Args:
        module: an HloModuleProto message.

    Raises:
        HloError: parts of the module are written for one device of several.
    """
    nodes = [node for c in module.computations for node in c.instructions]
    manual = [node.name for node in nodes if node.custom_call_target in _MANUAL]
    if manual:
        raise HloError(
            f"{manual[0]!r} begins or ends code for one device of several (shard_map); give the "
            "model as it is for one device, without shard_map"
        )
    if any(node.custom_call_target in ANNOTATIONS or node.sharding.type == SPLIT for node in nodes):
        yield "the module's own shardings and sharding constraints are ignored: plans decide anew"
    if any(node.opcode == "fusion" for node in nodes):
        yield (
            "XLA has optimised this module; its copies, layouts and merged instructions hide the "
            "model from partitions: the dump before optimisation (*before_optimizations*) is better"
        )
    made_by_xla = Counter(
        node.custom_call_target for node in nodes if node.custom_call_target.startswith("__")
    )
    if made_by_xla:
        calls = ", ".join(f"{count} {target}" for target, count in sorted(made_by_xla.items()))
        yield f"custom calls of XLA's cost no FLOPs here: {calls}"


def by_id(computation: Any) -> list[Any]:
    """Return the instructions of an HloComputationProto in the order of the trace.

    That is the order of their ids, except where XLA's passes have added instructions with higher
    ids than their users': then it is that of the file, changed where an operand comes too late. An
    instruction that waits for itself, or for one that is missing, is kept, for the reader to name.
    """
    nodes = sorted(computation.instructions, key=lambda node: node.id)
    if _is_topological(nodes):
        return nodes
    nodes = list(computation.instructions)
    if not _is_topological(nodes):
        from parenvs.graph.formats.trace_order import in_order  # it loads scipy

        place = {node.id: position for position, node in enumerate(nodes)}
        before = [[place[i] for i in set(x.operand_ids) if i in place] for x in nodes]
        order = in_order(before, list(range(len(nodes))))
        nodes = [nodes[i] for i in order] if len(order) == len(nodes) else nodes
    return nodes


def _is_topological(nodes: Sequence[Any]) -> bool:
    """Return whether every operand stands before its users."""
    seen: set[int] = set()
    for node in nodes:
        if not seen.issuperset(node.operand_ids):
            return False
        seen.add(node.id)
    return True
