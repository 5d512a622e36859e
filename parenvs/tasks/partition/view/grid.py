"""What a partition plan does to each variable, by layer, with repeated names merged."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parenvs.tasks.partition.problem import Partitioning
from parenvs.view.layers import MAX_COLUMNS, kind_of, layers, natural

if TYPE_CHECKING:
    from parenvs.tasks.partition.problem import PartitionReport

REPLICATED, BLOCKED, UNDECIDED = -1, -2, -3
"""States of a variable that has no partitioned dimension."""
STATE_NAMES = {
    UNDECIDED: "undecided",
    REPLICATED: "replicated",
    BLOCKED: "cannot be partitioned",
}
MAX_TABLES, MOST_ROWS = 4, 64
"""Beyond these, tables become lists, and rows stand for several layers."""
_MANY_ROWS = 32  # from which on equal neighbours share a row


@dataclass(frozen=True)
class Cell:
    """What becomes of a variable or batch input.

    Attributes:
        path: its path.
        shape: its dimensions.
        state: the partitioned dimension, or ``REPLICATED``, ``BLOCKED`` (no dimension can be
            partitioned) or ``UNDECIDED``.
        fault: whether it is partitioned against a rule.
        bytes: its size.
        device_bytes: the part that each device holds.
    """

    path: str
    shape: tuple[int, ...]
    state: int
    fault: bool
    bytes: float
    device_bytes: float


class NamedCell(NamedTuple):
    """A variable with its name within a layer or group."""

    name: str
    cell: Cell


class Row(NamedTuple):
    """A layer of a table, or several layers that share a row.

    Attributes:
        label: name of the layer, or of the first and the last: ``layer_0–15``.
        cells: variables by column: none where the layer has no such variable, several where the
            row stands for several layers.
    """

    label: str
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """Layers with the same variables.

    Attributes:
        title: what the names of all layers begin with; may be empty.
        columns: names of the variables within a layer.
        rows: the layers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Group:
    """Variables outside of any layer.

    Attributes:
        title: what their paths begin with; may be empty.
        cells: the variables, with their names within the group.
    """

    title: str
    cells: tuple[NamedCell, ...]


def cells(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: Collection[str] | None = None,
) -> tuple[list[Cell], list[Cell]]:
    """Variables and batch inputs, in the order in which the step first reads them.

    Args:
        problem: the problem.
        report: what the judge says of the plan; None: everything that can be partitioned is
            undecided, unless ``undecided`` says otherwise.
        undecided: paths of the variables and inputs that an episode has not yet settled.
    """
    graph, classes = problem.graph, problem.classes
    no_class = np.zeros(len(classes), dtype=bool)
    chosen = no_class if report is None else report.chosen
    wrong = no_class if report is None or report.legal else _wrong(problem, chosen)
    faulty = _faulty_paths(report)
    open_ = set(graph.paths) if report is None and undecided is None else set(undecided or ())
    scale = problem.footprint.scale(chosen)

    def cell(index: int) -> Cell:
        tensor, path = int(graph.parameter_tensor[index]), graph.paths[index]
        start, end = graph.dim_offset[tensor : tensor + 2].tolist()
        splittable = start + np.flatnonzero(graph.dims[start:end] > 1)
        label = classes.label[splittable]
        split = splittable[chosen[label]]
        state = REPLICATED
        if split.size:
            state = int(split[0]) - start
        elif classes.blocked[label].all():
            state = BLOCKED
        elif path in open_:
            state = UNDECIDED
        size = float(graph.tensor_bytes[tensor])
        fault = bool(wrong[label].any()) or path in faulty
        return Cell(path, graph.shape(tensor), state, fault, size, size * float(scale[tensor]))

    reader = np.repeat(np.arange(len(graph.opcode)), np.diff(graph.operand_offset))
    first = np.full(len(graph.element_type), len(graph.opcode))
    np.minimum.at(first, graph.operands, reader)

    def ordered(indices: np.ndarray) -> list[Cell]:
        order = np.argsort(first[graph.parameter_tensor[indices]], kind="stable")
        return [cell(i) for i in indices[order].tolist()]

    return ordered(graph.weights), ordered(problem.inputs)


def _wrong(problem: Partitioning, chosen: np.ndarray) -> np.ndarray:
    """(C,) bool, the chosen classes that are blocked or exclude one another."""
    wrong = chosen & problem.classes.blocked
    pairs = problem.classes.conflicts
    wrong[pairs[chosen[pairs].all(axis=1)]] = True
    return wrong


def _faulty_paths(report: PartitionReport | None) -> set[str]:
    """Paths of which an illegal plan names no dimension or a wrong one.

    A variable that the plan leaves out is at fault if it is tied to what the plan names.
    """
    if report is None or report.legal:
        return set()
    problem, named = report.problem, report.plan.partition
    tied = problem.partition(report.chosen, report.plan.scope)
    garbled = {
        path
        for path, d in named.items()
        if path in problem.tensor
        and (d >= len(shape := problem.graph.shape(problem.tensor[path])) or d < 0 or shape[d] == 1)
    }
    return (set(tied) - set(named)) | garbled


Block = dict[str, dict[str, Cell]]
"""Layers of a table: name -> name within the layer -> cell."""


def grid(variables: Sequence[Cell]) -> tuple[list[Table], list[Group]]:
    """Tables of the layers, and the variables outside of them by the first part of their path.

    What all paths begin with is left out, unless it tells what a number counts.
    """
    by_layer: Block = {}
    loose: dict[str, list[NamedCell]] = {}
    paths = _without_root([cell.path for cell in variables])
    for cell, path, (layer, name) in zip(variables, paths, layers(paths), strict=True):
        if layer:
            by_layer.setdefault(layer, {})[name] = cell
        else:
            head, _, tail = path.partition("/")
            loose.setdefault(head if tail else "", []).append(NamedCell(tail or head, cell))
    by_kind: dict[str, Block] = {}
    for layer in by_layer:
        by_kind.setdefault(kind_of(layer), {})[layer] = by_layer[layer]
    kinds = [
        {layer: block[layer] for layer in sorted(block, key=natural)} for block in by_kind.values()
    ]
    blocks = _joined(kinds, loose)
    smallest_first = sorted(
        blocks, key=lambda block: (len(block) > 1, sum(map(len, block.values())))
    )
    while smallest_first and (
        len(smallest_first[0]) == 1
        or len(smallest_first) > MAX_TABLES
        or sum(len(_columns(block)) for block in smallest_first) > MAX_COLUMNS
    ):
        too_wide = [block for block in smallest_first if len(_columns(block)) > MAX_COLUMNS]
        block = too_wide[0] if too_wide else smallest_first[0]
        smallest_first.remove(block)
        blocks.remove(block)
        for layer, named in block.items():
            loose[layer] = [NamedCell(*item) for item in named.items()]
    groups = [Group(title, tuple(cells)) for title, cells in loose.items()]
    return [_table(block) for block in blocks], groups


def _without_root(paths: Sequence[str]) -> list[str]:
    """The paths without the parts that all of them begin with, ``params``."""
    split = [path.split("/") for path in paths]
    root = 0
    while split and all(
        len(parts) > root + 1
        and parts[root] == split[0][root]
        and not re.search(r"\d", parts[root] + parts[root + 1])
        for parts in split
    ):
        root += 1
    return ["/".join(parts[root:]) for parts in split]


def _joined(blocks: list[Block], loose: dict[str, list[NamedCell]]) -> list[Block]:
    """The blocks, those with the same names joined.

    Loose variables whose names are all among those of a block move from ``loose`` into it.
    """
    joined: dict[frozenset[str], Block] = {}
    for block in blocks:
        joined.setdefault(frozenset(_columns(block)), {}).update(block)
    for title in [x for x in loose if x]:
        names = {named.name for named in loose[title]}
        home = next((block for columns, block in joined.items() if names <= columns), None)
        if home is not None:
            home[title] = dict(loose.pop(title))
    return list(joined.values())


def _columns(block: Block) -> list[str]:
    """Names within the layers, in the order of the layer that has most."""
    first = max(block.values(), key=len)
    return list(dict.fromkeys([*first, *(name for layer in block.values() for name in layer)]))


def _table(block: Block) -> Table:
    """The table of a block.

    Neighbours that are equal share a row where there are many layers; of more than ``MOST_ROWS``,
    others have to share one too.
    """
    columns = _columns(block)
    title, labels = _title_and_labels(list(block))
    rows = [
        Row(label, tuple((named[column],) if column in named else () for column in columns))
        for label, named in zip(labels, block.values(), strict=True)
    ]
    if len(rows) > _MANY_ROWS:
        rows = [_shared(list(same)) for _, same in groupby(rows, _look)]
    step = -(-len(rows) // MOST_ROWS)
    rows = [_shared(rows[k : k + step]) for k in range(0, len(rows), step)]
    return Table(title, tuple(columns), tuple(rows))


def _title_and_labels(names: Sequence[str]) -> tuple[str, list[str]]:
    """What the names of layers begin with, and what each has besides.

    Where they differ in several numbers, the title has ``#`` for them: ``stages/#/layers/#``.
    """
    (kind, *others) = {kind_of(name) for name in names}
    if not others and len(re.findall(r"(?<![^/])#(?![^/])", kind)) > 1:
        return kind, ["/".join(re.findall(r"\d+", name)) for name in names]
    parts = [name.split("/") for name in names]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == parts[0][shared] for x in parts):
        shared += 1
    return "/".join(parts[0][:shared]), ["/".join(x[shared:]) for x in parts]


def _look(row: Row) -> Hashable:
    """What a row shows but for its name."""
    return tuple(tuple((c.state, c.fault, c.shape) for c in cells) for cells in row.cells)


def _shared(rows: Sequence[Row]) -> Row:
    """One row for several."""
    first, last = (row.label for row in (rows[0], rows[-1]))
    same = len(re.sub(r"\d+$", "", last))
    end = last[same:] if first[:same] == last[:same] and first[same:].isdecimal() else last
    label = first if len(rows) == 1 else f"{first}–{end}"
    columns = zip(*(row.cells for row in rows), strict=True)
    return Row(
        label, tuple(tuple(cell for cells in column for cell in cells) for column in columns)
    )
