"""What DTensors cannot do of a module's own code by themselves (extra ``torch``).

A product with a weight that is several in one has the parts behind each other. Split over ranks,
each has a share of every part, which the sharding of DTensors cannot say of a product: whoever
takes the parts from it would gather it. ``Apart`` lets each rank take its shares. ``Whole`` lets
each rank do all of an operation that DTensors have no rule for.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from parenvs.errors import ParenvsError

# Function that multiplies by a weight -> number of the weight among its arguments.
_WEIGHT_INDEX = {"linear": 1, "addmm": 2, "matmul": 1, "__matmul__": 1, "mm": 1}
# What DTensors say of an operation, or of one inside it, that they have no rule for; the latter
# is said of shapes that are found without values, of types that the operation itself takes.
_NO_RULE = re.compile("strategy|Expected inputs of .* type")
logging.getLogger("torch._subclasses.fake_tensor").addFilter(
    lambda record: not (record.exc_info and _NO_RULE.search(str(record.exc_info[1])))
)  # it is no news
# Functions of a product whose result has its parts.
_KEEPS_PARTS = {"contiguous", "to", "_to_copy", "type", "float", "bfloat16", "half", "clone"}


def regrouped(shape: Sequence[int], planned: Sequence[int], dim: int) -> tuple[int, int]:
    """Return where a split of a weight in its planned shape is in its own.

    Args:
        shape: its own shape.
        planned: the same, with dimensions written as several.
        dim: of the planned shape, which is split.

    Returns:
        The dimension of its own shape, and of how many parts each rank holds a share.

    Raises:
        ValueError: the shapes are not of one weight.

    >>> regrouped((96, 32), (3, 32, 32), 1), regrouped((96, 32), (4, 24, 32), 0)
    ((0, 3), (0, 1))
    """
    result, index = (-1, 1), 0
    for number, size in enumerate(shape):
        first = index
        # Each dimension is the product of the next planned ones.
        while index < len(planned) and (math.prod(planned[first:index]) < size or index == first):
            index += 1
        if math.prod(planned[first:index]) != size:
            break
        if first <= dim < index:
            result = (number, math.prod(planned[first:dim]))
    else:
        if index == len(planned):
            return result
    raise ValueError(f"{tuple(planned)} is no grouping of {tuple(shape)}")


def without_partial(placements: Sequence[Placement]) -> list[Placement]:
    """Return the same placements, with whole tensors in place of partial ones."""
    return [Replicate() if x.is_partial() else x for x in placements]


class Shares(nn.Module):
    """Parametrization of a weight: a rank's shares of all parts, behind each other."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, weight: DTensor) -> DTensor:
        """Call a rank's shares its part of the whole, and mark them."""
        placements = [
            Shard(x.dim) if isinstance(x, _StridedShard) else x for x in weight.placements
        ]
        return _from_local(weight.to_local(), weight, placements, self.parts)


class _Mode(TorchFunctionMode):
    """Runs every function of PyTorch by ``run``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, dict(kwargs or {}))

    @abstractmethod
    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function in place of PyTorch."""


class Whole(_Mode):
    """Runs functions that DTensors have no rule for on whole tensors, on every rank alike.

    Raises:
        RuntimeError: such a function changes a tensor of which each rank has a part.
    """

    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function, on DTensors if they have a rule for it."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            distributed = [x for x in tree_leaves((args, kwargs)) if isinstance(x, DTensor)]
            if not distributed or not _NO_RULE.search(str(error)):
                raise
            if _is_in_place(func) and not all(p.is_replicate() for p in distributed[0].placements):
                raise
        mesh = distributed[0].device_mesh
        replicated = [Replicate()] * mesh.ndim

        whole = partial(
            DTensor.from_local, device_mesh=mesh, placements=replicated, run_check=False
        )
        # Every rank gathers the operands and computes the whole result.
        args, kwargs = tree_map_only(
            DTensor, lambda x: x.redistribute(placements=replicated).to_local(), (args, kwargs)
        )
        result = func(*args, **kwargs)
        return distributed[0] if _is_in_place(func) else tree_map_only(torch.Tensor, whole, result)


_MEANS = (
    "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy",
)  # fmt: skip
"""Losses over elements."""


class Means(_Mode):
    """Reduces losses over elements by an operation of its own.

    DTensors' rule for the backward pass of these divides by the elements of one rank, not of all:
    with torch 2.13 gradients are as many times too large as there are ranks.
    """

    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function; a loss of DTensors element by element, then its mean or sum."""
        name = _base_name(func)
        if name not in _MEANS or not any(isinstance(x, DTensor) for x in args):
            return func(*args, **kwargs)
        given = _arguments_of(func, args, kwargs)
        if name != "binary_cross_entropy" and given.get("weight") is not None:
            return func(*args, **kwargs)  # which reduces by operations of its own
        way, old = given["reduction"], [given.pop(x, None) for x in ("size_average", "reduce")]
        if old != [None, None]:
            way = torch.nn._reduction.legacy_get_string(*old)
        # ATen has numbers for the ways.
        none = "none" if isinstance(way, str) else 0
        each = func(**{**given, "reduction": none})
        return each if way == none else each.mean() if way in ("mean", 1) else each.sum()


class Labels(_Mode):
    """Counts what a loss divides by, such as the labels that are not ignored."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: list[torch.Tensor] = []
        self._shares: list[torch.Tensor] = []

    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function; count the labels of a mean over them, or what a scalar is divided by."""
        name = _base_name(func)
        if name in ("cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd"):
            given = _arguments_of(func, args, kwargs)
            target, weight = given["target"], given["weight"]
            if given["reduction"] in ("mean", 1) and not target.is_floating_point():
                kept = target != given["ignore_index"]
                weights = 1.0 if weight is None else weight[target.where(kept, 0)]
                self._counts.append((kept * weights).sum() / target.numel())
        elif name in ("div", "true_divide", "__truediv__"):
            scalars = [x for x in args if isinstance(x, torch.Tensor) and x.numel() == 1]
            if [x.requires_grad for x in scalars] == [True, False]:
                self._counts.append(scalars[1].float())
        return func(*args, **kwargs)

    def share(self) -> torch.Tensor:
        """Return by what a loss counts, of what was run since the last call."""
        counts = [x.full_tensor() if isinstance(x, DTensor) else x for x in self._counts]
        if any(x != counts[0] for x in counts[1:]):
            raise ParenvsError(
                "loss: its terms are means over different numbers of labels, which parts of a "
                "batch do not add up to; plan one micro-batch, one stage and --zero 0, or fill in "
                "the ignored labels"
            )
        self._counts = []
        self._shares.append((counts or [torch.ones(())])[0].reshape(()))
        return self._shares[-1]

    def total(self, count: int) -> torch.Tensor:
        """Return the sum of the last shares; in front of them are those that passed shapes."""
        shares, self._shares = self._shares[-count:], []
        return sum(shares, torch.zeros(()))


def _base_name(func: Callable[..., Any]) -> str:
    return func.__name__.partition(".")[0]


def _arguments_of(func: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    schema = getattr(getattr(func, "default", func), "_schema", None)  # of ATen's overloads
    if schema is not None:
        defaults = {x.name: x.default_value for x in schema.arguments}
        return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    call = inspect.signature(func).bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = _base_name(func)
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Apart(_Mode):
    """Takes products with fused weights apart, rank by rank.

    Raises:
        ParenvsError: the module does something else with such a product.
    """

    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function, or take the parts of a product from it."""
        marked = [x for x in tree_leaves((args, kwargs)) if parts_of(x) > 1]
        if not marked:
            return func(*args, **kwargs)
        name = _base_name(func)
        if func is functional.multi_head_attention_forward:
            return _attention(_arguments_of(func, args, kwargs))
        weight = _WEIGHT_INDEX.get(name)
        if weight is not None and len(args) > weight and parts_of(args[weight - 1]) == 1:
            return _mark(func(*args, **kwargs), parts_of(args[weight]))
        first = args[0]
        if first is marked[0] and name in _SPLITTERS:
            return _SPLITTERS[name](*args, **kwargs)
        result = func(*args, **kwargs)
        if not any(isinstance(x, DTensor) for x in tree_leaves(result)):
            return result  # its shape, its type
        if name in _KEEPS_PARTS:
            return _mark(result, parts_of(first))
        raise ParenvsError(
            f"module: the product with a weight that is {parts_of(marked[0])} in one goes into "
            f"{name} before it is taken apart by split, chunk, a slice or a view; take it apart "
            "first, or plan without tp"
        )


def parts_of(x: Any) -> int:
    """Of how many parts behind each other a rank has shares in a tensor."""
    return getattr(x, "_parenvs_parts", 1) if isinstance(x, DTensor) else 1


def _mark(x: Any, parts: int) -> DTensor:
    x._parenvs_parts = parts
    return cast(DTensor, x)


def _from_local(
    local: torch.Tensor, like: DTensor, placements: Sequence[Placement], parts: int = 1
) -> DTensor:
    result = DTensor.from_local(local, like.device_mesh, placements, run_check=False)
    return _mark(result, parts) if parts > 1 else result


def _split_parts(x: DTensor, sizes: Sequence[int]) -> tuple[DTensor, ...]:
    """Split a rank's shares of a product of parts into pieces of whole parts."""
    parts, local = parts_of(x), x.to_local()
    # Widths of a part in the whole tensor and on this rank.
    width, share = x.shape[-1] // parts, local.shape[-1] // parts
    if any(size % width for size in sizes):
        raise ParenvsError(
            f"module: a product of {parts} parts of {width} each is cut into {list(sizes)}, of "
            "which not each is of whole parts; plan without tp"
        )
    pieces = local.split([size // width * share for size in sizes], -1)
    return tuple(
        _from_local(piece, x, x.placements, size // width)
        for piece, size in zip(pieces, sizes, strict=True)
    )


def _check_last(x: DTensor, dim: int, name: str) -> None:
    if dim % x.ndim != x.ndim - 1:
        words = "of a product whose parts are in the last one"
        raise ParenvsError(f"module: {name} along dimension {dim} {words}")


def _split(x: DTensor, sizes: Any, dim: int = 0) -> tuple[DTensor, ...]:
    _check_last(x, dim, "split")
    if isinstance(sizes, int):
        whole, rest = divmod(x.shape[-1], sizes)
        sizes = [sizes] * whole + [rest] * bool(rest)
    return _split_parts(x, sizes)


def _get_item(x: DTensor, index: Any) -> DTensor:
    keys = index if isinstance(index, tuple) else (index,)
    plain = all(key is Ellipsis or key == slice(None) for key in keys[:-1])
    if plain and isinstance(keys[-1], slice) and (Ellipsis in keys[:-1] or len(keys) == x.ndim):
        first, end, step = keys[-1].indices(x.shape[-1])
        if step == 1 and first < end:
            return _split_parts(x, [first, end - first, x.shape[-1] - end])[1]
    raise ParenvsError("module: an index of a product with parts that is no slice of the last one")


def _slice(
    x: DTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> DTensor:
    keys = [slice(None)] * x.ndim
    keys[dim] = slice(start, end, step)
    if keys[dim].indices(x.shape[dim]) == (0, x.shape[dim], 1):
        return x
    return _get_item(x, tuple(keys))


def _view(x: DTensor, *shape: Any) -> DTensor:
    """The same elements in another shape: the last dimension stays, or its parts become one."""
    wanted = list(shape[0] if isinstance(shape[0], (tuple, list)) else shape)
    wanted = [math.prod(x.shape) // -math.prod(wanted) if n == -1 else n for n in wanted]
    parts, local = parts_of(x), x.to_local()
    if wanted[-1] == x.shape[-1]:
        return _mark(x.view(wanted), parts)  # what lies in front is no matter of parts
    last = x.ndim - 1
    if wanted[:last] != list(x.shape[:last]):
        raise ParenvsError(f"module: a view of a product with {parts} parts as {tuple(wanted)}")
    # The first new dimensions number the parts; the next one is what ranks share.
    count, axis = 1, last
    while axis < len(wanted) and count < parts:
        count *= wanted[axis]
        axis += 1
    shares = x.shape[-1] // local.shape[-1]
    if count != parts or axis == len(wanted) or wanted[axis] % shares:
        raise ParenvsError(
            f"module: a product of {parts} parts, of each of which {shares} ranks have a share, "
            f"is seen as {tuple(wanted)}, whose dimensions are not those of the parts"
        )
    local_shape = [*local.shape[:last], *wanted[last:]]
    local_shape[axis] //= shares
    placements = [
        Shard(axis) if isinstance(p, Shard) and p.dim == last else p for p in x.placements
    ]
    return _from_local(local.reshape(local_shape), x, placements)


def _unflatten(x: DTensor, dim: int, sizes: Sequence[int]) -> DTensor:
    _check_last(x, dim, "unflatten")
    return _view(x, *x.shape[:-1], *sizes)


def _attention(args: dict[str, Any]) -> tuple[DTensor, None]:
    """What ``nn.MultiheadAttention`` computes of one input (T, B, E), by ranks that share heads."""
    x, mask, padding = args["query"], args["attn_mask"], args["key_padding_mask"]
    is_self = x is args["key"] is args["value"] and x.ndim == 3
    extended = args["add_zero_attn"] or args["bias_k"] is not None
    # The module itself makes numbers of its masks.
    added = all(m is None or m.is_floating_point() for m in (mask, padding))
    if extended or args["need_weights"] or not (is_self and added):
        raise ParenvsError(
            "module: ranks share heads of nn.MultiheadAttention of one input with a batch, without "
            "keys of its own; call it with need_weights=False, or plan without tp"
        )
    length, samples, width = x.shape
    heads, weight = args["num_heads"], args["in_proj_weight"]
    projected: Any = functional.linear(x, weight, args["in_proj_bias"])
    q, k, v = (
        part.view(length, samples, heads, width // heads).permute(1, 2, 0, 3)
        for part in _split(_mark(projected, parts_of(weight)), width, -1)
    )
    if mask is not None and mask.ndim == 3:
        mask = mask.view(samples, heads, length, length)
    if padding is not None:
        padding = padding.view(samples, 1, 1, length)
        mask = padding if mask is None else mask + padding
    dropout = args["dropout_p"] if args["training"] else 0.0
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    merged = attended.permute(2, 0, 1, 3).reshape(length, samples, width)
    result: Any = functional.linear(merged, args["out_proj_weight"], args["out_proj_bias"])
    return result.redistribute(placements=without_partial(result.placements)), None


_SPLITTERS: dict[str, Callable[..., Any]] = {
    "split": _split,
    "split_with_sizes": _split,
    "chunk": lambda x, chunks, dim=0: _split(x, -(-x.shape[dim] // chunks), dim),
    "__getitem__": _get_item,
    "slice": _slice,
    "view": _view,
    "reshape": _view,
    "unflatten": _unflatten,
}


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        # The gradient of a sum over ranks is the sum of the ranks' gradients.
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Sum.apply(gradient, ctx.group), None


class Synchronized(_Mode):
    """Takes the statistics of batch normalizations over all processes of a group.

    PyTorch's own does so on GPUs alone, and in modules, which a traced stage has not. Every process
    has as many samples.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def run(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function; batch normalization in training with the statistics of all."""
        if func is functional.batch_norm:
            x, mean, variance, weight, bias, *rest = _arguments_of(func, args, kwargs).values()
            return self._normalized(torch.batch_norm, x, weight, bias, mean, variance, *rest, False)
        if func in (torch.batch_norm, torch.ops.aten.batch_norm.default):
            return self._normalized(func, *args)
        return func(*args, **kwargs)

    def _normalized(self, func: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        """Normalize a batch as ``func`` does, but by the statistics of all processes."""
        x, weight, bias, running_mean, running_variance, training, momentum, eps, _ = args
        if not training:
            return func(*args)
        axes = [k for k in range(x.ndim) if k != 1]
        shape = [-1 if k == 1 else 1 for k in range(x.ndim)]
        count = x.numel() // x.shape[1] * self.group.size()
        # Sums of half precision would lose digits, as in PyTorch's own kernels.
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = _Sum.apply(wide.sum(axes), self.group) / count
        centered = wide - mean.view(shape)
        variance = _Sum.apply(centered.square().sum(axes), self.group) / count
        result = centered * (variance + eps).rsqrt().view(shape)
        if weight is not None:
            result = result * weight.view(shape)
        if bias is not None:
            result = result + bias.view(shape)
        if running_mean is not None and running_variance is not None:
            # Running statistics have the unbiased variance, the result has the biased one.
            unbiased = variance.detach() * (count / max(count - 1, 1))
            running_mean.lerp_(mean.detach().to(running_mean), momentum)
            running_variance.lerp_(unbiased.to(running_variance), momentum)
        return result.to(x.dtype)
