"""Changes of valid files, for ``fuzz.py``: of bytes, words and numbers, and of a file's own parts.

Changes of parts keep the rest of a file valid (fields of a protobuf message, values of JSON, cells
of CSV, elements of the arrays in a ``.npz``), so that they are not all refused at the first check.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterator
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
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
DAMAGED = (*UNREADABLE, IndexError, DecodeError)
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
    present = message.ListFields()
    inner = [(field, value) for field, value in present if field.message_type is not None]
    if not present:
        return
    field, value = draw.choice(inner if inner and draw.random() < 0.8 else present)
    is_list = hasattr(value, "append")
    place = draw.randrange(len(value)) if is_list else 0
    if is_list and draw.random() < 0.08:
        del value[place]
    elif is_list and draw.random() < 0.05:
        value.extend([value[place]] * draw.choice((1, 2, 60)))
    elif field.message_type is not None:
        _change(value[place] if is_list else value, draw)
    elif is_list:
        value[place] = _scalar(value[place], field.name, draw, [*value])
    else:
        setattr(message, field.name, _scalar(value, field.name, draw))


def _scalar(value: Any, name: str, draw: random.Random, beside: list[Any] | None = None) -> Any:
    """Return another value for a field."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return draw.choice(_KNOWN if name == "opcode" and draw.random() < 0.9 else WORDS)
    near = (value + 1, value - 1, value + draw.randrange(-9, 9))
    return draw.choice((*near, *near, *(beside or ()), draw.choice(WHOLE)))


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Change bytes of one array of a ``.npz``, its header included, and pack it again."""
    members = _unpacked(data)
    name = draw.choice(list(members))
    content = members[name]
    start = 0 if draw.random() < 0.2 else min(128, len(content))
    change = draw.choice((flipped, flipped, renumbered))
    members[name] = content[:start] + change(content[start:], draw)
    return _packed(members, draw.choice(METHODS))


def packed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Pack an archive by some method, and change bytes of what is packed, or a member's name."""
    members = _unpacked(data)
    if draw.random() < 0.1:
        members[draw.choice(("x" * 60_000, "a\nb.npy"))] = b""
    packed = _packed(members, draw.choice(METHODS))
    end = packed.rindex(b"PK\1\2") if draw.random() < 0.9 else len(packed)
    return flipped(packed[:end], draw) + packed[end:]


def changed_array(data: bytes, draw: random.Random) -> bytes:
    """Change elements, the length, the type or the dimensions of one array of a ``.npz``."""
    members = _unpacked(data)
    name = draw.choice(list(members))
    try:
        array = np.lib.format.read_array(io.BytesIO(members[name])).copy()
    except UNREADABLE:  # an earlier change broke its header
        return changed_bytes(data, draw)
    kind = draw.random()
    if not len(array) or kind < 0.05:
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
    name = draw.choice(list(members))
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
    elif zipfile.is_zipfile(io.BytesIO(members[name])):
        members[name] = changed_member(members[name], draw)
    else:
        members[name] = draw.choice((flipped, flipped, renumbered, swapped, cut))(
            members[name], draw
        )
    return _packed(members, draw.choice((zipfile.ZIP_STORED,) * 19 + (zipfile.ZIP_DEFLATED,)))


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


_KNOWN = (*OPCODES, *PARTITIONED.split(), "return", "nonsense")
_BYTES: tuple[Change, ...] = (flipped, renumbered, renumbered, swapped, swapped, cut, doubled)
_PARTS: dict[str, tuple[Change, ...]] = {
    ".pb": (changed_field,),
    ".txt": (renumbered, swapped, changed_line),
    ".mlir": (renumbered, swapped, changed_line),
    ".npz": (changed_array, changed_array, changed_array, changed_bytes, packed_bytes),
    ".csv": (changed_cell,),
    ".json": (changed_json,),
    ".zip": (changed_member,),
    ".pt": (changed_member,),
}
"""Ending -> changes of the parts that such a file has."""
