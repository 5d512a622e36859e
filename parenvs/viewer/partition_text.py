"""Partition plans in plain text, and the words that text and pictures of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from parenvs.plan import BatchPlan
from parenvs.viewer.partition_grid import BLOCKED, REPLICATED, UNDECIDED, Cell, cells, merged
from parenvs.viewer.words import duration, printable, size

if TYPE_CHECKING:
    from parenvs.partitioning.problem import Partitioning, PartitionReport

WIDTH = 110
"""Columns of the text."""
_MOST_LINES = 60  # of the table
_ANSI = (33, 214, 36, 133, 74, 143, 61, 180)  # 256-colour codes, in the order of the viewer's
_NAMES = {
    UNDECIDED: "undecided",
    REPLICATED: "replicated",
    BLOCKED: "cannot be partitioned",
}
MEMORY_PARTS = ("parameters", "optimiser", "inputs", "gradients", "activations")
OPTIMAL = 1e-9
"""A gap below this is none."""


def text(
    report: PartitionReport, colour: bool = False, undecided: Collection[str] | None = None
) -> str:
    """A judged partition plan as text of at most 110 columns.

    Args:
        report: what the judge says of the plan.
        colour: whether to colour dimensions with ANSI escapes.
        undecided: paths that an episode has not settled.

    Returns:
        Lines without a newline at the end: title, verdict or reasons, the figures, and a table of
        what is partitioned, equal layers merged.
    """
    problem = report.problem
    variables, inputs = cells(problem, report, undecided)
    open_ = sum(cell.state == UNDECIDED for cell in (*variables, *inputs))
    lines = [_clip(title(problem), WIDTH)]
    lines += _wrapped("  ·  ".join(verdict(problem, report, open_)[:2]), "", "  ")
    for reason in report.reasons:
        lines += _wrapped(printable(reason), "  ! ", "    ")
    if report.legal:
        lines += ["", *_figures(report)]
    return "\n".join([*lines, "", *_table(variables, inputs, colour)])


def title(problem: Partitioning) -> str:
    """Instance, cluster and rules."""
    cluster = problem.cluster
    parts = [f"{printable(problem.graph.name)} on {cluster}", f"{cluster.devices} devices"]
    parts.append(f"{problem.rules} rules")
    if problem.uneven != "pad":
        parts.append(f"uneven dimensions: {problem.uneven}")
    return "  ·  ".join(parts)


def verdict(
    problem: Partitioning,
    report: PartitionReport | None,
    undecided: int = 0,
) -> list[str]:
    """What there is to say in one line, in parts: legality and the main figures."""
    classes = problem.classes
    if report is None:
        count, dims = len(problem.graph.variables), len(classes.variable_dimensions)
        free = len(problem.decidable("variables"))
        return [
            "nothing decided yet",
            f"{_plural(count, 'variable')} with {_plural(dims, 'dimension')}",
            f"{_plural(free, 'class', 'es')} that can be partitioned",
            f"replicated step {duration(problem.replicate_seconds)}",
        ]
    parts = [_counts(report)]
    if not report.legal:
        return ["illegal", *parts]
    if undecided:
        parts.insert(0, f"{undecided:,} undecided")
    else:
        parts.insert(0, "legal")
    step = f"step {duration(report.step_seconds)}"
    step += f", {duration(report.communication_seconds)} of it communication"
    memory = f"memory {size(report.memory.peak)} of {size(problem.memory_limit)}"
    parts += [step, f"utilisation {report.utilisation:.1%}".replace("%", " %"), memory]
    if not report.fits:
        parts[-1] += ": does not fit"
    if report.reward:
        parts.append(_return(report, report.reward) + quality(report))
    return parts


def quality(report: PartitionReport) -> str:
    """How near the return is to its proven bound: ``, optimal``; empty without a bound."""
    gap = report.gap(report)
    if gap is None:
        return ""
    return ", optimal" if gap < OPTIMAL else f", at most {gap:.2%} below the best"


def _counts(report: PartitionReport) -> str:
    """``434 variables, 434 of 1,114 dimensions partitioned``."""
    things = [_plural(report.variables, "variable")]
    inputs = len(report.problem.partition(report.chosen, "inputs"))
    if inputs:
        things.append(_plural(inputs, "batch input"))
    kind = "input dimensions" if isinstance(report.plan, BatchPlan) else "variable dimensions"
    return (
        f"{' and '.join(things)}, {report.partitioned_dimensions:,} of {report.dimensions:,} "
        f"{kind} partitioned"
    )


def _return(report: PartitionReport, reward: str) -> str:
    return f"return {report.value(reward):,.5g} ({reward})"


def _figures(report: PartitionReport) -> list[str]:
    """A figure a line, with what belongs to it."""
    memory = report.memory
    faster = report.replicate_seconds / report.step_seconds
    rewards = [report.reward] if report.reward else ["paper", "step_time"]
    returns = "  ·  ".join(f"{report.value(x):,.6g} ({x})" for x in rewards)
    if report.bound is not None:
        returns += f"  ·  proven upper bound {report.bound:,.6g}{quality(report)}"
    limit = size(report.problem.memory_limit)
    parts = [f"{name} {size(getattr(memory, name))}" for name in MEMORY_PARTS]
    rows = [
        (
            "step time",
            duration(report.step_seconds),
            f"{faster:.2f} x as fast as replicated, {duration(report.replicate_seconds)}",
        ),
        ("  compute", duration(report.compute_seconds), ""),
        (
            "  communication",
            duration(report.communication_seconds),
            _plural(report.all_reduces, "all-reduce"),
        ),
        ("utilisation", f"{report.utilisation * 100:.1f} %", ""),
        (
            "memory per device",
            size(memory.peak),
            f"{'within' if report.fits else 'over'} the limit of {limit}",
        ),
        ("", "", ", ".join(parts[:3])),
        ("", "", ", ".join(parts[3:])),
        (
            "partitioned",
            f"{report.variables:,}",
            _counts(report).partition(" ")[2].removesuffix(" partitioned"),
        ),
        ("return", "", returns),
    ]
    return [f"{name:<20}{value:>10}   {rest}".rstrip() for name, value, rest in rows]


def _table(variables: list[Cell], inputs: list[Cell], colour: bool) -> list[str]:
    """Partitioned variables and inputs, equal layers merged; a line each for the other states."""
    lines = [
        f"{'dimension':<11}{'variable':<50}{'shape':<20}{'count':>7}{'bytes':>10}{'a device':>10}"
    ]
    for held, what in ((variables, ""), (inputs, " (batch input)")):
        split = [cell for cell in held if cell.state >= 0]
        keys = [(cell.state, cell.shape, cell.fault) for cell in split]
        for name, indices in merged([cell.path for cell in split], keys):
            some = [split[i] for i in indices]
            lines.append(_row(printable(name) + what, some, colour))
    if len(lines) == 1:
        lines = ["nothing is partitioned"]
    if len(lines) > _MOST_LINES + 1:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES:,} lines more"]
    for state, name in _NAMES.items():
        some = [cell for cell in variables if cell.state == state]
        others = [cell for cell in inputs if cell.state == state]
        if some or others:
            words = [_plural(len(some), "variable")] if some else []
            words += [_plural(len(others), "batch input")] if others else []
            lines.append(f"{name}: {' and '.join(words)}, {size(_bytes([*some, *others]))}")
    return lines


def _row(name: str, some: list[Cell], colour: bool) -> str:
    state, fault = some[0].state, some[0].fault
    digit = f"{state:<11}"
    if colour:
        digit = f"\x1b[38;5;{_ANSI[state % len(_ANSI)]}m{state}\x1b[0m{'':{11 - len(str(state))}}"
    shape = "x".join(map(str, some[0].shape))
    whole, each = _bytes(some), sum(cell.device_bytes for cell in some)
    return (
        f"{digit}{_clip(name, 49):<50}{_clip(shape, 19):<20}{len(some):>7,}{size(whole):>10}"
        f"{size(each):>10}{' !' if fault else ''}".rstrip()
    )


def _bytes(some: Iterable[Cell]) -> float:
    return sum(cell.bytes for cell in some)


def _plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def _wrapped(words: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=rest)


def _clip(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
