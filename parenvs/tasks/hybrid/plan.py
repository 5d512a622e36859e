"""Hybrid plans: pipeline, data and tensor parallelism together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.cluster import PRECISIONS, Cluster
from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan
from parenvs.errors import PlanError, did_you_mean, shown

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEDULES = ("1f1b", "interleaved", "early")
"""Orders of a stage's passes; ``early`` starts ``2 (S - s) - 1`` forward passes at once."""
SENDS = ("blocking", "overlapped")
"""Whether a device waits while it sends to its neighbours."""
RECOMPUTE_MODES = ("none", "selective", "full")
"""What the backward pass recomputes of a layer: nothing, its attention, everything."""
_STAGE_KEYS = {"layers", "devices"}
_STAGE_OPTIONS = {"tp", "zero", "recompute", "split"}


@dataclass(frozen=True)
class HybridStage:
    """One stage of a hybrid plan.

    Attributes:
        layers: half-open ranges of layers, one for each chunk.
        devices: number of devices, the next ones in the order of the servers.
        tp: ranks that share every matrix.
        zero: 0 to 3, which states the replicas share.
        recompute: one of ``RECOMPUTE_MODES`` for each layer, in the order of the ranges; or pairs
            of a mode and a number of layers: of the first layers as many as ``full`` says are
            recomputed in full, then as many as ``selective`` says.
        split: path of a variable -> 1 if the class of its dimensions is split other than the
            Megatron pattern has it.
    """

    layers: tuple[tuple[int, int], ...]
    devices: int
    tp: int = 1
    zero: int = 0
    recompute: tuple[Any, ...] = ()
    split: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of layers."""
        return sum(end - first for first, end in self.layers)

    @property
    def modes(self) -> tuple[str, ...]:
        """What is recomputed of each layer, in the order of the ranges."""
        if self.recompute and isinstance(self.recompute[0], str):
            return tuple(str(mode) for mode in self.recompute)
        counts = {str(mode): int(number) for mode, number in self.recompute}
        listed = [mode for mode in ("full", "selective") for _ in range(counts.get(mode, 0))]
        return tuple((listed + ["none"] * self.size)[: max(self.size, len(listed))])

    def to_json(self) -> dict[str, Any]:
        """Return the stage as an object of JSON types."""
        if self.recompute and isinstance(self.recompute[0], str):
            recompute: Any = list(self.recompute)
        else:
            recompute = {str(mode): number for mode, number in self.recompute}
        return {
            "layers": [list(pair) for pair in self.layers],
            "devices": self.devices,
            "tp": self.tp,
            "zero": self.zero,
            **({"recompute": recompute} if recompute else {}),
            **({"split": dict(sorted(self.split.items()))} if self.split else {}),
        }

    @classmethod
    def from_json(cls, content: Any, where: str) -> HybridStage:
        """Check an object of JSON types and make a stage of it.

        Raises:
            PlanError: a key is missing or unknown, or a value has the wrong type.
        """
        if not isinstance(content, Mapping):
            raise PlanError(f"{where} must be an object, not {shown(content)}")
        fields.check_keys(content, _STAGE_KEYS, _STAGE_OPTIONS, where)
        ranges = content["layers"]
        is_list = isinstance(ranges, list) and ranges
        if not is_list or not all(
            isinstance(pair, list) and len(pair) == 2 and all(map(_is_layer, pair))
            for pair in ranges
        ):
            raise PlanError(
                f"{where}: field 'layers' must be a list of pairs of whole numbers from 0"
            )
        split = fields.dimensions(content, "split", where) if "split" in content else {}
        zero = content.get("zero", 0)
        if zero not in (0, 1, 2, 3) or isinstance(zero, (bool, float)):
            raise PlanError(f"{where}: field 'zero' must be 0, 1, 2 or 3, not {shown(zero)}")
        return cls(
            layers=tuple((first, end) for first, end in ranges),
            devices=fields.count(content, "devices", where),
            tp=fields.count({"tp": 1, **content}, "tp", where),
            zero=zero,
            recompute=_recompute(content.get("recompute", {}), where),
            split=split,
        )


@dataclass(frozen=True)
class HybridPlan(Plan):
    """Stages of a chain of layers on blocks of devices, each split by tensor and data parallelism.

    Attributes:
        instance: name or path of a shape or a graph.
        fingerprint: ``sha256:...`` of its numbers.
        cluster: the devices.
        stack: name of the software stack, or an object of its name and other constants.
        precision: of matrix products, one of ``parenvs.cluster.PRECISIONS``.
        batch: samples of a step.
        micro_batch: samples of a micro-batch in one replica of the first stage.
        stages: from the first to the last.
        schedule: one of ``SCHEDULES``.
        chunks: ranges of layers on each stage.
        sequence_parallel: whether tp ranks also share what lies between the matrices.
        context: ranks that share the tokens of a sample.
        expert: replicas among which experts are dealt out.
        p2p: one of ``SENDS``.
        gradient_bytes: bytes of a gradient.
        gradient_overlap: whether gradients are summed during the last backward pass.
        servers: order of the servers; empty where they stand in order.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    stack: str | dict[str, Any]
    precision: str
    batch: int
    micro_batch: int
    stages: tuple[HybridStage, ...]
    schedule: str = SCHEDULES[0]
    chunks: int = 1
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    p2p: str = SENDS[0]
    gradient_bytes: int = 4
    gradient_overlap: bool = False
    servers: tuple[int, ...] = ()

    task: ClassVar[str] = "hybrid"
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "cluster", "stack", "precision", "batch")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        names = (
            "batch", "micro_batch", "schedule", "chunks", "sequence_parallel", "context", "expert",
            "p2p", "gradient_bytes", "gradient_overlap",
        )  # fmt: skip
        return {
            **self._head(),
            "cluster": self.cluster.to_json(),
            "stack": self.stack,
            "precision": self.precision,
            **{name: getattr(self, name) for name in names},
            **({"servers": list(self.servers)} if self.servers else {}),
            "stages": [stage.to_json() for stage in self.stages],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        needed = {*HEAD, "cluster", "stack", "precision", "batch", "micro_batch", "stages"}
        optional = {
            "schedule", "chunks", "sequence_parallel", "context", "expert", "p2p",
            "gradient_bytes", "gradient_overlap", "servers",
        }  # fmt: skip
        fields.check_keys(content, needed, optional, where)
        stages = content["stages"]
        if not isinstance(stages, list) or not stages:
            raise PlanError(f"{where}: field 'stages' must be a list of at least one stage")
        stack = content["stack"]
        if not isinstance(stack, (str, dict)):
            raise PlanError(f"{where}: field 'stack' must be a name or an object")
        ones = {"chunks": 1, "context": 1, "expert": 1, "gradient_bytes": 4, **content}
        servers = fields.integers(content, "servers", where) if "servers" in content else ()
        precision = content["precision"]
        if precision not in PRECISIONS:
            hint = did_you_mean(precision, PRECISIONS) if isinstance(precision, str) else ""
            raise PlanError(
                f"{where}: field 'precision' must be one of {', '.join(PRECISIONS)}, not "
                f"{shown(precision)}{hint}"
            )
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            cluster=fields.cluster(content, "cluster", where),
            stack=stack,
            precision=precision,
            batch=fields.count(content, "batch", where),
            micro_batch=fields.count(content, "micro_batch", where),
            stages=tuple(
                HybridStage.from_json(stage, f"{where}: stages[{number}]")
                for number, stage in enumerate(stages)
            ),
            schedule=fields.choice(content, "schedule", SCHEDULES, where),
            p2p=fields.choice(content, "p2p", SENDS, where),
            chunks=fields.count(ones, "chunks", where),
            context=fields.count(ones, "context", where),
            expert=fields.count(ones, "expert", where),
            gradient_bytes=fields.count(ones, "gradient_bytes", where),
            sequence_parallel=_flag(content, "sequence_parallel", where),
            gradient_overlap=_flag(content, "gradient_overlap", where),
            servers=servers,
        )


def _is_layer(value: Any) -> bool:
    """Return whether a value can be the number of a layer."""
    return fields.is_integer(value) and 0 <= value <= fields.LARGEST_NUMBER


def _flag(content: Mapping[str, Any], key: str, where: str) -> bool:
    """Return a field that is true or false; false if the key is missing."""
    value = content.get(key, False)
    if not isinstance(value, bool):
        raise PlanError(f"{where}: field {key!r} must be true or false, not {shown(value)}")
    return value


def _recompute(value: Any, where: str) -> tuple[Any, ...]:
    """Return what is recomputed: a list of modes, or pairs of a mode and a count."""
    if isinstance(value, list) and all(mode in RECOMPUTE_MODES for mode in value):
        return tuple(value)
    if isinstance(value, Mapping):
        for mode, number in value.items():
            if mode not in ("full", "selective"):
                raise PlanError(
                    f"{where}: field 'recompute' counts 'full' and 'selective', not {shown(mode)}"
                )
            if not fields.is_integer(number) or not 0 <= number <= fields.LARGEST_NUMBER:
                raise PlanError(
                    f"{where}: field 'recompute': the number of {mode} layers must be a whole "
                    f"number from 0, not {shown(number)}"
                )
        return tuple((mode, value[mode]) for mode in ("full", "selective") if value.get(mode))
    raise PlanError(
        f"{where}: field 'recompute' must be an object of counts or a list of "
        f"{', '.join(RECOMPUTE_MODES)}, not {shown(value)}"
    )
