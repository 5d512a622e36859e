"""Seconds of instructions on one device: a roofline over FLOPs and memory traffic."""

from __future__ import annotations

import json

import numpy as np

from parenvs.cluster import Device
from parenvs.graph import Graph
from parenvs.profile import EFFICIENCY

STRUCTURE = ("parameter", "return", "while", "conditional")
"""Opcodes that take no time of their own; what is inside a loop or branch does."""


def instruction_seconds(graph: Graph, device: Device, efficiency: float = EFFICIENCY) -> np.ndarray:
    """(I,) seconds of each instruction in one run of the module, on one device.

    The larger of FLOPs / (efficiency * peak) and bytes / memory bandwidth, times the number of
    runs. Nothing for free instructions: a compiler folds them into what uses them. The HLO is
    unfused, so that elementwise instructions pay for reading and writing all of their operands and
    results.
    """
    compute = graph.flops / (efficiency * device.peak_flops)
    seconds = np.maximum(compute, graph.bytes_accessed / device.memory_bw)
    seconds[graph.free | np.isin(graph.opcode, _codes(graph, STRUCTURE))] = 0.0
    return seconds * runs(graph, seconds)


def runs(graph: Graph, seconds: np.ndarray) -> np.ndarray:
    """(I,) how often each instruction runs: loops by their trip counts, one branch of several.

    Of a conditional's branches the one that takes longest counts, by its own ``seconds`` (I,).
    """
    times = np.ones(len(graph.opcode))
    for outer in np.unique(graph.parent[graph.parent >= 0]).tolist():  # parents come first
        inside = np.flatnonzero(graph.parent == outer)
        times[inside] = times[outer]
        if graph.opcodes[graph.opcode[outer]] == "while":
            times[inside] *= json.loads(graph.strings[graph.attribute[outer]])["trip_count"]
        else:
            returns = np.isin(graph.opcode[inside], _codes(graph, ("return",)))
            branch: np.ndarray = np.cumsum(returns) - returns  # a branch ends with its return
            longest = np.bincount(branch, seconds[inside]).argmax()
            times[inside[branch != longest]] = 0.0
    return times


def _codes(graph: Graph, opcodes: tuple[str, ...]) -> list[int]:
    return [graph.opcodes.index(name) for name in opcodes if name in graph.opcodes]
