"""What two plans of one problem decide differently, and what every difference costs.

Plan ``a`` is the old one and plan ``b`` the new one: a difference is always ``b - a``, so that what
is negative makes ``b`` cheaper or smaller. A task's hook ``diff`` attributes the difference of the
costs to what was decided; of a task without one, the costs and the fields of the plans are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

from parenvs.core.plan import Plan
from parenvs.core.registry import task_of
from parenvs.core.task import Task
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
    """

    a: Any
    b: Any
    changes: tuple[Change, ...]

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
        }


def difference(a: Any, b: Any) -> Any:
    """Compare what the judge says of two plans of one problem.

    Plans that break rules are compared, too.

    Args:
        a: the report on the old plan.
        b: the report on the new plan, of the same task.

    Returns:
        What the task's hook ``diff`` says, else a ``PlanDiff``. Either has ``to_json()``.

    Raises:
        ParenvsError: the plans are of different problems; the message names the field.
    """
    require_same_problem(a.plan, b.plan)
    task = task_of(a)
    if task.supports(Task.diff):
        return task.diff(a, b)
    first, second = (_decisions(report.plan) for report in (a, b))
    changes = (
        Change(field, first.get(field), second.get(field))
        for field in dict.fromkeys((*first, *second))
    )
    return PlanDiff(a, b, tuple(change for change in changes if change.a != change.b))


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


def _decisions(plan: Plan) -> dict[str, Any]:
    content = plan.to_json().items()
    known = ("schema", "task", "instance", *plan.settings)
    return dict(_values({name: value for name, value in content if name not in known}))


def _values(content: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its place; a list of values within a list, such as a pair, is one."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _values(value, f"{field}.{name}" if field else name)
    # A pair such as (first, end) is one value: its halves mean nothing alone.
    elif isinstance(content, (list, tuple)) and (
        not field.endswith("]") or any(isinstance(value, (dict, list, tuple)) for value in content)
    ):
        for index, value in enumerate(content):
            yield from _values(value, f"{field}[{index}]")
    else:
        yield field, content
