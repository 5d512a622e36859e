"""Runs a plan in local processes of PyTorch (extra ``torch``)."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parenvs.clock.comparison import States, Traced, change_error, nudged
from parenvs.clock.kernels import LIMIT_SECONDS, check_device, layer_modules, together, watch_of
from parenvs.errors import ParenvsError, one_line, shown
from parenvs.exports.parallel import Parallel, by_position, check_names, cut
from parenvs.exports.torch import TorchPlan
from parenvs.graph.python_source import torch_module
from parenvs.graph.pytorch.export import argument_names, loss_of

# Operation of PyTorch -> kind, and which of its arguments is the whole array; None: the result.
_KINDS = {
    "all_reduce": ("all-reduce", 0),
    "allreduce_": ("all-reduce", 0),
    "all_gather_into_tensor": ("all-gather", None),
    "_allgather_base_": ("all-gather", 0),
    "reduce_scatter_tensor": ("reduce-scatter", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "all_to_all_single": ("all-to-all", 0),
    "alltoall_base_": ("all-to-all", 1),
    "send": ("send", 0),
}


class Meter(TorchDispatchMode):
    """Counts what is sent, and the greatest number of bytes that tensors hold, while entered.

    Arrays of one element are not counted: the mean of a loss.

    Attributes:
        traffic: kind -> number of collectives that this process took part in, and bytes of their
            whole arrays; of sends, those that it sent.
        peak_bytes: of tensors that were made and not yet freed, at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.traffic: dict[str, tuple[int, int]] = {}
        self.peak_bytes = 0
        self._current_bytes = 0
        self._addresses: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, on local tensors
        for tensor in tree_leaves((args, kwargs)):
            self._count_storage(tensor, is_new=False)  # what was there before
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).split(".")[-1]
        if "c10d" in func.namespace and name in _KINDS:
            kind, argument = _KINDS[name]
            arrays = tree_leaves(result if argument is None else args[argument])
            size = nbytes(x for x in arrays if isinstance(x, torch.Tensor) and x.numel() > 1)
            if size:
                count, before = self.traffic.get(kind, (0, 0))
                self.traffic[kind] = (count + 1, before + size)
        for tensor in tree_leaves(result):
            self._count_storage(tensor)
        return result

    def _count_storage(self, tensor: Any, is_new: bool = True) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        try:
            storage = tensor.untyped_storage()
            size, address = storage.nbytes() if is_new else 0, storage._cdata
        except (RuntimeError, NotImplementedError):
            return  # it has none
        # Tensors that share a storage hold its bytes once.
        if address in self._addresses:
            return
        self._addresses.add(address)
        self._current_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._current_bytes)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._addresses.discard(address)
        self._current_bytes -= size


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors, of this process's parts of distributed ones."""
    local = (x.to_local() if isinstance(x, DTensor) else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in local)


RATE = 1e-3
_SEED = 0
# Characters of an error that a note shows.
_LONGEST = 200
_PRELOAD = ("parenvs.clock.torch_runs", "torch._dynamo")


def start(
    source: str,
    arguments: str | None,
    plan: TorchPlan,
    steps: int,
    adam: bool = False,
    kind: str = "cpu",
) -> list[dict[str, Any]]:
    """Train a module as a plan says, and on one device beside.

    Args:
        source: the module, see ``parenvs.graph.python_source.torch_module``.
        arguments: its arguments, see there; their samples are repeated to a step's batch.
        plan: the plan in PyTorch's words.
        steps: that are timed, behind one that is not.
        adam: whether to update by Adam, else by plain gradient descent.
        kind: ``"cpu"``: gloo; ``"cuda"``: NCCL, a GPU for each process.

    Returns:
        By rank: ``losses``, ``single`` (losses on one device, of the first process), seconds of
        each step as ``step`` and of its update as ``update``, ``single_seconds``, ``state``: what
        the process has of weights and the optimizer's arrays after the steps, whole ones, by name;
        ``start``, ``wanted`` and ``again``, of the first process, those of one device: before the
        steps, after them, and after them from weights that were ``nudged``; ``gradients`` of the
        first step, and the same of one device; ``traffic`` and ``peak_bytes`` of one more step.

    Raises:
        ParenvsError: there are no such devices, or a process failed.
    """
    processes = plan.pipe * plan.data * plan.model
    check_device(kind, processes)
    given = (source, arguments, plan, steps, adam, kind)
    return together(train, processes, given, kind, 1, LIMIT_SECONDS, _PRELOAD)


def train(
    rank: int,
    source: str,
    arguments: str | None,
    plan: TorchPlan,
    steps: int,
    adam: bool,
    kind: str,
) -> dict[str, Any]:
    """Be one of the processes; see ``start``."""
    warnings.simplefilter("ignore")  # of libraries, in every process
    module, loss, batch = made_model(source, arguments, plan)
    plan = _with_inputs(plan, module, len(batch) - 1)
    answer: dict[str, Any] = {}
    if rank == 0:
        answer |= _single(module, loss, batch, plan.micro_batches, steps, adam, kind)
    dist.barrier()
    torch.manual_seed(_SEED)
    # The seed that one device begins with, for dropout.
    parallel = Parallel(module, loss, plan, *batch[:-1], device=kind)
    parameters = list(parallel.parameters())
    optimizer = _optimizer(parameters, adam)
    watch = watch_of(kind)
    losses, step, update = [], [], []
    named = [(part.name_of(x), p) for part in parallel.parts for x, p in part.named_parameters()]
    for _ in range(1 + steps):  # the first one passes shapes
        optimizer.zero_grad()
        dist.barrier()
        stop = watch()
        losses.append(parallel.step(*batch))
        step.append(stop())
        if "gradients" not in answer:
            answer["gradients"] = _gradients(named)
        stop = watch()
        optimizer.step()
        update.append(stop())
    answer["state"] = _state(named, optimizer)
    optimizer.zero_grad()
    states = [x for state in optimizer.state.values() for x in state.values()]
    # The meter counts what is made while it is entered; these were there before.
    resident = nbytes(parameters)
    resident += nbytes(x for x in states if isinstance(x, torch.Tensor) and x.ndim)
    with Meter() as meter:
        parallel.step(*batch)
    peak = resident + meter.peak_bytes
    if kind == "cuda":  # its allocator knows, the workspaces of kernels included
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        parallel.step(*batch)
        peak = torch.cuda.max_memory_allocated()
    return answer | {
        "losses": losses,
        "step": step[1:],
        "update": update[1:],
        "traffic": meter.traffic,
        "peak_bytes": peak,
    }


def made_model(
    source: str, arguments: str | None, plan: TorchPlan
) -> tuple[nn.Module, Any, tuple[torch.Tensor, ...]]:
    """Make a module with values that are the same in every process, its loss, and a batch.

    Args:
        source: the module.
        arguments: its arguments.
        plan: says the samples of the batch; those of the arguments are repeated, or cut. Arguments
            of another length than the first (the edges of a graph) have none, and stay as they are.

    Returns:
        The module, without dropout, which takes all inputs by position; ``loss(output, target)``;
        inputs, with the target last.

    Raises:
        ParenvsError: the module takes others than tensors, or none.
    """
    torch.manual_seed(_SEED)
    module, loss, inputs, keywords = torch_module(source, arguments)
    if not inputs and not keywords:
        raise ParenvsError(f"--args: {source} needs inputs; give --args NAME or FILE.py:NAME")
    # Processes draw other masks than one device, so that nothing could be compared.
    for part in module.modules():
        is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or (name == "p" and is_dropout)):
                setattr(part, name, 0.0)
    target = inputs[len(inputs) - (loss is not None) :]
    inputs = inputs[: len(inputs) - len(target)]
    module = by_position(module, len(inputs), list(keywords))
    names = list(argument_names(module, len(inputs) + len(keywords), len(target)).values())
    tensors = (*inputs, *keywords.values(), *target)
    for name, value in zip(names, tensors, strict=True):
        if not isinstance(value, torch.Tensor):
            raise ParenvsError(
                f"--args: {name} of {source} is no tensor: {shown(value)}; bind it in the module"
            )
    samples = plan.batch
    places = [plan.inputs.get(name, (None, None))[0] or 0 for name in names]
    has_samples = any(
        x.shape[place : place + 1] == (samples,) for x, place in zip(tensors, places, strict=True)
    )
    size = samples if has_samples else next((len(x) for x in tensors if x.ndim), 1)
    # Repeated in order, so that every process can make the same batch alone.
    numbers = torch.arange(samples) % size
    batch = tuple(x.detach()[numbers] if x.ndim and len(x) == size else x.detach() for x in tensors)
    if loss is None:
        return module, _stand_in, (*batch, torch.zeros(samples))
    if len(batch) < 2:
        raise ParenvsError(f"--args: {source} has a loss, so its inputs need a target behind them")
    return module, loss, batch


def traced(source: str, arguments: str | None, plan: TorchPlan) -> Traced:
    """Return what a module itself says of the bytes of a plan's step, see ``Traced``.

    Args:
        source: the module, see ``start``.
        arguments: its arguments, see there.
        plan: the plan in PyTorch's words.

    Raises:
        ParenvsError: the module cannot be made, or cut.
    """
    module, loss, batch = made_model(source, arguments, plan)
    check_names(module, plan)
    shapes = {name: tuple(x.shape) for name, x in module.named_parameters()}
    if plan.pipe == 1:
        rehearsed = plan.model > 1 and not dist.is_initialized()
        return _rehearsed(module, loss, plan, batch, shapes) if rehearsed else Traced(shapes)
    rows = plan.batch // plan.micro_batches // plan.data
    micro = [
        x[:rows] if x.ndim and len(x) == plan.batch else x.expand(rows, *x.shape[1:])
        for x in batch[:-1]
    ]
    stages = cut(copy.deepcopy(module), plan.cuts, micro)
    sent = sum(sum(both) for stage in stages[1:] for both in stage.given_bytes)
    return Traced(shapes, float(sent * plan.micro_batches * plan.data * plan.model))


def _rehearsed(
    module: nn.Module,
    loss: Any,
    plan: TorchPlan,
    batch: tuple[torch.Tensor, ...],
    shapes: Mapping[str, tuple[int, ...]],
) -> Traced:
    """Run the step of the first process in a group whose collectives send nothing."""
    ranks = plan.data * plan.model
    plan = _with_inputs(plan, module, len(batch) - 1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel = Parallel(module, loss, plan, *batch[:-1])
            parallel.step(*batch)  # the first one passes shapes
            for parameter in parallel.parameters():
                parameter.grad = None
            with Meter() as meter:
                parallel.step(*batch)
    except ParenvsError:
        raise
    except Exception as error:  # of the module, on values that are not its own
        words = "collectives are those of the plan alone, as a rehearsal failed"
        return Traced(shapes, notes=(f"{words} ({one_line(error)[:_LONGEST]})",))
    finally:
        dist.destroy_process_group()
    return Traced(shapes, traffic={k: float(x * ranks) for k, (_, x) in meter.traffic.items()})


def check_chain(source: str, arguments: str | None, chain: Mapping[str, float], where: str) -> None:
    """Refuse a module that a chain was not measured of.

    Args:
        source: the module.
        arguments: its arguments.
        chain: layer by name -> bytes of its weights.
        where: its file.

    Raises:
        ParenvsError: a layer is missing, or has weights of another size; the line names it.
    """
    layers = layer_modules(torch_module(source, arguments)[0])
    seen: set[int] = set()
    # The profile counts weights at their first use, so shared ones are skipped later.
    for name, size in chain.items():
        layer = layers.get(name.split("#")[0])
        if layer is None:
            raise ParenvsError(
                f"{where}: a profile of another model: {source} has no layer {shown(name)}; "
                f"run parenvs profile {source}"
            )
        weights = [x for x in layer.parameters() if x.requires_grad and id(x) not in seen]
        seen |= {id(x) for x in weights}
        if nbytes(weights) != size:
            raise ParenvsError(
                f"{where}: a profile of another model: {name} has {size:,.0f} bytes of weights "
                f"there and {nbytes(weights):,} in {source}; run parenvs profile {source}"
            )


def _single(
    module: nn.Module,
    loss: Any,
    batch: Sequence[torch.Tensor],
    micro_batches: int,
    steps: int,
    adam: bool,
    kind: str,
) -> dict[str, Any]:
    """Train on one device, from the module's weights and again from nudged ones."""
    # One device sees the whole batch at once, unless statistics are those of a micro-batch.
    has_norms = any(isinstance(x, nn.modules.batchnorm._BatchNorm) for x in module.modules())
    micro_batches = micro_batches if has_norms else 1
    parts = [
        x.to(kind).chunk(micro_batches)
        if x.shape[:1] == batch[-1].shape[:1]
        else [x] * micro_batches
        for x in batch
    ]
    watch = watch_of(kind)

    def train_replica(start: nn.Module) -> tuple[list[float], list[float], Arrays, Arrays]:
        replica = copy.deepcopy(start).to(kind)
        torch.manual_seed(_SEED)
        optimizer = _optimizer(list(replica.parameters()), adam)
        losses, seconds = [], []
        gradients: Arrays = {}
        for _ in range(1 + steps):
            optimizer.zero_grad()
            stop = watch()
            total = torch.zeros((), device=kind)
            for *inputs, target in zip(*parts, strict=True):
                value = loss(replica(*inputs), target) / micro_batches
                value.backward()
                total += value.detach()
            losses.append(total.item())
            seconds.append(stop())
            gradients = gradients or _gradients(replica.named_parameters())
            optimizer.step()
        trained = [(name, x) for name, x in replica.named_parameters() if x.grad is not None]
        state = _state(trained, optimizer)
        return losses, seconds[1:], state, gradients

    nudged_module = copy.deepcopy(module)
    with torch.no_grad():
        for number, parameter in enumerate(nudged_module.parameters()):
            real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
            values = nudged(real.float().numpy(), number, real.element_size())
            real.copy_(torch.from_numpy(values))
    losses, seconds, state, gradients = train_replica(module)
    again, again_gradients = train_replica(nudged_module)[2:]
    # The optimizer's arrays begin as zeros.
    start = dict.fromkeys(state, np.zeros(())) | _state(module.named_parameters())
    return {
        "single": losses,
        "single_seconds": seconds,
        "start": {name: np.broadcast_to(start[name], x.shape) for name, x in state.items()},
        "wanted": state,
        "again": again,
        "wanted_gradients": gradients,
        "again_gradients": again_gradients,
    }


Arrays = dict[str, np.ndarray]


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A whole array; all processes that share it have to ask."""
    whole = tensor.detach()
    whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
    whole = whole.float() if whole.dtype.is_floating_point else whole
    return whole.cpu().numpy().copy()


def _gradients(named: Iterable[tuple[str, torch.Tensor]]) -> Arrays:
    return {name: _array(x.grad) for name, x in named if x.grad is not None}


def _state(
    named: Iterable[tuple[str, torch.Tensor]], optimizer: torch.optim.Optimizer | None = None
) -> Arrays:
    """Weights that are trained and the optimizer's arrays of them, whole ones, by name."""
    arrays = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        optimizer_state = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, value in (("", parameter), *optimizer_state.items()):
            if isinstance(value, torch.Tensor):
                arrays[f"{name} {key}".strip()] = _array(value)
    return arrays


def states(answers: Sequence[dict[str, Any]]) -> tuple[States, States]:
    """Compare what processes have of state and gradients with one device; see ``start``."""
    first = answers[0]

    def furthest(key: str, wanted: Arrays, start: Arrays) -> Arrays:
        found = {}
        for name, expected in wanted.items():
            values = [answer[key][name] for answer in answers if name in answer[key]]
            if values:  # of processes that hold the same weight, the one that is furthest off
                begin = start.get(name, np.zeros_like(expected))
                found[name] = max(values, key=lambda x: change_error(x, expected, begin))
        return found

    start, wanted, gradients = first["start"], first["wanted"], first["wanted_gradients"]
    state = States.of(start, wanted, first["again"], furthest("state", wanted, start))
    actual = furthest("gradients", gradients, {})
    return state, States.of_gradients(gradients, first["again_gradients"], actual)


def _optimizer(parameters: list[nn.Parameter], adam: bool) -> torch.optim.Optimizer:
    # A stage may have frozen weights alone, and optimizers need a parameter.
    trained = [x for x in parameters if x.requires_grad] or [nn.Parameter(torch.empty(0))]
    return torch.optim.Adam(trained, RATE) if adam else torch.optim.SGD(trained, RATE)


def _with_inputs(plan: TorchPlan, module: nn.Module, inputs: int) -> TorchPlan:
    if plan.shapes or plan.pipe > 1 or plan.data == 1:
        return plan
    names = argument_names(module, inputs, 1).values()
    return replace(plan, inputs=dict.fromkeys(names, (0, None)))


def _stand_in(output: Any, target: torch.Tensor) -> torch.Tensor:
    return loss_of(output, "the module")[0]
