"""The measured layers of a model, whatever its framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.clock.timer import Timing
from parenvs.core.registry import DEFAULT, TASKS


@dataclass(frozen=True)
class Layers:
    """The measured layers of a model.

    Attributes:
        profile: the chain of layers.
        forward: of each layer.
        backward: of each layer.
        whole: forward and backward pass of the whole model with its loss.
        samples: first dimension of the first input.
        processes: that measured at once.
    """

    profile: Any
    forward: tuple[Timing, ...]
    backward: tuple[Timing, ...]
    whole: tuple[Timing, Timing]
    samples: int
    processes: int = 1

    @classmethod
    def of(
        cls,
        name: str,
        names: Sequence[str],
        timings: Sequence[tuple[Timing, Timing]],
        whole: tuple[Timing, Timing],
        samples: int,
        **columns: Sequence[float],
    ) -> Layers:
        """Return measured layers, with the chain that the default task plans as their profile.

        Args:
            name: of the model.
            names: of the layers.
            timings: forward and backward pass of each layer.
            whole: see ``Layers``.
            samples: see ``Layers``.
            **columns: bytes by layer: ``cut_bytes``, ``parameter_bytes`` and ``resident_bytes``.
        """
        forward, backward = zip(*timings, strict=True)
        profile = TASKS[DEFAULT].profile(
            name=name,
            names=np.array(names, dtype=object),
            forward=np.array([x.seconds for x in forward]),
            backward=np.array([x.seconds for x in backward]),
            **{key: np.array(column, dtype=np.float64) for key, column in columns.items()},
        )
        return cls(profile, forward, backward, whole, samples)

    @classmethod
    def slowest(cls, several: Sequence[Layers]) -> Layers:
        """Return layers that several processes measured at once: of each timing the longest."""
        first = several[0]
        forward, backward, whole = (
            tuple(max(rows) for rows in zip(*(getattr(x, key) for x in several), strict=True))
            for key in ("forward", "backward", "whole")
        )
        profile = replace(
            first.profile,
            forward=np.array([x.seconds for x in forward]),
            backward=np.array([x.seconds for x in backward]),
        )
        return cls(profile, forward, backward, (whole[0], whole[1]), first.samples, len(several))

    @property
    def outside(self) -> float:
        """Seconds of the whole step that no layer accounts for; negative if layers take longer."""
        return sum(x.seconds for x in self.whole) - float(self.profile.seconds.sum())

    def comments(self) -> Iterator[str]:
        """Yield what the file of the profile says of its making."""
        whole = sum(x.seconds for x in self.whole)
        at_once = f" in {self.processes} processes at once" if self.processes > 1 else ""
        runs = f"median of {self.forward[0].repeats} runs{at_once}"
        yield f"one micro-batch of {self.samples}; {runs}"
        yield f"whole step {1e3 * whole:.4g} ms, of which {1e3 * self.outside:.4g} ms in no layer"
        for name, *both in zip(self.profile.names, self.forward, self.backward, strict=True):
            spread = ", ".join(f"{1e3 * x.low:.4g} to {1e3 * x.high:.4g}" for x in both)
            yield f"quartiles of {name} in ms, forward and backward: {spread}"
