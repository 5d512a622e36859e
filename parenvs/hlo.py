"""HLO modules to graphs: inline calls, flatten tuples, tell phases, roles and free tensors."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from parenvs.errors import HloError
from parenvs.flops import Call, bytes_of, flops_of
from parenvs.graph import Graph, Phase, Role, _pack, match_paths
from parenvs.hlo_proto import ELEMENT_TYPES, FLOATING, TUPLE, Module

_INLINED = ("call", "fusion")
_NESTED = ("while", "conditional")
_SOURCES = ("constant", "iota", "partition-id", "replica-id")
_IMPURE = ("rng", "rng-get-and-update-state", "custom-call")
_STRUCTURE = ("dot", "convolution", "window", "padding", "gather", "scatter")
_LISTS = ("dimensions", "dynamic_slice_sizes", "gather_slice_sizes", "fft_length")


def read_file(path: Path, **options: Any) -> Graph:
    """A graph from a ``.pb`` or ``.txt`` file; see ``read_module`` for the options."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HloError(f"{path}: cannot be read ({error.strerror})") from None
    options.setdefault("name", path.stem)
    if path.suffix in (".txt", ".hlo"):
        from parenvs import hlo_text

        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise HloError(f"{path}: not HLO text (not UTF-8)") from None
        return read_module(hlo_text.parse(text, str(path)), where=str(path), **options)
    return read_proto(data, where=str(path), **options)


def read_proto(data: bytes, where: str = "module", **options: Any) -> Graph:
    """A graph from a serialized HloModuleProto (or an HloProto, which wraps one)."""
    try:
        module = Module.FromString(data)  # type: ignore[attr-defined]
    except DecodeError:
        raise HloError(
            f"{where}: not a serialized HloModuleProto, or truncated; give .pb, .txt or .npz"
        ) from None
    return read_module(module, where=where, **options)


def read_module(
    module: Any,
    where: str = "module",
    name: str | None = None,
    variables: int | str | Sequence[str] = 0,
    batch_size: int | None = None,
) -> Graph:
    """A graph from an HloModuleProto message.

    Args:
        module: the message.
        where: file or function, for error messages.
        name: the graph's name (default: the module's).
        variables: the trainable parameters: an argument's index, or glob patterns over paths.
        batch_size: samples per batch (default: the commonest leading dimension of batch inputs).

    Raises:
        HloError: no entry computation, a dangling reference, or an unknown opcode.
    """
    reader = _Reader(module, where)
    try:
        reader.run()
    except (KeyError, IndexError) as error:
        raise HloError(f"{where}: broken or truncated module (dangling reference {error})") from None
    graph = reader.graph(name or module.name, variables, batch_size)
    if not len(graph.opcode):
        raise HloError(f"{where}: the entry computation is empty")
    return graph


class _Reader:
    """Walks a module once, in trace order, and collects the arrays of a Graph."""

    def __init__(self, module: Any, where: str) -> None:
        self.where = where
        self.computations = {c.id: c for c in module.computations}
        if module.entry_computation_id not in self.computations:
            raise HloError(f"{where}: no entry computation; not an HLO module, or truncated")
        self.entry = self.computations[module.entry_computation_id]
        self.shapes: list[tuple[int, ...]] = []
        self.types: list[int] = []
        self.sizes: list[float] = []
        self.integers: dict[int, int] = {}
        self.strings: dict[str, int] = {"": 0}
        self.opcodes: dict[str, int] = {}
        self.rows: list[tuple[int, float, float, int, int, int]] = []
        self.operands: list[list[int]] = []
        self.results: list[list[int]] = []
        self.parameters: list[tuple[int, str, int]] = []
        self.outputs: list[int] = []
        self.applied: dict[int, float] = {}

    def run(self) -> None:
        """Read the entry computation."""
        self.outputs = self.block(self.entry, None, "", -1)

    def tensor(self, shape: Any) -> list[int]:
        """New tensors for the leaves of a shape."""
        if shape.element_type == TUPLE:
            return [t for part in shape.tuple_shapes for t in self.tensor(part)]
        dims = tuple(shape.dimensions)
        bits = ELEMENT_TYPES.get(shape.element_type, ("", 0))[1]
        self.shapes.append(dims)
        self.types.append(shape.element_type)
        self.sizes.append(math.ceil(math.prod(dims) * bits / 8))
        return [len(self.shapes) - 1]

    def text(self, value: str) -> int:
        """Index of a text in the table; the table's separator cannot stand in it."""
        return self.strings.setdefault(value.replace("\n", " "), len(self.strings))

    def add(
        self,
        opcode: str,
        operands: list[int],
        results: list[int],
        cost: tuple[float, float] = (0.0, 0.0),
        op_name: str = "",
        attribute: str = "",
        parent: int = -1,
    ) -> int:
        """Append one instruction; returns its index."""
        code = self.opcodes.setdefault(opcode, len(self.opcodes))
        self.rows.append((code, *cost, self.text(op_name), self.text(attribute), parent))
        self.operands.append(operands)
        self.results.append(results)
        return len(self.rows) - 1

    def block(
        self, computation: Any, given: list[list[int]] | None, prefix: str, parent: int
    ) -> list[int]:
        """Read a computation whose parameters are the ``given`` tensors; returns its result.

        With ``given=None`` the parameters become tensors and instructions of their own.
        """
        values: dict[int, list[int]] = {}
        shapes: dict[int, Any] = {}
        root = computation.root_id
        for node in sorted(computation.instructions, key=lambda node: node.id):
            shapes[node.id] = node.shape
            operands = [values[i] for i in node.operand_ids]
            name = node.metadata.op_name
            if prefix:
                name = f"{prefix}/{name}" if name else prefix
            if node.opcode == "parameter":
                if given is not None:
                    values[node.id] = given[node.parameter_number]
                else:
                    values[node.id] = self.parameter(node, name, parent)
            elif node.opcode == "tuple":
                values[node.id] = [t for value in operands for t in value]
            elif node.opcode == "get-tuple-element":
                parts = shapes[node.operand_ids[0]].tuple_shapes
                start = sum(_leaves(p) for p in parts[: node.tuple_index])
                stop = start + _leaves(parts[node.tuple_index])
                values[node.id] = operands[0][start:stop]
            elif node.opcode in _INLINED and self.inlinable(node):
                callee = self.computations[node.called_ids[0]]
                values[node.id] = self.block(callee, operands, name, parent)
            else:
                values[node.id] = self.instruction(node, operands, name, parent)
            if node.id == root or not root:
                result = values[node.id]
        return result

    def inlinable(self, node: Any) -> bool:
        """Calls are inlined; a fusion without its computation is not a call."""
        if not node.called_ids or node.called_ids[0] not in self.computations:
            raise HloError(f"{self.where}: {node.name} calls a computation that is not there")
        return True

    def parameter(self, node: Any, name: str, parent: int) -> list[int]:
        """A parameter of the entry, or of a computation inside a while or conditional."""
        leaves = self.tensor(node.shape)
        self.add("parameter", [], leaves, op_name=name or node.name, parent=parent)
        if parent < 0:
            for k, leaf in enumerate(leaves):
                path = name or re.sub(r"\.\d+$", "", node.name)
                path = f"{path}/{k}" if len(leaves) > 1 else path
                self.parameters.append((leaf, path, node.parameter_number))
        return leaves

    def instruction(
        self, node: Any, operands: list[list[int]], name: str, parent: int
    ) -> list[int]:
        """Anything that is not structure: cost it, and read what it calls."""
        flat = [t for value in operands for t in value]
        results = self.tensor(node.shape)
        trips = self.trip_count(node, flat) if node.opcode == "while" else 1
        applied = [self.apply_flops(i) for i in node.called_ids]
        call = Call(
            node, [self.shapes[t] for t in flat], [self.shapes[t] for t in results], applied
        )
        try:
            flops = trips * flops_of(call)
        except HloError as error:
            raise HloError(f"{self.where}: {error}") from None
        moved = bytes_of(
            node.opcode, [self.sizes[t] for t in flat], [self.sizes[t] for t in results]
        )
        if node.opcode == "constant" and not self.shapes[results[0]]:
            literal = [*node.literal.s32s, *node.literal.s64s]
            if literal:
                self.integers[results[0]] = literal[0]
        attribute = self.attribute(node, trips)
        index = self.add(node.opcode, flat, results, (flops, moved), name, attribute, parent)
        if node.opcode in _NESTED:
            for called in node.called_ids:
                out = self.block(self.computations[called], None, name, index)
                self.add("return", out, [], op_name=name, parent=index)
        return results

    def apply_flops(self, computation_id: int) -> float:
        """FLOPs of one run of a called computation."""
        if computation_id not in self.applied:
            inner = _Reader.__new__(_Reader)
            inner.__dict__.update(self.__dict__)
            inner.rows, inner.operands, inner.results = [], [], []
            inner.block(self.computations[computation_id], None, "", 0)
            self.applied[computation_id] = sum(r[1] for r in inner.rows if r[5] == 0)
        return self.applied[computation_id]

    def trip_count(self, node: Any, operands: list[int]) -> int:
        """Iterations of a counted loop (``i < n``, as ``lax.scan`` makes); 1 where unknown."""
        condition = self.computations[node.called_ids[1]]
        by_id = {x.id: x for x in condition.instructions}
        root = by_id[condition.root_id]
        if root.opcode == "compare" and root.comparison_direction == "LT":
            left, right = (by_id[i] for i in root.operand_ids)
            limit = [*right.literal.s32s, *right.literal.s64s]
            if left.opcode == "get-tuple-element" and right.opcode == "constant" and limit:
                parts = by_id[left.operand_ids[0]].shape.tuple_shapes
                leaf = sum(_leaves(p) for p in parts[: left.tuple_index])
                start = self.integers.get(operands[leaf])
                if start is not None:
                    return max(limit[0] - start, 0)
        warnings.warn(
            f"{self.where}: the trip count of {node.name} is not known; it is costed as one",
            stacklevel=2,
        )
        return 1

    def attribute(self, node: Any, trips: int) -> str:
        """What an opcode's factor rule needs to know, as compact JSON (empty if nothing)."""
        out: dict[str, Any] = {key: list(v) for key in _LISTS if (v := getattr(node, key))}
        for key in _STRUCTURE:
            if node.HasField(key):
                out[key] = _plain(getattr(node, key))
        if node.slices:
            out["slices"] = [[s.start, s.limit, s.stride] for s in node.slices]
        for key in ("feature_group_count", "batch_group_count"):
            if getattr(node, key) > 1:
                out[key] = getattr(node, key)
        if node.custom_call_target:
            out["target"] = node.custom_call_target
        if node.opcode == "while":
            out["trip_count"] = trips
        elif node.called_ids and node.opcode not in _NESTED:
            out["applies"] = [
                [x.opcode for x in self.computations[i].instructions if x.opcode != "parameter"]
                for i in node.called_ids
            ]
        return json.dumps(out, separators=(",", ":")) if out else ""

    def graph(
        self, name: str, variables: int | str | Sequence[str], batch_size: int | None
    ) -> Graph:
        """The arrays of what was read."""
        opcode, flops, moved, op_name, attribute, parent = (
            np.array(column) for column in zip(*self.rows, strict=True)
        )
        tensors = [t for t, _, _ in self.parameters]
        arguments, paths = _paths([path for _, path, _ in self.parameters])
        roles = self.roles(arguments, paths, variables)
        if batch_size is None:
            leading = Counter(
                self.shapes[t][0]
                for t, role in zip(tensors, roles, strict=True)
                if role == Role.BATCH
            )
            batch_size = leading.most_common(1)[0][0] if leading else 1
        path_index = [self.text(path) for path in paths]
        return Graph(
            name=name,
            batch_size=int(batch_size),
            dims=np.array([d for s in self.shapes for d in s], dtype=np.int64),
            dim_offset=_offsets(self.shapes),
            element_type=np.array(self.types, dtype=np.uint8),
            opcode=opcode.astype(np.uint8),
            operands=np.array([t for row in self.operands for t in row], dtype=np.int32),
            operand_offset=_offsets(self.operands),
            results=np.array([t for row in self.results for t in row], dtype=np.int32),
            result_offset=_offsets(self.results),
            flops=flops.astype(np.float64),
            bytes_accessed=moved.astype(np.float64),
            phase=self.phases(),
            free=self.free(dict(zip(tensors, roles, strict=True))),
            parent=parent.astype(np.int32),
            op_name=op_name.astype(np.int32),
            attribute=attribute.astype(np.int32),
            parameter_tensor=np.array(tensors, dtype=np.int32),
            parameter_path=np.array(path_index, dtype=np.int32),
            parameter_argument=np.array(arguments, dtype=np.int32),
            parameter_role=np.array(roles, dtype=np.uint8),
            outputs=np.array(self.outputs, dtype=np.int32),
            opcode_names=_pack(list(self.opcodes)),
            string_table=_pack(list(self.strings)),
        )

    def roles(
        self, arguments: list[int], paths: list[str], variables: int | str | Sequence[str]
    ) -> list[Role]:
        """Role of each entry parameter.

        Optimiser state: an argument whose leaves' shapes reappear, in order and in one block, among
        the outputs.
        """
        if isinstance(variables, int):
            chosen = [argument == variables for argument in arguments]
            known = max(arguments, default=-1) + 1
            if not any(chosen) and variables:
                raise HloError(f"{self.where}: variables={variables}: only {known} arguments")
        else:
            patterns = [variables] if isinstance(variables, str) else list(variables)
            chosen = match_paths(paths, patterns)
            if not any(chosen):
                raise HloError(f"{self.where}: variables={variables!r} matches no parameter path")
        key = [(self.types[t], self.shapes[t]) for t, _, _ in self.parameters]
        outputs = [(self.types[t], self.shapes[t]) for t in self.outputs]
        state = set()
        for argument in set(arguments):
            block = [k for k, a in zip(key, arguments, strict=True) if a == argument]
            places = range(len(outputs) - len(block) + 1)
            if any(outputs[i : i + len(block)] == block for i in places):
                state.add(argument)
        roles = []
        for (kind, shape), argument, picked in zip(key, arguments, chosen, strict=True):
            if picked:
                roles.append(Role.VARIABLE)
            elif not shape:
                roles.append(Role.SCALAR)
            elif argument in state and kind in FLOATING:
                roles.append(Role.OPTIMISER)
            else:
                roles.append(Role.BATCH)
        return roles

    def free(self, roles: dict[int, Role]) -> np.ndarray:
        """(I,) bool: made from constants, iota and scalar inputs only, without side effects."""
        names = list(self.opcodes)
        free_tensor = np.zeros(len(self.shapes), dtype=bool)
        free = np.zeros(len(self.rows), dtype=bool)
        for index, row in enumerate(self.rows):
            opcode = names[row[0]]
            if opcode == "parameter":
                ok = row[5] < 0 and all(roles.get(t) == Role.SCALAR for t in self.results[index])
            else:
                ok = opcode in _SOURCES or (
                    opcode not in _IMPURE
                    and opcode not in _NESTED
                    and bool(self.operands[index])
                    and all(free_tensor[t] for t in self.operands[index])
                )
            if ok:
                free[index] = True
                free_tensor[self.results[index]] = True
        return free

    def phases(self) -> np.ndarray:
        """(I,) uint8 phases, from the scopes that automatic differentiation leaves in op_name.

        ``transpose(jvp(...))`` is backward, ``jvp(...)`` forward. What has neither is update if it
        depends on the backward pass, else as early as what uses it.
        """
        strings = list(self.strings)
        kind = {"": -1}
        phase = np.full(len(self.rows), -1)
        for index, row in enumerate(self.rows):
            name = strings[row[3]]
            if name not in kind:
                # A backward scope may hold forward code again (rematerialisation): still backward.
                kind[name] = (
                    Phase.BACKWARD
                    if "transpose(" in name
                    else Phase.FORWARD
                    if "jvp(" in name
                    else -1
                )
            phase[index] = kind[name]
        if not (phase == Phase.BACKWARD).any():
            return np.zeros(len(self.rows), dtype=np.uint8)
        late = np.zeros(len(self.shapes), dtype=bool)
        for index, (ins, outs) in enumerate(zip(self.operands, self.results, strict=True)):
            behind = phase[index] == Phase.BACKWARD or any(late[t] for t in ins)
            if behind:
                late[outs] = True
                if phase[index] < 0:
                    phase[index] = Phase.UPDATE
        earliest = np.full(len(self.shapes), int(Phase.UPDATE))
        for index in range(len(self.rows) - 1, -1, -1):
            if phase[index] < 0:
                phase[index] = min(
                    (earliest[t] for t in self.results[index]), default=int(Phase.UPDATE)
                )
            for t in self.operands[index]:
                earliest[t] = min(earliest[t], phase[index])
        return phase.astype(np.uint8)


def _paths(names: list[str]) -> tuple[list[int], list[str]]:
    """Argument index and slash path of parameters named like ``params['encoder']['q']``."""
    arguments: dict[str, int] = {}
    numbers, paths = [], []
    for name in names:
        head = re.split(r"[\[./]", name, maxsplit=1)[0]
        numbers.append(arguments.setdefault(head, len(arguments)))
        keys = re.findall(r"\['([^']*)'\]|\[(\w+)\]|\.(\w+)", name[len(head) :])
        parts = [a or b or c for a, b, c in keys]
        paths.append("/".join(parts) if parts else name)
    return numbers, paths


def _leaves(shape: Any) -> int:
    if shape.element_type != TUPLE:
        return 1
    return sum(_leaves(part) for part in shape.tuple_shapes)


def _plain(message: Any) -> Any:
    """A protobuf message as plain dictionaries and lists, default values left out."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            out[field.name] = _plain(value)
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == 3:
            out[field.name] = [_plain(v) if hasattr(v, "ListFields") else v for v in value]
        else:
            out[field.name] = value
    return out


def _offsets(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int32)


