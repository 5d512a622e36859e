"""Reads the arrays of a graph's ``.npz`` within stated limits, and checks what they hold.

A file may come from anywhere: sizes are compared before anything is unpacked or allocated, and
every array is checked against the others before a graph is made of it.
"""

from __future__ import annotations

import copy
import io
import json
import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from parenvs.errors import HloError, shown
from parenvs.files import StrPath
from parenvs.graph.opcodes import Instruction, check_instruction

NESTED = ("while", "conditional")
"""Opcodes whose computations follow them as instructions with a ``parent``."""
Array = tuple[int, tuple[int, ...]]
"""Element type and dimensions."""


class Computation(NamedTuple):
    """A computation of a loop or branch: arrays of its parameters and result, tuples flattened."""

    parameters: Sequence[Array]
    returned: Sequence[Array]


def wrong_nesting(
    opcode: str, operands: Sequence[Array], results: Sequence[Array], parts: Sequence[Computation]
) -> str:
    """Return what is wrong with a loop or branch, "" if nothing is.

    Operands and results have their tuples flattened; ``parts`` holds its computations, of a loop
    its body, then its condition.
    """
    operands, results = list(operands), list(results)
    if opcode == "while":
        if len(parts) != 2:
            return f"a while has {len(parts)} computations, not a body and a condition"
        body, condition = parts
        if not operands == results == list(body.parameters) == list(body.returned):
            return "a while, its body's parameter and its body's result differ"
        if list(condition.parameters) != operands:
            return "the parameter of a while's condition is not what the loop carries"
        tests = [dims for _, dims in condition.returned]
        return "" if tests == [()] else "the condition of a while is not one scalar"
    if not parts:
        return "a conditional has no computation"
    if [dims for _, dims in operands[:1]] != [()]:
        return "a conditional's first operand is not one scalar"
    if [array for part in parts for array in part.parameters] != operands[1:]:
        return "the computations of a conditional take other arrays than it is given"
    if any(list(part.returned) != results for part in parts):
        return "the computations of a conditional return other arrays than it does"
    return ""


ELEMENT_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8),
    7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32),
    12: ("f64", 64), 13: ("tuple", 0), 14: ("opaque", 0), 15: ("c64", 64), 16: ("bf16", 16),
    17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4),
    22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8), 24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8),
    26: ("s2", 2), 27: ("u2", 2), 28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 30: ("s1", 1),
    31: ("u1", 1), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip
"""Code of XLA's PrimitiveType -> (its name in HLO text, bits)."""
TUPLE = 13
"""Code of tuples."""
FLOATING = frozenset(
    code for code, (name, _) in ELEMENT_TYPES.items() if name[0] == "f" or name == "bf16"
)
"""Codes of the floating-point types."""
MOST_TENSOR_BYTES = 2**63
"""Tensors of this size and more are refused, as XLA counts bytes in int64."""
_WIDEST = 16
"""Bytes of the largest element, a complex number."""
MOST_COST = 1e60
"""Limit of the FLOPs and of the bytes of an instruction, loops and branches with what is inside.

Sums and products of such costs stay finite.
"""


def uncountable(dims: Sequence[int]) -> bool:
    """Return whether a tensor could have too many bytes, were no dimension empty."""
    return math.prod(max(size, 1) for size in dims) * _WIDEST >= MOST_TENSOR_BYTES


MOST_WINDOW = 2**26
"""Limit of the bytes that LZMA may keep to copy from, which its highest preset asks for."""
MOST_BYTES = 2**28
"""Limit of what a graph file may hold unpacked."""
MOST_SAMPLES = 2**53
"""Limit of the samples per batch: a larger number is no exact float."""
COSTLY = math.nextafter(MOST_COST, math.inf)
"""The smallest cost of an instruction that is too large."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, NotImplementedError,
    RuntimeError, SyntaxError, OverflowError, MemoryError, zipfile.BadZipFile, zlib.error,
    lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip
"""What a damaged file may raise on its way to arrays."""

Arrays = Mapping[str, np.ndarray]
_Numbers = list[int | bool]
_Message = dict[str, int | bool | list[int | dict[str, int | bool]]]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    dimensions: _Numbers = []
    dynamic_slice_sizes: _Numbers = []
    gather_slice_sizes: _Numbers = []
    fft_length: _Numbers = []
    value: _Numbers = []
    dot: _Message = {}
    convolution: _Message = {}
    window: _Message = {}
    padding: _Message = {}
    gather: _Message = {}
    scatter: _Message = {}
    feature_group_count: _Count = 1
    batch_group_count: _Count = 1
    trip_count: _Count = 1
    direction: str = ""
    target: str = ""
    slices: list[tuple[int, int, int]] = []
    applies: list[list[str]] = []


_FIELDS = msgspec.json.Decoder(_Fields)


def read_arrays(path: StrPath | BinaryIO, limit: int | None = None) -> dict[str, np.ndarray]:
    """Read all arrays of a ``.npz`` that holds numbers only; they are read-only.

    Args:
        path: the file, or a stream of it.
        limit: bytes that it may unpack to (default: ``MOST_BYTES``).

    Raises:
        ValueError: it would unpack to more than ``limit``, or an array's header does not fit
            its bytes; the text names the array.
        Exception: one of ``UNREADABLE``: the file is damaged or no such file.
    """
    limit = MOST_BYTES if limit is None else limit
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > limit:
            raise ValueError(f"it unpacks to {total:,} bytes, and may to at most {limit:,}")
        arrays = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            try:
                if member.compress_type == zipfile.ZIP_LZMA:
                    _check_window(archive, member)
                with archive.open(member) as stream:
                    # Without a count, an entry that hides its size would be unpacked whole.
                    arrays[name] = _array(stream.read(member.file_size))
            except UNREADABLE as error:
                raise ValueError(f"array {shown(name)}: {error}") from None
        return arrays


def _check_window(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    stored = copy.copy(member)
    stored.compress_type = zipfile.ZIP_STORED  # reads the bytes as they are, unchecked
    del stored.CRC
    with archive.open(stored) as stream:
        window = int.from_bytes(stream.read(9)[5:], "little")  # which LZMA allocates at once
    if window > MOST_WINDOW:
        raise ValueError(f"its compression asks for {window:,} bytes, of at most {MOST_WINDOW:,}")


def _array(data: bytes) -> np.ndarray:
    stream = io.BytesIO(data)
    shape, _, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
    start = stream.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError(f"its header tells {dtype} {shape}, and {len(data) - start} bytes follow")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


class Head(msgspec.Struct):
    """The head of a graph file, see ``Graph``."""

    schema: int
    name: str
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)]
    notes: tuple[str, ...] = ()
    twins: tuple[tuple[int, int], ...] = ()
    buffers: tuple[str, ...] | None = None
    traits: dict[str, str] = {}


Faults = Iterator[tuple[str, str]]
"""Array and reason of each fault."""


def faults(arrays: Arrays, types: Mapping[str, str], kinds: Mapping[str, int]) -> Faults:
    """Yield what is wrong with the arrays of a graph; the first is certain.

    Args:
        arrays: by the names of ``Graph``'s fields.
        types: NumPy element type of each.
        kinds: number of the values of ``phase`` and of ``parameter_role``.
    """
    # Each step relies on what those before it have checked, so the first reason counts.
    for key, array in arrays.items():
        if array.dtype.str != types[key] or array.ndim != 1:
            yield key, f"it must have one dimension and element type {types[key]}"
    yield from _wrong_texts(arrays)
    yield from _wrong_offsets(arrays)
    yield from _out_of_range(arrays, kinds)
    for wrong in (_wrong_tensors, _wrong_order, _wrong_nesting, _wrong_attributes, _wrong_shapes):
        yield from wrong(arrays)


def texts_of(array: np.ndarray) -> list[str]:
    """Return the texts of a table of newline-joined UTF-8."""
    return array.tobytes().decode().split("\n")


def _wrong_texts(arrays: Arrays) -> Faults:
    for key in ("opcode_names", "string_table"):
        try:
            texts = texts_of(arrays[key])
        except UnicodeDecodeError:
            yield key, "it is not UTF-8"
            return
        if key == "opcode_names" and len(set(texts)) < len(texts):
            yield key, "an opcode stands twice"


def _wrong_offsets(arrays: Arrays) -> Faults:
    spans = {  # offsets: (rows of the ragged list, flat array)
        "dim_offset": ("element_type", "dims"),
        "operand_offset": ("opcode", "operands"),
        "result_offset": ("opcode", "results"),
    }
    for key, (rows, flat) in spans.items():
        offset = arrays[key].astype(np.int64)  # differences of int32 could pass its end
        fits = len(offset) == len(arrays[rows]) + 1 and not offset[0]
        if not fits or offset[-1] != len(arrays[flat]) or (np.diff(offset) < 0).any():
            yield key, f"it does not divide {flat} into {len(arrays[rows])} rows"


def _out_of_range(arrays: Arrays, kinds: Mapping[str, int]) -> Faults:
    tensors, rows = len(arrays["element_type"]), len(arrays["opcode"])
    inputs = len(arrays["parameter_tensor"])
    texts, opcodes = (len(texts_of(arrays[key])) for key in ("string_table", "opcode_names"))
    ranges: dict[str, tuple[int | None, float, float]] = {
        # array: (length or None, smallest value, smallest value that is too large)
        "dims": (None, 0, np.inf),
        "operands": (None, 0, tensors),
        "results": (None, 0, tensors),
        "outputs": (None, 0, tensors),
        "parameter_tensor": (inputs, 0, tensors),
        "opcode": (rows, 0, opcodes),
        "phase": (rows, 0, kinds["phase"]),
        "free": (rows, 0, 2),
        "parent": (rows, -1, rows),
        "flops": (rows, 0, COSTLY),
        "bytes_accessed": (rows, 0, COSTLY),
        "op_name": (rows, 0, texts),
        "attribute": (rows, 0, texts),
        "parameter_path": (inputs, 0, texts),
        "parameter_argument": (inputs, 0, inputs),
        "parameter_role": (inputs, 0, kinds["parameter_role"]),
    }
    for key, (size, low, high) in ranges.items():
        # A file's bool may be any byte: only 0 and 1 compare as such.
        array = arrays[key].view(np.uint8) if key == "free" else arrays[key]
        if size is not None and len(array) != size:
            yield key, f"it must have {size} values"
        elif len(array) and not (array.min() >= low and array.max() < high):
            yield key, f"its values must be finite, at least {low} and below {high}"


def _wrong_tensors(arrays: Arrays) -> Faults:
    codes = sorted(ELEMENT_TYPES.keys() - {TUPLE})
    if not np.isin(arrays["element_type"], codes).all():
        yield "element_type", "it has a type that does not exist"
    # Python's whole numbers do not wrap, and few shapes differ.
    if any(map(uncountable, set(rows_of(arrays["dims"], arrays["dim_offset"])))):
        yield "dims", "a tensor has more bytes than can be counted"
    parameters = arrays["parameter_tensor"]
    if len(np.unique(parameters)) < len(parameters):
        yield "parameter_tensor", "two parameters are one tensor"


def _wrong_order(arrays: Arrays) -> Faults:
    """Yield tensors that are read before, or outside the computation of, their producer."""
    parent, rows = arrays["parent"], np.arange(len(arrays["opcode"]))
    if (parent >= rows).any():
        yield "parent", "an instruction stands before the one that it is inside, or is its own"
        return
    # Topological order is what every later pass relies on: one walk, no recursion.
    producer_of = np.full(len(arrays["element_type"]), -1)
    results = arrays["results"]
    if len(np.unique(results)) < len(results):
        yield "results", "a tensor is made twice"
    producer_of[results] = np.repeat(rows, np.diff(arrays["result_offset"]))
    if (producer_of[arrays["parameter_tensor"]] < 0).any():
        yield "parameter_tensor", "a tensor that no instruction makes"
    outputs = producer_of[arrays["outputs"]]
    if (outputs < 0).any() or (parent[outputs] >= 0).any():
        yield "outputs", "a tensor that no instruction of the entry makes"
    reader = np.repeat(rows, np.diff(arrays["operand_offset"]))
    producer = producer_of[arrays["operands"]]
    if (producer < 0).any() or (producer >= reader).any():
        yield "operands", "an operand is used before it is made"
        return
    # Loops take all values as operands, so nothing reads a tensor of another computation.
    computation = _computations(arrays)
    if (computation[producer] != computation[reader]).any():
        yield "operands", "an operand is of another computation"


def _wrong_nesting(arrays: Arrays) -> Faults:
    """Yield malformed computations of loops and branches, and parameters that are no inputs."""
    opcodes, parent = texts_of(arrays["opcode_names"]), arrays["parent"]
    names = [opcodes[code] for code in arrays["opcode"].tolist()]
    made_by = rows_of(arrays["results"], arrays["result_offset"])
    entry = [row for row, name in enumerate(names) if name == "parameter" and parent[row] < 0]
    made = sorted(tensor for row in entry for tensor in made_by[row])
    if made != sorted(arrays["parameter_tensor"].tolist()):
        yield "parameter_tensor", "it is not what the parameters of the entry make"
    inner = np.flatnonzero(parent >= 0).tolist()
    members: dict[int, list[int]] = {}
    for row in inner:
        members.setdefault(int(parent[row]), []).append(row)
    nested = {row for row, name in enumerate(names) if name in NESTED}
    returns = {row for row, name in enumerate(names) if name == "return"}
    if not members.keys() <= nested or not returns.issubset(inner):
        yield "parent", "an instruction is inside another that has no computations"
        return
    if not nested:
        return
    types = arrays["element_type"].tolist()
    tensors = list(zip(types, rows_of(arrays["dims"], arrays["dim_offset"]), strict=True))
    # Costs, phases and unrolling walk loops by these returns, so each must end as it should.
    read_by = rows_of(arrays["operands"], arrays["operand_offset"])
    for outer in sorted(nested):
        parts, parameters = [], []
        last = -1
        for last in members.get(outer, []):
            if names[last] == "parameter":
                parameters += [tensors[t] for t in made_by[last]]
            elif last in returns:
                parts.append(Computation(parameters, [tensors[t] for t in read_by[last]]))
                parameters = []
        fault = "" if last in returns else "a computation does not end"
        operands, results = ([tensors[t] for t in rows[outer]] for rows in (read_by, made_by))
        fault = fault or wrong_nesting(names[outer], operands, results, parts)
        if fault:
            yield "parent", fault


def _computations(arrays: Arrays) -> np.ndarray:
    """Return a number for the computation that each instruction is in, (I,) int64."""
    opcodes = texts_of(arrays["opcode_names"])
    return_code = opcodes.index("return") if "return" in opcodes else -1
    result = np.full(len(arrays["opcode"]), -1)
    # Loop or branch -> first row of its open computation, which a return closes.
    open_row: dict[int, int] = {}
    inner = np.flatnonzero(arrays["parent"] >= 0)
    columns = (inner, arrays["parent"][inner], arrays["opcode"][inner])
    for row, outer, code in zip(*(column.tolist() for column in columns), strict=True):
        result[row] = open_row.setdefault(outer, row)
        if code == return_code:
            del open_row[outer]
    return result


def _wrong_attributes(arrays: Arrays) -> Faults:
    texts = texts_of(arrays["string_table"])
    for index in np.unique(arrays["attribute"]).tolist():
        try:
            _FIELDS.decode(texts[index] or "{}")
        except (msgspec.MsgspecError, RecursionError) as error:
            yield "attribute", f"{texts[index][:40]!r}: {error}"
            return


def _wrong_shapes(arrays: Arrays) -> Faults:
    opcodes, texts = texts_of(arrays["opcode_names"]), texts_of(arrays["string_table"])
    fields = {i: fields_of(texts[i]) for i in np.unique(arrays["attribute"]).tolist()}
    index_of: dict[tuple[int, ...], int] = {}  # of distinct shapes
    rows = rows_of(arrays["dims"], arrays["dim_offset"])
    shape_index = np.array([index_of.setdefault(row, len(index_of)) for row in rows], np.int64)
    shapes = list(index_of)
    columns = (
        arrays["opcode"].tolist(),
        arrays["attribute"].tolist(),
        rows_of(shape_index[arrays["operands"]], arrays["operand_offset"]),
        rows_of(shape_index[arrays["results"]], arrays["result_offset"]),
    )
    # Layers repeat, so there are few different instructions.
    for code, attribute, used, result in dict.fromkeys(zip(*columns, strict=True)):
        if opcodes[code] == "while" and "trip_count" not in fields[attribute]:
            yield "attribute", "a while has no trip_count"
        if opcodes[code] == "concatenate":
            continue  # loops that are written out join blocks without their leading dimension
        inputs, outputs = [shapes[k] for k in used], [shapes[k] for k in result]
        try:
            check_instruction(Instruction(opcodes[code], fields[attribute], inputs, outputs))
        except HloError as error:
            yield "dims", str(error)


def rows_of(flat: np.ndarray, offset: np.ndarray) -> list[tuple[int, ...]]:
    """Return the rows of a ragged list."""
    values, ends = flat.tolist(), offset.tolist()
    return [tuple(values[start:stop]) for start, stop in pairwise(ends)]


def inverted(rows: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the inverted index of ragged rows: the rows that hold each number below ``count``."""
    result: list[list[int]] = [[] for _ in range(count)]
    for number, row in enumerate(rows):
        for value in row:
            result[value].append(number)
    return result


@lru_cache(maxsize=4096)
def fields_of(attribute: str) -> dict[str, Any]:
    """Return the fields of an instruction's ``attribute``; they are not to be changed."""
    return json.loads(attribute) if attribute else {}
