"""Which slice of which tensor each file of a checkpoint holds.

A rank is ``r = t + T (d + D p)`` for its tp rank t, replica d and stage p. Replicas hold the same,
and replica 0 writes it, unless they share their states (ZeRO): then each writes its own. So there
is one file for each t, p and writing replica, in the order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.core.plan import Plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.exports.torch import TorchPlan
from parenvs.graph.graph import Graph

Box = tuple[tuple[int, int], ...]
"""First place and one past the last, of each dimension of a tensor."""


class Place(NamedTuple):
    """Where a rank is in the mesh: its stage, its replica and its tp rank."""

    pipe: int
    data: int
    model: int


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint.

    Attributes:
        shards: of the plan, see its task's hook ``checkpoint``.
        writing: replicas that write: those that share their states, else 1.
    """

    shards: Any
    writing: int

    @classmethod
    def of(cls, plan: Plan, where: object = "") -> Files:
        """Return the files of a plan whose stages are alike.

        Args:
            plan: the plan.
            where: its file, for the line of an error.

        Raises:
            InfeasibleError: stages differ in tp, devices or ZeRO level.
            ParenvsError: plans of its task have no checkpoints.
        """
        shards = task_with(plan, Task.checkpoint, where=where).checkpoint(plan)
        return cls(shards, shards.writing)

    @property
    def degrees(self) -> Any:
        """T, P and D of the plan: tensor, pipeline and data."""
        return self.shards.degrees

    def __len__(self) -> int:
        """Return the number of files."""
        return self.degrees.tensor * self.degrees.pipeline * self.writing

    def name(self, place: Place) -> str:
        """Return the name of the file that holds what a rank holds."""
        replica = place.data % self.writing
        return file_name(place.model + self.degrees.tensor * (replica + self.writing * place.pipe))

    def place(self, rank: int) -> Place:
        """Return where a rank of the plan is in the mesh."""
        tensor, data = self.degrees.tensor, self.degrees.data
        return Place(rank // (tensor * data), rank // tensor % data, rank % tensor)

    def places(self) -> Iterator[Place]:
        """Yield the rank that writes each file."""
        for pipe in range(self.degrees.pipeline):
            for data in range(self.writing):
                for model in range(self.degrees.tensor):
                    yield Place(pipe, data, model)


def file_name(number: int) -> str:
    """Return the name of a checkpoint's file by number."""
    return f"part-{number:05d}.bin"


def box_of(plan: TorchPlan, name: str, shape: tuple[int, ...], place: Place) -> Box:
    """Return the slice of a parameter that a rank holds, as ``Parallel`` places it.

    Args:
        plan: the plan in PyTorch's words.
        name: of the parameter.
        shape: of the whole.
        place: of the rank.
    """
    box = [(0, size) for size in shape]
    by_data, by_model = plan.placements.get(name, (None, None))
    if by_model is not None:
        box[by_model] = _chunk(box[by_model], plan.model, place.model)
    if plan.zero:  # fully_shard: rows of what the tp rank has
        by_data = 0
    if by_data is not None:
        box[by_data] = _chunk(box[by_data], plan.data, place.data)
    return tuple(box)


def _chunk(part: tuple[int, int], ranks: int, rank: int) -> tuple[int, int]:
    """The part of a range that ``torch.chunk`` gives a rank; it may be empty."""
    start, end = part
    step = -(-(end - start) // ranks)
    return min(start + step * rank, end), min(start + step * (rank + 1), end)


def sizes(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(end - start for start, end in box)


def elements(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(sizes(box))


def common(one: Box, other: Box) -> Box:
    """Return what two boxes have in common; it may be empty."""
    return tuple(
        (max(a, c), max(min(b, d), max(a, c))) for (a, b), (c, d) in zip(one, other, strict=True)
    )


def predicted_bytes(old: Files, new: Files, graph: Graph, per_parameter: float) -> np.ndarray:
    """Return the bytes that each file of the new plan takes of each of the old, as the formula has.

    Args:
        old: files of the plan that the checkpoint was written under.
        new: files of the plan that it is read under.
        graph: that both plans are for.
        per_parameter: bytes of a parameter with the optimiser's state.

    Returns:
        (files, new files); where replicas share their states, one row, of what is read in all, in
        equal shares.
    """
    needed: np.ndarray = new.shards.read_from(old.shards, graph, per_parameter)
    if old.writing == new.writing == 1:
        return needed
    unit = [position.model + new.degrees.tensor * position.pipe for position in new.places()]
    return needed.sum(axis=0, keepdims=True)[:, unit] / new.writing
