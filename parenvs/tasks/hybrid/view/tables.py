"""What commands print of hybrid plans in tables: side by side, near the best, on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parenvs.tasks.hybrid.space.explain import axes_of
from parenvs.view.tables import empty
from parenvs.view.words import duration

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.core.plan import Answer
    from parenvs.tasks.hybrid.space.objectives import NearBest
    from parenvs.tasks.hybrid.space.robustness import Shift


def comparison(answers: Sequence[Answer]) -> Table:
    """Several hybrid plans of one problem side by side."""
    reports = [answer.report for answer in answers]
    report = reports[0]
    head = f"{report.model.name} on {report.cluster}, {report.machine.stack.name}"
    found = empty(
        head, "agent", "step (s)", "over best", "plan", "GB each", "MFU", "proof", "found (s)"
    )
    best = min((r.length_seconds for r in reports if r.legal), default=float("nan"))
    for answer, report in zip(answers, reports, strict=True):
        over = f"{100 * (report.length_seconds / best - 1):.2f} %" if report.legal else "illegal"
        held = max((stage.memory["total"] for stage in report.stages), default=float("nan"))
        found.add_row(
            answer.method, f"{report.length_seconds:.4g}", over, _degrees(report),
            f"{held / 1e9:.1f}", "" if report.mfu is None else f"{report.mfu:.1%}", answer.claim,
            f"{answer.seconds:.2f}",
        )  # fmt: skip
    return found


def _degrees(report: Any) -> str:
    """A plan in a few letters: ``pp 4 dp 8 tp 4 v 5 mb 1 z1``."""
    own = axes_of(report.plan)
    words = [f"{name} {'*' if own[name] is None else own[name]}" for name in ("pp", "dp", "tp")]
    words += [f"v {own['chunks']}"] if own["chunks"] > 1 else []
    words.append(f"mb {own['micro_batch']}")
    words += ["sp"] if own["sequence_parallel"] else []
    words += [f"z{own['zero']}"] if own["zero"] else []
    short = {"none": "", "selective": "sel", "full": "full", None: "rc *"}
    return " ".join([*words, short[own["recompute"]]]).strip()


def near_best(near: Sequence[NearBest]) -> Table:
    """Plans that come close to the best one."""
    found = empty("near the best: the best plan of each mesh", "over best", "plan")
    for row in near:
        found.add_row(f"{row.excess:.2%}", row.text)
    return found


def other_machines(shifts: Sequence[Shift]) -> Table:
    """How a plan fares if constants move in their plausible ranges, or under other stacks."""
    worst = max((shift.excess for shift in shifts), default=0.0)
    title = f"if the machine differs: at most {worst:.2%} over the best plan there"
    found = empty(title, "what", "this plan", "over best", "best plan there")
    for shift in shifts:
        found.add_row(shift.what, duration(shift.seconds), f"{shift.excess:.2%}", shift.best)
    return found
