"""``Graph``: one HLO module as frozen NumPy arrays, and its ``.npz`` file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from parenvs.cluster import Device
from parenvs.compiled import Array
from parenvs.errors import HloError, one_line, shown
from parenvs.files import StrPath, replacing
from parenvs.graph import checks

SCHEMA = 1
"""Version of the ``.npz`` layout."""


class Phase(IntEnum):
    """Part of a training step that an instruction belongs to."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


class Role(IntEnum):
    """Kind of an entry parameter."""

    VARIABLE = 0
    OPTIMIZER = 1
    BATCH = 2
    SCALAR = 3
    STATISTICS = 4
    FROZEN = 5


@dataclass(frozen=True, eq=False)
class Graph:
    """One HLO module with calls inlined and tuples flattened.

    Instructions stand in trace order, which is topological and keeps the phases together. Those
    inside a ``while`` or ``conditional`` follow it and have its index as their ``parent``; the
    parent's FLOPs include theirs. The module has T tensors, I instructions, P entry parameters
    (tuples flattened) and O outputs. A ragged list is a flat array and an array of offsets, whose
    length is that of the list + 1.

    Attributes:
        name: the instance's name.
        batch_size: samples per batch that the module was made for.
        dims: (sum of ranks,) int64, sizes of all dimensions of all tensors.
        dim_offset: (T+1,) int32.
        element_type: (T,) uint8, XLA's PrimitiveType.
        opcode: (I,) uint8, index into ``opcodes``.
        operands: flat int32 tensor numbers, by ``operand_offset`` (I+1,).
        operand_offset: (I+1,) int32.
        results: flat int32 tensor numbers, by ``result_offset`` (I+1,).
        result_offset: (I+1,) int32.
        flops: (I,) float64.
        bytes_accessed: (I,) float64, operands and results, unfused.
        phase: (I,) uint8, ``Phase``.
        free: (I,) bool: computed from constants, iota and scalar inputs only.
        parent: (I,) int32, the instruction whose computation it is in, -1 at the top.
        op_name: (I,) int32, index into ``strings``.
        attribute: (I,) int32, index into ``strings``: a JSON object with what the opcode needs
            (dimension numbers, windows, ...).
        parameter_tensor: (P,) int32.
        parameter_path: (P,) int32, index into ``strings``, like ``encoder/layer_0/self/q``.
        parameter_argument: (P,) int32, index of the function argument it belongs to.
        parameter_role: (P,) uint8, ``Role``.
        outputs: (O,) int32 tensor numbers.
        opcode_names: newline-joined UTF-8 as (bytes,) uint8.
        string_table: newline-joined UTF-8 as (bytes,) uint8.
        notes: what the reader assumed, in sentences; no part of the fingerprint.
        twins: pairs of an output's and an entry parameter's tensor that have one path in the
            function's results and arguments, where these are known; no part of the fingerprint.
        buffers: paths of a PyTorch module's buffers, else None; no part of the fingerprint.
        traits: see ``parenvs.graph.pytorch.nodes.Exported``; no part of the fingerprint.
    """

    name: str
    batch_size: int
    dims: Array
    dim_offset: Array
    element_type: Array
    opcode: Array
    operands: Array
    operand_offset: Array
    results: Array
    result_offset: Array
    flops: Array
    bytes_accessed: Array
    phase: Array
    free: Array
    parent: Array
    op_name: Array
    attribute: Array
    parameter_tensor: Array
    parameter_path: Array
    parameter_argument: Array
    parameter_role: Array
    outputs: Array
    opcode_names: Array
    string_table: Array
    notes: tuple[str, ...] = ()
    twins: tuple[tuple[int, int], ...] = ()
    buffers: tuple[str, ...] | None = None
    traits: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        for key in _ARRAYS:
            getattr(self, key).setflags(write=False)

    def __repr__(self) -> str:
        """Show the name and the sizes; the arrays are too long."""
        return (
            f"Graph({self.name!r}, {len(self.opcode)} instructions, "
            f"{self.variables.size} variables, {self.total_flops:.3e} FLOPs)"
        )

    @cached_property
    def opcodes(self) -> list[str]:
        """Names of the opcodes, which ``opcode`` indexes."""
        return checks.texts_of(self.opcode_names)

    @cached_property
    def strings(self) -> list[str]:
        """Texts of the module, which ``op_name``, ``attribute`` and ``parameter_path`` index."""
        return checks.texts_of(self.string_table)

    @cached_property
    def tensor_bytes(self) -> Array:
        """(T,) float64, size of each tensor in bytes."""
        bits = np.zeros(256)
        for code, (_, width) in checks.ELEMENT_TYPES.items():
            bits[code] = width
        elements = np.ones(len(self.element_type))
        shaped = np.diff(self.dim_offset) > 0
        starts = self.dim_offset[:-1][shaped]  # for rank 0, reduceat would take the next tensor's
        elements[shaped] = np.multiply.reduceat(self.dims.astype(float), starts)
        return np.ceil(elements * bits[self.element_type] / 8)

    def peak_flops(self, device: Device) -> Array:
        """(I,) peak FLOP/s at which a device runs each instruction, by the type of its elements.

        The first operand's type decides, as a product's result may be wider; without operands, the
        first result's.
        """
        # Element types are uint8, so a table of 256 has an entry for any code.
        peaks = np.full(256, device.peak_flops)
        for code, (name, _) in checks.ELEMENT_TYPES.items():
            peaks[code] = device.peak_of(name)
        tensors = np.concatenate([self.operands, self.results, [0]])
        reads = np.diff(self.operand_offset) > 0
        result = len(self.operands) + self.result_offset[:-1]
        return peaks[self.element_type[tensors[np.where(reads, self.operand_offset[:-1], result)]]]

    @property
    def total_flops(self) -> float:
        """FLOPs of one run of the module."""
        return float(self.flops[self.parent < 0].sum())

    @cached_property
    def variables(self) -> Array:
        """Indices into the parameter arrays of the trainable variables, in parameter order."""
        return np.flatnonzero(self.parameter_role == Role.VARIABLE)

    @cached_property
    def weights(self) -> Array:
        """Indices into the parameter arrays of variables and frozen weights, in parameter order."""
        return np.flatnonzero(np.isin(self.parameter_role, (Role.VARIABLE, Role.FROZEN)))

    @cached_property
    def frozen(self) -> list[str]:
        """Paths of the frozen weights that are no buffers."""
        frozen = np.flatnonzero(self.parameter_role == Role.FROZEN).tolist()
        return [self.paths[i] for i in frozen if self.paths[i] not in (self.buffers or ())]

    @cached_property
    def paths(self) -> list[str]:
        """Path of each entry parameter."""
        return [self.strings[i] for i in self.parameter_path]

    @cached_property
    def parameter_bytes(self) -> float:
        """Bytes of all variables."""
        return float(self.tensor_bytes[self.parameter_tensor[self.variables]].sum())

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` over the arrays; name and compression of the file do not change it."""
        # The batch size decides costs, so it is part of what a plan is made for; the name is not.
        digest = hashlib.sha256(f"graph {SCHEMA} {self.batch_size}".encode())
        for key in _ARRAYS:
            array = getattr(self, key)
            digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return the dimensions of ``tensor``."""
        return tuple(self.dims[self.dim_offset[tensor] : self.dim_offset[tensor + 1]].tolist())

    def op_names(self, instructions: Array) -> Array:
        """(n,) ``op_name`` of each of ``instructions``, its opcode where that is empty."""
        names = [
            self.strings[self.op_name[i]] or self.opcodes[self.opcode[i]]
            for i in np.asarray(instructions).tolist()
        ]
        return np.array(names, object)

    def pivots(self) -> Array:
        """(n,) forward instructions at the top that are no parameters and not free, ascending."""
        parameter = np.array([name == "parameter" for name in self.opcodes])[self.opcode]
        forward = self.phase == Phase.FORWARD
        return np.flatnonzero(forward & ~self.free & ~parameter & (self.parent < 0))

    def tensor_bytes_of(self, instructions: Array) -> Array:
        """Return the bytes of the results of each of ``instructions``, (n,) float64."""
        owner, produced = self.makes(instructions)
        return np.bincount(owner, self.tensor_bytes[produced], minlength=len(instructions))

    def uses(self, instructions: Array) -> tuple[Array, Array]:
        """Return (position in ``instructions``, tensor) of every operand."""
        return self._ragged(self.operands, self.operand_offset, instructions)

    def makes(self, instructions: Array) -> tuple[Array, Array]:
        """Return (position in ``instructions``, tensor) of every result."""
        return self._ragged(self.results, self.result_offset, instructions)

    @staticmethod
    def _ragged(flat: Array, offset: Array, rows: Array) -> tuple[Array, Array]:
        """Return (position in ``rows``, value) of every entry of those rows of a ragged list."""
        counts = offset[rows + 1] - offset[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        offset_in_row = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, flat[offset[rows][owner] + offset_in_row]

    def save(self, path: StrPath) -> None:
        """Write the graph to ``path``, a compressed ``.npz``."""
        # Defaults are not written, so that old files keep their bytes.
        written = [x for x in _HEAD if getattr(self, x) not in (getattr(Graph, x, None), {})]
        head: Any = {"schema": SCHEMA, **{name: getattr(self, name) for name in written}}
        arrays = {"head": pack_texts([json.dumps(head)])}
        arrays |= {key: getattr(self, key) for key in _ARRAYS}
        with replacing(path) as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: StrPath) -> Graph:
        """Read a ``.npz`` that ``save`` wrote.

        Raises:
            HloError: the file is no such file, is damaged, or has another schema version.
        """
        try:
            arrays = checks.read_arrays(path)
            text = arrays.pop("head").tobytes()
            schema = json.loads(text)["schema"]
        except checks.UNREADABLE as error:
            raise HloError(f"{path}: not a graph file, or damaged ({one_line(error)})") from None
        if schema != SCHEMA or set(arrays) != set(_ARRAYS):
            raise HloError(
                f"{path}: graph schema {shown(schema)} is not {SCHEMA}; build the file anew"
            )
        try:
            head = msgspec.json.decode(text, type=checks.Head)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise HloError(f"{path}: head: {one_line(error)}; build the file anew") from None
        tensors = range(arrays["element_type"].size)
        if any(tensor not in tensors for pair in head.twins for tensor in pair):
            raise HloError(f"{path}: head: twins must be pairs of tensors; build the file anew")
        fields_read: Any = arrays | {name: getattr(head, name) for name in _HEAD}
        graph = cls(**fields_read)
        if broken := graph.complaint():
            raise HloError(f"{path}: {broken}")
        return graph

    def complaint(self) -> str:
        """Return what is wrong with the first array that does not fit, "" if all arrays fit."""
        arrays = {key: getattr(self, key) for key in _ARRAYS}
        kinds = {"phase": len(Phase), "parameter_role": len(Role)}
        for key, reason in checks.faults(arrays, TYPES, kinds):
            return f"{key} is broken; build the file anew ({reason})"
        return ""


def pack_texts(texts: Sequence[str]) -> Array:
    """Return ``texts`` joined by newlines, as (bytes,) uint8."""
    return np.frombuffer("\n".join(texts).encode(), dtype=np.uint8).copy()


def offsets_of(rows: Sequence[Sequence[Any]]) -> Array:
    """Return the offsets of a ragged list, (rows + 1,) int32."""
    return np.cumsum([0, *map(len, rows)]).astype(np.int32)


_HEAD = ("name", "batch_size", "notes", "twins", "buffers", "traits")
"""Fields that are no arrays."""
_ARRAYS = tuple(f.name for f in fields(Graph) if f.name not in _HEAD)
TYPES = {
    **dict.fromkeys(_ARRAYS, "<i4"),
    **dict.fromkeys(("element_type", "opcode", "phase", "parameter_role"), "|u1"),
    **dict.fromkeys(("opcode_names", "string_table"), "|u1"),
    **dict.fromkeys(("flops", "bytes_accessed"), "<f8"),
    "dims": "<i8",
    "free": "|b1",
}
"""Element types of the arrays."""
