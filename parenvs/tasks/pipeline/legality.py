"""The rules of pipeline plans in words: why a plan is malformed, or meant for something else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from parenvs.cluster import Cluster
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.profile import StageProfile


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


def mismatches(
    plan: PipelinePlan, profile: StageProfile, cluster: Cluster, settings: Mapping[str, Any]
) -> list[str]:
    """Reasons for which a plan is for something else than a chain on a cluster.

    Args:
        plan: the plan.
        profile: the chain.
        cluster: the devices.
        settings: what the plan's fields of these names have to be.
    """
    reasons = []
    if plan.fingerprint != profile.fingerprint:
        reasons.append(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {profile.name} is "
            f"{profile.fingerprint[:19]}...; make the plan anew"
        )
    if plan.cluster != cluster:
        reasons.append(f"cluster: the plan is for {plan.cluster}, not {cluster}")
    for key, wanted in settings.items():
        planned = getattr(plan, key)
        if planned != wanted:
            reasons.append(f"{key}: the plan is for {planned}, not {wanted}")
    if plan.cut_after and len(plan.cut_after) != len(plan.cuts):
        reasons.append(f"cut_after: {len(plan.cut_after)} names for {len(plan.cuts)} cuts")
    for cut, name in zip(plan.cuts, plan.cut_after, strict=False):
        if 1 <= cut < len(profile) and name != profile.names[cut - 1]:
            reasons.append(
                f"cut_after: the pivot before cut {cut} is {profile.names[cut - 1]!r}, not {name!r}"
            )
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
