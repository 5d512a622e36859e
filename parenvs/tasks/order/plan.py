"""Plans of the order in which a step takes its micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parenvs.core.plan import Plan
from parenvs.fields import Integer, Text


@dataclass(frozen=True)
class OrderPlan(Plan):
    """The order of the micro-batches of a 1F1B step.

    Attributes:
        instance: name of a problem of a set, or path of a problem's file.
        fingerprint: ``sha256:...`` of the seconds of its passes.
        order: (M) the micro-batch at each position, counted from 0.
    """

    instance: Text
    fingerprint: Text
    order: tuple[Integer, ...]

    task: ClassVar[str] = "order"
