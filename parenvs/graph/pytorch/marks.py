"""Marks where gradients stop, which decomposing an exported program would lose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STOP = "parenvs.stop_gradient"
"""Name of the operation whose result is its argument, without a gradient."""
_BLOCK = "wrap_with_set_grad_enabled"


@torch.library.custom_op("parenvs::stop_gradient", mutates_args=())
def stop_gradient(x: Tensor) -> Tensor:
    """Return a copy of ``x``."""
    return x.clone()


@stop_gradient.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def mark_stops(program: Any) -> None:
    """Put a mark behind every ``detach`` and every result of a block under ``torch.no_grad``."""
    _mark(program.graph_module)


def _mark(module: Any) -> None:
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.detach.default:
            _put(graph, node)
        elif str(node.target) == _BLOCK:
            if node.args[0] is False:
                for user in list(node.users):
                    if isinstance(user.meta.get("val"), Tensor):
                        _put(graph, user)
            else:
                _mark(getattr(module, node.args[1].target))
        elif str(node.target) == "wrap_with_autocast":
            _mark(getattr(module, node.args[4].target))
    module.recompile()


def _put(graph: Any, node: Any) -> None:
    """Put a mark in front of each use of a node, so that it sees what was written in place so far.

    What writes into the node itself, and blocks without gradients, which may, are given the node.
    """
    value = node.meta.get("val")
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return
    for user in list(node.users):
        schema = getattr(user.target, "_schema", None)
        writes = schema is not None and schema.is_mutable
        if writes or (str(user.target) == _BLOCK and user.args[0] is False):
            continue
        with graph.inserting_before(user):
            mark = graph.call_function(torch.ops.parenvs.stop_gradient.default, (node,))
        mark.meta = dict(node.meta)
        user.replace_input_with(node, mark)
