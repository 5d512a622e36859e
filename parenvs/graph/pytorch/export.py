"""A PyTorch module as a flat list of ATen operations, by ``torch.export`` (extra ``torch``).

Nothing is allocated: a module on the meta device stays there, any other is traced with fake
tensors. What only inference needs is not made: the operations are those of the loss.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from parenvs.errors import HloError, shown
from parenvs.graph.pytorch.losses import ROOT, Loss, title_of
from parenvs.graph.pytorch.marks import mark_stops
from parenvs.graph.pytorch.nodes import (
    ElementType,
    Exported,
    Input,
    Node,
    RefusedError,
    Subprogram,
    TensorType,
    Value,
)
from parenvs.graph.pytorch.watch import (
    NO_VALUES,
    is_called_from,
    masks_as_given,
    quiet,
    refused,
)

WHOLE = (
    "einsum", "gru.input", "linear", "lstm.input", "matmul", "rnn_relu.input", "rnn_tanh.input",
    "scaled_dot_product_attention", "upsample_bilinear2d.vec", "upsample_linear1d.vec",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
)  # fmt: skip
"""ATen operations that are kept as they are.

Decomposed, attention, products and ``einsum`` merge the batch with the heads, so that neither could
be split; recurrent layers would be written out step by step.
"""
_TARGET = "target"
_BAGS = "_embedding_bag"
_FRAME = re.compile(r'File "(.*)", line (\d+)')
"""A line of a stack trace."""


def exported(
    module: nn.Module,
    inputs: Sequence[Any] = (),
    keywords: dict[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
) -> Exported:
    """Export the loss of a module.

    Args:
        module: the module, in the mode (``train()`` or ``eval()``) that it is planned in.
        inputs: positional arguments of its ``forward``; tensors count by shape and type only.
        keywords: its keyword arguments.
        loss: ``loss(output, *targets)``, a scalar tensor (default: what the module returns, if that
            is a scalar, has a ``loss``, or is a tuple with one scalar; else the mean square of its
            output, with a note).
        targets: what the loss compares the output with.

    Raises:
        HloError: PyTorch cannot export the module; the line names the submodule.
    """
    if not isinstance(module, nn.Module):
        raise HloError(f"{shown(module)} is no torch.nn.Module")
    whole = Loss(module, loss, len(targets))
    where = _device(module)
    arguments, named = pytree.tree_map(
        lambda leaf: _placed(leaf, where), ((*inputs, *targets), dict(keywords or {}))
    )
    with quiet(), masks_as_given():
        try:
            program = torch.export.export(whole, arguments, named, strict=False)
            mark_stops(program)
            program = program.run_decompositions(_table())
        except HloError:
            raise
        except Exception as error:
            raise refused(error, whole, title_of(module)) from error
    return _flat(program, module, whole, len(inputs))


def _table() -> dict[Any, Any]:
    """The decompositions, without the operations that are kept whole."""
    table = torch.export.default_decompositions()
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


def _flat(program: Any, module: nn.Module, whole: Loss, positional: int) -> Exported:
    """Turn an exported program into plain data; see ``exported``."""
    signature, title = program.graph_signature, title_of(module)
    updated = {_path(path): Value(name) for name, path in signature.buffers_to_mutate.items()}
    outputs = [spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    if getattr(signature, "user_inputs_to_mutate", None):
        raise HloError(f"{title} changes one of its inputs in place; copy it first")
    graph = program.graph
    kept = {*outputs, *(value.name for value in updated.values())}
    needed = _needed(graph, kept)
    trained = _needed(graph, set(outputs))
    reached = _needed(graph, set(outputs), _has_gradient)
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    first = _first_names(module)
    names = argument_names(module, positional, whole.targets)
    notes = list(whole.notes)
    inputs, nodes = [], []
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    unused, constant = [], []
    for node in graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            kind, target = spec.kind.name, (spec.target or "").removeprefix(f"{ROOT}.")
            target = first.get(target, target)
            path = _path(target)
            if kind == "TOKEN":
                continue  # the order of what checks and prints
            if kind == "PARAMETER":
                if node not in trained:
                    unused.append(path)
                    continue
                told = "frozen" if target in frozen or node not in reached else "weight"
                if told == "frozen" and target not in frozen:
                    constant.append(path)
            elif kind == "BUFFER":
                told = "statistics" if path in updated else "buffer"
            elif kind == "CONSTANT_TENSOR":
                told = "constant"
            elif kind == "USER_INPUT":
                told, path = "batch", names.get(node.name, node.name)
            else:
                raise HloError(f"{title} needs {kind.lower()} {node.name!r} as input")
            type_ = _type(node.meta["val"])
            if not isinstance(type_, TensorType):
                continue  # a number, which is a constant of the program
            if node in needed or told == "batch":
                value = _constant(program, spec.target) if told == "constant" else None
                inputs.append(Input(node.name, path, type_, told, value))
        elif node.op == "call_function" and node in needed:
            nodes.append(_node(node))
        elif node.op == "get_attr" and node in needed and not _inner(node):
            raise HloError(f"{title} needs {node.target!r}, which torch.export gives no input for")
    used = {one.path for one in inputs}
    unused = [path for path in unused if path not in used]
    if unused:
        more = f" and {len(unused) - 3:,} more" if len(unused) > 3 else ""
        notes.append(f"the loss does not need {', '.join(unused[:3])}{more}; left out")
    if constant:
        more = f" and {len(constant) - 3:,} more" if len(constant) > 3 else ""
        notes.append(
            f"no gradient reaches {', '.join(constant[:3])}{more} (torch.no_grad, detach, or whole "
            "numbers made of it); taken as frozen, without optimiser state"
        )
    return Exported(title, tuple(inputs), tuple(nodes), Value(outputs[0]), updated, tuple(notes))


def _first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a parameter -> the first name of it, where several share one tensor."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _has_gradient(node: Any) -> bool:
    """Whether a gradient goes through a node: not where it is stopped, nor to whole numbers."""
    value = node.meta.get("val")
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    return not whole and node.target is not torch.ops.parenvs.stop_gradient.default


def _needed(graph: Any, names: set[str], through: Callable[[Any], bool] | None = None) -> set[Any]:
    """The nodes that those of ``names`` are made of, they included; only ``through`` some."""
    found: set[Any] = set()
    waiting = [node for node in graph.nodes if node.name in names]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if through is None or through(node):
                waiting.extend(node.all_input_nodes)
    return found


def _node(node: Any) -> Node:
    """One call as plain data."""
    target = node.target
    if target is operator.getitem:
        operation = "getitem"
    else:
        operation = str(target).removeprefix("aten.").removesuffix(".default")
    value = node.meta.get("val")
    result = tuple(map(_type, value)) if isinstance(value, (tuple, list)) else _type(value)
    scope, line = _scope(node), _line(node)
    for type_ in result if isinstance(result, tuple) else (result,):
        if isinstance(type_, TensorType) and not all(type(n) is int for n in type_.shape):
            raise RefusedError(
                f"{operation} in {scope or 'the module'}{f', called at {line},' if line else ''} "
                f"gives a shape that depends on values ({', '.join(map(str, type_.shape))}): "
                f"{NO_VALUES}",
                "use a fixed shape and a mask",
            )
    arguments = tuple(map(_argument, node.args))
    keywords = {key: _argument(value) for key, value in node.kwargs.items()}
    if operation == _BAGS:
        keywords |= _bag_size(node)
    return Node(node.name, operation, arguments, keywords, scope, result, line)


def _bag_size(node: Any) -> dict[str, int]:
    """How many places each bag of an ``EmbeddingBag`` has, if PyTorch made the bags of rows."""
    indices, offsets = node.args[1:3]
    bounds = list(offsets.args) if str(offsets.target).startswith("aten.arange") else []
    if len(bounds) != 3 or node.kwargs.get("include_last_offset", node.args[7:8] == (True,)):
        return {}
    start, end, step = bounds
    whole = start == 0 and end == indices.meta["val"].numel() and end % step == 0
    return {"bag_size": step} if whole else {}


def _argument(value: Any) -> Any:
    """An argument of a node as plain data; what tells only where and how to store it is None."""
    if isinstance(value, torch.fx.Node):
        inner = _inner(value)
        return Value(value.name) if inner is None else _subprogram(inner)
    if isinstance(value, (tuple, list)):
        return [_argument(x) for x in value]
    if isinstance(value, torch.dtype):
        return ElementType(_element(value))
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return None
    return value


def _inner(node: Any) -> Any:
    """The graph of a branch or body that a node stands for, or None."""
    found = getattr(node.graph.owning_module, node.target, None) if node.op == "get_attr" else None
    return found if isinstance(found, torch.fx.GraphModule) else None


def _subprogram(module: Any) -> Subprogram:
    """A branch or body as plain data."""
    graph = module.graph
    inputs = tuple(node.name for node in graph.nodes if node.op == "placeholder")
    (output,) = (node for node in graph.nodes if node.op == "output")
    needed = _needed(graph, {node.name for node in output.all_input_nodes})
    nodes = tuple(_node(n) for n in graph.nodes if n.op == "call_function" and n in needed)
    given = output.args[0]
    results = given if isinstance(given, (tuple, list)) else (given,)
    return Subprogram(inputs, nodes, tuple(map(_argument, results)))


def _line(node: Any) -> str:
    """Where a node's operation is called, like ``model.py:12``."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return next((f"{file}:{line}" for file, line in frames[::-1] if is_called_from(file)), "")


def _type(value: Any) -> Any:
    """The type of a tensor; None for anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    shape = tuple(n if type(n) is int else _size(n) for n in value.shape)
    return TensorType(shape, _element(value.dtype))


def _size(size: Any) -> Any:
    """A symbolic size as a number, if it is one."""
    known = getattr(getattr(size, "node", None), "expr", size)
    return int(known) if getattr(known, "is_number", False) else size


def _element(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _path(target: str) -> str:
    """``module.h.0.attn.weight`` as ``h/0/attn/weight``."""
    return target.removeprefix(f"{ROOT}.").replace(".", "/")


def _scope(node: Any) -> str:
    """Path of the submodule that a node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
    return "" if path == ROOT else _path(path)


def _constant(program: Any, target: str) -> Any:
    """A tensor that the module's code makes of Python's numbers, as an array.

    None on the meta device, where it has no values.
    """
    value = program.constants.get(target)
    if value is None or value.device.type == "meta" or isinstance(value, FakeTensor):
        return None
    value = value.detach()
    return value.float().numpy() if value.dtype is torch.bfloat16 else value.numpy()


def argument_names(module: nn.Module, positional: int, targets: int) -> dict[str, str]:
    """Placeholders of the exported wrapper -> names of the arguments of ``forward``."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = {}
    for k in range(positional):
        name = plain[k] if k < len(plain) else f"input_{k}"
        names[f"inputs_{k}"] = name
    for k in range(targets):
        names[f"inputs_{positional + k}"] = f"{_TARGET}_{k}" if targets > 1 else _TARGET
    return names


def _device(module: nn.Module) -> str:
    """The device that a module's tensors are on."""
    tensors = [*module.parameters(), *module.buffers()]
    kinds = {t.device.type for t in tensors}
    if "meta" in kinds and len(kinds) > 1:
        module.to("meta")
    return "meta" if "meta" in kinds else (tensors[0].device.type if tensors else "cpu")


def _placed(leaf: Any, device: str) -> Any:
    """An example input on the module's device: one that needs no memory, if it has to be made."""
    if not isinstance(leaf, torch.Tensor):
        if type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
            raise HloError(
                f"the example inputs hold {shown(type(leaf).__name__)} of "
                f"{type(leaf).__module__.partition('.')[0]}; a PyTorch module takes tensors"
            )
        return leaf
    if leaf.device.type == device:
        return leaf
    if device == "meta":
        return leaf.to("meta")
    return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
