"""Plans of the order in which a step takes its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class OrderPlan(Plan):
    """The order of the micro-batches of a 1F1B step.

    Attributes:
        instance: name of a problem of a set, or path of a problem's file.
        fingerprint: ``sha256:...`` of the seconds of its passes.
        order: (M) the micro-batch at each position, counted from 0.
    """

    instance: str
    fingerprint: str
    order: tuple[int, ...]

    task: ClassVar[str] = "order"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        return {**self._head(), "order": list(self.order)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        fields.check_keys(content, {*HEAD, "order"}, set(), where)
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            order=fields.integers(content, "order", where),
        )
