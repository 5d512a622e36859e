"""Cuts a PyTorch module into stages that run one after the other (extra ``torch``).

``torch.distributed.pipelining`` traces the module and cuts the trace in front of modules by name.
A stage is given what the stage in front of it gives; so a value that a later one reads (a mask,
rotary embeddings, an encoder's output, the batch itself) is passed on by all stages between.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn
from torch.distributed import pipelining

from parenvs.errors import ParenvsError, did_you_mean, one_line

_DETACH = torch.ops.aten.detach.default
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
"""What tracing makes of ``torch.no_grad()`` within a module."""


class Stage(NamedTuple):
    """A part of a module, and how it is wired to those beside it.

    Attributes:
        module: the part.
        shapes: of each tensor that the stage is given, of a whole micro-batch.
        reads: number of the given tensor that is each input of the part.
        gives: of each tensor that the stage gives, whether it is passed on, and its number among
            the given ones, else among what the part makes.
        given_bytes: of each tensor that the stage is given, of a whole micro-batch, and of the
            gradient that it gives back.
    """

    module: nn.Module
    shapes: tuple[tuple[int, ...], ...]
    reads: tuple[int, ...]
    gives: tuple[tuple[bool, int], ...]
    given_bytes: tuple[tuple[int, int], ...] = ()

    def wired(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Run the part on what the stage is given, and return what it gives."""
        outputs = self.module(*(given[k] for k in self.reads))
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # A view, as no tensor is both input and output of a stage to its backward pass.
        return tuple(
            given[k].view_as(given[k]) if passed else outputs[k] for passed, k in self.gives
        )


def cut(module: nn.Module, cuts: Sequence[str], micro: Sequence[torch.Tensor]) -> list[Stage]:
    """Cut a module into stages.

    Args:
        module: it is changed: the modules in front of which it is cut get a hook.
        cuts: (S-1) names of the modules that begin a stage, each called once, in this order.
        micro: inputs of a micro-batch.

    Returns:
        S stages.

    Raises:
        ParenvsError: there is no such module, PyTorch cannot trace or cut it, or several stages
            hold one weight; the line says which.
    """
    known = {name for name, _ in module.named_modules()}
    for name in cuts:
        if name not in known:
            raise ParenvsError(
                f"cuts: {type(module).__name__} has no module {name!r}"
                f"{did_you_mean(name, known)}; plan this module"
            )
    for name in cuts:
        module.get_submodule(name).register_forward_pre_hook(_marked)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of its own trees
            pipe = pipelining.pipeline(module, tuple(micro), split_policy=inlined)
    except ParenvsError:
        raise
    except Exception as error:  # of any kind, from within tracing: the framework's, then ours
        raise ParenvsError(
            f"{type(error).__name__}: {one_line(error)}; PyTorch cannot trace and cut "
            f"{type(module).__name__}"
        ) from error
    if pipe.num_stages != len(cuts) + 1:
        raise ParenvsError(
            f"cuts: PyTorch makes {pipe.num_stages} stages of {len(cuts) + 1}; call each of the "
            "modules in front of which it is cut once, in order"
        )
    parts = [pipe.get_stage_module(k) for k in range(pipe.num_stages)]
    refuse_tied(module, parts)
    return wired(pipe.split_gm.graph, parts, micro)


def _marked(module: nn.Module, given: Any) -> None:
    """Mark in a trace that a stage begins; a hook in front of the forward pass of a module."""
    pipelining.pipe_split()


def inlined(traced: fx.GraphModule) -> fx.GraphModule:
    """Write what a trace runs under ``torch.no_grad()`` into the trace itself, and return it.

    Tracing makes a graph of its own of it, as an argument of one operation. Cut into stages, the
    argument moves to the front of its stage, and the module around it is then outlined twice, the
    second one in place of the first, with other arguments. Results are detached instead.

    Raises:
        ParenvsError: a module switches something else within itself (``torch.autocast``).
    """
    for node in list(traced.graph.nodes):
        if node.op != "get_attr" or not isinstance(_at(traced, node.target), fx.GraphModule):
            continue
        for user in list(node.users):
            if user.target is not _GRADIENTS:
                raise ParenvsError(
                    f"cuts: {_owner(user)} runs {getattr(user.target, '__name__', user.target)}, "
                    "and PyTorch cannot cut a model with such a part; put it around the step"
                )
            _inline(traced, user)
        traced.graph.erase_node(node)
    traced.recompile()
    return traced


def _at(module: nn.Module, path: str) -> Any:
    """What a module has under a dotted name."""
    result: Any = module
    for name in path.split("."):
        result = getattr(result, name)
    return result


def _owner(node: fx.Node) -> str:
    """Name of the module whose code a node is of."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return (stack[-1][0] if stack else "") or "the module"


def _inline(traced: fx.GraphModule, call: fx.Node) -> None:
    """Write the graph that an operation runs in place of the operation."""
    enabled, graph_node, *given = call.args
    assert isinstance(graph_node, fx.Node)
    inner = _at(traced, str(graph_node.target)).graph
    inputs = [x for x in inner.nodes if x.op == "placeholder"]
    known: dict[fx.Node, Any] = dict(zip(inputs, given, strict=True))
    stack = call.meta.get("nn_module_stack", {})
    with traced.graph.inserting_before(call):
        for node in inner.nodes:
            if node.op == "output":
                results = fx.map_arg(node.args[0], known.__getitem__)
            elif node.op == "get_attr":
                raise ParenvsError(
                    f"cuts: {_owner(call)} switches gradients and more within each other, and "
                    "PyTorch cannot cut a model with such a part"
                )
            elif node.op != "placeholder":
                known[node] = traced.graph.node_copy(node, known.__getitem__)
                known[node].meta.setdefault("nn_module_stack", stack)
        for user in list(call.users):
            value: Any = results[user.args[1]]
            if not enabled:
                value = traced.graph.call_function(_DETACH, (value,))
                value.meta = dict(user.meta, nn_module_stack=stack)
            user.replace_all_uses_with(value)
            traced.graph.erase_node(user)
    traced.graph.erase_node(call)


def wired(
    graph: fx.Graph, parts: Sequence[nn.Module], micro: Sequence[torch.Tensor]
) -> list[Stage]:
    """Say for each part what its stage is given, and what it passes on to later ones.

    Args:
        graph: calls the parts one after the other, on its inputs and on each other's results.
        parts: (S,) in the order of their calls.
        micro: the graph's inputs.

    Raises:
        ParenvsError: the graph returns what another part than the last one makes.
    """
    calls = [node for node in graph.nodes if node.op == "call_module"]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    values = dict(zip(inputs, micro, strict=True))
    source: dict[fx.Node, tuple[int, int]] = {x: (-1, k) for k, x in enumerate(inputs)}
    for number, call in enumerate(calls):
        source[call] = (number, 0)
        for user in call.users:
            if user.op == "call_function":  # an item of several results
                source[user] = (number, int(user.args[1]))
    reads = [[x for x in call.args if isinstance(x, fx.Node)] for call in calls]
    for call, part in zip(calls, parts, strict=True):
        own = [x for x in part.graph.nodes if x.op == "placeholder"]  # type: ignore[union-attr]
        values.update(
            (x, y.meta["val"])
            for x, y in zip(call.args, own, strict=True)
            if x not in values and isinstance(x, fx.Node)
        )
    (output,) = (node for node in graph.nodes if node.op == "output")
    if any(source[x][0] != len(calls) - 1 for x in output.all_input_nodes):
        raise ParenvsError(
            "cuts: the module returns more than its last stage makes; return that alone"
        )
    needed: list[list[fx.Node]] = []  # of each stage and those behind it, from those in front
    later: dict[fx.Node, None] = {}
    for number in reversed(range(len(calls))):
        later = {x: None for x in (*reads[number], *later) if source[x][0] < number}
        needed.insert(0, list(later))
    needed[0] = inputs
    trained = _trained(calls, parts, source)
    stages = []
    for number, part in enumerate(parts):
        given = needed[number]
        if number + 1 < len(calls):
            gives = [
                (x in given, given.index(x) if x in given else source[x][1])
                for x in needed[number + 1]
            ]
        else:
            gives = [(False, source[x][1]) for x in output.all_input_nodes]
        stages.append(
            Stage(
                part,
                tuple(tuple(values[x].shape) for x in given),
                tuple(given.index(x) for x in reads[number]),
                tuple(gives),
                tuple((values[x].nbytes, values[x].nbytes * (x in trained)) for x in given),
            )
        )
    return stages


def _trained(
    calls: Sequence[fx.Node], parts: Sequence[nn.Module], source: Mapping[fx.Node, tuple[int, int]]
) -> set[fx.Node]:
    """What parts make that has a gradient: numbers that are no whole ones, made of weights."""
    found: set[fx.Node] = set()
    for number, (call, part) in enumerate(zip(calls, parts, strict=True)):
        made = _gradients(part, [x in found for x in call.args])
        results = made if isinstance(made, tuple) else (made,)
        found |= {
            node
            for node, (maker, place) in source.items()
            if maker == number and results[place] and (node is not call or len(results) == 1)
        }
    return found


def _gradients(part: nn.Module, given: Sequence[Any]) -> Any:
    """Whether each result of a traced module has a gradient, if those of what it is given have."""
    graph = getattr(part, "graph", None)
    if not isinstance(graph, fx.Graph):
        return any(x.requires_grad for x in part.parameters()) or any(given)
    inputs = iter(given)
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        of = fx.map_arg(node.args, known.get)
        if node.op == "placeholder":
            known[node] = next(inputs)
        elif node.op == "get_attr":
            known[node] = getattr(_at(part, str(node.target)), "requires_grad", False)
        elif node.op == "call_module":
            known[node] = _gradients(_at(part, str(node.target)), of)
        elif node.op == "output":
            return tuple(of[0]) if isinstance(of[0], (tuple, list)) else of[0]
        elif node.target is operator.getitem and isinstance(known[node.args[0]], tuple):
            known[node] = known[node.args[0]][node.args[1]]
        else:
            value = node.meta.get("val")
            whole = isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
            some = any(np.any(known[x]) for x in node.all_input_nodes)
            known[node] = some and not whole and node.target != _DETACH
    raise AssertionError("unreachable")


def refuse_tied(module: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Refuse weights that several stages would hold, each with a gradient of its own.

    Raises:
        ParenvsError: there are some; the line names the first.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    names_of = [{name for name, _ in stage.named_parameters()} for stage in stages]
    for tied in names.values():
        if sum(bool(own & set(tied)) for own in names_of) > 1:
            raise ParenvsError(
                f"cuts: {' and '.join(tied)} are one weight on several stages, whose gradients "
                "PyTorch does not sum; untie them, or plan one stage"
            )
