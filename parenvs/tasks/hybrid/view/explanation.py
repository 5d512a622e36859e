"""Why a hybrid plan is as it is, in text: what other values on each axis would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.view.text import MEMORY_PARTS, PARTS, WIDTH, title, verdict
from parenvs.view.words import SEPARATOR, clip, duration, size

if TYPE_CHECKING:
    from parenvs.tasks.hybrid.report import HybridReport
    from parenvs.tasks.hybrid.space.explain import Alternative

_NAMES = {
    "tp": "tensor parallel ranks", "pp": "stages", "dp": "replicas",
    "micro_batch": "samples of a micro-batch", "chunks": "chunks a stage",
    "sequence_parallel": "sequence parallel", "zero": "ZeRO level", "recompute": "recomputation",
    "schedule": "order of passes",
}  # fmt: skip
_MOST_PARTS = 2


def of_plan(report: HybridReport, pattern: str | None = None) -> tuple[str, dict[str, Any]]:
    """Tell what other values on each axis of a plan would cost.

    Args:
        report: what the judge says of the plan.
        pattern: must be None: a hybrid plan decides nothing by variable.

    Returns:
        The text, and as JSON types for each axis the plan's own value (None where stages differ)
        and the alternatives: fields of ``Alternative``, null for the seconds where none fits.

    Raises:
        ParenvsError: it is not.
    """
    from parenvs.tasks.hybrid.space.explain import alternatives, axes_of, space_of

    if pattern is not None:
        raise ParenvsError("--variable is an option for plans of partitions")
    found = alternatives(report, space_of(report)) if report.stages else []
    own = axes_of(report.plan)
    axes = [
        {"axis": axis, "value": own[axis], "others": [_fields(x) for x in found if x.axis == axis]}
        for axis in dict.fromkeys(alternative.axis for alternative in found)
    ]
    return explanation_text(report, found), {"axes": axes}


def _fields(alternative: Alternative) -> dict[str, Any]:
    """Return the fields of an alternative but its axis; what is infinite is null."""
    fields = alternative._asdict()
    del fields["axis"]
    for key in ("length", "excess"):
        fields[key] = fields[key] if math.isfinite(fields[key]) else None
    return fields


def explanation_text(report: HybridReport, found: Sequence[Alternative]) -> str:
    """Text of at most 110 columns: the plan, and under each axis the other values of it.

    Args:
        report: what the judge says of the plan.
        found: what ``parenvs.tasks.hybrid.space.explain.alternatives`` returns.
    """
    from parenvs.tasks.hybrid.space.explain import axes_of

    own = axes_of(report.plan)
    lines = [clip(title(report), WIDTH), SEPARATOR.join(verdict(report)), ""]
    lines.append("Why not otherwise? The best uniform plan with another value on one axis:")
    for axis in dict.fromkeys(alternative.axis for alternative in found):
        chosen = "different by stage" if own[axis] is None else own[axis]
        lines += ["", f"{_NAMES[axis]} ({axis.replace('_', '-')}): {chosen}"]
        lines += [clip(_line(x), WIDTH) for x in found if x.axis == axis]
    return "\n".join(lines)


def _line(alternative: Alternative) -> str:
    """One value: its seconds and why it is slower, or why it does not fit."""
    start = f"  {alternative.value!s:<10}"
    if alternative.missing_bytes > 0:
        largest = MEMORY_PARTS.get(alternative.largest, alternative.largest)
        return (
            f"{start}does not fit: the smallest needs {size(alternative.missing_bytes)} more, most "
            f"of it {largest}"
        )
    start += f"{duration(alternative.length):>9} {alternative.excess:>+7.1%}"
    words = [f"{PARTS[part]} +{duration(x)}" for part, x in alternative.slower[:_MOST_PARTS]]
    words += [f"{PARTS[part]} -{duration(x)}" for part, x in alternative.faster[:_MOST_PARTS]]
    return f"{start}  {', '.join(words) or 'as fast'}"
