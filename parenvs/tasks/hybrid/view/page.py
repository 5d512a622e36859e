"""The page of a hybrid plan: the table of its stages."""

from __future__ import annotations

from parenvs.tasks.hybrid.report import HybridReport
from parenvs.view.web import Cell, PlanPage, Row, Table
from parenvs.view.words import duration, size


def page(name: str, report: HybridReport) -> PlanPage:
    """Return the table of a plan's stages.

    Args:
        name: name of the problem.
        report: the judge's report.
    """
    if not report.stages:
        return PlanPage("The plan is malformed: there is nothing to show.")
    plan, limit = report.plan, report.memory_limit_bytes
    rows: list[Row] = []
    for number, (stage, asked) in enumerate(zip(report.stages, plan.stages, strict=True)):
        total = stage.memory["total"]
        over = total > limit
        counts = ((asked.modes.count(mode), mode) for mode in ("selective", "full"))
        again = ", ".join(f"{count} {mode}" for count, mode in counts if count)
        ranges = ", ".join(f"{first}-{end - 1}" for first, end in stage.layers if end > first)
        memory = f"{size(total)}{', over the limit' * over}"
        rows.append(
            {
                "stage": number,
                "layers": Cell(ranges or "none", f"{stage.layers[0][0]:06d}"),
                "devices": asked.devices,
                "speed": Cell(f"{stage.speed:.3g}", stage.speed),
                "tp x dp": f"{stage.tp} x {stage.dp}",
                "ZeRO": stage.zero,
                "recomputed": again or "nothing",
                "micro-batch": Cell(duration(stage.busy), stage.busy),
                "memory": Cell(memory, total, "bad" * over),
            }
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
    return PlanPage(tables=[Table(caption, rows)])
