"""Plans of partitions: dimensions of variables, or of batch inputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.cluster import Cluster
from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan, current
from parenvs.errors import PlanError
from parenvs.tasks.pipeline.plan import RECOMPUTE

if TYPE_CHECKING:
    from typing_extensions import Self

SCOPES = ("variables", "inputs")
"""What plans decide: variables, and batch inputs beside them, or batch inputs alone."""
RULE_SETS = ("shardy", "automap")
"""Factor rules; ``automap`` also forbids to partition a reduced dimension."""
UNEVEN = ("pad", "forbid")
"""Dimensions that the number of devices does not divide are padded, or stay replicated."""
REMADE = RECOMPUTE[::-1]
"""What the backward pass of a partitioned step recomputes: nothing, or all but some borders."""
_STEP = ("micro_batch", "micro_batches", "recompute", "memory_limit")
"""Fields that say how a step runs; files leave them out where they have their defaults."""


@dataclass(frozen=True)
class PartitionPlan(Plan):
    """Dimensions of variables or batch inputs that are partitioned over all devices.

    Of scope ``"variables"`` every variable that is not named is replicated; batch inputs may be
    named too, and the partitioning of those that are not follows from the variables. Of scope
    ``"inputs"`` batch inputs alone are named, those that are not are replicated, and the
    partitioning of variables follows from the inputs.

    Attributes:
        instance: shipped name or path of the graph.
        fingerprint: ``sha256:...`` of the arrays of the graph.
        cluster: the devices.
        partition: path of a variable or batch input -> its partitioned dimension.
        scope: ``"variables"`` or ``"inputs"``.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
        micro_batch: samples of a micro-batch; None: the batch that the graph was made for.
        micro_batches: micro-batches of a step, whose gradients are added up.
        recompute: ``"none"`` or ``"full"``.
        memory_limit: bytes that the plan keeps to on each device; None: no limit is asked for.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    partition: dict[str, int]
    scope: str = SCOPES[0]
    rules: str = "shardy"
    uneven: str = "pad"
    micro_batch: int | None = None
    micro_batches: int = 1
    recompute: str = REMADE[0]
    memory_limit: float | None = None

    task: ClassVar[str] = "partition"
    settings: ClassVar[tuple[str, ...]] = (
        "fingerprint", "cluster", "rules", "uneven", "micro_batch", "micro_batches", "recompute",
    )  # fmt: skip

    @property
    def step(self) -> dict[str, Any]:
        """How a step runs, by the names of the fields: the arguments that make the problem."""
        return {key: getattr(self, key) for key in _STEP}

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        One server of V100 is written as its number of devices, without ``cluster``.
        """
        defaults = dict(zip(_STEP, (None, 1, REMADE[0], None), strict=True))
        content: dict[str, Any] = {**self._head(), "devices": self.cluster.devices}
        if self.cluster != Cluster.parse(f"1x{self.cluster.devices}:v100"):
            content["cluster"] = self.cluster.to_json()
        return {
            **content,
            **({} if self.scope == SCOPES[0] else {"scope": self.scope}),
            "rules": self.rules,
            "uneven": self.uneven,
            **{key: value for key, value in self.step.items() if value != defaults[key]},
            "partition": dict(sorted(self.partition.items())),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``; without fields of the step it is one of the graph's batch."""
        content = current(content)
        needed = {*HEAD, "devices", "partition"}
        optional = {"cluster", "scope", "rules", "uneven", *_STEP}
        fields.check_keys(content, needed, optional, where)
        devices = fields.count(content, "devices", where)
        if devices < 2:
            raise PlanError(f"{where}: field 'devices' must be 2 or more, not {devices}")
        if "cluster" in content:
            cluster = fields.cluster(content, "cluster", where)
        else:
            cluster = fields.cluster({"devices": f"1x{devices}:v100"}, "devices", where)
        if cluster.devices != devices:
            raise PlanError(
                f"{where}: field 'devices' is {devices}, but the cluster has {cluster.devices}"
            )
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            cluster=cluster,
            partition=fields.dimensions(content, "partition", where),
            scope=fields.choice(content, "scope", SCOPES, where),
            rules=fields.choice(content, "rules", RULE_SETS, where),
            uneven=fields.choice(content, "uneven", UNEVEN, where),
            recompute=fields.choice(content, "recompute", REMADE, where),
            micro_batch=fields.count(content, "micro_batch", where)
            if "micro_batch" in content
            else None,
            micro_batches=fields.count({"micro_batches": 1, **content}, "micro_batches", where),
            memory_limit=fields.size(content, "memory_limit", where)
            if "memory_limit" in content
            else None,
        )
