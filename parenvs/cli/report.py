"""What commands print, draw and write, whatever the task."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from parenvs.errors import InfeasibleError
from parenvs.viewer import save, text

if TYPE_CHECKING:
    from parenvs.agents.answer import Answer

out = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
"""Standard output, for rich tables; sentences go through ``say``."""


def say(words: str) -> None:
    """Print words to standard output as they are: no markup, no line broken."""
    out.print(words, markup=False, soft_wrap=True)


def say_progress(words: str) -> None:
    """Print a line for the person who waits to standard error: it is no part of the output."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def say_json(content: Any) -> None:
    """Print an object of JSON types as one line."""
    sys.stdout.write(json.dumps(content) + "\n")


def print_report(report: Any) -> None:
    """Print what the judge says of a plan."""
    say(text(report, colour=out.is_terminal))


def proof(answer: Answer) -> str:
    """One line on what a planner knows of its answer."""
    words = f"{answer.method}: {answer.status}"
    if answer.bound:
        side, unit = ("lower", " s") if hasattr(answer, "length") else ("upper", " of the return")
        words += f", proven {side} bound {answer.bound:.6g}{unit}"
    if answer.evaluations:
        words += f"; {answer.evaluations:,} evaluations"
    return f"{words}; {answer.seconds:.2f} s"


def write(
    report: Any, path: Path | None = None, plot: Path | None = None, quiet: bool = False
) -> None:
    """Write plan and picture if asked for; ``quiet`` keeps standard output for JSON."""
    if path is not None:
        report.plan.save(path)
        if not quiet:
            say(f"plan written to {path}")
    if plot is not None:
        save(plot, report)
        if not quiet:
            say(f"picture written to {plot}")


def refuse_illegal(report: Any, what: str) -> None:
    """End with the reasons of an illegal plan.

    Raises:
        InfeasibleError: it is illegal.
    """
    if not report.legal:
        raise InfeasibleError(f"{what}: {'; '.join(report.reasons)}")
