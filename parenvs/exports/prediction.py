"""What the judge expects of a sharded step: the results that are all-reduced, and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.exports.sharding import Sharding
from parenvs.partitioning import formulas
from parenvs.partitioning.memory import Footprint


@dataclass(frozen=True)
class Prediction:
    """Expected of a step on each device.

    Attributes:
        arrays: results that are all-reduced; one in a loop counts once.
        bytes: their bytes on a device.
        argument_bytes: of the inputs.
        peak_bytes: when most is in use.
    """

    arrays: int
    bytes: float
    argument_bytes: float
    peak_bytes: float


def predict(sharding: Sharding) -> Prediction:
    """Predict the all-reduces and the memory of a sharded step.

    A result that several axes leave partial is all-reduced once, over all of them.
    """
    graph, classes, axes = sharding.graph, sharding.classes, sharding.axes
    chosen = np.logical_or.reduce([axis.chosen for axis in axes])
    partial = np.unique(
        np.concatenate([formulas.partial_instructions(classes, axis.chosen) for axis in axes])
    )
    _, results = graph.makes(partial)
    share = np.ones(len(classes))
    for axis in axes:
        split = formulas.device_share(classes, axis.size)
        share = np.where(axis.chosen, split, share)
    footprint = Footprint(graph, classes.label, share)
    held = (graph.tensor_bytes * footprint.scale(chosen))[results]
    memory = footprint.memory(chosen)
    arguments = sum(
        float(graph.tensor_bytes[tensor]) * sharding.share(spec)
        for tensor, spec in zip(graph.parameter_tensor.tolist(), sharding.inputs, strict=True)
    )
    transient = memory.gradients + memory.activations
    return Prediction(len(results), float(held.sum()), arguments, arguments + transient)
