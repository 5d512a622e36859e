"""What two plans of one problem decide differently, and what each costs, part by part.

Plan ``a`` is the old one and plan ``b`` the new one: a difference is always ``b - a``, so that what
is negative makes ``b`` cheaper or smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from typing import Any

from parenvs.core.plan import Plan, Report
from parenvs.errors import ParenvsError


@dataclass(frozen=True)
class Part:
    """One addend of a cost in both plans."""

    name: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        """``b - a``."""
        return self.b - self.a

    def to_json(self) -> dict[str, Any]:
        """The part as an object of JSON types."""
        return {"name": self.name, "a": self.a, "b": self.b, "difference": self.difference}


@dataclass(frozen=True)
class Change:
    """A value that two plans have differently.

    Attributes:
        field: where it stands in the plan's file, ``"order[3]"``.
    """

    field: str
    a: Any
    b: Any


@dataclass(frozen=True)
class PlanDiff:
    """The difference of two plans of any task: costs, and the values that differ.

    Attributes:
        changes: the values that differ, in the order of the file.
        parts: seconds of a step, which add up to its length; empty if a plan has none.
        memory: bytes on a device of the fullest stage; empty likewise.
    """

    a: Any
    b: Any
    changes: tuple[Change, ...]
    parts: tuple[Part, ...] = ()
    memory: tuple[Part, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Length of a step of ``b`` less that of ``a``; None if a plan has none."""
        return self.b.step_seconds - self.a.step_seconds if self.parts else None

    @property
    def cost(self) -> Part | None:
        """The costs; None if a plan has none."""
        costs = (self.a.cost, self.b.cost)
        known = all(x is not None and math.isfinite(x) for x in costs)
        return Part("cost", *costs) if known else None

    def to_json(self) -> dict[str, Any]:
        """The difference as an object of JSON types, with both reports."""
        return {
            "task": self.a.plan.task,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "cost": None if self.cost is None else self.cost.to_json(),
            "changes": [dict(vars(change)) for change in self.changes],
            "seconds": self.seconds,
            "parts": [part.to_json() for part in self.parts],
            "memory_bytes": [part.to_json() for part in self.memory],
        }


def difference(a: Report, b: Report) -> PlanDiff:
    """Compare the evaluations of two plans of one problem, which may break rules.

    Args:
        a: the report on the old plan.
        b: the report on the new plan, of the same task.

    Raises:
        ParenvsError: the plans are of different problems; the message names the field.
    """
    require_same_problem(a.plan, b.plan)
    first, second = (report.plan.decisions() for report in (a, b))
    changes = (
        Change(field, first.get(field), second.get(field))
        for field in dict.fromkeys((*first, *second))
    )
    parts = [
        tuple(Part(name, x, after[name]) for name, x in before.items() if name in after)
        for before, after in zip(a.parts(), b.parts(), strict=True)
    ]
    return PlanDiff(a, b, tuple(change for change in changes if change.a != change.b), *parts)


def require_same_problem(a: Plan, b: Plan, names: tuple[str, str] = ("a", "b")) -> None:
    """Check that two plans are for one problem: instance, cluster, and what else changes costs.

    Raises:
        ParenvsError: they are not; the message names the field.
    """
    if a.task != b.task:
        require_equal(("task",), {"task": a.task}, {"task": b.task}, names)
    first, second = ({x: getattr(plan, x, None) for x in a.settings} for plan in (a, b))
    require_equal(a.settings, first, second, names)


def require_equal(
    fields: tuple[str, ...],
    a: dict[str, Any],
    b: dict[str, Any],
    names: tuple[str, str] = ("a", "b"),
) -> None:
    """Check that two problems are one.

    Raises:
        ParenvsError: a field differs; the message names it.
    """
    for field in fields:
        if a[field] == b[field]:
            continue
        shown = [f"{x[:19]}..." if field == "fingerprint" else str(x) for x in (a[field], b[field])]
        more = ""
        if shown[0] == shown[1] and is_dataclass(a[field]):  # clusters with the same shape
            first, second = vars(a[field]), vars(b[field])
            more = f" with other {', '.join(key for key in first if first[key] != second[key])}"
        raise ParenvsError(
            f"field {field!r}: {names[0]} is for {shown[0]}, {names[1]} for {shown[1]}{more}; only "
            "plans of one problem can be compared"
        )
