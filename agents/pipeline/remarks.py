"""What commands say of a pipeline's plan beside the judge's report: gaps, and shapes tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from parenvs.agents.learning.pretrained.planner import Gap, gaps
from parenvs.agents.names import GENERAL
from parenvs.tasks.pipeline.view.tables import shapes
from parenvs.view.words import duration

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.agents.pipeline.planners import PipelineRequest
    from parenvs.agents.pipeline.shapes import Choice
    from parenvs.core.answer import Answer


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
            yield shapes(self.choice)
