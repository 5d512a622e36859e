"""Reads what PyTorch writes, of whose pickles nothing is run: no class is made, nothing imported.

``torch.load(weights_only=True)`` calls what it allows with a stranger's arguments, so that a file
of some bytes takes all memory or ends the process. Here an object of ours, made for this one
reading, stands for whatever class a pickle names, and keeps what it is given; tensors are made of
it once sizes are checked against the file's.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import sys
import zipfile
from typing import IO, Any, ClassVar

import numpy as np
import torch

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.files import StrPath

_Unpickler: Any = pickle._Unpickler  # the one in Python
_LARGEST_NUMBER, _DEEPEST, _BLOCK = 2**63, 64, 1 << 22
_REPEATED = 16
"""Values for each byte of a pickle, at most: what is made once can be in many places."""


class Pickled:
    """What stands for an object of a pickle.

    Attributes:
        items: key and value of each that was put into it.
    """

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    items: list[tuple[Any, Any]]

    def __new__(cls, *arguments: Any) -> Any:
        """Keep the arguments."""
        thing = super().__new__(cls)
        thing.arguments, thing.items = arguments, []
        return thing

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep an item."""
        self.items.append((key, value))


class Inert(_Unpickler):
    """Makes a ``Pickled`` of each object, without importing anything.

    The interpreter of pickles is that in Python, as that in C would hash tuples however deep, which
    ends the process, and take the memory that a number asks for.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)
    # Operations that torch.save never writes, some of which take memory or call code.
    for _code in (
        pickle.BYTEARRAY8, pickle.DICT, pickle.FROZENSET, pickle.ADDITEMS, pickle.INST, pickle.OBJ,
        pickle.PERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4,
    ):  # fmt: skip
        del dispatch[_code[0]]

    def allows(self, full: str) -> bool:
        """Return whether a pickle may name a class or function."""
        return False

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of numbers, or a new class in the place of one that may be there."""
        full = f"{module}.{name}"
        if module == "torch" and (kind := _dtype(name)) is not None:
            return kind
        if self.allows(full):
            return type("_Pickled", (Pickled,), {"name": name})
        raise pickle.UnpicklingError(f"{shown(full)} is not read")

    def load_setitem(self) -> None:
        """Put one item into a dictionary."""
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Put items into a dictionary."""
        _check_keys(self.stack[::2])
        super().load_setitems()

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def read_tensors(file: StrPath | IO[bytes]) -> Any:
    """Read what ``torch.save`` wrote: tensors, numbers and texts in dictionaries, lists and tuples.

    Only the format of archives is taken, uncompressed. Parameters become tensors, and ordered
    dictionaries plain ones; all are on the host.

    Raises:
        Exception: it is damaged, or holds something else; of many kinds.
    """
    with zipfile.ZipFile(file) as archive:
        return _Archive(archive).read()


def read_saved(path: StrPath, *names: str) -> dict[str, Any]:
    """Read a file of ours, see ``read_tensors``, which holds a dictionary of these names.

    Raises:
        ParenvsError: it is damaged, not there, or holds something else.
    """
    try:
        content = read_tensors(path)
    except Exception as error:  # of archives, pickles and torch, of many kinds
        words = one_line(error) or type(error).__name__
        raise ParenvsError(f"{os.fspath(path)}: damaged ({words}); remove it") from None
    for name in names:
        if not isinstance(content, dict) or name not in content:
            raise ParenvsError(f"{os.fspath(path)}: of another run (no {name!r}); remove it")
    return content


def check_finite(content: Any) -> None:
    """Look at every number of tensors, dictionaries, lists and tuples.

    Raises:
        ValueError: one is not finite.
    """
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list | tuple):
        for value in content:
            check_finite(value)
    elif isinstance(content, float):
        if not math.isfinite(content):
            raise ValueError(f"a number is {content}")
    elif hasattr(content, "isfinite") and not bool(content.isfinite().all()):
        raise ValueError(f"{tuple(content.shape)} numbers that are not all finite")


class _Archive:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("compressed")
        archive.fp.seek(0, os.SEEK_END)  # type: ignore[union-attr]
        # Members that overlap could claim far more memory than the file has bytes.
        if sum(member.file_size for member in members) > archive.fp.tell():  # type: ignore[union-attr]
            raise ValueError("its members are more than the file")
        self.archive, self.storages = archive, dict[str, Any]()
        names = [member.filename for member in members if member.filename.endswith("/data.pkl")]
        if len(names) != 1:
            raise ValueError("no archive of PyTorch")
        self.folder = names[0].removesuffix("data.pkl")
        order = f"{self.folder}byteorder"
        if order in archive.namelist() and archive.read(order) != sys.byteorder.encode():
            raise ValueError("numbers in another order of bytes")
        self.budget = 0

    def read(self) -> Any:
        data = self.archive.read(f"{self.folder}data.pkl")
        self.budget = _REPEATED * len(data)
        return self._value(_Saved(io.BytesIO(data)).load(), 0)

    def _value(self, value: Any, depth: int) -> Any:
        """Return a value of the pickle without things, copied so that nothing is in two places."""
        self.budget -= 1
        if self.budget < 0 or depth > _DEEPEST:
            raise ValueError("nested too deeply, or repeated too often")
        if isinstance(value, Pickled):
            if value.name != "OrderedDict":
                return self._tensor(value)
            value = dict(value.items)
        kind = type(value)
        is_integer = kind is int and abs(value) <= _LARGEST_NUMBER
        if value is None or is_integer or kind in (bool, float, str):
            return value
        if kind in (list, tuple):
            return kind(self._value(item, depth + 1) for item in value)
        if kind is dict and all(isinstance(key, str | int) for key in value):
            return {key: self._value(item, depth + 1) for key, item in value.items()}
        raise ValueError(f"{kind.__name__} is not read")

    def _tensor(self, thing: Pickled) -> torch.Tensor:
        """Return the tensor that a thing stands for; it has no more elements than its numbers."""
        args = thing.arguments
        if thing.name == "_rebuild_parameter" and args and isinstance(args[0], Pickled):
            thing, args = args[0], args[0].arguments
        if thing.name not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3") or len(args) < 6:
            raise ValueError(f"{shown(thing.name)} is no tensor")
        stored, start, size, stride = args[:4]
        dtype = args[6] if thing.name.endswith("3") and len(args) > 6 else None
        storage = self._storage(stored, dtype)
        fits = isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)
        if not fits or not all(type(x) is int and 0 <= x < 2**62 for x in (start, *size, *stride)):
            raise ValueError("a tensor without a shape")
        # The last element that the strides reach must be among the numbers.
        last = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) > len(storage) or (math.prod(size) and last >= len(storage)):
            raise ValueError(f"a tensor {shown(size)} of {len(storage)} numbers")
        if not math.prod(size):
            return torch.zeros(size, dtype=storage.dtype)
        return storage.as_strided(size, stride, start)

    def _storage(self, thing: Any, dtype: Any) -> torch.Tensor:
        """Return a storage's numbers, read from the archive once, as a type (default: its own)."""
        arguments = thing.arguments if isinstance(thing, _Storage) else ()
        tag, storage_class, key = arguments[:3] if len(arguments) == 5 else ("", None, None)
        if tag != "storage" or not isinstance(key, str):
            raise ValueError("a tensor without numbers")
        name = getattr(storage_class, "name", "")
        dtype = _dtype(name.removesuffix("Storage"), True) if dtype is None else dtype
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{shown(name)} are no numbers")
        if key not in self.storages:
            member = self.archive.getinfo(f"{self.folder}data/{key}")
            data, end = torch.zeros(member.file_size, dtype=torch.uint8), 0
            with self.archive.open(member) as stream:
                # Read to its end, as the checksum is compared there.
                while block := stream.read(_BLOCK):
                    data.numpy()[end : end + len(block)] = np.frombuffer(block, dtype=np.uint8)
                    end += len(block)
            self.storages[key] = data
        storage: torch.Tensor = self.storages[key]
        if dtype == torch.bool:
            return storage != 0  # a byte that is neither would be both
        return storage[: len(storage) // dtype.itemsize * dtype.itemsize].view(dtype)


class _Storage(Pickled):
    """The numbers of a tensor: kind, type, key, device, count."""


class _Saved(Inert):
    """The pickle of ``torch.save``."""

    def allows(self, full: str) -> bool:
        module, _, name = full.rpartition(".")
        return full in _ALLOWED or (
            module == "torch" and _dtype(name.removesuffix("Storage"), True) is not None
        )

    def persistent_load(self, pid: Any) -> Pickled:
        """Return what stands for a tensor's numbers."""
        return _Storage(*(pid if isinstance(pid, tuple) else ()))


_ALLOWED = (
    "collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch.storage.UntypedStorage",
)  # fmt: skip
"""What a file of tensors may name besides types of numbers."""
_OLD_NAMES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool", "ComplexDouble": "complex128", "ComplexFloat": "complex64",
}  # fmt: skip
"""How the classes of storages call types of numbers."""


def _dtype(name: str, old: bool = False) -> Any:
    kind = vars(torch).get(_OLD_NAMES.get(name, "") if old else name)
    return kind if isinstance(kind, torch.dtype) else None


def _check_keys(keys: list[Any]) -> None:
    """Refuse keys whose hash may never end; those of large numbers can all be one."""
    if not all(
        isinstance(key, str | Pickled) or (type(key) is int and abs(key) < 2**53) for key in keys
    ):
        raise pickle.UnpicklingError("a key is neither a text nor a place")
