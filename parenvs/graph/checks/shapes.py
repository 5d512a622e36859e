"""Checks that an instruction's shapes fit each other, as XLA's verifier does.

Each check reads like the definition of its opcode, and ends at the first thing that does not fit.
What follows from element types is not checked, and neither are opcodes whose attributes a graph
does not hold (``NOT_CHECKED``); ``nesting`` checks loops and branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from parenvs.errors import HloError, cut
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
    if check is None and opcode not in _OPERANDS:
        return
    least, most = _OPERANDS.get(opcode, (1, math.inf))
    single = opcode not in _SEVERAL
    if not least <= len(operands) <= most or (single and len(results) != 1) or not results:
        raise HloError(f"{opcode} has {len(operands)} operands and {len(results)} results")
    try:
        wrong = check(operands, results, fields) if check else ""
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        wrong = "its dimension numbers are missing or out of range"
    if wrong:
        shapes = ", ".join(str(list(shape)) for shape in operands[:4]) or "nothing"
        raise HloError(cut(f"{opcode} of {shapes} to {list(results[0])}: {wrong}"))


def _elementwise(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Operands have the result's shape."""
    return "" if all(shape == results[0] for shape in operands) else "the shapes differ"


def _clamp(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """What is clamped has the result's shape; each limit has it too, or is a scalar."""
    low, value, high = operands
    fits = value == results[0] and {low, high} <= {value, ()}
    return "" if fits else "the shapes differ"


def _select(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Both choices have the result's shape; what chooses has it too, or is a scalar."""
    test, one, other = operands
    fits = one == other == results[0] and test in (one, ())
    return "" if fits else "the shapes differ"


def _bitcast_convert(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The shape stays, or the parts of an element are the last dimension of the wider type."""
    shorter, longer = sorted((operands[0], results[0]), key=len)
    if shorter == longer or (shorter == longer[:-1] and longer[-1] in _WIDTHS):
        return ""
    return "the shapes differ by more than the parts of an element"


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
    """The result has the first operand's shape."""
    return _expect(results[0], operands[0])


def _each(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """There is a result for each operand, of its shape."""
    if len(operands) != len(results):
        return f"it has {len(results)} results"
    return _first(_expect(out, shape) for out, shape in zip(results, operands, strict=True))


def _scalar(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The result is a scalar."""
    return _expect(results[0], ())


def _reverse(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Dimensions of the operand are reversed, whose shape stays."""
    turned = fields.get("dimensions", [])
    if not _distinct(turned, len(operands[0])):
        return f"its dimensions {turned} repeat or are out of range"
    return _expect(results[0], operands[0])


def _iota(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The numbers grow along a dimension of the result."""
    (along,) = fields.get("dimensions", [0])
    return "" if 0 <= along < len(results[0]) else f"its dimension {along} is out of range"


def _sort(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """All operands have one shape, which stays, and a dimension that is sorted along."""
    (along,) = fields.get("dimensions", [0])
    if not 0 <= along < len(operands[0]):
        return f"its dimension {along} is out of range"
    if any(shape != operands[0] for shape in operands):
        return "the operands differ"
    return _each(operands, results, fields)


def _top_k(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Values and places have one shape: the operand's, with a last dimension as large at most."""
    (values, places), source = results, operands[0]
    fits = values == places and values[:-1] == source[:-1] and values[-1] <= source[-1]
    return "" if fits else "the values and places are not the operand's, shortened"


def _fft(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The last dimensions have the transform's lengths; of real numbers, half of the last stays."""
    lengths = tuple(fields.get("fft_length", ()))
    if not 1 <= len(lengths) <= 3 or min(lengths) < 1:
        return f"its lengths {list(lengths)} are not one to three positive numbers"
    whole, half = lengths, (*lengths[:-1], lengths[-1] // 2 + 1)
    (source, out), count = (operands[0], results[0]), len(lengths)
    if source[:-count] != out[:-count]:
        return "the dimensions that it leaves alone differ"
    if (source[-count:], out[-count:]) in ((whole, whole), (whole, half), (half, whole)):
        return ""
    return f"its lengths are {list(lengths)}"


def _cholesky(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The matrices are square, and stay as large."""
    if operands[0][-1] != operands[0][-2]:
        return "its matrices are not square"
    return _expect(results[0], operands[0])


def _triangular_solve(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The matrices are square, and as large as a side of the right-hand sides."""
    matrix, right = operands
    if matrix[-1] != matrix[-2]:
        return "its matrices are not square"
    if len(matrix) != len(right) or matrix[:-2] != right[:-2] or matrix[-1] not in right[-2:]:
        return "its right-hand sides are not those of its matrices"
    return _expect(results[0], right)


def _batch_norm(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Scales, offsets and statistics have a number for each feature; what is normed keeps shape."""
    source, features = operands[0], operands[1]
    numbers = [*operands[1:], *results[1:]]
    if len(operands) == 5 and len(results) == 3:  # of the gradient, the last is like the first
        numbers.remove(source)
    if len(features) != 1 or features[0] not in source or any(x != features for x in numbers):
        return "its statistics are not one number a feature"
    return _expect(results[0], source)


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


def _pad(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Each size grows by its padding at both ends and between the elements."""
    pads = fields.get("padding", {}).get("dimensions", [])
    if len(pads) != len(operands[0]):
        return f"it pads {len(pads)} dimensions"
    if operands[1]:
        return "what it pads with is no scalar"
    sizes = []
    for size, pad in zip(operands[0], pads, strict=True):
        if pad.get("interior", 0) < 0:
            return "its padding between elements is negative"
        inside = size + max(size - 1, 0) * pad.get("interior", 0)
        sizes.append(inside + pad.get("low", 0) + pad.get("high", 0))
    return _expect(results[0], sizes)


_WIDTHS = (2, 4, 8, 16, 32, 64, 128)
"""Parts that an element can have."""
_BINARY = (
    "add",
    "and",
    "atan2",
    "compare",
    "complex",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "or",
    "power",
    "remainder",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "stochastic-convert",
    "subtract",
    "xor",
)
_OPERANDS: dict[str, tuple[int, float]] = {
    **dict.fromkeys(ELEMENTWISE, (1, 1)),
    **dict.fromkeys(_BINARY, (2, 2)),
    **dict.fromkeys(("broadcast", "transpose", "reshape", "copy", "reverse", "slice"), (1, 1)),
    **dict.fromkeys(("cholesky", "fft", "topk", "top-k", "get-dimension-size"), (1, 1)),
    **dict.fromkeys(("dot", "convolution", "gather", "pad", "triangular-solve"), (2, 2)),
    **dict.fromkeys(("add-dependency", "set-dimension-size"), (2, 2)),
    **dict.fromkeys(("clamp", "select", "select-and-scatter", "batch-norm-training"), (3, 3)),
    **dict.fromkeys(("batch-norm-inference", "batch-norm-grad"), (5, 5)),
    **dict.fromkeys(("iota", "partition-id", "replica-id"), (0, 0)),
    **dict.fromkeys(("opt-barrier", "optimization-barrier"), (0, math.inf)),
    **dict.fromkeys(("constant", "parameter", "rng-get-and-update-state"), (0, 0)),
    **dict.fromkeys(("bitcast", "domain"), (1, 1)),
    "dynamic-update-slice": (2, math.inf),
    "reduce": (2, math.inf),
    "reduce-window": (2, math.inf),
    "scatter": (3, math.inf),
}
"""Opcode -> fewest and most operands (default: one and any number)."""
_SEVERAL = frozenset(
    {"sort", "reduce", "reduce-window", "scatter", "topk", "top-k", "rng-bit-generator"}
    | {"batch-norm-training", "batch-norm-grad", "opt-barrier", "optimization-barrier", "map"}
    | {"constant", "parameter", "domain"}
)
"""Opcodes of which the result may be a tuple."""


def _dynamic_slice(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The slice is not larger than the operand."""
    sizes = fields.get("dynamic_slice_sizes", [])
    if not _inside(sizes, operands[0]):
        return f"its sizes {sizes} do not fit into the operand"
    return _starts(operands[1:], operands[0]) or _expect(results[0], sizes)


def _dynamic_update_slice(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The update is not larger than the operand, whose shape stays."""
    if not _inside(operands[1], operands[0]):
        return "the update does not fit into the operand"
    return _starts(operands[2:], operands[0]) or _expect(results[0], operands[0])


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
    if any(sizes[d] > 1 for d in dropped):
        return f"it drops dimensions of which its slice sizes {sizes} are not 1"
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
    if set(operands[:count]) != {source} or set(operands[count + 1 :]) != {updates}:
        return "the inputs differ, or the updates"
    batch = [size for d, size in enumerate(updates) if d not in window]
    wrong = _expect(batch, _but(indices, vector))
    return wrong or _first(_expect(shape, source) for shape in results)


def _starts(given: Sequence[Shape], source: Shape) -> str:
    """Return what is wrong with the place of a slice: scalars, or (as of old) one list of them."""
    if list(given) in ([()] * len(source), [(len(source),)]):
        return ""
    return f"its place has {len(given)} numbers for {len(source)} dimensions"


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


def _reduce(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The reduced dimensions go; all inputs of a variadic reduction have one shape."""
    gone = fields.get("dimensions", [])
    if len(operands) != 2 * len(results):
        return f"it has {len(operands)} operands and {len(results)} results"
    if not _distinct(gone, len(operands[0])):
        return f"its dimensions {gone} repeat or are out of range"
    wrong = _merged(operands, len(results))
    kept = [size for d, size in enumerate(operands[0]) if d not in gone]
    return wrong or _first(_expect(shape, kept) for shape in results)


def _reduce_window(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The results have a place for each window on the inputs, which have one shape."""
    if len(operands) != 2 * len(results):
        return f"it has {len(operands)} operands and {len(results)} results"
    wrong, places = _places(operands[0], fields)
    wrong = wrong or _merged(operands, len(results))
    return wrong or _first(_expect(shape, places) for shape in results)


def _select_and_scatter(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The source has an element for each window on the operand, whose shape stays."""
    wrong, places = _places(operands[0], fields)
    wrong = wrong or _merged(operands[1:], 1) or _expect(operands[1], places)
    return wrong or _expect(results[0], operands[0])


def _convolution(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Features and batches agree, by groups, and dimension numbers name each dimension once."""
    lhs, rhs, out, part = operands[0], operands[1], results[0], fields.get("convolution", {})
    spatial = len(fields.get("window", {}).get("dimensions", []))
    places = {
        "input": (lhs, "input_batch", "input_feature", "input_spatial"),
        "kernel": (rhs, "kernel_input_feature", "kernel_output_feature", "kernel_spatial"),
        "output": (out, "output_batch", "output_feature", "output_spatial"),
    }
    for name, (shape, one, other, rest) in places.items():
        numbers = [part.get(one, 0), part.get(other, 0), *part.get(rest, ())]
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
    if samples != left * batches:
        return f"{samples} samples become {left}"
    if groups > 1 and batches > 1:
        return "it has groups of features and of samples"
    wrong, fits = _places([lhs[d] for d in part.get("input_spatial", ())], fields)
    taps = [window.get("size", 0) for window in fields.get("window", {}).get("dimensions", [])]
    wrong = wrong or _expect([rhs[d] for d in part.get("kernel_spatial", ())], taps)
    return wrong or _expect([out[d] for d in part.get("output_spatial", ())], fits)


def _places(source: Sequence[int], fields: Fields) -> tuple[str, list[int]]:
    """Return what is wrong with a window, and in how many places it fits along each dimension.

    Both the source and the window may be dilated; padding may be negative (XLA's
    ``InferWindowOutputShape``).
    """
    windows = fields.get("window", {}).get("dimensions", [])
    places: list[int] = []
    if len(windows) != len(source):
        return f"its window has {len(windows)} dimensions", places
    for size, window in zip(source, windows, strict=True):
        taps, stride = window.get("size", 0), window.get("stride", 1)
        holes, apart = window.get("base_dilation", 1), window.get("window_dilation", 1)
        if min(taps, stride, holes, apart) < 1:
            return "its window has a size, stride or dilation below 1", places
        whole = (size - 1) * holes + 1 if size else 0
        whole += window.get("padding_low", 0) + window.get("padding_high", 0)
        rest = whole - ((taps - 1) * apart + 1)
        places.append(rest // stride + 1 if rest >= 0 else 0)
    return "", places


def _merged(operands: Sequence[Shape], count: int) -> str:
    """Return what is wrong with ``count`` inputs and the scalars that their sums start from."""
    if any(shape != operands[0] for shape in operands[:count]):
        return "the inputs differ"
    return "a start value is no scalar" if any(operands[count:]) else ""


def _distinct(numbers: Sequence[int], rank: int) -> bool:
    """Return whether dimension numbers are in range, and none is there twice."""
    return len(set(numbers)) == len(numbers) and all(0 <= d < rank for d in numbers)


def _inside(sizes: Sequence[int], whole: Sequence[int]) -> bool:
    """Return whether a block fits into an array."""
    return len(sizes) == len(whole) and all(0 <= a <= b for a, b in zip(sizes, whole, strict=True))


def _expect(shape: Sequence[int], wanted: Sequence[int]) -> str:
    """Return what is wrong with a shape that should be another."""
    return "" if tuple(shape) == tuple(wanted) else f"{list(shape)} should be {list(wanted)}"


def _first(wrongs: Iterable[str]) -> str:
    """Return the first text that is not empty, or an empty one."""
    return next(filter(None, wrongs), "")


CHECKS: dict[str, Check] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("copy", "add-dependency", "set-dimension-size", "rng-bit-generator"), _same),
    **dict.fromkeys(("opt-barrier", "optimization-barrier"), _each),
    **dict.fromkeys(("partition-id", "replica-id", "get-dimension-size"), _scalar),
    **dict.fromkeys(
        ("batch-norm-training", "batch-norm-inference", "batch-norm-grad"), _batch_norm
    ),
    **dict.fromkeys(("topk", "top-k"), _top_k),
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "cholesky": _cholesky,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "convolution": _convolution,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "fft": _fft,
    "gather": _gather,
    "iota": _iota,
    "map": _elementwise,
    "pad": _pad,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "reshape": _reshape,
    "reverse": _reverse,
    "scatter": _scatter,
    "select": _select,
    "select-and-scatter": _select_and_scatter,
    "slice": _slice,
    "sort": _sort,
    "transpose": _transpose,
    "triangular-solve": _triangular_solve,
}
"""Opcode -> check."""
NOT_CHECKED = frozenset(
    {"after-all", "bitcast", "constant", "custom-call", "domain", "dynamic-reshape", "parameter"}
    | {"return", "rng", "rng-get-and-update-state"}
)
"""Opcodes of instructions whose shapes follow from nothing that a graph holds."""
