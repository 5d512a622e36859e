"""The bytes of a chain of pivots: what crosses a cut, and which weights each pivot reads.

A weight belongs to the first pivot that reads it. Where others are read in between, a cast, copy,
reshape or transpose of it does not count as reading: such views, made for the whole model at the
start, are made again by the stage that needs them, and cross no cut. Likewise a weight that is read
again counts as tied only if others are read in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.graph.flow import VIEWS
from parenvs.graph.graph import Graph, Role


@dataclass(frozen=True)
class Reads:
    """A weight that several pivots read, far enough apart to be in different stages.

    Attributes:
        positions: the pivots, ascending, by their places in the chain.
        size: bytes of the weight.
        trainable: whether it has a gradient, which its stages have to sum.
    """

    positions: tuple[int, ...]
    size: float
    trainable: bool


@dataclass(frozen=True)
class ChainBytes:
    """Bytes of a chain of n pivots.

    Attributes:
        cut: (n,) float64, results that a pivot up to this one produces and a later one uses, each
            result once.
        variables: (n,) float64, variables that this pivot is the first to read.
        frozen: (n,) float64, frozen weights likewise.
        tied: weights that are read again.
        reads: (n,) object, path of a weight that this pivot is the first to read, or "".
    """

    cut: np.ndarray
    variables: np.ndarray
    frozen: np.ndarray
    tied: tuple[Reads, ...]
    reads: np.ndarray


def chain_bytes(graph: Graph, pivots: np.ndarray) -> ChainBytes:
    """Count the bytes of a chain.

    Args:
        graph: the graph; a chain is made of the instructions at its top.
        pivots: (n,) instruction indices, ascending.
    """
    count = len(pivots)
    position, tensor = graph.uses(pivots)
    producer, produced = graph.makes(pivots)
    reads, views = weight_reads(graph, pivots)
    last = np.full(len(graph.element_type), -1)
    np.maximum.at(last, tensor, position)
    used_later = last[produced] > producer
    used_later &= ~np.isin(produced, np.array(sorted(views), dtype=np.int64))
    crossing = produced[used_later]
    change_bytes = np.zeros(count + 1)  # of what crosses, from one pivot to the next
    np.add.at(change_bytes, producer[used_later], graph.tensor_bytes[crossing])
    np.subtract.at(change_bytes, last[crossing], graph.tensor_bytes[crossing])
    held = {Role.VARIABLE: np.zeros(count), Role.FROZEN: np.zeros(count)}
    tied = []
    paths = np.full(count, "", dtype=object)
    for index, positions in reads.items():
        paths[positions[0]] = paths[positions[0]] or graph.paths[index]
        role = Role(int(graph.parameter_role[index]))
        size = float(graph.tensor_bytes[graph.parameter_tensor[index]])
        held[role][positions[0]] += size
        if len(positions) > 1:
            tied.append(Reads(tuple(positions), size, role == Role.VARIABLE))
    return ChainBytes(
        np.maximum(np.cumsum(change_bytes)[:count], 0.0),
        held[Role.VARIABLE],
        held[Role.FROZEN],
        tuple(tied),
        paths,
    )


def weight_reads(graph: Graph, pivots: np.ndarray) -> tuple[dict[int, list[int]], set[int]]:
    """Return where each weight is read, and the views of weights that no cut has to send.

    Returns:
        Index of an entry parameter -> places in the chain, ascending, at least one; and tensors.
    """
    weight = {int(graph.parameter_tensor[i]): i for i in graph.weights.tolist()}
    of = dict(weight)  # tensor -> the weight that it is, or is a view of
    direct: dict[int, list[int]] = {}  # weight -> pivots that read it itself, views included
    proper: dict[int, list[int]] = {}  # weight -> pivots that read it or a view, views left out
    views: dict[int, list[int]] = {}
    names = graph.opcodes
    for place, pivot in enumerate(pivots.tolist()):
        operands = graph.operands[graph.operand_offset[pivot] : graph.operand_offset[pivot + 1]]
        read = [t for t in operands.tolist() if t in of]
        if not read:
            continue
        made = graph.results[graph.result_offset[pivot] : graph.result_offset[pivot + 1]].tolist()
        is_view = names[graph.opcode[pivot]] in VIEWS and len(made) == 1
        for tensor in read:
            if tensor in weight:
                direct.setdefault(of[tensor], []).append(place)
            if not is_view:
                proper.setdefault(of[tensor], []).append(place)
        if is_view:
            of[made[0]] = of[read[0]]
            views.setdefault(of[read[0]], []).append(made[0])
    firsts = np.sort([min(proper.get(index, places)) for index, places in direct.items()])
    reads: dict[int, list[int]] = {}
    unsent: set[int] = set()
    for index, places in direct.items():
        later = sorted(set(proper.get(index, [])))
        early = bool(later) and _apart(firsts, places[0], later[0])
        if any(_apart(firsts, places[0], place) for place in later[-1:]):
            unsent.update(views.get(index, ()))
        reads[index] = [later[0] if early else places[0]]
        for place in later:
            if place > reads[index][-1] and _apart(firsts, reads[index][-1], place):
                reads[index].append(place)
    return reads, unsent


def _apart(firsts: np.ndarray, earlier: int, later: int) -> bool:
    """Whether another weight is first read between two places of the chain."""
    after, before = np.searchsorted(firsts, [earlier, later], side="left")
    own = int(np.searchsorted(firsts, earlier, side="right") - after)
    return bool(before - after - own > 0)
