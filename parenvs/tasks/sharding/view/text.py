"""IOPDDL problems and judged plans in plain text."""

from __future__ import annotations

from parenvs.errors import printable
from parenvs.tasks.sharding.problem import Sharding, ShardingReport
from parenvs.view.words import SEPARATOR, clip

def title(problem: Sharding) -> str:
    """The problem in one line."""
    sizes = f"{len(problem):,} nodes, {len(problem.ends):,} edges"
    return printable(f"{problem.instance}: {sizes}, {len(problem.costs):,} strategies")


def verdict(report: ShardingReport | Sharding) -> list[str]:
    """The parts of the verdict."""
    if isinstance(report, Sharding):
        allowed = "no limit" if report.limit is None else f"limit {report.limit:,}"
        return ["no strategies yet", allowed]
    if report.cost is None or report.peak is None:
        return ["MALFORMED"]
    limit = report.problem.limit
    share = f" ({report.peak / limit:.1%} of the limit)" if limit else ""
    legal = "legal" if report.legal else "ILLEGAL"
    return [legal, f"cost {report.cost:,}", f"peak {report.peak:,}{share}"]


def answer(report: ShardingReport) -> str:
    """The cost and the memory, in one line."""
    return SEPARATOR.join(verdict(report))


def text(report: ShardingReport | Sharding, colour: bool = False) -> str:
    """A judged plan, or a problem without one, as text of at most 110 columns.

    Args:
        report: what the judge says of a plan, or the problem.
        colour: is ignored; the text has no colours.

    Returns:
        Lines without a newline at the end.
    """
    if isinstance(report, Sharding):
        lines = [title(report), ", ".join(verdict(report))]
    else:
        lines = str(report).splitlines()
    return "\n".join(clip(printable(line), 110) for line in lines)
