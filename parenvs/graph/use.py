"""Tells weights from data among inputs by how they are read, where no update or gradient tells it.

Data are what a batch brings: whole numbers (tokens, labels, indices), images, and what goes through
the model with them. Weights are what they are multiplied with, looked up in or shifted by.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping

from parenvs.graph.axes import CONTRACTED, SHARED, Axes, leading_samples, sums_rows
from parenvs.graph.checks.limits import ELEMENT_TYPES
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
        self._numbers: set[int] = set()  # numbers made of data that are repeated
        self._samples: Counter[int] = Counter()  # sizes of the batch, by inputs that have it
        self._rows: dict[int, set[int]] = {}  # tensor -> its dimensions that are the batch
        self.looked_up: set[int] = set()
        self._axes = Axes(flow)
        self._forward = forward
        for tensor, label in known.items():
            if label == DATA:
                self._follow_rows(tensor)
        for index in range(len(flow.opcode)):
            self._read(index)
        self.looked_up.difference_update(self.known)
        for tensor in self.looked_up:
            self._decide(tensor, WEIGHT, "rows are looked up in it")

    def _of(self, tensor: int) -> Label:
        """The label of a tensor; what is found out of an input holds for all that is made of it."""
        label = self._label.get(tensor)
        return self.known.get(label, label) if isinstance(label, int) else label

    def _decide(self, source: Label, verdict: str, why: str) -> None:
        if isinstance(source, int):
            self.known[source] = verdict
            self.why[source] = why
            if verdict == DATA:
                self._follow_rows(source)

    def _follow_rows(self, tensor: int) -> None:
        """Find out what has the batch of an input, and as which dimension."""
        if not self.flow.shapes[tensor]:
            return
        start = leading_samples(self._axes, tensor, self._forward)
        self._samples[self.flow.shapes[tensor][start]] += 1
        self._mark_rows(tensor, start)

    def _mark_rows(self, tensor: int, start: int) -> None:
        """Note that a dimension is the batch, wherever it goes."""
        for reached, dimension in self._axes.journey(tensor, start, self._forward).reached:
            self._rows.setdefault(reached, set()).add(dimension)

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
            self._product(index, labels)
        elif opcode == "gather" and isinstance(labels[0], int):
            if labels[1] == DATA or (labels[1] is None and self._is_drawn(operands[1])):
                self.looked_up.add(labels[0])
        elif opcode == "broadcast" and flow.shapes[operands[0]]:
            self._broadcast(index, labels[0])
        elif sums_rows(flow, index) and DATA in labels[1:]:
            self._mark_rows(flow.results[index][0], 0)
        elif opcode == "reduce":
            self._reduced(index, labels[0])
        elif opcode == "concatenate" and '"dimensions":[0]' not in self._attribute(index):
            if DATA in labels:
                for found in labels:
                    self._decide(found, DATA, "it stands beside the batch, row by row")
        elif opcode in ELEMENTWISE or opcode in PARTS:
            self._together(operands, labels)
        labels = [self._of(t) for t in operands]
        unknown = [x for x in labels if isinstance(x, int)]
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
        data = [t for t, found in zip(operands, labels, strict=True) if found == DATA]
        if label == DATA and data:
            repeated = opcode == "broadcast" and not flow.shapes[operands[0]]
            if repeated or (opcode in ELEMENTWISE and self._numbers.issuperset(data)):
                self._numbers.update(flow.results[index])
            if self._is_summed(index, operands, data):
                self._summed.update(flow.results[index])

    def _attribute(self, index: int) -> str:
        """Dimension numbers and the like of an instruction, as JSON."""
        return self.flow.graph.strings[self.flow.graph.attribute[index]]

    def _is_drawn(self, tensor: int) -> bool:
        """Whether indices are made of some input, as those are that a random key draws."""
        made_of = self.flow.ancestors([tensor])
        return any(made_of[t] for t in self.flow.graph.parameter_tensor.tolist())

    def _is_noise(self, tensor: int) -> bool:
        """Whether a tensor is drawn by a random key."""
        made_of, types = self.flow.ancestors([tensor]), self.flow.graph.element_type
        return any(
            made_of[t] and self.flow.shapes[t] and ELEMENT_TYPES[int(types[t])][0] == "u32"
            for t in self.flow.graph.parameter_tensor.tolist()
        )

    def _is_summed(self, index: int, operands: list[int], data: list[int]) -> bool:
        """Whether what an instruction makes of data has lost the batch."""
        opcode = self.flow.opcode[index]
        if opcode in VIEWS or opcode in ELEMENTWISE:
            return self._summed.union(self._numbers).issuperset(data)
        if opcode == "dot":
            return all(t in self._summed or self._is_contracted(index, t) for t in data)
        shape = self.flow.shapes[operands[0]] if operands else ()
        leading = opcode == "reduce" and '"dimensions":[0' in self._attribute(index)
        return leading and shape[:1] == (self.batch_size,)

    def _is_contracted(self, index: int, tensor: int, done: str = CONTRACTED) -> bool:
        """Whether a product sums over the batch of one of its factors, or ``done`` otherwise."""
        rows = self._rows.get(tensor)
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
            if self._of(source) == DATA or self._label.get(tensor) is None:
                self._label[tensor] = self._label.get(source)

    def _product(self, index: int, labels: list[Label]) -> None:
        """Decide what data is multiplied with, or what weights are multiplied with.

        Data without the batch are weights that a step of gradient descent has changed.
        """
        opcode, operands = self.flow.opcode[index], self.flow.operands[index]
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
            own = operands[labels.index(DATA)]
            if any(self._is_contracted(index, own, done) for done in (SHARED, CONTRACTED)):
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
        """An input that is repeated along new leading dimensions is no batch.

        Unless it has the batch itself, and the new dimensions, the members of an ensemble, have
        another size.
        """
        first = json.loads(self._attribute(index))["dimensions"][0]
        new = self.flow.shapes[self.flow.results[index][0]][:first]
        if not first or not isinstance(label, int):
            return
        size = self.batch_size
        if self.flow.shapes[label][:1] != (size,) or size in new:
            self._decide(label, WEIGHT, "every sample gets the same of it")

    def _reduced(self, index: int, label: Label) -> None:
        """A list of numbers that is as long as the batch, and summed up, belongs to it."""
        is_number = not self.flow.shapes[self.flow.results[index][0]]
        if isinstance(label, int) and is_number and self.flow.shapes[label] == (self.batch_size,):
            self._decide(label, DATA, "it is as long as the batch, and summed over it")

    def _together(self, operands: list[int], labels: list[Label]) -> None:
        """What is combined element by element with data has their batch, or is a weight."""
        for tensor, label in zip(operands, labels, strict=True):
            if not isinstance(label, int):
                continue
            shape = self.flow.shapes[label]
            data = [
                t
                for t, other in zip(operands, labels, strict=True)
                if other == DATA and t not in self._numbers
            ]
            if data and self._summed.issuperset(data):
                self._decide(label, WEIGHT, "it meets sums over the batch")
            elif data:
                rows = {d for t in data for d in self._rows.get(t, ())}
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
