"""What commands print of orders in tables: plans side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parenvs.view.tables import empty

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.core.plan import Answer


def comparison(answers: Sequence[Answer]) -> Table:
    """Several orders of one problem side by side."""
    problem = answers[0].problem
    table = empty(
        f"{problem.instance}: {problem.micro_batches} micro-batches on {problem.stages} stages",
        "agent", "step (s)", "value", "over best", "over bound", "proof", "judged", "found in (s)",
    )  # fmt: skip
    best = min(answer.report.length_seconds for answer in answers)
    bound = max(answer.bound or answer.report.bound_seconds for answer in answers)
    for answer in answers:
        report = answer.report
        table.add_row(
            answer.method,
            f"{report.length_seconds:.4f}",
            f"{report.value:.4f}",
            f"{report.length_seconds / best - 1:.2%}",
            f"{report.length_seconds / bound - 1:.2%}",
            answer.claim,
            f"{answer.evaluations:,}",
            f"{answer.seconds:.2f}",
        )
    return table
