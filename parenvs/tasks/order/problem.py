"""The problem of ordering micro-batches that differ, and what orders cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from parenvs.core.plan import ILLEGAL, Price, TimedReport
from parenvs.errors import InfeasibleError
from parenvs.tasks.order import formulas
from parenvs.tasks.order.formulas import Seconds
from parenvs.tasks.order.packing import PackedStep
from parenvs.tasks.order.plan import OrderPlan

NANO = 1e9
"""Seconds are whole nanoseconds, so that they and their fingerprint are the same everywhere."""


@dataclass(frozen=True, eq=False)
class Order:
    """Micro-batches of equally many tokens whose passes differ; a plan is their order.

    >>> import parenvs
    >>> problem = parenvs.problem("order-test/p4-m8-000", task="order")
    >>> problem.stages, problem.micro_batches
    (4, 8)

    Attributes:
        forward: (S, M) seconds of each stage's forward pass of each micro-batch.
        backward: (S, M) seconds of the backward passes.
        instance: name or path of the problem; plans carry it.
        step: the packed step that the seconds are of, if they are of one.
    """

    task: ClassVar[str] = "order"
    forward: np.ndarray
    backward: np.ndarray
    instance: str = "order"
    step: PackedStep | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Round to nanoseconds, and raise errors for seconds that no passes have."""
        arrays = [np.asarray(x, dtype=np.float64) for x in (self.forward, self.backward)]
        shapes = {x.shape for x in arrays}
        if len(shapes) != 1 or arrays[0].ndim != 2 or not arrays[0].size:
            raise InfeasibleError(
                "forward and backward must be arrays of S stages by M micro-batches, at least 1 "
                f"each, not of shape {arrays[0].shape} and {arrays[1].shape}"
            )
        for name, values in zip(("forward", "backward"), arrays, strict=True):
            if not (np.isfinite(values).all() and (values > 0).all() and (values < 1e6).all()):
                raise InfeasibleError(f"{name}: seconds must be above 0 and below a million")
            rounded = np.maximum(np.round(values * NANO), 1.0) / NANO
            rounded.flags.writeable = False
            object.__setattr__(self, name, rounded)

    @classmethod
    def of_step(cls, step: PackedStep, instance: str) -> Order:
        """Make the problem of a packed step.

        Raises:
            ParenvsError: see ``PackedStep.seconds``.
        """
        return cls(*step.seconds(), instance=instance, step=step)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.forward)

    @property
    def micro_batches(self) -> int:
        """M."""
        return self.forward.shape[1]

    @cached_property
    def seconds(self) -> Seconds:
        """The seconds of passes as ``formulas.lengths`` takes them."""
        return Seconds.of(self.forward, self.backward)

    @cached_property
    def bound_seconds(self) -> float:
        """Seconds that no order takes less than, see ``formulas.machine_bound``."""
        return formulas.machine_bound(self.forward, self.backward)

    @cached_property
    def work(self) -> np.ndarray:
        """(M,) seconds of all passes of each micro-batch."""
        return (self.forward + self.backward).sum(axis=0)

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` of the passes in whole nanoseconds."""
        both = np.round(np.stack([self.forward, self.backward]) * NANO).astype("<i8")
        text = f"{self.stages} {self.micro_batches}\n".encode() + both.tobytes()
        return f"sha256:{hashlib.sha256(text).hexdigest()}"

    def length(self, orders: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return the seconds of 1F1B steps, (...) float64.

        Args:
            orders: (..., K) int, the micro-batch at each position, each at most once; with K less
                than M the others are left out.
        """
        return formulas.lengths(self.seconds, np.asarray(orders, dtype=np.int64))

    def values(self, orders: np.ndarray | Sequence[int]) -> np.ndarray:
        """Return the bound over the length, in (0, 1], (...) float64."""
        return np.asarray(self.bound_seconds / self.length(orders))

    def plan(self, order: np.ndarray | Sequence[int]) -> OrderPlan:
        """Make a plan of this problem."""
        return OrderPlan(self.instance, self.fingerprint, tuple(int(x) for x in order))

    def report(self, plan: OrderPlan) -> OrderReport:
        """Judge a plan on this problem."""
        reasons, count = [], self.micro_batches
        if plan.fingerprint != self.fingerprint:
            reasons.append(
                f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {self.instance} is "
                f"{self.fingerprint[:19]}...; make the plan anew"
            )
        faults = []
        if len(plan.order) != count:
            faults.append(f"order: has {len(plan.order)} positions, the step has {count}")
        outside = [x for x in plan.order if not 0 <= x < count]
        if outside:
            faults.append(f"order: names micro-batch {outside[0]}, there are 0 to {count - 1}")
        twice = [x for k, x in enumerate(plan.order) if x in plan.order[:k]]
        if twice:
            faults.append(f"order: names micro-batch {twice[0]} more than once")
        length = None if faults else float(self.length(plan.order))
        return OrderReport(plan, self, (*reasons, *faults), length)


@dataclass(frozen=True)
class OrderReport(TimedReport):
    """The judge's verdict on an order of micro-batches.

    Attributes:
        plan: the plan.
        problem: the problem on which it was judged.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        length: seconds of the step; None if the order is no order of the micro-batches.
    """

    task: ClassVar[str] = "order"
    plan: OrderPlan
    problem: Order
    reasons: tuple[str, ...]
    length: float | None

    @property
    def length_seconds(self) -> float:
        """Seconds from the first pass to the end of the last (inf if there is no such step)."""
        return math.inf if self.length is None else self.length

    @property
    def bound_seconds(self) -> float:
        """See ``Order.bound_seconds``."""
        return self.problem.bound_seconds

    @property
    def value(self) -> float:
        """The bound over the length, in (0, 1]; -1 if the plan is illegal."""
        return self.bound_seconds / self.length_seconds if self.legal else ILLEGAL

    @property
    def over_bound(self) -> float:
        """Share by which the step is longer than the bound, rounding of floats aside."""
        return round(self.length_seconds / self.bound_seconds - 1, 12) + 0.0

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
            f"{head}, L {self.length:.6g} s a step, {self.over_bound:.2%} "
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


def price(report: OrderReport) -> Price:
    """Return the price of an order, whose passes are the hybrid model's; a hook of the task."""
    passes = "of passes and sends alone: gradients and the update take the same whatever the order"
    seconds = report.length
    if report.problem.step is None:
        return Price(notes=("passes were given as seconds, of no model",))
    notes = ("the plan is malformed",) if seconds is None else (passes,)
    return Price(seconds=seconds, notes=notes)


def pyramid(work: np.ndarray) -> np.ndarray:
    """Return an order with light micro-batches at both ends and the heaviest in the middle.

    It is the form of the optimum of flow shops whose times are ordered alike on all machines
    (Smith, Panwalkar and Dudek, Naval Research Logistics Quarterly 22, 1975, for a longest first or
    last machine).

    Args:
        work: (M,) seconds of each micro-batch.
    """
    ascending = np.argsort(work, kind="stable")
    return np.concatenate([ascending[::2], ascending[1::2][::-1]])
