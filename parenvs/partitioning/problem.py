"""The problem of partitioning: a graph's dimension classes on a cluster, with their worth.

One mesh axis over all N devices. An instruction has at most one partitioned factor; it then takes
``kept`` of its time, and an all-reduce of its result if that factor is contracted, reduced or
indexed. So the step time is linear in the decisions of the classes, and so is the paper's return.


JOINED: Seconds of instructions on one device: a roofline over FLOPs and memory traffic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.cluster import EFFICIENCY, Cluster, Device
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph, Role
from parenvs.partitioning.classes import DimensionClasses, dimension_classes
from parenvs.partitioning.memory import Footprint
from parenvs.partitioning.rules import Kind

REWARDS = ("paper", "step_time")
SCOPES = ("variables", "inputs", "all")
PARTITIONED, REPLICATED = 0.4, 0.1
"""What a dimension pays in the paper (arXiv 2007.04069, section 3.3)."""


@dataclass(frozen=True, eq=False)
class Partitioning:
    """A graph to be partitioned over the devices of a cluster. C dimension classes.

    Attributes:
        graph: the graph.
        cluster: the devices.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``, for dimensions that are no multiple of the devices.
        classes: the dimension classes.
    """

    graph: Graph
    cluster: Cluster
    rules: str
    uneven: str
    classes: DimensionClasses

    @classmethod
    def build(
        cls, graph: Graph, cluster: Cluster, rules: str = "shardy", uneven: str = "pad"
    ) -> Partitioning:
        """Find the classes of a graph.

        Raises:
            ParenvsError: one device only, no trainable variable, paths that are not unique,
                unknown rules.
        """
        if cluster.devices < 2:
            raise ParenvsError(
                f"devices: partitioning needs at least 2, the cluster {cluster} has 1"
            )
        if not len(graph.variables):
            raise ParenvsError(
                f"{graph.name}: no trainable variable; read the module with "
                "Graph.from_hlo(path, variables=...), an argument's index or globs over parameter "
                "paths, save it as .npz and give that"
            )
        classes = dimension_classes(graph, rules, uneven, cluster.devices)
        problem = cls(graph, cluster, rules, uneven, classes)
        paths = [graph.paths[i] for i in problem.parameters("all").tolist()]
        twice = [path for path, count in Counter(paths).items() if count > 1]
        if twice:
            raise ParenvsError(
                f"{graph.name}: {len(twice)} variables or batch inputs share a path, like "
                f"{twice[0]!r}; plans name them by path, so rename one in the function's arguments"
            )
        return problem

    def __deepcopy__(self, memo: dict[int, Any]) -> Partitioning:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    @cached_property
    def kept(self) -> np.ndarray:
        """(C,) largest share of a dimension that one device holds if the class is partitioned.

        1/N, or more where padding leaves devices idle: 12 heads over 8 devices make 2/12. The worst
        dimension of the class decides.
        """
        size = self.graph.dims
        share = np.ceil(size / self.cluster.devices) / np.maximum(size, 1)
        kept = np.full(len(self.classes), 1 / self.cluster.devices)
        wide = size > 1
        np.maximum.at(kept, self.classes.label[wide], share[wide])
        return kept

    @cached_property
    def seconds(self) -> np.ndarray:
        """(I,) seconds of each instruction on one device."""
        return instruction_seconds(self.graph, self.cluster.device)

    @property
    def replicate_seconds(self) -> float:
        """Seconds of a step in which every device does everything."""
        return float(self.seconds.sum())

    @cached_property
    def saved_seconds(self) -> np.ndarray:
        """(C,) seconds of computation that partitioning a class saves in a step."""
        factors, label = self.classes.factors, self.classes.factor_class
        whole = np.bincount(label, self.seconds[factors.instruction], len(self.classes))
        return whole * (1 - self.kept)

    @cached_property
    def partial(self) -> np.ndarray:
        """(F,) bool, the factors of ``classes.factors`` that leave a partial result."""
        return self.classes.factors.kind != Kind.KEPT

    @cached_property
    def all_reduce_seconds(self) -> np.ndarray:
        """(C,) seconds of all-reduces that partitioning a class costs in a step."""
        graph, factors = self.graph, self.classes.factors
        where = factors.instruction[self.partial]
        size = graph.tensor_bytes_of(where) * runs(graph, self.seconds)[where]
        whole = self.cluster.sync_seconds(size, np.array(0), np.array(self.cluster.devices))
        return np.bincount(self.classes.factor_class[self.partial], whole, len(self.classes))

    @cached_property
    def gain_seconds(self) -> np.ndarray:
        """(C,) by how much partitioning a class shortens the step; may be negative."""
        return self.saved_seconds - self.all_reduce_seconds

    def step_seconds(self, chosen: np.ndarray) -> np.ndarray:
        """Seconds of a step, (...), if the classes ``chosen``, (..., C) bool, are partitioned."""
        return self.replicate_seconds - chosen @ self.gain_seconds

    @cached_property
    def footprint(self) -> Footprint:
        """Memory on each device."""
        return Footprint(self.graph, self.classes.label, self.kept)

    @property
    def memory_limit(self) -> float:
        """Bytes that a plan may use on each device."""
        return self.cluster.memory_limit

    @cached_property
    def inputs(self) -> np.ndarray:
        """Indices into the parameter arrays of the batch inputs, in parameter order."""
        return np.flatnonzero(self.graph.parameter_role == Role.BATCH)

    def parameters(self, scope: str) -> np.ndarray:
        """Indices of the entry parameters that a task decides: ``variables``, ``inputs``, both."""
        both = (self.graph.variables, self.inputs)
        chosen = {"variables": both[:1], "inputs": both[1:], "all": both}[scope]
        return np.concatenate(chosen)

    def dimensions(self, scope: str) -> np.ndarray:
        """(V,) positions in ``graph.dims`` of the dimensions that a task decides."""
        return self.classes.dimensions_of(self.parameters(scope))

    def decidable(self, scope: str) -> np.ndarray:
        """(k,) classes that hold dimensions of the scope and can be partitioned, ascending."""
        return np.flatnonzero((self.counts(scope) > 0) & ~self.classes.blocked)

    def counts(self, scope: str) -> np.ndarray:
        """(C,) dimensions of the scope, of those larger than 1, in each class."""
        return self.classes.counts(self.dimensions(scope))

    def weights(self, reward: str, scope: str) -> tuple[float, np.ndarray]:
        """Return of an episode that partitions nothing, and (C,) what each class adds.

        ``"paper"``: 0.1 a dimension, 0.3 more if it is partitioned. ``"step_time"``: the share of
        the replicated step's seconds that is saved.
        """
        if reward == "paper":
            counts = self.counts(scope)
            return REPLICATED * len(self.dimensions(scope)), (PARTITIONED - REPLICATED) * counts
        if reward == "step_time":
            return 0.0, self.gain_seconds / self.replicate_seconds
        raise ParenvsError(f"reward must be one of {REWARDS}, not {reward!r}")

    def value(self, chosen: np.ndarray, reward: str, scope: str) -> np.ndarray:
        """Return of the complete episodes that partition the classes ``chosen``, (..., C) bool."""
        base, weights = self.weights(reward, scope)
        return base + chosen @ weights

    def legal(self, chosen: np.ndarray) -> bool:
        """Whether the classes, (C,) bool, can be partitioned together."""
        first, second = self.classes.conflicts.T
        return not (chosen & self.classes.blocked).any() and not (
            (chosen[first] & chosen[second]).any()
        )

    def chosen(self, partition: Mapping[str, int]) -> np.ndarray:
        """(C,) bool, the classes of the partitioned dimensions of entry parameters, by path."""
        chosen = np.zeros(len(self.classes), dtype=bool)
        for path, dimension in partition.items():
            tensor = self.tensor[path]
            chosen[self.classes.label[self.graph.dim_offset[tensor] + dimension]] = True
        return chosen

    def partition(self, chosen: np.ndarray, scope: str) -> dict[str, int]:
        """Partitioned dimension of each entry parameter of a scope that has one, by path."""
        graph, found = self.graph, {}
        for index in self.parameters(scope).tolist():
            tensor = int(graph.parameter_tensor[index])
            start, end = graph.dim_offset[tensor : tensor + 2].tolist()
            split = chosen[self.classes.label[start:end]] & (graph.dims[start:end] > 1)
            if split.any():
                found[graph.paths[index]] = int(split.argmax())
        return found

    @cached_property
    def tensor(self) -> dict[str, int]:
        """Tensor of each variable and batch input, by path."""
        tensors = self.graph.parameter_tensor
        return {self.graph.paths[i]: int(tensors[i]) for i in self.parameters("all").tolist()}


def scope_of(task: str, reward: str) -> str:
    """What a task decides: batch inputs, variables, or, for the step time, both."""
    if task == "data-parallel":
        return "inputs"
    return "variables" if reward == "paper" else "all"


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
