"""The page of an entry: its authors and method, the verdicts on its plans, and their pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parenvs.leaderboard.check import Standing
from parenvs.leaderboard.site.html import (
    Child,
    Markup,
    badge,
    facts,
    foreign_text,
    markup,
    page,
    tag,
    web_link,
)
from parenvs.leaderboard.site.plans import hybrid_figure, order_figure, strategies_figure
from parenvs.leaderboard.site.sortable_table import (
    Column,
    Field,
    Row,
    number,
    proof,
    proof_words,
    score_field,
    seconds_field,
    sortable_table,
)
from parenvs.leaderboard.verdicts import PlanState, Verdict
from parenvs.tasks.elastic.entries import PolicyReport
from parenvs.tasks.elastic.view.page import policy_figure
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.order.problem import OrderReport
from parenvs.tasks.partition.problem import PartitionReport
from parenvs.tasks.partition.view.page import partition_figure
from parenvs.tasks.pipeline.problem import Report
from parenvs.tasks.pipeline.view.page import pipeline_figure
from parenvs.tasks.sharding.problem import ShardingReport


def entry_page(standing: Standing, entrants: int) -> str:
    """Make the page of an entry.

    Args:
        standing: the entry's place in its task.
        entrants: number of entries in the task.
    """
    checked, entry = standing.checked, standing.checked.entry
    task = checked.task.name
    lead = tag("p", foreign_text(entry.method), class_="lead")
    plans = [_plan(verdict) for verdict in checked.verdicts]
    return page(
        f"{entry.entry}, {task}",
        [("All tasks", "index.html"), (task, f"tasks/{task}.html")],
        2,
        tag("h1", foreign_text(entry.entry), " ", learned_mark(entry.learned)),
        lead,
        facts(_facts(standing, entrants)),
        tag("h2", "Verdicts"),
        _verdicts(standing),
        tag("h2", "Plans"),
        tag("p", tag("button", "Close all", type="button", id="fold", hidden=True)),
        plans,
    )


def learned_mark(learned: bool) -> Markup:
    """Make the mark that tells whether an entry learned."""
    return badge("learned", "good") if learned else badge("not learned", "plain")


def state_mark(verdict: Verdict) -> Markup:
    """Make the mark of a verdict on a plan."""
    if verdict.state == PlanState.MISSING:
        return badge("no plan", "warn")
    if verdict.state == PlanState.ILLEGAL:
        return badge("illegal", "bad")
    if verdict.state == PlanState.UNJUDGED:
        return badge("not judged here", "warn")
    if verdict.improves:
        return badge("better than the reference", "good")
    if not verdict.reaches:
        return badge("legal", "plain")
    return badge("optimal" if verdict.problem.reference.proven else "equals the best known", "good")


def _facts(standing: Standing, entrants: int) -> list[tuple[str, Child]]:
    """Return names and values of the facts about an entry."""
    checked, entry = standing.checked, standing.checked.entry
    total, seconds = len(checked.task.counted), standing.seconds
    legal = f"{checked.count(PlanState.LEGAL)} of {total} legal"
    unknown = "not told"
    pairs: list[tuple[str, Child]] = [
        ("Score", tag("strong", f"{standing.score:.4f}")),
        ("Rank", f"{standing.rank} of {entrants}"),
        ("At the reference", f"{standing.reached} of {total} problems"),
        *(
            (title[0].upper() + title[1:], words)
            for title, words in checked.figures.items()
            if words
        ),
        ("Plans", f"{legal}, {standing.mark}" if standing.mark else legal),
        ("Authors", foreign_text(", ".join(entry.authors))),
        ("Trained on", foreign_text(", ".join(entry.trained_on)) if entry.learned else "nothing"),
        ("Search", foreign_text(entry.search_budget)),
        ("Seeds", _seeds(entry.seeds)),
        ("Hardware", foreign_text(entry.hardware)),
        ("Seconds, its own", unknown if seconds is None else f"{seconds:,.3g} for all plans"),
    ]
    if entry.link:
        pairs.append(("Link", web_link(entry.link, entry.link)))
    return pairs


def _seeds(seeds: tuple[int, ...]) -> str:
    """Return the seeds in words."""
    if not seeds:
        return "none"
    words = ", ".join(map(str, seeds[:8]))
    return words if len(seeds) <= 8 else f"{words} and {len(seeds) - 8} more"


_COLUMNS = (
    Column("problem"),
    Column("verdict"),
    Column("score", "number", "descending"),
    Column("cost", "number"),
    Column("reference", "number"),
    Column("proof"),
    Column("seconds", "number"),
)


def _verdicts(standing: Standing) -> Markup:
    """Make the table of the verdicts on all problems."""
    rows = []
    for verdict in standing.checked.verdicts:
        problem = verdict.problem
        seconds = standing.checked.entry.seconds.get(problem.name)
        cost = problem.words(verdict.cost)
        rows.append(
            Row(
                (
                    Field(tag("a", problem.name, href=f"#{problem.name}")),
                    Field(state_mark(verdict), verdict.state.value),
                    score_field(verdict.score),
                    number(verdict.cost, cost if verdict.state == PlanState.LEGAL else f"({cost})"),
                    number(problem.reference.cost, problem.words(problem.reference.cost)),
                    Field(proof(problem.reference), problem.reference.status),
                    seconds_field(seconds),
                )
            )
        )
    words = (
        f"Verdicts on {len(rows)} problems. The cost is {standing.checked.task.cost}; in brackets, "
        "the trivial plan's, which scores where no legal plan is. Seconds are the entry's own."
    )
    return sortable_table(words, _COLUMNS, rows)


def _plan(verdict: Verdict) -> Markup:
    """Make the section of a plan, which readers can close."""
    problem = verdict.problem
    head = tag(
        "summary",
        tag("h3", problem.name),
        " ",
        state_mark(verdict),
        tag("span", f"score {verdict.score:.4f}", class_="sum"),
    )
    return tag("details", head, _drawn(verdict), id=problem.name, open=True)


def _drawn(verdict: Verdict) -> Markup:
    """Make the content of a plan's section: its cost, the reasons against it, its picture."""
    problem, report = verdict.problem, verdict.report
    reference = f"{problem.words(problem.reference.cost)}, {proof_words(problem.reference)}"
    if verdict.state == PlanState.MISSING:
        trivial = problem.words(problem.trivial)
        return tag(
            "p",
            f"The entry has no plan of this problem. It scores as the trivial plan, {trivial}; the "
            f"reference is {reference}.",
        )
    if verdict.state == PlanState.UNJUDGED:
        return tag("p", foreign_text(verdict.note))
    about = f"Cost {problem.words(verdict.cost)}; reference {reference}."
    if verdict.state == PlanState.ILLEGAL:
        about = f"Illegal; it scores as the trivial plan. The reference is {reference}."
    reasons = tag("ul", (tag("li", foreign_text(x)) for x in verdict.reasons), class_="reasons")
    return markup(
        tag("p", about, f" {problem.place}."),
        reasons if verdict.reasons else None,
        _figure(problem.name, report),
    )


_FIGURES: dict[type, Callable[[str, Any], Markup]] = {
    Report: pipeline_figure,
    PartitionReport: partition_figure,
    HybridReport: hybrid_figure,
    OrderReport: order_figure,
    ShardingReport: strategies_figure,
    PolicyReport: policy_figure,
}
"""Class of a judge's report -> what draws it."""


def _figure(name: str, report: Any) -> Markup | None:
    """Make the picture of a plan that was judged."""
    return None if report is None else _FIGURES[type(report)](name, report)
