"""Marks where gradients stop, which decomposing an exported program would lose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STOP = "parenvs.stop_gradient"
"""Name of the operation whose result is its argument, without a gradient."""


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
        elif str(node.target) == "wrap_with_set_grad_enabled":
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
    value = node.meta.get("val")
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        return
    with graph.inserting_after(node):
        mark = graph.call_function(torch.ops.parenvs.stop_gradient.default, (node,))
    mark.meta = dict(node.meta)
    node.replace_all_uses_with(mark, delete_user_cb=lambda user: user is not mark)
