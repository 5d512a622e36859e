"""The page of a set of strategies: what they cost, and what they use of the limit."""

from __future__ import annotations

from parenvs.tasks.sharding.problem import ShardingReport
from parenvs.view.web import PlanPage


def page(name: str, report: ShardingReport) -> PlanPage:
    """Return a sentence about the strategies.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if report.cost is None or report.peak is None:
        return PlanPage("The strategies are none: there is nothing to show.")
    problem = report.problem
    limit = "" if not problem.limit else f" of {problem.limit:,}"
    return PlanPage(
        f"{name}: {len(problem):,} nodes, {len(problem.ends):,} edges; cost {report.cost:,}; at "
        f"most {report.peak:,}{limit} used, first at time {report.peak_at:,}."
    )
