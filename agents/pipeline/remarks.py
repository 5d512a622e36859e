"""What commands say of a pipeline's plan beside the judge's report: gaps, and shapes tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.agents.names import GENERAL
from parenvs.agents.pipeline.gaps import Gap, gaps
from parenvs.view.tables import empty
from parenvs.view.words import duration

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.agents.pipeline.planners import PipelineRequest
    from parenvs.agents.pipeline.shapes import Choice
    from parenvs.core.plan import Answer

_MAX_ROWS = 8
"""Rows of the table of shapes."""


class Remarks:
    """What is said of an answer.

    Args:
        request: what was asked.
        answer: the answer.
        choice: how stages and devices were chosen; None if they were given.
    """

    def __init__(self, request: PipelineRequest, answer: Answer, choice: Choice | None) -> None:
        self.request, self.answer, self.choice = request, answer, choice

    @cached_property
    def gaps(self) -> list[Gap]:
        """Gaps to the optimum, if the planner was trained on other problems."""
        return gaps(self.request.points, self.answer) if self.answer.method in GENERAL else []

    def to_json(self) -> dict[str, Any]:
        """Return the remarks as an object of JSON types."""
        content: dict[str, Any] = {}
        if self.gaps:
            content["gaps"] = [asdict(gap) for gap in self.gaps]
        if self.choice is not None:
            content["tried"] = [tried.to_json() for tried in self.choice.tried]
        return content

    def lines(self) -> Iterator[str | Table]:
        """Yield sentences and tables."""
        for gap in self.gaps:
            yield gap.text()
        if self.choice is None:
            return
        used, widest = self.choice.answer.problem.cluster.devices, self.choice.tried[0]
        if used < self.choice.devices:
            words = f"uses {used} of {self.choice.devices} devices"
            if widest.devices == self.choice.devices and widest.stages is not None:
                slower = f"{duration(widest.length)} on {widest.devices}"
                is_proven = self.choice.answer.proven
                words += f": more are slower ({slower})" if is_proven else f" ({slower})"
            yield words
        if len(self.choice.tried) > 1:
            yield _shapes(self.choice)


def _shapes(choice: Choice) -> Table:
    """The numbers of devices among which a pipeline's shape was chosen: the best ones, and all."""
    table = empty(
        "devices and stages tried", "devices", "stages", "shortest found", "none is shorter than"
    )
    chosen = choice.answer.problem.cluster.devices
    nearest = sorted(choice.tried, key=lambda tried: tried.length)[:_MAX_ROWS]
    for tried in choice.tried:
        if tried not in nearest and tried.devices not in (chosen, choice.devices):
            continue
        table.add_row(
            f"{tried.devices}{' *' if tried.devices == chosen else ''}",
            "-" if tried.stages is None else str(tried.stages),
            "-" if tried.stages is None else duration(tried.length),
            duration(tried.bound) if np.isfinite(tried.bound) else "none fits",
        )
    hidden = len(choice.tried) - table.row_count
    table.caption = "*: chosen" + (f"; {hidden} more, found slower" if hidden else "")
    table.caption_justify = "left"
    return table
