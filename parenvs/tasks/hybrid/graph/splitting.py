"""Which dimensions of a graph tensor parallelism splits: Megatron's pattern by dimension classes.

Beside attentions and feed-forward networks (``parenvs.tasks.partition.megatron``) the words of the
head are split, and the output features of convolutions where the rules allow it. A class with a
dimension that the ranks do not divide stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from parenvs.tasks.hybrid.graph.program import FORWARD, Program
from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.classes import DimensionClasses, dimension_classes
from parenvs.tasks.partition.explain import Explainer
from parenvs.tasks.partition.megatron import find_blocks, megatron_classes

_LINEAR = ("add", "convert", "reshape", "transpose", "copy", "bitcast")
"""Opcodes behind which partial results can be summed as well as in front of them; what is added to
them, one rank adds."""


class Splitting:
    """The classes that tensor parallelism splits, and what that leaves of each tensor.

    Args:
        program: the instructions by layers.
        uneven: ``"forbid"``: only dimensions that the ranks divide are split; ``"pad"``: any.
        classes: the dimension classes of the program's graph (default: by the rules of Shardy).
        chosen: (C,) bool, the classes to split, or path of an entry parameter -> the dimension of
            it that is (default: Megatron's pattern).
    """

    def __init__(
        self,
        program: Program,
        uneven: str = "forbid",
        classes: DimensionClasses | None = None,
        chosen: np.ndarray | Mapping[str, int] | None = None,
    ) -> None:
        self.program, self.uneven = program, uneven
        self._classes, self._chosen = classes, chosen

    @cached_property
    def classes(self) -> DimensionClasses:
        """The dimension classes."""
        return self._classes or dimension_classes(self.program.graph)

    @cached_property
    def has_attention(self) -> bool:
        """Whether the pattern is a transformer's."""
        return any(block.kind != "dense" for block in find_blocks(self.classes))

    @cached_property
    def chosen(self) -> np.ndarray:
        """(C,) bool, the classes that are split."""
        if isinstance(self._chosen, Mapping):
            return self.classes.chosen(self._chosen)
        if self._chosen is not None:
            return self._chosen
        chosen, _ = megatron_classes(self.classes)
        for label in [*self._words(), *self._features()]:
            open_ = not self.classes.blocked[label] and not chosen[label]
            if open_ and not chosen[self.classes.rivals(label)].any():
                chosen[label] = True
        return chosen

    @cached_property
    def convolves(self) -> bool:
        """Whether output features of convolutions are split."""
        return bool(self.chosen[self._features()].any())

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Which blocks stay whole at any tp, and why."""
        words = Explainer(self.classes)
        _, whole = megatron_classes(self.classes)
        return tuple(
            f"{len(labels)} {kind} class{'es stay' if len(labels) > 1 else ' stays'} whole under "
            f"tensor parallelism: {words.blocked(labels[0])}"
            for kind, labels in whole.items()
        )

    def _words(self) -> list[int]:
        """Class of the outputs of the head's last product with a weight."""
        program, flow = self.program, self.program.flow
        head = (program.label == program.layers + 1) & (program.graph.phase == FORWARD)
        for index in np.flatnonzero(head).tolist()[::-1]:
            operands = flow.operands[index]
            if flow.opcode[index] == "dot":
                for operand in operands:
                    if not program.on_data[operand]:
                        made = set(self._labels(flow.results[index][0]))
                        return [c for c in self._labels(operand) if c in made]
        return []

    def _features(self) -> list[int]:
        """Classes of the output features of the convolutions, in order."""
        program, flow = self.program, self.program.flow
        found = []
        for index in np.flatnonzero(program.graph.phase == FORWARD).tolist():
            if flow.opcode[index] == "convolution":
                kernel = flow.operands[index][1]
                if not program.on_data[kernel]:
                    made = set(self._labels(flow.results[index][0]))
                    found += [c for c in self._labels(kernel) if c in made]
        return found

    def _labels(self, tensor: int) -> list[int]:
        """Classes of a tensor's dimensions larger than 1."""
        start, end = self.program.graph.dim_offset[tensor : tensor + 2].tolist()
        wide = self.program.graph.dims[start:end] > 1
        return self.classes.label[start:end][wide].tolist()

    def class_shares(self, tp: int) -> np.ndarray:
        """(C,) share of each class that a rank holds."""
        if tp == 1:
            return np.ones(len(self.classes))
        share = formulas.device_share(self.classes, tp)
        split = self.chosen.copy()
        if self.uneven == "forbid":
            dims = self.program.graph.dims
            odd = (dims > 1) & (dims % tp != 0)
            split[self.classes.label[odd]] = False
        return np.where(split, share, 1.0)

    def dimension_shares(self, tp: int) -> np.ndarray:
        """(N,) share of each dimension of each tensor that a rank holds."""
        if tp == 1:
            return np.ones(len(self.program.graph.dims))
        shares = self.class_shares(tp)[self.classes.label]
        return np.where(self.program.graph.dims > 1, shares, 1.0)

    def tensor_shares(self, tp: int) -> np.ndarray:
        """(T,) share of each tensor that a rank holds."""
        graph = self.program.graph
        share = np.ones(len(graph.element_type))
        if tp > 1:
            owner = np.repeat(np.arange(len(share)), np.diff(graph.dim_offset))
            np.multiply.at(share, owner, self.dimension_shares(tp))
        return share

    def instruction_shares(self, tp: int) -> np.ndarray:
        """(I,) share of each instruction that a rank runs."""
        graph = self.program.graph
        share = np.ones(len(graph.opcode))
        if tp > 1:
            of_class = self.class_shares(tp)
            factors = self.classes.factors
            np.minimum.at(share, factors.instruction, of_class[self.classes.factor_class])
        return share

    def partial(self, tp: int) -> list[int]:
        """Instructions that leave partial results, ascending."""
        if tp == 1:
            return []
        factors = self.classes.factors
        split = self.class_shares(tp)[self.classes.factor_class] < 1
        return np.unique(factors.instruction[split & factors.partial]).tolist()

    def summed(self, tp: int) -> dict[int, tuple[int, ...]]:
        """Tensor that is all-reduced -> the instructions that leave the partial results in it.

        Partial results that are added up are summed over the ranks once, behind the addition.
        """
        program, flow = self.program, self.program.flow
        left = set(self.partial(tp))
        open_: dict[int, tuple[int, ...]] = {}
        done: dict[int, tuple[int, ...]] = {}
        for index, operands in enumerate(flow.operands):
            reads = [t for t in dict.fromkeys(operands) if t in open_]
            if reads:
                opcode = flow.opcode[index]
                alone = all(len(flow.after[t]) == 1 for t in reads)
                if opcode in _LINEAR and alone:
                    origin = tuple(i for t in reads for i in open_.pop(t))
                    open_[flow.results[index][0]] = origin
                else:
                    done.update((t, open_.pop(t)) for t in reads)
            if index in left and program.label[index] >= 0:
                open_.update(dict.fromkeys(flow.results[index], (index,)))
        return {**done, **open_}

    def reason_against(self, tp: int) -> str | None:
        """Why nothing can be divided among ``tp`` ranks, or None."""
        name = self.program.graph.name
        if tp == 1 or (self.class_shares(tp) < 1).any():
            return None
        if not self.chosen.any():
            why = (
                "; ".join(self.notes) or "it has no attention, feed-forward network or dense layer"
            )
            return f"tp {tp}: no matrix of {name} can be divided among ranks: {why}"
        dims = self.program.graph.dims
        split = self.chosen[self.classes.label] & (dims > 1)
        widths = sorted(set(dims[split & (dims % tp != 0)].tolist()))[:3]
        listed = ", ".join(map(str, widths))
        return f"tp {tp} divides none of the widths that would be split ({listed})"
