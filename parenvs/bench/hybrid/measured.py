"""Layers whose seconds were measured on a device, as a profiler gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.tasks.hybrid.layers import Figure, Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.stack import Machine


@dataclass(frozen=True)
class MeasuredLayer(Layer):
    """A layer whose kernels were timed, unsplit, for ``samples`` samples.

    Samples scale the times; tensor and context parallelism divide them, as far as a profile of one
    device can tell, and collectives are not counted.

    Attributes:
        forward: seconds of the forward pass.
        backward: seconds of the backward pass.
        held: parameters.
        activations: bytes that a forward pass keeps.
        samples: samples that were timed.
        input_bytes: bytes of what enters the layer, kept alone under full recomputation.
    """

    forward: float
    backward: float
    held: float
    activations: float
    samples: float = 1.0
    input_bytes: float = 0.0

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """See ``Layer.seconds``."""
        share = split.samples / self.samples / split.tp / split.context
        return LayerSeconds(self.forward * share, self.backward * share)

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        """See ``Layer.parameters``."""
        return self.held / split.tp, 0.0

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``."""
        kept = self.input_bytes if mode == "full" else self.activations
        return kept * np.asarray(split.samples / self.samples / split.tp / split.context)
