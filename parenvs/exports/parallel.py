"""Trains a PyTorch module as a plan says, on the processes of a group (extra ``torch``).

Parameters become DTensors on the mesh data x model, so that the module's own code runs on whole
shapes; PyTorch inserts the collectives. Replicas that share states (ZeRO) are ``fully_shard``'s.
Stages are traced parts of the module, cut in front of modules by name.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from parenvs.errors import ParenvsError, did_you_mean, one_line
from parenvs.exports.rules import (
    Apart,
    Labels,
    Means,
    Shares,
    Synchronized,
    Whole,
    regrouped,
    without_partial,
)
from parenvs.exports.stages import unmatched
from parenvs.exports.torch import Split, TorchPlan
from parenvs.graph.layout import DATA, MODEL
from parenvs.graph.pytorch.export import argument_names

_DETACH = torch.ops.aten.detach.default
# What tracing makes of `torch.no_grad()` within a module.
_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


class Stage(NamedTuple):
    """A part of a module, and how it is wired to those beside it.

    Attributes:
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

    def wired(self, received: Sequence[Any]) -> tuple[Any, ...]:
        """Run the part on the tensors that the stage receives, and return those that it sends."""
        outputs = self.module(*(received[k] for k in self.reads))
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # A view, as no tensor is both input and output of a stage to its backward pass.
        return tuple(
            received[k].view_as(received[k]) if passed else outputs[k] for passed, k in self.gives
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
    names = {name for name, _ in module.named_modules()}
    for name in cuts:
        if name not in names:
            raise ParenvsError(
                f"cuts: {type(module).__name__} has no module {name!r}"
                f"{did_you_mean(name, names)}; plan this module"
            )
        module.get_submodule(name).register_forward_pre_hook(_marked)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of its own trees
            pipe = pipelining.pipeline(module, tuple(micro), split_policy=inlined)
            # Shapes of what stages pass on, and whether it has gradients; nothing is allocated.
            ShapeProp(pipe.split_gm, FakeTensorMode()).propagate(*micro)
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
    return wire_stages(pipe.split_gm.graph, parts)


def _marked(module: nn.Module, inputs: Any) -> None:
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
        if node.op != "get_attr" or not isinstance(_attribute(traced, node.target), fx.GraphModule):
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


def _attribute(module: nn.Module, path: str) -> Any:
    return operator.attrgetter(path)(module)


def _owner(node: fx.Node) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return (stack[-1][0] if stack else "") or "the module"


def _inline(traced: fx.GraphModule, call: fx.Node) -> None:
    """Replace the call of a graph by the operations in it."""
    enabled, graph_node, *arguments = call.args
    assert isinstance(graph_node, fx.Node)
    inner_graph = _attribute(traced, str(graph_node.target)).graph
    inputs = [x for x in inner_graph.nodes if x.op == "placeholder"]
    copy_of: dict[fx.Node, Any] = dict(zip(inputs, arguments, strict=True))
    stack = call.meta.get("nn_module_stack", {})
    with traced.graph.inserting_before(call):
        for node in inner_graph.nodes:
            if node.op == "output":
                results = fx.map_arg(node.args[0], copy_of.__getitem__)
            elif node.op == "get_attr":
                raise ParenvsError(
                    f"cuts: {_owner(call)} switches gradients and more within each other, and "
                    "PyTorch cannot cut a model with such a part"
                )
            elif node.op != "placeholder":
                copy_of[node] = traced.graph.node_copy(node, copy_of.__getitem__)
                copy_of[node].meta.setdefault("nn_module_stack", stack)
        # Users of the call are items of its results: they take the inlined values instead.
        for user in list(call.users):
            value: Any = results[user.args[1]]
            if not enabled:
                value = traced.graph.call_function(_DETACH, (value,))
                value.meta = dict(user.meta, nn_module_stack=stack)
            user.replace_all_uses_with(value)
            traced.graph.erase_node(user)
    traced.graph.erase_node(call)


def wire_stages(graph: fx.Graph, parts: Sequence[nn.Module]) -> list[Stage]:
    """Return the stages of the parts: which tensors each receives, and which it sends on.

    Args:
        graph: calls the parts one after the other, on its inputs and on each other's results;
            ``ShapeProp`` has gone through it.
        parts: (S,) in the order of their calls.

    Raises:
        ParenvsError: the graph returns what another part than the last one makes.
    """
    calls = [node for node in graph.nodes if node.op == "call_module"]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    # Value -> the part that makes it, -1 for inputs, and its number among the part's results.
    origin: dict[fx.Node, tuple[int, int]] = {x: (-1, k) for k, x in enumerate(inputs)}
    for index, call in enumerate(calls):
        origin[call] = (index, 0)
        for user in call.users:
            if user.op == "call_function":  # an item of several results
                origin[user] = (index, int(user.args[1]))
    reads = [[x for x in call.args if isinstance(x, fx.Node)] for call in calls]
    (output,) = (node for node in graph.nodes if node.op == "output")
    if any(origin[x][0] != len(calls) - 1 for x in output.all_input_nodes):
        raise ParenvsError(
            "cuts: the module returns more than its last stage makes; return that alone"
        )
    received_by: list[list[fx.Node]] = []  # of each stage and those behind it, from those in front
    later: dict[fx.Node, None] = {}
    # Backwards, as a stage passes on what any later one reads and an earlier one makes.
    for index in reversed(range(len(calls))):
        later = {x: None for x in (*reads[index], *later) if origin[x][0] < index}
        received_by.insert(0, list(later))
    # PyTorch's schedules give the first stage every input, whether it is read or not.
    received_by[0] = inputs
    stages = []
    for index, part in enumerate(parts):
        takes = received_by[index]
        # The last stage sends what it makes itself, of which it receives nothing.
        sent = received_by[index + 1] if index + 1 < len(calls) else output.all_input_nodes
        gives = [(x in takes, takes.index(x) if x in takes else origin[x][1]) for x in sent]
        stages.append(
            Stage(
                part,
                tuple(tuple(x.meta["tensor_meta"].shape) for x in takes),
                tuple(takes.index(x) for x in reads[index]),
                tuple(gives),
                tuple(map(_given_bytes, takes)),
            )
        )
    return stages


def _given_bytes(value: fx.Node) -> tuple[int, int]:
    """Bytes of a tensor and of its gradient, by what ``ShapeProp`` has found."""
    tensor = value.meta["tensor_meta"]
    size = math.prod(tensor.shape) * tensor.dtype.itemsize
    return size, size * tensor.requires_grad


def refuse_tied(module: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Refuse weights that several stages would hold, each with a gradient of its own.

    Raises:
        ParenvsError: there are some; the line names the first.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    names_of = [{name for name, _ in stage.named_parameters()} for stage in stages]
    for tied in names.values():
        if sum(not known.isdisjoint(tied) for known in names_of) > 1:
            raise ParenvsError(
                f"cuts: {' and '.join(tied)} are one weight on several stages, whose gradients "
                "PyTorch does not sum; untie them, or plan one stage"
            )


PIPE = "pipe"
"""Name of the axis of stages."""
_SCHEDULES = {
    "1F1B": pipelining.Schedule1F1B,
    "GPipe": pipelining.ScheduleGPipe,
    "Interleaved1F1B": pipelining.ScheduleInterleaved1F1B,
}
# What gloo and NCCL say if a process of the group has ended, or does not answer.
_LOST = re.compile(
    "connection (closed|reset)|broken pipe|socket error|remote (process exited|error)|timed out",
    re.IGNORECASE,
)


class Parallel:
    """This process's part of a module that is trained as a plan says.

    Every process of the group makes one, of the same module with the same parameters.

    Args:
        module: the module; it is copied.
        loss: ``loss(output, *targets)``, which adds samples up as ``plan.loss`` says.
        inputs: the batch of a step, as for ``step``; counts by shape and type only. One without a
            sample for each of the batch (positions, the edges of a graph) is the same for
            all. Inputs that the module takes by name: see ``by_position``.
        device: of the mesh: ``"cpu"`` or ``"cuda"``.

    Raises:
        ParenvsError: the group has another size, the module has other parameters than the plan, or
            PyTorch cannot cut it; the line says which.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., torch.Tensor],
        plan: TorchPlan,
        *inputs: torch.Tensor,
        device: str = "cpu",
    ) -> None:
        self.plan, self.loss = plan, loss
        self.device = torch.device(device)
        sizes = (plan.pipe, plan.data, plan.model)
        devices = math.prod(sizes)
        world = dist.get_world_size() if dist.is_initialized() else 0
        if world != devices:
            raise ParenvsError(
                f"processes: the plan is for {devices}, and the group has {world}; start it with "
                f"torchrun --nproc-per-node {devices}"
            )
        check_names(module, plan)
        # Results that DTensor keeps name groups of equal meshes, in which this was another rank.
        _clear_sharding_prop_cache()
        self.mesh = init_device_mesh(device, sizes, mesh_dim_names=(PIPE, DATA, MODEL))
        # fully_shard serves the data's axis itself; axes of one device are none.
        axes = {DATA: 1 if plan.zero or plan.apart else plan.data, MODEL: plan.model}
        self._axes = tuple(name for name, size in axes.items() if size > 1)
        self.own_samples = plan.data > 1 and DATA not in self._axes
        # Without a pipeline the loss of DTensors is already that of all replicas.
        self._has_parts = self.own_samples or (plan.data > 1 and plan.pipe > 1)
        self._labels = Labels()
        self._grid = self.mesh[self._axes] if self._axes else None
        self._inputs = len(inputs)
        self._shapes = [tuple(x.shape) for x in inputs]
        self._names = list(argument_names(module, len(inputs), 1).values())
        if not any(self._samples_at(x, k) is not None for k, x in enumerate(inputs)):
            first = f"the first has {len(inputs[0])}" if inputs else "none are given"
            raise ParenvsError(f"inputs: the plan is for a batch of {plan.batch}, and {first}")
        # The user's module stays whole: its parameters are replaced by shards below.
        module = copy.deepcopy(module).to(self.device)
        if plan.pipe == 1:
            self.parts = [_Part(module, self)]
        else:
            # Stages are traced at the shape of one micro-batch of one replica.
            rows = plan.batch // plan.micro_batches // (1 if DATA in self._axes else plan.data)
            micro = [self._expanded(x)[:rows].to(self.device) for x in inputs]
            stages = cut(module, plan.cuts, micro)
            # Chunk c of rank r is stage r + c S.
            local = stages[self.mesh[PIPE].get_local_rank() :: plan.pipe]
            self.parts = [_Part(stage.module, self, stage) for stage in local]
        for part in self.parts:
            self._distribute_part(part)
        self._schedule = self._make_schedule() if plan.pipe > 1 else None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this process's part, for an optimizer."""
        for part in self.parts:
            yield from part.parameters()

    def step(self, *batch: torch.Tensor) -> float:
        """Run forward and backward passes of a step, and return its loss.

        Gradients are in place afterwards, those of the whole batch.

        Args:
            *batch: inputs, then targets; every process gives the whole batch.

        Raises:
            ParenvsError: a tensor has another shape than before, or another process of the group
                has ended; the line says which.
        """
        self._shapes += [tuple(x.shape) for x in batch[len(self._shapes) :]]
        for number, (x, shape) in enumerate(zip(batch, self._shapes, strict=False)):
            if tuple(x.shape) != shape:
                behind = number - self._inputs
                name = f"inputs[{number}]" if behind < 0 else f"targets[{behind}]"
                raise ParenvsError(
                    f"{name}: a step is for the shape {shape}, and this one has {tuple(x.shape)}; "
                    "a plan has fixed shapes: pad what is smaller, or leave it out"
                )
        try:
            return self._run_step(batch)
        except Exception as error:  # of any kind: PyTorch's pipelines wrap what they meet
            # PyTorch wraps what gloo or NCCL says several times.
            reason: BaseException | None = error
            while reason is not None and not _LOST.search(str(reason)):
                reason = reason.__cause__ or reason.__context__
            if not isinstance(reason, Exception):
                raise
            raise ParenvsError(
                f"processes: rank {dist.get_rank()} of {dist.get_world_size()} lost another, which "
                f"ended or does not answer ({one_line(reason)[:200]}); its own output says why"
            ) from error

    def _run_step(self, batch: tuple[torch.Tensor, ...]) -> float:
        with ExitStack() as stack:
            if self._axes:
                stack.enter_context(implicit_replication())
                stack.enter_context(Means())
                if self.device.type == "cpu":
                    # DTensor has no strategy for the CPU's fused attention.
                    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self.plan.loss == "labels":
                stack.enter_context(self._labels)
            value = self._pipeline_step(batch) if self._schedule else self._plain_step(batch)
        scale = self._scale()
        # DTensor may leave a gradient partial or split otherwise than its parameter.
        for parameter in self.parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
                gradient = gradient.redistribute(placements=parameter.placements)
            elif gradient is not None and self.plan.apart:
                dist.all_reduce(gradient, group=self.mesh[DATA].get_group())
                gradient /= self.plan.data
            if gradient is not None and self.plan.loss != "mean":
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                local.mul_(scale)
            parameter.grad = gradient
        return float((value * scale).item())

    def _loss(self, output: Any, *targets: torch.Tensor) -> torch.Tensor:
        value = self.loss(output, *targets)
        return value if self.plan.loss != "labels" else value * self._labels.share()

    def _scale(self) -> Any:
        # What makes a mean over the parts of the batch the loss of the batch.
        parts = self.plan.micro_batches * (self.plan.data if self._has_parts else 1)
        if self.plan.loss != "labels":
            return parts if self.plan.loss == "sum" else 1
        total = self._labels.total(self.plan.micro_batches).to(self.device)
        if self._schedule:
            dist.all_reduce(total, group=self.mesh[PIPE].get_group())
        if self._has_parts:
            dist.all_reduce(total, group=self.mesh[DATA].get_group())
        return parts / total

    def _plain_step(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        plan, (part,) = self.plan, self.parts
        total = torch.zeros((), device=self.device)
        for number in range(plan.micro_batches):
            micro = [self._micro_batches(x, k)[number] for k, x in enumerate(batch)]
            shares = [self._distributed(x, k, batch[k]) for k, x in enumerate(micro)]
            output = part(*shares[: self._inputs])
            # Gradients of micro-batches add up to that of the mean over the batch.
            value = self._loss(output, *shares[self._inputs :]) / plan.micro_batches
            value.backward()
            value = value.detach()
            total += value.full_tensor() if isinstance(value, DTensor) else value
        return self._mean(total)

    def _pipeline_step(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        plan = self.plan
        assert self._schedule is not None
        if len(batch) != self._inputs + 1:
            raise ParenvsError("targets: PyTorch's pipelines pass a single one to the loss")
        *inputs, target = map(self._own_samples, batch)
        losses: list[torch.Tensor] = []
        rank = self.mesh[PIPE].get_local_rank()
        first, last = rank == 0, rank == plan.pipe - 1
        self._schedule.step(
            *(inputs if first else ()),
            **self._no_outputs,
            **({"target": target, "losses": losses} if last else {}),
        )
        total = torch.zeros((), device=self.device)
        for value in losses if last else ():
            total += value.detach()
        dist.all_reduce(total, group=self.mesh[PIPE].get_group())
        # The schedule divides the loss by the replicas, whose DTensors sum gradients; undo it here.
        scale = plan.data if DATA in self._axes else 1
        return self._mean(total * scale / plan.micro_batches)

    def _mean(self, value: torch.Tensor) -> torch.Tensor:
        if not self._has_parts:
            return value
        dist.all_reduce(value, group=self.mesh[DATA].get_group())
        return value / self.plan.data

    def _micro_batches(self, tensor: torch.Tensor, number: int) -> Sequence[torch.Tensor]:
        count, dim = self.plan.micro_batches, self._samples_at(tensor, number)
        return [tensor] * count if dim is None else tensor.chunk(count, dim)

    def _samples_at(self, tensor: torch.Tensor, number: int) -> int | None:
        name = self._names[min(number, len(self._names) - 1)]
        dim = self.plan.inputs.get(name, (None, None))[0] or 0
        has_samples = tensor.ndim > dim and tensor.shape[dim] == self.plan.batch
        return dim if has_samples else None

    def _expanded(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with a row for each sample, as pipelines chunk all that they are given."""
        # A view: nothing is copied.
        repeated = tensor.ndim and len(tensor) == 1
        return tensor.expand(self.plan.batch, *tensor.shape[1:]) if repeated else tensor

    def _own_samples(self, tensor: torch.Tensor) -> torch.Tensor:
        rank = self.mesh[DATA].get_local_rank()
        # Micro-batches first, as the schedule cuts what is joined here into the same ones again.
        micro = self._expanded(tensor).chunk(self.plan.micro_batches)
        return torch.cat([x.chunk(self.plan.data)[rank] for x in micro]).to(self.device)

    def _distributed(self, tensor: torch.Tensor, number: int, batch: torch.Tensor) -> torch.Tensor:
        """Return this rank's samples of an input, and its shard of them as a DTensor."""
        dim, tensor = self._samples_at(batch, number), tensor.to(self.device)
        if self.own_samples and dim is not None:
            tensor = tensor.chunk(self.plan.data, dim)[self.mesh[DATA].get_local_rank()]
        if self._grid is None:
            return tensor
        placements = self._placements(self.plan.inputs.get(self._names[number], (None, None)))
        for axis, placement in enumerate(placements):
            if isinstance(placement, Shard):
                rank = self._grid.get_local_rank(axis)
                tensor = tensor.chunk(self._grid.size(axis), placement.dim)[rank]
        return DTensor.from_local(tensor.contiguous(), self._grid, placements, run_check=False)

    def _split(self, name: str, parameter: torch.Tensor) -> tuple[Split, int]:
        """Dimensions of a parameter that are split, and of how many parts ranks have shares."""
        split, parts = self.plan.placements.get(name, (None, None)), 1
        planned = self.plan.shapes.get(name, tuple(parameter.shape))
        if planned == tuple(parameter.shape) or split == (None, None):
            return split, parts
        dims: list[int | None] = []
        for dim in split:
            if dim is not None:
                dim, parts = regrouped(parameter.shape, planned, dim)
            dims.append(dim)
        return (dims[0], dims[1]), parts

    def _placements(self, split: Split, parts: int = 1) -> list[Placement]:
        """The placements of dimensions on the axes that DTensors have."""
        dims = [dim for name, dim in zip((DATA, MODEL), split, strict=True) if name in self._axes]
        shard: Any = Shard if parts == 1 else partial(_StridedShard, split_factor=parts)
        return [Replicate() if dim is None else shard(dim) for dim in dims]

    def _row_split(self, shape: Sequence[int]) -> list[Placement]:
        # What replicas cannot share evenly they all hold.
        replicated = not shape or shape[0] % self.plan.data
        return self._placements((None if replicated else 0, None))

    def _local(self, output: torch.Tensor) -> torch.Tensor:
        assert self._grid is not None
        if not isinstance(output, DTensor):  # made of buffers and constants alone
            same = [Replicate() for _ in self._axes]
            output = DTensor.from_local(output, self._grid, same, run_check=False)
        return output.redistribute(placements=self._row_split(output.shape)).to_local().contiguous()

    def _distribute_part(self, part: _Part) -> None:
        """Split a part's parameters and, with ZeRO, share them among the replicas."""
        if self._grid is not None:
            distributed: dict[int, tuple[nn.Parameter, int]] = {}  # tied ones stay tied
            for name, parameter in list(part.named_parameters(remove_duplicate=False)):
                owner, _, attribute = name.rpartition(".")
                if id(parameter) not in distributed:
                    split, parts = self._split(part.name_of(name), parameter)
                    if parts > 1 and self.plan.zero:
                        raise ParenvsError(
                            f"zero: {part.name_of(name)} is {parts} weights in one, of which ranks "
                            "have shares, and fully_shard cannot share these again; plan with "
                            "--zero 0"
                        )
                    placed = distribute_tensor(
                        parameter.detach(), self._grid, self._placements(split, parts),
                        src_data_rank=None,
                    )  # fmt: skip
                    shard = nn.Parameter(placed, parameter.requires_grad)
                    distributed[id(parameter)] = shard, parts
                shard, parts = distributed[id(parameter)]
                module = part.get_submodule(owner)
                module.register_parameter(attribute, shard)
                # Several weights in one: each rank holds a share of every part, see ``Shares``.
                if parts > 1:
                    part.fused = True
                    parametrize.register_parametrization(
                        module, attribute, Shares(parts), unsafe=True
                    )
                if not all(x.is_replicate() for x in shard.placements):  # type: ignore[attr-defined]
                    module.register_forward_pre_hook(summed_back)
                    module.register_forward_hook(summed)
        if self.plan.zero and self.plan.data > 1:
            fully_shard(part, mesh=self.mesh[DATA], reshard_after_forward=self.plan.zero == 3)

    def _make_schedule(self) -> Any:
        plan, rank = self.plan, self.mesh[PIPE].get_local_rank()
        group = self.mesh[PIPE].get_group()
        count = plan.pipe * plan.chunks
        stages = [
            _PipelineStage(part, rank + chunk * plan.pipe, count, self.device, group=group)
            for chunk, part in enumerate(self.parts)
        ]
        scale = plan.data if DATA in self._axes else 1

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._loss(output, target) / scale

        kind: Any = _SCHEDULES[plan.schedule]
        # outputs that are numbers, a loss of the module's own, cannot be put behind each other
        accepts = "return_outputs" in inspect.signature(kind.step).parameters
        self._no_outputs = {"return_outputs": False} if accepts else {}
        scheduled = stages if plan.schedule == "Interleaved1F1B" else stages[0]
        return kind(scheduled, plan.micro_batches, loss_fn=loss)


class _PipelineStage(pipelining.PipelineStage):
    """A stage that finds shapes on zeros: words and classes of any value may be out of bounds."""

    def _to_tensor(self, arg: Any) -> torch.Tensor:
        tensor: torch.Tensor = super()._to_tensor(arg)
        has_values = isinstance(arg, torch.Tensor) or tensor.is_floating_point()
        return tensor if has_values else torch.zeros_like(tensor)


class _Part(nn.Module):
    """A module, or a stage of one, which takes and gives plain tensors in a pipeline.

    Attributes:
        fused: whether it has weights that are several in one, and split.
    """

    def __init__(self, module: nn.Module, parallel: Parallel, stage: Stage | None = None) -> None:
        super().__init__()
        self.module_of, self.fused = module, False
        self._parallel, self._stage = [parallel], [stage]  # in lists, as they are no submodules

    def name_of(self, name: str) -> str:
        name = name.removeprefix("module_of.")
        return re.sub(r"\bparametrizations\.(.+)\.original$", r"\1", name)

    def forward(self, *inputs: torch.Tensor) -> Any:
        (parallel,), (stage,) = self._parallel, self._stage
        with ExitStack() as stack:
            if parallel._axes:
                stack.enter_context(Whole())
            if self.fused:
                stack.enter_context(Apart())
            if parallel.own_samples:
                stack.enter_context(Synchronized(parallel.mesh[DATA].get_group()))
            if stage is None:
                return self.module_of(*inputs)
            grid = parallel._grid
            if grid is None:  # what is sent has to lie in order
                outputs = tuple(x.contiguous() for x in stage.wired(inputs))
            else:
                placed = [
                    DTensor.from_local(x, grid, parallel._row_split(shape), run_check=False)
                    for x, shape in zip(inputs, stage.shapes, strict=True)
                ]
                outputs = tuple(parallel._local(x) for x in stage.wired(placed))
            return outputs[0] if len(outputs) == 1 else outputs


def by_position(module: nn.Module, positional: int, names: Sequence[str]) -> nn.Module:
    """Return a copy of a module that takes all of its inputs by position.

    Args:
        module: the module; the copy shares its parameters and has the same names of them.
        positional: number of inputs that it takes by position anyway.
        names: of those that it takes by name, in the order in which the copy takes them.
    """
    if not names:
        return module
    others = [name for name in inspect.signature(module.forward).parameters if name not in names]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    order = ("self", *others[:positional], *names)
    parameters = [inspect.Parameter(name, kind) for name in order]

    # A subclass, so that names of parameters and hooks of modules stay as they are.
    class ByPosition(type(module)):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            named = dict(zip(names, given[positional:], strict=True))
            return super().forward(*given[:positional], **named)

    ByPosition.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ByPosition.__name__ = type(module).__name__
    same = copy.copy(module)
    same.__class__ = ByPosition
    return same


def summed_back(module: nn.Module, inputs: Sequence[Any]) -> None:
    """Sum partial gradients of what a module is given, once, where all of them have come together.

    A hook in front of the forward pass of a module. Left to themselves partial gradients go on
    into the operations in front, such as a norm of many small ones, and are gathered and scattered
    there in ways that cost several times as much.
    """
    for x in inputs:
        if isinstance(x, DTensor) and x.requires_grad and not x.is_leaf:
            x.register_hook(_without_partial)


def _without_partial(x: DTensor) -> DTensor:
    return x.redistribute(placements=without_partial(x.placements))


def summed(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Sum partial results where they arise, once, as the judge prices them.

    A hook behind the forward pass of a module. Rows of an embedding that other ranks hold are
    partial with a mask; PyTorch cannot bring a gradient that is partial, too, back to that, so
    that one is summed first.
    """
    if not isinstance(outputs, DTensor) or not any(x.is_partial() for x in outputs.placements):
        return outputs
    whole = _without_partial(outputs)
    is_masked = any(x.is_partial() and type(x) is not Partial for x in outputs.placements)
    if whole.requires_grad and is_masked:
        whole.register_hook(_without_partial)
    return whole


def check_names(module: nn.Module, plan: TorchPlan) -> None:
    """Refuse a module whose parameters are not the plan's.

    Raises:
        ParenvsError: there are others, or of other shapes; the line names the first few.
    """
    if not plan.shapes:
        return
    parameters = module.named_parameters()
    shapes = {name: tuple(x.shape) for name, x in parameters if name not in plan.unused}
    fixed = {name for name, _ in module.named_buffers()}  # to a plan they are frozen weights
    planned = [name for name in plan.shapes if name in shapes or name not in fixed]
    if words := unmatched(planned, list(shapes), "module"):
        raise ParenvsError(f"module: not the one that was planned: {words}")
    for name, shape in shapes.items():
        for dim in plan.placements.get(name, ()):
            if dim is None or plan.shapes[name] == shape:
                continue
            try:
                regrouped(shape, plan.shapes[name], dim)
            except ValueError:
                raise ParenvsError(
                    f"module: {name} has the shape {shape}, but was planned as {plan.shapes[name]}"
                ) from None
