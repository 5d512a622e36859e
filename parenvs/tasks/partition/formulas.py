"""The cost model of partitions: seconds of a step and returns of an episode, each once.

One mesh axis over all N devices. An instruction has at most one partitioned factor. It then takes
the share of its time that the fullest device holds, plus an all-reduce of its result if that
factor is contracted, reduced or indexed. So the step time is linear in the decisions of the C
dimension classes, and so are both returns. Bytes are counted in ``parenvs.tasks.partition.memory``.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from parenvs.cluster import EFFICIENCY, Cluster, Device
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.classes import DimensionClasses

PARTITION_REWARD, REPLICATION_REWARD = 0.4, 0.1
"""What a dimension pays in the paper if it is partitioned, and if not (arXiv 2007.04069, 3.3)."""
STRUCTURE = ("parameter", "return", "while", "conditional")
"""Opcodes that take no time of their own; what is inside a loop or branch does."""


def instruction_seconds(graph: Graph, device: Device, efficiency: float = EFFICIENCY) -> np.ndarray:
    """(I,) seconds of each instruction in one run of the module, on one device.

    The larger of FLOPs / (efficiency * peak) and bytes / memory bandwidth, times the number of
    runs; the peak is that of the type of elements. Free instructions take no time: a compiler folds
    them into what uses them. The HLO is unfused, so that elementwise instructions pay for reading
    and writing all of their operands and results.
    """
    compute = graph.flops / (efficiency * graph.peak_flops(device))
    seconds = np.maximum(compute, graph.bytes_accessed / device.memory_bw)
    seconds[graph.free | np.isin(graph.opcode, _codes(graph, STRUCTURE))] = 0.0
    return seconds * runs(graph, seconds)


def runs(graph: Graph, seconds: np.ndarray) -> np.ndarray:
    """(I,) how often each instruction runs: loops by their trip counts, one branch of several.

    Of a conditional's branches the one that takes longest counts, by the instructions' own
    ``seconds`` (I,) and those of the loops and branches in it.
    """
    seconds_with_inside = np.array(seconds, dtype=np.float64)  # of one run
    runs_in_parent = np.ones(len(seconds_with_inside))
    outers = np.unique(graph.parent[graph.parent >= 0])
    for outer in outers[::-1].tolist():  # instructions inside have higher numbers
        inside = np.flatnonzero(graph.parent == outer)
        if graph.opcodes[graph.opcode[outer]] == "while":
            trips = json.loads(graph.strings[graph.attribute[outer]])["trip_count"]
            runs_in_parent[inside] = trips
        else:
            returns = np.isin(graph.opcode[inside], _codes(graph, ("return",)))
            branch: np.ndarray = np.cumsum(returns) - returns  # a branch ends with its return
            longest = np.bincount(branch, seconds_with_inside[inside]).argmax()
            runs_in_parent[inside] = branch == longest
        seconds_with_inside[outer] = (seconds_with_inside * runs_in_parent)[inside].sum()
    times = runs_in_parent.copy()
    for outer in outers.tolist():
        times[graph.parent == outer] *= times[outer]
    return times


def device_share(classes: DimensionClasses, devices: int) -> np.ndarray:
    """(C,) largest share of a dimension that one device holds if its class is partitioned.

    1/N, or more where padding leaves devices idle: 12 heads over 8 devices make 2/12. The worst
    dimension of the class decides.
    """
    size = classes.graph.dims
    share = np.ceil(size / devices) / np.maximum(size, 1)
    largest = np.full(len(classes), 1 / devices)
    splittable = size > 1
    np.maximum.at(largest, classes.label[splittable], share[splittable])
    return largest


def saved_seconds(classes: DimensionClasses, seconds: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(C,) seconds of computation that partitioning a class saves in a step.

    Args:
        classes: the dimension classes.
        seconds: (I,) seconds of each instruction, ``instruction_seconds``.
        share: (C,) largest share on one device, ``device_share``.
    """
    instruction = classes.factors.instruction
    whole = np.bincount(classes.factor_class, seconds[instruction], len(classes))
    return whole * (1 - share)


def all_reduce_seconds(
    classes: DimensionClasses, seconds: np.ndarray, cluster: Cluster, times: np.ndarray
) -> np.ndarray:
    """(C,) seconds of all-reduces that partitioning a class costs in a step.

    Each factor that leaves a partial result costs one ring over all devices, at each time that the
    result is summed.

    Args:
        classes: the dimension classes.
        seconds: (I,) seconds of each instruction, which tell the branch that is taken.
        cluster: the devices.
        times: (I,) how often a step sums each instruction's result, loops aside.
    """
    graph, factors = classes.graph, classes.factors
    instruction = factors.instruction[factors.partial]
    often = (runs(graph, seconds) * times)[instruction]
    size_bytes = graph.tensor_bytes_of(instruction) * often
    ring_seconds = cluster.sync_seconds(size_bytes, np.array(0), np.array(cluster.devices))
    return np.bincount(classes.factor_class[factors.partial], ring_seconds, len(classes))


def all_reduces(classes: DimensionClasses, chosen: np.ndarray, times: np.ndarray) -> int:
    """Number of all-reduces of a step, loops aside, if the classes ``chosen`` are split.

    ``times`` (I,) says how often a step sums each instruction's result. An argmax reduces two
    arrays at once, values and indices: each is all-reduced.
    """
    instructions = partial_instructions(classes, chosen)
    results = np.diff(classes.graph.result_offset)[instructions]
    return int((results * times[instructions]).sum())


def partial_instructions(classes: DimensionClasses, chosen: np.ndarray) -> np.ndarray:
    """(k,) instructions that leave partial results if the classes ``chosen`` are split."""
    partial = chosen[classes.factor_class] & classes.factors.partial
    return np.unique(classes.factors.instruction[partial])


def step_seconds(
    replicate_seconds: float, gain_seconds: np.ndarray, chosen: np.ndarray
) -> np.ndarray:
    """(...) seconds of the steps that partition ``chosen``, (..., C) bool.

    Args:
        replicate_seconds: seconds of the step in which every device does everything.
        gain_seconds: (C,) by how much each class shortens it: saved minus all-reduce seconds.
        chosen: the partitioned classes.
    """
    return replicate_seconds - chosen @ gain_seconds


def step_parts(
    replicate_seconds: float, saved: np.ndarray, all_reduce: np.ndarray, chosen: np.ndarray
) -> tuple[float, float]:
    """Compute and communication seconds of one step, of which ``step_seconds`` is the sum.

    The two sums are equal up to rounding only, as this one adds the parts apart.

    Args:
        replicate_seconds: seconds of the step in which every device does everything.
        saved: (C,) ``saved_seconds``.
        all_reduce: (C,) ``all_reduce_seconds``.
        chosen: (C,) bool, the partitioned classes.
    """
    compute = replicate_seconds - float(saved[chosen].sum())
    return compute, float(all_reduce[chosen].sum())


class LinearReturn(NamedTuple):
    """Return of complete episodes, linear in the classes that they partition."""

    base: float  # return of the episode that partitions nothing
    weights: np.ndarray  # (C,) what partitioning each class adds

    def value(self, chosen: np.ndarray) -> np.ndarray:
        """(...) returns of the episodes that partition the classes ``chosen``, (..., C) bool."""
        return self.base + chosen @ self.weights


def paper_reward(choice: int, dimensions: int = 1) -> float:
    """The paper's reward for partitioning (1) or replicating (0) a number of dimensions."""
    return (PARTITION_REWARD if choice else REPLICATION_REWARD) * dimensions


def paper_return(dimensions: int, counts: np.ndarray) -> LinearReturn:
    """The paper's return: 0.1 a dimension, 0.3 more if it is partitioned.

    Args:
        dimensions: number of dimensions that are decided, size 1 included.
        counts: (C,) those of them that belong to each class, size 1 excluded.
    """
    weights = (PARTITION_REWARD - REPLICATION_REWARD) * counts
    return LinearReturn(paper_reward(0, dimensions), weights)


def step_time_return(replicate_seconds: float, gain_seconds: np.ndarray) -> LinearReturn:
    """The share of the replicated step's seconds that is saved: 1 - T / T_replicate.

    Args:
        replicate_seconds: T_replicate.
        gain_seconds: (C,) by how much each class shortens the step.
    """
    # A step of no seconds, all computed from constants, has nothing to save.
    return LinearReturn(0.0, gain_seconds / (replicate_seconds or 1.0))


def _codes(graph: Graph, opcodes: tuple[str, ...]) -> list[int]:
    return [graph.opcodes.index(name) for name in opcodes if name in graph.opcodes]
