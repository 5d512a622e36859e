"""The measured layers of a model, whatever its framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parenvs.clock.timer import Timing
from parenvs.pipeline.profile import StageProfile


@dataclass(frozen=True)
class Layers:
    """The measured layers of a model.

    Attributes:
        profile: the chain of layers.
        forward: of each layer.
        backward: of each layer.
        whole: forward and backward pass of the whole model with its loss.
        samples: first dimension of the first input.
    """

    profile: StageProfile
    forward: tuple[Timing, ...]
    backward: tuple[Timing, ...]
    whole: tuple[Timing, Timing]
    samples: int

    @property
    def outside(self) -> float:
        """Seconds of the whole step that no layer accounts for; negative if layers take longer."""
        return sum(x.seconds for x in self.whole) - float(self.profile.seconds.sum())

    def comments(self) -> Iterator[str]:
        """Yield what the file of the profile says of its making."""
        whole = sum(x.seconds for x in self.whole)
        yield f"one micro-batch of {self.samples}; median of {self.forward[0].repeats} runs"
        yield f"whole step {1e3 * whole:.4g} ms, of which {1e3 * self.outside:.4g} ms in no layer"
        for name, *both in zip(self.profile.names, self.forward, self.backward, strict=True):
            spread = ", ".join(f"{1e3 * x.low:.4g} to {1e3 * x.high:.4g}" for x in both)
            yield f"quartiles of {name} in ms, forward and backward: {spread}"
