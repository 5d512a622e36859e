"""A training step in micro-batches: the sizes of one, and how often each instruction runs.

A graph is made for one batch. A step of M micro-batches of b samples runs the forward and backward
pass M times on b samples each, adds up the gradients as they are made, and updates once. What has
the batch in it shrinks with b: that are the dimension classes of the first dimensions of the batch
inputs. Where the batch is partitioned, gradients are summed over the devices once a step, after the
last micro-batch; every other partial result is summed wherever it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, shown
from parenvs.fields import LARGEST_NUMBER
from parenvs.graph.graph import Graph, Phase
from parenvs.graph.opcodes import PARTS_READ, bytes_of
from parenvs.tasks.partition.classes import DimensionClasses
from parenvs.tasks.partition.factors import free_tensors
from parenvs.tasks.partition.plan import REMADE, UNEVEN

FEWEST = 2
"""Samples of the smallest micro-batch: a dimension of size 1 is in no factor."""
SETTINGS = ("micro_batch", "micro_batches", "recompute")
"""Settings of a step that plans must share with the problem that they are judged on."""
DEVICE = "device"
"""The limit of memory that is the cluster's own."""
_MAX_BYTES = 1e30
"""The largest limit: costs stay finite, and plan files take it."""


@dataclass(frozen=True)
class Step:
    """How a training step runs.

    Attributes:
        micro_batch: b, samples of a micro-batch; None: the batch that the graph was made for.
        micro_batches: M, micro-batches of a step, whose gradients are added up.
        recompute: ``"none"``, or ``"full"``: the backward pass makes the activations again, but for
            those that cross borders between segments, see ``Footprint``.
        limit: bytes on a device beyond which a plan is illegal; None: memory decides nothing.
    """

    micro_batch: int | None = None
    micro_batches: int = 1
    recompute: str = REMADE[0]
    limit: float | None = None

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        micro_batch: int | None = None,
        micro_batches: int = 1,
        recompute: str = REMADE[0],
        memory_limit: float | str | bool | None = None,
    ) -> Step:
        """Check the settings of a step.

        Args:
            cluster: the devices.
            micro_batch: samples of a micro-batch (default: the graph's batch), 2 or more.
            micro_batches: micro-batches of a step.
            recompute: ``"none"`` or ``"full"``.
            memory_limit: bytes on a device beyond which a plan is illegal; ``True`` or
                ``"device"`` for ``Cluster.memory_limit`` (default: memory decides nothing).

        Raises:
            ParenvsError: a setting is none of these.
        """
        if micro_batch is not None:
            _check_count("micro_batch", micro_batch, FEWEST)
        _check_count("micro_batches", micro_batches, 1)
        if recompute not in REMADE:
            raise ParenvsError(
                f"recompute must be one of {', '.join(REMADE)}, not {shown(recompute)}"
            )
        samples = None if micro_batch is None else int(micro_batch)
        return cls(samples, int(micro_batches), recompute, limit_of(memory_limit, cluster))

    def on(self, graph: Graph) -> Step:
        """The same step, with no micro-batch of its own if it is the graph's batch."""
        return replace(self, micro_batch=None) if self.micro_batch == graph.batch_size else self

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not the defaults, by the names of plans' fields."""
        given = {name: getattr(self, name) for name in SETTINGS} | {"memory_limit": self.limit}
        defaults = {name: getattr(WHOLE, name) for name in SETTINGS} | {"memory_limit": None}
        return {name: value for name, value in given.items() if value != defaults[name]}

    @property
    def recomputes(self) -> bool:
        """Whether activations are made again."""
        return self.recompute != REMADE[0]

    def repetitions(self, graph: Graph, again: np.ndarray | int = 0) -> np.ndarray:
        """(I,) how often each instruction runs in a step, that of loops aside.

        Args:
            graph: the graph.
            again: (I,) bool, what the backward pass runs once more.
        """
        passes = self.micro_batches * (1.0 + again) * np.ones(len(graph.opcode))
        return np.where(graph.phase == Phase.UPDATE, 1.0, passes)

    def synchronisations(self, classes: DimensionClasses, again: np.ndarray | int) -> np.ndarray:
        """(I,) how often a step all-reduces partial results of each instruction, loops aside.

        Args:
            classes: the dimension classes.
            again: (I,) bool, what the backward pass runs once more.
        """
        times = self.repetitions(classes.graph, again)
        if self.micro_batches == 1:
            return times
        return np.where(synchronised_once(classes), 1.0, times)


def _check_count(name: str, number: Any, minimum: int) -> None:
    """Raise an error unless a number is a whole one from ``minimum``."""
    is_whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_whole or not minimum <= number <= LARGEST_NUMBER:
        raise ParenvsError(f"{name} must be a whole number from {minimum}, not {shown(number)}")


WHOLE = Step()
"""The step of the whole batch at once."""


def limit_of(memory_limit: float | str | bool | None, cluster: Cluster) -> float | None:
    """The bytes that an argument ``memory_limit`` means, or None without a limit.

    Raises:
        ParenvsError: it is no limit, see ``Step.of``.
    """
    if memory_limit is None or memory_limit is False:
        return None
    if memory_limit is True or memory_limit == DEVICE:
        return cluster.memory_limit
    kinds = (int, float, np.integer, np.floating)
    number = memory_limit if isinstance(memory_limit, kinds) else 0
    if 0 < number <= _MAX_BYTES:
        return float(number)
    raise ParenvsError(
        f"memory_limit must be a positive number of bytes, or {DEVICE!r} for "
        f"{cluster.memory_limit:,.0f}, not {shown(memory_limit)}"
    )


def batch_classes(classes: DimensionClasses) -> np.ndarray:
    """(C,) bool, the classes of the first dimensions of inputs that are as long as the batch."""
    graph = classes.graph
    firsts = [
        int(graph.dim_offset[tensor])
        for tensor in graph.parameter_tensor[classes.inputs].tolist()
        if graph.shape(tensor)[:1] == (graph.batch_size,)
    ]
    is_batch = np.zeros(len(classes), dtype=bool)
    is_batch[classes.label[firsts]] = True
    return is_batch


def at_micro_batch(
    classes: DimensionClasses, micro_batch: int, uneven: str = UNEVEN[0]
) -> DimensionClasses:
    """The same classes on the graph as it is for another number of samples.

    FLOPs and bytes of instructions and the sizes of dimensions follow the batch; what the classes
    hold and exclude does not.

    Args:
        classes: the classes of the graph as it was read.
        micro_batch: samples.
        uneven: ``"forbid"`` blocks classes by their sizes at the micro-batch.

    Raises:
        ParenvsError: fewer than two samples, no input has the batch in front, or a dimension is no
            multiple of the batch.
    """
    graph = classes.graph
    if micro_batch == graph.batch_size:
        return classes
    if micro_batch < FEWEST:
        raise ParenvsError(f"micro_batch must be {FEWEST} or more, not {shown(micro_batch)}")
    batch = batch_classes(classes)
    if not batch.any():
        raise ParenvsError(
            f"micro_batch: no input of {graph.name} has its batch of {graph.batch_size} as first "
            "dimension; leave micro_batch out"
        )
    follows = batch[classes.label] & (graph.dims > 1)
    dims = graph.dims.copy()
    dims[follows], remainder = np.divmod(dims[follows] * micro_batch, graph.batch_size)
    if remainder.any():
        odd = int(graph.dims[follows][remainder > 0][0])
        raise ParenvsError(
            f"micro_batch: a dimension of {odd} in {graph.name} is no multiple of its batch of "
            f"{graph.batch_size}, so it has no size for {micro_batch} samples; leave it out"
        )
    _follow(graph, follows, dims)
    scaled = replace(graph, batch_size=micro_batch, dims=dims)
    flops, moved = _costs(classes, batch, scaled)
    scaled = replace(scaled, flops=flops, bytes_accessed=moved)
    return replace(classes, graph=scaled).with_sizes(uneven, classes.devices)


def _follow(graph: Graph, follows: np.ndarray, dims: np.ndarray) -> None:
    """Give free tensors the sizes of what they are combined with, where their shapes are the same.

    They are in no class, as they are made of constants, but reading them takes as long as reading
    any other.
    """
    free = free_tensors(graph)
    owner = np.repeat(np.arange(len(graph.element_type)), np.diff(graph.dim_offset))
    touched = np.zeros(len(graph.element_type), dtype=bool)
    touched[owner[follows]] = True
    use, tensor = graph.uses(np.arange(len(graph.opcode)))
    made_at, result = graph.makes(np.arange(len(graph.opcode)))
    has_free = np.bincount(use[free[tensor]], minlength=len(graph.opcode)) > 0
    partners: dict[int, list[int]] = {}
    for where, tensors in ((use, tensor), (made_at, result)):
        kept = has_free[where] & touched[tensors]
        for index, partner in zip(where[kept].tolist(), tensors[kept].tolist(), strict=True):
            partners.setdefault(index, []).append(partner)
    offset = graph.dim_offset.tolist()
    for index, other in zip(use.tolist(), tensor.tolist(), strict=True):
        if free[other]:
            for partner in partners.get(index, ()):
                if graph.shape(partner) == graph.shape(other):
                    start, end = offset[partner : partner + 2]
                    dims[offset[other] : offset[other + 1]] = dims[start:end]
                    break


def _costs(
    classes: DimensionClasses, batch: np.ndarray, scaled: Graph
) -> tuple[np.ndarray, np.ndarray]:
    """(I,) FLOPs and bytes of the instructions of the graph with other sizes.

    FLOPs are in proportion to each factor that holds the batch, or else to the results' elements.
    """
    graph = classes.graph
    ratio = scaled.batch_size / graph.batch_size
    held = classes.factors.instruction[batch[classes.factor_class]]
    count = np.bincount(held, minlength=len(graph.opcode))
    every = np.arange(len(graph.opcode))
    old, new = (g.tensor_bytes_of(every) for g in (graph, scaled))
    by_result = np.divide(new, old, out=np.ones(len(every)), where=old > 0)
    flops = graph.flops * np.where(count > 0, ratio**count, by_result)
    ratios = np.ones(len(every))  # of bytes: operands and results, but for some opcodes
    sums = []
    for g in (graph, scaled):
        use, tensor = graph.uses(every)
        read = np.bincount(use, g.tensor_bytes[tensor], minlength=len(every))
        sums.append(read + g.tensor_bytes_of(every))
    np.divide(sums[1], sums[0], out=ratios, where=sums[0] > 0)
    parts = [code for code, name in enumerate(graph.opcodes) if name in PARTS_READ]
    for index in np.flatnonzero(np.isin(graph.opcode, parts) & (ratios != 1)).tolist():
        read, written = (
            flat[offset[index] : offset[index + 1]]
            for flat, offset in (
                (graph.operands, graph.operand_offset), (graph.results, graph.result_offset),
            )
        )  # fmt: skip
        opcode = graph.opcodes[graph.opcode[index]]
        before, after = (
            bytes_of(opcode, g.tensor_bytes[read].tolist(), g.tensor_bytes[written].tolist())
            for g in (graph, scaled)
        )
        ratios[index] = after / before if before else 1.0
    return flops, graph.bytes_accessed * ratios


def synchronised_once(classes: DimensionClasses) -> np.ndarray:
    """(I,) bool, backward instructions whose partial results can wait for the last micro-batch.

    Gradients are linear in what makes them, so those of several micro-batches are added up before
    they are summed over the devices, unless something that has the batch in it reads them. What is
    inside a loop does not wait.
    """
    graph = classes.graph
    owner = np.repeat(np.arange(len(graph.element_type)), np.diff(graph.dim_offset))
    needed = np.zeros(len(graph.element_type), dtype=bool)  # by what has the batch in it
    needed[owner[batch_classes(classes)[classes.label] & (graph.dims > 1)]] = True
    operands, results = graph.operands.tolist(), graph.results.tolist()
    ins, outs = graph.operand_offset.tolist(), graph.result_offset.tolist()
    wanted, waits = needed.tolist(), [False] * len(graph.opcode)
    backward = ((graph.phase == Phase.BACKWARD) & (graph.parent < 0)).tolist()
    updates = (graph.phase == Phase.UPDATE).tolist()
    for index in range(len(waits) - 1, -1, -1):
        used = any(wanted[tensor] for tensor in results[outs[index] : outs[index + 1]])
        waits[index] = backward[index] and not used
        if used and not updates[index]:
            for tensor in operands[ins[index] : ins[index + 1]]:
                wanted[tensor] = True
    return np.array(waits, dtype=bool)
