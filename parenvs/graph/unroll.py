"""Writes the loops over a model's layers out, one iteration after another, for its chain.

A loop that reads another part of stacked variables in each iteration goes through layers: its
iterations can be on different stages of a pipeline. Of a loop that holds a whole training step (the
accumulation of gradients over micro-batches), or a whole forward pass that does not depend on other
iterations, one iteration stands for all. Every other loop uses the same weights in each iteration
(a recurrent net over time), stays one instruction, and is never cut.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from parenvs.errors import HloError, one_line
from parenvs.graph.checks import fields_of, rows_of
from parenvs.graph.flow import free_instructions
from parenvs.graph.graph import Graph, Phase, Role, offsets_of, pack_texts
from parenvs.graph.opcodes import ELEMENTWISE
from parenvs.graph.trips import Loop, Numbers, Program, learn, trip_count, value_of
from parenvs.graph.views import (
    Computed,
    Mapped,
    Part,
    Reshaped,
    Shape,
    Stack,
    Value,
    View,
    contains,
    division,
    is_weight,
    parts_of,
    reshaped,
    size_of,
)

MAPPED = ELEMENTWISE | {"copy", "transpose", "bitcast"}
"""Opcodes that may treat each position of the leading dimension apart."""
VIEWS = ("reshape", "bitcast")
"""Opcodes that give the same numbers other dimensions."""

_HEAVY = ("dot", "convolution", "while", "conditional", "custom-call")
"""Opcodes that do a model's work."""


def goes_through_layers(
    program: Program, loop: Loop, start: Sequence[Numbers | None], weights: Collection[int]
) -> bool:
    """Return whether an iteration's own weights outweigh those that all iterations share.

    Its own are blocks of stacked weights, at places that the counter gives; ``weights`` are inputs
    that hold weights and are the same in every iteration.
    """
    first = {t: v for t, v in zip(loop.inputs, start, strict=True) if v is not None}
    learn(program, loop.body, first)
    second = {
        t: first[out] for t, out in zip(loop.inputs, loop.outputs, strict=True) if out in first
    }
    learn(program, loop.body, second)
    stacks, shared, local = set(weights), set(), 0
    for row in loop.body:
        opcode, operands = program.opcodes[row], program.operands[row]
        used = stacks.intersection(operands)
        if not used:
            continue
        if opcode in ("dynamic-slice", "gather") and any(
            first.get(t) != second.get(t) for t in operands[1:]
        ):
            local += size_of(program.shapes[program.results[row][0]])
        elif opcode in MAPPED or opcode in VIEWS:
            stacks.update(program.results[row])
        else:
            shared |= used
    return local > sum(size_of(program.shapes[t]) for t in shared)


def is_independent(program: Program, loop: Loop, start: Sequence[Numbers | None]) -> bool:
    """Return whether no iteration works on what an earlier one computed.

    Counters, sums over the iterations and stacks of their results are no work.
    """
    carried = {
        before
        for before, after, value in zip(loop.inputs, loop.outputs, start, strict=True)
        if before != after and value is None
    }
    for row in loop.body:
        if not carried.isdisjoint(program.operands[row]):
            if program.opcodes[row] in _HEAVY:
                return False
            carried.update(program.results[row])
    return True


def blocks_of_stacks(program: Program) -> set[int]:
    """Return the tensors that loops read or write block by block.

    With them come the tensors of which they are casts, reshapes and joins, or which are put into
    them: what computes these can wait until a block is needed.
    """
    read: set[int] = set()
    written: set[int] = set()
    inside = program.inside()
    for row in range(len(program.opcodes) - 1, -1, -1):  # what is inside a loop has higher numbers
        opcode, operands, results = (
            program.opcodes[row],
            program.operands[row],
            program.results[row],
        )
        if opcode == "while":
            inputs = Loop.of(program, inside[row]).inputs
            read.update(t for t, inner in zip(operands, inputs, strict=True) if inner in read)
        elif opcode == "dynamic-update-slice":
            written.add(operands[1])
        elif program.parent[row] >= 0 and opcode in ("dynamic-slice", "gather"):
            read.add(operands[0])
        elif opcode in VIEWS or opcode == "concatenate":
            read.update(operands if not read.isdisjoint(results) else ())
            written.update(operands if not written.isdisjoint(results) else ())
        elif (opcode in MAPPED or opcode == "slice") and not read.isdisjoint(results):
            read.update(operands)
    return read | written


LEADING = '{"dimensions":[0]}'
"""Attribute of a concatenation along the leading dimension."""


class TooLargeError(Exception):
    """More rows were written than are allowed."""


class Row(NamedTuple):
    """One instruction of the new graph."""

    opcode: str
    operands: list[int]
    results: list[int]
    flops: float
    bytes_accessed: float
    phase: int
    parent: int
    name: str
    attribute: str


class Writer:
    """Collects instructions and tensors, and makes a graph of them.

    Attributes:
        rows: the instructions so far; those in a loop or branch follow it.
        shapes, types: dimensions and element type of each tensor.
        maker: tensor -> index of the instruction that computes it.
        most: number of rows that may be written.
    """

    def __init__(self, most: int) -> None:
        self.rows: list[Row] = []
        self.shapes: list[tuple[int, ...]] = []
        self.types: list[int] = []
        self.maker: dict[int, int] = {}
        self.most = most

    def add(self, row: Row) -> None:
        """Append an instruction; raises a ``TooLargeError`` beyond ``most``."""
        if len(self.rows) == self.most:
            raise TooLargeError
        self.maker.update(dict.fromkeys(row.results, len(self.rows)))
        self.rows.append(row)

    def tensor(self, shape: tuple[int, ...], element_type: int) -> int:
        """Add a tensor and return its number."""
        self.shapes.append(shape)
        self.types.append(element_type)
        return len(self.shapes) - 1

    def graph(
        self,
        old: Graph,
        parameters: Sequence[int],
        tensors: Sequence[int],
        paths: Sequence[str],
        outputs: Sequence[int],
    ) -> Graph:
        """Return the graph of the rows; its entry parameters stand first.

        ``parameters``, ``tensors`` and ``paths`` are (P,): the parameter of ``old`` that each entry
        parameter is, or is a part of, its tensor and its path.
        """
        # Entry parameters are written where they are first used; in a graph they stand first.
        computed = [row.opcode != "parameter" or row.parent >= 0 for row in self.rows]
        order = sorted(range(len(self.rows)), key=computed.__getitem__)
        place = {before: after for after, before in enumerate(order)} | {-1: -1}
        rows = [self.rows[i] for i in order]
        opcodes = _numbered(row.opcode for row in rows)
        strings = _numbered(["", *(t for r in rows for t in (r.name, r.attribute)), *paths])
        role = old.parameter_role[list(parameters)]
        scalars = {
            t for t, given_role in zip(tensors, role, strict=True) if given_role == Role.SCALAR
        }
        return replace(
            old,
            dims=np.array([d for shape in self.shapes for d in shape], dtype=np.int64),
            dim_offset=offsets_of(self.shapes),
            element_type=np.array(self.types, dtype=np.uint8),
            opcode=np.array([opcodes[r.opcode] for r in rows], dtype=np.uint8),
            operands=np.array([t for r in rows for t in r.operands], dtype=np.int32),
            operand_offset=offsets_of([r.operands for r in rows]),
            results=np.array([t for r in rows for t in r.results], dtype=np.int32),
            result_offset=offsets_of([r.results for r in rows]),
            flops=np.array([r.flops for r in rows]),
            bytes_accessed=np.array([r.bytes_accessed for r in rows]),
            phase=np.array([r.phase for r in rows], dtype=np.uint8),
            free=free_instructions(
                [r.opcode for r in rows],
                [r.operands for r in rows],
                [r.results for r in rows],
                scalars,
            ),
            parent=np.array([place[r.parent] for r in rows], dtype=np.int32),
            op_name=np.array([strings[r.name] for r in rows], dtype=np.int32),
            attribute=np.array([strings[r.attribute] for r in rows], dtype=np.int32),
            parameter_tensor=np.array(tensors, dtype=np.int32),
            parameter_path=np.array([strings[path] for path in paths], dtype=np.int32),
            parameter_argument=old.parameter_argument[list(parameters)],
            parameter_role=role,
            outputs=np.array(outputs, dtype=np.int32),
            opcode_names=pack_texts(list(opcodes)),
            string_table=pack_texts(list(strings)),
            twins=(),
        )


def _numbered(texts: Iterable[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def program_of(graph: Graph) -> Program:
    """Return the instructions of a graph as lists."""
    return Program(
        [graph.opcodes[code] for code in graph.opcode.tolist()],
        [graph.strings[index] for index in graph.attribute.tolist()],
        rows_of(graph.operands, graph.operand_offset),
        rows_of(graph.results, graph.result_offset),
        graph.parent.tolist(),
        [tuple(row) for row in rows_of(graph.dims, graph.dim_offset)],
        graph.element_type.tolist(),
    )


MOST_ITERATIONS = 10_000
"""Loops that run more often are no loops over layers that a chain could hold."""
MOST_INSTRUCTIONS = 200_000
"""Loops stay rolled if their iterations would add more than this."""
WHOLE = 0.9
"""Share of the forward pass's FLOPs that a loop has which runs all of it on one micro-batch."""
_READS = ("dynamic-slice", "slice", "gather")
_PERHAPS = {*MAPPED, *VIEWS, *_READS, "dynamic-update-slice", "concatenate"}
"""Opcodes of instructions that are not always written."""
_NO_WEIGHT = (Role.BATCH, Role.SCALAR, Role.OPTIMISER)
_SCOPE = re.compile(r"(?:.*?/)?while/(?:body|cond)(?:/closed_call|/checkpoint|/remat\d?)*(?=/|$)")
"""What names the computation of a loop, in front of the scopes of its instructions."""


def unrolled(graph: Graph) -> Graph:
    """Return the graph with the loops of its forward pass over layers written out.

    Each iteration's instructions are at the top, with tensors of their own. What they read of a
    stacked entry parameter is an entry parameter of its own, with a path like ``layers/w[3]``; what
    they add to a stacked result stays apart until something reads the whole. Names tell the
    iteration, like ``decoder[3]/attention/dot_general``. FLOPs sum to those of ``graph``, except
    that of a loop over micro-batches one iteration stands for all: the batch is what that sees.

    Args:
        graph: a graph as the reader made it. One without such loops is returned as it is.

    Returns:
        A graph for ``pivots`` and ``chain_bytes``. Loops of the backward pass and the update stay
        rolled, and so do loops whose trip count or whose reads are not known.
    """
    if "while" not in graph.opcodes:
        return graph
    unroller = _Unroller(graph)
    try:
        unroller.run()
        return unroller.graph() if unroller.titles else graph
    except TooLargeError:
        warnings.warn(
            f"{graph.name}: its loops stay rolled, one pivot each, as their iterations would add "
            f"more than {MOST_INSTRUCTIONS:,} instructions",
            stacklevel=2,
        )
        return graph
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise HloError(
            f"{graph.name}: its loops do not fit their shapes ({one_line(error)})"
        ) from None


class _Reading(NamedTuple):
    """A block along the leading dimension that an instruction reads or writes."""

    start: int
    size: int


Rename = Callable[[str], str]


class _Unroller:
    """Walks a graph once, in order, and writes the new one.

    Attributes:
        value: tensor of the old graph -> its present value.
        known: tensor of the new graph -> the whole numbers that it is known to hold.
        lazy: tensors of the old graph that loops read or write block by block.
        parts: what became a tensor of the entry parameters' parts.
        titles: what the iterations of the loops that were written out are called.
        here: name of the instruction that is being written.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.program = program_of(graph)
        self.inside = self.program.inside()
        self.names = [graph.strings[i] for i in graph.op_name.tolist()]
        self.phases = graph.phase.tolist()
        self.writer = Writer(len(graph.opcode) + MOST_INSTRUCTIONS)
        self.value: dict[int, Value] = {}
        self.known: dict[int, Numbers] = {}
        self.parts: dict[Part, int] = {}
        self.outputs: list[int] = []
        self.batches: Counter[int] = Counter()  # leading dimensions of what one micro-batch reads
        self.titles: set[str] = set()
        self.here = ""
        self.lazy = blocks_of_stacks(self.program)
        free = np.flatnonzero(graph.free).tolist()
        self.free = {t for row in free for t in self.program.results[row]}

    def run(self) -> None:
        for index, tensor in enumerate(self.old.parameter_tensor.tolist()):
            self.value[tensor] = Part.whole(index, self.program.shapes[tensor])
        self.block(self.inside[-1], lambda name: name)
        # An output is read after everything else, so it must not widen a forward cut.
        last = max(self.phases, default=int(Phase.FORWARD))
        for tensor in self.old.outputs.tolist():
            value = self.value[tensor]
            pieces = value.pieces() if isinstance(value, Stack) else [value]
            self.outputs.extend(self.tensor(piece, last) for piece in pieces)

    def block(self, rows: Iterable[int], rename: Rename) -> None:
        for row in rows:
            opcode = self.program.opcodes[row]
            if opcode == "parameter":
                continue
            if opcode == "while":
                self.loop(row, rename)
                continue
            view = self.view(row)
            if view is None:
                self.copy(row, rename)
            else:
                self.value[self.program.results[row][0]] = view

    def loop(self, row: int, rename: Rename) -> None:
        """Write a loop: its iterations, or one of them, or the loop as it is."""
        loop = Loop.of(self.program, self.inside[row])
        carried = [self.value[t] for t in self.program.operands[row]]
        start = [self.known.get(v) if isinstance(v, int) else None for v in carried]
        trips = self.iterations(row, loop, carried, start)
        one_of_many = not trips and self.is_one_of_many(row, loop, start)
        if not (trips or one_of_many):
            self.copy(row, rename)
            return
        # So that the limit is not only found after it has been reached.
        written = sum(self.program.opcodes[x] not in _PERHAPS for x in loop.body)
        if trips > MOST_ITERATIONS or trips * written > self.writer.most - len(self.writer.rows):
            raise TooLargeError
        title = self.title(row, loop, carried, rename)
        for k in range(trips or 1):
            name = self.iteration_name(row, f"{title}[{k}]" if trips else title)
            # The condition is written as well: it may compute values that have FLOPs.
            self.value.update(zip(loop.seen, carried, strict=True))
            self.block(loop.condition, name)
            self.value.update(zip(loop.inputs, carried, strict=True))
            if one_of_many:
                self.count_batch(loop)
            self.block(loop.body, name)
            carried = [self.value[t] for t in loop.outputs]
        self.value.update(zip(self.program.results[row], carried, strict=True))

    def iterations(
        self, row: int, loop: Loop, carried: Sequence[Value], start: Sequence[Numbers | None]
    ) -> int:
        """Return the trip count of a loop over layers, 0 for any other loop."""
        if self.phases[row] != Phase.FORWARD:
            return 0
        weights = self.weights_in(loop, carried)
        if not goes_through_layers(self.program, loop, start, weights):
            return 0
        return trip_count(self.program, loop, start) or 0

    def is_one_of_many(self, row: int, loop: Loop, start: Sequence[Numbers | None]) -> bool:
        """Return whether each iteration of a loop runs the whole model on another micro-batch."""
        if {Phase.FORWARD, Phase.BACKWARD} <= {self.phases[i] for i in loop.body}:
            return True
        if self.phases[row] != Phase.FORWARD or self.program.parent[row] >= 0:
            return False
        pivots = self.old.flops[self.old.pivots()].sum()
        # A loop over micro-batches of a forward pass is nearly all of its work.
        return self.old.flops[row] >= WHOLE * pivots > 0 and is_independent(
            self.program, loop, start
        )

    def weights_in(self, loop: Loop, carried: Sequence[Value]) -> set[int]:
        """Return the tensors that hold weights and are the same in every iteration."""
        return {
            before
            for before, after, value in zip(loop.inputs, loop.outputs, carried, strict=True)
            if before == after and is_weight(value, self.holds_weight)
        }

    def holds_weight(self, parameter: int) -> bool:
        return self.old.parameter_role[parameter] not in _NO_WEIGHT

    def count_batch(self, loop: Loop) -> None:
        """Note the leading dimension of the batch inputs' blocks that one iteration reads."""
        known = {
            t: self.known[v]
            for t in loop.inputs
            if isinstance(v := self.value[t], int) and v in self.known
        }
        learn(self.program, loop.body, known)
        for row in loop.body:
            if self.program.opcodes[row] not in ("dynamic-slice", "gather"):
                continue
            value = self.value.get(self.program.operands[row][0])
            source = value.source if isinstance(value, Reshaped) else value
            if isinstance(source, Part) and self.old.parameter_role[source.parameter] == Role.BATCH:
                shape = self.program.shapes[self.program.results[row][0]]
                rest = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
                self.batches.update(rest[:1])

    def title(self, row: int, loop: Loop, carried: Sequence[Value], rename: Rename) -> str:
        """Return what a loop is called: its scope, or the path of the variables it reads."""
        scope = re.sub(r"/?while$", "", rename(self.names[row]))
        inputs = dict(zip(loop.inputs, carried, strict=True))
        paths = [
            self.old.paths[part.parameter].split("/")[:-1]
            for inner in loop.body
            if self.program.opcodes[inner] in _READS
            for part in parts_of(inputs.get(self.program.operands[inner][0], 0))
            if self.holds_weight(part.parameter)
        ]
        same = takewhile(lambda words: len(set(words)) == 1, zip(*paths, strict=False))
        read = "/".join(words[0] for words in same) or "while"
        titles = [] if "(" in scope.rpartition("/")[2] else [scope]
        longer = f"{scope}/{read}".lstrip("/")
        titles += [longer, *(f"{longer}_{n}" for n in range(2, len(self.titles) + 3))]
        title = next(text for text in titles if text and text not in self.titles)
        self.titles.add(title)
        return title

    def iteration_name(self, row: int, title: str) -> Rename:
        """Return a function from an instruction's name to its name in an iteration."""
        prefix = self.names[row]

        def rename(name: str) -> str:
            inner = name.removeprefix(prefix).lstrip("/")
            return f"{title}/{_SCOPE.sub('', inner, count=1).lstrip('/')}".rstrip("/")

        return rename

    def path(self, part: Part) -> str:
        return self.old.paths[part.parameter] + part.suffix

    def reading(self, row: int) -> _Reading | None:
        """Return the block that an instruction reads along the leading dimension, if only that."""
        program = self.program
        opcode, operands = program.opcodes[row], program.operands[row]
        fields = fields_of(program.attributes[row])
        whole = program.shapes[operands[0]]
        if not whole:
            return None
        first: int | None
        if opcode == "slice":
            (first, limit, stride), *others = fields["slices"]
            sizes = [limit - first, *(b - a for a, b, _ in others)]
            sizes[0] = -1 if stride != 1 else sizes[0]
        elif opcode == "gather":
            numbers, sizes = fields["gather"], fields.get("gather_slice_sizes", [])
            index_map = numbers.get("start_index_map", [])
            first = self.number(operands[1]) if index_map == [0] else None
        else:
            if opcode == "dynamic-slice":
                sizes = fields["dynamic_slice_sizes"]
            else:
                sizes = list(program.shapes[operands[1]])
            first = self.number(operands[1 if opcode == "dynamic-slice" else 2])
        if first is None or list(sizes[1:]) != list(whole[1:]) or not 0 < sizes[0] <= whole[0]:
            return None
        return _Reading(min(max(first, 0), whole[0] - sizes[0]), sizes[0])

    def number(self, tensor: int) -> int | None:
        value = self.value.get(tensor)
        numbers = self.known.get(value, ()) if isinstance(value, int) else ()
        return numbers[0] if len(numbers) == 1 else None

    def view(self, row: int) -> View | int | None:
        """Return the result of an instruction as a view; None if it must be computed here."""
        program = self.program
        opcode, operands, results = (
            program.opcodes[row],
            program.operands[row],
            program.results[row],
        )
        if len(results) != 1 or not operands:
            return None
        values, shape = [self.value[t] for t in operands], program.shapes[results[0]]
        lazy = results[0] in self.lazy
        if opcode in VIEWS and program.types[operands[0]] == program.types[results[0]]:
            source = values[0]
            if isinstance(source, int) and lazy:
                source = Computed(source, program.shapes[operands[0]])
            view = reshaped(source, shape)
            return view if lazy or not isinstance(view, Reshaped) else None
        if opcode in _READS and not isinstance(values[0], int):
            reading = self.reading(row)
            cut = values[0].cut(*reading) if reading else None
            if isinstance(cut, int):
                return cut if self.writer.shapes[cut] == shape else None
            return reshaped(cut, shape)
        if opcode == "dynamic-update-slice" and program.parent[row] >= 0:
            return self.written(row, values)
        if not lazy or not shape:
            return None
        if opcode == "concatenate":
            return self.joined(row, values)
        weights = [is_weight(value, self.holds_weight) for value in values]
        if opcode == "transpose" and fields_of(program.attributes[row])["dimensions"][0]:
            return None
        apart = [w or t in self.free for w, t in zip(weights, operands, strict=True)]
        if opcode in MAPPED and all(apart) and any(weights):
            return Mapped(row, tuple(values), shape, opcode != "transpose")
        return None

    def written(self, row: int, values: Sequence[Value]) -> Stack | None:
        """Return the stack after an update along the leading dimension; None for other updates."""
        writing = self.reading(row)
        if writing is None:
            return None
        base, block = values[0], values[1]
        if not isinstance(base, Stack) or base.tensors:
            shape = self.program.shapes[self.program.results[row][0]]
            whole = base.tensors[min(base.tensors)] if isinstance(base, Stack) else base
            base = Stack(shape, {}, whole)
        return base.written(writing.start, block, writing.size)

    def joined(self, row: int, values: Sequence[Value]) -> Stack | None:
        """Return what a concatenation along the leading dimension joins, as a stack."""
        program = self.program
        if fields_of(program.attributes[row])["dimensions"] != [0]:
            return None
        sizes = [program.shapes[t][0] for t in program.operands[row]]
        ends = np.cumsum([0, *sizes]).tolist()
        places = [(a, b - a) for a, b in pairwise(ends)]
        return Stack(
            program.shapes[program.results[row][0]], dict(zip(places, values, strict=True))
        )

    def tensor(self, value: Value, phase: int) -> int:
        """Return the tensor of a value, which an instruction of ``phase`` computes with."""
        if isinstance(value, int):
            return value
        if isinstance(value, Computed):
            return value.tensor
        if isinstance(value, Part):
            return self.parameter(value, phase)
        done = [t for p, t in value.tensors.items() if p <= phase]
        if not done:
            value.tensors[phase] = self.become(value, phase)
            done = [value.tensors[phase]]
        return done[0]

    def parameter(self, part: Part, phase: int) -> int:
        if part not in self.parts:
            old = self.old.parameter_tensor[part.parameter]
            self.parts[part] = self.writer.tensor(part.shape, int(self.old.element_type[old]))
            result = [self.parts[part]]
            self.writer.add(Row("parameter", [], result, 0.0, 0.0, phase, -1, self.path(part), ""))
        return self.parts[part]

    def become(self, value: Reshaped | Mapped | Stack, phase: int) -> int:
        scope = self.here.rpartition("/")[0]
        if isinstance(value, Reshaped):
            return self.combine("reshape", [value.source], value.shape, phase)
        pieces = value.pieces()
        if pieces or isinstance(value, Stack):
            return self.combine("concatenate", pieces, value.shape, phase)
        sources = [self.tensor(s, phase) for s in value.sources]
        result = self.writer.tensor(
            value.shape, self.program.types[self.program.results[value.row][0]]
        )
        name = self.names[value.row].rpartition("/")[2]
        part = next(parts_of(value), None)
        scope = scope if part is None else self.path(part)
        self.write_like(value.row, sources, [result], phase, f"{scope}/{name}", share=value.share)
        return result

    def combine(self, opcode: str, values: Sequence[Value], shape: Shape, phase: int) -> int:
        sources = [self.tensor(value, phase) for value in values]
        result = self.writer.tensor(shape, self.writer.types[sources[0]])
        name = f"{self.here.rpartition('/')[0]}/{opcode}".lstrip("/")
        attribute = LEADING if opcode == "concatenate" else ""
        self.writer.add(Row(opcode, sources, [result], 0.0, 0.0, phase, -1, name, attribute))
        return result

    def copy(self, row: int, rename: Rename, parent: int = -1) -> None:
        program, phase = self.program, self.phases[row]
        name = self.here = rename(self.names[row])
        old, result = program.operands[row], program.results[row]
        operands = [self.tensor(self.value[t], phase) for t in old]
        results = [self.writer.tensor(program.shapes[t], program.types[t]) for t in result]
        self.value.update(zip(result, results, strict=True))
        self.write_like(row, operands, results, phase, name, parent)
        known = [(t, self.known.get(new)) for t, new in zip(old, operands, strict=True)]
        number = value_of(program, row, {t: value for t, value in known if value is not None})
        if number is not None:
            self.known[results[0]] = number
        index = len(self.writer.rows) - 1
        for inner in self.inside.get(row, ()):
            self.copy(inner, rename, index)

    def write_like(
        self,
        row: int,
        operands: list[int],
        results: list[int],
        phase: int,
        name: str,
        parent: int = -1,
        share: float = 1.0,
    ) -> None:
        """Write an instruction with the cost and fields of an old one, or with a share of it."""
        old = self.program
        flops, moved = float(self.old.flops[row]), float(self.old.bytes_accessed[row])
        self.writer.add(
            Row(
                old.opcodes[row], operands, results, flops * share, moved * share,
                max(phase, self.phases[row]), parent, name, old.attributes[row],
            )
        )  # fmt: skip

    def divide_parameters(self) -> None:
        """Make parts of entry parameters that hold other parts joins of these."""
        read: dict[int, list[Part]] = {i: [] for i in range(len(self.old.parameter_tensor))}
        for part in self.parts:
            read[part.parameter].append(part)
        for index, tensor in enumerate(self.old.parameter_tensor.tolist()):
            if not read[index]:
                self.parameter(Part.whole(index, self.program.shapes[tensor]), self.phases[0])
            else:
                self.divide(read[index])

    def divide(self, read: Sequence[Part]) -> None:
        waiting = [part for part in read if not any(contains(other, part) for other in read)]
        while waiting:
            whole = waiting.pop()
            pieces = division(whole, read)
            if not pieces:
                continue
            if whole in self.parts:
                result = self.parts.pop(whole)
                at = self.writer.maker[result]
                row = self.writer.rows[at]
                sources = [self.parameter(piece, row.phase) for piece in pieces]
                self.writer.rows[at] = row._replace(
                    opcode="concatenate", operands=sources, attribute=LEADING
                )
            waiting.extend(pieces)

    def graph(self) -> Graph:
        self.divide_parameters()
        parts = sorted(self.parts, key=_place)
        graph = self.writer.graph(
            self.old,
            [part.parameter for part in parts],
            [self.parts[part] for part in parts],
            [self.path(part) for part in parts],
            self.outputs,
        )
        if not self.batches:
            return graph
        return replace(graph, batch_size=self.batches.most_common(1)[0][0])


def _place(part: Part) -> tuple[int, tuple[int, ...]]:
    return part.parameter, (*part.indices, part.start)
