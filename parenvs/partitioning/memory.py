"""Memory of a step on each device: parameters, optimiser state, gradients, live activations.

The one place that counts bytes of partitions: reports, memory limits of the exact planner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parenvs.graph.graph import Graph, Phase, Role
from parenvs.partitioning.factors import free_tensors

_VIEWS = (
    "add-dependency", "bitcast", "broadcast", "opt-barrier", "optimization-barrier", "reshape",
    "while",
)  # fmt: skip
"""Opcodes whose results need no memory of their own: the same bytes, or fused into their users."""


@dataclass(frozen=True)
class Memory:
    """Bytes on each device when most is in use.

    Attributes:
        parameters: variables and frozen weights.
        optimiser: optimiser state, and statistics.
        inputs: batch inputs and scalars.
        gradients: results of the backward pass that the update reads.
        activations: everything else that is alive.
        at: index of the instruction that runs at that moment.
    """

    parameters: float
    optimiser: float
    inputs: float
    gradients: float
    activations: float
    at: int

    @property
    def peak(self) -> float:
        """Bytes in all."""
        return self.parameters + self.optimiser + self.inputs + self.gradients + self.activations


class LinearBytes(NamedTuple):
    """Bytes on each device at one instruction: ``whole`` minus ``saved`` of the split classes."""

    whole: float  # if nothing is split
    saved: np.ndarray  # (C,) what splitting each class saves


class Footprint:
    """When each tensor of a graph is alive, and what splitting dimensions saves.

    Instructions run in order. Entry parameters are there throughout and the new values of variables
    and optimiser state are written over the old ones; any other tensor is alive from the
    instruction that makes it to the last one that reads it. Free tensors need no memory.

    Args:
        graph: the graph; T tensors, I instructions.
        label: (N,) class of each dimension.
        share: (C,) largest share of a dimension that a device holds if its class is split.
    """

    def __init__(self, graph: Graph, label: np.ndarray, share: np.ndarray) -> None:
        self.graph, self.label, self.share = graph, label, share
        count, steps = len(graph.element_type), len(graph.opcode)
        made_by = np.repeat(np.arange(steps), np.diff(graph.result_offset))
        read_by = np.repeat(np.arange(steps), np.diff(graph.operand_offset))
        self.first = np.full(count, -1)
        self.first[graph.results] = made_by
        self.last = np.full(count, -1)
        np.maximum.at(self.last, graph.operands, read_by)
        self.last[graph.outputs] = steps - 1
        self._carry()
        self.bytes = np.where(free_tensors(graph), 0.0, graph.tensor_bytes)
        views = self._views()
        for view, whole in reversed(list(views.items())):  # a view of a view ends first
            self.last[whole] = max(self.last[whole], self.last[view])
            self.bytes[view] = 0.0
        self.bytes[self._written_in_place(views)] = 0.0
        inner = np.isin(graph.opcode[made_by], [_code(graph, "parameter")]) & (
            graph.parent[made_by] >= 0
        )
        self.bytes[graph.results[inner]] = 0.0  # the carried state, which is outside
        self.parameters = graph.parameter_tensor
        self.last[self.parameters] = -1  # never transient
        self.transient = self.last >= 0
        self.transient &= self.bytes > 0
        backward = graph.phase[np.maximum(self.first, 0)] == Phase.BACKWARD
        update = graph.phase[np.maximum(self.last, 0)] == Phase.UPDATE
        self.gradient = self.transient & backward & update

    @cached_property
    def _owner(self) -> np.ndarray:
        """(N,) tensor of each dimension."""
        return np.repeat(np.arange(len(self.bytes)), np.diff(self.graph.dim_offset))

    def scale(self, chosen: np.ndarray) -> np.ndarray:
        """(T,) share of each tensor on a device if the classes ``chosen``, (C,) bool, are split."""
        split = np.flatnonzero((chosen & (self.share < 1))[self.label])
        scale = np.ones(len(self.bytes))
        np.multiply.at(scale, self._owner[split], self.share[self.label[split]])
        return scale

    def alive(self, chosen: np.ndarray) -> np.ndarray:
        """(I,) bytes of gradients and activations while each instruction runs."""
        size = (self.bytes * self.scale(chosen))[self.transient]
        step = np.zeros(len(self.graph.opcode) + 1)
        np.add.at(step, self.first[self.transient], size)
        np.subtract.at(step, self.last[self.transient] + 1, size)
        return np.cumsum(step)[:-1]

    def memory(self, chosen: np.ndarray) -> Memory:
        """What a device holds when most is in use."""
        at = int(self.alive(chosen).argmax())
        size = self.bytes * self.scale(chosen)
        role = self.graph.parameter_role
        held = size[self.parameters]
        now = self._alive_at(at)
        return Memory(
            parameters=float(held[np.isin(role, (Role.VARIABLE, Role.FROZEN))].sum()),
            optimiser=float(held[np.isin(role, (Role.OPTIMISER, Role.STATISTICS))].sum()),
            inputs=float(held[np.isin(role, (Role.BATCH, Role.SCALAR))].sum()),
            gradients=float(size[now & self.gradient].sum()),
            activations=float(size[now & ~self.gradient].sum()),
            at=at,
        )

    def saved_at(self, at: int) -> LinearBytes:
        """Bytes while the instruction ``at`` runs, as a linear function of the split classes.

        Legal plans split at most one dimension of a tensor, so the savings add up.
        """
        in_memory = self._alive_at(at)
        in_memory[self.parameters] = True
        dims = np.flatnonzero(in_memory[self._owner] & (self.graph.dims > 1))
        label = self.label[dims]
        saved = self.bytes[self._owner[dims]] * (1 - self.share[label])
        whole = float(self.bytes[in_memory].sum())
        return LinearBytes(whole, np.bincount(label, saved, len(self.share)))

    def _carry(self) -> None:
        """Keep what a loop or branch reads until the last instruction in it."""
        graph = self.graph
        end = np.arange(len(graph.opcode))
        for index in np.flatnonzero(graph.parent >= 0)[::-1].tolist():
            outer = graph.parent[index]
            end[outer] = max(end[outer], end[index])
        for outer in np.unique(graph.parent[graph.parent >= 0]).tolist():
            read = graph.operands[graph.operand_offset[outer] : graph.operand_offset[outer + 1]]
            self.last[read] = np.maximum(self.last[read], end[outer])

    def _alive_at(self, at: int) -> np.ndarray:
        return self.transient & (self.first <= at) & (at <= self.last)

    def _views(self) -> dict[int, int]:
        """Tensors that need no memory of their own, and what they are views of."""
        graph = self.graph
        views: dict[int, int] = {}
        codes = [_code(graph, name) for name in _VIEWS]
        for index in np.flatnonzero(np.isin(graph.opcode, codes) & ~graph.free).tolist():
            made = graph.results[graph.result_offset[index] : graph.result_offset[index + 1]]
            read = graph.operands[graph.operand_offset[index] : graph.operand_offset[index + 1]]
            views.update(zip(made.tolist(), read.tolist(), strict=False))
        return views

    def _written_in_place(self, views: dict[int, int]) -> list[int]:
        """Outputs that take the place of variables, optimiser state and statistics."""
        graph = self.graph

        def kind(tensor: int) -> tuple[int, tuple[int, ...]]:
            return int(graph.element_type[tensor]), graph.shape(tensor)

        roles = (Role.VARIABLE, Role.OPTIMISER, Role.STATISTICS)
        places = Counter(
            kind(t)
            for t, role in zip(graph.parameter_tensor, graph.parameter_role, strict=True)
            if role in roles
        )
        donated = []
        for tensor in graph.outputs.tolist():
            if places[kind(tensor)] > 0:
                places[kind(tensor)] -= 1
                while tensor in views:
                    tensor = views[tensor]
                donated.append(tensor)
        return sorted(set(donated) - set(graph.parameter_tensor.tolist()))


def _code(graph: Graph, opcode: str) -> int:
    return graph.opcodes.index(opcode) if opcode in graph.opcodes else -1
