"""Plans of pipelines, and the defaults of what they are made for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.core.plan import Plan
from parenvs.fields import Count, Integer, Number, Text, one_of

MICRO_BATCH = 16
"""Samples per micro-batch.

arXiv 2007.04069 gives the number 16 without saying of what; it is the default of both numbers.
"""
MICRO_BATCHES = 16
"""Micro-batches per step (arXiv 2007.04069)."""
COPIES = 2
"""Copies of a stage's parameters held by each device: weight and gradient."""
RECOMPUTE = ("full", "none")
"""The backward pass recomputes all activations of a stage, or none."""
TIED = ("once", "held")
"""Weights that several stages read count where they are first read, or are held by each of them."""
PIPELINE_OPTIONS = (
    "stages", "micro_batch", "micro_batches", "copies", "recompute", "sync", "tied",
)  # fmt: skip
"""Options of ``problem`` that environments of pipelines take, too."""
_SETTINGS = ("copies", "recompute", "sync", "tied", "fractions")
"""Fields of the cost model that files of pipelines may leave out."""


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """Cuts of a chain into S stages, and of the devices into S groups.

    Attributes:
        instance: shipped name or path of the graph or profile.
        fingerprint: ``sha256:...`` of the arrays of the graph or profile.
        cluster: the devices.
        cuts: (S-1) index of the first pivot of every stage but the first.
        device_cuts: (S-1) first device of every stage but the first.
        micro_batch: samples per micro-batch.
        micro_batches: micro-batches per step.
        copies: copies of the parameters on each device of a stage.
        recompute: ``"full"`` or ``"none"``.
        sync: how gradients are synchronized, see ``Cluster.sync_seconds``.
        tied: ``"once"`` or ``"held"``.
        fractions: whether devices may share a sample: False says that the devices of each stage
            take the same whole number of samples of a micro-batch.
        cut_after: (S-1) name of the last pivot before each cut, for readers of the file; may be
            empty.
    """

    instance: Text
    fingerprint: Text
    cluster: Cluster
    cuts: tuple[Integer, ...]
    device_cuts: tuple[Integer, ...]
    micro_batch: Count = MICRO_BATCH
    micro_batches: Count = MICRO_BATCHES
    copies: Number = COPIES
    recompute: Annotated[str, one_of(*RECOMPUTE)] = RECOMPUTE[0]
    sync: Annotated[str, one_of(*SYNC_METHODS)] = SYNC_METHODS[0]
    tied: Annotated[str, one_of(*TIED)] = TIED[0]
    fractions: bool = True
    cut_after: tuple[str, ...] = field(default=(), compare=False)

    task: ClassVar[str] = "pipeline"
    settings: ClassVar[tuple[str, ...]] = (
        "fingerprint", "cluster", "micro_batch", "micro_batches", "recompute", "sync", "tied",
        "copies",
    )  # fmt: skip
    always = ("micro_batch", "micro_batches")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        Copies, recomputation, synchronization, tied weights and fractions are left out where they
        have their defaults.
        """
        options = {key: getattr(self, key) for key in _SETTINGS}
        content: dict[str, Any] = {
            **self._head(),
            "cluster": self.cluster.to_json(),
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            **{key: x for key, x in options.items() if x != getattr(PipelinePlan, key)},
            "cuts": list(self.cuts),
            "device_cuts": list(self.device_cuts),
        }
        if self.cut_after:
            content["cut_after"] = list(self.cut_after)
        return content


def malformed(plan: PipelinePlan, pivots: int, devices: int) -> list[str]:
    """Reasons for which the cost of a plan cannot even be computed.

    Args:
        plan: the plan.
        pivots: n, length of the chain.
        devices: D, size of the cluster.
    """
    reasons = []
    if len(plan.cuts) != len(plan.device_cuts):
        reasons.append(f"{len(plan.cuts)} cuts but {len(plan.device_cuts)} device cuts")
    for key, values, end, noun in (
        ("cuts", plan.cuts, pivots, "pivots"),
        ("device_cuts", plan.device_cuts, devices, "devices"),
    ):
        outside = [v for v in values if not 1 <= v < end]
        if outside:
            reasons.append(f"{key}: {outside[0]} is outside 1..{end - 1} ({end} {noun})")
        elif any(b <= a for a, b in itertools.pairwise(values)):
            reasons.append(f"{key}: {list(values)} do not increase")
    return reasons


def without_variable(bounds: Sequence[int], variables: Sequence[int]) -> list[str]:
    """Stages that hold no variable.

    Args:
        bounds: (S+1,) first pivot of every stage, and n.
        variables: (S+1,) number of pivots with variables before each of them.
    """
    return [
        f"stage {stage}: no variable in pivots {bounds[stage]}..{bounds[stage + 1] - 1}"
        for stage in range(len(bounds) - 1)
        if variables[stage + 1] == variables[stage]
    ]


def over_memory(stage_bytes: Sequence[float], limit: float) -> list[str]:
    """Stages that need more than ``limit`` bytes on each of their devices, (S,) given."""
    return [
        f"stage {stage}: {size:,.0f} bytes on each device, "
        f"{size - limit:,.0f} more than the {limit:,.0f} allowed"
        for stage, size in enumerate(stage_bytes)
        if size > limit
    ]


def group_sizes(micro_batch: int, devices: int) -> list[int]:
    """Numbers of devices, up to ``devices``, that share a micro-batch by whole samples."""
    return [g for g in range(1, min(micro_batch, devices) + 1) if micro_batch % g == 0]


def stage_counts(devices: int, largest: int, sizes: Sequence[int]) -> list[int]:
    """Numbers of stages, up to ``largest``, to which all devices can be dealt out in such groups.

    Args:
        devices: all devices.
        largest: largest number of stages.
        sizes: sizes that groups may have.
    """
    # Sets of numbers as bits: a shift by a group's size deals that group out.
    reached, counts = 1, []  # bit d: d devices are dealt out
    for stages in range(1, largest + 1):
        grown = 0
        for size in sizes:
            grown |= reached << size
        reached = grown & ((2 << devices) - 1)
        if reached >> devices & 1:
            counts.append(stages)
    return counts


def can_split(devices: int, stages: int, sizes: Sequence[int]) -> bool:
    """Whether all devices can be dealt out to stages in groups of these sizes."""
    return stages in stage_counts(devices, stages, sizes)


def of_fractions(groups: Sequence[int], micro_batch: int) -> list[str]:
    """Stages whose devices share a sample.

    Args:
        groups: (S,) devices of each stage.
        micro_batch: samples of a micro-batch.
    """
    samples = "1 sample is" if micro_batch == 1 else f"{micro_batch} samples are"
    return [
        f"stage {stage}: {samples} no whole number for each of {group} devices"
        for stage, group in enumerate(groups)
        if micro_batch % group
    ]
