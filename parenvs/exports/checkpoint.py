"""The folder of a checkpoint: ``plan.json``, ``index.json`` and files of raw numbers.

Nothing in it is an object of Python, and nothing is unpickled: PyTorch's own distributed
checkpoints keep their metadata as a pickle, which runs what a stranger wrote. The index has name,
shape and type of every tensor, and of every file its SHA-256 and the slices in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.core.plan import Plan, load_plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, shown
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.fields import Count, Index, Text, one_of, read, whole, words
from parenvs.files import StrPath, locked, read_object, replacing_folder, write_text
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph
from parenvs.view.words import plural

Box = tuple[tuple[int, int], ...]
"""Half-open range of a slice in each dimension of a tensor."""


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

    def number(self, place: Place) -> int:
        """Return the number of the file that holds what a rank holds."""
        replica = place.data % self.writing + self.writing * place.pipe
        return int(place.model + self.degrees.tensor * replica)

    def ranks(self) -> list[Place]:
        """Return where each rank of the plan is in the mesh."""
        shape = (self.degrees.pipeline, self.degrees.data, self.degrees.tensor)
        return list(starmap(Place, np.ndindex(shape)))

    def places(self) -> list[Place]:
        """Return the places of the ranks that write a file, in the order of the files."""
        # Of replicas that hold the same, the first writes.
        return [place for place in self.ranks() if place.data < self.writing]


def file_name(number: int) -> str:
    """Return the name of a checkpoint's file by number."""
    return f"part-{number:05d}.bin"


def box_of(plan: TorchPlan, name: str, shape: tuple[int, ...], place: Place) -> Box:
    """Return the slice of a parameter that a rank holds, as ``Parallel`` places it."""
    box = [(0, size) for size in shape]
    by_data, by_model = plan.placements.get(name, (None, None))
    if by_model is not None:
        box[by_model] = _chunk(box[by_model], plan.model, place.model)
    if plan.zero:  # fully_shard: rows of what the tp rank has
        by_data = 0
    if by_data is not None:
        box[by_data] = _chunk(box[by_data], plan.data, place.data)
    return tuple(box)


def rank_boxes(
    plan: TorchPlan, files: Files, places: list[Place], tensors: Mapping[str, Tensor], graph: Graph
) -> list[dict[str, Box]]:
    """Return for each place the slice of each tensor that its rank holds.

    Raises:
        ParenvsError: the plan's graph has no such weight.
    """
    stages = files.shards.stages(graph)
    for name in tensors:
        if name not in stages:
            raise ParenvsError(f"{shown(name)} is no weight of the plan's")
    return [
        {
            name: box_of(plan, name, x.shape, place)
            for name, x in tensors.items()
            if stages[name] == place.pipe
        }
        for place in places
    ]


def check_shape(where: object, name: str, stored: Any, shape: tuple[int, ...], whose: str) -> None:
    """Refuse a shape that is None, as the tensor is not there, or not that of a module or plan."""
    if stored is None or tuple(stored) != shape:
        raise ParenvsError(
            f"{where}: {shown(name)} is {'not there' if stored is None else tuple(stored)}, and "
            f"{whose} has {shape}; give the model that was trained"
        )


def _chunk(interval: tuple[int, int], ranks: int, rank: int) -> tuple[int, int]:
    start, end = interval
    # As torch.chunk: parts of equal size, rounded up, so that the last ones may be empty.
    length = -(-(end - start) // ranks)
    return min(start + length * rank, end), min(start + length * (rank + 1), end)


def sizes(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(end - start for start, end in box)


def elements(box: Box) -> int:
    """Return the number of elements in a box."""
    return math.prod(sizes(box))


def common(box: Box, other: Box) -> Box:
    """Return the intersection of two boxes; it may be empty."""
    return tuple(
        (max(a, c), max(min(b, d), max(a, c))) for (a, b), (c, d) in zip(box, other, strict=True)
    )


def inside(box: Box, whole: Box) -> tuple[slice, ...]:
    """Return the slices of an array, the box ``whole``, that are another box in it."""
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, whole, strict=True))


def predicted_bytes(old: Files, new: Files, graph: Graph, per_parameter: float) -> Array:
    """Return the bytes that each file of the new plan takes of each of the old, as the formula has.

    Args:
        old: files of the plan that the checkpoint was written under.
        new: files of the plan that it is read under.
        graph: that both plans are for.
        per_parameter: bytes of a parameter with the optimizer's state.

    Returns:
        (files, new files); where replicas share their states, one row, of what is read in all, in
        equal shares.
    """
    needed: Array = new.shards.read_from(old.shards, graph, per_parameter)
    if old.writing == new.writing == 1:
        return needed
    # Replicas that share states each read an equal share of what their unit needs.
    unit = [position.model + new.degrees.tensor * position.pipe for position in new.places()]
    return needed.sum(axis=0, keepdims=True)[:, unit] / new.writing


PLAN, INDEX, SCHEMA = "plan.json", "index.json", 1
PARAMETER = "parameter"
"""Kind of the parameters themselves; other kinds are the optimizer's."""
ITEM = {
    "bool": 1, "uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "int16": 2, "float32": 4,
    "int32": 4, "float64": 8, "int64": 8,
}  # fmt: skip
"""Type of numbers -> bytes of one."""
_LARGEST_INDEX = 1 << 28
_LARGEST = 2**63 - 1
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Tensor:
    """A parameter and what the optimizer keeps of it.

    Attributes:
        kinds: kind -> type of its numbers; ``"parameter"`` and the optimizer's, of one shape.
    """

    shape: tuple[Count, ...]
    kinds: dict[str, Annotated[str, one_of(*ITEM)]]
    scalars: dict[str, int | Annotated[float, words("a number", ge=-1e308, le=1e308)]]

    def __post_init__(self) -> None:
        """Refuse what has no parameter."""
        if PARAMETER not in self.kinds:
            raise ParenvsError(f"field 'kinds' must have {PARAMETER!r}")

    @property
    def bytes(self) -> int:
        """Bytes of an element of all kinds together."""
        return sum(ITEM[kind] for kind in self.kinds.values())


Slice = tuple[str, str, tuple[Index, ...], tuple[Count, ...], int]
"""Name and kind of a tensor, start and size of a box of it, and its byte offset in the file."""


@dataclass(frozen=True)
class Part:
    """What the index says of a file; each slice begins where the one before it ends."""

    bytes: Annotated[int, whole(0, _LARGEST)]
    sha256: Text
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Head:
    """What the index says of the whole.

    Attributes:
        groups: its options, of each group of parameters.
        stream: state of the order of samples, if one was saved.
    """

    steps: Annotated[int, whole(0, _LARGEST)]
    optimizer: Text
    groups: list[dict[str, Any]]
    tensors: Annotated[dict[str, Tensor], words("an object of tensors by name", min_length=1)]
    stream: dict[str, Any] | None = None


Give = Callable[[str, str, Box], Array]
"""Gives a box of a tensor by name and kind, as whole numbers of the same width."""


def write_part(
    folder: Path, number: int, boxes: Mapping[str, Box], tensors: Mapping[str, Tensor], give: Give
) -> Part:
    """Write a file of a checkpoint, tensor by tensor.

    Args:
        folder: the folder.
        number: of the file.
        boxes: name of each tensor in it -> its box.
        tensors: all tensors.
        give: the numbers.
    """
    digest, offset = hashlib.sha256(), 0
    slices: list[Slice] = []
    with (folder / file_name(number)).open("wb") as stream:
        for name, box in boxes.items():
            for kind in tensors[name].kinds if elements(box) else ():
                numbers = np.ascontiguousarray(give(name, kind, box)).reshape(-1)
                data = numbers.view(np.uint8).data
                stream.write(data)
                digest.update(data)
                slices.append((name, kind, tuple(a for a, _ in box), sizes(box), offset))
                offset += len(data)
    return Part(offset, digest.hexdigest(), tuple(slices))


def write_index(folder: Path, plan: Plan, head: Head, parts: Iterable[Part]) -> None:
    """Write plan and index of a checkpoint whose files are there."""
    plan.save(folder / PLAN)
    content = {"schema": SCHEMA, "fingerprint": plan.fingerprint, **asdict(head)}
    content["files"] = [asdict(part) for part in parts]
    if head.stream is None:
        del content["stream"]
    write_text(folder / INDEX, json.dumps(content, allow_nan=False) + "\n")


class Checkpoint:
    """A checkpoint that is read; all of its index is checked first.

    Attributes:
        head: what the index says of the whole.
        read: file's number -> bytes of tensors read from it so far.

    Raises:
        ParenvsError: plan or index are missing or wrong, or a file is missing or has another size.
    """

    def __init__(self, folder: StrPath) -> None:
        self.folder, self.where = Path(folder), str(Path(folder))  # the latter for errors
        where = str(self.folder / INDEX)
        if not (self.folder / INDEX).is_file():
            raise ParenvsError(
                f"{folder}: no checkpoint, as it has no {INDEX}; write one by "
                "parenvs.exports.state.save"
            )
        plan = load_plan(self.folder / PLAN)
        self.plan, self.files = plan, Files.of(plan, self.folder / PLAN)
        index = read(_Index, read_object(where, SCHEMA, most_bytes=_LARGEST_INDEX), where)
        if index.fingerprint != plan.fingerprint:
            raise ParenvsError(f"{where}: field 'fingerprint': of another model than {PLAN}")
        self.head = Head(*(getattr(index, field.name) for field in fields(Head)))
        self.parts = index.files
        _check_slices(self.parts, index.tensors, where)
        if len(self.parts) != len(self.files):
            raise ParenvsError(
                f"{where}: field 'files': {len(self.parts)} files, and {PLAN} ({self.files.degrees}"
                f") has {len(self.files)}; the checkpoint is of another plan"
            )
        self._files_of: dict[tuple[str, str], dict[Box, list[tuple[int, int]]]] = defaultdict(dict)
        for number, part in enumerate(self.parts):
            path = self.folder / file_name(number)
            if not path.is_file():
                raise ParenvsError(f"{path}: missing; the checkpoint has {len(self.parts)} files")
            if path.stat().st_size != part.bytes:
                raise ParenvsError(
                    f"{path}: {path.stat().st_size:,} bytes, and {INDEX} says {part.bytes:,}; "
                    "write the checkpoint anew"
                )
            for name, kind, start, size, offset in part.slices:
                box = tuple((a, a + n) for a, n in zip(start, size, strict=True))
                self._files_of[name, kind].setdefault(box, []).append((number, offset))
        for name, tensor in self.head.tensors.items():
            for kind in tensor.kinds:
                stored = sum(map(elements, self._files_of[name, kind]))
                if stored != math.prod(tensor.shape):
                    raise ParenvsError(
                        f"{where}: {shown(name)} ({kind}): slices of {stored:,} elements, "
                        f"and it has {math.prod(tensor.shape):,}"
                    )
        self.read: Counter[int] = Counter()

    def verify(self, numbers: Iterable[int] | None = None) -> None:
        """Check the SHA-256 of files (default: all).

        Raises:
            ParenvsError: a file has other bytes than the index says.
        """
        for number in range(len(self.parts)) if numbers is None else numbers:
            path, digest = self.folder / file_name(number), hashlib.sha256()
            with path.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
            if digest.hexdigest() != self.parts[number].sha256:
                raise ParenvsError(
                    f"{path}: its SHA-256 is not that of {INDEX}; write the checkpoint anew"
                )

    def box(self, name: str, kind: str, box: Box, place: Place, ranks: int) -> Array:
        """Read a box of a tensor; nothing else is read. Of equal slices, the nearest one is.

        Args:
            name: of the tensor.
            kind: ``"parameter"``, or one of the optimizer's.
            box: what is wanted.
            place: of the rank that reads.
            ranks: tp ranks of its plan: rank t of these takes copy ``t copies // ranks``, which is
                of the first old shard that overlaps its own.

        Returns:
            whole numbers of the width of the tensor's type.
        """
        item_bytes = ITEM[self.head.tensors[name].kinds[kind]]
        result = np.zeros(sizes(box), f"i{item_bytes}")
        filled = 0
        for stored, copies in self._files_of[name, kind].items():
            overlap = common(stored, box)
            if elements(overlap):
                # Of equal slices in several files the one of the nearest tp rank is read.
                number, offset = copies[place.model * len(copies) // ranks]
                path = self.folder / file_name(number)
                try:
                    file = np.memmap(path, result.dtype, "r", offset, sizes(stored))
                except ValueError:
                    raise ParenvsError(f"{path}: ends too early") from None
                result[inside(overlap, box)] = file[inside(overlap, stored)]
                self.read[number] += item_bytes * elements(overlap)
                filled += elements(overlap)
        if filled != elements(box):
            raise ParenvsError(
                f"{self.folder / INDEX}: {shown(name)} ({kind}): its slices overlap or leave gaps"
            )
        return result


@dataclass(frozen=True, kw_only=True)
class _Index(Head):
    fingerprint: str
    files: tuple[Part, ...]


def _check_slices(files: Iterable[Part], tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse slices that are not of a tensor, or not each behind the one before it."""
    for number, file in enumerate(files):
        end = 0
        for entry in file.slices:
            name, kind, start, size, offset = entry
            tensor = tensors.get(name)
            if (
                tensor is None
                or kind not in tensor.kinds
                or offset != end
                or not len(start) == len(size) == len(tensor.shape)
                or any(a + n > whole for a, n, whole in zip(start, size, tensor.shape, strict=True))
            ):
                raise ParenvsError(
                    f"{where}: files[{number}]: {shown(entry)} is no slice [name, kind, start, "
                    "size, at] of a tensor behind the one before it"
                )
            end += math.prod(size) * ITEM[tensor.kinds[kind]]
        if end != file.bytes:
            words = f"field 'bytes' is {file.bytes}, and its slices have {end}"
            raise ParenvsError(f"{where}: files[{number}]: {words}")


@dataclass(frozen=True)
class Resharding:
    """What was read of a checkpoint to write it anew. F files before, G after.

    Attributes:
        read: (F, G) bytes of tensors that each new file took of each old one.
        predicted: (F, G) the same by the formula; (1, G) where replicas share their states.
        tenplex_bytes: all bytes that Tenplex's way fetches, each replica its own.
    """

    old: Plan
    new: Plan
    read: Array
    predicted: Array
    tenplex_bytes: float

    @property
    def agrees(self) -> bool:
        """Whether the bytes read are those predicted."""
        read = self.read if len(self.predicted) == len(self.read) else self.read.sum(0)[None]
        return bool(np.allclose(read, self.predicted, rtol=1e-9, atol=0.5))

    @property
    def by_rank(self) -> tuple[Array, Array]:
        """Bytes that each rank of the new plan has to read, (ranks,), counted and predicted."""
        files = Files.of(self.new)
        numbers = list(map(files.number, files.ranks()))
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
        files = [f"{x.degrees} in {plural(len(x), 'file')}" for x in (old, new)]
        ranks = [
            f"rank {rank}: {int(a):,} bytes read, {round(b):,} predicted"
            for rank, (a, b) in enumerate(zip(read, predicted, strict=True))
        ]
        total = f"in all {int(read.sum()):,}, {round(predicted.sum()):,} predicted"
        return "\n".join([" -> ".join(files), *ranks, total])


def reshard(
    checkpoint: StrPath,
    new: Plan,
    old: Plan | None = None,
    out: StrPath | None = None,
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
            stored_plan, wanted = source.plan.to_json(), old.to_json()
            for field in dict.fromkeys((*stored_plan, *wanted)):
                if stored_plan.get(field) != wanted.get(field):
                    raise ParenvsError(
                        f"{source.folder}: not of the plan given, as field {field!r} differs; its "
                        f"plan is {source.folder / PLAN}"
                    )
        files = Files.of(new)
        if new.fingerprint != source.plan.fingerprint:
            raise ParenvsError(
                f"{checkpoint}: of another model ({source.plan.instance}, "
                f"{source.plan.fingerprint[:19]}) than the plan ({new.instance}, "
                f"{new.fingerprint[:19]}); plan the model that was trained"
            )
        graph = load_graph(new.instance) if graph is None else graph
        exported, tensors = torch_plan(new, graph), source.head.tensors
        for name, shape in exported.shapes.items():
            stored = tensors.get(name)
            check_shape(source.folder, name, stored and stored.shape, shape, "the plan")
        boxes = rank_boxes(exported, files, files.places(), tensors, graph)
        # All is checked before the first byte is written.
        source.verify()
        read, parts = np.zeros((len(source.parts), len(files)), np.int64), []
        with replacing_folder(target) as folder:
            for number, place in enumerate(files.places()):
                source.read.clear()
                give = partial(source.box, place=place, ranks=exported.model)
                parts.append(write_part(folder, number, boxes[number], tensors, give))
                read[list(source.read), number] = list(source.read.values())
            write_index(folder, new, source.head, parts)
    # Frozen weights have no optimizer state: then the formula differs.
    item_bytes = max(x.bytes for x in tensors.values())
    return Resharding(
        source.plan, new, read, predicted_bytes(source.files, files, graph, item_bytes),
        files.shards.fetched_from(source.files.shards, graph, item_bytes),
    )  # fmt: skip
