"""IOPDDL problems and judged plans in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.sharding.problem import Array, Sharding, ShardingReport, pair_entries
from parenvs.view.page import HEIGHT, RED, WIDTH, Page, legend
from parenvs.view.words import SEPARATOR, reason_lines, size, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        return ["illegal: malformed plan"]
    limit = report.problem.limit
    share = f" ({report.peak / limit:.2%} of the limit)" if limit else ""
    words = [] if report.legal else ["illegal"]
    words.append(f"cost {report.cost:,}" + (", forbidden pairs" if report.forbidden else ""))
    if report.bound is not None:
        words.append(f"proven lower bound {report.bound:,}, {report.gap(report):.4%} below")
    return [*words, f"peak {report.peak:,}{share} at time {report.peak_at}"]


def answer(report: ShardingReport) -> str:
    """The cost and the memory, in one line."""
    return SEPARATOR.join(verdict(report))


def text(report: ShardingReport | Sharding, color: bool = False) -> str:
    """A judged plan, or a problem without one, as text of at most 110 columns, without colors."""
    problem = report.problem if isinstance(report, ShardingReport) else report
    lines = [title(problem), SEPARATOR.join(verdict(report))]
    if isinstance(report, ShardingReport):
        lines += reason_lines(report.reasons)
    return "\n".join(wrapped(lines))


_LEFT, _RIGHT, _FOOT = 1.1, 0.3, 0.75  # inches beside and below the axes
_GAP = 0.95  # inches between the axes
_COLOR, _NODE, _EDGE = "#5FB3DE", "#3B75B5", "#E3A02B"


def draw(report: ShardingReport | Sharding) -> Figure:
    """The picture of a plan; ``style`` has to be in force.

    Args:
        report: the report on a plan, or the problem, which is drawn with the least and the
            most that all nodes can use.
    """
    from matplotlib.ticker import EngFormatter

    page = Page()
    problem = report if isinstance(report, Sharding) else report.problem
    reasons = () if isinstance(report, Sharding) else report.reasons
    top = page.heading(title(problem), verdict(report), reasons)
    width = WIDTH - _LEFT - _RIGHT
    height = (HEIGHT - top - 0.3 - _FOOT - _GAP) / 2
    upper = page.axes(_LEFT, top + 0.3, width, height)
    lower = page.axes(_LEFT, top + 0.3 + height + _GAP, width, height)
    if not isinstance(report, Sharding) and report.cost is not None:
        chosen = np.array(report.plan.strategies, np.int64)
        used = problem.usages[problem.offset[:-1] + chosen]
        _usage(upper, problem, used, label="of the plan")
        _costs(lower, problem, chosen)
    else:
        for bound, alpha, words in ((np.maximum, 0.3, "at most"), (np.minimum, 1.0, "at least")):
            used = bound.reduceat(problem.usages, problem.offset[:-1])
            _usage(upper, problem, used, alpha=alpha, lw=0, label=words)
        least = np.minimum.reduceat(problem.costs, problem.offset[:-1])
        lower.bar(np.arange(len(problem)), least, 1.0, color=_NODE, label="cheapest of the node")
    if problem.limit is not None:
        upper.axhline(problem.limit, color=RED, lw=1.2, linestyle="--", label="limit")
    places = "places at which a node begins or ends, in their order"
    upper.set(xlabel=places, ylabel="memory in use")
    lower.set(xlabel="node", ylabel="cost, as the file counts it")
    upper.yaxis.set_major_formatter(lambda x, _: size(x, tick=True))
    lower.yaxis.set_major_formatter(EngFormatter())
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        legend(axes, {}, loc="lower right", bbox_to_anchor=(1, 1))
    return page.figure


def _costs(axes: Axes, problem: Sharding, chosen: Array) -> None:
    nodes = problem.costs[problem.offset[:-1] + chosen].astype(float)
    edges = np.zeros(len(problem))
    for end in problem.ends.T:
        np.add.at(edges, end, problem.edge_costs[pair_entries(problem, chosen)] / 2)
    numbers = np.arange(len(problem))
    axes.bar(numbers, nodes, 1.0, color=_NODE, label="of the node")
    axes.bar(numbers, edges, 1.0, bottom=nodes, color=_EDGE, label="half of each of its edges")


def _usage(axes: Axes, problem: Sharding, used: Array, **style: Any) -> None:
    """Fill what nodes, (n,), use from one place at which it changes to the next, by number."""
    _, nodes, signs = problem.events
    total = np.cumsum(used[nodes].astype(float) * signs)
    axes.fill_between(np.arange(len(nodes)), total, step="post", color=_COLOR, **style)
