"""Partition plans in plain text: verdict, figures of a step, table of what is partitioned."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable

from parenvs.core.plan import ROUNDING
from parenvs.errors import printable
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.view.grid import STATE_NAMES, UNDECIDED, Cell, cells
from parenvs.view.layers import merged
from parenvs.view.words import (
    SEPARATOR,
    clip,
    duration,
    paint,
    plural,
    reason_lines,
    size,
)

WIDTH = 110
"""Columns of the text."""
MEMORY_PARTS = ("parameters", "optimiser", "inputs", "gradients", "activations")
"""Fields of ``Memory`` in the order in which they are shown."""
_MAX_LINES = 60  # of the table


def text(
    viewable: PartitionReport | Partitioning,
    colour: bool = False,
    undecided: Collection[str] | None = None,
) -> str:
    """A partition plan as text of at most 110 columns.

    Args:
        viewable: what the judge says of the plan, or the problem where nothing is decided yet.
        colour: whether to colour dimensions with ANSI escapes.
        undecided: paths that an episode has not settled.

    Returns:
        Lines without a newline at the end: title, verdict or reasons, the figures, and a table of
        what is partitioned, equal layers merged.
    """
    problem, report = taken_apart(viewable)
    variables, inputs = cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    parts = verdict(problem, report, open_)
    if report is not None:
        parts = parts[:2]  # the others are among the figures
    lines = [clip(title(problem), WIDTH)]
    lines += textwrap.wrap(SEPARATOR.join(parts), WIDTH, subsequent_indent="  ")
    if report is not None:
        lines += reason_lines(report.reasons, WIDTH)
        if report.legal:
            lines += ["", *_figures(report)]
    return "\n".join([*lines, "", *_table(variables, inputs, colour)])


def taken_apart(
    viewable: PartitionReport | Partitioning,
) -> tuple[Partitioning, PartitionReport | None]:
    """The problem, and the report if there is one."""
    if isinstance(viewable, PartitionReport):
        return viewable.problem, viewable
    return viewable, None


def title(problem: Partitioning) -> str:
    """Instance, cluster and rules."""
    cluster = problem.cluster
    parts = [printable(f"{problem.graph.name} on {cluster}"), f"{cluster.devices} devices"]
    parts.append(f"{problem.rules} rules")
    if problem.uneven != "pad":
        parts.append(f"uneven dimensions: {problem.uneven}")
    return SEPARATOR.join(parts)


def verdict(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: int = 0,
) -> list[str]:
    """Legality and the main figures; without a plan, the size of the problem.

    Args:
        problem: the problem.
        report: what the judge says of the plan, or None.
        undecided: number of variables and inputs that an episode has not settled.
    """
    if report is None:
        dims = len(problem.classes.variable_dimensions)
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
        f"utilisation {report.utilisation * 100:.1f} %",
        memory if report.fits else f"{memory}: does not fit",
    ]
    if report.reward:
        value = report.value_of(report.reward)
        parts.append(f"return {value:,.5g} ({report.reward}){_quality(report)}")
    return parts


def answer(report: PartitionReport) -> str:
    """The step, what is split, and the memory, in one line."""
    memory = f"{size(report.memory.peak)} of {size(report.problem.memory_limit)}"
    step = f"{duration(report.step_seconds)} a step"
    return SEPARATOR.join([step, _counts(report), f"{memory} a device"])


def _quality(report: PartitionReport) -> str:
    """How near the return is to its proven bound: ``, optimal``; empty without a bound."""
    gap = report.gap(report)
    if gap is None:
        return ""
    return ", optimal" if gap < ROUNDING else f", at most {gap:.2%} below the best"


def _counts(report: PartitionReport) -> str:
    """``434 variables, 434 of 1,114 dimensions partitioned``."""
    things = [plural(report.variables, "variable")]
    inputs = len(report.problem.partition(report.chosen, "inputs"))
    if inputs:
        things.append(plural(inputs, "batch input"))
    kind = "input dimensions" if report.plan.scope == "inputs" else "variable dimensions"
    return (
        f"{' and '.join(things)}, {report.partitioned_dimensions:,} of {report.dimensions:,} "
        f"{kind} partitioned"
    )


def _figures(report: PartitionReport) -> list[str]:
    """The figures of a step, one a line."""
    memory = report.memory
    speedup = report.replicate_seconds / report.step_seconds
    rewards = [report.reward] if report.reward else ["paper", "step_time"]
    returns = SEPARATOR.join(f"{report.value_of(x):,.6g} ({x})" for x in rewards)
    if report.bound is not None:
        returns += f"{SEPARATOR}proven upper bound {report.bound:,.6g}{_quality(report)}"
    limit = size(report.problem.memory_limit)
    memory_parts = [f"{name} {size(getattr(memory, name))}" for name in MEMORY_PARTS]
    rows = [
        (
            "step time",
            duration(report.step_seconds),
            f"{speedup:.2f} x as fast as replicated, {duration(report.replicate_seconds)}",
        ),
        ("  compute", duration(report.compute_seconds), ""),
        (
            "  communication",
            duration(report.communication_seconds),
            plural(report.all_reduces, "all-reduce"),
        ),
        ("utilisation", f"{report.utilisation * 100:.1f} %", ""),
        (
            "memory per device",
            size(memory.peak),
            f"{'within' if report.fits else 'over'} the limit of {limit}",
        ),
        ("", "", ", ".join(memory_parts[:3])),
        ("", "", ", ".join(memory_parts[3:])),
        (
            "partitioned",
            f"{report.variables:,}",
            _counts(report).partition(" ")[2].removesuffix(" partitioned"),
        ),
        ("return", "", returns),
    ]
    return [f"{name:<20}{value:>10}   {remark}".rstrip() for name, value, remark in rows]


def _table(variables: list[Cell], inputs: list[Cell], colour: bool) -> list[str]:
    """Partitioned variables and inputs, equal layers merged; a line each for the other states."""
    lines = [
        f"{'dimension':<11}{'variable':<50}{'shape':<20}{'count':>7}{'bytes':>10}{'a device':>10}"
    ]
    for role_cells, role in ((variables, ""), (inputs, " (batch input)")):
        split = [cell for cell in role_cells if cell.state >= 0]
        keys = [(cell.state, cell.shape, cell.fault) for cell in split]
        for name, indices in merged([cell.path for cell in split], keys):
            lines.append(_row(printable(name) + role, [split[i] for i in indices], colour))
    if len(lines) == 1:
        lines = ["nothing is partitioned"]
    if len(lines) > _MAX_LINES + 1:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES:,} lines more"]
    for state, name in STATE_NAMES.items():
        whole_variables = [cell for cell in variables if cell.state == state]
        whole_inputs = [cell for cell in inputs if cell.state == state]
        if whole_variables or whole_inputs:
            counts = [plural(len(whole_variables), "variable")] if whole_variables else []
            counts += [plural(len(whole_inputs), "batch input")] if whole_inputs else []
            total = size(_bytes([*whole_variables, *whole_inputs]))
            lines.append(f"{name}: {' and '.join(counts)}, {total}")
    return lines


def _row(name: str, equal: list[Cell], colour: bool) -> str:
    """The line of variables with equal shape and state."""
    first = equal[0]
    dimension = f"{first.state}"
    padding = " " * (11 - len(dimension))
    shape = "x".join(map(str, first.shape))
    device_bytes = sum(cell.device_bytes for cell in equal)
    return (
        f"{paint(dimension, first.state, colour)}{padding}{clip(name, 49):<50}"
        f"{clip(shape, 19):<20}{len(equal):>7,}{size(_bytes(equal)):>10}{size(device_bytes):>10}"
        f"{' !' if first.fault else ''}".rstrip()
    )


def _bytes(several: Iterable[Cell]) -> float:
    return sum(cell.bytes for cell in several)
