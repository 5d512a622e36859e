"""Tells weights from data among inputs by how they are read, where no update or gradient tells it.

Data are what a batch brings: whole numbers (tokens, labels, indices), images, and what goes through
the model with them. Weights are what they are multiplied with, looked up in or shifted by.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from parenvs.errors import HloError
from parenvs.graph.checks import ELEMENT_TYPES, FLOATING, fields_of
from parenvs.graph.flow import CARRIES, PARTS, VIEWS, Flow
from parenvs.graph.graph import Phase
from parenvs.graph.opcodes import ELEMENTWISE, OUT, Factor, Instruction, Kind, Shape, factors_of

STEPPED, CONTRACTED, REDUCED, SHARED = "stepped", "contracted", "reduced", "shared"
"""What ends a dimension, or is done to it: a loop goes through it, a product or a reduction sums
over it, a product pairs it with the same dimension of the other operand."""
_DONE = {Kind.KEPT: "", Kind.CONTRACTED: CONTRACTED, Kind.REDUCED: REDUCED, Kind.INDEXED: ""}
_BOTH_AND_RESULT = 3
"""Dimensions that a product pairs: one of each factor, and the result's."""
Move = tuple[list[int], str]
"""Dimensions of the result that a dimension becomes, and what is done to it, "" for nothing."""


@dataclass
class Journey:
    """Where a dimension of a tensor goes.

    Attributes:
        reached: tensors and dimensions.
        done: what is done to it on the way, and the instructions that do it.
    """

    reached: set[tuple[int, int]] = field(default_factory=set)
    done: dict[str, list[int]] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _factors(
    opcode: str, attribute: str, operands: tuple[Shape, ...], results: tuple[Shape, ...]
) -> tuple[Factor, ...]:
    try:
        return factors_of(Instruction(opcode, fields_of(attribute), operands, results))
    except HloError:
        return ()


class Axes:
    """The dimensions of a module's tensors on their way."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def factors(self, index: int) -> tuple[Factor, ...]:
        """Factors of an instruction; none if no rule knows its opcode."""
        flow, graph = self.flow, self.flow.graph
        rows = flow.operands[index], flow.results[index]
        shapes = (tuple(flow.shapes[t] for t in row) for row in rows)
        return _factors(flow.opcode[index], graph.strings[graph.attribute[index]], *shapes)

    def journey(self, tensor: int, dimension: int, instructions: Container[int]) -> Journey:
        """Follow a dimension through some of the instructions, into loops and out of them."""
        flow, journey = self.flow, Journey({(tensor, dimension)})
        queue = deque(journey.reached)
        while queue:
            tensor, dimension = queue.popleft()
            new: list[tuple[int, int]] = []
            for index in flow.readers[tensor]:
                if index not in instructions or flow.opcode[index] == "return":
                    continue
                for slot, operand in enumerate(flow.operands[index]):
                    if operand == tensor:
                        dimensions, done = self.move(index, slot, dimension)
                        new += [(flow.results[index][0], d) for d in dimensions]
                        if done:
                            journey.done.setdefault(done, []).append(index)
            for after in flow.after[tensor]:  # what loops and branches carry
                if flow.opcode_of(after) in (*CARRIES, "parameter"):
                    new.append((after, dimension))
            for pair in new:
                if pair not in journey.reached:
                    journey.reached.add(pair)
                    queue.append(pair)
        return journey

    def move(self, index: int, place: int, dimension: int) -> Move:
        """What an instruction makes of a dimension of its operand at ``place``."""
        flow = self.flow
        if flow.opcode[index] == "dynamic-slice" and not place and flow.graph.parent[index] >= 0:
            before, after = (flow.shapes[row[index][0]] for row in (flow.operands, flow.results))
            # One position per iteration: the loop goes through this dimension.
            if after[dimension] == 1 < before[dimension]:
                return [], STEPPED
        if flow.opcode[index] == "slice":
            return [dimension], ""  # all but the last of time is time
        for factor in self.factors(index):
            if (place, dimension) in factor.pairs:
                result = [d for slot, d in factor.pairs if slot == OUT]
                # A batch dimension of a product stands in both operands and the result.
                shared = flow.opcode[index] == "dot" and len(factor.pairs) == _BOTH_AND_RESULT
                return result, SHARED if shared else _DONE[factor.kind]
        return [], ""


def leading_samples(axes: Axes, tensor: int, instructions: Container[int]) -> int:
    """The first dimension of an input that is no loop's, as far as it alone tells.

    It is the first of all if a loop goes through that and a product sums over the next: then the
    loop takes one sample at a time.
    """
    shape = axes.flow.shapes[tensor]
    for dimension in range(len(shape)):
        done = axes.journey(tensor, dimension, instructions).done
        if dimension and CONTRACTED in done:
            return 0
        if STEPPED not in done:
            return dimension
    return 0


def samples(axes: Axes, inputs: Sequence[int], phase: Sequence[int]) -> tuple[int, str]:
    """The samples per batch, and a note if they are not the leading dimension of the inputs, or "".

    It is the commonest size among the inputs' own dimensions of samples (of two that are as common,
    that of numbers, not of indices), times the micro-batches that a loop with a backward pass goes
    through; 1 without inputs.
    """
    flow, instructions = axes.flow, forward_of(phase)
    data = flow.descendants(inputs)

    def of_data(index: int, first: int = 0) -> bool:
        return all(data[tensor] for tensor in flow.operands[index][first:])

    @cache
    def of_weights(size: int) -> set[tuple[int, int]]:
        """Where the dimensions of a size go that other inputs have, and are not repeated along."""
        reached: set[tuple[int, int]] = set()
        for tensor in flow.inputs:
            for dimension, length in enumerate(() if data[tensor] else flow.shapes[tensor]):
                if length == size:
                    reached |= axes.journey(tensor, dimension, instructions).reached
        return reached

    def with_members(index: int, size: int) -> bool:
        """Whether a product pairs a dimension of data with one that weights have of their own."""
        return any(
            (flow.operands[index][slot], dimension) in of_weights(size)
            for factor in axes.factors(index)
            if len(factor.pairs) == _BOTH_AND_RESULT
            for slot, dimension in factor.pairs
            if slot != OUT and not data[flow.operands[index][slot]]
        )

    # Each input votes for the size of its first dimension that no loop, attention or ensemble has.
    votes: Counter[int] = Counter()
    floating: set[int] = set()  # of numbers, not of indices, which may be the edges of a graph
    ahead: dict[int, tuple[str, int]] = {}  # size of a dimension in front -> what it is, and loop
    sample_dimension: dict[int, int] = {}
    for tensor in inputs:
        skipped: list[tuple[int, str, int]] = []
        attended: set[int] = set()  # products of data that sum over the leading dimension
        for dimension, size in enumerate(flow.shapes[tensor]):
            done = axes.journey(tensor, dimension, instructions).done
            shared = [i for i in done.get(SHARED, ()) if with_members(i, size)]
            if dimension and not all(map(of_data, done.get(CONTRACTED, ()))):
                break
            summed = [i for i in done.get(CONTRACTED, ()) if of_data(i)]
            if attended and attended.isdisjoint(done.get(SHARED, ())):
                break
            if not dimension and summed and STEPPED not in done:
                attended = set(summed)
                skipped.append((size, CONTRACTED, -1))
            elif STEPPED in done:
                skipped.append((size, STEPPED, int(flow.graph.parent[done[STEPPED][0]])))
            elif shared:
                skipped.append((size, SHARED, -1))
            else:
                sample_dimension[tensor] = dimension
                ahead.update((size, (what, loop)) for size, what, loop in skipped)
                break
    sizes_behind = {flow.shapes[t][d] for t, d in sample_dimension.items() if d}
    for tensor in inputs:
        shape = flow.shapes[tensor]
        dimension = sample_dimension.get(tensor, 0)
        if not dimension and shape[:1] and shape[0] in ahead:
            if len(shape) == 1 and len(inputs) > 1:
                continue
            dimension = int(len(shape) > 1 and shape[1] in sizes_behind)
        if shape and shape[dimension]:
            votes[shape[dimension]] += 1
            if flow.types[tensor] in FLOATING:
                floating.add(shape[dimension])
    if not votes:
        return 1, ""
    for index in sorted(instructions):  # edges are no samples, nor nodes of several graphs
        if len(votes) > 1 and sums_rows(flow, index) and of_data(index, 1):
            votes.pop(flow.shapes[flow.operands[index][-1]][0], None)
    # On a tie numbers win: indices may be edges of a graph, of which there are any number.
    size = max(votes, key=lambda size: (votes[size], size in floating))
    if size not in sizes_behind:
        return size, ""
    count, (what, loop) = next(iter(ahead.items()))
    return _samples_behind(flow, phase, size, count, what, loop)


def _samples_behind(
    flow: Flow, phase: Sequence[int], size: int, count: int, what: str, loop: int
) -> tuple[int, str]:
    """The samples per batch, and a note, if ``count`` leading positions are something else."""
    if what == CONTRACTED:
        return size, (
            f"attention goes over the {count:,} leading positions of batch inputs, taken as time; "
            f"the batch is taken as the {size:,} samples behind them"
        )
    if what == SHARED:
        return size, (
            f"weights and batch inputs have {count} in front alike, taken as models side by side; "
            f"the batch is taken as the {size:,} samples that each of them sees"
        )
    products = [k for k, opcode in enumerate(flow.opcode) if opcode in ("dot", "convolution")]
    if any(phase[k] == Phase.BACKWARD and _is_inside(flow, k, loop) for k in products):
        # A step over micro-batches sees all of them before its update.
        return size * count, (
            f"a loop with a backward pass goes through the {count:,} leading positions of the "
            f"batch inputs, taken as micro-batches: the batch is taken as {count:,} x {size:,}"
        )
    return size, (
        f"a loop goes through the {count:,} leading positions of batch inputs, taken as time; the "
        f"batch is taken as the {size:,} samples behind them"
    )


def sums_rows(flow: Flow, index: int) -> bool:
    """Whether an instruction sums rows by an index, as the edges of a node or its graph's nodes."""
    if flow.opcode[index] != "scatter":
        return False
    into, _, rows = (flow.shapes[t] for t in flow.operands[index][:3])
    return into[1:] == rows[1:] and into < rows


def forward_of(phase: Sequence[int]) -> set[int]:
    """Return the instructions of the forward pass."""
    return {index for index, label in enumerate(phase) if label == Phase.FORWARD}


def _is_inside(flow: Flow, index: int, loop: int) -> bool:
    while index > loop:
        index = int(flow.graph.parent[index])
    return index == loop


WEIGHT, DATA = "weight", "data"
Label = str | int | None
"""What a tensor is made of: weights only, data among others, one input of which it is not known
yet (its tensor), or neither (None: constants, numbers)."""


class Use:
    """How the inputs of a module are read.

    Attributes:
        known: input tensor -> ``WEIGHT`` or ``DATA``.
        why: input tensor -> the reason in words, of those that were found out here.
        looked_up: inputs of which all that is known is that indices pick rows of them.
    """

    def __init__(
        self, flow: Flow, known: Mapping[int, str], unknown: list[int], forward: Collection[int]
    ) -> None:
        self.flow = flow
        self.known = dict(known)
        self.why: dict[int, str] = {}
        self._label: dict[int, Label] = {**known, **{t: t for t in unknown}}
        self._summed: set[int] = set()  # data without the batch: sums over it, made of sums
        self._repeated_numbers: set[int] = set()  # numbers made of data that are repeated
        self._samples: Counter[int] = Counter()  # sizes of the batch, by inputs that have it
        self._batch_axes: dict[int, set[int]] = {}  # tensor -> its dimensions that are the batch
        self.looked_up: set[int] = set()
        self._axes = Axes(flow)
        self._forward = forward
        for tensor, label in known.items():
            if label == DATA:
                self._follow_batch(tensor)
        for index in range(len(flow.opcode)):
            self._read(index)
        # A table that only indices pick rows of is an embedding, if nothing else says otherwise.
        self.looked_up.difference_update(self.known)
        for tensor in self.looked_up:
            self._decide(tensor, WEIGHT, "rows are looked up in it")

    def _label_of(self, tensor: int) -> Label:
        label = self._label.get(tensor)
        return self.known.get(label, label) if isinstance(label, int) else label

    def _decide(self, source: Label, verdict: str, why: str) -> None:
        if isinstance(source, int):
            self.known[source] = verdict
            self.why[source] = why
            if verdict == DATA:
                self._follow_batch(source)

    def _follow_batch(self, tensor: int) -> None:
        """Find out what has the batch of an input, and as which dimension."""
        if not self.flow.shapes[tensor]:
            return
        start = leading_samples(self._axes, tensor, self._forward)
        self._samples[self.flow.shapes[tensor][start]] += 1
        self._mark_batch(tensor, start)

    def _mark_batch(self, tensor: int, start: int) -> None:
        for reached, dimension in self._axes.journey(tensor, start, self._forward).reached:
            self._batch_axes.setdefault(reached, set()).add(dimension)

    def _read(self, index: int) -> None:
        """Label the results of an instruction, and decide what it tells of its operands."""
        flow = self.flow
        opcode, operands = flow.opcode[index], flow.operands[index]
        if opcode in CARRIES or opcode == "return":
            self._carry(index)
            return
        if opcode == "parameter":
            for tensor in filter(flow.before.__getitem__, flow.results[index]):
                self._label[tensor] = self._label.get(flow.before[tensor][0])
            return
        labels = [self._label_of(t) for t in operands]
        if opcode in ("dot", "convolution") and len(labels) == 2:
            self._product(index, labels)
        elif opcode == "gather" and isinstance(labels[0], int):
            is_drawn = labels[1] is None and flow.ancestors(operands[1:2])[flow.inputs].any()
            if is_drawn or labels[1] == DATA:
                self.looked_up.add(labels[0])
        elif opcode == "broadcast" and flow.shapes[operands[0]]:
            self._broadcast(index, labels[0])
        elif sums_rows(flow, index) and DATA in labels[1:]:
            self._mark_batch(flow.results[index][0], 0)
        elif opcode == "reduce":
            self._reduced(index, labels[0])
        elif opcode == "concatenate" and '"dimensions":[0]' not in self._attribute(index):
            for result in labels if DATA in labels else ():
                self._decide(result, DATA, "it stands beside the batch, row by row")
        elif opcode in ELEMENTWISE or opcode in PARTS:
            self._combined(operands, labels)
        labels = [self._label_of(t) for t in operands]
        unknown = [x for x in labels if isinstance(x, int)]
        # What is looked up says least of what it is combined with.
        unknown.sort(key=self.looked_up.__contains__)
        if DATA in labels:
            label: Label = DATA
        elif unknown:
            alone = opcode in VIEWS | PARTS | ELEMENTWISE | {"reduce", "gather", "broadcast"}
            label = unknown[0] if alone else DATA
        else:
            label = WEIGHT if WEIGHT in labels else None
            if opcode in ("dot", "convolution") and label and None in labels:
                noise = operands[labels.index(None)]  # a generator's, which it makes data of
                label = DATA if self._is_noise(noise) else label
        if opcode == "broadcast" and label == WEIGHT:
            label = None  # every sample may meet it, and so may a weight
        for tensor in flow.results[index]:
            self._label[tensor] = label
        data = [t for t, result in zip(operands, labels, strict=True) if result == DATA]
        if label == DATA and data:
            repeated = opcode == "broadcast" and not flow.shapes[operands[0]]
            if repeated or (opcode in ELEMENTWISE and self._repeated_numbers.issuperset(data)):
                self._repeated_numbers.update(flow.results[index])
            if self._is_summed(index, operands, data):
                self._summed.update(flow.results[index])

    def _attribute(self, index: int) -> str:
        return self.flow.graph.strings[self.flow.graph.attribute[index]]

    def _is_noise(self, tensor: int) -> bool:
        """Whether a tensor is drawn by a random key."""
        flow, made_of = self.flow, self.flow.ancestors([tensor])
        return any(
            made_of[t] and flow.shapes[t] and ELEMENT_TYPES[flow.types[t]][0] == "u32"
            for t in flow.inputs
        )

    def _is_summed(self, index: int, operands: list[int], data: list[int]) -> bool:
        """Whether what an instruction makes of data has lost the batch."""
        opcode = self.flow.opcode[index]
        if opcode in VIEWS or opcode in ELEMENTWISE:
            return self._summed.union(self._repeated_numbers).issuperset(data)
        if opcode == "dot":
            return all(t in self._summed or self._is_contracted(index, t) for t in data)
        shape = self.flow.shapes[operands[0]] if operands else ()
        leading = opcode == "reduce" and '"dimensions":[0' in self._attribute(index)
        return leading and shape[:1] == (self.batch_size,)

    def _is_contracted(self, index: int, tensor: int, done: str = CONTRACTED) -> bool:
        rows = self._batch_axes.get(tensor)
        place = self.flow.operands[index].index(tensor)
        return bool(rows) and all(self._axes.move(index, place, d)[1] == done for d in rows or ())

    def _carry(self, index: int) -> None:
        """Label what a loop or branch returns by what its computation returns."""
        flow = self.flow
        if flow.opcode[index] != "return":
            for source, tensor in zip(flow.operands[index], flow.results[index], strict=False):
                self._label.setdefault(tensor, self._label.get(source))
            return
        outer = int(flow.graph.parent[index])
        for source, tensor in zip(flow.operands[index], flow.results[outer], strict=False):
            if self._label_of(source) == DATA or self._label.get(tensor) is None:
                self._label[tensor] = self._label.get(source)

    def _product(self, index: int, labels: list[Label]) -> None:
        """Decide what data is multiplied with, or what weights are multiplied with.

        Data without the batch are weights that a step of gradient descent has changed.
        """
        opcode, operands = self.flow.opcode[index], self.flow.operands[index]
        # A gradient x^T dy has lost the batch, so what it changes is a weight again.
        if opcode == "dot":
            labels = [
                WEIGHT if label == DATA and t in self._summed else label
                for t, label in zip(operands, labels, strict=True)
            ]
        left, right = labels
        if opcode == "convolution":
            self._decide(left, DATA, "a kernel slides over it")
            self._decide(right, WEIGHT, "it is the kernel of a convolution")
        elif DATA in labels:
            local = operands[labels.index(DATA)]
            if any(self._is_contracted(index, local, done) for done in (SHARED, CONTRACTED)):
                verdict, why = DATA, "each sample is multiplied with its own part of it"
            else:
                verdict, why = WEIGHT, "the batch is multiplied with it"
            for label in labels:
                self._decide(label, verdict, why)
        elif WEIGHT in labels:
            for label in labels:
                self._decide(label, DATA, "weights are multiplied with it")
        elif isinstance(left, int) and isinstance(right, int):
            self._decide(left, DATA, "it is the left factor of the first product")
            self._decide(right, WEIGHT, "it is the right factor of the first product")

    def _broadcast(self, index: int, label: Label) -> None:
        """Decide that what is repeated in front is a weight, unless it has the batch itself."""
        first, size = fields_of(self._attribute(index))["dimensions"][0], self.batch_size
        new = self.flow.shapes[self.flow.results[index][0]][:first]
        if not first or not isinstance(label, int):
            return
        if self.flow.shapes[label][:1] != (size,) or size in new:
            self._decide(label, WEIGHT, "every sample gets the same of it")

    def _reduced(self, index: int, label: Label) -> None:
        is_number = not self.flow.shapes[self.flow.results[index][0]]
        if isinstance(label, int) and is_number and self.flow.shapes[label] == (self.batch_size,):
            self._decide(label, DATA, "it is as long as the batch, and summed over it")

    def _combined(self, operands: list[int], labels: list[Label]) -> None:
        """What is combined element by element with data has their batch, or is a weight."""
        for tensor, label in zip(operands, labels, strict=True):
            if not isinstance(label, int):
                continue
            shape = self.flow.shapes[label]
            pairs = zip(operands, labels, strict=True)
            data = [t for t, other in pairs if other == DATA and t not in self._repeated_numbers]
            if data and self._summed.issuperset(data):
                self._decide(label, WEIGHT, "it meets sums over the batch")
            elif data:
                rows = {d for t in data for d in self._batch_axes.get(t, ())}
                sizes = {self.flow.shapes[tensor][d] for d in rows} - {1}
                if rows:  # and what every sample gets has been repeated, and found, before
                    same = not sizes.isdisjoint(shape)
                else:
                    same = self.batch_size is None or shape[:1] == (self.batch_size,)
                verdict = DATA if same else WEIGHT
                self._decide(label, verdict, f"it meets the batch with {shape[0]} rows")
            elif WEIGHT in labels and self.flow.shapes[tensor] == shape:
                self._decide(label, WEIGHT, "it is combined with weights")

    @property
    def batch_size(self) -> int | None:
        """The commonest size of the batch in what is known to be data, None if nothing is."""
        return self._samples.most_common(1)[0][0] if self._samples else None
