"""Views that merge dimensions, kept apart for as long as they can be.

``view`` makes one dimension of batch and heads, multiplies, and takes them apart again. A dimension
that is merged with one before it can no longer be split among devices, so a program that did as the
module says could split neither heads nor, behind a transposition, the batch. A ``Merged`` array
keeps the dimensions as they were; what works on one of them, or on each element alone, is done
there. Anything else is given the merged array.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Bound = int | None
Groups = tuple[tuple[int, ...], ...]
"""Sizes of the array's dimensions that make up each dimension that the program sees."""


@dataclass
class Merged:
    """An array whose dimensions are seen in groups, each as one dimension.

    Attributes:
        array: of shape ``sum(groups, ())``.
        groups: (rank that is seen,) sizes that each dimension is made of.
    """

    array: Array
    groups: Groups
    _whole: Array | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that is seen."""
        return tuple(map(math.prod, self.groups))

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The rank that is seen."""
        return len(self.groups)

    def whole(self) -> Array:
        """The array that is seen."""
        if self._whole is None:
            self._whole = jnp.reshape(self.array, self.shape)
        return self._whole

    def axes(self, dim: int) -> range:
        """The array's dimensions that a dimension is made of."""
        start = sum(map(len, self.groups[:dim]))
        return range(start, start + len(self.groups[dim]))


Tensor = Array | Merged


def plain(value: Any) -> Any:
    """The value as the program sees it: merged arrays merged, also inside lists."""
    if isinstance(value, Merged):
        return value.whole()
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    return value


def grouped(array: Array, groups: Groups) -> Tensor:
    """An array seen in groups; itself, if each is one dimension."""
    return array if all(len(group) == 1 for group in groups) else Merged(array, groups)


def _groups(x: Tensor) -> Groups:
    return x.groups if isinstance(x, Merged) else tuple((n,) for n in x.shape)


def _array(x: Tensor) -> Array:
    return x.array if isinstance(x, Merged) else x


def refined(sizes: Sequence[int], wanted: Sequence[int]) -> Groups | None:
    """Split ``sizes`` further so that they can be grouped to ``wanted``, or None if they cannot.

    >>> refined((6, 4), (2, 12))
    ((2,), (3, 4))
    """
    ends = list(accumulate(wanted, operator.mul, initial=1))
    # Both divisions together: each product of leading sizes has to divide the next one.
    cuts = sorted({*ends, *accumulate(sizes, operator.mul)})
    if 0 in sizes or ends[-1] != math.prod(sizes) or any(b % a for a, b in pairwise(cuts)):
        return None
    groups = []
    for start, end in pairwise(ends):
        inner = [cut for cut in cuts if start <= cut <= end]
        groups.append(tuple(b // a for a, b in pairwise(inner)) or (1,))
    return tuple(groups)


def view(x: Tensor, size: Sequence[int]) -> Tensor:
    """See an array in another shape."""
    size = list(size)
    if -1 in size:
        size[size.index(-1)] = math.prod(x.shape) // max(-math.prod(size), 1)
    # Splitting the array's dimensions is free; merging them would end a sharding of the second.
    groups = refined(_array(x).shape, size)
    if groups is None:
        return jnp.reshape(plain(x), size)
    return grouped(_reshaped(_array(x), sum(groups, ())), groups)


def _reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    return x if x.shape == shape else x.reshape(shape)


def _permute(function: Any, x: Merged, dims: Sequence[int]) -> Tensor:
    order = [d % x.ndim for d in dims]
    axes = [axis for d in order for axis in x.axes(d)]
    return grouped(jnp.transpose(x.array, axes), tuple(x.groups[d] for d in order))


def _unsqueeze(function: Any, x: Merged, dim: int) -> Tensor:
    dim %= x.ndim + 1
    return view(x, (*x.shape[:dim], 1, *x.shape[dim:]))


def _squeeze(function: Any, x: Merged, dims: Sequence[int]) -> Tensor:
    dropped = {d % x.ndim for d in dims if x.shape[d] == 1}
    return view(x, [n for d, n in enumerate(x.shape) if d not in dropped])


def _expand(function: Any, x: Merged, size: Sequence[int], implicit: bool = False) -> Any:
    groups: Groups = ((1,),) * (len(size) - x.ndim) + x.groups
    array = _reshaped(x.array, sum(groups, ()))
    new = tuple(
        group if n in (-1, math.prod(group)) else (n,)
        for n, group in zip(size, groups, strict=True)
    )
    if any(len(a) != len(b) for a, b in zip(groups, new, strict=True)):
        return None
    return grouped(jnp.broadcast_to(array, sum(new, ())), new)


def _split_alike(shapes: Sequence[Groups]) -> Groups | None:
    """Common groups into which the dimensions of several broadcast shapes split, None if none."""
    rank = max(map(len, shapes))
    padded = [((1,),) * (rank - len(groups)) + groups for groups in shapes]
    common = []
    for parts in zip(*padded, strict=True):
        group: tuple[int, ...] = (1,)
        for other in parts:
            if math.prod(other) == 1 or group == other:
                continue
            split = (other,) if math.prod(group) == 1 else refined(group, other)
            if split is None:
                return None
            group = sum(split, ())
        common.append(group)
    return tuple(common)


def _split_as(x: Tensor, groups: Groups) -> Array:
    """The array with each dimension split as ``groups``; those of size 1 are broadcast."""
    shape: list[int] = []
    for size, group in zip((1,) * (len(groups) - x.ndim) + x.shape, groups, strict=True):
        shape += [1] * len(group) if size == 1 else group
    return _reshaped(_array(x), tuple(shape))


def _results(result: Any, head: Groups) -> Any:
    """The result of a function of an array, seen in the groups of its leading dimensions."""
    count = sum(map(len, head))
    return jax.tree.map(
        lambda array: grouped(array, head + tuple((n,) for n in array.shape[count:])), result
    )


def _along(x: Merged, dim: int, function: Callable[[Array, int], Any]) -> Any:
    """Apply a function that works along one dimension, given the array and that dimension."""
    dim %= x.ndim
    groups = (*x.groups[:dim], (x.shape[dim],), *x.groups[dim + 1 :])
    array = _reshaped(x.array, sum(groups, ()))
    axis = sum(map(len, groups[:dim]))

    def regroup(result: Array) -> Tensor:
        return grouped(result, (*groups[:dim], (result.shape[axis],), *groups[dim + 1 :]))

    return jax.tree.map(regroup, function(array, axis))


def _reduce(function: Any, x: Merged, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
    reduced = {d % x.ndim for d in dim or range(x.ndim)}
    axes = [axis for d in sorted(reduced) for axis in x.axes(d)]
    result = function(x.array, axes, True, **rest)
    groups = tuple((1,) * len(group) if d in reduced else group for d, group in enumerate(x.groups))
    kept = grouped(result, groups)
    remaining = [n for d, n in enumerate(x.shape) if d not in reduced]
    return view(kept, kept.shape if keepdim else remaining)


def _linear(function: Any, x: Tensor, weight: Tensor, bias: Any = None) -> Any:
    result = _contract(x, weight, weight.ndim - 1, _groups(weight)[:-1])
    return result if bias is None else _elementwise(operator.add, result, bias)


def _contract(x: Tensor, weight: Tensor, inputs: int, outputs: Groups) -> Any:
    """Contract the last dimension of ``x`` with dimension ``inputs`` of a matrix or vector."""
    head = _groups(x)[:-1]
    left = _reshaped(_array(x), (*sum(head, ()), x.shape[-1]))
    split = _groups(weight)
    split = tuple((weight.shape[d],) if d == inputs else group for d, group in enumerate(split))
    right = _reshaped(_array(weight), sum(split, ()))
    axis = sum(len(group) for group in split[:inputs])
    result = lax.dot_general(left, right, (((left.ndim - 1,), (axis,)), ((), ())))
    return grouped(result, head + outputs)


def _product(function: Any, x: Tensor, y: Tensor) -> Any:
    """``mm``, ``bmm`` and ``matmul``: the batch dimensions stay apart, and the rows of ``x``."""
    if y.ndim == 2 and x.ndim >= 2:
        return _contract(x, y, 0, _groups(y)[1:])
    if x.ndim != y.ndim or x.ndim < 3:
        return None
    batch = x.ndim - 2
    groups = _split_alike([_groups(item)[:batch] for item in (x, y)])
    if groups is None:
        return None
    pair = [_split_as(item, groups + tuple((n,) for n in item.shape[batch:])) for item in (x, y)]
    return _results(jnp.matmul(*pair), groups)


def _addmm(
    function: Any, start: Tensor, x: Tensor, y: Tensor, beta: Any = 1, alpha: Any = 1
) -> Any:
    # Scaled sums are rare, and left to the plain function.
    if (beta, alpha) != (1, 1):
        return None
    product = _product(None, x, y)
    return None if product is None else _elementwise(operator.add, product, start)


def _gather(function: Any, x: Tensor, dim: int, index: Tensor, *_: Any) -> Any:
    dim %= x.ndim
    if any(x.shape[d] != index.shape[d] for d in range(x.ndim) if d != dim):
        return None
    # The dimension that is gathered along stays whole, of either size; the others are split alike.
    common = _split_alike(
        [(*_groups(item)[:dim], (1,), *_groups(item)[dim + 1 :]) for item in (x, index)]
    )
    if common is None:
        return None
    splits = [(*common[:dim], (item.shape[dim],), *common[dim + 1 :]) for item in (x, index)]
    array, picks = (_split_as(item, split) for item, split in zip((x, index), splits, strict=True))
    axis = sum(map(len, common[:dim]))
    return grouped(jnp.take_along_axis(array, picks, axis=axis, mode="clip"), splits[1])


def _elementwise(function: Any, *operands: Any, **keywords: Any) -> Any:
    """Apply a function to operands whose dimensions are split alike; None if they cannot be."""
    groups = _split_alike([_groups(x) for x in operands if isinstance(x, Array | Merged)])
    if groups is None:
        return None
    split = [_split_as(x, groups) if isinstance(x, Array | Merged) else x for x in operands]
    return _results(function(*split, **keywords), groups)


def _slice(
    function: Any, x: Merged, dim: int = 0, start: Bound = None, end: Bound = None, step: int = 1
) -> Any:
    low, high, _ = slice(start, end).indices(x.shape[dim])
    if step == 1:
        return _slice_dim(x, dim % x.ndim, low, max(high - low, 0))
    return _along(x, dim, lambda array, axis: function(array, axis, start, end, step))


def _slice_dim(x: Merged, dim: int, start: int, length: int) -> Tensor:
    """A part of a dimension: of its first group alone, if it ends with the others."""
    group = x.groups[dim]
    # A part that is whole multiples of the inner groups is a part of the outer one alone.
    unit = math.prod(group[1:])
    if len(group) == 1 or start % unit or length % unit:
        return _along(x, dim, lambda a, axis: lax.slice_in_dim(a, start, start + length, axis=axis))
    axis = x.axes(dim)[0]
    array = lax.slice_in_dim(x.array, start // unit, (start + length) // unit, axis=axis)
    count = length // unit
    new = (count, *group[1:]) if count != 1 else group[1:]
    groups = (*x.groups[:dim], new, *x.groups[dim + 1 :])
    return grouped(_reshaped(array, sum(groups, ())), groups)


def _select(function: Any, x: Merged, dim: int, index: int) -> Any:
    dim %= x.ndim
    item = _slice_dim(x, dim, index % x.shape[dim], 1)
    return view(item, [n for d, n in enumerate(x.shape) if d != dim])


def _parts(function: Any, x: Merged, sizes: Sequence[int], dim: int = 0) -> Any:
    starts = accumulate(sizes, initial=0)
    return tuple(_slice_dim(x, dim % x.ndim, *part) for part in zip(starts, sizes, strict=False))


def _along_dim(function: Any, x: Merged, dim: int, *how: Any, **more: Any) -> Any:
    return _along(x, dim, lambda array, axis: function(array, axis, *how, **more))


def _embedding(function: Any, table: Tensor, ids: Tensor, *how: Any) -> Any:
    if not isinstance(ids, Merged):
        return None
    return _results(function(plain(table), ids.array, *how), ids.groups)


def _layer_norm(function: Any, x: Merged, shape: Sequence[int], *how: Any) -> Any:
    head = x.groups[: x.ndim - len(shape)]
    array = _reshaped(x.array, (*sum(head, ()), *x.shape[len(head) :]))
    return _results(function(array, shape, *map(plain, how)), head)


def _topk(function: Any, x: Merged, k: int, dim: int = -1, *how: Any) -> Any:
    return _along(x, dim, lambda array, axis: function(array, k, axis, *how))


VIEWS = ("view", "_reshape_copy")
"""Operations that may merge dimensions."""
_TRANSPARENT: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze.dims": _squeeze,
    "expand": _expand,
    **dict.fromkeys(("mm", "bmm", "matmul"), _product),
    "addmm": _addmm,
    "gather": _gather,
    "embedding": _embedding,
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _layer_norm),
    "topk": _topk,
    "native_dropout": _elementwise,
    **dict.fromkeys(("_softmax", "_log_softmax", "cumsum"), _along_dim),
    "slice.Tensor": _slice,
    "split_with_sizes": _parts,
    "select.int": _select,
    **dict.fromkeys(("sum.dim_IntList", "mean", "mean.dim", "amax", "amin"), _reduce),
}
"""Operations that can be done without merging; None is returned where they cannot."""

_MOVES = (_permute, _unsqueeze, _squeeze, _expand)
_FIRST = (*_MOVES, _layer_norm, _slice, _parts, _select, _reduce, _along_dim, _topk)
"""Of these, those that are about their first operand alone."""


def apply(name: str, function: Any, elementwise: bool, args: Sequence[Any], how: Any) -> Any:
    """Compute an operation by its function of arrays, merging no more than necessary."""
    if name in VIEWS:
        return view(*args)
    if any(isinstance(x, Merged) for x in args):
        rule = _elementwise if elementwise else _TRANSPARENT.get(name)
        if rule is not None and (rule not in _FIRST or isinstance(args[0], Merged)):
            result = rule(function, *args, **how)
            if result is not None:
                return result
    return function(*map(plain, args), **{key: plain(value) for key, value in how.items()})
