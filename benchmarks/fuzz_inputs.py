"""Changes of valid files, for ``fuzz.py``: of bytes, words and numbers, and of a file's own parts.

Changes of parts keep the rest of a file valid (fields of a protobuf message, values of JSON, cells
of CSV, elements of the arrays in a ``.npz``), so that they are not all refused at the first check.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import pickletools
import random
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from parenvs.graph.checks import UNREADABLE
from parenvs.graph.opcodes import OPCODES, PARTITIONED
from parenvs.graph.proto import Module

NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "255", "65536", "2147483647", "2147483648", "1099511627776",
    "4611686018427387904", "9223372036854775808", "18446744073709551616", "1e-320", "1e308",
    "1e400", "nan", "0.5", '""', "[]", "null",
)  # fmt: skip
"""What takes the place of a number in a text."""
WHOLE = (-(2**63), -(2**31), -8, -2, -1, 0, 1, 2, 3, 4, 5, 8, 2**31 - 1, 2**40, 2**62, 2**63 - 1)
"""What takes the place of a whole number in a message or an array."""
VALUES = (
    None, True, False, -1, 0, 1, 2, 3, 0.5, -0.0, 5e-324, 1e308, 2**31, 2**53 + 1, 2**64, 10**400,
    float("nan"), float("inf"), "", "0", "x" * 9, "x" * 5000, "\x1b[31m", "\u202egnp", "a\nb",
    "\ud800", [], {}, [[]], {"": {}}, [0] * 2000,
)  # fmt: skip
"""What takes the place of a value of JSON."""
WORDS = ("", "x", "\x1b[31m", "\u202egnp", "a\nb", "a__b____b__" * 40, "__0___1__", "9" * 400)
DAMAGED = (
    zipfile.BadZipFile, zlib.error, IndexError, NotImplementedError, RuntimeError, ValueError,
    OSError, EOFError, KeyError, TypeError, DecodeError,
)  # fmt: skip
"""What the parts of a file may raise that has been changed before."""

Change = Callable[[bytes, random.Random], bytes]


def mutated(data: bytes, suffix: str, draw: random.Random) -> bytes:
    """Return a file with one to four things changed.

    Args:
        data: the file's content.
        suffix: ending of its name, which tells what parts it has.
        draw: the source of all choices.
    """
    original = data
    for _ in range(draw.choice((1, 1, 1, 1, 2, 4))):
        kinds = _PARTS.get(suffix, ())
        if kinds and draw.random() < 0.88:
            try:
                data = draw.choice(kinds)(data, draw)
            except DAMAGED:
                continue
        else:
            data = draw.choice(_BYTES)(data, draw)
    return data if data != original else flipped(data, draw)


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Change up to four bytes."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if out:
            letter = draw.randrange(32, 127) if draw.random() < 0.7 else draw.randrange(256)
            out[draw.randrange(len(out))] = letter
    return bytes(out)


def cut(data: bytes, draw: random.Random) -> bytes:
    """Take a piece out, or all that follows a place."""
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:start] if draw.random() < 0.3 else data[:start] + data[stop:]


def doubled(data: bytes, draw: random.Random) -> bytes:
    """Repeat a piece up to 2,000 times."""
    start = draw.randrange(len(data) + 1)
    piece = data[start : start + draw.choice((1, 8, 80))]
    return data[:start] + piece * draw.choice((2, 50, 2000)) + data[start + len(piece) :]


def renumbered(data: bytes, draw: random.Random) -> bytes:
    """Change a number, or that number wherever it stands."""
    places = list(re.finditer(rb"\d+", data))
    if not places:
        return data
    place, new = draw.choice(places), draw.choice(NUMBERS).encode()
    if draw.random() < 0.4:
        new = str(draw.randrange(12)).encode() if draw.random() < 0.6 else new
        return re.sub(rb"(?<!\d)" + place[0] + rb"(?!\d)", lambda _: new, data)
    return data[: place.start()] + new + data[place.end() :]


def swapped(data: bytes, draw: random.Random) -> bytes:
    """Put one word in the place of another."""
    words = list(re.finditer(rb"[\w-]+", data))
    if not words:
        return data
    place, other = draw.choice(words), draw.choice(words)
    return data[: place.start()] + other[0] + data[place.end() :]


def changed_line(data: bytes, draw: random.Random) -> bytes:
    """Remove, repeat or move a line of text."""
    lines = data.split(b"\n")
    row, place = draw.randrange(len(lines)), draw.randrange(len(lines))
    line = lines[row] if draw.random() < 0.3 else lines.pop(row)
    if draw.random() < 0.6:
        lines.insert(place, line)
    return b"\n".join(lines)


def changed_opcode(data: bytes, draw: random.Random) -> bytes:
    """Give a line of HLO text another opcode."""
    places = list(re.finditer(rb" [a-z][a-z-]*(?=\()", data))
    place, new = draw.choice(places), draw.choice(_KNOWN).encode()
    return data[: place.start() + 1] + new + data[place.end() :]


def changed_operation(data: bytes, draw: random.Random) -> bytes:
    """Give an operation of StableHLO another name."""
    place = draw.choice(list(re.finditer(rb"stablehlo\.\w+", data)))
    new = f"stablehlo.{draw.choice(_KNOWN).replace('-', '_')}".encode()
    return data[: place.start()] + new + data[place.end() :]


def changed_json(data: bytes, draw: random.Random) -> bytes:
    """Change, remove, add or repeat one value of a JSON file."""
    value = json.loads(data)
    where = [*_places(value)]
    holder, key = draw.choice(where)
    kind = draw.random()
    if kind < 0.25:
        other, name = draw.choice(where)
        holder[key] = copy.deepcopy(other[name])
    elif kind < 0.45 and isinstance(holder[key], (int, float)):
        holder[key] = draw.choice((holder[key] + 1, holder[key] - 1, holder[key] * 2, -holder[key]))
    elif kind < 0.6:
        del holder[key]
    elif kind < 0.7 and isinstance(holder, dict):
        holder[draw.choice((*WORDS, str(key)[:-1]))] = copy.deepcopy(holder[key])
    elif kind < 0.7:
        holder[key:key] = [copy.deepcopy(holder[key])] * draw.choice((1, 3, 500))
    else:
        holder[key] = draw.choice(VALUES)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the holder and the key of every value in a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def changed_cell(data: bytes, draw: random.Random) -> bytes:
    """Change a cell of a CSV file, or remove or repeat a column."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = draw.choice(rows[1:]) if draw.random() < 0.8 else rows[0]
    column = draw.randrange(len(row))
    kind = draw.random()
    if kind < 0.2:
        for cells in rows:
            cells[column : column + 1] = cells[column : column + 1] * draw.choice((0, 2))
    elif kind < 0.5:
        row[column] = draw.choice(rows)[draw.randrange(len(rows[0]))]
    else:
        odd = ('"', '"a\nb"', "#", " 1", "1_0", "0x1", "\u0661", "-0", "1e-9", "Infinity", "")
        row[column] = draw.choice((*NUMBERS, *odd))
    return "\n".join(",".join(cells) for cells in rows).encode()


def changed_field(data: bytes, draw: random.Random) -> bytes:
    """Change one to three fields of an HLO module, however deep."""
    module = Module.FromString(data)  # type: ignore[attr-defined]
    for _ in range(draw.choice((1, 1, 3))):
        _change(module, draw)
    return module.SerializeToString()


def _change(message: Any, draw: random.Random) -> None:
    """Change a field of a message, or of a message inside it."""
    while True:
        present = message.ListFields()
        inner = [(f, v) for f, v in present if f.message_type is not None]
        if not present or (draw.random() < 0.1 and message.DESCRIPTOR.name == "Instruction"):
            descriptors = message.DESCRIPTOR.fields
            field = draw.choice([f for f in descriptors if f.message_type is None] or descriptors)
            value = getattr(message, field.name)
        else:
            deeper = 0.98 if message.DESCRIPTOR.name in ("Module", "Computation") else 0.6
            chosen = inner if inner and draw.random() < deeper else present
            field, value = draw.choice(chosen)
        if hasattr(value, "append") and not len(value) and field.message_type is None:
            value.append(_scalar(0, field.name, draw))
            return
        if not hasattr(value, "append"):
            if field.message_type is None:
                setattr(message, field.name, _scalar(value, field.name, draw))
                return
            if draw.random() < 0.05:
                message.ClearField(field.name)
                return
            message = value
            continue
        place = draw.randrange(len(value))
        if draw.random() < 0.08:
            del value[place]
        elif draw.random() < 0.05:
            value.extend([value[place]] * draw.choice((1, 2, 60)))
        elif field.message_type is None:
            value[place] = _scalar(value[place], field.name, draw, [*value])
        else:
            message = value[place]
            continue
        return


def _scalar(value: Any, name: str, draw: random.Random, beside: list[Any] | None = None) -> Any:
    """Return another value for a field."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return draw.choice(_KNOWN if name == "opcode" and draw.random() < 0.9 else WORDS)
    near = (value + 1, value - 1, value + draw.randrange(-9, 9))
    return draw.choice((*near, *near, *(beside or ()), draw.choice(WHOLE)))


def resized(data: bytes, draw: random.Random) -> bytes:
    """Give every dimension of one size another one, in the whole module."""
    module = Module.FromString(data)  # type: ignore[attr-defined]
    lists = [*_sizes(module)]
    known = [size for numbers in lists for size in numbers]
    old, new = draw.choice(known), draw.choice((*range(12), *WHOLE))
    for numbers in lists:
        numbers[:] = [new if size == old else size for size in numbers]
    return module.SerializeToString()


def _sizes(message: Any) -> Iterator[Any]:
    """Yield the lists of sizes of all shapes and slices in a message."""
    for field, value in message.ListFields():
        of_shape = field.name == "dimensions" and message.DESCRIPTOR.name == "Shape"
        if of_shape or field.name in ("gather_slice_sizes", "dynamic_slice_sizes"):
            yield value
        elif field.message_type is not None:
            for part in value if hasattr(value, "append") else [value]:
                yield from _sizes(part)


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Change bytes of one array of a ``.npz``, its header included, and pack it again."""
    members = _unpacked(data)
    name = draw.choice(list(members))
    content = members[name]
    start = 0 if draw.random() < 0.2 else min(128, len(content))
    change = draw.choice((flipped, flipped, renumbered))
    members[name] = content[:start] + change(content[start:], draw)
    return _packed(members)


def changed_array(data: bytes, draw: random.Random) -> bytes:
    """Change elements, the length, the type or the dimensions of one array of a ``.npz``."""
    members = _unpacked(data)
    name = draw.choice(list(members))
    try:
        array = np.lib.format.read_array(io.BytesIO(members[name])).copy()
    except UNREADABLE:  # an earlier change broke its header
        return changed_bytes(data, draw)
    text = _TEXTS.get(name.removesuffix(".npy"))
    kind = draw.random()
    if text and kind < 0.8:
        array = np.frombuffer(_changed_text(array.tobytes(), text, draw), dtype=np.uint8)
    elif not len(array) or kind < 0.05:
        array = array.astype(draw.choice(("<i8", "<f4", "|u1", ">i4", "<f8")))
    elif kind < 0.1:
        array = array.reshape(draw.choice(((1, -1), (-1, 1), (-1,))))
    elif kind < 0.2:
        place = draw.randrange(len(array))
        array = np.delete(array, place) if draw.random() < 0.5 else np.repeat(array, 2)
    else:
        for _ in range(draw.choice((1, 1, 2, len(array)))):
            _set_element(array, draw)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    members[name] = stream.getvalue()
    return _packed(members)


def changed_member(data: bytes, draw: random.Random) -> bytes:
    """Change a member of an archive of which none is compressed, archives in it included."""
    members = _unpacked(data)
    pickles = [name for name in members if name.endswith(".pkl")]
    name = draw.choice(pickles if pickles and draw.random() < 0.6 else list(members))
    kind = draw.random()
    if kind < 0.03:
        del members[name]
    elif kind < 0.06:
        members[name] = members[draw.choice(list(members))]
    elif name.endswith(".json"):
        members[name] = changed_json(members[name], draw)
    elif name.endswith(".npz"):
        inner = draw.choice((changed_array, changed_array, changed_bytes))(members[name], draw)
        members[name] = _packed(_unpacked(inner), zipfile.ZIP_STORED)
    elif name.endswith(".pkl"):
        members[name] = changed_pickle(members[name], draw)
    elif zipfile.is_zipfile(io.BytesIO(members[name])):
        members[name] = changed_member(members[name], draw)
    else:
        members[name] = draw.choice((flipped, flipped, renumbered, swapped, cut))(
            members[name], draw
        )
    return _packed(members, draw.choice((zipfile.ZIP_STORED,) * 19 + (zipfile.ZIP_DEFLATED,)))


def changed_pickle(data: bytes, draw: random.Random) -> bytes:
    """Remove, move, repeat or change an operation of a pickle."""
    starts = [at for _, _, at in pickletools.genops(data)]
    pieces = [data[a:b] for a, b in pairwise([*starts, len(data)])]
    place, kind = draw.randrange(len(pieces)), draw.random()
    if kind < 0.1:
        del pieces[place]
    elif kind < 0.25:
        pieces[place] = draw.choice(pieces)
    elif kind < 0.35:
        pieces.insert(place, draw.choice((*pieces, *_CODES)))
    elif kind < 0.4:
        pieces[place : place + 1] = [pieces[place]] * draw.choice((2, 50, 2000))
    elif kind < 0.8 and pieces[place][:1] in b"KMJG\x8a\x88\x89NX\x8c":
        value = draw.choice((*WHOLE, *VALUES))
        with contextlib.suppress(UnicodeEncodeError):
            pieces[place] = pickle.dumps(value, 2)[2:-1]
    else:
        pieces[place] = draw.choice((renumbered, swapped, flipped))(pieces[place], draw)
    return b"".join(pieces)


def changed_rows(data: bytes, draw: random.Random) -> bytes:
    """Change a line that is JSON, or the order of lines."""
    lines = data.split(b"\n")
    if draw.random() < 0.2:
        return changed_line(data, draw)
    place = draw.randrange(max(1, len(lines) - 1))
    lines[place] = changed_json(lines[place], draw)
    return b"\n".join(lines)


def _set_element(array: np.ndarray, draw: random.Random) -> None:
    """Give an element of an array another value, mostly one near it or one of the array."""
    place, kind = draw.randrange(len(array)), draw.random()
    if array.dtype.kind == "f":
        odd = (0.0, -1.0, 1.0, 1e308, 5e-324, np.nan, np.inf, 1e19)
        array[place] = draw.choice(odd) if kind < 0.7 else array[draw.randrange(len(array))]
    elif array.dtype.kind == "b":
        array[place] = not array[place]
    elif kind < 0.6:
        array[place] = array[draw.randrange(len(array))]
    else:
        values = np.array([draw.choice((int(array[place]) + 1, *WHOLE)) & (2**64 - 1)], np.uint64)
        array[place] = values.astype(array.dtype)[0]


def resized_arrays(data: bytes, draw: random.Random) -> bytes:
    """Give every dimension of one size in a graph file another one."""
    members = _unpacked(data)
    array = np.lib.format.read_array(io.BytesIO(members["dims.npy"])).copy()
    old = draw.choice(array.tolist())
    array[array == old] = draw.choice((*range(12), *WHOLE))
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    members["dims.npy"] = stream.getvalue()
    return _packed(members)


def _changed_text(data: bytes, kind: str, draw: random.Random) -> bytes:
    """Change a text of an array: JSON, or lines of which some are JSON."""
    if kind == "json":
        return changed_json(data, draw)
    lines = data.split(b"\n")
    place = draw.randrange(len(lines))
    if draw.random() < 0.2:
        return changed_line(data, draw)
    if lines[place].startswith(b"{"):
        lines[place] = draw.choice((changed_json, renumbered))(lines[place], draw)
    elif kind == "opcodes":
        lines[place] = draw.choice(_KNOWN).encode()
    else:
        lines[place] = draw.choice(WORDS).encode()
    return b"\n".join(lines)


def _unpacked(data: bytes) -> dict[str, bytes]:
    """Return the members of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _packed(members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive of members, compressed or not."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


_TEXTS = {"head": "json", "string_table": "lines", "opcode_names": "opcodes"}
"""Arrays of a graph file that hold texts."""
_KNOWN = (*OPCODES, *PARTITIONED.split(), "return", "nonsense")
_CODES = (
    b"]",
    b"}",
    b")",
    b"(",
    b"2",
    b"0",
    b"1",
    b"N",
    b"a",
    b"e",
    b"t",
    b"\x85",
    b"R",
    b"b",
    b"Q",
)
"""Operations of pickles without arguments."""
_BYTES: tuple[Change, ...] = (flipped, renumbered, renumbered, swapped, swapped, cut, doubled)
_PARTS: dict[str, tuple[Change, ...]] = {
    ".pb": (changed_field, changed_field, changed_field, resized),
    ".txt": (renumbered, swapped, changed_line, changed_opcode),
    ".mlir": (renumbered, renumbered, changed_operation, swapped, changed_line),
    ".npz": (changed_array, changed_array, changed_array, changed_bytes, resized_arrays),
    ".csv": (changed_cell,),
    ".json": (changed_json,),
    ".jsonl": (changed_rows,),
    ".metadata": (changed_pickle,),
    ".zip": (changed_member,),
    ".pt": (changed_member,),
}
"""Ending -> changes of the parts that such a file has."""
