"""Parts of stacked arrays: what an iteration reads of an array that holds all layers.

A value of a program that is being unrolled is a tensor's number, or a view, which becomes a tensor
only if something computes with it: a part of an entry parameter, a reshape, an instruction that
works on each layer apart (a cast of the whole stack), or a stack of values that were written. Thus
what the backward pass alone will read of a stack does not cross cuts of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A block of an entry parameter along its leading dimensions; all of it without ``indices``.

    Attributes:
        parameter: index of the parameter.
        shape: dimensions of the part.
        indices: positions in the leading dimensions that are left out.
        start: first position in the leading dimension that is left.
        length: size of that dimension in the parameter.
    """

    parameter: int
    shape: Shape
    indices: tuple[int, ...] = ()
    start: int = 0
    length: int = 0

    @classmethod
    def whole(cls, parameter: int, shape: Shape, indices: tuple[int, ...] = ()) -> Part:
        """Return the part that is all of a parameter, or all at some leading positions of it."""
        return cls(parameter, shape, indices, length=shape[0] if shape else 0)

    @property
    def suffix(self) -> str:
        """The part as text, like ``[2]`` or ``[4:8]``; empty for a whole parameter."""
        text = "".join(f"[{index}]" for index in self.indices)
        if self.shape and self.shape[0] < self.length:
            text += f"[{self.start}:{self.start + self.shape[0]}]"
        return text

    def cut(self, start: int, size: int) -> Value:
        """Return a block along the leading dimension."""
        first = self.start + start
        if size != 1:
            return replace(self, start=first, shape=(size, *self.shape[1:]))
        rest = self.shape[1:]
        # A block of one layer is that layer itself, seen with a leading dimension of 1.
        item = Part.whole(self.parameter, rest, (*self.indices, first))
        return Reshaped(item, (1, *rest))


@dataclass(frozen=True)
class Computed:
    """A tensor that an instruction computed; the number alone is one, too, but has no views."""

    tensor: int
    shape: Shape

    def cut(self, start: int, size: int) -> None:
        """Return None: a block must be computed."""


@dataclass(eq=False)
class Reshaped:
    """A view with other dimensions; ``tensors`` holds what it became, by phase."""

    source: Part | Computed | Mapped | Stack
    shape: Shape
    tensors: dict[int, int] = field(default_factory=dict)

    def cut(self, start: int, size: int) -> Value | None:
        """Return a block along the leading dimension, None if that is no block of the source."""
        source, rest = self.source, self.shape[1:]
        if not source.shape:
            return None
        shape = (size, *rest)
        # Blocks stay blocks only if the leading dimension is kept, split or merged.
        lead = source.shape[0]
        if lead == self.shape[0]:
            return reshaped(source.cut(start, size), shape)
        if len(self.shape) > 1 and lead == self.shape[0] * self.shape[1]:  # the dimension is split
            inner = self.shape[1]
            return reshaped(source.cut(start * inner, size * inner), shape)
        if len(source.shape) > 1 and lead * source.shape[1] == self.shape[0]:  # two are merged
            # A block of the merged dimension may lie in one row of the source, or be whole rows.
            group, first = divmod(start, source.shape[1])
            if first + size <= source.shape[1]:
                row = reshaped(source.cut(group, 1), source.shape[1:])
                return None if row is None else reshaped(row.cut(first, size), shape)
            if not first and not size % source.shape[1]:
                return reshaped(source.cut(group, size // source.shape[1]), shape)
        return None


@dataclass(eq=False)
class Mapped:
    """The result of an instruction that treats each position of the leading dimension apart.

    Attributes:
        row: the instruction.
        sources: its operands; numbers of tensors are free ones, which are not cut.
        shape: dimensions of the result.
        elementwise: whether other dimensions may be given to the operands as well as the result.
        share: share of the whole instruction's work.
        cuts: blocks that were read, by start and size.
        tensors: what it became, by phase.
    """

    row: int
    sources: tuple[Value, ...]
    shape: Shape
    elementwise: bool
    share: float = 1.0
    cuts: dict[tuple[int, int], Value] = field(default_factory=dict)
    tensors: dict[int, int] = field(default_factory=dict)

    def cut(self, start: int, size: int) -> Value | None:
        """Return a block along the leading dimension, None if a source has no such block."""
        # One view per block, so that its readers share one tensor.
        if (start, size) not in self.cuts:
            sources = [s if isinstance(s, int) else s.cut(start, size) for s in self.sources]
            blocks = tuple(s for s in sources if s is not None)
            if len(blocks) < len(sources):
                return None
            shape = block_shape = (size, *self.shape[1:])
            inner = tuple(s.source for s in blocks if isinstance(s, Reshaped))
            alike = len(inner) == len(blocks) and len({s.shape for s in inner}) == 1
            if self.elementwise and alike:  # what follows may undo the reshape
                block_shape, blocks = inner[0].shape, inner
            share = self.share * size / self.shape[0]
            block = Mapped(self.row, blocks, block_shape, self.elementwise, share)
            self.cuts[start, size] = block if block_shape == shape else Reshaped(block, shape)
        return self.cuts[start, size]

    def pieces(self) -> list[Value]:
        """Return the blocks that were read, in order, if they are all of it; else none."""
        return _covering(self.cuts, 0, self.shape[0])


@dataclass(eq=False)
class Stack:
    """Blocks along a leading dimension that were written or joined one by one.

    Attributes:
        shape: dimensions of the whole.
        blocks: (start, size) -> block.
        base: what the other positions hold, None if there are none.
        tensors: what it became, by phase.
    """

    shape: Shape
    blocks: dict[tuple[int, int], Value]
    base: Value | None = None
    tensors: dict[int, int] = field(default_factory=dict)

    def cut(self, start: int, size: int) -> Value | None:
        """Return a block along the leading dimension, None if it is no whole number of blocks."""
        for (first, length), block in self.blocks.items():
            if first <= start and start + size <= first + length:
                if size == length:
                    return block
                return None if isinstance(block, int) else block.cut(start - first, size)
        inside = {k: b for k, b in self.blocks.items() if start <= k[0] and sum(k) <= start + size}
        if _covering(inside, start, size):
            blocks = {(first - start, length): b for (first, length), b in inside.items()}
            return Stack((size, *self.shape[1:]), blocks)
        touched = any(k[0] < start + size and start < sum(k) for k in self.blocks)
        if touched or self.base is None or isinstance(self.base, int):
            return None
        return self.base.cut(start, size)

    def written(self, extent: tuple[int, int], block: Value) -> Stack:
        """Return the stack after a block was written at a start, of a size."""
        # Blocks that the new one covers or touches hold old values, and are gone.
        start, end = extent[0], sum(extent)
        retained = {k: b for k, b in self.blocks.items() if sum(k) <= start or k[0] >= end}
        return Stack(self.shape, {**retained, extent: block}, self.base)

    def pieces(self) -> list[Value]:
        """Return the blocks in order, behind the base where they do not cover it."""
        pieces = _covering(self.blocks, 0, self.shape[0])
        if not pieces:
            pieces = [self.blocks[key] for key in sorted(self.blocks)]
            pieces = pieces if self.base is None else [self.base, *pieces]
        return pieces


View: TypeAlias = Part | Computed | Reshaped | Mapped | Stack
Value: TypeAlias = int | View


def _covering(blocks: dict[tuple[int, int], Value], start: int, size: int) -> list[Value]:
    """Return the blocks in order if they follow each other from ``start`` on; else none."""
    result = []
    end = start
    for first, length in sorted(blocks):
        if first != end:
            return []
        end += length
        result.append(blocks[first, length])
    return result if end == start + size else []


def reshaped(value: Value | None, shape: Shape) -> View | None:
    """Return a view with other dimensions; a tensor's number has no view, and gives None."""
    if isinstance(value, Reshaped):
        value = value.source
    if value is None or isinstance(value, int):
        return None
    return value if value.shape == shape else Reshaped(value, shape)


def is_weight(value: Value, holds_weight: Callable[[int], bool]) -> bool:
    """Return whether a value is made only of parameters for which ``holds_weight`` is true."""
    if isinstance(value, Part):
        return holds_weight(value.parameter)
    if isinstance(value, int | Computed) or (isinstance(value, Stack) and value.base is not None):
        return False
    sources = _sources(value)
    if isinstance(value, Mapped):  # numbers of tensors are free ones there
        sources = [source for source in sources if not isinstance(source, int)]
    return all(is_weight(source, holds_weight) for source in sources)


def parts_of(value: Value) -> Iterator[Part]:
    """Yield the parts of entry parameters that a value is made of."""
    if isinstance(value, Part):
        yield value
    else:
        for source in _sources(value):
            yield from parts_of(source)


def _sources(value: Value) -> Sequence[Value]:
    if isinstance(value, Reshaped):
        return (value.source,)
    if isinstance(value, Mapped):
        return value.sources
    return tuple(value.blocks.values()) if isinstance(value, Stack) else ()


def contains(whole: Part, part: Part) -> bool:
    """Return whether a part lies in another one, and is not all of it."""
    if whole == part or whole.parameter != part.parameter or not whole.shape:
        return False
    depth = len(whole.indices)
    if part.indices[:depth] != whole.indices:
        return False
    first, last = part.start, part.start + (part.shape[0] if part.shape else 0) - 1
    if len(part.indices) > depth:
        first = last = part.indices[depth]
    return whole.start <= first and last < whole.start + whole.shape[0]


def division(whole: Part, parts: Iterable[Part]) -> list[Part]:
    """Return the parts that a part is divided into, so that each of ``parts`` is one, or in one.

    Positions that no part covers become parts of their own. Parts that overlap without lying in
    each other cannot be told apart: then there is none.
    """
    inside = [part for part in parts if contains(whole, part)]
    blocks = [part for part in inside if part.indices == whole.indices]
    largest = {b.start: b for b in blocks if not any(contains(other, b) for other in blocks)}
    ordered = [largest[start] for start in sorted(largest)]
    if not inside or any(a.start + a.shape[0] > b.start for a, b in pairwise(ordered)):
        return []
    result: list[Part] = []
    position, end, inner = whole.start, whole.start + whole.shape[0], whole.shape[1:]
    while position < end:
        block = largest.get(position)
        result.append(block or Part.whole(whole.parameter, inner, (*whole.indices, position)))
        position += block.shape[0] if block else 1
    return result
