"""Hybrid plans: pipeline, data and tensor parallelism together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from parenvs.cluster import PRECISIONS, Cluster
from parenvs.core.plan import Plan
from parenvs.fields import Count, Index, Integer, Text, one_of, whole, words

SCHEDULES = ("1f1b", "interleaved", "early", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")
"""Orders of a stage's passes; ``early`` starts ``2 (S - s) - 1`` forward passes at once.

The last four split backward passes, see ``parenvs.tasks.hybrid.schedules``.
"""
SENDS = ("blocking", "overlapped")
"""Whether a device waits while it sends to its neighbors."""
RECOMPUTE_MODES = ("none", "selective", "full")
"""What the backward pass recomputes of a layer: nothing, its attention, everything."""
_Layers = Annotated[tuple[Index, Index], words("a pair of layers, the first and the end")]
_Mode = Annotated[str, one_of(*RECOMPUTE_MODES)]
_Again = Annotated[str, one_of("full", "selective")]


@dataclass(frozen=True)
class HybridStage:
    """One stage of a hybrid plan.

    Attributes:
        layers: half-open ranges of layers, one for each chunk.
        devices: number of devices, the next ones in the order of the servers.
        tp: ranks that share every matrix.
        zero: 0 to 3, which states the replicas share.
        recompute: one of ``RECOMPUTE_MODES`` for each layer, in the order of the ranges; or a mode
            -> a number of layers: of the first layers as many as ``full`` says are recomputed in
            full, then as many as ``selective`` says.
    """

    layers: Annotated[tuple[_Layers, ...], words("a list of ranges of layers", min_length=1)]
    devices: Count
    tp: Count = 1
    zero: Annotated[int, whole(0, 3)] = 0
    recompute: (
        Annotated[tuple[_Mode, ...], words("a list of modes")]
        | Annotated[dict[_Again, Index], words("an object of counts")]
    ) = ()

    def __post_init__(self) -> None:
        """Leave out modes without layers."""
        if isinstance(self.recompute, dict):
            known = self.recompute
            again = {mode: known[mode] for mode in ("full", "selective") if known.get(mode)}
            object.__setattr__(self, "recompute", again or ())

    @property
    def size(self) -> int:
        """Number of layers."""
        return sum(end - first for first, end in self.layers)

    @property
    def modes(self) -> tuple[str, ...]:
        """What is recomputed of each layer, in the order of the ranges."""
        if not isinstance(self.recompute, dict):
            return self.recompute or ("none",) * self.size
        listed = [mode for mode, count in self.recompute.items() for _ in range(count)]
        # A malformed plan may name more layers than the stage has.
        return tuple(listed + ["none"] * (self.size - len(listed)))

    @property
    def redone(self) -> dict[str, int]:
        """Mode -> number of layers that are recomputed so, of those modes that any layer has."""
        modes = self.modes
        return {mode: modes.count(mode) for mode in ("full", "selective") if mode in modes}

    def to_json(self) -> dict[str, Any]:
        """Return the stage as an object of JSON types."""
        again: Any = self.recompute
        again = dict(again) if isinstance(again, dict) else list(again)
        return {
            "layers": [list(pair) for pair in self.layers],
            "devices": self.devices,
            "tp": self.tp,
            "zero": self.zero,
            **({"recompute": again} if again else {}),
        }


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
        expert: ranks among which experts are dealt out: replicas, those of context counted, and
            those of ``tp`` where ``expert_tp`` is less.
        p2p: one of ``SENDS``.
        gradient_bytes: bytes of a gradient.
        gradient_overlap: whether gradients are summed during the last backward pass.
        servers: order of the servers; empty where they stand in order.
        shard: replicas, context ranks counted, among which ZeRO shares states, neighbors; 0: all.
        expert_tp: ranks that share every matrix of an expert; 0: ``tp`` of the stage.
        offload: whether activations wait for the backward pass in the memory of the server.
    """

    instance: Text
    fingerprint: Text
    cluster: Cluster
    stack: Annotated[str, words("a name")] | Annotated[dict[str, Any], words("an object")]
    precision: Annotated[str, one_of(*PRECISIONS)]
    batch: Count
    micro_batch: Count
    stages: Annotated[tuple[HybridStage, ...], words("a list of stages", min_length=1)]
    schedule: Annotated[str, one_of(*SCHEDULES)] = SCHEDULES[0]
    chunks: Count = 1
    sequence_parallel: bool = False
    context: Count = 1
    expert: Count = 1
    p2p: Annotated[str, one_of(*SENDS)] = SENDS[0]
    gradient_bytes: Count = 4
    gradient_overlap: bool = False
    servers: tuple[Integer, ...] = ()
    shard: Index = 0
    expert_tp: Index = 0
    offload: bool = False

    task: ClassVar[str] = "hybrid"
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "cluster", "stack", "precision", "batch")

    def decisions(self) -> dict[str, Any]:
        """Return what the plan decides, by field; one value for all stages where they share it."""

        def by_stage(values: list[Any]) -> Any:
            return values[0] if all(value == values[0] for value in values) else values

        stages, others = self.stages, ("instance", "stages", *self.settings)
        shared = [item.name for item in fields(self) if item.name not in others]
        return {
            "stages": len(stages),
            "devices": by_stage([x.devices for x in stages]),
            "tp": by_stage([x.tp for x in stages]),
            "dp": by_stage([x.devices // (x.tp * self.context) for x in stages]),
            "layers": by_stage([[end - first for first, end in x.layers] for x in stages]),
            "zero": by_stage([x.zero for x in stages]),
            "recompute": by_stage([x.redone for x in stages]),
            **{name: getattr(self, name) for name in shared},
        }

    @property
    def axes(self) -> dict[str, Any]:
        """Value on every axis of uniform plans; None where the stages differ."""
        stages = self.stages

        def common(values: set[Any]) -> Any:
            return values.pop() if len(values) == 1 else None

        return {
            "tp": common({stage.tp for stage in stages}),
            "pp": len(stages),
            "dp": common({stage.devices // (stage.tp * self.context) for stage in stages}),
            "micro_batch": self.micro_batch,
            "chunks": self.chunks,
            "sequence_parallel": self.sequence_parallel,
            "zero": common({stage.zero for stage in stages}),
            "recompute": common({mode for stage in stages for mode in stage.modes}),
            "schedule": self.schedule if self.schedule in SCHEDULES[3:] else SCHEDULES[0],
        }

    @property
    def words(self) -> str:
        """The degrees: ``tp 8, pp 4, dp 4, micro-batch 1, chunks 20, ZeRO 1``."""
        axes = self.axes
        words = [f"{name} {axes[name]}" for name in ("tp", "pp", "dp") if axes[name] is not None]
        words.append(f"micro-batch {self.micro_batch}")
        names = ("chunks", "context", "expert", "shard")
        words += [f"{x} {getattr(self, x)}" for x in names if getattr(self, x) > 1]
        again = axes["recompute"]
        others = {
            self.schedule: self.schedule in SCHEDULES[3:],
            f"ZeRO {axes['zero']}": axes["zero"],
            f"recompute {again}": again not in (None, "none"),
            "sequence parallel": self.sequence_parallel,
        }
        return ", ".join([*words, *(word for word, holds in others.items() if holds)])

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        names = (
            "batch", "micro_batch", "schedule", "chunks", "sequence_parallel", "context", "expert",
            "p2p", "gradient_bytes", "gradient_overlap",
        )  # fmt: skip
        # Fields that came later are left out where they have their defaults.
        later = {name: getattr(self, name) for name in ("shard", "expert_tp", "offload")}
        later["servers"] = list(self.servers)
        return {
            **self._head(),
            "cluster": self.cluster.to_json(),
            "stack": self.stack,
            "precision": self.precision,
            **{name: getattr(self, name) for name in names},
            **{name: value for name, value in later.items() if value},
            "stages": [stage.to_json() for stage in self.stages],
        }
