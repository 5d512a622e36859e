"""What commands say of a hybrid plan beside the judge's report: near-best plans, the map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.space.objectives import near_best, robustness
from parenvs.tasks.hybrid.view import plans_map, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from parenvs.agents.hybrid.planners import HybridRequest
    from parenvs.core.answer import Answer
    from parenvs.tasks.hybrid.report import HybridReport


class Remarks:
    """What commands say of a hybrid plan beside the judge's report.

    Args:
        request: what was asked.
        answer: the answer.
        choice: None, as nothing is open.
    """

    def __init__(self, request: HybridRequest, answer: Answer, choice: object = None) -> None:
        self.request, self.answer = request, answer

    def to_json(self) -> dict[str, Any]:
        """Return the remarks as an object of JSON types: none."""
        return {}

    def lines(self) -> Iterator[str | Table]:
        """Yield tables: plans that come close to the best one, and the plan on other machines."""
        request = self.request
        try:
            near = near_best(request.space, most=6, objective=request.goal)
            others = robustness(request.problem, self.answer.plan, request.constraints)
        except InfeasibleError:  # there is no uniform plan to compare with
            return
        if len(near) > 1:
            yield tables.near_best(near)
        yield tables.other_machines(others)


def draw_map(request: HybridRequest, report: HybridReport) -> Figure:
    """The map of all uniform plans of a request, with the plan of a report marked."""
    held = max(stage.memory["total"] for stage in report.stages)
    return plans_map.draw(request.space, report.length_seconds, held)
