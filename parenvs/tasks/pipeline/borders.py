"""Where the layers of a graph begin and end, on its chain of pivots.

Layers are told by numbered scopes (``encoder/layer_3``), else by numbered paths of the variables
that are read (``layers/3/q``), else by the data flow alone: a border is a place between two
variables that a single tensor crosses, such as the residual stream.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from parenvs.graph.chain import ChainBytes
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.tasks.pipeline.scopes import NUMBERED, Path, scopes_of

FEW = 8
"""Layers within layers are looked for where there are fewer than this."""
WIDER = 1.2
"""Layers within layers are taken if no border among them is wider than this, over theirs."""
FAR = 0.2
"""Share of the chain's weight reads over which a tensor is one that crosses everything."""
PRODUCTS = ("dot", "convolution")
"""Opcodes of matrix products."""
_PART = re.compile(r"(.*)(\[\d+\])")


@dataclass(frozen=True)
class Borders:
    """Layers as ranges of pivots.

    Attributes:
        bounds: (n+1,) first pivot of each layer, and one past the last; what is in front of the
            first is the embedding, what is behind the last the head.
        names: (n,) what the layers are called.
        keys: scope -> layer, where scopes told the layers.
        level: which numbered part of a scope did.
        told_by: ``"scopes"``, ``"variables"`` or ``"flow"``.
    """

    bounds: np.ndarray
    names: tuple[str, ...]
    keys: dict[Path, int]
    level: int
    told_by: str

    def cut_at(self, cuts: Iterable[int]) -> Borders:
        """Return the borders with others added: a layer that one lies in is two, of no scope.

        Args:
            cuts: first pivots of pieces, also in front of the first layer or behind the last.
        """
        old = self.bounds.tolist()
        bounds = sorted({*old, *cuts})
        names, number_of = [], {}
        for number, (first, end) in enumerate(itertools.pairwise(bounds)):
            layer = int(np.searchsorted(old, first, side="right")) - 1
            ends = ("embedding", *self.names, "head")
            name = ends[layer + 1]
            if 0 <= layer < len(self.names) and (first, end) == tuple(old[layer : layer + 2]):
                number_of[layer] = number
            elif first not in old:
                name = f"{name} from pivot {first}"
            names.append(name)
        keys = {key: number_of[x] for key, x in self.keys.items() if x in number_of}
        return replace(self, bounds=np.array(bounds), names=tuple(names), keys=keys)


class Meets(NamedTuple):
    """Pivots at which data meet weights: in any way, and in products."""

    all: np.ndarray
    products: np.ndarray


def forward_part(graph: Graph) -> Graph:
    """Return the graph with its forward instructions and entry parameters alone."""
    entry = np.array([name == "parameter" for name in graph.opcodes])[graph.opcode]
    keep = np.flatnonzero((graph.phase == Phase.FORWARD) | (entry & (graph.parent < 0)))
    new = np.full(len(graph.opcode) + 1, -1, dtype=np.int32)  # parent -1 stays -1
    new[keep] = np.arange(len(keep))
    _, operands = graph.uses(keep)
    _, results = graph.makes(keep)
    ends = [np.concatenate([[0], np.cumsum(np.diff(offset)[keep])]).astype(np.int32)
            for offset in (graph.operand_offset, graph.result_offset)]  # fmt: skip
    alike = ("opcode", "flops", "bytes_accessed", "phase", "free", "op_name", "attribute")
    return replace(
        graph,
        operands=operands,
        operand_offset=ends[0],
        results=results,
        result_offset=ends[1],
        parent=new[graph.parent[keep]],
        outputs=graph.outputs[np.isin(graph.outputs, results)],
        **{name: getattr(graph, name)[keep] for name in alike},
    )


def borders_of(graph: Graph, pivots: np.ndarray, counted: ChainBytes) -> Borders:
    """Find the layers of a chain.

    Args:
        graph: the graph, loops over layers written out.
        pivots: (N,) its pivots.
        counted: their bytes.
    """
    working = _on_data(graph, pivots)
    parsed: dict[str, Path] = {}
    paths: list[Path] = []
    for name in graph.op_names(pivots).tolist():
        if name not in parsed:
            parsed[name] = scopes_of(name, True)[0]
        paths.append(parsed[name])
    meeting = working & _reads_weights(graph, pivots)
    codes = [code for code, name in enumerate(graph.opcodes) if name in PRODUCTS]
    multiplies = np.isin(graph.opcode[pivots], codes)
    meets = Meets(np.flatnonzero(meeting), np.flatnonzero(meeting & multiplies))
    scoped = [path if works else () for path, works in zip(paths, working, strict=True)]
    read = [tuple(path.split("/")) if path else () for path in counted.reads.tolist()]
    for told_by, named in (("scopes", scoped), ("variables", read)):
        found = _numbered_borders(named, counted, meets, told_by)
        if found is not None:
            return found
    return _flow_borders(graph, pivots, counted)


def key_of(path: Path, level: int) -> Path | None:
    """The part of a path up to its ``level``-th numbered part, or to the last; None without any."""
    numbered = [place for place, part in enumerate(path) if NUMBERED.search(part)]
    if not numbered:
        return None
    place = numbered[min(level, len(numbered)) - 1]
    part = _PART.fullmatch(path[place])  # a part of a stack: layers/q[3] is of layer layers/[3]
    return (*path[:place], part[2]) if part else path[: place + 1]


def _numbered_borders(
    named: list[Path], counted: ChainBytes, meets: Meets, told_by: str
) -> Borders | None:
    """The layers that numbered names tell, or None if there are not at least two."""
    outer = _level_borders(named, counted, meets, told_by, 1)
    inner = _level_borders(named, counted, meets, told_by, 2)
    if outer is None or inner is None:
        return outer or inner
    if len(outer.names) >= FEW or len(inner.names) <= len(outer.names):
        return outer
    cut = counted.cut
    for first, end in itertools.pairwise(outer.bounds.tolist()):
        within = inner.bounds[(inner.bounds > first) & (inner.bounds < end)]
        ends = [cut[place - 1] for place in (first, end) if 0 < place < len(cut)]
        if len(within) and cut[within - 1].max() > WIDER * max(ends, default=0.0):
            return outer
    return inner


def _level_borders(
    named: list[Path], counted: ChainBytes, meets: Meets, told_by: str, level: int
) -> Borders | None:
    """The layers by the ``level``-th numbered part of each name."""
    spans: dict[Path, list[int]] = {}
    for place, path in enumerate(named):
        key = key_of(path, level)
        if key is not None:
            spans.setdefault(key, [place, place])[1] = place
    groups: list[tuple[int, int, list[Path]]] = []
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if groups and first <= groups[-1][1]:  # they overlap: one layer
            start, end, keys = groups.pop()
            groups.append((start, max(end, last), [*keys, key]))
        else:
            groups.append((first, last, [key]))
    merged: list[tuple[int, int, list[Path]]] = []
    for number, (first, last, keys) in enumerate(groups):
        following = groups[number + 1][0] if number + 1 < len(groups) else last + 1
        weighs = bool(((meets.all >= first) & (meets.all < max(following, last + 1))).any())
        if merged and not weighs:
            start, _, before = merged.pop()
            merged.append((start, last, before + keys))
        else:
            merged.append((first, last, keys))
    while (
        merged and not ((meets.products >= merged[0][0]) & (meets.products <= merged[0][1])).any()
    ):
        merged.pop(0)  # a table of words, in front of the first layer
    if len(merged) < 2:
        return None
    bounds = _bounds([(first, last) for first, last, _ in merged], counted.cut, meets.all)
    names = tuple("/".join(keys[0]) for _, _, keys in merged)
    layer_of = {key: layer for layer, (_, _, keys) in enumerate(merged) for key in keys}
    return Borders(bounds, names, layer_of, level, told_by)


def _bounds(spans: list[tuple[int, int]], cut: np.ndarray, reads: np.ndarray) -> np.ndarray:
    """(n+1,) bounds of the layers whose named pivots are given, first and last of each.

    What lies between two layers goes with the one behind, from the narrowest place on.

    Args:
        spans: of the layers.
        cut: (N,) bytes that cross a cut behind each pivot.
        reads: pivots at which data meet weights.
    """
    first = spans[0][0]
    ahead = reads[reads < first]
    bounds = [_narrowest(cut, int(ahead[-1]), first) if len(ahead) else 0]
    for (_, last), (following, _) in itertools.pairwise(spans):
        bounds.append(_narrowest(cut, last, following))
    last = spans[-1][1]
    behind = reads[reads > last]
    bounds.append(_narrowest(cut, last, int(behind[0])) if len(behind) else last + 1)
    return np.array(bounds)


def _narrowest(cut: np.ndarray, last: int, following: int) -> int:
    """The place from which on pivots go with the layer behind: the first narrowest between."""
    return last + 1 + int(cut[last:following].argmin())


def _flow_borders(graph: Graph, pivots: np.ndarray, counted: ChainBytes) -> Borders:
    """The layers by the data flow alone: between two products with weights, one tensor crosses.

    Tensors that cross a large part of the chain (masks, an encoder's output) are not counted. What
    is behind the last such place is the head.
    """
    count = len(pivots)
    position, tensor = graph.uses(pivots)
    producer, produced = graph.makes(pivots)
    on_data = _on_data(graph, pivots)
    names = np.array([graph.opcodes[code] for code in graph.opcode[pivots]])
    from_data = np.isin(tensor, produced[on_data[producer]])
    plain = np.bincount(position[~from_data], minlength=count) > 0
    products = np.flatnonzero(np.isin(names, PRODUCTS) & on_data & plain)
    last = np.full(len(graph.element_type), -1)
    np.maximum.at(last, tensor, position)
    passed = np.searchsorted(products, np.arange(count + 1))
    span = passed[np.maximum(last[produced], 0)] - passed[producer]
    crossing = (last[produced] > producer) & on_data[producer]
    crossing &= span <= max(FEW, FAR * len(products))
    change = np.zeros(count + 1)
    np.add.at(change, producer[crossing], 1)
    np.subtract.at(change, last[produced[crossing]], 1)
    number = np.cumsum(change)[:count]
    places = [
        int(earlier + 1 + number[earlier:later].argmin())
        for earlier, later in itertools.pairwise(products.tolist())
        if number[earlier:later].min() == 1
    ]
    if len(places) < 2:
        return Borders(np.array([0, count]), ("part 0",), {}, 0, "flow")
    tables = np.flatnonzero((names == "gather") & plain & (np.arange(count) < products[0]))
    first = _narrowest(counted.cut, int(tables[-1]), int(products[0])) if len(tables) else 0
    bounds = np.array(sorted({first, *places}))
    told = tuple(f"part {layer}" for layer in range(len(bounds) - 1))
    return Borders(bounds, told, {}, 0, "flow")


def _reads_weights(graph: Graph, pivots: np.ndarray) -> np.ndarray:
    """(N,) bool: pivots that read a weight, or what is made of weights alone."""
    weights = set(graph.parameter_tensor[graph.weights].tolist())
    data = _on_data(graph, pivots)
    operands, results = graph.operands.tolist(), graph.results.tolist()
    ins, outs = graph.operand_offset.tolist(), graph.result_offset.tolist()
    found = []
    for pivot, on_data in zip(pivots.tolist(), data.tolist(), strict=True):
        reads = not weights.isdisjoint(operands[ins[pivot] : ins[pivot + 1]])
        if reads and not on_data:
            weights.update(results[outs[pivot] : outs[pivot + 1]])
        found.append(reads)
    return np.array(found, dtype=bool)


def _on_data(graph: Graph, pivots: Iterable[int]) -> np.ndarray:
    """(N,) bool: pivots that depend on the batch, not on weights alone."""
    data = set(graph.parameter_tensor[graph.parameter_role == Role.BATCH].tolist())
    found = []
    operands, results = graph.operands.tolist(), graph.results.tolist()
    ins, outs = graph.operand_offset.tolist(), graph.result_offset.tolist()
    for pivot in np.asarray(pivots).tolist():
        depends = not data.isdisjoint(operands[ins[pivot] : ins[pivot + 1]])
        if depends:
            data.update(results[outs[pivot] : outs[pivot + 1]])
        found.append(depends)
    return np.array(found, dtype=bool)
