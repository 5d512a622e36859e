"""The judge's verdict on a hybrid plan: legality, seconds by part, memory by stage, utilisation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.plan import ILLEGAL, TimedReport
from parenvs.tasks.hybrid.legality import PARTS
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.schedules import SPLIT
from parenvs.tasks.hybrid.simulate import ChunkSeconds, HybridTimetable, simulate
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.stages import Memory, Stages, Step
from parenvs.tasks.pipeline import formulas as pure

MOST_PASSES = 2_000_000
"""Passes of a step that are simulated, at most."""


class HybridStageReport(NamedTuple):
    """One stage of a judged plan; seconds are those of one micro-batch unless they say otherwise.

    Attributes:
        layers: half-open ranges of layers, one for each chunk.
        device_first: its first device, in the order of the servers.
        device_end: one past its last device.
        tp: ranks that share every matrix.
        dp: replicas.
        zero: 0 to 3.
        redone: mode -> number of its layers that are recomputed so.
        speed: of its slowest server.
        forward: seconds of kernels forward.
        backward: seconds of kernels backward.
        recomputed: seconds of forward passes that run again.
        exchange: seconds of collectives inside the stage that nothing hides.
        sends: seconds for which it waits for sends.
        gathers: seconds for which it waits for parameters that ZeRO 3 gathers.
        reduction: seconds of the gradients' collectives, of a step.
        exposed: seconds of them behind the stage's last backward pass, of a step.
        memory: bytes on each of its devices by part, and ``total``.
    """

    layers: tuple[tuple[int, int], ...]
    device_first: int
    device_end: int
    tp: int
    dp: int
    zero: int
    redone: dict[str, int]
    speed: float
    forward: float
    backward: float
    recomputed: float
    exchange: float
    sends: float
    gathers: float
    reduction: float
    exposed: float
    memory: dict[str, float]

    @property
    def busy(self) -> float:
        """Seconds that a micro-batch takes the stage."""
        parts = (self.forward, self.backward, self.recomputed, self.exchange)
        return sum(parts) + self.sends + self.gathers


@dataclass(frozen=True)
class HybridReport(TimedReport):
    """The judge's verdict on a hybrid plan.

    Attributes:
        plan: the plan.
        model: the chain of layers on which it was judged.
        cluster: the devices.
        machine: what the stack makes of them.
        batch: samples of a step.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        bound_seconds: see ``Hybrid.bound_seconds``.
        memory_limit_bytes: bytes that a stage may hold on each of its devices.
        arrays: the plan as arrays (None if it is malformed, as are the following).
        step: its seconds.
        held: its bytes.
        chunked: gives the seconds of every chunk of a well-formed plan, for the simulation.
    """

    task: ClassVar[str] = "hybrid"
    cost_words: ClassVar[str] = "the hybrid model's"
    plan: HybridPlan
    model: HybridModel
    cluster: Cluster
    machine: Machine
    batch: int
    reasons: tuple[str, ...]
    bound_seconds: float
    memory_limit_bytes: float
    arrays: Stages | None
    step: Step | None
    held: Memory | None
    chunked: Callable[[], ChunkSeconds] = field(repr=False, compare=False)

    @property
    def length_seconds(self) -> float:
        """Closed-form seconds of a step (inf if the plan is malformed)."""
        return math.inf if self.step is None else float(self.step.length)

    @property
    def value(self) -> float:
        """The bound over the length, in (0, 1]; -1 if the plan is illegal or does not fit."""
        if not self.legal:
            return ILLEGAL
        return float(pure.value(self.length_seconds, self.bound_seconds))

    @property
    def micro_batches(self) -> int:
        """M, micro-batches of a step."""
        return 0 if self.arrays is None else round(float(self.arrays.micro_batches))

    @property
    def devices_used(self) -> int:
        """Devices on which the plan puts something."""
        return sum(stage.devices for stage in self.plan.stages)

    @cached_property
    def stages(self) -> tuple[HybridStageReport, ...]:
        """The stages (empty if the plan is malformed)."""
        if self.arrays is None or self.step is None or self.held is None:
            return ()
        arrays, step, held = self.arrays, self.step, self.held
        rows = []
        for number, stage in enumerate(self.plan.stages):
            first = int(arrays.device[number])
            names = (
                "forward", "backward", "recomputed", "exchange", "sends", "gathers", "reduction",
                "exposed",
            )  # fmt: skip
            rows.append(
                HybridStageReport(
                    layers=stage.layers,
                    device_first=first,
                    device_end=first + stage.devices,
                    tp=stage.tp,
                    dp=int(arrays.dp[number]),
                    zero=stage.zero,
                    redone=stage.redone,
                    speed=float(arrays.speed[number]),
                    **{name: float(getattr(step, name)[number]) for name in names},
                    memory={name: float(getattr(held, name)[number]) for name in Memory._fields},
                )
            )
        return tuple(rows)

    @property
    def redone(self) -> dict[str, int]:
        """Mode -> number of layers that are recomputed so."""
        total: Counter[str] = Counter()
        for stage in self.plan.stages:
            total.update(stage.redone)
        return dict(sorted(total.items()))

    @cached_property
    def pivot(self) -> int:
        """The stage whose work the core consists of: that which passes all micro-batches last."""
        if self.step is None:
            return 0
        return pivot_of(self.step, self.micro_batches, self.plan.schedule)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by part, which add up to its length (empty if malformed).

        The first six are those of the pivot stage over all micro-batches, ``bubble`` is what the
        core has beside them.
        """
        return {} if self.step is None else seconds_by_part(self.step, self.pivot, self._rounds)

    @property
    def _rounds(self) -> int:
        """How often a stage does all of its chunks."""
        return 0 if self.arrays is None else round(float(self.arrays.rounds))

    @cached_property
    def timetable(self) -> HybridTimetable | None:
        """The simulated passes; None if the plan is malformed or has more than ``MOST_PASSES``."""
        pieces = len(self.plan.stages) * self.plan.chunks
        if self.step is None or 2 * pieces * self.micro_batches > MOST_PASSES:
            return None
        return simulate(self.chunked(), self.micro_batches, self.plan.schedule)

    @cached_property
    def simulated_seconds(self) -> float | None:
        """Seconds of a step by event simulation, None without a timetable."""
        if self.timetable is None or self.step is None:
            return None
        step = self.step
        passes = float(step.start.max()) + self.timetable.length(step.exposed)
        return passes + float(step.tied) + float(step.optimizer)

    @cached_property
    def flops(self) -> dict[str, float]:
        """Model FLOPs of a step, counted in three ways (empty if the model has no such count).

        ``model``: every matrix product of the forward and the backward pass, attention over the
        whole square. ``recomputed``: those and the forward passes of blocks that run again in
        full, as arXiv 2104.04473 counts. ``tokens``: ``6 N`` and causal attention a token, as arXiv
        2407.21783 counts.
        """
        if self.arrays is None:
            return {}
        counted = float(self.model.flops(self.batch))
        share = float(self.arrays.full.sum()) / max(len(self.model), 1)
        again = self.model.flops(self.batch, recompute=True) - counted
        found = {"model": counted, "recomputed": counted + share * again}
        if self.model.shape is not None:
            found["tokens"] = float(self.model.shape.token_flops(self.batch))
        return found

    @property
    def tflops(self) -> dict[str, float]:
        """TFLOP/s of each device that the plan uses, by the ways of ``flops``."""
        scale = 1e12 * self.length_seconds * self.devices_used
        return {name: count / scale for name, count in self.flops.items()}

    @property
    def mfu(self) -> float | None:
        """Model FLOPs (nothing recomputed) over the peak of the devices that the plan uses."""
        if not self.flops:
            return None
        peak = self.cluster.device.peak(self.machine.precision)
        return self.tflops["model"] * 1e12 / peak

    @property
    def samples_per_second(self) -> float:
        """Samples per second (0 if the plan is malformed)."""
        return self.batch / self.length_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second, None if the model does not say how many a sample has."""
        shape = self.model.shape
        return None if shape is None else self.samples_per_second * shape.sequence

    @property
    def is_guess(self) -> bool:
        """Whether the stack's share of the peak was never compared with such a device."""
        return self.machine.stack.is_guess(self.cluster.device.name, self.machine.precision)

    def __str__(self) -> str:
        """Return the verdict and the stages in a few lines."""
        if not self.stages:
            return "\n".join(["malformed plan", *(f"  {reason}" for reason in self.reasons)])
        count = f"{len(self.stages)} stage{'s' if len(self.stages) > 1 else ''}"
        simulated = self.simulated_seconds
        second = "not simulated" if simulated is None else f"simulated {simulated:.6g} s"
        lines = [
            f"{self.model.name} on {self.cluster}, {self.machine.stack.name} "
            f"{self.machine.precision}: {count}, L {self.length_seconds:.6g} s a step ({second}), "
            f"value {self.value:.4f}" + ("" if self.legal else ", ILLEGAL"),
            *(f"  {reason}" for reason in self.reasons),
        ]
        if self.is_guess:
            lines.append(
                f"  guess: {self.machine.stack.name} was never compared with a measurement on a "
                f"{self.cluster.device.name} at {self.machine.precision}"
            )
        speeds = [f"{self.samples_per_second:.4g} samples/s"]
        if self.tokens_per_second is not None:
            speeds.append(f"{self.tokens_per_second:.4g} tokens/s")
        words = {"model": "", "recomputed": " with recomputation", "tokens": " by 6 N a token"}
        again = self.flops and self.flops["recomputed"] > self.flops["model"]
        speeds += [
            f"{x:.4g} TFLOP/s a device{words[name]}"
            for name, x in self.tflops.items()
            if again or name != "recomputed"
        ]
        if self.mfu is not None:
            speeds.append(f"MFU {self.mfu:.1%}")
        lines.append("  " + ", ".join(speeds))
        parts = (f"{name} {x:.4g}" for name, x in self.seconds.items() if x)
        lines.append(f"  seconds: {', '.join(parts)}")
        limit = self.memory_limit_bytes / 1e9
        for number, stage in enumerate(self.stages):
            shown = [f"{first} to {end - 1}" for first, end in stage.layers if end > first]
            shown[2:-1] = ["..."] if len(shown) > 4 else shown[2:-1]
            ranges = ", ".join(shown) or "none"
            held = ", ".join(
                f"{name} {stage.memory[name] / 1e9:.3g}" for name in PARTS if stage.memory[name]
            )
            lines.append(
                f"  stage {number}: devices {stage.device_first} to {stage.device_end - 1} (tp "
                f"{stage.tp}, dp {stage.dp}, ZeRO {stage.zero}), layers {ranges}, {stage.busy:.4g} "
                f"s a micro-batch, {stage.memory['total'] / 1e9:.3g} of {limit:.3g} GB ({held})"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types (seconds and bytes)."""
        is_malformed = self.step is None
        return {
            "legal": self.legal,
            "reasons": list(self.reasons),
            "length_seconds": None if is_malformed else self.length_seconds,
            "simulated_seconds": self.simulated_seconds,
            "bound_seconds": self.bound_seconds,
            "value": self.value,
            "stack": self.machine.stack.name,
            "precision": self.machine.precision,
            "guess": self.is_guess,
            "batch": self.batch,
            "micro_batches": self.micro_batches,
            "devices_used": self.devices_used,
            "seconds": self.seconds,
            "flops": self.flops,
            "tflops": self.tflops,
            "mfu": self.mfu,
            "samples_per_second": None if is_malformed else self.samples_per_second,
            "tokens_per_second": None if is_malformed else self.tokens_per_second,
            "memory_limit_bytes": self.memory_limit_bytes,
            "stages": [{**stage._asdict(), "busy": stage.busy} for stage in self.stages],
        }


def pivot_of(step: Step, micro_batches: int, schedule: str) -> int:
    """Return the stage that passes all micro-batches last."""
    if schedule in SPLIT:
        return int(np.argmax(step.busy))
    before = step.chunk.cumsum(axis=0) - step.chunk
    return int(np.argmax(pure.through(before + step.busy, step.busy, micro_batches) + step.start))


def seconds_by_part(step: Step, pivot: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a step by part, see ``HybridReport.seconds``.

    Args:
        step: the seconds of one plan.
        pivot: the stage that passes all micro-batches last.
        rounds: how often a stage does all of its chunks.
    """
    names = ("forward", "backward", "recomputed", "exchange", "sends", "gathers")
    parts = {name: rounds * float(getattr(step, name)[pivot]) for name in names}
    parts["bubble"] = float(step.core) - sum(parts.values())
    parts["gradients"] = float(step.tail)
    return {**parts, "tied": float(step.tied), "optimizer": float(step.optimizer)}
