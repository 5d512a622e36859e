"""Plans of intra-operator parallelism: one strategy for every node of an IOPDDL problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from parenvs.core.plan import Plan
from parenvs.fields import Integer, Text


@dataclass(frozen=True)
class ShardingPlan(Plan):
    """A strategy for each node. It names no cluster: the problem's costs hold the devices.

    Attributes:
        instance: name or path of the problem.
        fingerprint: ``sha256:...`` of the problem's arrays.
        strategies: index of the strategy of each node, in the order of the nodes.
    """

    instance: Text
    fingerprint: Text
    strategies: tuple[Integer, ...]

    task: ClassVar[str] = "sharding"
