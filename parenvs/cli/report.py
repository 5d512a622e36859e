"""Printing, drawing and writing what the judge says, whatever the task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from parenvs.errors import InfeasibleError
from parenvs.pipeline.problem import Report

out = Console(width=None if sys.stdout.isatty() else 110, highlight=False)


def print_report(report: Any) -> None:
    """The report as text."""
    from parenvs.viewer import partition_text
    from parenvs.viewer import pipeline_text as viewer_text

    if isinstance(report, Report):
        words = viewer_text.text(report.pipeline, report, colour=out.is_terminal)
    else:
        words = partition_text.text(report, colour=out.is_terminal)
    out.print(words, markup=False, soft_wrap=True)


def write(
    report: Any, path: Path | None = None, plot: Path | None = None, quiet: bool = False
) -> None:
    """Write plan and picture if asked for; ``quiet`` keeps standard output for JSON."""
    if path is not None:
        report.plan.save(path)
        if not quiet:
            out.print(f"plan written to {path}", markup=False, soft_wrap=True)
    if plot is not None:
        from parenvs.viewer import partition_figure as viewer_partition
        from parenvs.viewer import pipeline_figure as viewer

        if isinstance(report, Report):
            viewer.save(plot, report.pipeline, report)
        else:
            viewer_partition.save(plot, report.problem, report)
        if not quiet:
            out.print(f"picture written to {plot}", markup=False, soft_wrap=True)


def refuse_illegal(report: Any, what: str) -> None:
    """End with the reasons of an illegal plan.

    Raises:
        InfeasibleError: it is illegal.
    """
    if not report.legal:
        raise InfeasibleError(f"{what}: {'; '.join(report.reasons)}")
