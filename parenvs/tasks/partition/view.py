"""Partition plans in plain text: verdict, figures of a step, table of what is partitioned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from posixpath import commonpath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import parenvs.view.words as spelling
from parenvs.core.plan import ROUNDING
from parenvs.errors import printable
from parenvs.tasks.partition.classes import RULE_SETS
from parenvs.tasks.partition.problem import MEMORY_PARTS, Partitioning, PartitionReport
from parenvs.view.tables import empty
from parenvs.view.words import (
    MAX_COLUMNS,
    SEPARATOR,
    duration,
    kind_of,
    merged,
    plural,
    size,
    wrapped,
)

if TYPE_CHECKING:
    from rich.table import Table


REPLICATED, BLOCKED, UNDECIDED = -1, -2, -3
"""States of a variable that has no partitioned dimension."""
STATE_NAMES = {UNDECIDED: "undecided", REPLICATED: "replicated", BLOCKED: "cannot be partitioned"}
MAX_TABLES = 4
"""Beyond these, tables become lists."""


@dataclass(frozen=True)
class Cell:
    """What becomes of a variable or batch input.

    Attributes:
        state: the partitioned dimension, or ``REPLICATED``, ``BLOCKED`` (no dimension can be
            partitioned) or ``UNDECIDED``.
        fault: whether it is partitioned against a rule.
    """

    path: str
    shape: tuple[int, ...]
    state: int
    fault: bool
    bytes: float
    device_bytes: float


Block = dict[str, dict[str, Cell]]
"""Layers or groups of variables: name -> name of a variable within -> cell."""


class LayerTable(NamedTuple):
    """Layers with the same variables.

    Attributes:
        title: what the names of all layers begin with; may be empty.
        columns: names of the variables.
        rows: the layers, by the rest of their names.
    """

    title: str
    columns: list[str]
    rows: Block


def cells(
    problem: Partitioning, report: PartitionReport | None, undecided: Collection[str] | None = None
) -> tuple[list[Cell], list[Cell]]:
    """Variables and batch inputs, in the order in which the step first reads them.

    Without a report everything that can be partitioned is undecided, unless ``undecided`` lists the
    paths that an episode has not yet settled.
    """
    graph, classes = problem.graph, problem.classes
    chosen = np.zeros(len(classes), bool) if report is None else report.chosen
    broken, broken_paths = _broken(report, chosen)
    open_paths = set(graph.paths if report is None and undecided is None else undecided or ())
    scale = problem.footprint.scale(chosen)

    def cell(index: int) -> Cell:
        tensor, path = int(graph.parameter_tensor[index]), graph.paths[index]
        splittable = classes.splittable(tensor)
        label = classes.label[splittable]
        split = splittable[chosen[label]]
        state = REPLICATED
        if split.size:
            state = int(split[0] - graph.dim_offset[tensor])
        elif classes.blocked[label].all():
            state = BLOCKED
        elif path in open_paths:
            state = UNDECIDED
        size = float(graph.tensor_bytes[tensor])
        fault = bool(broken[label].any()) or path in broken_paths
        return Cell(path, graph.shape(tensor), state, fault, size, size * float(scale[tensor]))

    # Parameters stand in the order in which the step first reads them: as the layers run.
    reader = np.repeat(np.arange(len(graph.opcode)), np.diff(graph.operand_offset))
    first = np.full(len(graph.element_type), len(graph.opcode))
    np.minimum.at(first, graph.operands, reader)

    def ordered(indices: np.ndarray) -> list[Cell]:
        order = np.argsort(first[graph.parameter_tensor[indices]], kind="stable")
        return [cell(i) for i in indices[order].tolist()]

    return ordered(graph.weights), ordered(problem.inputs)


def _broken(report: PartitionReport | None, chosen: np.ndarray) -> tuple[np.ndarray, set[str]]:
    """What an illegal plan breaks rules with.

    Returns:
        (C,) bool, the chosen classes that are blocked or exclude one another; and the paths of
        which the plan names no dimension or a wrong one.
    """
    if report is None or report.legal:
        return np.zeros(len(chosen), bool), set()
    problem, partition = report.problem, report.plan.partition
    classes, pairs = problem.classes, problem.classes.conflicts
    broken = chosen & classes.blocked
    broken[pairs[chosen[pairs].all(axis=1)]] = True
    paths = set(problem.partition(chosen, report.plan.scope)) - set(partition)
    for path in partition.keys() & problem.tensor.keys():
        shape = problem.graph.shape(problem.tensor[path])
        if not 0 <= partition[path] < len(shape) or shape[partition[path]] == 1:
            paths.add(path)
    return broken, paths


def grid(variables: Sequence[Cell]) -> tuple[list[LayerTable], list[Cell]]:
    """Tables of layers of one kind, the largest first, and the variables outside of them."""
    kinds: dict[str, Block] = {}
    loose: list[Cell] = []
    layers = spelling.layers([cell.path for cell in variables])
    for cell, (layer, name) in zip(variables, layers, strict=True):
        if layer:
            kinds.setdefault(kind_of(layer), {}).setdefault(layer, {})[name] = cell
        else:
            loose.append(cell)
    tables: list[LayerTable] = []
    for block in sorted(kinds.values(), key=lambda block: -sum(map(len, block.values()))):
        columns = list(dict.fromkeys(name for row in block.values() for name in row))
        if len(block) > 1 and len(tables) < MAX_TABLES and len(columns) <= MAX_COLUMNS:
            names = sorted(block, key=spelling.natural)
            title = commonpath([name.rpartition("/")[0] for name in names])
            rows = {name.removeprefix(f"{title}/"): block[name] for name in names}
            tables.append(LayerTable(title, columns, rows))
        else:
            loose += [cell for row in block.values() for cell in row.values()]
    return tables, loose


_MAX_LINES = 60  # of the table
Viewable = PartitionReport | Partitioning
"""A judged plan, or the problem where nothing is decided yet."""


def text(viewable: Viewable, color: bool = False, undecided: Collection[str] | None = None) -> str:
    """A partition plan as text of at most 110 columns, without a final newline.

    ``undecided`` are the paths that an episode has not settled; ``color`` adds ANSI escapes.
    """
    problem, report = problem_and_report(viewable)
    variables, inputs = cells(problem, report, undecided)
    parts = verdict(problem, report, [*variables, *inputs])
    # Of a plan, the others are among the figures.
    lines = wrapped([title(problem), SEPARATOR.join(parts if report is None else parts[:2])])
    if report is not None:
        lines += spelling.reason_lines(report.reasons)
        if report.legal:
            lines += ["", *_figure_lines(report)]
    return "\n".join([*lines, "", *_table(variables, inputs, color)])


def problem_and_report(viewable: Viewable) -> tuple[Partitioning, PartitionReport | None]:
    """The problem, and the report if there is one."""
    if isinstance(viewable, PartitionReport):
        return viewable.problem, viewable
    return viewable, None


def title(problem: Partitioning) -> str:
    """Instance, cluster and rules."""
    cluster, rules = problem.cluster, f"{problem.rules} rules"
    parts = [printable(f"{problem.graph.name} on {cluster}"), f"{cluster.devices} devices", rules]
    if problem.uneven != "pad":
        parts.append(f"uneven dimensions: {problem.uneven}")
    return SEPARATOR.join(parts)


def verdict(problem: Partitioning, report: PartitionReport | None, shown: list[Cell]) -> list[str]:
    """Legality and the main figures; without a plan, the size of the problem.

    ``shown`` are variables and inputs, some of which an episode may not have settled.
    """
    undecided = sum(cell.state == UNDECIDED for cell in shown)
    if report is None:
        dims = len(problem.dimensions("variables"))
        return [
            "nothing decided yet",
            f"{plural(len(problem.graph.weights), 'variable')} with {plural(dims, 'dimension')}",
            f"{plural(len(problem.decidable('variables')), 'class', 'es')} that can be partitioned",
            f"replicated step {duration(problem.replicate_seconds)}",
        ]
    if not report.legal:
        return ["illegal", _counts(report)]
    memory = f"memory {size(report.memory.peak)} of {size(problem.memory_limit)}"
    parts = [
        f"{undecided:,} undecided" if undecided else "legal",
        _counts(report),
        f"step {duration(report.step_seconds)}, "
        f"{duration(report.communication_seconds)} of it communication",
        f"utilization {report.utilization * 100:.1f} %",
        memory if report.fits else f"{memory}: does not fit",
    ]
    if report.reward:
        value = report.value_of(report.reward)
        parts.append(f"return {value:,.5g} ({report.reward}){_gap_words(report)}")
    return parts


def answer(report: PartitionReport) -> str:
    """The step, what is split, and the memory, in one line."""
    memory = f"{size(report.memory.peak)} of {size(report.problem.memory_limit)}"
    step = f"{duration(report.step_seconds)} a step"
    return SEPARATOR.join([step, _counts(report), f"{memory} a device"])


def _gap_words(report: PartitionReport) -> str:
    """How near the return is to its proven bound: ``, optimal``; empty without a bound."""
    gap = report.gap(report)
    if gap is None:
        return ""
    return ", optimal" if gap < ROUNDING else f", at most {gap:.2%} below the best"


def _counts(report: PartitionReport) -> str:
    inputs = len(report.problem.partition(report.chosen, "inputs"))
    split = plural(report.variables, "variable")
    split += f" and {plural(inputs, 'batch input')}" if inputs else ""
    kind = "input dimensions" if report.plan.scope == "inputs" else "variable dimensions"
    return f"{split}, {report.partitioned_dimensions:,} of {report.dimensions:,} {kind} partitioned"


def _figure_lines(report: PartitionReport) -> list[str]:
    memory, within = report.memory, "within" if report.fits else "over"
    limit = f"{within} the limit of {size(report.problem.memory_limit)}"
    speedup = report.replicate_seconds / report.step_seconds
    rewards = [report.reward] if report.reward else ["paper", "step_time"]
    returns = SEPARATOR.join(f"{report.value_of(x):,.6g} ({x})" for x in rewards)
    if report.bound is not None:
        returns += f"{SEPARATOR}proven upper bound {report.bound:,.6g}{_gap_words(report)}"
    parts = [f"{name} {size(getattr(memory, name))}" for name in MEMORY_PARTS]
    faster = f"{speedup:.2f} x as fast as replicated, {duration(report.replicate_seconds)}"
    reduced = plural(report.all_reduces, "all-reduce")
    # The first word of the counts, the number of variables, has a column of its own.
    count, _, counts = _counts(report).removesuffix(" partitioned").partition(" ")
    rows = [
        ("step time", duration(report.step_seconds), faster),
        ("  compute", duration(report.compute_seconds), ""),
        ("  communication", duration(report.communication_seconds), reduced),
        ("utilization", f"{report.utilization * 100:.1f} %", ""),
        ("memory per device", size(memory.peak), limit),
        ("", "", ", ".join(parts[:3])),
        ("", "", ", ".join(parts[3:])),
        ("partitioned", count, counts),
        ("return", "", returns),
    ]
    return [f"{name:<20}{value:>10}   {remark}".rstrip() for name, value, remark in rows]


def _table(variables: list[Cell], inputs: list[Cell], color: bool) -> list[str]:
    """Partitioned variables and inputs, equal layers merged; a line each for the other states."""
    lines = [
        f"{'dimension':<11}{'variable':<50}{'shape':<20}{'count':>7}{'bytes':>10}{'a device':>10}"
    ]
    for group, role in ((variables, ""), (inputs, " (batch input)")):
        split = [cell for cell in group if cell.state >= 0]
        keys = [(cell.state, cell.shape, cell.fault) for cell in split]
        for name, indices in merged([cell.path for cell in split], keys):
            lines.append(_table_row(printable(name) + role, [split[i] for i in indices], color))
    if len(lines) == 1:
        lines = ["nothing is partitioned"]
    if len(lines) > _MAX_LINES + 1:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES:,} lines more"]
    for state, name in STATE_NAMES.items():
        roles = {"variable": variables, "batch input": inputs}
        groups = {role: [c for c in roles[role] if c.state == state] for role in roles}
        counts = [plural(len(group), role) for role, group in groups.items() if group]
        if counts:
            total = size(sum(cell.bytes for group in groups.values() for cell in group))
            lines.append(f"{name}: {' and '.join(counts)}, {total}")
    return lines


def _table_row(name: str, equal: list[Cell], color: bool) -> str:
    first, shape = equal[0], "x".join(map(str, equal[0].shape))
    dimension = spelling.paint(f"{first.state:<11}", first.state, color)
    full_bytes = sum(cell.bytes for cell in equal)
    device_bytes = sum(cell.device_bytes for cell in equal)
    return (
        f"{dimension}{name:<50}"
        f"{shape:<20}{len(equal):>7,}{size(full_bytes):>10}{size(device_bytes):>10}"
        f"{' !' if first.fault else ''}".rstrip()
    )


def classes(problem: Partitioning) -> Table:
    """The dimension classes of a graph, for both rule sets."""
    table = empty(f"dimension classes on {problem.cluster}", "what", *RULE_SETS)
    graph, cluster, uneven = problem.graph, problem.cluster, problem.uneven
    problems = [
        problem if rules == problem.rules else Partitioning.build(graph, cluster, rules, uneven)
        for rules in RULE_SETS
    ]
    rows = (
        ("variable dimensions", lambda p: len(p.dimensions("variables"))),
        ("classes that hold some and can be partitioned", lambda p: len(p.decidable("variables"))),
        ("variable dimensions in them", lambda p: p.counts("variables")[p.decidable("all")].sum()),
        ("pairs of classes that conflict", lambda p: len(p.classes.conflicts)),
        ("dimensions of batch inputs", lambda p: len(p.dimensions("inputs"))),
        ("of them can be partitioned", lambda p: p.counts("inputs")[p.decidable("all")].sum()),
    )
    for name, count in rows:
        table.add_row(name, *(str(count(p)) for p in problems))
    table.add_row("replicated step", *(f"{p.replicate_seconds:.4f} s" for p in problems))
    return table


def compared(report: PartitionReport) -> dict[str, str]:
    """The columns of a plan in a table of several."""
    reward = report.problem.reward
    return {
        "return": f"{report.value_of(reward):.{4 if reward == 'step_time' else 1}f}",
        "vars": str(report.variables),
        "dims": f"{report.partitioned_dimensions}/{report.dimensions}",
        "step (s)": f"{report.step_seconds:.4g}",
        "sent (s)": f"{report.communication_seconds:.3g}",
        "hybrid": report.price.cell if report.price else "",
        "GB": f"{report.memory.peak / 1e9:.3g}" + ("" if report.fits else " !"),
    }
