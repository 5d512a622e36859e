"""Matrix products and copies on one device of PyTorch (extra ``torch``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.utils import _pytree as pytree

from parenvs.clock import members
from parenvs.clock.members import Layers, Timing
from parenvs.cluster import COLLECTIVES, FORWARD, PASSES, WEIGHT
from parenvs.errors import ParenvsError, ProfileError, one_line
from parenvs.graph.flow import reachable
from parenvs.graph.python_source import torch_module
from parenvs.graph.pytorch.export import Loss
from parenvs.machine import LOOPBACK, awake_cores, hold_cores, stay_on, store_at

# TF32 is no type of arrays: float32, multiplied with fewer bits.
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}  # fmt: skip


def check_device(kind: str, count: int) -> None:
    """Refuse devices that PyTorch does not have here, see ``check_devices``."""
    available = torch.cuda.device_count() if kind == "cuda" else count
    members.check_devices(kind, count, f"PyTorch {torch.__version__}", available)


def watch_of(kind: str) -> Callable[[], Callable[[], float]]:
    """Return the watch of a kind of device: on a GPU the seconds between two of its events."""
    return _started if kind == "cuda" else members.started


def _started() -> Callable[[], float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()

    def stop() -> float:
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return stop


def products(
    shapes: Sequence[members.Shape], repeats: int, kind: str
) -> tuple[dict[tuple[str, members.Shape], list[float]], dict[str, str]]:
    """Time matrix products, see ``timed_products``."""

    def prepare(precision: str, shape: members.Shape) -> Callable[[], Any]:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        role, *groups, m, k, n = shape
        groups = [] if groups == [1] else groups
        ones = partial(torch.ones, dtype=_TYPES[precision], device=kind)
        # As linear layers run: weights are (outputs, inputs), and gradients of weights are sums
        # over samples, which lie in front in both.
        a = ones((*groups, k, m)).mT if role == WEIGHT else ones((*groups, m, k))
        b = ones((*groups, n, k)).mT if role == FORWARD else ones((*groups, k, n))
        return partial(torch.matmul, a, b, out=ones((*groups, m, n)))

    before = torch.get_float32_matmul_precision()
    time = partial(members.repeated, repeats=repeats, watch=watch_of(kind))
    try:
        rates, missing = members.timed_products(_TYPES, shapes, kind, prepare, time)
    finally:
        torch.set_float32_matmul_precision(before)
    return rates, {"fp8": "PyTorch has no plain product of it", **missing}


def attention(
    shapes: Sequence[tuple[int, ...]], repeats: int, kind: str, missing: dict[str, str]
) -> dict[tuple[str, tuple[Any, ...]], list[float]]:
    """Time causal attention in both passes; shapes as in ``parenvs.cluster.Measured``.

    What cannot run is told to ``missing``: size -> why.
    """
    precision = "bf16" if kind == "cuda" else "fp32"
    time = partial(members.samples, repeats=repeats, warm_up=1, watch=watch_of(kind))
    made = partial(torch.ones, dtype=_TYPES[precision], device=kind, requires_grad=True)
    found = {}
    attend = nn.functional.scaled_dot_product_attention
    for shape in shapes:
        samples, sequence, heads, kv_heads, width, value_width = shape
        try:
            query, key, value = (
                made((samples, *size))
                for size in (
                    (heads, sequence, width), (kv_heads, sequence, width),
                    (kv_heads, sequence, value_width),
                )
            )  # fmt: skip
            run = partial(attend, query, key, value, is_causal=True, enable_gqa=heads > kv_heads)
            found[precision, (PASSES[0], *shape)] = time(run)
            backward = _Backward(run)
            found[precision, (PASSES[1], *shape)] = time(backward, before=backward.prepare)
        except RuntimeError as error:  # scores that take more memory than there is
            missing[f"attention of {' x '.join(map(str, shape))}"] = one_line(error)
    return found


@dataclass
class _Backward:
    """The backward pass of a function with bound arrays; each needs a forward pass before it."""

    run: Any
    output: Any = None

    def prepare(self) -> None:
        self.output = self.run()

    def __call__(self) -> None:
        torch.autograd.grad(self.output, self.run.args, torch.ones_like(self.output))


def layer_seconds(repeats: int, kind: str) -> float:
    """Return the seconds in which this process starts the kernels of a layer of one token."""
    layer = nn.TransformerEncoderLayer(8, 1, 8, device=kind)
    run = partial(layer, torch.ones((1, 1, 8), device=kind))
    return float(np.median(members.samples(run, repeats, 3, watch=watch_of(kind))))


def copies(sizes: Sequence[int], repeats: int, kind: str) -> dict[int, list[float]]:
    """Time copies of arrays of each number of bytes; a copy reads and writes each."""
    rates = {}
    for size in sizes:
        source = torch.ones(size // members.ELEMENT, device=kind)
        run = partial(torch.empty_like(source).copy_, source)
        rates[size] = members.repeated(run, repeats, watch=watch_of(kind))
    return rates


# Rounds over all collectives, so that no size is measured in one moment.
_ROUNDS = 4
# Bytes up to which a collective runs as often in every round as larger ones in all.
_SMALL = 300_000
GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def collective(kind: str, size: int, group: Any, device: str) -> Callable[[], Any]:
    """Return what runs a collective once, on arrays that are made beforehand.

    Args:
        kind: one of ``COLLECTIVES``; a send is from the first to the second process of the group.
        size: bytes as the methods of ``Links`` take them, a multiple of the group's elements.
        group: a group of ``torch.distributed`` of which this process is one.
        device: ``"cpu"`` or ``"cuda"``.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = torch.ones(size // members.ELEMENT, device=device)
    if kind == "send":
        if rank == 0:
            return partial(dist.send, whole, group=group, group_dst=1)
        receive = partial(dist.recv, whole, group=group, group_src=0)
        return receive if rank == 1 else lambda: None
    if kind == "all-reduce":
        return partial(dist.all_reduce, whole, group=group)
    part = torch.ones(whole.numel() // count, device=device)
    if kind == "all-gather":
        return partial(GATHER, whole, part, group=group)
    if kind == "reduce-scatter":
        return partial(SCATTER, part, whole, group=group)
    return partial(dist.all_to_all_single, torch.empty_like(whole), whole, group=group)


def measure(
    rank: int,
    device: str,
    shapes: Sequence[members.Shape],
    attended: Sequence[tuple[int, ...]],
    copied: Sequence[int],
    sizes: Sequence[int],
    groups: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    """Measure kernels on all processes at once, then collectives of growing groups.

    Returns:
        ``"products"``, ``"attention"``, ``"copies"`` and ``"layer_seconds"``, see the functions;
        ``"collectives"``, (kind, group, bytes) -> samples, of those that this process took part
        in; ``"missing"``, what could not be measured -> why.
    """
    rates, missing = products(shapes, repeats, device)
    kernels = {
        "products": rates,
        "attention": attention(attended, repeats, device, missing),
        "copies": copies(copied, repeats, device),
        "layer_seconds": layer_seconds(repeats, device),
    }
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for count in groups:
        group = dist.new_group(list(range(count)))
        kinds = [kind for kind in COLLECTIVES if kind != "send" or count == 2]
        for _ in range(_ROUNDS if rank < count else 0):  # spread over time
            for kind in kinds:
                try:
                    for size in sizes:
                        exact = members.sized(size, count)
                        runs = repeats if size <= _SMALL else -(-repeats // _ROUNDS)
                        run = collective(kind, exact, group, device)
                        before = partial(dist.barrier, group)
                        timed = members.samples(run, runs, 2, before=before, watch=watch_of(device))
                        seconds.setdefault((kind, count, exact), []).extend(timed)
                except (RuntimeError, NotImplementedError) as error:
                    missing[f"{kind} of {count}"] = one_line(error)
        dist.barrier()
    return {**kernels, "collectives": seconds, "missing": missing}


BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Kind of device -> what sends between processes."""
LIMIT_SECONDS = 3600.0
"""Seconds in which a collective has to end; if a process fails, nobody waits for that."""
MEET_SECONDS = 60.0
"""Seconds in which processes have to meet."""
_PRELOAD = ("torch.distributed", "gymnasium", "scipy.optimize")


def together(
    work: Callable[..., Any],
    processes: int,
    given: Sequence[Any] = (),
    kind: str = "cpu",
    threads: int = 1,
    limit: float = MEET_SECONDS,
    preload: Sequence[str] = (),
) -> list[Any]:
    """Run ``work(rank, *given)`` in each of ``processes`` local processes of one group.

    If one fails, or this process is interrupted or killed, all of them end.

    Args:
        work: a function that the processes can import.
        processes: how many.
        given: what else it takes.
        kind: ``"cpu"``: they meet by gloo; ``"cuda"``: by NCCL, each with a GPU of its own.
        threads: threads of each process.
        limit: seconds in which a collective has to end.
        preload: further modules that are imported once for all processes.

    Returns:
        What the work returned, by rank.

    Raises:
        ParenvsError: one of them failed; the line says which.
    """
    store = store_at(LOOPBACK, MEET_SECONDS)
    group = (processes, kind, store.port, threads, limit)
    groups = [(work, (rank, *group), given) for rank in range(processes)]
    with awake_cores() if kind == "cpu" else nullcontext():
        return members.run_members(_run_in_group, groups, (*_PRELOAD, *preload))


def _run_in_group(work: Callable[..., Any], group: tuple[Any, ...], given: Sequence[Any]) -> Any:
    rank, processes, kind, port, threads, limit = group
    torch.set_num_threads(threads)
    if kind == "cuda":
        torch.cuda.set_device(rank)
    else:
        # A share of the cores each, so that no process waits for another's core.
        hold_cores(rank, processes)
    try:
        stay_on(LOOPBACK)
        store = dist.TCPStore(LOOPBACK, port, None, False, timedelta(seconds=MEET_SECONDS))
        timeout = timedelta(seconds=limit)
        dist.init_process_group(
            BACKENDS[kind], store=store, rank=rank, world_size=processes, timeout=timeout
        )
    except (RuntimeError, OSError) as error:
        raise ParenvsError(f"cannot meet the others ({members.first_line(error)})") from None
    answer = work(rank, *given)
    dist.barrier()
    dist.destroy_process_group()
    return answer


_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(eq=False)
class _Call:
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
    source: str, arguments: str | None, name: str, repeats: int, warm_up: int, device: str,
    threads: int, processes: int,
) -> Layers:  # fmt: skip
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
        together(_measured, processes, given, device, threads=threads, limit=LIMIT_SECONDS)
    )


def _measured(rank: int, source: str, arguments: str | None, *settings: Any) -> Layers:
    module, loss, inputs, keywords = torch_module(source, arguments)
    if dist.is_initialized():
        dist.barrier()
    return measured_layers(module, inputs, keywords, loss, *settings)


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
    positional, named = pytree.tree_map_only(
        torch.Tensor, lambda x: x.to(device), (tuple(inputs), dict(keywords or {}))
    )
    wrapper = Loss(module, loss, 0 if loss is None else 1)
    try:
        calls = _recorded_calls(wrapper, module, positional, named)
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
            activations.append(_saved_bytes(call))
        except RuntimeError as error:
            raise ProfileError(f"profile {name}: {call.name} fails alone ({error})") from None
    tensors = [x for x in pytree.tree_leaves((positional, named)) if isinstance(x, torch.Tensor)]
    batch = len(tensors[0]) if tensors and tensors[0].ndim else 1
    return Layers.of(
        name,
        [call.name for call in calls],
        timings,
        time(wrapper, (positional, named)),
        batch,
        cut_bytes=_cut_bytes(calls),
        parameter_bytes=members.first_uses(
            # A layer that runs twice has its weights once.
            {id(x): _bytes([x]) for x in call.module.parameters() if x.requires_grad}
            for call in calls
        ),
        resident_bytes=activations,
    )


def _recorded_calls(
    wrapper: nn.Module, module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
) -> list[_Call]:
    calls: list[_Call] = []
    made_by: dict[Any, int] = {}  # node of autograd, or tensor's id -> number of the call
    run_count = Counter[str]()
    running: list[_Call] = []

    def before_layer(title: str, layer: nn.Module, inputs: Any, keywords: Any) -> None:
        run_count[title] += 1
        suffix = f"#{run_count[title]}" if run_count[title] > 1 else ""
        reads = {k for x in _tensors((inputs, keywords)) for k in _makers(x, made_by)}
        # a layer that works in place would change what is kept of its input
        copies = pytree.tree_map_only(torch.Tensor, _copied, (inputs, dict(keywords)))
        calls.append(_Call(title + suffix, layer, copies, reads=reads))
        running.append(calls[-1])

    def after_layer(layer: nn.Module, inputs: Any, output: Any) -> None:
        call = running.pop()
        call.outputs = _tensors(output)
        for x in call.outputs:
            made_by[x.grad_fn if x.grad_fn is not None else id(x)] = calls.index(call)

    handles = []
    for title, layer in layer_modules(module).items():
        hook = partial(before_layer, title)
        handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        handles.append(layer.register_forward_hook(after_layer))
    try:
        wrapper(*positional, **named)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _makers(tensor: torch.Tensor, made_by: dict[Any, int]) -> set[int]:
    """Return the calls whose outputs a tensor is computed from, with no other call between."""
    if tensor.grad_fn is None:
        return {made_by[id(tensor)]} if id(tensor) in made_by else set()

    def inputs_of(node: Any) -> list[Any]:
        return [] if node in made_by else [x for x, _ in node.next_functions if x is not None]

    return {made_by[node] for node in reachable([tensor.grad_fn], inputs_of) if node in made_by}


def _cut_bytes(calls: Sequence[_Call]) -> list[int]:
    """Bytes that cross a cut behind each call: its output, and earlier ones that are still read."""
    last_reader = list(range(len(calls)))  # the last call that reads the output of each
    for number, call in enumerate(calls):
        for maker in call.reads:
            last_reader[maker] = max(last_reader[maker], number)
    size = [_bytes(call.outputs) for call in calls]
    return [
        sum(size[k] for k in range(number + 1) if k == number or last_reader[k] > number)
        for number in range(len(calls))
    ]


def _saved_bytes(call: _Call) -> int:
    """Bytes that a layer saves for its backward pass, without its weights."""
    weights = {x.untyped_storage().data_ptr() for x in call.module.parameters()}
    sizes: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        # Views of one storage are kept once, the largest counts.
        address = x.untyped_storage().data_ptr()
        if address not in weights:
            sizes[address] = max(sizes.get(address, 0), x.numel() * x.element_size())
        return x

    positional, named = pytree.tree_map_only(torch.Tensor, _copied, call.inputs)
    with saved_tensors_hooks(keep, lambda x: x):
        output = call.module(*positional, **named)  # keeps what it saved alive, and apart
    del output
    return sum(sizes.values())


def _timed(
    module: nn.Module,
    inputs: Any,
    repeats: int,
    warm_up: int,
    watch: Callable[[], Callable[[], float]],
) -> tuple[Timing, Timing]:
    weights = [x for x in module.parameters() if x.requires_grad]
    run: dict[str, Any] = {}

    def prepare() -> None:
        run.clear()
        fresh = pytree.tree_map_only(torch.Tensor, _copied, inputs)
        # Gradients end at the layer's inputs and do not run on into earlier layers.
        edges = [get_gradient_edge(x) for x in _tensors(fresh) if x.requires_grad]
        run.update(inputs=fresh, targets=[*edges, *weights])

    def forward() -> None:
        positional, named = run["inputs"]
        run["output"] = module(*positional, **named)

    # A backward pass frees its graph, so each one needs a forward pass of its own, untimed.
    def prepare_backward() -> None:
        prepare()
        forward()
        run["ends"] = [x for x in _tensors(run["output"]) if x.grad_fn is not None]
        run["gradients"] = [torch.ones_like(x) for x in run["ends"]]

    def backward() -> None:
        torch.autograd.grad(run["ends"], run["targets"], run["gradients"], allow_unused=True)

    forward_timing = Timing.of(members.samples(forward, repeats, warm_up, prepare, watch))
    prepare_backward()
    if not (run["ends"] and run["targets"]):  # nothing to train in it, and nothing before it
        return forward_timing, Timing(0.0, 0.0, 0.0, repeats)
    return forward_timing, Timing.of(
        members.samples(backward, repeats, warm_up, prepare_backward, watch)
    )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach()
    if tensor.requires_grad:
        copy.requires_grad_()
    return copy.clone()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
