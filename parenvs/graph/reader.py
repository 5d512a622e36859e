"""Reads HLO modules: inlines calls, flattens tuples, finds phases, roles and free tensors."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from parenvs.errors import HloError, cut, one_line
from parenvs.graph import checks, opcodes
from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph
from parenvs.graph.program import Program, Row, holds_numbers, inside_costs
from parenvs.graph.proto import SPLIT, Module, Wrapper
from parenvs.graph.roles import find_twins, parse_names, with_arguments_named, with_roles
from parenvs.graph.training import with_phases

ANNOTATIONS = (
    "Sharding",
    "xla.sdy.ShardingConstraint",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
)
"""Targets of custom calls that return their operand, and say how to partition it."""
_MANUAL = (
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
)
"""Targets of custom calls around code that is written for one device of several."""


def what_passes_left(module: Any) -> Iterator[str]:
    """Yield a sentence for each thing in an HloModuleProto that does not come from the model.

    Raises:
        HloError: parts of the module are written for one device of several.
    """
    nodes = [node for c in module.computations for node in c.instructions]
    manual = [node.name for node in nodes if node.custom_call_target in _MANUAL]
    if manual:
        raise HloError(
            f"{manual[0]!r} begins or ends code for one device of several (shard_map); give the "
            "model as it is for one device, without shard_map"
        )
    if any(node.custom_call_target in ANNOTATIONS or node.sharding.type == SPLIT for node in nodes):
        yield "the module's own shardings and sharding constraints are ignored: plans decide anew"
    if any(node.opcode == "fusion" for node in nodes):
        yield (
            "XLA has optimized this module; its copies, layouts and merged instructions hide the "
            "model from partitions: the dump before optimization (*before_optimizations*) is better"
        )
    targets = [node.custom_call_target for node in nodes]
    made_by_xla = Counter(target for target in targets if target.startswith("__"))
    if made_by_xla:
        calls = ", ".join(f"{count} {target}" for target, count in sorted(made_by_xla.items()))
        yield f"custom calls of XLA's cost no FLOPs here: {calls}"


def by_id(computation: Any) -> list[Any]:
    """Return the instructions of an HloComputationProto in the order of the trace.

    That is the order of their ids, except where XLA's passes have added instructions with higher
    ids than their users': then it is that of the file, changed where an operand comes too late. An
    instruction in a cycle, or with a missing operand, is kept, for the reader to name.
    """
    nodes = list(computation.instructions)
    for order in (sorted(nodes, key=lambda node: node.id), nodes):
        place, late = {node.id: k for k, node in enumerate(order)}, len(order)
        if all(place.get(i, late) < k for k, x in enumerate(order) for i in x.operand_ids):
            return order
    from parenvs.graph.text import topological_order  # it loads scipy

    position_of = {node.id: position for position, node in enumerate(nodes)}
    predecessors = [[position_of[i] for i in set(x.operand_ids) if i in position_of] for x in nodes]
    ordered = list(topological_order(predecessors, lambda position: position))
    return [nodes[i] for i in ordered] if len(ordered) == len(nodes) else nodes


_BYTECODE = b"ML\xefR"
"""The first bytes of MLIR bytecode."""
_TEXT = re.compile(rb"^[ \t]*(\"?builtin\.)?module\b.*\{|\bfunc\.func\b|\bstablehlo\.", re.M)
"""What MLIR text has and HLO text has not."""
_CONVERTER = "jaxlib._jax"
"""Module of jaxlib that converts StableHLO to HLO."""
_REMEDY = (
    "pip install 'parenvs[jax]', or write lowered.as_text('hlo', debug_info=True) or "
    "lowered.compiler_ir('hlo').as_serialized_hlo_module_proto()"
)


def is_stablehlo(data: bytes) -> bool:
    """Return whether a file's content is StableHLO, as text or as bytecode."""
    return data.startswith(_BYTECODE) or _TEXT.search(data) is not None


def hlo_of(data: bytes, where: str) -> bytes:
    """Convert StableHLO, text or bytecode, to a serialized HloModuleProto.

    Raises:
        HloError: JAX is missing or too old, or cannot convert the module; ``where`` names the file.
    """
    source: bytes | str = data
    if not data.startswith(_BYTECODE):
        source = _decoded(data, "MLIR text", where)
        if "loc(" not in source:
            warnings.warn(
                f"{where}: this StableHLO has no names of arguments and no scopes, so parameters "
                "are called Arg_0, Arg_1, ...; lowered.as_text(debug_info=True) keeps them",
                stacklevel=2,
            )
    try:
        convert = import_module(_CONVERTER).mlir.mlir_module_to_xla_computation
    except (ImportError, AttributeError):
        raise HloError(
            f"{where}: this is StableHLO, and JAX, which converts it, is not here: {_REMEDY}"
        ) from None
    try:
        computation = convert(source, use_tuple_args=False, return_tuple=False)
        return computation.as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError, TypeError) as error:
        raise HloError(
            f"{where}: jaxlib cannot turn this StableHLO into HLO: {one_line(error)}"
        ) from None


def _decoded(data: bytes, what: str, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise HloError(f"{where}: not {what} (not UTF-8)") from None


_INLINED = ("call", "fusion", "async-start")
"""Opcodes that are replaced by the instructions of the computation that they call."""
_PASSED = ("async-update", "copy-start", "copy-done")
"""Opcodes of which the first result is the operand: copies between a device's own memories."""
_FORWARDED = ("tuple", "get-tuple-element", "call", "fusion", "parameter")
"""Opcodes whose result is another instruction's, so that its shape is declared twice."""
_GROUPS = ("feature_group_count", "batch_group_count")
_STRUCTURE = ("dot", "convolution", "window", "padding", "gather", "scatter")
_LISTS = ("dimensions", "dynamic_slice_sizes", "gather_slice_sizes", "fft_length")
"""With ``_STRUCTURE``: fields of an instruction that its factor rule needs."""
MOST_INSTRUCTIONS = 5_000_000
"""Limit of the instructions after calls are inlined."""
MOST_COPIES = 100
"""Limit of the times that all of a file's instructions are copied by inlining, on average."""
FREE_COPIES = 100_000
"""So many instructions are never too much, whatever the size of the file."""
MOST_CALLS = 100
"""Limit of the depth of calls, loops and branches."""


def check_cost(name: str, flops: float, moved: float) -> None:
    """Raise an ``HloError`` if an instruction's FLOPs or bytes are no number that can be summed."""
    for value, unit in ((flops, "FLOPs"), (moved, "bytes")):
        if not 0 <= value <= checks.MOST_COST:
            raise HloError(
                f"instruction {name!r} costs {value:.4g} {unit}, not 0 to {checks.MOST_COST:g}"
            )


def check_computation(computation: Any) -> None:
    """Check that an HloComputationProto has instructions, and numbers for its parameters.

    Raises:
        HloError: it is empty, an id stands twice, or the parameters are not numbered from 0.
    """
    nodes = computation.instructions
    if not nodes or len({node.id for node in nodes}) < len(nodes):
        raise HloError(f"computation {computation.name!r} is empty or repeats an id")
    numbers = sorted(node.parameter_number for node in nodes if node.opcode == "parameter")
    for expected, number in enumerate(numbers):
        if number != expected:
            raise HloError(
                f"computation {computation.name!r} has a parameter of number {number}; its "
                f"{len(numbers)} are to be numbered from 0, each once"
            )


def leaves(shape: Any) -> list[Any]:
    """Return the arrays of a shape, tuples flattened."""
    if shape.element_type != checks.TUPLE:
        return [shape]
    return [leaf for part in shape.tuple_shapes for leaf in leaves(part)]


class _Parameter(NamedTuple):
    """An array among the inputs of the entry computation."""

    tensor: int
    name: str
    number: int  # of the parameter, which may be a tuple of arrays


def proto_of(lowered: Any) -> bytes:
    """Serialize ``lowered``, the result of ``jax.jit(f, keep_unused=True).lower(...)``."""
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def results_of(lowered: Any) -> tuple[str, ...]:
    """Name of each array that a lowered function returns, like ``[0]['q']``; none if unknown."""
    import jax

    tree = getattr(lowered, "out_tree", None)
    if tree is None:
        return ()
    leaves = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths = jax.tree_util.tree_flatten_with_path(leaves)[0]
    return tuple(jax.tree_util.keystr(path) for path, _ in paths)


def read_file(path: Path, **options: Any) -> Graph:
    """Read a graph from a file of HLO or StableHLO; see ``read_module`` for ``options``.

    A ``.pb`` is a serialized module. StableHLO in any other file is detected from its content; else
    ``.txt`` and ``.hlo`` are HLO text.

    Raises:
        HloError: the file cannot be read, or see ``read_module``.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HloError(f"{path}: cannot be read ({error.strerror})") from None
    options.setdefault("name", path.stem)
    if path.suffix != ".pb" and is_stablehlo(data):
        data = hlo_of(data, str(path))
    elif path.suffix in (".txt", ".hlo"):
        from parenvs.graph.text import parse  # it loads scipy

        text = _decoded(data, "HLO text", str(path))
        return read_module(parse(text, str(path)), where=str(path), **options)
    return read_proto(data, where=str(path), **options)


def read_proto(data: bytes, where: str = "module", **options: Any) -> Graph:
    """Read a graph from a serialized HloModuleProto (or an HloProto, which wraps one).

    Raises:
        HloError: ``data`` is no such message, or see ``read_module``, as for the options.
    """
    for parse in (lambda: Module.FromString(data), lambda: Wrapper.FromString(data).module):  # type: ignore[attr-defined]
        try:
            module = parse()
        except DecodeError:
            continue
        if module.computations:
            return read_module(module, where=where, **options)
    raise HloError(
        f"{where}: not a serialized HloModuleProto, or truncated; give a whole .pb, .txt or .npz"
        if data
        else f"{where}: empty; give a .pb, .txt or .npz"
    )


def read_module(
    module: Any,
    where: str = "module",
    name: str | None = None,
    told: Sequence[str] = (),
    results: Sequence[str] = (),
    **choices: Any,
) -> Graph:
    """Read a graph from an HloModuleProto message.

    Phases and roles are found in the module itself, see ``parenvs.graph.training`` and ``roles``;
    what had to be assumed is warned of, and kept in ``Graph.notes``.

    Args:
        module: the message.
        where: file or function, for error messages.
        name: the graph's name (default: the module's).
        told: notes of who made the module.
        results: name of each output of the function that was lowered, like ``[0]['q']``, if known.
        **choices: ``variables``, ``batch``, ``frozen``, ``batch_size`` and ``known`` in place of
            what the reader would find, see ``parenvs.graph.roles.with_roles``.

    Raises:
        HloError: the module has no entry computation, a dangling reference or an unknown opcode.
    """
    try:
        reader = _Reader(module, where)
        plain = reader.graph(name or module.name)
        notes = (*told, *what_passes_left(module))
        plain = replace(plain, notes=notes, twins=reader.twins(results))
        flow = Flow(plain)
        names = [parameter.name for parameter in reader.parameters]
        plain = with_arguments_named(with_phases(plain, flow), names, flow, choices.get("known"))
        graph = with_roles(plain, flow=flow, **choices)
        for note in graph.notes:
            warnings.warn(f"{where}: {note}", stacklevel=2)
        return graph
    except HloError as error:
        text = str(error)
        raise HloError(text if text.startswith(f"{where}: ") else f"{where}: {text}") from None
    except (KeyError, IndexError) as error:
        raise HloError(
            f"{where}: broken or truncated module (dangling reference {error}); write it anew"
        ) from None
    except (RecursionError, MemoryError):
        raise HloError(f"{where}: broken module (too deeply nested, or too large)") from None
    except (ArithmeticError, TypeError, ValueError, AttributeError) as error:
        raise HloError(f"{where}: broken module ({one_line(error)})") from None


class _Reader:
    """Walks a module once, in trace order, and collects the instructions of a ``Graph``.

    Attributes:
        program: the instructions so far; their phases are not known yet.
        sizes: bytes of each tensor so far.
        applied: computation id -> FLOPs of one run.
        count, limit: instructions that were read, and may be; ``depth`` counts open computations.
    """

    def __init__(self, module: Any, where: str) -> None:
        self.where = where
        self.computations = {c.id: c for c in module.computations}
        for computation in module.computations:
            check_computation(computation)
        if module.entry_computation_id not in self.computations:
            raise HloError("no entry computation; not an HLO module, or truncated")
        nodes = [node for c in module.computations for node in c.instructions]
        self.limit = min(MOST_INSTRUCTIONS, FREE_COPIES + MOST_COPIES * len(nodes))
        self.count = self.depth = 0
        self.has_loops = any(node.opcode == "while" for node in nodes)
        self.program = Program()
        self.sizes: list[int] = []
        self.parameters: list[_Parameter] = []
        self.pads: dict[int, tuple[Any, opcodes.Shape]] = {}
        self.applied: dict[int, float] = {}
        self.outputs = self.block(self.computations[module.entry_computation_id], None, "", -1)
        self.parameters.sort(key=lambda parameter: parameter.number)
        self.add_loop_costs()

    def tensor(self, shape: Any) -> list[int]:
        """Add a tensor for each leaf of ``shape`` and return their numbers."""
        if shape.element_type == checks.TUPLE:
            return [t for part in shape.tuple_shapes for t in self.tensor(part)]
        dims = tuple(shape.dimensions)
        if shape.element_type not in checks.ELEMENT_TYPES:
            raise HloError(f"unknown element type {shape.element_type}")
        if any(d < 0 for d in dims):
            raise HloError(f"a shape with dynamic dimensions {dims}; lower with fixed shapes")
        bits = checks.ELEMENT_TYPES[shape.element_type][1]
        if checks.uncountable(dims):
            sizes = "x".join(map(str, dims[:8])) + ("..." if len(dims) > 8 else "")
            raise HloError(f"a shape of {sizes} has more bytes than can be counted (2^63)")
        self.sizes.append(-(-math.prod(dims) * bits // 8))
        return [self.program.tensor(dims, shape.element_type)]

    def add(self, row: Row) -> int:
        """Add an instruction and return its index."""
        # The newline separates the texts of a graph's table.
        name, attribute = (text.replace("\n", " ") for text in (row.name, row.attribute))
        self.program.rows.append(row._replace(name=name, attribute=attribute))
        return len(self.program.rows) - 1

    def block(
        self, computation: Any, arguments: list[list[int]] | None, prefix: str, parent: int
    ) -> list[int]:
        """Read a computation and return the tensors of its result.

        ``arguments`` holds the tensors of each of its parameters; None makes the parameters tensors
        and instructions of their own. ``prefix`` is a scope before each ``op_name``.
        """
        values: dict[int, list[int]] = {}
        shapes: dict[int, Any] = {}
        self.count += len(computation.instructions)
        self.depth += 1
        if self.count > self.limit:
            raise HloError(
                f"its calls would become more than {self.limit:,} instructions; give a module that "
                "calls its computations less often"
            )
        if self.depth > MOST_CALLS:
            raise HloError(
                f"its calls, loops and branches are nested more than {MOST_CALLS} deep in "
                f"{computation.name!r}, or a computation calls itself"
            )
        count = sum(node.opcode == "parameter" for node in computation.instructions)
        if arguments is not None and count != len(arguments):
            raise HloError(f"{computation.name!r} takes {count} operands, given {len(arguments)}")
        for node in by_id(computation):
            shapes[node.id] = node.shape
            operands = [values[i] for i in node.operand_ids]
            name = "/".join(filter(None, (prefix, node.metadata.op_name)))
            if node.opcode == "parameter":
                if arguments is not None:
                    values[node.id] = arguments[node.parameter_number]
                else:
                    values[node.id] = self.parameter(node, name, parent)
            elif node.opcode == "tuple":
                # Tuples of tuples can double at each step: they are counted before they are made.
                if sum(map(len, operands)) != len(leaves(node.shape)):
                    raise HloError(f"tuple {node.name!r} does not fit its shape")
                values[node.id] = [t for value in operands for t in value]
            elif node.opcode == "get-tuple-element":
                parts = shapes[node.operand_ids[0]].tuple_shapes
                if not 0 <= node.tuple_index < len(parts):
                    raise HloError(f"broken or truncated module: {node.name!r} takes no part")
                start = sum(len(leaves(p)) for p in parts[: node.tuple_index])
                stop = start + len(leaves(parts[node.tuple_index]))
                values[node.id] = operands[0][start:stop]
            elif node.custom_call_target in ANNOTATIONS or node.opcode in _PASSED:
                values[node.id] = operands[0]
            elif node.opcode in _INLINED:
                callee = self.computations[node.called_ids[0]]
                values[node.id] = self.block(callee, operands, name, parent)
                if node.opcode == "async-start":  # it returns its operands as well
                    values[node.id] = [t for v in operands for t in v] + values[node.id]
            elif node.opcode == "async-done":
                start = len(leaves(shapes[node.operand_ids[0]].tuple_shapes[0]))
                values[node.id] = operands[0][start : start + len(leaves(node.shape))]
            else:
                given_shapes = [shapes[i] for i in node.operand_ids]
                values[node.id] = self.instruction(node, operands, given_shapes, name, parent)
            if node.opcode in _FORWARDED:
                self.check_declared(node, values[node.id])
        self.depth -= 1
        return values[computation.root_id]

    def check_declared(self, node: Any, value: list[int]) -> None:
        """Raise an ``HloError`` if an instruction's arrays differ from its declared shape."""
        declared = [tuple(leaf.dimensions) for leaf in leaves(node.shape)]
        actual = [self.program.shapes[tensor] for tensor in value]
        if declared != actual:
            raise HloError(
                f"instruction {node.name!r} is declared with arrays of shapes "
                f"{cut(str(declared), 200)}, and has {cut(str(actual), 200)}"
            )

    def parameter(self, node: Any, name: str, parent: int) -> list[int]:
        """Add a parameter of the entry, or of a computation inside a while or conditional."""
        leaves = self.tensor(node.shape)
        self.add(Row("parameter", [], leaves, parent=parent, name=name or node.name))
        if parent < 0:
            for k, leaf in enumerate(leaves):
                path = name or re.sub(r"\.\d+$", "", node.name)
                path = f"{path}[{k}]" if len(leaves) > 1 else path
                self.parameters.append(_Parameter(leaf, path, node.parameter_number))
        return leaves

    def instruction(
        self, node: Any, operands: list[list[int]], shapes: list[Any], name: str, parent: int
    ) -> list[int]:
        """Add an instruction with its cost, read what it calls, and return its results."""
        flat = [t for value in operands for t in value]
        results = self.tensor(node.shape)
        inputs, outputs = ([self.program.shapes[t] for t in row] for row in (flat, results))
        fields = self.fields(node, results)
        try:
            opcodes.check_instruction(opcodes.Instruction(node.opcode, fields, inputs, outputs))
        except HloError as error:
            raise HloError(f"instruction {node.name!r}: {error}") from None
        nested = node.opcode in checks.NESTED
        applied = [] if nested else [self.flops_inside(i) for i in node.called_ids]
        pad = self.pads.get(flat[0]) if flat else None
        flops, moved = opcodes.flops_of(opcodes.Call(node, inputs, outputs, applied, pad)), 0.0
        if node.opcode == "pad":
            self.pads[results[0]] = node.padding.dimensions, inputs[0]
        is_free = node.opcode == "transpose" and opcodes.is_relabelling(node, shapes[0])
        if not (nested or is_free):
            moved = opcodes.bytes_of(
                node.opcode, [self.sizes[t] for t in flat], [self.sizes[t] for t in results]
            )
        check_cost(node.name, flops, moved)
        attribute = json.dumps(fields, separators=(",", ":")) if fields else ""
        row = Row(node.opcode, flat, results, flops, moved, 0, parent, name, attribute)
        index = self.add(row)
        if nested:
            parts = []
            for called in node.called_ids:
                computation = self.computations[called]
                returned = self.block(computation, None, name, index)
                parts.append(checks.Computation(_parameters(computation), self.arrays(returned)))
                self.add(Row("return", returned, [], parent=index, name=name))
            arrays = self.arrays(flat), self.arrays(results)
            if fault := checks.wrong_nesting(node.opcode, *arrays, parts):
                raise HloError(f"instruction {node.name!r}: {fault}")
        return results

    def arrays(self, tensors: Sequence[int]) -> list[checks.Array]:
        return [(self.program.types[t], self.program.shapes[t]) for t in tensors]

    def flops_inside(self, computation_id: int) -> float:
        """Return the FLOPs of one application of a computation, like that of a reduction."""
        if computation_id not in self.applied:
            # The instructions and tensors of an applied computation do not become the graph's.
            inner = copy(self)
            inner.program, inner.sizes = Program(), []
            inner.add(Row("computation", [], []))
            inner.block(self.computations[computation_id], None, "", 0)
            inner.add_loop_costs()
            self.applied[computation_id] = sum(x.flops for x in inner.program.rows if not x.parent)
        return self.applied[computation_id]

    def add_loop_costs(self) -> None:
        """Give the loops their trip counts, and loops and branches the cost of what is inside."""
        rows = self.program.rows
        for index, trips, flops, moved in inside_costs(self.program):
            row = rows[index]
            check_cost(row.name or row.opcode, flops, moved)
            attribute = row.attribute
            if row.opcode == "while":
                if trips is None:
                    name = row.name or "a while"
                    words = f"the trip count of {name} is not known; it is costed as one"
                    warnings.warn(f"{self.where}: {words}", stacklevel=2)
                fields = {"trip_count": 1 if trips is None else trips}
                attribute = json.dumps(fields, separators=(",", ":"))
            rows[index] = row._replace(flops=flops, bytes_accessed=moved, attribute=attribute)

    def fields(self, node: Any, results: list[int]) -> dict[str, Any]:
        """Return the fields that the opcode's factor rule needs.

        In a module with loops, so do whole numbers and their comparison, for trip counts.
        """
        result: dict[str, Any] = {}
        if self.has_loops and len(results) == 1:
            literal = node.literal
            values = (literal.s32s, literal.s64s, literal.u32s, literal.u64s, literal.preds)
            numbers = [value for literals in values for value in literals]
            [(kind, shape)] = self.arrays(results)
            if numbers and holds_numbers(shape, kind):
                result["value"] = numbers
            elif node.opcode == "compare":
                result["direction"] = node.comparison_direction
        if node.opcode in opcodes.ELEMENTWISE:
            return result
        result.update((key, list(v)) for key in _LISTS if (v := getattr(node, key)))
        result.update((key, _plain(getattr(node, key))) for key in _STRUCTURE if node.HasField(key))
        if node.slices:
            result["slices"] = [[s.start, s.limit, s.stride] for s in node.slices]
        result.update((key, count) for key in _GROUPS if (count := getattr(node, key)) > 1)
        if node.custom_call_target:
            result["target"] = node.custom_call_target
        if node.called_ids and node.opcode not in checks.NESTED:
            result["applies"] = [
                [x.opcode for x in self.computations[i].instructions if x.opcode != "parameter"]
                for i in node.called_ids
            ]
        return result

    def twins(self, results: Sequence[str]) -> tuple[tuple[int, int], ...]:
        if len(results) != len(self.outputs):
            return ()
        inputs = [parameter.tensor for parameter in self.parameters]
        names = [parameter.name for parameter in self.parameters]
        pairs = find_twins(names, results, (self.arrays(inputs), self.arrays(self.outputs)))
        return tuple((self.outputs[o], inputs[i]) for o, i in pairs)

    def graph(self, name: str) -> Graph:
        rows, parameters = self.program.rows, self.parameters
        arguments, paths = parse_names([parameter.name for parameter in parameters])
        loops = [row for row in rows if row.opcode == "while"]
        texts = [t for x in rows for t in (x.name, "" if x.opcode == "while" else x.attribute)]
        # Trip counts come last among the texts, those of inner loops first, as they are found.
        texts += [loop.attribute for loop in reversed(loops)]
        return Graph(
            name=name,
            batch_size=1,
            **self.program.arrays(
                [path.replace("\n", " ") for path in paths],
                texts,
                free=[False] * len(rows),
                parameter_tensor=[parameter.tensor for parameter in parameters],
                parameter_argument=arguments,
                parameter_role=[0] * len(parameters),
                outputs=self.outputs,
            ),
        )


def _parameters(computation: Any) -> list[checks.Array]:
    nodes = [node for node in computation.instructions if node.opcode == "parameter"]
    nodes.sort(key=lambda node: node.parameter_number)
    return [
        (leaf.element_type, tuple(leaf.dimensions)) for node in nodes for leaf in leaves(node.shape)
    ]


def _plain(message: Any) -> Any:
    """Return a protobuf message as dictionaries and lists, default values left out."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            out[field.name] = _plain(value)
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == 3:
            out[field.name] = [_plain(v) if hasattr(v, "ListFields") else v for v in value]
        else:
            out[field.name] = value
    return out
