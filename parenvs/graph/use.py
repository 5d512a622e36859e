"""Tells weights from data among inputs by how they are read, where no update or gradient tells it.

Data are what a batch brings: whole numbers (tokens, labels, indices), images, and what goes through
the model with them. Weights are what they are multiplied with, looked up in or shifted by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from parenvs.graph.flops import ELEMENTWISE
from parenvs.graph.flow import CARRIES, PARTS, VIEWS, Flow

WEIGHT, DATA = "weight", "data"
Label = str | int | None
"""What a tensor is made of: weights only, data among others, one input of which it is not known
yet (its tensor), or neither (None: constants, numbers)."""


class Use:
    """How the inputs of a module are read.

    Attributes:
        known: input tensor -> ``WEIGHT`` or ``DATA``.
        why: input tensor -> the reason in words, of those that were found out here.
    """

    def __init__(self, flow: Flow, known: Mapping[int, str], unknown: list[int]) -> None:
        self.flow = flow
        self.known = dict(known)
        self.why: dict[int, str] = {}
        self._label: dict[int, Label] = {**known, **{t: t for t in unknown}}
        self._summed: set[int] = set()  # data without the batch: sums over it, made of sums
        for index in range(len(flow.opcode)):
            self._read(index)

    def _of(self, tensor: int) -> Label:
        """The label of a tensor; what is found out of an input holds for all that is made of it."""
        label = self._label.get(tensor)
        return self.known.get(label, label) if isinstance(label, int) else label

    def _decide(self, source: Label, verdict: str, why: str) -> None:
        if isinstance(source, int):
            self.known[source] = verdict
            self.why[source] = why

    def _read(self, index: int) -> None:
        """Label the results of an instruction, and decide what it tells of its operands."""
        flow = self.flow
        opcode, operands = flow.opcode[index], flow.operands[index]
        if opcode in CARRIES or opcode == "return":
            self._carry(index)
            return
        if opcode == "parameter":
            for tensor in flow.results[index]:
                for source in flow.before[tensor][:1]:
                    self._label[tensor] = self._label.get(source)
            return
        labels = [self._of(t) for t in operands]
        if opcode in ("dot", "convolution") and len(labels) == 2:
            self._product(opcode, labels)
        elif opcode == "gather" and labels[1] == DATA:
            self._decide(labels[0], WEIGHT, "the batch looks rows up in it")
        elif opcode == "broadcast" and flow.shapes[operands[0]]:
            self._broadcast(index, labels[0])
        elif opcode in ELEMENTWISE or opcode in PARTS:
            self._together(operands, labels)
        labels = [self._of(t) for t in operands]
        unknown = [x for x in labels if isinstance(x, int)]
        if DATA in labels:
            label: Label = DATA
        elif unknown:
            alone = opcode in VIEWS | PARTS | ELEMENTWISE | {"reduce", "gather", "broadcast"}
            label = unknown[0] if alone else DATA
        else:
            label = WEIGHT if WEIGHT in labels else None
        if opcode == "broadcast" and label == WEIGHT:
            label = None  # every sample may meet it, and so may a weight
        for tensor in flow.results[index]:
            self._label[tensor] = label
        if label == DATA and self._is_summed(index, operands, labels):
            self._summed.update(flow.results[index])

    def _is_summed(self, index: int, operands: list[int], labels: list[Label]) -> bool:
        """Whether what an instruction makes of data has lost the batch, its leading dimension."""
        opcode = self.flow.opcode[index]
        data = [t for t, label in zip(operands, labels, strict=True) if label == DATA]
        if opcode in VIEWS or opcode in ELEMENTWISE:
            return self._summed.issuperset(data)
        shape = self.flow.shapes[operands[0]] if operands else ()
        attribute = self.flow.graph.strings[self.flow.graph.attribute[index]]
        leading = opcode == "reduce" and '"dimensions":[0' in attribute
        return leading and shape[:1] == (self.batch_size,)

    def _carry(self, index: int) -> None:
        """Label what a loop or branch returns by what its computation returns."""
        flow = self.flow
        if flow.opcode[index] != "return":
            for source, tensor in zip(flow.operands[index], flow.results[index], strict=False):
                self._label.setdefault(tensor, self._label.get(source))
            return
        outer = int(flow.graph.parent[index])
        for source, tensor in zip(flow.operands[index], flow.results[outer], strict=False):
            if self._of(source) == DATA or self._label.get(tensor) is None:
                self._label[tensor] = self._label.get(source)

    def _product(self, opcode: str, labels: list[Label]) -> None:
        """Decide what data is multiplied with, or what weights are multiplied with."""
        left, right = labels
        if opcode == "convolution":
            self._decide(left, DATA, "a kernel slides over it")
            self._decide(right, WEIGHT, "it is the kernel of a convolution")
        elif DATA in labels:
            for label in labels:
                self._decide(label, WEIGHT, "the batch is multiplied with it")
        elif WEIGHT in labels:
            for label in labels:
                self._decide(label, DATA, "weights are multiplied with it")
        elif isinstance(left, int) and isinstance(right, int):
            self._decide(left, DATA, "it is the left factor of the first product")
            self._decide(right, WEIGHT, "it is the right factor of the first product")

    def _broadcast(self, index: int, label: Label) -> None:
        """An input that is repeated along new leading dimensions is no batch."""
        attribute = self.flow.graph.strings[self.flow.graph.attribute[index]]
        if '"dimensions":[0' not in attribute:
            self._decide(label, WEIGHT, "every sample gets the same of it")

    def _together(self, operands: list[int], labels: list[Label]) -> None:
        """What is combined element by element with data has their batch, or is a weight."""
        for tensor, label in zip(operands, labels, strict=True):
            if not isinstance(label, int):
                continue
            shape = self.flow.shapes[label]
            data = [t for t, other in zip(operands, labels, strict=True) if other == DATA]
            if data and self._summed.issuperset(data):
                self._decide(label, WEIGHT, "it meets sums over the batch")
            elif data:
                batch = self.batch_size
                same = shape[:1] == (batch,) or batch is None
                verdict = DATA if same else WEIGHT
                self._decide(label, verdict, f"it meets the batch with {shape[0]} rows")
            elif WEIGHT in labels and self.flow.shapes[tensor] == shape:
                self._decide(label, WEIGHT, "it is combined with weights")

    @property
    def batch_size(self) -> int | None:
        """The commonest leading dimension of what is known to be data, None if nothing is."""
        leading = Counter(
            self.flow.shapes[t][0]
            for t, label in self.known.items()
            if label == DATA and self.flow.shapes[t]
        )
        return leading.most_common(1)[0][0] if leading else None
