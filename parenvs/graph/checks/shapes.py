"""Checks that an instruction's shapes fit each other, as XLA's verifier does.

Each check reads like the definition of its opcode, and ends at the first thing that does not fit.
What follows from element types is not checked, and neither are opcodes whose attributes a graph
does not hold (``NOT_CHECKED``); ``nesting`` checks loops and branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parenvs.errors import HloError
from parenvs.graph.checks.indices import (
    dynamic_slice,
    dynamic_update_slice,
    gather,
    scatter,
)
from parenvs.graph.checks.sizes import Check, Fields, distinct, expect, first
from parenvs.graph.checks.windows import convolution, reduce, reduce_window, select_and_scatter
from parenvs.graph.flops import ELEMENTWISE, Shape


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
        raise HloError(f"{opcode} of {shapes} to {list(results[0])}: {wrong}")


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
        if not distinct([*batch, *inner], len(shape)):
            return f"its {side} dimension numbers repeat or are out of range"
        taken = {*batch, *inner}
        free = [size for d, size in enumerate(shape) if d not in taken]
        sides.append(([shape[d] for d in batch], [shape[d] for d in inner], free))
    (batch, inner, free), (other_batch, other_inner, other_free) = sides
    if inner != other_inner:
        return f"it contracts {inner} with {other_inner}"
    if batch != other_batch:
        return f"its batch sizes are {batch} and {other_batch}"
    return expect(results[0], (*batch, *free, *other_free))


def _broadcast(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Every dimension of the operand goes to one of the result, of the same size."""
    places = fields.get("dimensions", [])
    if not distinct(places, len(results[0])) or len(places) != len(operands[0]):
        return f"its dimensions {places} do not say where each dimension goes"
    return expect(operands[0], [results[0][d] for d in places])


def _transpose(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The result has the operand's dimensions in another order."""
    order = fields.get("dimensions", [])
    if not distinct(order, len(operands[0])) or len(order) != len(operands[0]):
        return f"its dimensions {order} are no permutation"
    return expect(results[0], [operands[0][d] for d in order])


def _reshape(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The number of elements stays."""
    before, after = math.prod(operands[0]), math.prod(results[0])
    return "" if before == after else f"{before} elements become {after}"


def _same(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The result has the first operand's shape."""
    return expect(results[0], operands[0])


def _each(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """There is a result for each operand, of its shape."""
    if len(operands) != len(results):
        return f"it has {len(results)} results"
    return first(expect(out, shape) for out, shape in zip(results, operands, strict=True))


def _scalar(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The result is a scalar."""
    return expect(results[0], ())


def _reverse(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Dimensions of the operand are reversed, whose shape stays."""
    turned = fields.get("dimensions", [])
    if not distinct(turned, len(operands[0])):
        return f"its dimensions {turned} repeat or are out of range"
    return expect(results[0], operands[0])


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
    return expect(results[0], operands[0])


def _triangular_solve(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The matrices are square, and as large as a side of the right-hand sides."""
    matrix, right = operands
    if matrix[-1] != matrix[-2]:
        return "its matrices are not square"
    if len(matrix) != len(right) or matrix[:-2] != right[:-2] or matrix[-1] not in right[-2:]:
        return "its right-hand sides are not those of its matrices"
    return expect(results[0], right)


def _batch_norm(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """Scales, offsets and statistics have a number for each feature; what is normed keeps shape."""
    source, features = operands[0], operands[1]
    numbers = [*operands[1:], *results[1:]]
    if len(operands) == 5 and len(results) == 3:  # of the gradient, the last is like the first
        numbers.remove(source)
    if len(features) != 1 or features[0] not in source or any(x != features for x in numbers):
        return "its statistics are not one number a feature"
    return expect(results[0], source)


def _concatenate(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Sizes add up along one dimension and are the same along the others."""
    (along,) = fields.get("dimensions", [0])
    if not distinct([along], len(results[0])):
        return f"its dimension {along} is out of range"
    rest = {(shape[:along], shape[along + 1 :]) for shape in operands}
    if len(rest) != 1:
        return "the operands differ along other dimensions"
    ((before, after),) = rest
    return expect(results[0], (*before, sum(shape[along] for shape in operands), *after))


def _slice(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """Limits lie inside the operand, and leave the result."""
    slices = fields.get("slices", [])
    if len(slices) != len(operands[0]):
        return f"it has {len(slices)} limits"
    for (start, limit, stride), size in zip(slices, operands[0], strict=True):
        if not (0 <= start <= limit <= size and stride > 0):
            return f"its limits [{start}:{limit}:{stride}] are not inside {size}"
    return expect(results[0], [-(-(b - a) // step) for a, b, step in slices])


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
    return expect(results[0], sizes)


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
    "convolution": convolution,
    "dot": _dot,
    "dynamic-slice": dynamic_slice,
    "dynamic-update-slice": dynamic_update_slice,
    "fft": _fft,
    "gather": gather,
    "iota": _iota,
    "map": _elementwise,
    "pad": _pad,
    "reduce": reduce,
    "reduce-window": reduce_window,
    "reshape": _reshape,
    "reverse": _reverse,
    "scatter": scatter,
    "select": _select,
    "select-and-scatter": select_and_scatter,
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
