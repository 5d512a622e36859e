"""What the judge says of an order of micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.ordering import formulas
from parenvs.plan import ILLEGAL, Bounded, OrderPlan

if TYPE_CHECKING:
    from parenvs.ordering.problem import Ordering


@dataclass(frozen=True)
class OrderReport:
    """The judge's verdict on an order of micro-batches.

    Attributes:
        plan: the plan.
        problem: the problem on which it was judged.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        length: seconds of the step; None if the order is no order of the micro-batches.
    """

    plan: OrderPlan
    problem: Ordering
    reasons: tuple[str, ...]
    length: float | None

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.reasons

    @property
    def length_seconds(self) -> float:
        """Seconds from the first pass to the end of the last (inf if there is no such step)."""
        return math.inf if self.length is None else self.length

    @property
    def bound_seconds(self) -> float:
        """See ``Ordering.bound_seconds``."""
        return self.problem.bound_seconds

    @property
    def value(self) -> float:
        """The bound over the length, in (0, 1]; -1 if the plan is illegal."""
        return self.bound_seconds / self.length_seconds if self.legal else ILLEGAL

    def gap(self, answer: Bounded) -> float | None:
        """Return the share by which the length exceeds a proven bound, ``L / bound - 1``.

        Args:
            answer: an answer to the same problem.

        Returns:
            None if the plan is illegal or ``answer`` has no bound.
        """
        if not (self.legal and answer.bound):
            return None
        return self.length_seconds / answer.bound - 1

    @cached_property
    def timetable(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the passes, (2, S, M) each, see ``formulas.timetable``.

        Raises:
            ValueError: the order is no order of the micro-batches.
        """
        if self.length is None:
            raise ValueError("there is no timetable of an order that is none")
        return formulas.timetable(self.problem.seconds, np.array(self.plan.order))

    @cached_property
    def busy(self) -> np.ndarray:
        """(S,) share of the step in which each stage computes (0 if there is no step)."""
        work = (self.problem.forward + self.problem.backward).sum(axis=1)
        return np.asarray(work / self.length_seconds)

    def __str__(self) -> str:
        """Return the verdict in a few lines."""
        problem = self.problem
        head = (
            f"{problem.instance}: {problem.micro_batches} micro-batches on {problem.stages} stages"
        )
        if self.length is None:
            return "\n".join([f"{head}, malformed plan", *(f"  {r}" for r in self.reasons)])
        lines = [
            f"{head}, L {self.length:.6g} s a step, {self.length / self.bound_seconds - 1:.2%} "
            f"over the machine bound, value {self.value:.4f}" + ("" if self.legal else ", ILLEGAL"),
            *(f"  {reason}" for reason in self.reasons),
            f"  order: {' '.join(map(str, self.plan.order))}",
        ]
        busy = self.busy
        lines.append(f"  stages compute {busy.min():.1%} to {busy.max():.1%} of the step")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types (seconds)."""
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "length_seconds": self.length,
            "bound_seconds": self.bound_seconds,
            "value": self.value,
            "stages": self.problem.stages,
            "micro_batches": self.problem.micro_batches,
            "busy": self.busy.tolist(),
        }
