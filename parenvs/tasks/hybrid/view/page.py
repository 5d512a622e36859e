"""The page of a hybrid plan: the table of its stages."""

from __future__ import annotations

from parenvs.tasks.hybrid.report import HybridReport
from parenvs.view.web import Cell, PlanPage, Table
from parenvs.view.words import duration, size

_COLUMNS = (
    ("stage", "number"),
    ("layers",),
    ("devices", "number"),
    ("speed", "number"),
    ("tp x dp",),
    ("ZeRO", "number"),
    ("recomputed",),
    ("micro-batch", "number"),
    ("memory", "number"),
)


def page(name: str, report: HybridReport) -> PlanPage:
    """Return the table of a plan's stages.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if not report.stages:
        return PlanPage("The plan is malformed: there is nothing to show.")
    plan, limit, rows = report.plan, report.memory_limit_bytes, []
    for number, (stage, asked) in enumerate(zip(report.stages, plan.stages, strict=True)):
        total = stage.memory["total"]
        over = total > limit
        counts = ((asked.modes.count(mode), mode) for mode in ("selective", "full"))
        again = ", ".join(f"{count} {mode}" for count, mode in counts if count)
        ranges = ", ".join(f"{first}-{end - 1}" for first, end in stage.layers if end > first)
        rows.append(
            (
                Cell(f"{number}", number),
                Cell(ranges or "none", f"{stage.layers[0][0]:06d}"),
                Cell(f"{asked.devices}", asked.devices),
                Cell(f"{stage.speed:.3g}", stage.speed),
                Cell(f"{stage.tp} x {stage.dp}"),
                Cell(f"{stage.zero}", stage.zero),
                Cell(again or "nothing"),
                Cell(duration(stage.busy), stage.busy),
                Cell(f"{size(total)}{', over the limit' if over else ''}", total, "bad" * over),
            )
        )
    shared = [
        f"{report.micro_batches} micro-batches of {plan.micro_batch} samples a replica",
        f"schedule {plan.schedule}, {plan.chunks} chunks" if plan.chunks > 1 else plan.schedule,
        *(["sequence parallel"] if plan.sequence_parallel else []),
        *([f"servers {' '.join(map(str, plan.servers))}"] if plan.servers else []),
    ]
    caption = (
        f"Stages of {name}: {'; '.join(shared)}. Seconds are those of a micro-batch; the memory "
        f"limit is {size(limit)}."
    )
    return PlanPage(tables=[Table(caption, _COLUMNS, rows)])
