"""A PyTorch module as a flat list of ATen operations, by ``torch.export`` (extra ``torch``).

Nothing is allocated: a module on the meta device stays there, any other is traced with fake
tensors. What only inference needs is not made: the operations are those of the loss.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import _pytree as fx_pytree
from torch.fx import traceback as fx_traceback
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from parenvs.errors import HloError, listed, one_line, shown
from parenvs.graph.flow import reachable
from parenvs.graph.pytorch import nodes
from parenvs.graph.pytorch.nodes import ROOT, TITLE, Exported, Input, RefusedError

_BLOCK = "wrap_with_set_grad_enabled"


@torch.library.custom_op("parenvs::stop_gradient", mutates_args=())
def stop_gradient(x: Tensor) -> Tensor:
    """Return a copy of ``x``."""
    return x.clone()


@stop_gradient.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def mark_stops(module: Any) -> None:
    """Put a mark behind every ``detach`` and every result of a block under ``torch.no_grad``."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.ops.aten.detach.default:
            _mark_uses(graph, node)
        elif str(node.target) == _BLOCK:
            if node.args[0] is False:
                for user in list(node.users):
                    if isinstance(user.meta.get("val"), Tensor):
                        _mark_uses(graph, user)
            else:
                mark_stops(getattr(module, node.args[1].target))
        elif str(node.target) == "wrap_with_autocast":
            mark_stops(getattr(module, node.args[4].target))
    module.recompile()


def _mark_uses(graph: Any, node: Any) -> None:
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


class _StandIn:
    """Whether a stand-in is the loss; exporting would set a plain attribute back."""

    used = False


class Loss(nn.Module):
    """The module with its loss on top."""

    def __init__(self, module: nn.Module, loss: Callable[..., Any] | None, targets: int) -> None:
        super().__init__()
        setattr(self, ROOT, module)
        self.loss, self.targets = loss, targets
        self.stand_in = _StandIn()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed in the last run, in sentences."""
        if not self.stand_in.used:
            return ()
        return (
            f"{title_of(getattr(self, ROOT))} returns no loss, so the mean square of its "
            "output stands in for it; return the loss, or give one (docs/reading.md)",
        )

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the loss; the last ``targets`` of ``inputs`` are what it compares with."""
        inputs, targets = inputs[: len(inputs) - self.targets], inputs[len(inputs) - self.targets :]
        module: nn.Module = getattr(self, ROOT)
        output, title = _run(module, inputs, keywords), title_of(module)
        if self.loss is not None:
            name = getattr(self.loss, "__name__", type(self.loss).__name__)
            value = self.loss(output, *targets)
            if not _is_scalar(value):
                is_tensor = isinstance(value, torch.Tensor)
                kind = f"a tensor {tuple(value.shape)}" if is_tensor else shown(value)
                raise HloError(f"the loss {name!r} returns {kind}; it has to be a floating scalar")
            return value
        value, has_loss = loss_of(output, title)
        self.stand_in.used |= not has_loss
        return value


def _run(module: nn.Module, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Run a module; an exported program by an interpreter, which keeps the submodules of nodes."""
    if not isinstance(module, torch.fx.GraphModule) or not hasattr(module, TITLE):
        return module(*inputs, **keywords)
    flat = fx_pytree.tree_flatten_spec((inputs, keywords), module._in_spec)
    with fx_traceback.preserve_node_meta():
        result = torch.fx.Interpreter(module).run(*flat, enable_io_processing=False)
    spec: Any = module._out_spec
    return pytree.tree_unflatten(result, spec)


def loss_of(output: Any, title: str) -> tuple[Any, bool]:
    """Return the loss in what a module returns, and whether it is its own or stands in for one.

    Raises:
        HloError: no floating tensor is in it; the line has the module's ``title``.
    """
    result = _own_loss(output)
    if result is not None:
        return result, True
    parts = output.logits if hasattr(output, "logits") else output
    tensors = [t for t in pytree.tree_leaves(parts) if _is_floating(t)]
    if not tensors:
        raise HloError(
            f"{title} returns no floating tensor, so nothing can be trained; return the loss"
        )
    return sum(t.float().square().mean() for t in tensors), False


def _own_loss(output: Any) -> Any:
    """The loss that a module returns: alone, as ``loss``, or the only scalar of a tuple."""
    if isinstance(output, torch.Tensor):
        return output if _is_scalar(output) else None
    result = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if result is not None and _is_floating(result):
        return result.mean() if result.ndim else result
    if isinstance(output, (tuple, list)):
        scalars = [x for x in output if _is_scalar(x)]
        return scalars[0] if len(scalars) == 1 else None
    return None


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_scalar(value: Any) -> bool:
    return _is_floating(value) and value.numel() == 1


def title_of(module: nn.Module) -> str:
    """Return the name of a module's class, of an exported program the name that it was made of."""
    return getattr(module, TITLE, None) or type(module).__name__


NO_VALUES = "what a tensor holds decides a shape or a branch there, which no compiled step can have"
"""Why a data-dependent module cannot be planned."""
_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders whose lines are not those that a user reads."""
_STANDARD = (contextlib.__file__, functools.__file__)
_LONGEST = 200
"""Characters of PyTorch's error that are shown."""

_INSTEAD = {
    "ctc_loss": "a kernel computes it that tracing cannot follow: return the log probabilities "
    "instead (the mean square of the output then stands in for the loss), or write it as a loop "
    "over time by torch.logsumexp",
    "flex_attention": "it has no gradient here: write it as scaled_dot_product_attention, with the "
    "block mask or what is added to the scores as attn_mask",
}
"""Name of a PyTorch function -> why it fails, and what can be written in its place."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch's own warnings, logs and listings of tracing off the user's screen."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    output = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
    sys.stderr.write(output.getvalue())  # what fails is listed there, which the error says


@contextlib.contextmanager
def masks_as_given() -> Iterator[None]:
    """Keep ``nn.Transformer`` from reading what its masks hold, which is but a hint for kernels."""
    before = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


def refused(error: Exception, wrapper: nn.Module, name: str) -> RefusedError:
    """Return PyTorch's error in short, and ours: the line, the submodule and the remedy."""
    paths = {id(m): path for path, m in wrapper.named_modules()}
    frames = list(traceback.walk_tb(error.__traceback__))
    functions = {frame.f_code.co_name for frame, _ in frames}
    running = [
        frame.f_locals.get("self")
        for frame, _ in frames
        if frame.f_code.co_name in ("_call_impl", "forward")
    ]
    named = [module for module in running if id(module) in paths]
    path = paths[id(named[-1])].removeprefix(ROOT).lstrip(".").replace(".", "/") if named else ""
    where = f"{name}, submodule {path} ({type(named[-1]).__name__})" if path else name
    words = one_line(error).partition(" (unhinted")[0].rstrip(". ")
    kind = type(error).__name__
    signs = ("DataDependent", "DynamicOutput", "data-dependent", ".item()")
    by_value = any(sign in f"{kind} {words}" for sign in signs)
    words = words if len(words) <= _LONGEST else words[:_LONGEST] + "..."
    files = [(frame.f_code.co_filename, line) for frame, line in frames]
    called = [f"{file}:{line}" for file, line in files if is_called_from(file)]
    where = f"{called[-1]}: {where}" if called else where
    if any(_is_packed(frame) for frame, _ in frames):
        remedy = (
            "packed sequences have shapes that depend on values: give the recurrent layer the "
            "padded batch, and mask what is behind each sequence's end"
        )
    elif instead := [name for name in _INSTEAD if f"aten._{name}" in words or name in functions]:
        remedy = f"{instead[0]}: {_INSTEAD[instead[0]]}"
    elif by_value:
        remedy = f"{NO_VALUES}: compute all cases and mask them, or use torch.cond"
    else:
        remedy = (
            "the module has to run on its example inputs, and torch.export(strict=False) has to "
            "accept it"
        )
    return RefusedError(f"{where}: torch.export fails ({kind}: {words})", remedy)


def is_called_from(file: str) -> bool:
    """Return whether a file calls PyTorch: it is neither PyTorch's own nor the importer's."""
    return not (file.startswith((*_OWN, "<")) or file in _STANDARD)


def _is_packed(frame: FrameType) -> bool:
    return frame.f_code.co_name == "pack_padded_sequence" or any(
        isinstance(value, nn.utils.rnn.PackedSequence) for value in frame.f_locals.values()
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
    wrapper = Loss(module, loss, len(targets))
    device = _device(module)
    arguments, named = pytree.tree_map(
        lambda leaf: _on_device(leaf, device), ((*inputs, *targets), dict(keywords or {}))
    )
    with quiet(), masks_as_given():
        try:
            program = torch.export.export(wrapper, arguments, named, strict=False)
            mark_stops(program.graph_module)
            program = program.run_decompositions(_table())
        except HloError:
            raise
        except Exception as error:
            raise refused(error, wrapper, title_of(module)) from error
    return _flatten(program, module, wrapper, len(inputs))


def _table() -> dict[Any, Any]:
    # Grid sampling is not among PyTorch's core decompositions, but can be written with others.
    table = torch.export.default_decompositions()
    table.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
    for name in WHOLE:
        packet, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload or "default"), None)
    return table


def _flatten(program: Any, module: nn.Module, wrapper: Loss, positional: int) -> Exported:
    """Return a traced program as plain data: inputs with their kinds, and the nodes it needs."""
    signature, title = program.graph_signature, title_of(module)
    updated = {nodes.path_of(path): name for name, path in signature.buffers_to_mutate.items()}
    outputs = [spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    if getattr(signature, "user_inputs_to_mutate", None):
        raise HloError(f"{title} changes one of its inputs in place; copy it first")
    graph = program.graph
    needed = _needed(graph, {*outputs, *updated.values()})
    trained = _needed(graph, set(outputs))
    # Weights that the loss needs only behind a stop or whole numbers have no gradient.
    reached = _needed(graph, set(outputs), _has_gradient)
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    first_name = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    names = argument_names(module, positional, wrapper.targets)
    notes = list(wrapper.notes)
    inputs, calls, unused, constant = [], [], [], []
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    for node in graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            kind, target = spec.kind.name, (spec.target or "").removeprefix(f"{ROOT}.")
            target = first_name.get(target, target)
            path = nodes.path_of(target)
            if kind == "TOKEN":
                continue  # the order of what checks and prints
            if kind == "PARAMETER":
                if node not in trained:
                    unused.append(path)
                    continue
                role = "frozen" if target in frozen or node not in reached else "weight"
                if role == "frozen" and target not in frozen:
                    constant.append(path)
            elif kind == "BUFFER":
                role = "statistics" if path in updated else "buffer"
            elif kind == "CONSTANT_TENSOR":
                role = "constant"
            elif kind == "USER_INPUT":
                role, path = "batch", names.get(node.name, node.name)
            else:
                raise HloError(f"{title} needs {kind.lower()} {node.name!r} as input")
            tensor = node.meta["val"]
            # A number is a constant of the program.
            if isinstance(tensor, Tensor) and (node in needed or role == "batch"):
                value = _constant(program, spec.target) if role == "constant" else None
                shape, element = nodes.shape_of(tensor), nodes.element_of(tensor.dtype)
                inputs.append(Input(node.name, path, shape, element, role, value))
        elif node.op == "call_function" and node in needed:
            calls.append(node)
            for item in nodes.all_nodes([node]):
                _check(item)
        elif node.op == "get_attr" and node in needed and nodes.inner_graph(node) is None:
            raise HloError(f"{title} needs {node.target!r}, which torch.export gives no input for")
    used = {item.path for item in inputs}
    unused = [path for path in unused if path not in used]
    if unused:
        notes.append(f"the loss does not need {listed(unused)}; left out")
    if constant:
        notes.append(
            f"no gradient reaches {listed(constant)} (torch.no_grad, detach, or whole "
            "numbers made of it); taken as frozen, without optimizer state"
        )
    weights = {x for x in graph.nodes if x.name in specs and specs[x.name].kind.name == "PARAMETER"}
    traits = {"loss": _adding(next(x for x in graph.nodes if x.name == outputs[0]), weights)}
    types = sorted({nodes.element_of(x.dtype) for x in module.parameters()})
    traits |= {"types": " and ".join(types)} if len(types) > 1 else {}
    traits |= {"unused": " ".join(unused).replace("/", ".")} if unused else {}
    traits |= {"norms": "batch"} if any("batch_norm" in nodes.operation(x) for x in calls) else {}
    known = tuple(inputs), tuple(calls), outputs[0], updated, tuple(notes), traits
    return Exported(title, *known)


# Operations on a scalar that scale it.
_SCALING = ("neg", "_to_copy", "view", "reshape", "clone", "squeeze", "unsqueeze", "mul", "div")


def _adding(loss: Any, weights: set[Any]) -> str:
    ways = _ways(loss)
    over = {x for x in ways if not isinstance(x, str)}
    reached = reachable(over, lambda node: node.all_input_nodes)
    # Means over labels count those that are not ignored; of other divisors there may be one alone.
    counts = {x for x in over if nodes.operation(x.args[0]).startswith(("ne.", "bitwise_not"))}
    if over and weights.isdisjoint(reached) and (counts == over or len(ways) == 1):
        ways = ways - over - {"mean"} | {"labels"}
    return " and ".join(sorted({x if isinstance(x, str) else "division" for x in ways}))


def _ways(node: Any) -> set[Any]:
    # Ways in which terms of a scalar add samples up, or the operations that make them.
    name = nodes.operation(node).partition(".")[0]
    terms = [x for x in node.args[:2] if hasattr(x, "target")]
    if name in ("add", "sub"):
        return set().union(*map(_ways, terms))
    if name in ("mean", "sum"):
        dims = terms[0].args[1:2]
        inner = nodes.operation(terms[0]).partition(".")[0]
        return {inner if inner in ("mean", "sum") and dims and 0 in dims[0] else name}
    if name not in _SCALING or not terms:
        return {name}
    first, *divisors = terms
    ways = _ways(first)
    if name == "div" and ways == {"sum"}:
        # A sum over as many as there are is a mean.
        count, number = first.args[0].meta["val"].numel(), node.args[1]
        while divisors and nodes.operation(divisors[0]).startswith("_to_copy"):
            divisors = divisors[0].args[:1]
        is_count = isinstance(number, (int, float)) and number > 1 and not count % number
        return set(divisors) or ({"mean"} if is_count else ways)
    return {name} if divisors else ways


def _has_gradient(node: Any) -> bool:
    value = node.meta.get("val")
    # Whole numbers carry no gradient, so what is behind them gets none.
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    return not whole and node.target is not torch.ops.parenvs.stop_gradient.default


def _needed(graph: Any, names: set[str], through: Callable[[Any], bool] | None = None) -> set[Any]:
    """The nodes that those of ``names`` are made of, they included; only ``through`` some."""

    def inputs(node: Any) -> list[Any]:
        return node.all_input_nodes if through is None or through(node) else []

    return reachable((node for node in graph.nodes if node.name in names), inputs)


def _check(node: Any) -> None:
    """Record where a node is called, and raise an error if a shape depends on values."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    lines = (f"{file}:{line}" for file, line in frames[::-1] if is_called_from(file))
    node.meta[nodes.LINE] = next(lines, "")
    operation, value = nodes.operation(node), node.meta.get("val")
    if operation == "_embedding_bag":
        node.kwargs = {**node.kwargs, **_bag_size(node)}
    for tensor in value if isinstance(value, (tuple, list)) else (value,):
        shape = nodes.shape_of(tensor) if isinstance(tensor, Tensor) else ()
        if not all(type(n) is int for n in shape):
            raise RefusedError(
                f"{operation} {nodes.where(node)}: a shape that depends on values "
                f"({', '.join(map(str, shape))}): {NO_VALUES}",
                "use a fixed shape and a mask",
            )


def _bag_size(node: Any) -> dict[str, int]:
    """How many places each bag of an ``EmbeddingBag`` has, if PyTorch made the bags of rows."""
    indices, offsets = node.args[1:3]
    bounds = list(offsets.args) if str(offsets.target).startswith("aten.arange") else []
    if len(bounds) != 3 or node.kwargs.get("include_last_offset", node.args[7:8] == (True,)):
        return {}
    start, end, step = bounds
    whole = start == 0 and end == indices.meta["val"].numel() and end % step == 0
    return {"bag_size": step} if whole else {}


def _constant(program: Any, target: str) -> Any:
    """A tensor that the module's code makes of Python's numbers; None on the meta device."""
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
    names = [plain[k] if k < len(plain) else f"input_{k}" for k in range(positional)]
    names += [f"target_{k}" if targets > 1 else "target" for k in range(targets)]
    return {f"inputs_{k}": name for k, name in enumerate(names)}


def _device(module: nn.Module) -> str:
    tensors = [*module.parameters(), *module.buffers()]
    kinds = {t.device.type for t in tensors}
    if "meta" in kinds and len(kinds) > 1:
        module.to("meta")
    return "meta" if "meta" in kinds else (tensors[0].device.type if tensors else "cpu")


def _on_device(leaf: Any, device: str) -> Any:
    """An example input on the module's device: one that needs no memory, if it has to be made."""
    if not isinstance(leaf, torch.Tensor):
        library = type(leaf).__module__.partition(".")[0]
        if library in ("jax", "jaxlib", "numpy"):
            raise HloError(
                f"the example inputs hold {shown(type(leaf).__name__)} of {library}; a PyTorch "
                "module takes tensors"
            )
        return leaf
    return leaf if leaf.device.type == device else torch.empty_like(leaf, device=device)
