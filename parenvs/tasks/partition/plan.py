"""Plans of partitions: dimensions of variables, or of batch inputs alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from parenvs.cluster import Cluster
from parenvs.core.plan import Plan
from parenvs.errors import ClusterError, PlanError
from parenvs.fields import Count, Index, Size, Text, one_of, read, whole
from parenvs.tasks.pipeline.plan import RECOMPUTE

if TYPE_CHECKING:
    from typing_extensions import Self

SCOPES = ("variables", "inputs")
"""What plans decide: variables, and batch inputs beside them, or batch inputs alone."""
REWARDS = ("paper", "step_time")
"""What plans are paid for: dimensions that are partitioned, or seconds of a step that are saved."""
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
        reward: ``"paper"`` or ``"step_time"``, by which the judge values the plan if it is given no
            problem.
    """

    instance: Text
    fingerprint: Text
    cluster: Cluster
    partition: dict[str, Index]
    scope: Annotated[str, one_of(*SCOPES)] = SCOPES[0]
    rules: Annotated[str, one_of(*RULE_SETS)] = RULE_SETS[0]
    uneven: Annotated[str, one_of(*UNEVEN)] = UNEVEN[0]
    micro_batch: Count | None = None
    micro_batches: Count = 1
    recompute: Annotated[str, one_of(*REMADE)] = REMADE[0]
    memory_limit: Size | None = None
    reward: Annotated[str, one_of(*REWARDS)] = REWARDS[0]

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
            **({} if self.reward == REWARDS[0] else {"reward": self.reward}),
            "rules": self.rules,
            "uneven": self.uneven,
            **{key: value for key, value in self.step.items() if value != defaults[key]},
            "partition": dict(sorted(self.partition.items())),
        }

    @classmethod
    def _of(cls, body: dict[str, Any], where: str) -> Self:
        """Without a cluster it is one server of so many V100."""
        named = {key: body[key] for key in ("devices", "cluster") if key in body}
        given = read(_Devices, named, where, PlanError)
        try:
            cluster = given.cluster or Cluster.parse(f"1x{given.devices}:v100")
        except ClusterError as error:
            raise PlanError(f"{where}: field 'devices': {error}") from None
        if cluster.devices != given.devices:
            raise PlanError(
                f"{where}: field 'devices' is {given.devices}, but the cluster has "
                f"{cluster.devices}"
            )
        fields = {key: value for key, value in body.items() if key != "devices"}
        return super()._of({**fields, "cluster": cluster}, where)


@dataclass(frozen=True)
class _Devices:
    """How the file of a partition gives the devices."""

    devices: Annotated[int, whole(2)]
    cluster: Cluster | None = None
