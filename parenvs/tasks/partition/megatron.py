"""Attention and feed-forward blocks of a graph, found in its data flow alone.

A block is known by the class of its hidden dimension, the heads of an attention or the hidden width
of a feed-forward network. Splitting that class is Megatron's plan (arXiv 1909.08053, section 3; the
same splits are Table 3 of arXiv 2007.04069): the kernels in front split along their outputs, with
their biases, the kernel behind along its input. Names play no part, only the dots of the forward
pass:

* a **dense layer** multiplies data by a weight, which is made of variables alone;
* the class of a dimension that dense layers make (a weight brings it in) is in their **columns**,
  that of a dimension that they contract in their **rows**;
* an **attention** contracts in rows what goes, along one class, through a dot of two data tensors
  into another such dot: scores, softmax, context;
* a **feed-forward network** makes a class in columns and contracts it in rows, with a nonlinear
  function between. Beside attention it also has to end where it began, on the residual width, so
  that a pooler or a classifier is none.

Without any attention the dense layers make a chain (arXiv 2007.04069, Table 4): one is split along
its outputs, the next along its inputs, and the last along its outputs if its turn is that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.graph.graph import Phase, Role
from parenvs.graph.opcodes import ELEMENTWISE, Kind
from parenvs.tasks.partition.classes import LINKED, DimensionClasses, compatible, nested, owner_of

ATTENTION, FEED_FORWARD, DENSE = "attention", "feed-forward", "dense"
_NEUTRAL, _WEIGHT, _DATA = range(3)
"""What a tensor is made of: constants and numbers; variables too; batch inputs as well."""
_LINEAR = (
    "add", "bitcast-convert", "complex", "convert", "copy", "divide", "imag", "multiply", "negate",
    "real", "reduce-precision", "select", "subtract",
)  # fmt: skip
"""Elementwise opcodes that are linear in one operand while the others stay as they are."""


@dataclass(frozen=True)
class Block:
    """A block of layers that splitting one class splits over the devices.

    Attributes:
        kind: ``"attention"``, ``"feed-forward"`` or ``"dense"``, a layer of a chain.
        label: the class of its hidden dimension; blocks that share weights share the class.
    """

    kind: str
    label: int


def find_blocks(classes: DimensionClasses) -> list[Block]:
    """Blocks in the order in which an expert splits them; some may be blocked, or exclude others.

    Attentions come first, then feed-forward networks as they run.
    """
    flow = _Flow(classes)
    hidden = sorted(flow.rows, key=lambda label: flow.first[label])
    if not flow.contexts:
        chain = [label for label in flow.columns if flow.is_dense_chain(label)]
        return [Block(DENSE, label) for label in sorted(chain, key=lambda label: flow.first[label])]
    attentions = [label for label in hidden if flow.is_attention(label)]
    # The head size may go through a linear attention as the heads do, but fewer layers have it.
    attentions.sort(key=lambda label: -len(flow.columns[label]) - len(flow.rows[label]))
    rows = {index for label in attentions for index in flow.rows[label]}
    attentions += [x for x in hidden if flow.follows_attention(x) and rows.isdisjoint(flow.rows[x])]
    others = [label for label in hidden if label not in attentions and flow.is_feed_forward(label)]
    kinds = (ATTENTION, attentions), (FEED_FORWARD, others)
    return [Block(kind, label) for kind, labels in kinds for label in labels]


def megatron_classes(classes: DimensionClasses) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Return the classes that the expert's plan splits, and the blocks that stay whole.

    The hidden dimension of each block is split, unless that conflicts with one before.

    Returns:
        (C,) bool; and kind of block -> classes that are blocked.
    """
    blocks = find_blocks(classes)
    blocked: dict[str, list[int]] = defaultdict(list)
    for block in blocks:
        if classes.blocked[block.label]:
            blocked[block.kind].append(block.label)
    order = [block.label for block in blocks if not classes.blocked[block.label]]
    return compatible(order, classes.rivals, len(classes)), blocked


class _Flow:
    """The dense layers of a graph's forward pass, and the way of each class between them.

    Attributes:
        columns: class -> dense layers whose weight brings it in.
        rows: class -> dense layers that contract it.
        first: class -> the first of these.
    """

    def __init__(self, classes: DimensionClasses) -> None:
        self.classes, self.graph = classes, classes.graph
        self.operands = nested(self.graph.operands, self.graph.operand_offset)
        self.results = nested(self.graph.results, self.graph.result_offset)
        self.opcodes = [self.graph.opcodes[code] for code in self.graph.opcode.tolist()]
        self.columns: dict[int, list[int]] = defaultdict(list)
        self.rows: dict[int, list[int]] = defaultdict(list)
        # Dense layer -> classes that its weight brings in, and classes that it contracts.
        self._output_classes: dict[int, set[int]] = defaultdict(set)
        self._input_classes: dict[int, set[int]] = defaultdict(set)
        # Class -> dots of two data tensors that keep it, and all instructions that keep it.
        self._data_dots: dict[int, list[int]] = defaultdict(list)
        self._keepers: dict[int, list[int]] = defaultdict(list)
        # Classes contracted by other instructions; those of them by dots, convolutions, embeddings.
        self._reduced: set[int] = set()
        self._multiplied: set[int] = set()
        self._read_factors()
        labels = {*self.columns, *self.rows}
        self.first = {label: min(self.columns[label] + self.rows[label]) for label in labels}

    def _read_factors(self) -> None:
        factors, forward = self.classes.factors, self._forward
        columns = factors.instruction, self.classes.factor_class, factors.kind
        for index, label, kind in zip(*(column.tolist() for column in columns), strict=True):
            opcode = self.opcodes[index]
            if not forward[index] or opcode == "parameter":
                continue
            if kind == Kind.KEPT:
                self._keepers[label].append(index)
            if opcode == "dot" and self._is_data_dot(index):
                if kind == Kind.KEPT:
                    self._data_dots[label].append(index)
            elif opcode == "dot" and self._is_dense_layer(index):
                if kind == Kind.CONTRACTED:
                    self.rows[label].append(index)
                    self._input_classes[index].add(label)
                    continue
                with_class = [t for t in self.operands[index] if label in self._classes_of(t)]
                if [self._origins[t] for t in with_class] == [_WEIGHT]:
                    self.columns[label].append(index)
                    self._output_classes[index].add(label)
            if kind != Kind.KEPT:
                self._reduced.add(label)
                embeds = kind == Kind.INDEXED and self._origins[self.operands[index][0]] == _WEIGHT
                if embeds or opcode in ("dot", "convolution"):
                    self._multiplied.add(label)
        for index, position in factors.untouchable.tolist():
            if forward[index] and self.opcodes[index] == "reduce":  # automap's rules
                self._reduced.add(int(self.classes.label[position]))

    @cached_property
    def _forward(self) -> list[bool]:
        """Instructions of the forward pass; all of them if no dot is in it.

        A loop over micro-batches has forward and backward pass in one body.
        """
        forward = self.graph.phase == Phase.FORWARD
        has_dot = (forward & (np.array(self.opcodes) == "dot")).any()
        return forward.tolist() if has_dot else [True] * len(forward)

    def is_attention(self, label: int) -> bool:
        """Whether a class is a heads dimension: kept by two consecutive dots of data."""
        if not self.columns[label] and not self.classes.blocked[label]:
            return False  # it comes in with the data
        # Heads go through two dots: q k^T makes the scores, scores times v the context.
        data_dots = set(self._data_dots[label])
        reached = self._with_aliases({t for index in data_dots for t in self.results[index]})
        for index in self._keepers_in_order(label):
            if reached.intersection(self.operands[index]):
                if index in data_dots:
                    return True
                reached |= self._with_aliases(self.results[index])
        return False

    def follows_attention(self, label: int) -> bool:
        """Whether a class is contracted behind an attention that its heads cannot go through."""
        read = {t for index in self.rows[label] for t in self.operands[index]}
        blocked = bool(self.classes.blocked[label]) and not self.columns[label]
        return blocked and not self.contexts.isdisjoint(read)

    @cached_property
    def contexts(self) -> set[int]:
        """Tensors that attentions make: a dot of two data reads what another one made."""
        scores: set[int] = set()
        contexts: set[int] = set()
        forward = [i for i, is_forward in enumerate(self._forward) if is_forward]
        # A loop leads values back to earlier instructions, which a second pass reaches.
        for index in [*forward, *forward] if self._alias_sets else forward:
            operands, opcode = self.operands[index], self.opcodes[index]
            is_data_dot = opcode == "dot" and self._is_data_dot(index)
            if opcode in LINKED or (opcode == "dot" and self._is_dense_layer(index)):
                continue
            written = self._with_aliases(self.results[index])
            reads_scores = not scores.isdisjoint(operands)
            if not contexts.isdisjoint(operands) or (is_data_dot and reads_scores):
                contexts |= written
            if is_data_dot or reads_scores:
                scores |= written
        return contexts

    def is_feed_forward(self, label: int) -> bool:
        """Whether a class is the hidden width of a feed-forward network on the residual width."""
        if label in self._reduced or not self._passes_nonlinearity(label):
            return False
        # A block reads and writes the residual stream: one class before and behind it.
        into = {x for index in self.columns[label] for x in self._input_classes[index]}
        out = {x for index in self.rows[label] for x in self._output_classes[index]}
        # Not into: blocked by the instruction that makes it.
        return bool(into & out) or not into

    def is_dense_chain(self, label: int) -> bool:
        """Whether a class is the width between two dense layers of a chain, or its last width."""
        return label not in (self._reduced if self.rows[label] else self._multiplied)

    def _passes_nonlinearity(self, label: int) -> bool:
        linear = {t for index in self.columns[label] for t in self.results[index]}
        linear.update(self._starts.get(label, ()))
        nonlinear: set[int] = set()
        for index in self._keepers_in_order(label):
            operands = self.operands[index]
            reads_linear = not linear.isdisjoint(operands)
            is_bent = reads_linear and self._is_nonlinear(index, linear)
            if is_bent or not nonlinear.isdisjoint(operands):
                nonlinear |= self._with_aliases(self.results[index])
            elif reads_linear:
                linear |= self._with_aliases(self.results[index])
        return any(nonlinear.intersection(self.operands[index]) for index in self.rows[label])

    def _is_nonlinear(self, index: int, variables: set[int]) -> bool:
        opcode = self.opcodes[index]
        if opcode in _LINEAR or opcode == "dot":
            degree = sum(t in variables for t in self.operands[index])
            return opcode in ("multiply", "dot") and degree > 1
        return opcode in ELEMENTWISE or opcode == "custom-call"

    def _keepers_in_order(self, label: int) -> Iterable[int]:
        """Instructions that keep a class; twice if loops may lead back to earlier ones."""
        keepers = self._keepers[label]
        return [*keepers, *keepers] if self._alias_sets else keepers

    @cached_property
    def _alias_sets(self) -> dict[int, set[int]]:
        """Tensor -> all that loops, branches and barriers make the same value."""
        factors, linked = self.classes.factors, np.isin(self.opcodes, LINKED)
        pairs = owner_of(self.graph)[factors.links[linked[factors.link_at]]]
        alias_sets: dict[int, set[int]] = {}
        for first, second in np.unique(pairs, axis=0).tolist():
            merged = alias_sets.get(first, {first}) | alias_sets.get(second, {second})
            alias_sets.update(dict.fromkeys(merged, merged))
        return alias_sets

    def _with_aliases(self, tensors: Collection[int]) -> set[int]:
        return set(tensors).union(*(self._alias_sets.get(tensor, ()) for tensor in tensors))

    @cached_property
    def _starts(self) -> dict[int, list[int]]:
        """Class -> results in which it starts, as their instruction cannot split its operands."""
        starts: dict[int, list[int]] = defaultdict(list)
        owner = owner_of(self.graph)
        for index, position in self.classes.factors.untouchable.tolist():
            if owner[position] in self.results[index]:
                starts[int(self.classes.label[position])].append(int(owner[position]))
        return starts

    @cached_property
    def _origins(self) -> list[int]:
        """(T,) ``_NEUTRAL``, ``_WEIGHT`` or ``_DATA``: the maximum of what each is made of."""
        graph = self.graph
        origins = [_NEUTRAL] * len(graph.element_type)

        def put(tensor: int, kind: int) -> None:
            for alias in self._with_aliases([tensor]):
                origins[alias] = max(origins[alias], kind)

        roles = map(Role, graph.parameter_role.tolist())
        for tensor, role in zip(graph.parameter_tensor.tolist(), roles, strict=True):
            put(tensor, {Role.BATCH: _DATA, Role.SCALAR: _NEUTRAL}.get(role, _WEIGHT))
        previous: list[int] = []
        while previous != origins:  # once more where loops lead back
            previous = [*origins] if self._alias_sets else origins
            for index, results in enumerate(self.results):
                if self.opcodes[index] in LINKED:
                    continue
                kind = max((origins[t] for t in self.operands[index]), default=_NEUTRAL)
                if kind and self.opcodes[index] == "dot":
                    kind = _DATA
                for t in results:
                    if origins[t] < kind and graph.dim_offset[t] < graph.dim_offset[t + 1]:
                        put(t, kind)
        return origins

    def _is_data_dot(self, index: int) -> bool:
        return all(self._origins[t] == _DATA for t in self.operands[index])

    def _is_dense_layer(self, index: int) -> bool:
        return {self._origins[t] for t in self.operands[index]} == {_DATA, _WEIGHT}

    def _classes_of(self, tensor: int) -> list[int]:
        return self.classes.label[self.classes.splittable(tensor)].tolist()
