"""What reports on plans of every task have in common."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from parenvs.core.plan import ILLEGAL
from parenvs.core.price import Price, price_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Bounded(Protocol):
    """A planner's answer to a problem; the gap of a plan is measured against its bound."""

    @property
    def bound(self) -> float | None:
        """Proven bound of what the task minimises (seconds) or maximises (return), or None."""


class Report:
    """What the judge says of a plan.

    Attributes:
        task: name of the task.
        bound_words: which side of what a planner's bound is, in words, and its unit.
        cost_words: whose the cost is, in words, beside the price.
        plan: the plan.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        cost: the number that the task minimises.
    """

    task: ClassVar[str]
    bound_words: ClassVar[tuple[str, str]] = ("lower", "")
    cost_words: ClassVar[str] = ""
    plan: Any
    reasons: tuple[str, ...]
    cost: Any

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.reasons

    @property
    def value(self) -> float:
        """The return of the episode that builds the plan: 1 / cost; -1 if it is illegal."""
        return 1.0 / float(self.cost) if self.legal else ILLEGAL

    def gap(self, answer: Bounded) -> float | None:
        """Return the share by which the cost exceeds a proven bound, ``cost / bound - 1``.

        Args:
            answer: an answer to the same problem.

        Returns:
            A share that is at most zero if the plan is as good as the bound; None if the plan is
            illegal or ``answer`` has no bound.
        """
        if not (self.legal and answer.bound):
            return None
        return float(self.cost / answer.bound - 1)

    @cached_property
    def price(self) -> Price | None:
        """The seconds of the plan by the cost model that prices plans of every task; None if none.

        It takes a graph's layers apart, which takes up to seconds; so it is made when it is asked
        for.
        """
        return price_of(self)

    def with_price(self) -> dict[str, Any]:
        """Return ``to_json`` and, where there is one, the price, as ``price``."""
        return {**self.to_json(), **({"price": self.price.to_json()} if self.price else {})}

    def to_json(self) -> dict[str, Any]:
        """Return what the judge says as an object of JSON types."""
        return {"legal": self.legal, "reasons": list(self.reasons), "cost": self.cost}

    def certified(self, answer: Bounded) -> Self:
        """Return the report with the bound that a planner proved, where the report shows it."""
        return self


class TimedReport(Report):
    """What reports on plans whose cost is the length of a step have in common.

    Attributes:
        length_seconds: seconds of a step (inf if there is none).
    """

    bound_words: ClassVar[tuple[str, str]] = ("lower", " s")

    length_seconds: Any

    @property
    def cost(self) -> float:
        """Seconds of a step, the number that the task minimises."""
        return float(self.length_seconds)

    @property
    def step_seconds(self) -> float:
        """Seconds of a step, as reports on plans that are run have it."""
        return float(self.length_seconds)


def answer(report: Report) -> str:
    """Return a plan's cost in a line; see ``Task.answer``."""
    return f"{report.plan.instance}: cost {report.cost}"


def plain(viewable: Any, colour: bool = False) -> str:
    """Return a report as a few lines of text, or a problem by its name; see ``Task.text``."""
    if not isinstance(viewable, Report):
        return f"{viewable.task} {viewable.instance}: no plan yet"
    lines = [f"{viewable.task} {viewable.plan.instance}: cost {viewable.cost}", *viewable.reasons]
    content = viewable.plan.to_json()
    rows = (f"{key}  {content[key]}" for key in content if key not in ("schema", "task"))
    return "\n".join([*lines, *rows])
