"""Saves and loads the state of a module that ``Parallel`` trains (extra ``torch``).

Every process writes what it holds, and reads its own slices, whichever plan they were written
under. The folder has to be on a file system that all processes see.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from parenvs.compiled import Array
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, shown
from parenvs.exports.checkpoint import (
    ITEM,
    PARAMETER,
    Box,
    Checkpoint,
    Files,
    Head,
    Part,
    Place,
    Tensor,
    box_of,
    check_shape,
    common,
    elements,
    inside,
    rank_boxes,
    sizes,
    write_index,
    write_part,
)
from parenvs.exports.parallel import PIPE, Parallel
from parenvs.exports.stream import Stream
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.files import StrPath, locked, replacing_folder
from parenvs.graph.graph import Graph
from parenvs.graph.layout import DATA, MODEL

_TYPES = {getattr(torch, name): name for name in ITEM}
_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Holding:
    """The part of a state that a process holds.

    Attributes:
        rank: of the process in the plan.
        plan: that the state is laid out for.
        exported: the same in PyTorch's words.
        head: of the state, with the tensors that this process has a part of.
        boxes: name of a tensor -> the part of it.
        tensors: name and kind -> that part, not copied.
    """

    rank: int
    plan: Plan
    exported: TorchPlan
    head: Head
    boxes: dict[str, Box]
    tensors: dict[tuple[str, str], torch.Tensor]


def current_state(
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    steps: int = 0,
    stream: Stream | None = None,
) -> Holding:
    """Return what this process holds; arguments as of ``save``.

    Raises:
        ParenvsError: a state that is neither a number nor of its parameter's shape, or a plan of
            other degrees.
    """
    degrees, place = Files.of(plan).degrees, _place_of(parallel)
    if degrees != (parallel.plan.model, parallel.plan.pipe, parallel.plan.data):
        raise ParenvsError(f"plan: {degrees}, and the module is trained as another")
    described, boxes, tensors = {}, {}, {}
    for name, parameter in parameters_of(parallel):
        state = optimizer.state.get(parameter, {})
        # The optimizer's arrays of the parameter's shape, and its numbers.
        kinds, scalars = {PARAMETER: _TYPES[parameter.dtype]}, {}
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape != ():
                kinds[key] = _TYPES[value.dtype]
            elif isinstance(value, torch.Tensor | float | int) and torch.as_tensor(value).ndim == 0:
                scalars[key] = float(value)
            elif value is not None:
                raise ParenvsError(
                    f"{name}: the optimizer's {key!r} is neither a number nor of the parameter's "
                    "shape, and cannot be split as it is"
                )
        described[name] = Tensor(tuple(parameter.shape), kinds, scalars)
        box = boxes[name] = box_of(parallel.plan, name, tuple(parameter.shape), place)
        for kind in kinds:
            local = _local(parameter if kind == PARAMETER else state[kind]).detach()
            if tuple(local.shape) != sizes(box):
                raise ParenvsError(
                    f"{name} ({kind}): this process holds {tuple(local.shape)}, and the plan "
                    f"gives it {sizes(box)}"
                )
            tensors[name, kind] = local
    position = stream.state_dict() if stream else None
    head = Head(steps, type(optimizer).__name__, groups_of(optimizer), described, position)
    # Ranks count tp first, then replicas, then stages, as the mesh does.
    rank = place.model + degrees.tensor * (place.data + degrees.data * place.pipe)
    return Holding(rank, plan, parallel.plan, head, boxes, tensors)


def save(
    folder: StrPath,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    steps: int = 0,
    stream: Stream | None = None,
) -> None:
    """Write parameters and optimizer state; every process of the group calls it.

    A kill leaves the old folder or the new one, whole. Buffers are not written.

    Args:
        folder: the folder to write or to replace.
        parallel: the module in training.
        optimizer: of its parameters.
        plan: the plan that ``parallel.plan`` was made of.
        steps: that were trained.
        stream: the order of samples; every process has it at the same position.

    Raises:
        ParenvsError: streams of processes that differ, a state that is neither a number nor of its
            parameter's shape, a plan of other degrees, or another process failed; all raise.
    """
    holding = jointly(lambda: current_state(parallel, optimizer, plan, steps, stream))
    head: Head = holding.head
    positions = together(lambda: head.stream)
    if any(x != positions[0] for x in positions):
        raise ParenvsError("stream: processes are at different samples; advance it in all of them")
    files, place = Files.of(plan), _place_of(parallel)

    def give(name: str, kind: str, box: Box) -> Array:
        flat = holding.tensors[name, kind].cpu().contiguous().flatten()
        return flat.view(_NUMBERS[flat.element_size()]).numpy()

    with ExitStack() as stack:

        def open_folder() -> Path | None:
            if dist.get_rank():
                return None
            stack.enter_context(locked(folder, beside=True))
            return stack.enter_context(replacing_folder(folder))

        path = together(open_folder)[0]

        def write_own() -> tuple[int, dict[str, Tensor], Part] | None:
            if place.data >= files.writing:  # another replica writes the same
                return None
            number = files.number(place)
            return number, head.tensors, write_part(path, number, holding.boxes, head.tensors, give)

        rows = sorted(filter(None, together(write_own)), key=lambda row: row[0])

        def finish() -> None:
            if dist.get_rank() == 0:
                tensors = {name: x for _, states, _ in rows for name, x in states.items()}
                full = replace(head, tensors=tensors)
                write_index(path, plan, full, [part for _, _, part in rows])
                stack.close()

        together(finish)


def load(
    folder: StrPath,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    stream: Stream | None = None,
) -> tuple[int, dict[int, int]]:
    """Read parameters and optimizer state into a module; every process of the group calls it.

    Args:
        folder: of a checkpoint that was written under any plan for this model.
        parallel: the module.
        optimizer: of its parameters, of the class that the checkpoint has the state of.
        plan: the plan that ``parallel.plan`` was made of.
        stream: the order of samples, which goes on where the checkpoint was written.

    Returns:
        Steps that were trained, and the bytes of tensors that this process read of each file.

    Raises:
        ParenvsError: no checkpoint, one that is not whole, one of another model, optimizer or data
            set, or one without the position of a stream that is wanted; all processes raise.
    """

    def read() -> tuple[int, dict[int, int]]:
        source = Checkpoint(folder)
        if source.plan.fingerprint != plan.fingerprint:
            raise ParenvsError(f"{folder}: of another model, {source.plan.instance}")
        # Each process hashes every n-th file, and all fail together if one is changed.
        source.verify(range(dist.get_rank(), len(source.parts), dist.get_world_size()))
        _install(source, parallel, optimizer, stream)
        return source.head.steps, dict(source.read)

    steps, read_bytes = jointly(read)
    return steps, read_bytes


def install(
    source: Checkpoint | Moved,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    stream: Stream | None = None,
) -> int:
    """Put a state that moved into a module, and return the steps that were trained.

    Every process of the module's group calls it; arguments as of ``load``.

    Raises:
        ParenvsError: it is of another model, optimizer or data set; all processes raise.
    """
    jointly(lambda: _install(source, parallel, optimizer, stream))
    return source.head.steps


def _install(
    source: Checkpoint | Moved,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    stream: Stream | None,
) -> None:
    """Check a state against module and optimizer, and copy this process's slices into them."""
    head, where, place = source.head, source.where, _place_of(parallel)
    if head.optimizer != type(optimizer).__name__:
        raise ParenvsError(
            f"{where}: has the state of {shown(head.optimizer)}, and the optimizer is "
            f"{type(optimizer).__name__}"
        )
    check_groups(where, optimizer, head.groups)
    if stream is not None:
        if head.stream is None:
            raise ParenvsError(
                f"{where}: has no position in a stream of samples; save it with stream="
            )
        try:
            stream.load_state_dict(head.stream)
        except ParenvsError as error:
            raise ParenvsError(f"{where}: {error}") from None
    set_groups(optimizer, head.groups)
    for name, parameter in parameters_of(parallel):
        shape = tuple(parameter.shape)
        stored = head.tensors.get(name)
        check_shape(where, name, stored and stored.shape, shape, "the module")
        tensor = head.tensors[name]
        type_, dtype = tensor.kinds[PARAMETER], parameter.dtype
        if type_ != _TYPES.get(dtype):
            raise ParenvsError(f"{where}: {shown(name)} is of {type_}, and the module's of {dtype}")
        box = box_of(parallel.plan, name, shape, place)
        # One kernel for all parameters reads the counts of steps beside them, others on the host.
        on_device = any(
            group.get("fused") or group.get("capturable")
            for group in optimizer.param_groups
            if any(x is parameter for x in group["params"])
        )
        device = parameter.device if on_device else torch.device("cpu")
        state = {key: torch.tensor(x, device=device) for key, x in tensor.scalars.items()}
        for kind, type_ in tensor.kinds.items():
            data = torch.as_tensor(source.box(name, kind, box, place, parallel.plan.model))
            local = data.view(getattr(torch, type_)).to(parallel.device)
            target: torch.Tensor = parameter
            if kind != PARAMETER:
                target = state[kind] = torch.zeros_like(parameter, dtype=local.dtype)
            with torch.no_grad():
                _local(target).copy_(local)
        if state:
            optimizer.state[parameter] = state


def parameters_of(parallel: Parallel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of this process by the user's names."""
    for part in parallel.parts:
        for name, parameter in part.named_parameters():
            yield part.name_of(name), parameter


def check_groups(
    where: StrPath, optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]]
) -> None:
    """Raise a ``ParenvsError`` if an optimizer has another number of groups."""
    if len(groups) != len(optimizer.param_groups):
        raise ParenvsError(
            f"{where}: has {len(groups)} groups of parameters, and the optimizer "
            f"has {len(optimizer.param_groups)}"
        )


def set_groups(optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Put back the options of an optimizer's groups, such as learning rates, by their position."""
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        # A scheduler that goes on asks for the first rate.
        known = {*group, "initial_lr"} - {"params"}
        group.update({
            key: tuple(value) if isinstance(value, list) else value
            for key, value in options.items() if key in known
        })  # fmt: skip


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group that are numbers, texts or tuples of them."""
    plain = (bool, int, float, str, type(None))
    return [
        {
            key: list(x) if isinstance(x, tuple) else x
            for key, x in group.items()
            if isinstance(x, plain)
            or (isinstance(x, tuple) and all(isinstance(y, plain) for y in x))
        }
        for group in optimizer.param_groups
    ]


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _place_of(parallel: Parallel) -> Place:
    return Place(*(parallel.mesh[name].get_local_rank() for name in (PIPE, DATA, MODEL)))


def jointly(work: Callable[[], Any]) -> Any:
    """Run something in every process and return its result here; if one fails, all raise."""
    results: list[Any] = []
    together(lambda: results.append(work()))
    return results[0]


def together(work: Callable[[], Any]) -> list[Any]:
    """Run something in every process, and gather the results; if one fails, all raise its error."""
    result: tuple[str, Any]
    try:
        result = ("", work())
    except (ParenvsError, OSError) as error:
        result = (str(error) or type(error).__name__, None)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, result)
    for words, _ in gathered:
        if words:
            raise ParenvsError(words)
    return [value for _, value in gathered]


ROUND_BYTES = 1 << 28
"""Bytes of tensors after which what is to be sent is sent, so that buffers stay small."""


class Cell(NamedTuple):
    """A part of a tensor of which every rank of both plans holds all or nothing."""

    name: str
    box: Box


Flow = Any
"""What the plan of a movement says: atom, source, target, begin and end, see the hook's task."""


@dataclass(frozen=True)
class Moved:
    """What this process has of the state after a movement; a source for ``install``.

    Attributes:
        rank: of this process in the new plan; None if it has none.
        tensors: name and kind of each tensor of this process -> its part.
        sent: (processes, processes) bytes that each was to send to each.
        sent_here: bytes that this process did send, by process.
    """

    rank: int | None
    head: Head
    tensors: dict[tuple[str, str], torch.Tensor]
    sent: Array
    sent_here: Array
    where: str = "the state that moved"

    def box(self, name: str, kind: str, box: Box, place: Place, ranks: int) -> torch.Tensor:
        """Return this process's part of a tensor, which is the box that it holds."""
        return self.tensors[name, kind]


def move(
    holding: Holding | None,
    new: Plan,
    graph: Graph,
    devices: int = 1,
    takers: int | None = None,
    exact: bool = True,
    exported: TorchPlan | None = None,
) -> Moved:
    """Move the state to a plan; every process of the group calls it.

    Args:
        holding: what this process has, see ``current_state``; None: it
            has nothing.
        new: a plan for the same model.
        graph: that both plans are for.
        devices: processes of a host; the group's processes are numbered host by host.
        takers: hosts that may run the new plan, from the first on (default: all).
        exact: whether the busiest host sends as little as possible, or hosts that have the same
            send equal parts of it.
        exported: the new plan in PyTorch's words (default: they are made).

    Raises:
        ParenvsError: no process has a part of the state, processes hold different plans or steps,
            or there are too few of them; all processes raise.
    """
    all_holdings: list[Holding | None] = together(
        lambda: None if holding is None else replace(holding, boxes={}, tensors={})
    )
    holdings = [x for x in all_holdings if x is not None]
    if not holdings:
        raise ParenvsError("no process holds a part of the state; read a checkpoint")
    old, head = holdings[0], holdings[0].head
    if any(
        (x.plan, x.head.steps, x.head.stream) != (old.plan, head.steps, head.stream)
        for x in holdings
    ):
        raise ParenvsError("processes hold the states of different plans or steps")
    tensors = {name: tensor for x in holdings for name, tensor in x.head.tensors.items()}
    plans = old.exported, exported or torch_plan(new, graph)
    files = Files.of(old.plan), Files.of(new)

    def schedule() -> tuple[list[Cell], Array, list[Flow]] | None:
        if dist.get_rank():
            return None
        cells, (before, after) = cells_of(plans, files, tensors, graph)
        nothing = np.zeros(len(cells), bool)
        has = np.array([nothing if x is None else before[x.rank] for x in all_holdings])
        size = np.array([elements(x.box) * tensors[x.name].bytes for x in cells], float)
        if len(all_holdings) % devices:
            raise ParenvsError(f"{len(all_holdings)} processes are no whole hosts of {devices}")
        try:
            process_of, rows = files[1].shards.flows(
                size, has.reshape(-1, devices, len(cells)), after, exact, takers
            )
        except ParenvsError as error:
            lost = sorted({x.name for x, held in zip(cells, has.T, strict=True) if not held.any()})
            raise ParenvsError(f"{error}{f' ({lost[0]})' if lost else ''}") from None
        return cells, process_of, rows

    cells, process_of, rows = together(schedule)[0]
    rank = next(iter(np.flatnonzero(process_of == dist.get_rank()).tolist()), None)
    traffic = np.zeros((len(all_holdings), len(all_holdings)))
    for row in rows:
        n = elements(cells[row.atom].box)
        # Shares of a cell are rounded to elements, the same way by sender and receiver.
        count = round(row.end * n) - round(row.begin * n)
        traffic[row.source, row.target] += count * tensors[cells[row.atom].name].bytes
    boxes = rank_boxes(plans[1], files[1], files[1].ranks(), tensors, graph)
    wanted = {} if rank is None else boxes[rank]
    received, sent = _exchange(holding, cells, rows, tensors, wanted)
    return Moved(rank, replace(head, tensors=tensors), received, traffic, sent)


def cells_of(
    exported: Sequence[TorchPlan], files: Sequence[Files], tensors: dict[str, Tensor], graph: Graph
) -> tuple[list[Cell], list[Array]]:
    """Cut tensors into cells of which every rank of some plans holds all or nothing.

    Returns:
        The cells, and for each plan (ranks, cells) bool, whether a rank holds it.
    """
    pairs = zip(exported, files, strict=True)
    by_rank = [rank_boxes(plan, x, x.ranks(), tensors, graph) for plan, x in pairs]
    cells: list[Cell] = []
    columns: list[list[list[bool]]] = [[] for _ in exported]
    for name, tensor in tensors.items():
        every = {boxes[name] for ranks in by_rank for boxes in ranks if name in boxes}
        # All borders of any rank's box cut the tensor: inside of a cell there is none.
        cuts = [
            sorted({0, size, *(end for box in every for end in box[axis])})
            for axis, size in enumerate(tensor.shape)
        ]
        for box in itertools.product(*(list(itertools.pairwise(x)) for x in cuts)):
            cells.append(Cell(name, box))
            for column, ranks in zip(columns, by_rank, strict=True):
                column.append([name in x and common(x[name], box) == box for x in ranks])
    return cells, [np.array(column, bool).T for column in columns]


def _exchange(
    holding: Holding | None,
    cells: Sequence[Cell],
    rows: Sequence[Flow],
    tensors: dict[str, Tensor],
    wanted: dict[str, Box],
) -> tuple[dict[tuple[str, str], torch.Tensor], Array]:
    """Send and receive, tensor by tensor, and put together what this process wants."""
    own_rank = dist.get_rank()
    sent = np.zeros(dist.get_world_size(), np.int64)
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    result = {
        (name, kind): torch.empty(sizes(box), dtype=getattr(torch, numbers), device=device)
        for name, box in wanted.items()
        for kind, numbers in tensors[name].kinds.items()
    }
    # What stays on this process is copied, not sent.
    if holding is not None:
        for name, box in wanted.items():
            if name in holding.boxes:
                overlap = common(box, holding.boxes[name])
                for kind in tensors[name].kinds if elements(overlap) else ():
                    local = holding.tensors[name, kind][inside(overlap, holding.boxes[name])]
                    result[name, kind][inside(overlap, box)] = local
    for group in _rounds(cells, rows, tensors):
        outgoing: dict[int, list[torch.Tensor]] = defaultdict(list)
        incoming: dict[int, int] = defaultdict(int)
        for row, name, kind, box, a, b in group:
            if row.source == own_rank:
                assert holding is not None
                part = holding.tensors[name, kind][inside(box, holding.boxes[name])]
                outgoing[row.target].append(part.reshape(-1)[a:b].contiguous().view(torch.uint8))
            elif row.target == own_rank:
                incoming[row.source] += (b - a) * result[name, kind].element_size()
        buffers = {
            peer: torch.empty(n, dtype=torch.uint8, device=device) for peer, n in incoming.items()
        }
        messages = {peer: torch.cat(parts).to(device) for peer, parts in outgoing.items()}
        # One message for each peer and round.
        operations = [dist.P2POp(dist.isend, x, peer) for peer, x in sorted(messages.items())]
        operations += [dist.P2POp(dist.irecv, x, peer) for peer, x in sorted(buffers.items())]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for peer, x in messages.items():
            sent[peer] += x.numel()
        flat: dict[tuple[str, str, Box], torch.Tensor] = {}
        for row, name, kind, box, a, b in group:
            if row.target == own_rank:
                tensor = result[name, kind]
                item_bytes = tensor.element_size()
                # Parts arrive from each process in the order of the round.
                part, buffers[row.source] = buffers[row.source].tensor_split([(b - a) * item_bytes])
                joined = flat.setdefault((name, kind, box), tensor.new_empty(elements(box)))
                joined.view(torch.uint8)[a * item_bytes : b * item_bytes] = part
        for (name, kind, box), joined in flat.items():
            result[name, kind][inside(box, wanted[name])] = joined.view(sizes(box))
    return result, sent


_Part = tuple[Flow, str, str, Box, int, int]


def _rounds(
    cells: Sequence[Cell], rows: Sequence[Flow], tensors: dict[str, Tensor]
) -> Iterator[list[_Part]]:
    """What is sent in each round, in an order that all processes have: with first and end."""
    group: list[_Part] = []
    size, last_atom = 0, -1
    for row in rows:
        name, box = cells[row.atom]
        n = elements(box)
        a, b = round(row.begin * n), round(row.end * n)
        # A cell's flows stay in one round, so that its parts are put together at once.
        if size > ROUND_BYTES and row.atom != last_atom:
            yield group
            group, size = [], 0
        last_atom, size = row.atom, size + (b - a) * tensors[name].bytes
        group += [(row, name, kind, box, a, b) for kind in tensors[name].kinds if b > a]
    yield group
