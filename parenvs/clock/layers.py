"""Measures the layers of a PyTorch module (extra ``torch``): seconds, and bytes at their borders.

Layers are submodules: lists and sequences of modules are opened, any other child of the module is
one layer. Each runs alone, on the inputs that it got in a run of the whole module; its backward
pass makes the gradients of its weights, and of those inputs that need one. The first layer's input
is data and needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils import _pytree as pytree

from parenvs.clock.kernels import check_device, watch_of
from parenvs.clock.measured import Layers
from parenvs.clock.processes import together
from parenvs.clock.timer import Timing, samples
from parenvs.errors import ProfileError
from parenvs.graph.python_source import torch_module
from parenvs.graph.pytorch.export import Loss

_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(eq=False)
class _Call:
    """One run of a layer inside of the whole module."""

    name: str
    module: nn.Module
    inputs: Any
    outputs: list[torch.Tensor] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    """Numbers of the earlier calls whose outputs it reads."""


def layer_modules(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a module by name."""
    modules: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, _CONTAINERS):
            modules |= {f"{name}.{inner}": part for inner, part in layer_modules(child).items()}
        else:
            modules[name] = child
    return modules


def profiled(
    source: str,
    arguments: str | None,
    name: str = "module",
    repeats: int = 20,
    warm_up: int = 3,
    device: str = "cpu",
    threads: int = 1,
    processes: int = 1,
) -> Layers:
    """Measure each layer of a module, in several processes at once if asked for.

    Stages of a pipeline share caches and memory. So several processes measure at the same time, and
    of each layer the slowest counts.

    Args:
        source: the module, see ``parenvs.graph.python_source.torch_module``.
        arguments: its arguments, see there.
        name: of the profile.
        repeats: runs of each layer that count.
        warm_up: runs before them.
        device: ``"cpu"`` or ``"cuda"``.
        threads: of each process, on a CPU.
        processes: that measure at once.

    Raises:
        ProfileError: see ``measured_layers``.
        ParenvsError: there are no such devices, or a process failed.
    """
    check_device(device, processes)
    given = (source, arguments, name, repeats, warm_up, device)
    if processes == 1:
        torch.set_num_threads(threads)
        return _measured(0, *given)
    return Layers.slowest(
        together(_measured, processes, given, device, threads=threads, limit=3600.0)
    )


def _measured(
    rank: int, source: str, arguments: str | None, name: str, repeats: int, warm_up: int,
    device: str,
) -> Layers:  # fmt: skip
    """Measure in one process."""
    module, loss, inputs, keywords = torch_module(source, arguments)
    if dist.is_initialized():
        dist.barrier()
    return measured_layers(module, inputs, keywords, loss, name, repeats, warm_up, device)


def measured_layers(
    module: nn.Module,
    inputs: Sequence[Any],
    keywords: dict[str, Any] | None = None,
    loss: Callable[..., Any] | None = None,
    name: str = "module",
    repeats: int = 20,
    warm_up: int = 3,
    device: str = "cpu",
) -> Layers:
    """Measure each layer of a module.

    Args:
        module: the module, with values.
        inputs: of one micro-batch; with a loss, the last is what that compares with.
        keywords: further inputs.
        loss: makes a scalar of the output and the last input; without one, see ``Loss``.
        name: of the profile.
        repeats: runs of each layer that count.
        warm_up: runs before them.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        ProfileError: the module has fewer than two layers that run, or one fails alone.
    """
    module.to(device)
    given, named = pytree.tree_map_only(
        torch.Tensor, lambda x: x.to(device), (tuple(inputs), dict(keywords or {}))
    )
    whole = Loss(module, loss, 0 if loss is None else 1)
    try:
        calls = _recorded(whole, module, given, named)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ProfileError(f"profile {name}: the module fails on its inputs ({error})") from None
    if len(calls) < 2:
        raise ProfileError(
            f"profile {name}: {len(calls)} layers ran, and a chain needs at least two; layers are "
            "children of the module"
        )
    time = partial(_timed, repeats=repeats, warm_up=warm_up, watch=watch_of(device))
    timings, activations = [], []
    for call in calls:
        try:
            timings.append(time(call.module, call.inputs))
            activations.append(_kept_bytes(call))
        except RuntimeError as error:
            raise ProfileError(f"profile {name}: {call.name} fails alone ({error})") from None
    tensors = [x for x in pytree.tree_leaves((given, named)) if isinstance(x, torch.Tensor)]
    batch = len(tensors[0]) if tensors and tensors[0].ndim else 1
    return Layers.of(
        name,
        [call.name for call in calls],
        timings,
        time(whole, (given, named)),
        batch,
        cut_bytes=_cut_bytes(calls),
        parameter_bytes=_parameter_bytes(calls),
        resident_bytes=activations,
    )


def _recorded(
    whole: nn.Module, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
) -> list[_Call]:
    """Run the whole module, and note what each layer gets and gives."""
    calls: list[_Call] = []
    made_by: dict[Any, int] = {}  # node of autograd, or tensor's id -> number of the call
    runs: dict[str, int] = {}

    running: list[_Call] = []

    def opened(title: str, layer: nn.Module, inputs: Any, keywords: Any) -> None:
        runs[title] = runs.get(title, 0) + 1
        again = f"#{runs[title]}" if runs[title] > 1 else ""
        reads: set[int] = set()
        for x in _tensors((inputs, keywords)):
            reads |= _makers(x, made_by)
        # a layer that works in place would change what is kept of its input
        own = pytree.tree_map_only(torch.Tensor, _copied, (inputs, dict(keywords)))
        calls.append(_Call(title + again, layer, own, reads=reads))
        running.append(calls[-1])

    def closed(layer: nn.Module, inputs: Any, output: Any) -> None:
        call = running.pop()
        call.outputs = _tensors(output)
        for x in call.outputs:
            made_by[x.grad_fn if x.grad_fn is not None else id(x)] = calls.index(call)

    handles = []
    for title, layer in layer_modules(module).items():
        handles.append(layer.register_forward_pre_hook(
            lambda layer, inputs, keywords, title=title: opened(title, layer, inputs, keywords),
            with_kwargs=True,
        ))  # fmt: skip
        handles.append(layer.register_forward_hook(closed))
    try:
        whole(*given, **named)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _makers(tensor: torch.Tensor, made_by: dict[Any, int]) -> set[int]:
    """Return the calls whose outputs a tensor is computed from, with no other call between."""
    if tensor.grad_fn is None:
        return {made_by[id(tensor)]} if id(tensor) in made_by else set()
    makers, seen, open_nodes = set(), set(), [tensor.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in made_by:
            makers.add(made_by[node])
        else:
            open_nodes += [x for x, _ in node.next_functions if x is not None]
    return makers


def _cut_bytes(calls: Sequence[_Call]) -> list[int]:
    """Bytes that cross a cut behind each call: its output, and earlier ones that are still read."""
    last = list(range(len(calls)))  # the last call that reads the output of each
    for number, call in enumerate(calls):
        for maker in call.reads:
            last[maker] = max(last[maker], number)
    size = [_bytes(call.outputs) for call in calls]
    return [
        sum(size[k] for k in range(number + 1) if k == number or last[k] > number)
        for number in range(len(calls))
    ]


def _parameter_bytes(calls: Sequence[_Call]) -> list[int]:
    """Bytes of the trained weights of each call, of which none was in an earlier one."""
    seen: set[int] = set()
    sizes = []
    for call in calls:
        own = [x for x in call.module.parameters() if x.requires_grad and id(x) not in seen]
        seen |= {id(x) for x in own}
        sizes.append(_bytes(own))
    return sizes


def _kept_bytes(call: _Call) -> int:
    """Bytes that a layer keeps for its backward pass, weights not counted."""
    weights = {x.untyped_storage().data_ptr() for x in call.module.parameters()}
    sizes: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        address = x.untyped_storage().data_ptr()
        if address not in weights:
            sizes[address] = max(sizes.get(address, 0), x.numel() * x.element_size())
        return x

    positional, named = pytree.tree_map_only(torch.Tensor, _copied, call.inputs)
    with saved_tensors_hooks(keep, lambda x: x):
        held = call.module(*positional, **named)  # keeps what it saved alive, and apart
    del held
    return sum(sizes.values())


def _timed(
    module: nn.Module,
    inputs: Any,
    repeats: int,
    warm_up: int,
    watch: Callable[[], Callable[[], float]],
) -> tuple[Timing, Timing]:
    """Time the forward and the backward pass of a module alone."""
    weights = [x for x in module.parameters() if x.requires_grad]
    now: dict[str, Any] = {}

    def prepare() -> None:
        now.clear()
        own = pytree.tree_map_only(torch.Tensor, _copied, inputs)
        edges = [get_gradient_edge(x) for x in _tensors(own) if x.requires_grad]
        now.update(inputs=own, wanted=[*edges, *weights])

    def forward() -> None:
        positional, named = now["inputs"]
        now["output"] = module(*positional, **named)

    def made() -> None:
        prepare()
        forward()
        now["ends"] = [x for x in _tensors(now["output"]) if x.grad_fn is not None]
        now["gradients"] = [torch.ones_like(x) for x in now["ends"]]

    def backward() -> None:
        if now["ends"] and now["wanted"]:
            torch.autograd.grad(now["ends"], now["wanted"], now["gradients"], allow_unused=True)

    forward_timing = Timing.of(samples(forward, repeats, warm_up, prepare, watch))
    made()
    if not (now["ends"] and now["wanted"]):  # nothing to train in it, and nothing before it
        return forward_timing, Timing(0.0, 0.0, 0.0, repeats)
    return forward_timing, Timing.of(samples(backward, repeats, warm_up, made, watch))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with a history of its own, which in-place layers may change."""
    copy = tensor.detach()
    if tensor.requires_grad:
        copy.requires_grad_()
    return copy.clone()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
