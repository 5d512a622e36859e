"""Folders of ``torch.distributed.checkpoint``, written and read under any plan (extra ``torch``).

Tensors have the names that ``torch.distributed.checkpoint.state_dict`` gives them: ``model.NAME``
and ``optimizer.state.NAME.KIND``. Of the folder's pickles nothing is run, see ``metadata`` and
``parenvs.tensors``.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.futures import Future

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.exports.checkpoint import check_shape
from parenvs.exports.parallel import Parallel
from parenvs.exports.state import check_groups, groups_of, jointly, parameters_of, set_groups
from parenvs.exports.stream import Stream
from parenvs.files import StrPath
from parenvs.tensors import Inert, Pickled, read_tensors

FILE = ".metadata"
_LARGEST, _LARGEST_NUMBER, _MOST_DIMENSIONS = 1 << 28, 2**63 - 1, 64
_OWN = "torch.distributed.checkpoint."
# What metadata may name besides its own classes, types of numbers and paths.
_ALLOWED = (
    "torch.Size", "torch.serialization._get_layout", "collections.OrderedDict", "builtins.set",
)  # fmt: skip
_ERRORS = (
    struct.error, EOFError, AttributeError, ValueError, TypeError, LookupError, OverflowError,
    RecursionError, MemoryError,
)  # fmt: skip


def metadata_of(folder: StrPath) -> Metadata:
    """Return what a folder holds: its tensors, and where each piece of them is.

    Raises:
        ParenvsError: there is no metadata, it is damaged, names what it must not, or tells of
            pieces that are not in the folder's files.
    """
    path = Path(folder) / FILE
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise ParenvsError(f"{path}: {size:,} bytes, and may have {_LARGEST:,}")
        result = _Inert(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ParenvsError(
            f"{folder}: no folder of torch.distributed.checkpoint ({path}: {error.strerror})"
        ) from None
    except pickle.UnpicklingError as error:
        raise _damaged(path, one_line(error)) from None
    except _ERRORS:
        raise _damaged(path, "it is damaged") from None
    state = _fields(result, "Metadata")
    described, data = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(described, dict) or not isinstance(data, dict):
        raise _damaged(path, "it has no tensors")
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    locations = dict(_location(path, *pair, sizes) for pair in data.items())
    entries = {name: _entry(path, name, entry, locations) for name, entry in described.items()}
    return Metadata(entries, storage_data=locations)


class _Inert(Inert):
    def allows(self, full: str) -> bool:
        return full in _ALLOWED or full.startswith((_OWN, "pathlib."))


def _damaged(path: Path, words: str) -> ParenvsError:
    return ParenvsError(f"{path}: no metadata of torch.distributed.checkpoint ({words})")


def _fields(thing: Any, name: str) -> dict[str, Any]:
    is_named = isinstance(thing, Pickled) and thing.name == name
    return thing.state if is_named and isinstance(thing.state, dict) else {}


def _shape(thing: Any) -> torch.Size | None:
    arguments = thing.arguments if isinstance(thing, Pickled) and thing.name == "Size" else ()
    size = arguments[0] if len(arguments) == 1 else None
    if not isinstance(size, tuple) or len(size) > _MOST_DIMENSIONS:
        return None
    if not all(type(x) is int and 0 <= x <= _LARGEST_NUMBER for x in size):
        return None
    return torch.Size(size) if math.prod(size) <= _LARGEST_NUMBER else None


def _location(
    path: Path, key: Any, value: Any, sizes: dict[str, int]
) -> tuple[MetadataIndex, _StorageInfo]:
    """Check which bytes of which file hold a piece of a tensor, and return both."""
    index, info = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
    name, offset, number = index.get("fqn"), index.get("offset"), index.get("index")
    file, start, length = (info.get(x) for x in ("relative_path", "offset", "length"))
    corner = None if offset is None else _shape(offset)
    if (
        not isinstance(name, str)
        or (offset is not None and corner is None)
        or not (number is None or (type(number) is int and 0 <= number <= _LARGEST_NUMBER))
        or not isinstance(file, str)
        or not all(type(x) is int and x >= 0 for x in (start, length))
    ):
        raise _damaged(path, "a place of a tensor is none")
    if info.get("transform_descriptors"):
        raise ParenvsError(f"{path}: {shown(name)} is compressed; write it without extensions")
    if start + length > sizes.get(file, -1):  # type: ignore[operator]
        fault = f"has {sizes[file]:,} bytes" if file in sizes else "is no file of the folder"
        raise ParenvsError(
            f"{path}: {shown(name)} ends at byte {start + length:,} of {shown(file)}, which {fault}"  # type: ignore[operator]
        )
    return MetadataIndex(name, corner, number), _StorageInfo(file, start, length)  # type: ignore[arg-type]


def _entry(
    path: Path, name: Any, entry: Any, locations: dict[MetadataIndex, _StorageInfo]
) -> TensorStorageMetadata | BytesStorageMetadata:
    """Check that pieces in files make up a tensor, and return its metadata."""
    if not isinstance(name, str):
        raise _damaged(path, "a name is no text")
    fields = _fields(entry, "TensorStorageMetadata")
    if not fields:
        return BytesStorageMetadata()
    properties = fields.get("properties")
    stored = properties.state if isinstance(properties, Pickled) else None
    dtype = stored[0] if isinstance(stored, tuple) else None
    shape, listed = _shape(fields.get("size")), fields.get("chunks")
    if not isinstance(dtype, torch.dtype) or shape is None or not isinstance(listed, list):
        raise _damaged(path, f"{shown(name)} is no tensor")
    chunks = []
    for item in listed:
        chunk = _fields(item, "ChunkStorageMetadata")
        corner, extent = _shape(chunk.get("offsets")), _shape(chunk.get("sizes"))
        if corner is None or extent is None or not len(corner) == len(extent) == len(shape):
            raise _damaged(path, f"{shown(name)}: a piece is none")
        location = locations.get(MetadataIndex(name, corner))
        if location is None or location.length < math.prod(extent) * dtype.itemsize:
            raise ParenvsError(f"{path}: {shown(name)}: a piece {tuple(extent)} is in no file")
        if any(a + n > whole for a, n, whole in zip(corner, extent, shape, strict=True)):
            raise _damaged(path, f"{shown(name)}: a piece is outside of its {tuple(shape)}")
        chunks.append(ChunkStorageMetadata(corner, extent))
    if sum(math.prod(x.sizes) for x in chunks) != math.prod(shape):
        raise ParenvsError(f"{path}: {shown(name)}: its pieces are not the whole {tuple(shape)}")
    return TensorStorageMetadata(TensorProperties(dtype), shape, chunks)


MODEL, STATE, OWN = "model", "optimizer.state", "parenvs"
"""Beginnings of names: parameters, what the optimizer keeps of them, and ours."""
GROUPS, MOST_BYTES = f"{OWN}.groups", 10**7
"""Name of the options of groups of parameters, in JSON of so many bytes at most."""


def export(
    folder: StrPath,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    steps: int = 0,
    stream: Stream | None = None,
) -> None:
    """Write a folder of ``torch.distributed.checkpoint``; every process of the group calls it.

    Parameters and the optimizer's tensors are in it, and, as ``parenvs.steps`` and
    ``parenvs.stream.*``, what a job needs to go on; as ``parenvs.groups`` options of groups, such
    as learning rates, in JSON.
    """
    state = {f"{MODEL}.{name}": x.detach() for name, x in parameters_of(parallel)}
    for name, parameter in parameters_of(parallel):
        for kind, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                state[f"{STATE}.{name}.{kind}"] = torch.as_tensor(value)
    position = stream.state_dict() if stream else {}
    state[f"{OWN}.steps"] = torch.tensor(steps)
    state[GROUPS] = torch.tensor(list(json.dumps(groups_of(optimizer)).encode()), dtype=torch.uint8)
    state |= {f"{OWN}.stream.{key}": torch.tensor(int(x)) for key, x in position.items()}
    dcp.save(state, checkpoint_id=folder)


def load(
    folder: StrPath,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    stream: Stream | None = None,
) -> int:
    """Read such a folder, also another program's; every process of the group calls it.

    Args:
        folder: the folder.
        parallel: the module.
        optimizer: of its parameters; if the folder has no state of it, it begins anew. Of another
            program's folder it keeps its own learning rates, and a warning says so.
        stream: the order of samples, which goes on where the folder was written.

    Returns:
        Steps that were trained; 0 if the folder does not tell.

    Raises:
        ParenvsError: no such folder, or one with another model, or without the position of a stream
            that is wanted, or a damaged one, of which parameters may have been read by then; all
            processes raise.
    """

    class Reader(dcp.FileSystemReader):
        def read_metadata(self, *given: Any, **named: Any) -> Metadata:
            return replace(metadata, storage_meta=StorageMeta(load_id=self.load_id))

        def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
            for item in plan.items:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_read_piece(Path(folder), metadata, item))
                planner.commit_tensor(item, target)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def read_state() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        entries = metadata.state_dict_metadata.items()
        stored = {name: x for name, x in entries if isinstance(x, TensorStorageMetadata)}
        state: dict[str, torch.Tensor] = {}
        for name, parameter in parameters_of(parallel):
            # Other programs save a module's state alone, without the prefix.
            key = f"{MODEL}.{name}" if f"{MODEL}.{name}" in stored else name
            entry = stored.get(key)
            shape = tuple(parameter.shape)
            check_shape(folder, name, entry and entry.size, shape, "the module")
            state[key] = parameter.detach()
            prefix = f"{STATE}.{name}."
            kinds: dict[str, torch.Tensor] = {}
            for full in (x for x in stored if x.startswith(prefix)):
                kind, entry = full.removeprefix(prefix), stored[full]
                if "." not in kind:
                    same_shape = entry.size == parameter.shape
                    like = parameter.detach() if same_shape else torch.empty(entry.size)
                    state[full] = kinds[kind] = torch.zeros_like(like, dtype=entry.properties.dtype)
            if kinds:
                state_of[parameter] = kinds
        own = {key: entry for key, entry in stored.items() if key.startswith(f"{OWN}.")}
        for key, entry in own.items():
            if len(entry.size) != (key == GROUPS) or math.prod(entry.size) > MOST_BYTES:
                raise ParenvsError(f"{folder}: {shown(key)} is no number")
        numbers = {key: torch.zeros(x.size, dtype=x.properties.dtype) for key, x in own.items()}
        if stream is not None and not any(x.startswith(f"{OWN}.stream.") for x in numbers):
            raise ParenvsError(f"{folder}: has no position in a stream of samples")
        return state, numbers

    state_of: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    metadata: Metadata = jointly(lambda: metadata_of(folder))
    state, numbers = jointly(read_state)
    try:
        with torch.no_grad():
            load_state({**state, **numbers}, storage_reader=Reader(folder))
    except CheckpointException as error:  # raised in all processes
        rank, (cause, _) = next(iter(error.failures.items()))
        raise ParenvsError(
            f"{folder}: damaged (process {rank}: {one_line(Exception(cause))})"
        ) from None
    groups = None
    if GROUPS in numbers:
        groups = jointly(lambda: _groups(folder, optimizer, numbers[GROUPS]))
    if stream is not None:
        prefix = f"{OWN}.stream."
        position: dict[str, Any] = {
            key.removeprefix(prefix): int(x) for key, x in numbers.items() if key.startswith(prefix)
        }
        if "shuffle" in position:
            position["shuffle"] = bool(position["shuffle"])
        stream.load_state_dict(position)
    if groups is not None:
        set_groups(optimizer, groups)
    elif state_of:
        warnings.warn(f"{folder}: has no learning rates; those of the optimizer stay", stacklevel=2)
    optimizer.state.update(state_of)
    return int(numbers.get(f"{OWN}.steps", torch.tensor(0)))


def _groups(
    folder: StrPath, optimizer: torch.optim.Optimizer, values: torch.Tensor
) -> list[dict[str, Any]]:
    try:
        groups = msgspec.json.decode(bytes(values.tolist()), type=list[dict[str, Any]])
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        raise ParenvsError(f"{folder}: {GROUPS} is no JSON of groups of parameters") from None
    check_groups(folder, optimizer, groups)
    return groups


def _read_piece(folder: Path, metadata: Metadata, item: ReadItem) -> torch.Tensor:
    location = metadata.storage_data[item.storage_index]
    with (folder / location.relative_path).open("rb") as stream:
        stream.seek(location.offset)
        result = read_tensors(io.BytesIO(stream.read(location.length)))
    entry = metadata.state_dict_metadata[item.storage_index.fqn]
    chunks = entry.chunks if isinstance(entry, TensorStorageMetadata) else []
    extent = next(x.sizes for x in chunks if x.offsets == item.storage_index.offset)
    if not isinstance(result, torch.Tensor) or result.shape != extent:
        raise ValueError(f"{shown(item.storage_index.fqn)}: a piece is not of {tuple(extent)}")
    corner = zip(item.storage_offsets, item.lengths, strict=True)
    return result[tuple(slice(a, a + n) for a, n in corner)]
