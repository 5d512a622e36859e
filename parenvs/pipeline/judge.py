"""The judge: the one place where a plan's legality and cost are decided.

Environments, solvers, evaluation, the leaderboard and the command line all end here.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from parenvs.pipeline import formulas
from parenvs.pipeline.problem import Pipeline, StageTimes
from parenvs.pipeline.simulate import Timetable, simulate
from parenvs.plan import ILLEGAL, PipelinePlan


class Bounded(Protocol):
    """What a plan's gap is measured against: an answer of a planner."""

    @property
    def bound(self) -> float | None:
        """Proven bound of what the task minimises or maximises."""


@dataclass(frozen=True)
class Stage:
    """One compute stage of a judged plan.

    Attributes:
        first: its first pivot.
        end: one past its last pivot.
        last_name: name of its last pivot.
        device_first: its first device.
        device_end: one past its last device.
        forward_seconds: per micro-batch.
        backward_seconds: per micro-batch.
        transfer_seconds: to the next stage, one direction, per micro-batch; 0 for the last.
        all_reduce_seconds: per step.
        memory_bytes: on each of its devices.
        parameter_bytes: of its variables, one copy.
        efficiency: share of the simulated step that its devices compute.
    """

    first: int
    end: int
    last_name: str
    device_first: int
    device_end: int
    forward_seconds: float
    backward_seconds: float
    transfer_seconds: float
    all_reduce_seconds: float
    memory_bytes: float
    parameter_bytes: float
    efficiency: float


@dataclass(frozen=True)
class Report:
    """What the judge says of a plan.

    Attributes:
        plan: the plan.
        pipeline: the problem it was judged on.
        reasons: every rule that it breaks, in words; empty if it is legal.
        length_seconds: closed-form seconds per step (inf if the plan is malformed).
        simulated_seconds: the same by event simulation; never ranks.
        bubble_free_seconds: seconds if all devices computed all the time.
        memory_limit_bytes: what a stage may hold on each device.
        stages: the compute stages (empty if the plan is malformed).
    """

    plan: PipelinePlan
    pipeline: Pipeline
    reasons: tuple[str, ...]
    length_seconds: float
    simulated_seconds: float
    bubble_free_seconds: float
    memory_limit_bytes: float
    stages: tuple[Stage, ...]

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.reasons

    @property
    def value(self) -> float:
        """``1/L`` in units of the bubble-free time, or -1: what the environment pays."""
        if not self.legal:
            return ILLEGAL
        return float(formulas.value(self.length_seconds, self.bubble_free_seconds))

    def gap(self, answer: Bounded) -> float | None:
        """Share by which the length may exceed the best one: ``L / bound - 1``.

        Args:
            answer: an answer to the same problem, whose bound is proven.

        Returns:
            At most zero where the plan is as good as the bound; None if the plan is illegal or
            nothing is proven.
        """
        if not (self.legal and answer.bound):
            return None
        return self.length_seconds / answer.bound - 1

    def __str__(self) -> str:
        """The verdict and the stages in a few lines; ``parenvs.viewer.text`` shows more."""
        if not self.stages:
            return "\n".join(["malformed plan", *(f"  {reason}" for reason in self.reasons)])
        lines = [
            f"{self.pipeline.profile.name} on {self.pipeline.cluster}: {len(self.stages)} stages, "
            f"L {self.length_seconds:.6g} s a step (simulated {self.simulated_seconds:.6g} s), "
            f"value {self.value:.4f}" + ("" if self.legal else ", ILLEGAL"),
            *(f"  {reason}" for reason in self.reasons),
        ]
        for number, stage in enumerate(self.stages):
            lines.append(
                f"  stage {number}: devices {stage.device_first} to {stage.device_end - 1}, pivots "
                f"{stage.first} to {stage.end - 1} (ends with {stage.last_name}), "
                f"{stage.forward_seconds + stage.backward_seconds:.4g} s a micro-batch, "
                f"{stage.memory_bytes / 1e9:.3g} of {self.memory_limit_bytes / 1e9:.3g} GB"
            )
        return "\n".join(lines)

    @cached_property
    def times(self) -> StageTimes:
        """Seconds of every stage and transfer."""
        return self.pipeline.stage_times(np.array(self.plan.cuts), np.array(self.plan.device_cuts))

    @cached_property
    def timetable(self) -> Timetable:
        """The simulated schedule."""
        return simulate(self.times, self.pipeline.micro_batches)

    def to_json(self) -> dict[str, Any]:
        """The report as an object of JSON types (seconds and bytes)."""
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "length_seconds": self.length_seconds if self.stages else None,
            "simulated_seconds": self.simulated_seconds if self.stages else None,
            "bubble_free_seconds": self.bubble_free_seconds,
            "value": self.value,
            "memory_limit_bytes": self.memory_limit_bytes,
            "stages": [vars(stage) for stage in self.stages],
        }


def judge_pipeline(plan: PipelinePlan, target: Pipeline, any_stages: bool = False) -> Report:
    """Judge a plan on the problem that it is for.

    Args:
        plan: the plan.
        target: the problem.
        any_stages: whether the plan may have another number of stages than the problem asks for, as
            a plan that is still being built.
    """
    malformed = _malformed(plan, target)
    reasons = malformed + _mismatches(plan, target)
    stage_count = len(plan.cuts) + 1
    if not (malformed or any_stages or stage_count == target.stages):
        reasons.append(f"stages: the plan has {stage_count}, the problem asks for {target.stages}")
    stages: tuple[Stage, ...] = ()
    length = simulated = math.inf
    if not malformed:
        cuts, device_cuts = np.array(plan.cuts), np.array(plan.device_cuts)
        times = target.stage_times(cuts, device_cuts)
        memory = target.stage_memory(cuts, device_cuts)
        length = float(target.length(cuts, device_cuts))
        simulated = float(simulate(times, target.micro_batches).length)
        stages = _stages(plan, target, times, memory, simulated)
        reasons += _broken_rules(target, stages)
    return Report(
        plan=plan,
        pipeline=target,
        reasons=tuple(reasons),
        length_seconds=length,
        simulated_seconds=simulated,
        bubble_free_seconds=target.bubble_free,
        memory_limit_bytes=target.memory_limit,
        stages=stages,
    )


def _malformed(plan: PipelinePlan, pipeline: Pipeline) -> list[str]:
    """Reasons for which the cost of the plan cannot even be computed."""
    reasons = []
    if len(plan.cuts) != len(plan.device_cuts):
        reasons.append(f"{len(plan.cuts)} cuts but {len(plan.device_cuts)} device cuts")
    if not plan.cuts:
        reasons.append("no cuts: a pipeline has at least two stages")
    for key, values, end, what in (
        ("cuts", plan.cuts, len(pipeline.profile), "pivots"),
        ("device_cuts", plan.device_cuts, pipeline.cluster.devices, "devices"),
    ):
        outside = [v for v in values if not 1 <= v < end]
        if outside:
            reasons.append(f"{key}: {outside[0]} is outside 1..{end - 1} ({end} {what})")
        elif any(b <= a for a, b in itertools.pairwise(values)):
            reasons.append(f"{key}: {list(values)} do not increase")
    return reasons


def _mismatches(plan: PipelinePlan, pipeline: Pipeline) -> list[str]:
    """Reasons for which the plan is for something else."""
    profile = pipeline.profile
    reasons = []
    if plan.fingerprint != profile.fingerprint:
        reasons.append(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {profile.name} is "
            f"{profile.fingerprint[:19]}...; make the plan anew"
        )
    if plan.cluster != pipeline.cluster:
        reasons.append(f"cluster: the plan is for {plan.cluster}, not {pipeline.cluster}")
    for key, mine, asked in (
        ("micro_batch", plan.micro_batch, profile.micro_batch),
        ("micro_batches", plan.micro_batches, pipeline.micro_batches),
        ("copies", plan.copies, pipeline.copies),
        ("recompute", plan.recompute, pipeline.recompute),
        ("sync", plan.sync, pipeline.sync),
    ):
        if mine != asked:
            reasons.append(f"{key}: the plan is for {mine}, not {asked}")
    if plan.cut_after and len(plan.cut_after) != len(plan.cuts):
        reasons.append(f"cut_after: {len(plan.cut_after)} names for {len(plan.cuts)} cuts")
    for cut, name in zip(plan.cuts, plan.cut_after, strict=False):
        if 1 <= cut < len(profile) and name != profile.names[cut - 1]:
            reasons.append(
                f"cut_after: the pivot before cut {cut} is {profile.names[cut - 1]!r}, not {name!r}"
            )
    return reasons


def _broken_rules(pipeline: Pipeline, stages: tuple[Stage, ...]) -> list[str]:
    """Stages without a variable, and stages that exceed the memory."""
    limit = pipeline.memory_limit
    variables = pipeline.variable_sum
    reasons = []
    for number, stage in enumerate(stages):
        if variables[stage.end] == variables[stage.first]:
            reasons.append(f"stage {number}: no variable in pivots {stage.first}..{stage.end - 1}")
        if stage.memory_bytes > limit:
            reasons.append(
                f"stage {number}: {stage.memory_bytes:,.0f} bytes on each device, "
                f"{stage.memory_bytes - limit:,.0f} more than the {limit:,.0f} allowed"
            )
    return reasons


def _stages(
    plan: PipelinePlan,
    pipeline: Pipeline,
    times: StageTimes,
    memory: np.ndarray,
    simulated: float,
) -> tuple[Stage, ...]:
    profile = pipeline.profile
    bounds = [0, *plan.cuts, len(profile)]
    devices = [0, *plan.device_cuts, pipeline.cluster.devices]
    transfer = np.append(times.forward[1::2], 0.0)
    busy = pipeline.micro_batches * (times.forward + times.backward)[::2]
    return tuple(
        Stage(
            first=bounds[s],
            end=bounds[s + 1],
            last_name=str(profile.names[bounds[s + 1] - 1]),
            device_first=devices[s],
            device_end=devices[s + 1],
            forward_seconds=float(times.forward[2 * s]),
            backward_seconds=float(times.backward[2 * s]),
            transfer_seconds=float(transfer[s]),
            all_reduce_seconds=float(times.all_reduce[2 * s]),
            memory_bytes=float(memory[s]),
            parameter_bytes=float(
                pipeline.parameter_sum[bounds[s + 1]] - pipeline.parameter_sum[bounds[s]]
            ),
            efficiency=float(busy[s] / simulated),
        )
        for s in range(len(bounds) - 1)
    )
