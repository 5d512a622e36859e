"""What two partition plans decide differently, and what every difference costs.

The step time is attributed to dimension classes: it is linear in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.diff import Part, require_equal
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.step import SETTINGS


@dataclass(frozen=True)
class ClassChange:
    """A dimension class that one plan partitions and the other does not.

    Attributes:
        label: the class.
        only: ``"a"`` or ``"b"``, the plan that partitions it.
        partition: partitioned dimension of each variable and batch input of the class, by path.
        compute_seconds: of a step, ``b - a``.
        communication_seconds: of a step, ``b - a``.
    """

    label: int
    only: str
    partition: dict[str, int]
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        """Of a step, ``b - a``."""
        return self.compute_seconds + self.communication_seconds

    def to_json(self) -> dict[str, Any]:
        """The class as an object of JSON types."""
        return {**vars(self), "seconds": self.seconds}


@dataclass(frozen=True)
class PartitionDiff:
    """The difference of two partition plans.

    Attributes:
        a: what the judge says of the old plan.
        b: what the judge says of the new plan.
        parts: compute and communication, seconds of a step.
        memory: bytes on each device when most is in use, part by part; the moments may differ.
        classes: the classes that only one plan partitions, in ascending order; their seconds add
            up to the difference of the step times.
    """

    a: PartitionReport
    b: PartitionReport
    parts: tuple[Part, ...]
    memory: tuple[Part, ...]
    classes: tuple[ClassChange, ...]

    @property
    def seconds(self) -> float:
        """Step time of ``b`` less that of ``a``."""
        return self.b.step_seconds - self.a.step_seconds

    def to_json(self) -> dict[str, Any]:
        """The difference as an object of JSON types, with both reports (seconds and bytes)."""
        return {
            "task": self.a.plan.task,
            "scope": {"a": self.a.plan.scope, "b": self.b.plan.scope},
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "seconds": self.seconds,
            "parts": [part.to_json() for part in self.parts],
            "memory_bytes": [part.to_json() for part in self.memory],
            "classes": [change.to_json() for change in self.classes],
        }


def difference(a: PartitionReport, b: PartitionReport) -> PartitionDiff:
    """Compare what the judge says of two plans; see ``parenvs.diff.difference``."""
    require_equal(PartitionPlan.settings, _settings(a.problem), _settings(b.problem))
    problem = a.problem
    changes = []
    for label in np.flatnonzero(a.chosen != b.chosen).tolist():
        alone = np.zeros(len(problem.classes), dtype=bool)
        alone[label] = True
        sign = 1 if b.chosen[label] else -1
        changes.append(
            ClassChange(
                label=label,
                only="b" if b.chosen[label] else "a",
                partition=problem.partition(alone, "all"),
                compute_seconds=-sign * float(problem.saved_seconds[label]),
                communication_seconds=sign * float(problem.all_reduce_seconds[label]),
            )
        )
    return PartitionDiff(
        a=a,
        b=b,
        parts=(
            Part("compute", a.compute_seconds, b.compute_seconds),
            Part("communication", a.communication_seconds, b.communication_seconds),
        ),
        memory=tuple(
            Part(name, size, getattr(b.memory, name))
            for name, size in vars(a.memory).items()
            if name != "at"
        ),
        classes=tuple(changes),
    )


def _settings(problem: Partitioning) -> dict[str, Any]:
    own = {field: getattr(problem, field, None) for field in PartitionPlan.settings}
    step = {name: getattr(problem.step, name) for name in SETTINGS}
    return {**own, **step, "fingerprint": problem.graph.fingerprint}
