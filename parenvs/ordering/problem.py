"""The problem of ordering micro-batches that differ, and what orders cost."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.ordering import formulas
from parenvs.ordering.formulas import Seconds
from parenvs.ordering.packing import PackedStep
from parenvs.ordering.report import OrderReport
from parenvs.plan import OrderPlan

NANO = 1e9
"""Seconds are whole nanoseconds, so that they and their fingerprint are the same everywhere."""


@dataclass(frozen=True, eq=False)
class Ordering:
    """Micro-batches of equally many tokens whose passes differ; a plan is their order.

    >>> import parenvs
    >>> problem = parenvs.problem("order-test/p4-m8-000", task="packed-order")
    >>> problem.stages, problem.micro_batches
    (4, 8)

    Attributes:
        forward: (S, M) seconds of each stage's forward pass of each micro-batch.
        backward: (S, M) seconds of the backward passes.
        instance: name or path of the problem; plans carry it.
        step: the packed step that the seconds are of, if they are of one.
    """

    forward: np.ndarray
    backward: np.ndarray
    instance: str = "ordering"
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
    def of_step(cls, step: PackedStep, instance: str) -> Ordering:
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
