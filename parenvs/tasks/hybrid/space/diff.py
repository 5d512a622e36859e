"""What two hybrid plans decide differently, and what that changes of a step, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parenvs.diff import Change, Part
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.stages import Memory

_SHARED = (
    "micro_batch", "schedule", "chunks", "sequence_parallel", "context", "expert", "expert_tp",
    "shard", "p2p", "gradient_bytes", "gradient_overlap", "offload", "servers",
)  # fmt: skip


@dataclass(frozen=True)
class HybridDiff:
    """The difference of two hybrid plans of one problem; differences are b less a.

    Attributes:
        a: what the judge says of the old plan.
        b: what the judge says of the new plan.
        changes: the decisions that differ; a value is a list by stage where the stages differ.
        parts: seconds of a step by part; they add up to its length. Empty if a plan is malformed.
        memory: bytes by part on a device of each plan's fullest stage; empty likewise.
    """

    a: HybridReport
    b: HybridReport
    changes: tuple[Change, ...]
    parts: tuple[Part, ...]
    memory: tuple[Part, ...]

    @property
    def seconds(self) -> float | None:
        """Length of a step of ``b`` less that of ``a``; None if a plan is malformed."""
        return self.b.length_seconds - self.a.length_seconds if self.parts else None

    def to_json(self) -> dict[str, Any]:
        """The difference as an object of JSON types, with both reports (seconds and bytes)."""
        return {
            "task": self.a.plan.task,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "seconds": self.seconds,
            "parts": [part.to_json() for part in self.parts],
            "memory_bytes": [part.to_json() for part in self.memory],
            "changes": [dict(vars(change)) for change in self.changes],
        }


def difference(a: HybridReport, b: HybridReport) -> HybridDiff:
    """Compare what the judge says of two plans; see ``parenvs.diff.difference``."""
    own = [_decisions(report.plan) for report in (a, b)]
    changes = tuple(
        Change(name, value, own[1][name]) for name, value in own[0].items() if value != own[1][name]
    )
    if not (a.stages and b.stages):
        return HybridDiff(a, b, changes, (), ())
    seconds = tuple(Part(name, x, b.seconds[name]) for name, x in a.seconds.items())
    held = [max(x.stages, key=lambda stage: stage.memory["total"]).memory for x in (a, b)]
    memory = tuple(Part(x, held[0][x], held[1][x]) for x in Memory._fields if x != "total")
    return HybridDiff(a, b, changes, seconds, memory)


def _decisions(plan: HybridPlan) -> dict[str, Any]:
    """What a plan decides, by field; one value for all stages where they share it."""

    def by_stage(values: list[Any]) -> Any:
        return values[0] if all(value == values[0] for value in values) else values

    stages = plan.stages
    return {
        "stages": len(stages),
        "devices": by_stage([x.devices for x in stages]),
        "tp": by_stage([x.tp for x in stages]),
        "dp": by_stage([x.devices // (x.tp * plan.context) for x in stages]),
        "layers": by_stage([[end - first for first, end in x.layers] for x in stages]),
        "zero": by_stage([x.zero for x in stages]),
        "recompute": by_stage([x.redone for x in stages]),
        "split": by_stage([dict(x.split) for x in stages]),
        **{name: getattr(plan, name) for name in _SHARED},
    }
