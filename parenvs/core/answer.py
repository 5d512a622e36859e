"""``Answer``: a plan, and what the planner proved of its quality; the same for every task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """A planner's answer to a problem of any task.

    Attributes:
        problem: the problem.
        plan: the plan, which can be saved.
        cost: what the plan costs, the number that the task minimises (default: the judge's).
        method: name of the planner.
        proven: whether the plan is proven optimal over the planner's search space.
        bound: proven bound over that space, or None: a lower bound of the cost, a whole number
            where costs are; of partitions an upper bound of the return.
        among: the plans over which ``bound`` and ``proven`` hold, in words; empty: all of them.
        evaluations: number of plans, labels or search nodes that the planner evaluated.
        seconds: wall seconds of the planner.
        notes: what else the planner has to say of its plan, a sentence each.
    """

    problem: Any
    plan: Any
    cost: float = None  # type: ignore[assignment]  # resolved in __post_init__
    method: str = ""
    proven: bool = False
    bound: float | None = None
    among: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Ask the judge for the cost where the planner does not give it."""
        if self.cost is None:
            object.__setattr__(self, "cost", self.report.cost)

    @cached_property
    def report(self) -> Any:
        """The judge's report on the plan, with what the planner proved."""
        return self.problem.report(self.plan).certified(self)

    @property
    def value(self) -> float:
        """The return of the environment's episode that builds the plan; -1 if it is illegal."""
        return float(self.report.value)

    @property
    def gap(self) -> float | None:
        """Share by which the plan may fall short of the proven bound; None without a bound."""
        shortfall: float | None = self.report.gap(self)
        return shortfall

    @property
    def status(self) -> str:
        """``"optimal"`` if that is proven, else ``"feasible"``."""
        return "optimal" if self.proven else "feasible"

    @property
    def claim(self) -> str:
        """What is proven, in words: ``status``, and among which plans if not among all."""
        return f"{self.status} among {self.among}" if self.proven and self.among else self.status

    def __str__(self) -> str:
        """Return the planner, what it proved, the report, and the price, as text."""
        proof = f"proven {self.claim}" if self.proven else "not proven"
        price = self.report.price.lines() if self.report.price else ()
        told = [f"{self.method} ({proof}, {self.seconds:.3g} s)", str(self.report)]
        return "\n".join([*told, *(f"  {line}" for line in price)])
