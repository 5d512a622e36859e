"""Moves the state of a module in training from plan to plan between processes, without the disk.

What a process has stays; what it misses comes from those that have it, as the plan of the movement
says whose bytes are priced (extra ``torch``). Processes are devices, neighbours share a host.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.exports.checkpoint.folder import Head, Tensor
from parenvs.exports.checkpoint.layout import Box, Files, Place, box_of, common, elements, sizes
from parenvs.exports.checkpoint.training import Holding, together
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.graph.graph import Graph

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
        head: of the whole state.
        tensors: name and kind of each tensor of this process -> its part.
        sent: (processes, processes) bytes that each was to send to each.
        sent_here: bytes that this process did send, by process.
        where: in words, for errors.
    """

    rank: int | None
    head: Head
    tensors: dict[tuple[str, str], torch.Tensor]
    sent: np.ndarray
    sent_here: np.ndarray
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
        holding: what this process has, see ``parenvs.exports.checkpoint.training.held``; None: it
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
    every: list[Any] = together(lambda: None if holding is None else holding.told)
    own = [x for x in every if x is not None]
    if not own:
        raise ParenvsError("no process holds a part of the state; read a checkpoint")
    if any((x.plan, x.head.steps, x.head.stream) != (own[0].plan, own[0].head.steps,
                                                     own[0].head.stream) for x in own):  # fmt: skip
        raise ParenvsError("processes hold the states of different plans or steps")
    tensors = {name: tensor for x in own for name, tensor in x.head.tensors.items()}
    plans = own[0].exported, exported or torch_plan(new, graph)
    files = Files.of(own[0].plan), Files.of(new)

    def scheduled() -> tuple[list[Cell], np.ndarray, list[Flow]] | None:
        if dist.get_rank():
            return None
        cells, held = cells_of(plans, files, tensors, graph)
        on = np.zeros((len(every), len(cells)), dtype=bool)
        for process, x in enumerate(every):
            if x is not None:
                on[process] = held[0][x.rank]
        size = np.array([elements(x.box) * tensors[x.name].bytes for x in cells], dtype=float)
        if len(every) % devices:
            raise ParenvsError(f"{len(every)} processes are no whole hosts of {devices}")
        try:
            place, rows = files[1].shards.flows(
                size, on.reshape(-1, devices, len(cells)), held[1], exact, takers
            )
        except ParenvsError as error:
            gone = sorted({x.name for x, there in zip(cells, on.T, strict=True) if not there.any()})
            raise ParenvsError(f"{error}{f' ({gone[0]})' if gone else ''}") from None
        return cells, place, rows

    found: Any = together(scheduled)[0]
    cells, place, rows = found
    me = dist.get_rank()
    ranks = np.flatnonzero(place == me).tolist()
    rank = ranks[0] if ranks else None
    traffic = np.zeros((len(every), len(every)))
    for row in rows:
        n = elements(cells[row.atom].box)
        count = round(row.end * n) - round(row.begin * n)
        traffic[row.source, row.target] += count * tensors[cells[row.atom].name].bytes
    got, sent = _exchanged(
        holding, cells, rows, tensors,
        {} if rank is None else _boxes(plans[1], files[1], tensors, graph)[rank],
    )  # fmt: skip
    head = own[0].head
    return Moved(
        rank,
        Head(head.steps, head.optimiser, head.groups, tensors, head.stream),
        got,
        traffic,
        sent,
    )


def cells_of(
    exported: Sequence[TorchPlan],
    files: Sequence[Files],
    tensors: dict[str, Tensor],
    graph: Graph,
) -> tuple[list[Cell], list[np.ndarray]]:
    """Cut tensors into cells of which every rank of some plans holds all or nothing.

    Args:
        exported: the plans in PyTorch's words.
        files: their files.
        tensors: by name.
        graph: of the plans.

    Returns:
        The cells, and for each plan (ranks, cells) bool, whether a rank holds it.
    """
    by_rank = [_boxes(plan, own, tensors, graph) for plan, own in zip(exported, files, strict=True)]
    cells: list[Cell] = []
    columns: list[list[list[bool]]] = [[] for _ in exported]
    for name, tensor in tensors.items():
        every = {boxes[name] for ranks in by_rank for boxes in ranks if name in boxes}
        cuts = [
            sorted({0, size, *(end for box in every for end in box[axis])})
            for axis, size in enumerate(tensor.shape)
        ]
        for box in itertools.product(*(list(itertools.pairwise(x)) for x in cuts)):
            cells.append(Cell(name, box))
            for column, ranks in zip(columns, by_rank, strict=True):
                column.append([name in x and common(x[name], box) == box for x in ranks])
    return cells, [np.array(column, dtype=bool).T for column in columns]


def _boxes(
    plan: TorchPlan, files: Files, tensors: dict[str, Tensor], graph: Graph
) -> list[dict[str, Box]]:
    """The box of each tensor that each rank of a plan holds."""
    stages = files.shards.stages(graph)
    for name in tensors:
        if name not in stages:
            raise ParenvsError(f"{name} is no weight of the plan's; plan the model that is trained")
    return [
        {
            name: box_of(plan, name, x.shape, place)
            for name, x in tensors.items()
            if stages[name] == place.pipe
        }
        for place in map(files.place, range(files.degrees.ranks))
    ]


def _exchanged(
    holding: Holding | None,
    cells: Sequence[Cell],
    rows: Sequence[Flow],
    tensors: dict[str, Tensor],
    wanted: dict[str, Box],
) -> tuple[dict[tuple[str, str], torch.Tensor], np.ndarray]:
    """Send and receive, tensor by tensor, and put together what this process wants."""
    me = dist.get_rank()
    sent = np.zeros(dist.get_world_size(), dtype=np.int64)
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    result = {
        (name, kind): torch.empty(sizes(box), dtype=getattr(torch, numbers), device=device)
        for name, box in wanted.items()
        for kind, numbers in tensors[name].kinds.items()
    }
    if holding is not None:
        for name, box in wanted.items():
            if name in holding.boxes:
                both = common(box, holding.boxes[name])
                for kind in tensors[name].kinds if elements(both) else ():
                    own = holding.tensors[name, kind][_inside(both, holding.boxes[name])]
                    result[name, kind][_inside(both, box)] = own
    for group in _rounds(cells, rows, tensors):
        out: dict[int, list[torch.Tensor]] = defaultdict(list)
        into: dict[int, int] = defaultdict(int)
        for row, name, kind, box, a, b in group:
            if row.source == me:
                assert holding is not None
                part = holding.tensors[name, kind][_inside(box, holding.boxes[name])]
                out[row.target].append(part.reshape(-1)[a:b].contiguous().view(torch.uint8))
            elif row.target == me:
                into[row.source] += (b - a) * result[name, kind].element_size()
        buffers = {
            peer: torch.empty(n, dtype=torch.uint8, device=device) for peer, n in into.items()
        }
        packed = {peer: torch.cat(parts).to(device) for peer, parts in out.items()}
        operations = [dist.P2POp(dist.isend, x, peer) for peer, x in sorted(packed.items())]
        operations += [dist.P2POp(dist.irecv, x, peer) for peer, x in sorted(buffers.items())]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for peer, x in packed.items():
            sent[peer] += x.numel()
        at: dict[int, int] = defaultdict(int)
        flat: dict[tuple[str, str, Box], torch.Tensor] = {}
        for row, name, kind, box, a, b in group:
            if row.target == me:
                tensor = result[name, kind]
                start, size = at[row.source], (b - a) * tensor.element_size()
                at[row.source] += size
                whole = flat.setdefault((name, kind, box), tensor.new_empty(elements(box)))
                whole.view(torch.uint8)[a * tensor.element_size() : b * tensor.element_size()] = (
                    buffers[row.source][start : start + size]
                )
        for (name, kind, box), whole in flat.items():
            result[name, kind][_inside(box, wanted[name])] = whole.view(sizes(box))
    return result, sent


_Part = tuple[Flow, str, str, Box, int, int]


def _rounds(
    cells: Sequence[Cell], rows: Sequence[Flow], tensors: dict[str, Tensor]
) -> Iterator[list[_Part]]:
    """What is sent in each round, in an order that all processes have: with first and end."""
    group: list[_Part] = []
    held, last = 0, -1
    for row in rows:
        name, box = cells[row.atom]
        n = elements(box)
        a, b = round(row.begin * n), round(row.end * n)
        if held > ROUND_BYTES and row.atom != last:
            yield group
            group, held = [], 0
        last, held = row.atom, held + (b - a) * tensors[name].bytes
        group += [(row, name, kind, box, a, b) for kind in tensors[name].kinds if b > a]
    yield group


def _inside(box: Box, of: Box) -> tuple[slice, ...]:
    """A box as slices of another one that it lies in."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, of, strict=True))
