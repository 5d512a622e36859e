"""What a partition plan does to each variable, by layer, with repeated names merged."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parenvs.partitioning.problem import Partitioning, scope_of

if TYPE_CHECKING:
    from parenvs.partitioning.judge import PartitionReport

REPLICATED, BLOCKED, UNDECIDED = -1, -2, -3
"""States of a variable that has no partitioned dimension."""
STATE_NAMES = {
    UNDECIDED: "undecided",
    REPLICATED: "replicated",
    BLOCKED: "cannot be partitioned",
}
MOST_TABLES, MOST_COLUMNS, MOST_ROWS = 4, 48, 64
"""Beyond these, tables become lists, and rows stand for several layers."""
_MOST_RANGES = 4


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


@dataclass(frozen=True)
class Table:
    """Layers with the same variables.

    Attributes:
        title: what the names of all layers begin with; may be empty.
        columns: names of the variables within a layer.
        rows: name of each layer, and its cells by column: none where the layer has no such
            variable, several where the row stands for several layers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]


@dataclass(frozen=True)
class Group:
    """Variables outside of any layer, with their names within the group."""

    title: str
    cells: tuple[tuple[str, Cell], ...]


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

    return ordered(graph.variables), ordered(problem.inputs)


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
    tied = problem.partition(report.chosen, scope_of(report.plan.task, "paper"))
    garbled = {
        path
        for path, d in named.items()
        if path in problem.tensor
        and (d >= len(shape := problem.graph.shape(problem.tensor[path])) or d < 0 or shape[d] == 1)
    }
    return (set(tied) - set(named)) | garbled


def layers(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Layer of each variable, empty if it is in none, and its name within the layer.

    A layer's name ends in the last part of the path that is a number (``h/0``), else in the first
    part with a number that other paths have differently (``encoder/layer_0``), else in the first
    with any number. The last part of a path is never a layer.

    >>> layers(["encoder/layer_0/conv1/bias", "encoder/layer_1/conv1/bias", "norm/bias"])
    [('encoder/layer_0', 'conv1/bias'), ('encoder/layer_1', 'conv1/bias'), ('', 'norm/bias')]
    """
    split = [path.split("/") for path in paths]
    seen: dict[str, set[str]] = {}
    for parts in split:
        for k, part in enumerate(parts[:-1]):
            if re.search(r"\d", part):
                prefix = "/".join(parts[: k + 1])
                seen.setdefault(kind_of(prefix), set()).add(prefix)
    found = []
    for parts in split:
        ends = [k for k, part in enumerate(parts[:-1]) if re.search(r"\d", part)]
        exact = [k for k in ends if parts[k].isdecimal()]
        varied = [k for k in ends if len(seen[kind_of("/".join(parts[: k + 1]))]) > 1]
        end = next(iter(exact[::-1] or varied or ends), -1) + 1
        found.append(("/".join(parts[:end]), "/".join(parts[end:])))
    return found


def kind_of(name: str) -> str:
    """A name with ``#`` for every number."""
    return re.sub(r"\d+", "#", name)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``layer_2`` before ``layer_10``."""
    return [(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", name)]


def merged(paths: Sequence[str], keys: Sequence[Hashable]) -> list[tuple[str, list[int]]]:
    """Paths with equal keys that differ in the layer's number only, as ``layer_0..23/self/q``.

    Returns:
        The common name and the positions in ``paths``, in the order of their first one.
    """
    groups: dict[tuple[str, str, Hashable], list[tuple[str, int]]] = {}
    for index, (layer, name) in enumerate(layers(paths)):
        path, number = paths[index], ""
        before, after = path, ""
        numbers = list(re.finditer(r"\d+", layer or name))
        if numbers:  # the layer begins the path; without one, the name is the path
            start, end = numbers[-1].span()
            before, number, after = path[:start], path[start:end], path[end:]
        groups.setdefault((before, after, keys[index]), []).append((number, index))
    return [
        (f"{before}{_ranges([number for number, _ in held])}{after}", [index for _, index in held])
        for (before, after, _), held in groups.items()
    ]


def _ranges(numbers: Sequence[str]) -> str:
    """``0..23``, or ``{0,2,5..7}``; long lists are cut short."""
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda x: (int(x), x)):
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    if len(words) > _MOST_RANGES:
        words[_MOST_RANGES - 1 : -1] = ["…"]
    return words[0] if len(words) == 1 else f"{{{','.join(words)}}}"


def grid(variables: Sequence[Cell]) -> tuple[list[Table], list[Group]]:
    """Tables of the layers, and the variables outside of them by the first part of their path."""
    rows: dict[str, dict[str, Cell]] = {}
    loose: dict[str, list[tuple[str, Cell]]] = {}
    for cell, (layer, name) in zip(variables, layers([x.path for x in variables]), strict=True):
        if layer:
            rows.setdefault(layer, {})[name] = cell
        else:
            head, _, tail = cell.path.partition("/")
            title = head if tail else ""
            loose.setdefault(title, []).append((tail or head, cell))
    tables: dict[str, dict[str, dict[str, Cell]]] = {}
    for layer in rows:
        tables.setdefault(kind_of(layer), {})[layer] = rows[layer]
    kinds = [
        {layer: held[layer] for layer in sorted(held, key=natural)} for held in tables.values()
    ]
    blocks = _joined(kinds, loose)
    small = sorted(blocks, key=lambda block: sum(map(len, block.values())))
    while small and (
        len(small) > MOST_TABLES or sum(len(_columns(block)) for block in small) > MOST_COLUMNS
    ):
        wide = [block for block in small if len(_columns(block)) > MOST_COLUMNS]
        block = wide[0] if wide else small[0]
        small.remove(block)
        blocks.remove(block)
        for layer, held in block.items():
            loose[layer] = list(held.items())
    groups = [Group(title, tuple(found)) for title, found in loose.items()]
    return [_table(block) for block in blocks], groups


Block = dict[str, dict[str, Cell]]
"""Layers of a table: name -> name within the layer -> cell."""


def _joined(blocks: list[Block], loose: dict[str, list[tuple[str, Cell]]]) -> list[Block]:
    """Kinds of layers with the same names in one table; groups that have no other names too."""
    joined: dict[frozenset[str], Block] = {}
    for block in blocks:
        joined.setdefault(frozenset(_columns(block)), {}).update(block)
    for title in [x for x in loose if x]:
        names = {name for name, _ in loose[title]}
        home = next((block for columns, block in joined.items() if names <= columns), None)
        if home is not None:
            home[title] = dict(loose.pop(title))
    return list(joined.values())


def _columns(block: Block) -> list[str]:
    """Names within the layers, in the order of the layer that has most."""
    first = max(block.values(), key=len)
    return list(dict.fromkeys([*first, *(name for held in block.values() for name in held)]))


def _table(block: Block) -> Table:
    columns = _columns(block)
    names = list(block)
    parts = [name.split("/") for name in names]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == parts[0][shared] for x in parts):
        shared += 1
    step = -(-len(names) // MOST_ROWS)
    rows = []
    for k in range(0, len(names), step):
        some = names[k : k + step]
        first, last = ("/".join(name.split("/")[shared:]) for name in (some[0], some[-1]))
        number = re.search(r"\d+$", last)
        end = number[0] if number and kind_of(first) == kind_of(last) else last
        label = first if len(some) == 1 else f"{first}–{end}"
        held = tuple(
            tuple(block[name][column] for name in some if column in block[name])
            for column in columns
        )
        rows.append((label, held))
    return Table("/".join(parts[0][:shared]), tuple(columns), tuple(rows))
