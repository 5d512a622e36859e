"""Metadata of folders of ``torch.distributed.checkpoint``: a pickle, of which nothing is run.

What is asked of it is checked before PyTorch's own objects are made, see ``parenvs.tensors``.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.tensors import Inert, Thing

FILE = ".metadata"
_LARGEST, _LARGEST_NUMBER, _MOST_DIMENSIONS = 1 << 28, 2**63 - 1, 64
_OWN = "torch.distributed.checkpoint."
_KNOWN = (
    "torch.Size", "torch.serialization._get_layout", "collections.OrderedDict", "builtins.set",
)  # fmt: skip
"""What metadata may name besides its own classes, types of numbers and paths."""
_DAMAGED = (
    struct.error, EOFError, AttributeError, ValueError, TypeError, LookupError, OverflowError,
    RecursionError, MemoryError,
)  # fmt: skip


def metadata_of(folder: str | os.PathLike[str]) -> Metadata:
    """Return what a folder holds: its tensors, and where each piece of them is.

    Args:
        folder: the folder.

    Raises:
        ParenvsError: there is no metadata, it is damaged, names what it must not, or tells of
            pieces that are not in the folder's files.
    """
    path = Path(folder) / FILE
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise ParenvsError(f"{path}: {size:,} bytes, and may have {_LARGEST:,}")
        found = _Inert(io.BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ParenvsError(
            f"{folder}: no folder of torch.distributed.checkpoint ({path}: {error.strerror})"
        ) from None
    except pickle.UnpicklingError as error:
        raise _fault(path, one_line(error)) from None
    except _DAMAGED:
        raise _fault(path, "it is damaged") from None
    state = _state(found, "Metadata")
    known, data = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(known, dict) or not isinstance(data, dict):
        raise _fault(path, "it has no tensors")
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    places = dict(_place(path, *pair, sizes) for pair in data.items())
    entries = {name: _entry(path, name, entry, places) for name, entry in known.items()}
    return Metadata(entries, storage_data=places)


class _Inert(Inert):
    """The pickle of metadata."""

    def knows(self, full: str) -> bool:
        """See ``Inert.knows``."""
        return full in _KNOWN or full.startswith((_OWN, "pathlib."))


def _fault(path: Path, words: str) -> ParenvsError:
    return ParenvsError(f"{path}: no metadata of torch.distributed.checkpoint ({words})")


def _state(thing: Any, name: str) -> dict[str, Any]:
    """The fields of a thing of a name; none if it is none."""
    is_one = isinstance(thing, Thing) and thing.name == name
    return thing.state if is_one and isinstance(thing.state, dict) else {}


def _shape(thing: Any) -> torch.Size | None:
    """A ``torch.Size``, of as many elements as a tensor can have; None if it is none."""
    given = thing.arguments if isinstance(thing, Thing) and thing.name == "Size" else ()
    if len(given) != 1 or not isinstance(given[0], tuple) or len(given[0]) > _MOST_DIMENSIONS:
        return None
    if not all(type(x) is int and 0 <= x <= _LARGEST_NUMBER for x in given[0]):
        return None
    return torch.Size(given[0]) if math.prod(given[0]) <= _LARGEST_NUMBER else None


def _place(
    path: Path, key: Any, value: Any, sizes: dict[str, int]
) -> tuple[MetadataIndex, _StorageInfo]:
    """Where a piece of a tensor, or something else of a name, is in which file."""
    index, info = _state(key, "MetadataIndex"), _state(value, "_StorageInfo")
    name, offset, number = index.get("fqn"), index.get("offset"), index.get("index")
    file, at, length = (info.get(x) for x in ("relative_path", "offset", "length"))
    corner = None if offset is None else _shape(offset)
    if (
        not isinstance(name, str)
        or (offset is not None and corner is None)
        or not (number is None or (type(number) is int and 0 <= number <= _LARGEST_NUMBER))
        or not isinstance(file, str)
        or not all(type(x) is int and x >= 0 for x in (at, length))
    ):
        raise _fault(path, "a place of a tensor is none")
    if info.get("transform_descriptors"):
        raise ParenvsError(f"{path}: {shown(name)} is compressed; write it without extensions")
    if at + length > sizes.get(file, -1):  # type: ignore[operator]
        held = f"has {sizes[file]:,} bytes" if file in sizes else "is no file of the folder"
        raise ParenvsError(
            f"{path}: {shown(name)} ends at byte {at + length:,} of {shown(file)}, which {held}"  # type: ignore[operator]
        )
    return MetadataIndex(name, corner, number), _StorageInfo(file, at, length)  # type: ignore[arg-type]


def _entry(
    path: Path, name: Any, entry: Any, places: dict[MetadataIndex, _StorageInfo]
) -> TensorStorageMetadata | BytesStorageMetadata:
    """A tensor and its pieces, all of which have a place that can hold them; or something else."""
    if not isinstance(name, str):
        raise _fault(path, "a name is no text")
    fields = _state(entry, "TensorStorageMetadata")
    if not fields:
        return BytesStorageMetadata()
    made = fields.get("properties")
    dtype = made.state[0] if isinstance(made, Thing) and isinstance(made.state, tuple) else None
    shape, listed = _shape(fields.get("size")), fields.get("chunks")
    if not isinstance(dtype, torch.dtype) or shape is None or not isinstance(listed, list):
        raise _fault(path, f"{shown(name)} is no tensor")
    chunks = []
    for one in listed:
        own = _state(one, "ChunkStorageMetadata")
        corner, extent = _shape(own.get("offsets")), _shape(own.get("sizes"))
        if corner is None or extent is None or not len(corner) == len(extent) == len(shape):
            raise _fault(path, f"{shown(name)}: a piece is none")
        place = places.get(MetadataIndex(name, corner))
        if place is None or place.length < math.prod(extent) * dtype.itemsize:
            raise ParenvsError(f"{path}: {shown(name)}: a piece {tuple(extent)} is in no file")
        if any(a + n > whole for a, n, whole in zip(corner, extent, shape, strict=True)):
            raise _fault(path, f"{shown(name)}: a piece is outside of its {tuple(shape)}")
        chunks.append(ChunkStorageMetadata(corner, extent))
    if sum(math.prod(x.sizes) for x in chunks) != math.prod(shape):
        raise ParenvsError(f"{path}: {shown(name)}: its pieces are not the whole {tuple(shape)}")
    return TensorStorageMetadata(TensorProperties(dtype), shape, chunks)
