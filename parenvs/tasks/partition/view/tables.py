"""What commands print of partitions in tables: dimension classes, plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parenvs.core.registry import problem
from parenvs.tasks.partition.plan import RULE_SETS
from parenvs.tasks.partition.problem import Partitioning
from parenvs.view.tables import empty

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.core.plan import Answer


def of_instance(instance: str, cluster: Any, options: Mapping[str, Any]) -> list[Table]:
    """The dimension classes of an instance."""
    return [classes(problem(instance, cluster, "partition", **options))]


def classes(problem: Partitioning) -> Table:
    """The dimension classes of a graph, for both rule sets."""
    table = empty(f"dimension classes on {problem.cluster}", "what", *RULE_SETS)
    both = [
        problem
        if rules == problem.rules
        else Partitioning.build(problem.graph, problem.cluster, rules, problem.uneven)
        for rules in RULE_SETS
    ]
    rows = (
        ("variable dimensions", lambda p: len(p.dimensions("variables"))),
        ("classes that hold some and can be partitioned", lambda p: len(p.decidable("variables"))),
        ("variable dimensions in them", lambda p: p.counts("variables")[p.decidable("all")].sum()),
        ("pairs of classes that conflict", lambda p: len(p.classes.conflicts)),
        ("dimensions of batch inputs", lambda p: len(p.dimensions("inputs"))),
        ("of them can be partitioned", lambda p: p.counts("inputs")[p.decidable("all")].sum()),
    )
    for name, count in rows:
        table.add_row(name, *(str(count(p)) for p in both))
    table.add_row("replicated step", *(f"{p.replicate_seconds:.4f} s" for p in both))
    return table


def comparison(answers: Sequence[Answer]) -> Table:
    """Several plans of one problem side by side."""
    problem, reward = answers[0].problem, answers[0].problem.reward
    table = empty(
        f"{problem.graph.name} on {problem.cluster}, {problem.rules} rules, reward {reward}",
        "agent",
        "return",
        "vars",
        "dims",
        "step (s)",
        "sent (s)",
        "hybrid",
        "GB each",
        "used",
        "proof",
        "found",
    )
    for answer in answers:
        report = answer.report
        table.add_row(
            answer.method,
            f"{report.value_of(reward):.{4 if reward == 'step_time' else 1}f}",
            str(report.variables),
            f"{report.partitioned_dimensions}/{report.dimensions}",
            f"{report.step_seconds:.4g}",
            f"{report.communication_seconds:.3g}",
            report.price.cell,
            f"{report.memory.peak / 1e9:.3g}" + ("" if report.fits else " !"),
            f"{100 * report.utilisation:.1f} %",
            answer.claim,
            f"{answer.seconds:.2f}",
        )
    table.caption = (
        "vars, dims: partitioned; sent: all-reduces, part of the step; !: more than a device "
        "holds\nfound: seconds of the planner"
    )
    table.caption_justify = "left"
    return table
