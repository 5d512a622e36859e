"""What is done today, beside a plan: by how much the plan is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parenvs.core.price import Price
from parenvs.core.registry import TASKS, task_of
from parenvs.core.task import Task
from parenvs.errors import InfeasibleError, ParenvsError


@dataclass(frozen=True, kw_only=True)
class Now:
    """What is done today, beside a plan.

    Attributes:
        words: what it is.
        cost: what it costs: seconds of a step, or what the task minimises; None if it does not fit.
        own: the same of the plan.
        unit: of both, as it stands behind a number.
        note: why it has no cost.
    """

    words: str
    cost: float | None = None
    own: float
    unit: str
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast the plan is; below 1 if it is slower."""
        return None if self.cost is None else self.cost / self.own

    def line(self) -> str:
        """Return it as a line of text."""
        if self.cost is None or self.ratio is None:
            return f"now: {self.words}: {self.note}"
        head = f"now: {self.words}: {self.cost:.4g}{self.unit}; this plan"
        if round(self.ratio, 3) == 1:
            return f"{head} is as fast"
        if self.ratio < 1:
            return f"{head} takes {1 / self.ratio:.3f} times as long"
        return f"{head} is {self.ratio:.3f} times as fast"

    def to_json(self) -> dict[str, Any]:
        """Return it as an object of JSON types."""
        return {
            "words": self.words, "cost": self.cost, "own": self.own, "times_as_fast": self.ratio,
            "note": self.note,
        }  # fmt: skip


def now_of(request: Any, answer: Any, said: str | Callable[[int], Any] | None) -> Now | None:
    """Return what is done today beside an answer; None if the task cannot say it.

    Args:
        request: what was asked.
        answer: a planner's, with a legal plan.
        said: degrees in words, or what gives the stages of a file for a model of so many layers;
            None: what is usual.

    Raises:
        ParenvsError: something was said, and the task has no seconds of it.
    """
    report = answer.report
    if said is None and request.usual:
        other, unit = request.run(request.usual), report.bound_words[1]
        return Now(words=request.usual, cost=float(other.cost), own=float(answer.cost), unit=unit)
    task, price = task_of(report), report.price
    subject = None
    if price is not None and price.seconds is not None:
        subject = report if task.supports(Task.price) else task.strategy(report)
    if subject is None or isinstance(subject, Price):
        if said is not None:
            raise ParenvsError(
                f"--now is for plans with seconds of a step; task {task.name} has none of this one"
            )
        return None
    pricing = next(each for each in TASKS.values() if each.supports(Task.baseline))
    framework = getattr(getattr(request, "constraints", None), "framework", None)
    own, unit = float(price.seconds), " s a step"
    try:
        words, seconds = pricing.baseline(subject, said, framework)
    except InfeasibleError as error:
        words = said if isinstance(said, str) else "what is usual"
        return Now(words=words, own=own, unit=unit, note=str(error))
    return Now(words=words, cost=seconds, own=own, unit=unit)
