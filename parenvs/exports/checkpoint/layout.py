"""Which slice of which tensor each file of a checkpoint holds, for a hybrid plan.

A rank is ``r = t + T (d + D p)``, as in ``parenvs.tasks.elastic.movement``. Replicas hold the same,
and replica 0 writes it, unless they share their states (ZeRO): then each writes its own. So there
is one file for each t, p and writing replica, in the order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.exports.torch import TorchPlan
from parenvs.tasks.elastic.movement import Degrees, slices
from parenvs.tasks.elastic.state import State
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan

Box = tuple[tuple[int, int], ...]
"""First place and one past the last, of each dimension of a tensor."""


class Place(NamedTuple):
    """Where a rank is in the mesh: its stage, its replica and its tp rank."""

    pipe: int
    data: int
    model: int


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint by degrees.

    Attributes:
        degrees: T, P and D of the plan.
        writing: replicas that write: D if they share their states, else 1.
    """

    degrees: Degrees
    writing: int

    @classmethod
    def of(cls, plan: HybridPlan) -> Files:
        """Return the files of a hybrid plan whose stages are alike.

        Raises:
            InfeasibleError: stages differ in tp, devices or ZeRO level.
        """
        first = plan.stages[0]
        for number, stage in enumerate(plan.stages):
            for field in ("tp", "devices", "zero"):
                if getattr(stage, field) != getattr(first, field):
                    raise InfeasibleError(
                        f"stages[{number}].{field}: a checkpoint's stages are alike, and the plan "
                        f"has {getattr(stage, field)} there, not {getattr(first, field)}"
                    )
        data = first.devices // (first.tp * plan.context)
        degrees = Degrees(first.tp, len(plan.stages), data)
        sharing = max(plan.shard // plan.context, 1) if plan.shard else data
        return cls(degrees, sharing if first.zero else 1)

    def __len__(self) -> int:
        """Return the number of files."""
        return self.degrees.tensor * self.degrees.pipeline * self.writing

    def name(self, place: Place) -> str:
        """Return the name of the file that holds what a rank holds."""
        replica = place.data % self.writing
        return file_name(place.model + self.degrees.tensor * (replica + self.writing * place.pipe))

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


def stages_of_names(model: HybridModel, plan: HybridPlan) -> dict[str, int]:
    """Return the stage of each parameter by name: the first has the embedding, the last the head.

    Args:
        model: of a graph.
        plan: a plan for it.
    """
    assert model.chain is not None
    work, graph = model.chain.work, model.chain.program.graph
    names = dict(zip(graph.parameter_tensor.tolist(), graph.paths, strict=True))
    inside = within(plan, len(model))
    return {
        names[tensor].replace("/", "."): int(inside[:, label].argmax())
        for label, rows in work.weights.items()
        for tensor, _ in rows
    }


def within(plan: HybridPlan, layers: int) -> np.ndarray:
    """Return (P, layers + 2) 1 where a layer is in a stage; embedding and head are layers here."""
    result = np.zeros((len(plan.stages), layers + 2))
    for number, stage in enumerate(plan.stages):
        for first, end in stage.layers:
            result[number, first + 1 : end + 1] = 1
    result[:, 0], result[:, -1] = result[:, 1], result[:, -2]
    return result


def predicted_bytes(
    model: HybridModel, old: HybridPlan, new: HybridPlan, per_parameter: float
) -> np.ndarray:
    """Return the bytes that each file of the new plan takes of each of the old, as the formula has.

    Args:
        model: of the graph that both plans are for.
        old: plan that the checkpoint was written under.
        new: plan that it is read under.
        per_parameter: bytes of a parameter with the optimiser's state.

    Returns:
        (files, new files) by ``movement.slices``; where replicas share their states, one row, of
        what is read in all, in equal shares.
    """
    before, after = Files.of(old), Files.of(new)
    inside = (within(old, len(model)), within(new, len(model)))
    state = State.of(model, per_parameter)
    found = slices(state, before.degrees, after.degrees, inside)
    if before.writing == after.writing == 1:
        return found
    unit = [place.model + after.degrees.tensor * place.pipe for place in after.places()]
    return found.sum(axis=0, keepdims=True)[:, unit] / after.writing
