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
from collections.abc import Iterable
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
        chain = [label for label in flow.columns if flow.dense(label)]
        return [Block(DENSE, label) for label in sorted(chain, key=lambda label: flow.first[label])]
    attentions = [label for label in hidden if flow.attends(label)]
    # The head size may go through a linear attention as the heads do, but fewer layers have it.
    attentions.sort(key=lambda label: -len(flow.columns[label]) - len(flow.rows[label]))
    done = {index for label in attentions for index in flow.rows[label]}
    attentions += [
        label for label in hidden if flow.cut_off(label) and done.isdisjoint(flow.rows[label])
    ]
    others = [label for label in hidden if label not in attentions and flow.feeds(label)]
    return [
        *(Block(ATTENTION, label) for label in attentions),
        *(Block(FEED_FORWARD, label) for label in others),
    ]


def megatron_classes(classes: DimensionClasses) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Return the classes that the expert's plan splits, and the blocks that stay whole.

    The hidden dimension of each block is split, unless that conflicts with one before.

    Returns:
        (C,) bool; and kind of block -> classes that are blocked.
    """
    blocks = find_blocks(classes)
    whole: dict[str, list[int]] = defaultdict(list)
    for block in blocks:
        if classes.blocked[block.label]:
            whole[block.kind].append(block.label)
    order = [block.label for block in blocks if not classes.blocked[block.label]]
    return compatible(order, classes.rivals, len(classes)), whole


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
        self._made: dict[int, set[int]] = defaultdict(set)  # dense layer -> classes it brings in
        self._contracted: dict[int, set[int]] = defaultdict(set)  # dense layer -> classes
        self._products: dict[int, list[int]] = defaultdict(list)  # class -> dots of two data
        self._reduced: set[int] = set()  # classes that something else than a dense layer contracts
        self._shared: set[int] = set()  # the same by products, and words of embeddings
        self._carriers: dict[int, list[int]] = defaultdict(list)  # class -> what lets it through
        self._read()
        self.first = {
            label: min(self.columns[label] + self.rows[label])
            for label in {*self.columns, *self.rows}
        }

    def _read(self) -> None:
        factors, forward = self.classes.factors, self._forward
        columns = factors.instruction, self.classes.factor_class, factors.kind
        for index, label, kind in zip(*(column.tolist() for column in columns), strict=True):
            opcode = self.opcodes[index]
            if not forward[index] or opcode == "parameter":
                continue
            if kind == Kind.KEPT:
                self._carriers[label].append(index)
            if opcode == "dot" and self._is_product(index):
                if kind == Kind.KEPT:
                    self._products[label].append(index)
            elif opcode == "dot" and self._is_dense(index):
                if kind == Kind.CONTRACTED:
                    self.rows[label].append(index)
                    self._contracted[index].add(label)
                    continue
                if self._from_weight(index, label):
                    self.columns[label].append(index)
                    self._made[index].add(label)
            if kind != Kind.KEPT:
                self._reduced.add(label)
                embeds = kind == Kind.INDEXED and self._origin[self.operands[index][0]] == _WEIGHT
                if embeds or opcode in ("dot", "convolution"):
                    self._shared.add(label)
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

    def attends(self, label: int) -> bool:
        """Whether a class is a heads dimension: kept by two consecutive dots of data."""
        if not self.columns[label] and not self.classes.blocked[label]:
            return False  # it comes in with the data
        # Heads go through two dots: q k^T makes the scores, scores times v the context.
        products = set(self._products[label])
        reached = {t for index in products for t in self.results[index]}
        reached |= self._tied(reached)
        for index in self._on_the_way(label):
            if reached.intersection(self.operands[index]):
                if index in products:
                    return True
                reached.update(self.results[index], self._tied(self.results[index]))
        return False

    def cut_off(self, label: int) -> bool:
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
        for index in [*forward, *forward] if self._ties else forward:
            read, opcode = self.operands[index], self.opcodes[index]
            product = opcode == "dot" and self._is_product(index)
            if opcode in LINKED or (opcode == "dot" and self._is_dense(index)):
                continue
            written = {*self.results[index], *self._tied(self.results[index])}
            if not contexts.isdisjoint(read) or (product and not scores.isdisjoint(read)):
                contexts |= written
            if product or not scores.isdisjoint(read):
                scores |= written
        return contexts

    def feeds(self, label: int) -> bool:
        """Whether a class is the hidden width of a feed-forward network on the residual width."""
        if label in self._reduced or not self._bends(label):
            return False
        # A block reads and writes the residual stream: one class before and behind it.
        into = {x for index in self.columns[label] for x in self._contracted[index]}
        out = {x for index in self.rows[label] for x in self._made[index]}
        return bool(into & out) or not into  # not into: blocked by the instruction that makes it

    def dense(self, label: int) -> bool:
        """Whether a class is the width between two dense layers of a chain, or its last width."""
        return label not in (self._reduced if self.rows[label] else self._shared)

    def _bends(self, label: int) -> bool:
        straight = {t for index in self.columns[label] for t in self.results[index]}
        straight.update(self._begun.get(label, ()))
        bent: set[int] = set()
        for index in self._on_the_way(label):
            read = self.operands[index]
            if bent.intersection(read) or (
                straight.intersection(read) and self._is_nonlinear(index, straight)
            ):
                bent.update(self.results[index], self._tied(self.results[index]))
            elif straight.intersection(read):
                straight.update(self.results[index], self._tied(self.results[index]))
        return any(bent.intersection(self.operands[index]) for index in self.rows[label])

    def _is_nonlinear(self, index: int, reached: set[int]) -> bool:
        opcode = self.opcodes[index]
        if opcode in _LINEAR or opcode == "dot":
            count = sum(t in reached for t in self.operands[index])
            return opcode in ("multiply", "dot") and count > 1
        return opcode in ELEMENTWISE or opcode == "custom-call"

    def _on_the_way(self, label: int) -> Iterable[int]:
        """Instructions that let a class through, in order; twice if loops may lead back."""
        carriers = self._carriers[label]
        return [*carriers, *carriers] if self._ties else carriers

    @cached_property
    def _ties(self) -> dict[int, set[int]]:
        """Tensor -> all that loops, branches and barriers make the same value."""
        factors, linked = self.classes.factors, np.isin(self.opcodes, LINKED)
        pairs = owner_of(self.graph)[factors.links[linked[factors.link_at]]]
        ties: dict[int, set[int]] = {}
        for first, second in np.unique(pairs, axis=0).tolist():
            same = ties.get(first, {first}) | ties.get(second, {second})
            ties.update(dict.fromkeys(same, same))
        return ties

    def _tied(self, tensors: Iterable[int]) -> set[int]:
        return set().union(*(self._ties.get(tensor, ()) for tensor in tensors))

    @cached_property
    def _begun(self) -> dict[int, list[int]]:
        """Class -> results in which it begins, as the instruction cannot split what they are of."""
        begun: dict[int, list[int]] = defaultdict(list)
        owner = owner_of(self.graph)
        for index, position in self.classes.factors.untouchable.tolist():
            if owner[position] in self.results[index]:
                begun[int(self.classes.label[position])].append(int(owner[position]))
        return begun

    @cached_property
    def _origin(self) -> list[int]:
        graph = self.graph
        origin = [_NEUTRAL] * len(graph.element_type)

        def put(tensor: int, kind: int) -> None:
            for same in (tensor, *self._tied([tensor])):
                origin[same] = max(origin[same], kind)

        roles = map(Role, graph.parameter_role.tolist())
        for tensor, role in zip(graph.parameter_tensor.tolist(), roles, strict=True):
            put(tensor, {Role.BATCH: _DATA, Role.SCALAR: _NEUTRAL}.get(role, _WEIGHT))
        before: list[int] = []
        while before != origin:  # once more where loops lead back
            before = list(origin) if self._ties else origin
            for index, results in enumerate(self.results):
                if self.opcodes[index] in LINKED:
                    continue
                kind = max((origin[t] for t in self.operands[index]), default=_NEUTRAL)
                if kind and self.opcodes[index] == "dot":
                    kind = _DATA
                for t in results:
                    if origin[t] < kind and graph.dim_offset[t] < graph.dim_offset[t + 1]:
                        put(t, kind)
        return origin

    def _is_product(self, index: int) -> bool:
        return all(self._origin[t] == _DATA for t in self.operands[index])

    def _is_dense(self, index: int) -> bool:
        return {self._origin[t] for t in self.operands[index]} == {_DATA, _WEIGHT}

    def _from_weight(self, index: int, label: int) -> bool:
        return [self._origin[t] for t in self.operands[index] if label in self._classes_of(t)] == [
            _WEIGHT
        ]

    def _classes_of(self, tensor: int) -> list[int]:
        return self.classes.label[self.classes.splittable(tensor)].tolist()
