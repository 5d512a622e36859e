"""Checks that an instruction's shapes fit each other, as XLA's verifier does.

Each check reads like the definition of its opcode, and ends at the first thing that does not fit.
Opcodes that are not listed, and those whose attributes a graph does not hold, are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from parenvs.errors import HloError
from parenvs.graph.flops import ELEMENTWISE, Shape

Fields = dict[str, Any]
"""Dimension numbers, windows, ..., as ``Graph.attribute`` holds them."""
Check = Callable[[Sequence[Shape], Sequence[Shape], Fields], str]
"""Operands, results and fields -> what does not fit, "" if all fits."""


def check_shapes(
    opcode: str, operands: Sequence[Shape], results: Sequence[Shape], fields: Fields
) -> None:
    """Check the shapes of one instruction.

    Args:
        opcode: its opcode.
        operands: shapes, tuples flattened.
        results: shapes, tuples flattened.
        fields: its attributes.

    Raises:
        HloError: they do not fit; the text says what, without the instruction's name.
    """
    check = CHECKS.get(opcode)
    if check is None:
        return
    least = 2 if opcode in _TWO else 1
    if not results or len(operands) < least:
        raise HloError(f"{opcode} has {len(operands)} operands and {len(results)} results")
    try:
        wrong = check(operands, results, fields)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        wrong = "its dimension numbers are missing or out of range"
    if wrong:
        shapes = ", ".join(str(list(shape)) for shape in operands[:4])
        raise HloError(f"{opcode} of {shapes} to {list(results[0])}: {wrong}")


def _elementwise(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Operands have the result's shape, or are scalars (``clamp`` and ``select``)."""
    same = all(shape == results[0] or shape == () for shape in operands)
    return "" if same and len(operands) < 4 else "the shapes differ"


def _dot(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Contracted and batch sizes agree; the result lists batch, lhs free and rhs free sizes."""
    part = fields.get("dot", {})
    sides = []
    for side, shape in zip(("lhs", "rhs"), operands, strict=False):
        batch, inner = (list(part.get(f"{side}_{key}", ())) for key in ("batch", "contracting"))
        if not _distinct([*batch, *inner], len(shape)):
            return f"its {side} dimension numbers repeat or are out of range"
        taken = {*batch, *inner}
        free = [size for d, size in enumerate(shape) if d not in taken]
        sides.append(([shape[d] for d in batch], [shape[d] for d in inner], free))
    (batch, inner, free), (other_batch, other_inner, other_free) = sides
    if inner != other_inner:
        return f"it contracts {inner} with {other_inner}"
    if batch != other_batch:
        return f"its batch sizes are {batch} and {other_batch}"
    return _expect(results[0], (*batch, *free, *other_free))


def _broadcast(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Every dimension of the operand goes to one of the result, of the same size."""
    places = fields.get("dimensions", [])
    if not _distinct(places, len(results[0])) or len(places) != len(operands[0]):
        return f"its dimensions {places} do not say where each dimension goes"
    return _expect(operands[0], [results[0][d] for d in places])


def _transpose(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The result has the operand's dimensions in another order."""
    order = fields.get("dimensions", [])
    if not _distinct(order, len(operands[0])) or len(order) != len(operands[0]):
        return f"its dimensions {order} are no permutation"
    return _expect(results[0], [operands[0][d] for d in order])


def _reshape(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The number of elements stays."""
    before, after = math.prod(operands[0]), math.prod(results[0])
    return "" if before == after else f"{before} elements become {after}"


def _same(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The result has the operand's shape."""
    return _expect(results[0], operands[0])


def _concatenate(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Sizes add up along one dimension and are the same along the others."""
    (along,) = fields.get("dimensions", [0])
    if not _distinct([along], len(results[0])):
        return f"its dimension {along} is out of range"
    rest = {(shape[:along], shape[along + 1 :]) for shape in operands}
    if len(rest) != 1:
        return "the operands differ along other dimensions"
    ((before, after),) = rest
    return _expect(results[0], (*before, sum(shape[along] for shape in operands), *after))


def _slice(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Limits lie inside the operand, and leave the result."""
    slices = fields.get("slices", [])
    if len(slices) != len(operands[0]):
        return f"it has {len(slices)} limits"
    for (start, limit, stride), size in zip(slices, operands[0], strict=True):
        if not (0 <= start <= limit <= size and stride > 0):
            return f"its limits [{start}:{limit}:{stride}] are not inside {size}"
    return _expect(results[0], [-(-(b - a) // step) for a, b, step in slices])


def _dynamic_slice(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The slice is not larger than the operand."""
    sizes = fields.get("dynamic_slice_sizes", [])
    if not _inside(sizes, operands[0]):
        return f"its sizes {sizes} do not fit into the operand"
    return _expect(results[0], sizes)


def _dynamic_update_slice(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The update is not larger than the operand, whose shape stays."""
    if not _inside(operands[1], operands[0]):
        return "the update does not fit into the operand"
    return _expect(results[0], operands[0])


def _pad(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Each size grows by its padding at both ends and between the elements."""
    pads = fields.get("padding", {}).get("dimensions", [])
    if len(pads) != len(operands[0]):
        return f"it pads {len(pads)} dimensions"
    sizes = []
    for size, pad in zip(operands[0], pads, strict=True):
        inside = size + max(size - 1, 0) * pad.get("interior", 0)
        sizes.append(inside + pad.get("low", 0) + pad.get("high", 0))
    return _expect(results[0], sizes)


def _reduce(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The reduced dimensions go; all inputs of a variadic reduction have one shape."""
    gone = fields.get("dimensions", [])
    if len(operands) != 2 * len(results):
        return f"it has {len(operands)} operands and {len(results)} results"
    if not _distinct(gone, len(operands[0])):
        return f"its dimensions {gone} repeat or are out of range"
    if any(shape != operands[0] for shape in operands[: len(results)]):
        return "the inputs differ"
    kept = [size for d, size in enumerate(operands[0]) if d not in gone]
    return next((wrong for shape in results if (wrong := _expect(shape, kept))), "")


def _windowed(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The window has a size for every dimension of operand and result."""
    count = len(fields.get("window", {}).get("dimensions", []))
    fits = count == len(operands[0]) == len(results[0])
    return "" if fits else f"its window has {count} dimensions"


def _convolution(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Features and batches agree, by groups, and dimension numbers name each dimension once."""
    lhs, rhs, out, part = operands[0], operands[1], results[0], fields.get("convolution", {})
    spatial = len(fields.get("window", {}).get("dimensions", []))
    places = {
        "input": (lhs, "input_batch", "input_feature", "input_spatial"),
        "kernel": (rhs, "kernel_input_feature", "kernel_output_feature", "kernel_spatial"),
        "output": (out, "output_batch", "output_feature", "output_spatial"),
    }
    for name, (shape, first, second, others) in places.items():
        numbers = [part.get(first, 0), part.get(second, 0), *part.get(others, ())]
        if not len(numbers) == spatial + 2 == len(shape) or not _distinct(numbers, len(shape)):
            return f"its dimension numbers of the {name} repeat or are out of range"
    groups = max(fields.get("feature_group_count", 1), 1)
    batches = max(fields.get("batch_group_count", 1), 1)
    features, taken = lhs[part.get("input_feature", 0)], rhs[part.get("kernel_input_feature", 0)]
    if features != taken * groups:
        return f"{features} features, and a kernel of {taken} in {groups} groups"
    made, given = out[part.get("output_feature", 0)], rhs[part.get("kernel_output_feature", 0)]
    if made != given or made % (groups * batches):
        return f"{made} features of the result, and a kernel of {given}"
    samples, left = lhs[part.get("input_batch", 0)], out[part.get("output_batch", 0)]
    return "" if samples == left * batches else f"{samples} samples become {left}"


def _gather(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Windows fit into the operand; the result has the indices' batch and the windows' sizes."""
    part, sizes = fields.get("gather", {}), fields.get("gather_slice_sizes", [])
    source, indices, out = operands[0], operands[1], results[0]
    offset = part.get("offset_dims", [])
    batching = part.get("operand_batching_dims", [])
    dropped = [*part.get("collapsed_slice_dims", ()), *batching]
    vector = part.get("index_vector_dim", 0)
    wrong = _indexed(part.get("start_index_map", []), source, indices, vector)
    if wrong:
        return wrong
    if not _inside(sizes, source):
        return f"its slice sizes {sizes} do not fit into the operand"
    paired = part.get("start_indices_batching_dims", [])
    if not (_distinct(dropped, len(source)) and _distinct(offset, len(out))):
        return "its dimension numbers repeat or are out of range"
    if not _paired(source, batching, indices, paired):
        return "its batching dimensions differ"
    window = [size for d, size in enumerate(sizes) if d not in dropped]
    if [out[d] for d in offset] != window:
        return f"its windows of {window} are not those of the result"
    return _expect([size for d, size in enumerate(out) if d not in offset], _but(indices, vector))


def _scatter(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Windows fit into the result; the updates have the indices' batch and the windows' sizes."""
    part, count = fields.get("scatter", {}), len(results)
    if len(operands) != 2 * count + 1:
        return f"it has {len(operands)} operands and {count} results"
    source, indices, updates = operands[0], operands[count], operands[count + 1]
    window = part.get("update_window_dims", [])
    batching = part.get("input_batching_dims", [])
    dropped = [*part.get("inserted_window_dims", ()), *batching]
    vector = part.get("index_vector_dim", 0)
    wrong = _indexed(part.get("scatter_dims_to_operand_dims", []), source, indices, vector)
    if wrong:
        return wrong
    paired = part.get("scatter_indices_batching_dims", [])
    if not (_distinct(dropped, len(source)) and _distinct(window, len(updates))):
        return "its dimension numbers repeat or are out of range"
    if not _paired(source, batching, indices, paired):
        return "its batching dimensions differ"
    written = [size for d, size in enumerate(source) if d not in dropped]
    if not _inside([updates[d] for d in window], written):
        return "its windows do not fit into the operand"
    batch = [size for d, size in enumerate(updates) if d not in window]
    return _expect(batch, _but(indices, vector)) or _expect(results[0], source)


def _indexed(places: Sequence[int], source: Shape, indices: Shape, vector: int) -> str:
    """Return what is wrong with the dimension that holds index vectors, and where they point."""
    if not 0 <= vector <= len(indices):
        return f"its index_vector_dim {vector} is out of range"
    length = indices[vector] if vector < len(indices) else 1
    if len(places) != length or not _distinct(places, len(source)):
        return f"its indices have {length} numbers, for dimensions {list(places)}"
    return ""


def _paired(source: Shape, mine: Sequence[int], indices: Shape, others: Sequence[int]) -> bool:
    """Return whether batching dimensions of operand and indices have the same sizes."""
    return (
        len(mine) == len(others)
        and _distinct(others, len(indices))
        and all(source[a] == indices[b] for a, b in zip(mine, others, strict=True))
    )


def _but(shape: Shape, dimension: int) -> Shape:
    """Return a shape without a dimension, which may be the one behind the last."""
    return (*shape[:dimension], *shape[dimension + 1 :])


def _distinct(numbers: Sequence[int], rank: int) -> bool:
    """Return whether dimension numbers are in range, and none is there twice."""
    return len(set(numbers)) == len(numbers) and all(0 <= d < rank for d in numbers)


def _inside(sizes: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether a block fits into an array."""
    return len(sizes) == len(whole) and all(0 <= a <= b for a, b in zip(sizes, whole, strict=True))


def _expect(shape: Sequence[int], wanted: Sequence[int]) -> str:
    """Return what is wrong with a shape that should be another."""
    return "" if tuple(shape) == tuple(wanted) else f"{list(shape)} should be {list(wanted)}"


_TWO = ("dot", "convolution", "dynamic-update-slice", "gather", "pad", "reduce", "scatter")
"""Opcodes of at least two operands."""
CHECKS: dict[str, Check] = {
    **dict.fromkeys(ELEMENTWISE - {"bitcast-convert"}, _elementwise),
    **dict.fromkeys(("copy", "reverse", "cholesky"), _same),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), _windowed),
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": _reshape,
    "scatter": _scatter,
    "slice": _slice,
    "transpose": _transpose,
}
"""Opcode -> check."""
