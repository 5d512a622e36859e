"""What the judge expects of a sharded step: the results that are all-reduced, and memory.

Both are predicted twice: as the graph has them, and as XLA's compiler for CPUs makes them, which
is the one that compiles on virtual devices. It computes in float32 what is bfloat16, and rewrites
the backward pass of max pooling (``select-and-scatter``) as a scatter: for each dimension of the
pooled tensor an int32 tensor of its size is written out, the position of every element.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parenvs.exports.sharding import Sharding
from parenvs.graph.graph import Graph
from parenvs.graph.proto import ELEMENT_TYPES
from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.memory import Footprint

_CODES = {name: code for code, (name, _) in ELEMENT_TYPES.items()}
_INDEX_BYTES = 4


@dataclass(frozen=True)
class Prediction:
    """Expected of a step on each device.

    Attributes:
        arrays: results that are all-reduced; one in a loop counts once.
        bytes: their bytes on a device.
        argument_bytes: of the inputs.
        peak_bytes: when most is in use.
        cpu_bytes: of the results that are all-reduced, as XLA makes them for CPUs.
        cpu_peak_bytes: when most is in use, as XLA makes it for CPUs.
    """

    arrays: int
    bytes: float
    argument_bytes: float
    peak_bytes: float
    cpu_bytes: float
    cpu_peak_bytes: float


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
    arguments = sum(
        float(graph.tensor_bytes[tensor]) * sharding.share(spec)
        for tensor, spec in zip(graph.parameter_tensor.tolist(), sharding.inputs, strict=True)
    )

    def reduced_and_transient(graph: Graph) -> tuple[float, float]:
        footprint = Footprint(graph, classes.label, share)
        memory = footprint.memory(chosen)
        held = (graph.tensor_bytes * footprint.scale(chosen))[results]
        return float(held.sum()), memory.gradients + memory.activations

    own = reduced_and_transient(graph)
    wide = reduced_and_transient(_widened(graph))
    indices = _index_bytes(graph, np.where(chosen, share, 1.0)[classes.label])
    return Prediction(
        arrays=len(results),
        bytes=own[0],
        argument_bytes=arguments,
        peak_bytes=arguments + own[1],
        cpu_bytes=wide[0],
        cpu_peak_bytes=arguments + wide[1] + indices,
    )


def _widened(graph: Graph) -> Graph:
    """A graph with float32 in place of bfloat16."""
    narrow = graph.element_type == _CODES["bf16"]
    wide = np.where(narrow, _CODES["f32"], graph.element_type)
    return replace(graph, element_type=wide.astype(graph.element_type.dtype))


def _index_bytes(graph: Graph, share: np.ndarray) -> float:
    """Bytes of the positions that the backward pass of max pooling becomes; they live together.

    Args:
        graph: the step.
        share: (N,) of each dimension of a tensor that a device holds.
    """
    if "select-and-scatter" not in graph.opcodes:
        return 0.0
    total = 0.0
    poolings = np.flatnonzero(graph.opcode == graph.opcodes.index("select-and-scatter"))
    for tensor in graph.operands[graph.operand_offset[poolings]].tolist():
        dims = slice(*graph.dim_offset[tensor : tensor + 2].tolist())
        elements = float(np.prod(graph.dims[dims] * share[dims]))
        total += _INDEX_BYTES * len(graph.dims[dims]) * elements
    return total
