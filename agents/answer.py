"""Answers of planners: a plan, and what the planner proved of its quality."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report

SEARCHED = {"exact-pruned": "pruned candidates", "exact-points": "128 points and 64 units"}
"""Planners whose search space is a part of all plans -> that part; their proofs are for it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer(ABC):
    """A planner's answer to a problem of any task.

    Attributes:
        method: name of the planner.
        proven: whether the plan is proven optimal over the planner's search space.
        bound: proven bound over that space, or None: a lower bound of the seconds of a step for
            pipelines, an upper bound of the return for partitions.
        evaluations: number of plans, labels or search nodes that the planner evaluated.
        seconds: wall seconds of the planner.
        notes: what else the planner has to say of its plan, a sentence each.
    """

    method: str = ""
    proven: bool = False
    bound: float | None = None
    evaluations: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def plan(self) -> Any:
        """The plan, which can be saved."""

    @property
    @abstractmethod
    def report(self) -> Any:
        """The judge's report on the plan."""

    @property
    def status(self) -> str:
        """``"optimal"`` if that is proven, else ``"feasible"``."""
        return "optimal" if self.proven else "feasible"

    @property
    def claim(self) -> str:
        """What is proven, in words: ``status``, and among which plans if not among all."""
        among = SEARCHED.get(self.method)
        return f"{self.status} among {among}" if self.proven and among else self.status

    def __str__(self) -> str:
        """Return the planner, what it proved, and the report, as text."""
        proof = f"proven {self.claim}" if self.proven else "not proven"
        return f"{self.method} ({proof}, {self.seconds:.3g} s)\n{self.report}"


@dataclass(frozen=True, eq=False)
class PipelineAnswer(Answer):
    """Cuts of a pipeline.

    Attributes:
        problem: the pipeline.
        cuts: (S-1,) int64, first pivot of each stage but the first.
        device_cuts: (S-1,) int64, first device of each stage but the first.
        length: closed-form seconds per step, ``Pipeline.length``.
    """

    problem: Pipeline
    cuts: np.ndarray
    device_cuts: np.ndarray
    length: float

    @cached_property
    def plan(self) -> PipelinePlan:
        """The plan, which can be saved."""
        return self.problem.plan(self.cuts, self.device_cuts)

    @cached_property
    def report(self) -> Report:
        """The judge's report on the plan."""
        return self.problem.report(self.plan)

    @cached_property
    def value(self) -> float:
        """``1/L`` in units of the bubble-free time, or -1 if the memory is exceeded."""
        return float(self.problem.values(self.cuts, self.device_cuts))


@dataclass(frozen=True, eq=False)
class PartitionAnswer(Answer):
    """Classes to partition.

    Attributes:
        problem: the graph on its devices, with scope and reward.
        chosen: (C,) bool, the classes of the graph that are partitioned.
        value: return of the episode that partitions them.
    """

    problem: Partitioning
    chosen: np.ndarray
    value: float

    @cached_property
    def plan(self) -> PartitionPlan:
        """The plan, which can be saved."""
        return self.problem.plan(self.chosen)

    @cached_property
    def report(self) -> PartitionReport:
        """The judge's report on the plan, with the bound that the planner proved."""
        return self.problem.report(self.plan).certified(self)

    @property
    def reward(self) -> str:
        """Reward of which ``value`` and ``bound`` are returns: ``"paper"`` or ``"step_time"``."""
        return self.problem.reward


@dataclass(frozen=True, eq=False)
class HybridAnswer(Answer):
    """A hybrid plan.

    Attributes:
        problem: the problem.
        chosen: the plan.
        length: closed-form seconds of a step, ``Hybrid.length``.
        among: the plans over which ``bound`` and ``proven`` hold, in words.
    """

    problem: Hybrid
    chosen: HybridPlan
    length: float
    among: str = ""

    @property
    def plan(self) -> HybridPlan:
        """The plan, which can be saved."""
        return self.chosen

    @cached_property
    def report(self) -> HybridReport:
        """The judge's report on the plan."""
        return self.problem.report(self.plan)

    @property
    def claim(self) -> str:
        """See ``Answer.claim``."""
        return f"{self.status} among {self.among}" if self.proven and self.among else self.status


@dataclass(frozen=True, eq=False)
class OrderAnswer(Answer):
    """An order of micro-batches.

    Attributes:
        problem: the problem.
        order: (M,) int64, the micro-batch at each position.
        length: seconds of the step, ``Order.length``.
    """

    problem: Order
    order: np.ndarray
    length: float

    @property
    def plan(self) -> OrderPlan:
        """The plan, which can be saved."""
        return self.problem.plan(self.order)

    @cached_property
    def report(self) -> OrderReport:
        """The judge's report on the plan."""
        return self.problem.report(self.plan)
