"""A run of a plan beside what was predicted, as text and as JSON types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parenvs.clock.timer import Timing
from parenvs.view.words import duration, plural, size

TOLERANCE = 1e-3
"""Relative difference of losses up to which two runs count as the same training."""


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in a step, of all processes together.

    Attributes:
        operations: how many ran; of those in a compiled loop, one.
        bytes: of their whole arrays.
        predicted: bytes.
    """

    operations: int
    bytes: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether the bytes are those predicted."""
        return self.bytes == self.predicted


@dataclass(frozen=True)
class Run:
    """A plan that was run. R devices.

    Attributes:
        plan: its file.
        words: what it was run as.
        devices: R.
        losses: of each step.
        single: of each step on one device.
        step: seconds of a step, of the last process to end.
        single_step: on one device.
        seconds: predicted; None without a calibration.
        traffic: kind -> what was sent.
        memory: (R,) bytes on each device when most is in use.
        predicted_memory: (R,) bytes, or empty.
        load: processes that wanted a core in the last minute, on average, when it began.
        notes: what was left out, in sentences.
    """

    plan: str
    words: str
    devices: int
    losses: tuple[float, ...]
    single: tuple[float, ...]
    step: Timing
    single_step: Timing
    seconds: float | None
    traffic: dict[str, Traffic]
    memory: tuple[float, ...]
    predicted_memory: tuple[float, ...]
    load: float
    notes: tuple[str, ...] = field(default=())

    @property
    def difference(self) -> float:
        """Largest relative difference of a loss to that of one device."""
        return max(
            abs(a - b) / max(abs(b), 1e-12) for a, b in zip(self.losses, self.single, strict=True)
        )

    @property
    def agrees(self) -> bool:
        """Whether it is the same training as on one device."""
        return self.difference <= TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """Return the run as an object of JSON types."""
        content = asdict(self)
        content["step"], content["single_step"] = self.step._asdict(), self.single_step._asdict()
        for key in ("losses", "single", "memory", "predicted_memory", "notes"):
            content[key] = list(content[key])
        for kind, one in self.traffic.items():
            content["traffic"][kind]["agrees"] = one.agrees
        return {"agrees": self.agrees, "difference": self.difference, **content}

    def text(self) -> str:
        """Return the run in lines."""
        steps = len(self.losses)
        lines = [
            f"{self.plan}: {self.words}, on {plural(self.devices, 'device')}",
            f"losses of {plural(steps, 'step')}: {self.losses[0]:.6g} -> {self.losses[-1]:.6g}; "
            f"one device: {self.single[0]:.6g} -> {self.single[-1]:.6g}; largest relative "
            f"difference {self.difference:.1e}",
        ]
        for kind, one in self.traffic.items():
            verdict = "equal" if one.agrees else _ratio(one.predicted, one.bytes)
            lines.append(
                f"{kind}: {plural(one.operations, 'operation')}, {one.bytes:,.0f} bytes; predicted "
                f"{one.predicted:,.0f} bytes ({verdict})"
            )
        if not self.traffic:
            lines.append("collectives: none, as predicted")
        told = self.predicted_memory or (0.0,) * len(self.memory)
        ranks: dict[tuple[float, float], list[int]] = {}
        for rank, both in enumerate(zip(self.memory, told, strict=True)):
            ranks.setdefault(both, []).append(rank)
        for (held, expected), some in ranks.items():
            words = f"memory of device {', '.join(map(str, some))}: {size(held)}"
            if self.predicted_memory:
                words += f"; predicted {size(expected)} ({_ratio(expected, held)})"
            lines.append(words)
        lines.append(_seconds("step", self.step, self.seconds))
        lines.append(_seconds("one device", self.single_step, None))
        lines.append(f"load when it began: {self.load:.1f}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def traffic_of(found: Sequence[dict[str, Any]], predicted: dict[str, float]) -> dict[str, Traffic]:
    """Put what every process counted beside what was predicted.

    Args:
        found: of each process, kind -> (operations, bytes).
        predicted: kind -> bytes of all.
    """
    kinds = sorted({kind for one in found for kind in one} | set(predicted))
    return {
        kind: Traffic(
            sum(one.get(kind, (0, 0))[0] for one in found),
            float(sum(one.get(kind, (0, 0))[1] for one in found)),
            float(predicted.get(kind, 0.0)),
        )
        for kind in kinds
    }


def _seconds(what: str, taken: Timing, predicted: float | None) -> str:
    """A line on seconds."""
    words = (
        f"{what}: median {duration(taken.seconds)}, quartiles {duration(taken.low)} to "
        f"{duration(taken.high)}"
    )
    if predicted is None:
        return words
    return f"{words}; predicted {duration(predicted)} ({_ratio(predicted, taken.seconds)})"


def _ratio(predicted: float, found: float) -> str:
    """Predicted over found, in words."""
    return f"{predicted / found:.2f} of it" if found else "there is none"
