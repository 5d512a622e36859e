"""What commands say of a hybrid plan beside the judge's report: near-best plans, the map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from parenvs.agents.hybrid.now import LAUNCHERS, RUNNERS
from parenvs.agents.hybrid.solve import exact_uniform
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.space.objectives import near_best
from parenvs.tasks.hybrid.space.robustness import Shift, robustness
from parenvs.tasks.hybrid.view import plans_map, tables
from parenvs.view.words import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from parenvs.agents.hybrid.planners import HybridRequest
    from parenvs.core.plan import Answer
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

    @cached_property
    def shifts(self) -> list[Shift]:
        """The plan on machines that differ; none where there is no uniform plan to compare with."""
        try:
            return robustness(self.request.space, self.answer.plan)
        except InfeasibleError:
            return []

    @cached_property
    def frameworks(self) -> dict[str, float]:
        """Seconds of the best uniform plan that each framework runs as it is, where one fits."""
        request = self.request
        names = LAUNCHERS if request.problem.model.shape is not None else RUNNERS
        found = {}
        for name in names if request.constraints.framework is None else ():
            limits = replace(request.constraints, framework=name)
            try:
                found[name] = exact_uniform(request.problem, limits).cost
            except InfeasibleError:
                continue
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the remarks as an object of JSON types: the plan on machines that differ."""
        worst = max((shift.excess for shift in self.shifts), default=0.0)
        return {
            "worst_regret": worst,
            "robustness": [shift._asdict() for shift in self.shifts],
            "frameworks": self.frameworks,
        }

    def lines(self) -> Iterator[str | Table]:
        """Yield what frameworks make of it, plans that come close, and it on other machines."""
        if self.frameworks:
            words = ", ".join(
                f"{name} {duration(seconds)} ({seconds / self.answer.cost - 1:+.1%})"
                for name, seconds in self.frameworks.items()
            )
            yield f"as frameworks run it, at best: {words}; --for NAME plans that"
        if not self.shifts:
            return
        request = self.request
        near = near_best(request.space, most=6, objective=request.goal)
        if len(near) > 1:
            yield tables.near_best(near)
        yield tables.other_machines(self.shifts)


def draw_map(request: HybridRequest, report: HybridReport) -> Figure:
    """The map of all uniform plans of a request, with the plan of a report marked."""
    held = max(stage.memory["total"] for stage in report.stages)
    return plans_map.draw(request.space, report.length_seconds, held)
