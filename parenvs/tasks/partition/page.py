"""The web page of a partition plan: step time, memory, and a table of what is partitioned."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view import MEMORY_PARTS, cells
from parenvs.tasks.partition.view import Cell as VariableCell
from parenvs.view.layers import merged
from parenvs.view.web import Cell, Chip, PlanPage, Row, Table
from parenvs.view.words import duration, size

_MAX_ROWS = 60
"""Rows of the table; the entry's file has all."""


def page(name: str, report: PartitionReport) -> PlanPage:
    """Return the figures of a step and a table of what is partitioned.

    Args:
        name: name of the problem.
        report: the evaluated plan.
    """
    variables, inputs = cells(report.problem, report)
    if report.plan.scope == "inputs":
        variables = []  # the plan decides no variable
    rows = [*_rows(variables), *_rows(inputs, " (batch input)")]
    caption = f"What is partitioned in {name}; equal layers are one row."
    if len(rows) > _MAX_ROWS:
        caption += f" The first {_MAX_ROWS} of {len(rows)} rows; the entry's file has all."
    return PlanPage(
        "" if rows else "Nothing is partitioned: every device does everything.",
        _facts(report) if report.legal else (),
        tables=[Table(caption, rows[:_MAX_ROWS], head=1)] if rows else (),
    )


def _facts(report: PartitionReport) -> list[tuple[str, str, str]]:
    """Return the seconds and bytes of a legal plan."""
    memory, limit = report.memory, report.problem.memory_limit
    faster = report.replicate_seconds / report.step_seconds
    parts = ", ".join(f"{x} {size(getattr(memory, x))}" for x in MEMORY_PARTS)
    return [
        (
            "Step",
            f"{duration(report.step_seconds)}, {faster:.2f} × as fast as replicated "
            f"({duration(report.replicate_seconds)})",
            "",
        ),
        (
            "Compute and communication",
            f"{duration(report.compute_seconds)} and "
            f"{duration(report.communication_seconds)} in {report.all_reduces:,} all-reduces",
            "",
        ),
        ("Utilisation", f"{100 * report.utilisation:.1f} %", ""),
        (
            "Memory per device",
            f"{size(memory.peak)} of {size(limit)} ({parts})",
            "" if report.fits else "over the limit, no part of this task",
        ),
        (
            "Partitioned",
            f"{report.partitioned_dimensions:,} of {report.dimensions:,} dimensions, in "
            f"{report.variables:,} variables",
            "",
        ),
    ]


def _rows(several: Sequence[VariableCell], note: str = "") -> list[Row]:
    """Return the rows of what is partitioned; equal layers are one row."""
    split = [cell for cell in several if cell.state >= 0]
    keys = [(cell.state, cell.shape, cell.fault) for cell in split]
    rows: list[Row] = []
    for path, indices in merged([cell.path for cell in split], keys):
        equal = [split[index] for index in indices]
        state, fault = equal[0].state, equal[0].fault
        chip = Chip(f"d{min(state, 3)}", f"{state}", "")
        total, on_each = (sum(getattr(x, key) for x in equal) for key in ("bytes", "device_bytes"))
        rows.append(
            {
                "dimension": Cell(f"{state}{', breaks a rule' * fault}", state, "", chip),
                "variable": path + note,
                "shape": "\N{MULTIPLICATION SIGN}".join(map(str, equal[0].shape)) or "scalar",
                "count": len(equal),
                "bytes": Cell(size(total), total),
                "on each device": Cell(size(on_each), on_each),
            }
        )
    return rows
