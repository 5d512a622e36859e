"""Writes the loops over a model's layers out, one iteration after another, for its chain.

A loop that reads another part of stacked variables in each iteration goes through layers: its
iterations can be on different stages of a pipeline. Of a loop that holds a whole training step (the
accumulation of gradients over micro-batches), or a whole forward pass that does not depend on other
iterations, one iteration stands for all. Every other loop uses the same weights in each iteration
(a recurrent net over time), stays one instruction, and is never cut.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, takewhile

import numpy as np

from parenvs.errors import HloError, one_line
from parenvs.graph.checks import fields_of
from parenvs.graph.flow import free_instructions
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.opcodes import ELEMENTWISE
from parenvs.graph.program import Loop, Numbers, Program, Row, Start, learn, trip_count, value_of
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
)

MAPPED = ELEMENTWISE | {"copy", "transpose", "bitcast"}
"""Opcodes that may treat each position of the leading dimension apart."""
VIEWS = ("reshape", "bitcast")
"""Opcodes that give the same numbers other dimensions."""

_HEAVY = ("dot", "convolution", "while", "conditional", "custom-call")
"""Opcodes that do a model's work."""


def goes_through_layers(loop: Loop, start: Start, weights: Collection[int]) -> bool:
    """Return whether an iteration's own weights outweigh those that all iterations share.

    Its own are blocks of stacked weights, at indices made of the counter; ``weights`` are inputs
    that hold weights and are the same in every iteration.
    """
    shapes = loop.program.shapes
    first = {t: v for t, v in zip(loop.inputs, start, strict=True) if v is not None}
    learn(loop.program, loop.body, first)
    pairs = zip(loop.inputs, loop.outputs, strict=True)
    second = {t: first[out] for t, out in pairs if out in first}
    learn(loop.program, loop.body, second)
    stacks, shared, own = set(weights), set(), 0
    for row in loop.rows:
        used = stacks.intersection(row.operands)
        if not used:
            continue
        # An index that differs between the first two iterations is made of the counter.
        if row.opcode in ("dynamic-slice", "gather") and any(
            first.get(t) != second.get(t) for t in row.operands[1:]
        ):
            own += math.prod(shapes[row.results[0]])
        elif row.opcode in MAPPED or row.opcode in VIEWS:
            stacks.update(row.results)
        else:
            shared |= used
    return own > sum(math.prod(shapes[t]) for t in shared)


def is_independent(loop: Loop, start: Start) -> bool:
    """Return whether no iteration works on what an earlier one computed.

    Counters, sums over the iterations and stacks of their results are no work.
    """
    carried = {
        before
        for before, after, value in zip(loop.inputs, loop.outputs, start, strict=True)
        if before != after and value is None
    }
    for row in loop.rows:
        if not carried.isdisjoint(row.operands):
            if row.opcode in _HEAVY:
                return False
            carried.update(row.results)
    return True


def blocks_of_stacks(program: Program) -> set[int]:
    """Return the tensors that loops read or write block by block.

    With them come the tensors of which they are casts, reshapes and joins, or which are put into
    them: what computes these can wait until a block is needed.
    """
    read: set[int] = set()
    written: set[int] = set()
    inside = program.inside()
    # Backwards, as what is inside a loop has higher numbers than the loop.
    for index, row in reversed(list(enumerate(program.rows))):
        is_read = not read.isdisjoint(row.results)
        if row.opcode == "while":
            inputs = Loop.of(program, inside[index]).inputs
            read.update(t for t, inner in zip(row.operands, inputs, strict=True) if inner in read)
        elif row.opcode == "dynamic-update-slice":
            written.add(row.operands[1])
        elif row.parent >= 0 and row.opcode in ("dynamic-slice", "gather"):
            read.add(row.operands[0])
        elif row.opcode in VIEWS or row.opcode == "concatenate":
            read.update(row.operands if is_read else ())
            written.update(row.operands if not written.isdisjoint(row.results) else ())
        elif is_read and (row.opcode in MAPPED or row.opcode == "slice"):
            read.update(row.operands)
    return read | written


LEADING = '{"dimensions":[0]}'
"""Attribute of a concatenation along the leading dimension."""


class TooLargeError(Exception):
    """More rows would be written than are allowed."""


MOST_ITERATIONS = 10_000
"""Loops that run more often are no loops over layers that a chain could hold."""
MOST_INSTRUCTIONS = 200_000
"""Loops stay rolled if their iterations would add more than this."""
WHOLE = 0.9
"""Share of the forward pass's FLOPs that a loop has which runs all of it on one micro-batch."""
_READS = ("dynamic-slice", "slice", "gather")
_PERHAPS = {*MAPPED, *VIEWS, *_READS, "dynamic-update-slice", "concatenate"}
"""Opcodes of instructions that are not always written."""
_NO_WEIGHT = (Role.BATCH, Role.SCALAR, Role.OPTIMIZER)
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


Rename = Callable[[str], str]


class _Unroller:
    """Walks a graph once, in order, and writes the new one.

    Attributes:
        program: the instructions of the old graph.
        new: those of the new one, at most ``limit``.
        maker: tensor of the new graph -> index of the instruction that computes it.
        value: tensor of the old graph -> its present value.
        known: tensor of the new graph -> the whole numbers that it is known to hold.
        lazy: tensors of the old graph that loops read or write block by block.
        parts: what became a tensor of the entry parameters' parts.
        titles: what the iterations of the loops that were written out are called.
        current_name: name of the instruction that is being written.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.program, self.new = Program.of(graph), Program()
        self.inside = self.program.inside()
        self.limit = len(graph.opcode) + MOST_INSTRUCTIONS
        self.maker: dict[int, int] = {}
        self.value: dict[int, Value] = {}
        self.known: dict[int, Numbers] = {}
        self.parts: dict[Part, int] = {}
        self.outputs: list[int] = []
        self.batches: Counter[int] = Counter()  # leading dimensions of what one micro-batch reads
        self.titles: set[str] = set()
        self.current_name = ""
        self.lazy = blocks_of_stacks(self.program)
        rows = self.program.rows
        self.free = {t for k in np.flatnonzero(graph.free).tolist() for t in rows[k].results}

    def run(self) -> None:
        for index, tensor in enumerate(self.old.parameter_tensor.tolist()):
            self.value[tensor] = Part.whole(index, self.program.shapes[tensor])
        self.block(self.inside[-1], lambda name: name)
        # An output is read after everything else, so it must not widen a forward cut.
        last = max((row.phase for row in self.program.rows), default=int(Phase.FORWARD))
        for tensor in self.old.outputs.tolist():
            value = self.value[tensor]
            pieces = value.pieces() if isinstance(value, Stack) else [value]
            self.outputs.extend(self.tensor(piece, last) for piece in pieces)

    def write(self, row: Row) -> None:
        """Append an instruction to the new graph; raises a ``TooLargeError`` beyond ``limit``."""
        if len(self.new.rows) == self.limit:
            raise TooLargeError
        self.maker.update(dict.fromkeys(row.results, len(self.new.rows)))
        self.new.rows.append(row)

    def block(self, indices: Iterable[int], rename: Rename) -> None:
        """Write instructions of the old graph; ``rename`` gives them their new names."""
        for index in indices:
            row = self.program.rows[index]
            if row.opcode == "parameter":
                continue
            if row.opcode == "while":
                self.loop(index, rename)
                continue
            view = self.view(index)
            if view is None:
                self.copy(index, rename)
            else:
                self.value[row.results[0]] = view

    def loop(self, index: int, rename: Rename) -> None:
        """Write a loop: its iterations, or one of them, or the loop as it is."""
        row = self.program.rows[index]
        loop = Loop.of(self.program, self.inside[index])
        carried = [self.value[t] for t in row.operands]
        start = [self.known.get(v) if isinstance(v, int) else None for v in carried]
        trips = self.iterations(row, loop, carried, start)
        one_of_many = not trips and self.is_one_of_many(row, loop, start)
        if not (trips or one_of_many):
            self.copy(index, rename)
            return
        # So that the limit is not only found after it has been reached.
        written = sum(inner.opcode not in _PERHAPS for inner in loop.rows)
        if trips > MOST_ITERATIONS or trips * written > self.limit - len(self.new.rows):
            raise TooLargeError
        title = self.title(row, loop, carried, rename)
        for k in range(trips or 1):
            name = self.iteration_name(row.name, f"{title}[{k}]" if trips else title)
            # The condition is written as well: it may compute values that have FLOPs.
            self.value.update(zip(loop.tested, carried, strict=True))
            self.block(loop.condition, name)
            self.value.update(zip(loop.inputs, carried, strict=True))
            if one_of_many:
                self.count_batch(loop)
            self.block(loop.body, name)
            carried = [self.value[t] for t in loop.outputs]
        self.value.update(zip(row.results, carried, strict=True))

    def iterations(self, row: Row, loop: Loop, carried: Sequence[Value], start: Start) -> int:
        """Return the trip count of a loop over layers, 0 for any other loop."""
        if row.phase != Phase.FORWARD:
            return 0
        weights = {
            before
            for before, after, value in zip(loop.inputs, loop.outputs, carried, strict=True)
            if before == after and is_weight(value, self.holds_weight)
        }
        if not goes_through_layers(loop, start, weights):
            return 0
        return trip_count(loop, start) or 0

    def is_one_of_many(self, row: Row, loop: Loop, start: Start) -> bool:
        """Return whether each iteration of a loop runs the whole model on another micro-batch."""
        if {Phase.FORWARD, Phase.BACKWARD} <= {inner.phase for inner in loop.rows}:
            return True
        if row.phase != Phase.FORWARD or row.parent >= 0:
            return False
        pivots = self.old.flops[self.old.pivots()].sum()
        # A loop over micro-batches of a forward pass is nearly all of its work.
        return row.flops >= WHOLE * pivots > 0 and is_independent(loop, start)

    def holds_weight(self, parameter: int) -> bool:
        return self.old.parameter_role[parameter] not in _NO_WEIGHT

    def count_batch(self, loop: Loop) -> None:
        """Note the leading dimension of the batch inputs' blocks that one iteration reads."""
        pairs = ((t, self.value[t]) for t in loop.inputs)
        known = {t: self.known[v] for t, v in pairs if isinstance(v, int) and v in self.known}
        learn(self.program, loop.body, known)
        for row in loop.rows:
            if row.opcode not in ("dynamic-slice", "gather"):
                continue
            value = self.value.get(row.operands[0])
            source = value.source if isinstance(value, Reshaped) else value
            if isinstance(source, Part) and self.old.parameter_role[source.parameter] == Role.BATCH:
                shape = self.program.shapes[row.results[0]]
                # A block of one micro-batch has a leading 1, behind which its samples are.
                rest = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
                self.batches.update(rest[:1])

    def title(self, row: Row, loop: Loop, carried: Sequence[Value], rename: Rename) -> str:
        """Return what a loop is called: its scope, or the path of the variables it reads."""
        scope = re.sub(r"/?while$", "", rename(row.name))
        inputs = dict(zip(loop.inputs, carried, strict=True))
        paths = [
            self.old.paths[part.parameter].split("/")[:-1]
            for inner in loop.rows
            if inner.opcode in _READS
            for part in parts_of(inputs.get(inner.operands[0], 0))
            if self.holds_weight(part.parameter)
        ]
        same = takewhile(lambda words: len(set(words)) == 1, zip(*paths, strict=False))
        read = "/".join(words[0] for words in same) or "while"
        # A scope in brackets is JAX's own, like jvp(...), and says nothing of the model.
        titles = [] if "(" in scope.rpartition("/")[2] else [scope]
        longer = f"{scope}/{read}".lstrip("/")
        titles += [longer, *(f"{longer}_{n}" for n in range(2, len(self.titles) + 3))]
        title = next(text for text in titles if text and text not in self.titles)
        self.titles.add(title)
        return title

    def iteration_name(self, prefix: str, title: str) -> Rename:
        """Return a function from an instruction's name to its name in an iteration."""

        def rename(name: str) -> str:
            inner = name.removeprefix(prefix).lstrip("/")
            return f"{title}/{_SCOPE.sub('', inner, count=1).lstrip('/')}".rstrip("/")

        return rename

    def path(self, part: Part) -> str:
        return self.old.paths[part.parameter] + part.suffix

    def block_bounds(self, row: Row) -> tuple[int, int] | None:
        """Return start and size of the block that an instruction reads or writes.

        None if it is no block along the leading dimension, or its place is not known.
        """
        fields = fields_of(row.attribute)
        whole = self.program.shapes[row.operands[0]]
        if not whole:
            return None
        first: int | None
        if row.opcode == "slice":
            (first, limit, stride), *others = fields["slices"]
            sizes = [limit - first, *(b - a for a, b, _ in others)]
            sizes[0] = -1 if stride != 1 else sizes[0]
        elif row.opcode == "gather":
            sizes = fields.get("gather_slice_sizes", [])
            index_map = fields["gather"].get("start_index_map", [])
            first = self.number(row.operands[1]) if index_map == [0] else None
        elif row.opcode == "dynamic-slice":
            sizes, first = fields["dynamic_slice_sizes"], self.number(row.operands[1])
        else:
            sizes = list(self.program.shapes[row.operands[1]])
            first = self.number(row.operands[2])
        if first is None or list(sizes[1:]) != list(whole[1:]) or not 0 < sizes[0] <= whole[0]:
            return None
        # As in XLA, a block that begins out of range is moved inside.
        return min(max(first, 0), whole[0] - sizes[0]), sizes[0]

    def number(self, tensor: int) -> int | None:
        value = self.value.get(tensor)
        numbers = self.known.get(value, ()) if isinstance(value, int) else ()
        return numbers[0] if len(numbers) == 1 else None

    def view(self, index: int) -> View | int | None:
        """Return the result of an instruction as a view; None if it must be computed here."""
        program, row = self.program, self.program.rows[index]
        if len(row.results) != 1 or not row.operands:
            return None
        result = row.results[0]
        values, shape = [self.value[t] for t in row.operands], program.shapes[result]
        lazy = result in self.lazy
        if row.opcode in VIEWS and program.types[row.operands[0]] == program.types[result]:
            source = values[0]
            if isinstance(source, int) and lazy:
                source = Computed(source, program.shapes[row.operands[0]])
            view = reshaped(source, shape)
            return view if lazy or not isinstance(view, Reshaped) else None
        if row.opcode in _READS and not isinstance(values[0], int):
            bounds = self.block_bounds(row)
            cut = values[0].cut(*bounds) if bounds else None
            if isinstance(cut, int):
                return cut if self.new.shapes[cut] == shape else None
            return reshaped(cut, shape)
        if row.opcode == "dynamic-update-slice" and row.parent >= 0:
            return self.written(row, values)
        if not lazy or not shape:
            return None
        if row.opcode == "concatenate":
            return self.joined(row, values)
        if row.opcode == "transpose" and fields_of(row.attribute)["dimensions"][0]:
            return None
        weights = [is_weight(value, self.holds_weight) for value in values]
        apart = [w or t in self.free for w, t in zip(weights, row.operands, strict=True)]
        if row.opcode in MAPPED and all(apart) and any(weights):
            return Mapped(index, tuple(values), shape, row.opcode != "transpose")
        return None

    def written(self, row: Row, values: Sequence[Value]) -> Stack | None:
        """Return the stack after an update along the leading dimension; None for other updates."""
        bounds = self.block_bounds(row)
        if bounds is None:
            return None
        base, block, *_ = values
        if not isinstance(base, Stack) or base.tensors:
            whole = base.tensors[min(base.tensors)] if isinstance(base, Stack) else base
            base = Stack(self.program.shapes[row.results[0]], {}, whole)
        return base.written(bounds, block)

    def joined(self, row: Row, values: Sequence[Value]) -> Stack | None:
        """Return what a concatenation along the leading dimension joins, as a stack."""
        if fields_of(row.attribute)["dimensions"] != [0]:
            return None
        sizes = [self.program.shapes[t][0] for t in row.operands]
        extents = zip(accumulate(sizes, initial=0), sizes, strict=False)
        return Stack(self.program.shapes[row.results[0]], dict(zip(extents, values, strict=True)))

    def tensor(self, value: Value, phase: int) -> int:
        """Return the tensor of a value, which an instruction of ``phase`` computes with."""
        if isinstance(value, int | Computed):
            return value if isinstance(value, int) else value.tensor
        if isinstance(value, Part):
            return self.parameter(value, phase)
        # A tensor of a later phase must not be read earlier: it would widen forward cuts.
        done = next((t for p, t in value.tensors.items() if p <= phase), None)
        if done is None:
            done = value.tensors[phase] = self.materialize(value, phase)
        return done

    def parameter(self, part: Part, phase: int) -> int:
        if part not in self.parts:
            old = self.old.parameter_tensor[part.parameter]
            self.parts[part] = result = self.new.tensor(part.shape, self.program.types[old])
            self.write(Row("parameter", [], [result], phase=phase, name=self.path(part)))
        return self.parts[part]

    def materialize(self, value: Reshaped | Mapped | Stack, phase: int) -> int:
        """Write the instruction that computes a view, and return its tensor."""
        if isinstance(value, Reshaped):
            return self.combine("reshape", [value.source], value.shape, phase)
        pieces = value.pieces()
        if pieces or isinstance(value, Stack):
            return self.combine("concatenate", pieces, value.shape, phase)
        row = self.program.rows[value.row]
        sources = [self.tensor(s, phase) for s in value.sources]
        result = self.new.tensor(value.shape, self.program.types[row.results[0]])
        part = next(parts_of(value), None)
        scope = self.current_name.rpartition("/")[0] if part is None else self.path(part)
        flops, moved = row.flops * value.share, row.bytes_accessed * value.share
        name, phase = f"{scope}/{row.name.rpartition('/')[2]}", max(phase, row.phase)
        new = Row(row.opcode, sources, [result], flops, moved, phase, -1, name, row.attribute)
        self.write(new)
        return result

    def combine(self, opcode: str, values: Sequence[Value], shape: Shape, phase: int) -> int:
        sources = [self.tensor(value, phase) for value in values]
        result = self.new.tensor(shape, self.new.types[sources[0]])
        name = f"{self.current_name.rpartition('/')[0]}/{opcode}".lstrip("/")
        attribute = LEADING if opcode == "concatenate" else ""
        self.write(Row(opcode, sources, [result], 0.0, 0.0, phase, -1, name, attribute))
        return result

    def copy(self, index: int, rename: Rename, parent: int = -1) -> None:
        """Write an instruction as it is, with what is inside it."""
        program, row = self.program, self.program.rows[index]
        name = self.current_name = rename(row.name)
        operands = [self.tensor(self.value[t], row.phase) for t in row.operands]
        results = [self.new.tensor(program.shapes[t], program.types[t]) for t in row.results]
        self.value.update(zip(row.results, results, strict=True))
        self.write(row._replace(operands=operands, results=results, parent=parent, name=name))
        pairs = zip(row.operands, operands, strict=True)
        known = {t: self.known[new] for t, new in pairs if new in self.known}
        number = value_of(program, row, known)
        if number is not None:
            self.known[results[0]] = number
        written = len(self.new.rows) - 1
        for inner in self.inside.get(index, ()):
            self.copy(inner, rename, written)

    def divide_parameters(self) -> None:
        """Make parts of entry parameters that hold other parts joins of these."""
        read: dict[int, list[Part]] = {i: [] for i in range(len(self.old.parameter_tensor))}
        for part in self.parts:
            read[part.parameter].append(part)
        for index, tensor in enumerate(self.old.parameter_tensor.tolist()):
            if read[index]:
                self.divide(read[index])
            else:
                whole = Part.whole(index, self.program.shapes[tensor])
                self.parameter(whole, self.program.rows[0].phase)

    def divide(self, read: Sequence[Part]) -> None:
        """Concatenate the parts of a parameter that contain others from parts that do not."""
        # The largest parts first: what they are divided into may be divided again.
        stack = [part for part in read if not any(contains(other, part) for other in read)]
        while stack:
            whole = stack.pop()
            pieces = division(whole, read)
            if not pieces:
                continue
            if whole in self.parts:
                result = self.parts.pop(whole)
                index = self.maker[result]
                row = self.new.rows[index]
                sources = [self.parameter(piece, row.phase) for piece in pieces]
                joined = row._replace(opcode="concatenate", operands=sources, attribute=LEADING)
                self.new.rows[index] = joined
            stack.extend(pieces)

    def graph(self) -> Graph:
        self.divide_parameters()
        # Entry parameters are written where they are first used; in a graph they stand first.
        rows = self.new.rows
        entries = [row.opcode == "parameter" and row.parent < 0 for row in rows]
        order = sorted(range(len(rows)), key=entries.__getitem__, reverse=True)
        new_index = {before: after for after, before in enumerate(order)} | {-1: -1}
        rows = self.new.rows = [rows[k]._replace(parent=new_index[rows[k].parent]) for k in order]
        parts = sorted(self.parts, key=lambda part: (part.parameter, (*part.indices, part.start)))
        tensors = [self.parts[part] for part in parts]
        sources = [part.parameter for part in parts]
        role = self.old.parameter_role[sources]
        scalars = {t for t, kind in zip(tensors, role, strict=True) if kind == Role.SCALAR}
        [(batch_size, _)] = self.batches.most_common(1) or [(self.old.batch_size, 0)]
        return replace(
            self.old,
            batch_size=batch_size,
            free=free_instructions((row[:3] for row in rows), scalars),
            parameter_argument=self.old.parameter_argument[sources],
            parameter_role=role,
            twins=(),
            **self.new.arrays(
                [self.path(part) for part in parts], parameter_tensor=tensors, outputs=self.outputs
            ),
        )
