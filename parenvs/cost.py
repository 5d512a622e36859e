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

    Of a conditional's branches the one that takes longest counts, by the instructions' own
    ``seconds`` (I,) and those of the loops and branches in it.
    """
    once = np.array(seconds, dtype=np.float64)  # of one run, with what is inside
    own = np.ones(len(once))  # runs for one run of the parent
    outers = np.unique(graph.parent[graph.parent >= 0])
    for outer in outers[::-1].tolist():  # what is inside comes later
        inside = np.flatnonzero(graph.parent == outer)
        if graph.opcodes[graph.opcode[outer]] == "while":
            own[inside] = json.loads(graph.strings[graph.attribute[outer]])["trip_count"]
        else:
            returns = np.isin(graph.opcode[inside], _codes(graph, ("return",)))
            branch: np.ndarray = np.cumsum(returns) - returns  # a branch ends with its return
            own[inside] = branch == np.bincount(branch, once[inside]).argmax()
        once[outer] = (once * own)[inside].sum()
    times = own.copy()
    for outer in outers.tolist():
        times[graph.parent == outer] *= times[outer]
    return times


def _codes(graph: Graph, opcodes: tuple[str, ...]) -> list[int]:
    return [graph.opcodes.index(name) for name in opcodes if name in graph.opcodes]
