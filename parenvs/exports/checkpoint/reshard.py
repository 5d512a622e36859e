"""Writes a checkpoint anew for another plan, and counts the bytes that each file of it takes.

One process does it, tensor by tensor, so that memory is that of one shard of one tensor. What is
read is compared with what the formula of the state's movement has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, shown
from parenvs.exports.checkpoint.folder import INDEX, PLAN, Checkpoint, write_index, write_part
from parenvs.exports.checkpoint.layout import (
    Box,
    Files,
    Place,
    box_of,
    predicted_bytes,
)
from parenvs.exports.torch import torch_plan
from parenvs.files import locked, replacing_folder
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph


@dataclass(frozen=True)
class Resharding:
    """What was read of a checkpoint to write it anew. F files before, G after.

    Attributes:
        old: plan that it was written under.
        new: plan that it is written for.
        read: (F, G) bytes of tensors that each new file took of each old one.
        predicted: (F, G) the same by the formula; (1, G) where replicas share their states.
        tenplex_bytes: all bytes that Tenplex's way fetches, each replica its own.
    """

    old: Plan
    new: Plan
    read: np.ndarray
    predicted: np.ndarray
    tenplex_bytes: float

    @property
    def agrees(self) -> bool:
        """Whether the bytes read are those predicted."""
        read = self.read if len(self.predicted) == len(self.read) else self.read.sum(0)[None]
        return bool(np.allclose(read, self.predicted, rtol=1e-9, atol=0.5))

    @property
    def by_rank(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that each rank of the new plan has to read, (ranks,), counted and predicted."""
        files, degrees = Files.of(self.new), Files.of(self.new).degrees
        numbers = [
            position.model
            + degrees.tensor * (position.data % files.writing + files.writing * position.pipe)
            for pipe in range(degrees.pipeline)
            for data in range(degrees.data)
            for model in range(degrees.tensor)
            for position in (Place(pipe, data, model),)
        ]
        return self.read.sum(axis=0)[numbers], self.predicted.sum(axis=0)[numbers]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as an object of JSON types."""
        read, predicted = self.by_rank
        return {
            "old": Files.of(self.old).degrees._asdict(),
            "new": Files.of(self.new).degrees._asdict(),
            "read_bytes": self.read.tolist(),
            "predicted_bytes": self.predicted.tolist(),
            "rank_bytes": read.tolist(),
            "rank_predicted_bytes": predicted.tolist(),
            "tenplex_bytes": self.tenplex_bytes,
            "agrees": self.agrees,
        }

    def text(self) -> str:
        """Return the counts as lines of text."""
        old, new = Files.of(self.old), Files.of(self.new)
        read, predicted = self.by_rank
        lines = [
            f"{old.degrees} in {_counted(len(old))} -> {new.degrees} in {_counted(len(new))}",
            *(
                f"rank {rank}: {int(a):,} bytes read, {round(b):,} predicted"
                for rank, (a, b) in enumerate(zip(read, predicted, strict=True))
            ),
            f"in all {int(read.sum()):,}, {round(predicted.sum()):,} predicted",
        ]
        return "\n".join(lines)


def reshard(
    checkpoint: str | os.PathLike[str],
    new: Plan,
    old: Plan | None = None,
    out: str | os.PathLike[str] | None = None,
    graph: Graph | None = None,
) -> Resharding:
    """Write a checkpoint anew for another plan; a kill leaves the old one or the new one, whole.

    Args:
        checkpoint: folder of the checkpoint.
        new: a plan for the same model, of a task with checkpoints.
        old: the plan that it should be of (default: whichever it is of).
        out: folder to write (default: the checkpoint itself is replaced).
        graph: the graph that the plans were made for (default: the new plan's instance).

    Raises:
        ParenvsError: the checkpoint is of another plan or model, is not whole, or a plan is not one
            that PyTorch runs.
    """
    target = Path(checkpoint if out is None else out)
    if out is not None and target.exists() and not (target / INDEX).is_file():
        raise ParenvsError(f"{target}: is there and no checkpoint; give another folder")
    with locked(target, beside=True):
        source = Checkpoint(checkpoint)
        if old is not None:
            require_same_plan(source, old)
        files = Files.of(new)
        if new.fingerprint != source.plan.fingerprint:
            raise ParenvsError(
                f"{checkpoint}: of another model ({source.plan.instance}, "
                f"{source.plan.fingerprint[:19]}) than the plan ({new.instance}, "
                f"{new.fingerprint[:19]}); plan the model that was trained"
            )
        graph = load_graph(new.instance) if graph is None else graph
        written, tensors = torch_plan(new, graph), source.head.tensors
        for name, shape in written.shapes.items():
            if name not in tensors or tensors[name].shape != shape:
                found = tensors[name].shape if name in tensors else "not there"
                raise ParenvsError(
                    f"{source.folder}: {shown(name)} is {found}, and the plan has {shape}; "
                    "plan the model that was trained"
                )
        stages: dict[str, int] = files.shards.stages(graph)
        for name in tensors:
            if name not in stages:
                raise ParenvsError(f"{source.folder}: {shown(name)} is no weight of the plan's")
        per_parameter = {x.bytes for x in tensors.values()}
        source.verify()
        read, parts = np.zeros((len(source.parts), len(files)), dtype=np.int64), []
        with replacing_folder(target) as folder:
            for number, place in enumerate(files.places()):
                source.read.clear()
                boxes = {
                    name: box_of(written, name, tensors[name].shape, place)
                    for name in tensors
                    if stages[name] == place.pipe
                }

                def give(name: str, kind: str, box: Box, place: Place = place) -> np.ndarray:
                    return source.box(name, kind, box, place, written.model)

                parts.append(write_part(folder, number, boxes, tensors, give))
                for row, count in source.read.items():
                    read[row, number] = count
            write_index(folder, new, source.head, parts)
    each = max(per_parameter)  # frozen weights have no optimiser state: then the formula differs
    return Resharding(
        source.plan, new, read, predicted_bytes(source.files, files, graph, each),
        files.shards.fetched_from(source.files.shards, graph, each),
    )  # fmt: skip


def require_same_plan(checkpoint: Checkpoint, plan: Plan) -> None:
    """Refuse a checkpoint that was written under another plan.

    Raises:
        ParenvsError: it was; the line names the first field that differs.
    """
    own, given = checkpoint.plan.to_json(), plan.to_json()
    for field in dict.fromkeys((*own, *given)):
        if own.get(field) != given.get(field):
            raise ParenvsError(
                f"{checkpoint.folder}: not of the plan given, as field {field!r} differs; its plan "
                f"is {checkpoint.folder / PLAN}"
            )


def _counted(files: int) -> str:
    """A number of files in words."""
    return f"{files} file{'s' if files > 1 else ''}"
