"""One price: the seconds of plans of every task by one cost model, so that they can be compared.

Each task minimises a cost of its own. What a plan does is put into words of no task, a
``Strategy``, by the hook ``strategy`` of its task; the task that has the hook ``price`` says how
long a step of that takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import Any

from parenvs.cluster import Cluster
from parenvs.core.registry import TASKS, task_of
from parenvs.core.task import Task

MODEL = "the hybrid model"
"""What the cost model is called; what it is told of a machine stands in brackets behind it."""
WIDTH = 110
"""Columns of a price as text."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What a plan does. S stages.

    Attributes:
        graph: the training step, or its forward pass.
        cluster: the devices, in the order in which stages take them.
        devices: (S,) devices of each stage.
        micro_batch: samples of a micro-batch that all devices of a stage share.
        micro_batches: micro-batches of a step.
        cuts: (S-1) first pivot of each stage but the first, of the graph with its loops over layers
            written out.
        split: path of an entry parameter -> its dimension that the devices of a stage divide among
            them, and with it what follows from it; None: they are replicas and share the samples.
        recompute: whether the backward pass makes the activations of all layers again.
        notes: what the price leaves out of the plan, in sentences.
    """

    graph: Any
    cluster: Cluster
    devices: tuple[int, ...]
    micro_batch: float
    micro_batches: int = 1
    cuts: tuple[int, ...] = ()
    split: Mapping[str, int] | None = None
    recompute: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Price:
    """Seconds of a step by the cost model that prices plans of every task.

    Attributes:
        model: the cost model, in words.
        seconds: of a step; None if it has none.
        parts: seconds of the step by part, which add up to it.
        own: whose the report's own cost is, in words; empty: it is the model's, too.
        notes: what the price leaves out, or why there is none, in sentences.
    """

    model: str = MODEL
    seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    own: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the price in a few lines of text, of at most 110 columns."""
        told = [self.whose]
        if self.seconds is not None and not self.own:
            told += self.notes
        elif self.seconds is not None:
            parts = ", ".join(f"{name} {x:.4g}" for name, x in self.parts.items() if x)
            told = [f"{self.seconds:.4g} s a step {self.whose} ({parts})", *self.notes]
            told.insert(1, f"the figures above are {self.own}")
        return [line for words in told for line in wrap(words, WIDTH, subsequent_indent="  ")]

    @property
    def whose(self) -> str:
        """Whose the seconds are, in words."""
        if self.seconds is None:
            return f"no seconds by {self.model}: {'; '.join(self.notes)}"
        by = f"by {self.model}, which prices plans of every task"
        return by if self.own else f"seconds are {by}"

    @property
    def legend(self) -> list[str]:
        """What stands below a table of plans: whose its seconds are, in lines of text."""
        words = self.whose
        if self.own and self.seconds is not None:
            words = f"hybrid: seconds of a step {words}; the other figures are {self.own}"
        return wrap(words, WIDTH, subsequent_indent="  ")

    @property
    def cell(self) -> str:
        """The seconds as tables have them."""
        return "" if self.seconds is None else f"{self.seconds:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return the price as an object of JSON types (seconds)."""
        return {
            "seconds": self.seconds,
            "model": self.model,
            "parts": dict(self.parts),
            "own_cost": self.own or self.model,
            "notes": list(self.notes),
        }


def price_of(report: Any) -> Price | None:
    """Return the price of a judged plan; None if its task says nothing of what its plans do."""
    task = task_of(report)
    if not task.supports(Task.strategy):
        return None
    strategy = task.strategy(report)
    if isinstance(strategy, Price):
        return strategy
    pricing = next(each for each in TASKS.values() if each.supports(Task.price))
    return replace(pricing.price(strategy), own=report.cost_words)
