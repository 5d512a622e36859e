"""Plans of all axes, orders of micro-batches and strategies: pictures and tables of small size."""

from __future__ import annotations

import numpy as np

from parenvs.leaderboard.site.html import Markup, markup, scrolling, tag
from parenvs.leaderboard.site.sortable_table import Column, Field, Row, number, sortable_table
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.order.problem import OrderReport
from parenvs.tasks.pipeline.view.page import WIDTH
from parenvs.tasks.sharding.problem import ShardingReport
from parenvs.view.words import duration, size

_TALL = 90
"""Height of the bars of an order, pixels."""
_STAGES = (
    Column("stage", "number"),
    Column("layers"),
    Column("devices", "number"),
    Column("speed", "number"),
    Column("tp x dp"),
    Column("ZeRO", "number"),
    Column("recomputed"),
    Column("micro-batch", "number"),
    Column("memory", "number"),
)


def hybrid_figure(name: str, report: HybridReport) -> Markup:
    """Make the table of a hybrid plan's stages.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if not report.stages:
        return tag("p", "The plan is malformed: there is nothing to show.")
    plan, limit, rows = report.plan, report.memory_limit_bytes, []
    for place, (stage, asked) in enumerate(zip(report.stages, plan.stages, strict=True)):
        total = stage.memory["total"]
        over = total > limit
        modes = asked.modes
        again = ", ".join(
            f"{modes.count(mode)} {mode}" for mode in ("selective", "full") if mode in modes
        )
        ranges = ", ".join(f"{first}-{end - 1}" for first, end in stage.layers if end > first)
        memory = f"{size(total)}{', over the limit' if over else ''}"
        rows.append(
            Row(
                (
                    number(place, f"{place}"),
                    Field(ranges or "none", f"{stage.layers[0][0]:06d}"),
                    number(asked.devices, f"{asked.devices}"),
                    number(stage.speed, f"{stage.speed:.3g}"),
                    Field(f"{stage.tp} x {stage.dp}"),
                    number(stage.zero, f"{stage.zero}"),
                    Field(again or "nothing"),
                    number(stage.busy, duration(stage.busy)),
                    Field(memory, total, "bad" if over else ""),
                )
            )
        )
    shared = [
        f"{report.micro_batches} micro-batches of {plan.micro_batch} samples a replica",
        f"schedule {plan.schedule}, {plan.chunks} chunks" if plan.chunks > 1 else plan.schedule,
    ]
    if plan.sequence_parallel:
        shared.append("sequence parallel")
    if plan.servers:
        shared.append(f"servers {' '.join(map(str, plan.servers))}")
    words = (
        f"Stages of {name}: {'; '.join(shared)}. Seconds are those of a micro-batch; the memory "
        f"limit is {size(limit)}."
    )
    return sortable_table(words, _STAGES, rows)


def order_figure(name: str, report: OrderReport) -> Markup:
    """Draw the seconds of all passes of each micro-batch, in the order of the plan.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if report.length is None:
        return tag("p", "The order is none: there is nothing to draw.")
    work = report.problem.work[np.array(report.plan.order)]
    wide = WIDTH / len(work)
    bars = [
        tag(
            "rect",
            x=round(place * wide + 0.1 * wide, 2),
            y=round(_TALL * (1 - share), 2),
            width=round(0.8 * wide, 2),
            height=round(_TALL * share, 2),
            class_="s0",
        )
        for place, share in enumerate((work / work.max()).tolist())
    ]
    words = f"Order of {name}: seconds of each of {len(work)} micro-batches"
    picture = tag(
        "svg", *bars, class_="wide", viewBox=f"0 0 {WIDTH} {_TALL}", role="img", aria_label=words
    )
    order = " ".join(map(str, report.plan.order))
    busy = f"{100 * report.busy.min():.1f} to {100 * report.busy.max():.1f} %"
    caption = (
        f"Micro-batches from the first to the last: {order}. Bars are the seconds of all their "
        f"passes, the longest {duration(float(work.max()))}; stages compute {busy} of the step."
    )
    return tag("figure", scrolling(words, picture), tag("figcaption", caption))


def strategies_figure(name: str, report: ShardingReport) -> Markup:
    """Tell the cost of strategies, and what they use of the limit.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if report.cost is None or report.peak is None:
        return tag("p", "The strategies are none: there is nothing to show.")
    problem = report.problem
    limit = "" if not problem.limit else f" of {problem.limit:,}"
    words = (
        f"{name}: {len(problem):,} nodes, {len(problem.ends):,} edges; cost {report.cost:,}; at "
        f"most {report.peak:,}{limit} used, first at time {report.peak_at:,}."
    )
    return markup(tag("p", words))
