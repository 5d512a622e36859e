"""Plans of intra-operator parallelism: one strategy for every node of an IOPDDL problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ShardingPlan(Plan):
    """A strategy for each node. It names no cluster: the problem's costs hold the devices.

    Attributes:
        instance: name or path of the problem.
        fingerprint: ``sha256:...`` of the problem's arrays.
        strategies: index of the strategy of each node, in the order of the nodes.
    """

    instance: str
    fingerprint: str
    strategies: tuple[int, ...]

    task: ClassVar[str] = "sharding"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        return {**self._head(), "strategies": list(self.strategies)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        fields.check_keys(content, {*HEAD, "strategies"}, set(), where)
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            strategies=fields.integers(content, "strategies", where),
        )
