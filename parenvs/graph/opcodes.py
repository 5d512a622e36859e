"""FLOPs and bytes of one HLO instruction, by the conventions of XLA's own cost analysis.

One multiply-add is two FLOPs. An elementwise instruction costs one FLOP per result element; a
transcendental function costs none, as XLA counts these apart; data movement costs none. Windows
hold what lies inside of the input, where XLA's analysis counts padding, too. A loop
costs its number of iterations times its body, where XLA's analysis takes every loop once, and a
branch the dearest of its computations (``parenvs.graph.program`` adds these up). A
``custom-call`` costs none, as its code is not known (XLA's own figure is -1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from parenvs.errors import HloError, cut, shown

Shape = tuple[int, ...]
"""Dimensions of a tensor."""


@dataclass(frozen=True)
class Call:
    """An instruction as the cost formulas see it: shapes with tuples flattened.

    ``applied`` holds the FLOPs of one application of each called computation, and ``pad`` the
    padding, by dimension, and the shape before it of a first operand that another one pads.
    """

    instruction: Any
    operands: Sequence[Shape]
    results: Sequence[Shape]
    applied: Sequence[float]
    pad: tuple[Sequence[Any], Shape] | None = None


_ELEMENTWISE = (
    "abs add and bitcast-convert ceil clamp clz compare complex convert count-leading-zeros divide "
    "floor imag is-finite maximum minimum multiply negate not or popcnt population-count real "
    "reduce-precision remainder round-nearest-afz round-nearest-even select shift-left "
    "shift-right-arithmetic shift-right-logical sign subtract stochastic-convert xor"
)
_TRANSCENDENTAL = (
    "acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log "
    "log-plus-one logistic power rsqrt sine sinh sqrt tan tanh"
)
ELEMENTWISE = frozenset(f"{_ELEMENTWISE} {_TRANSCENDENTAL}".split())
"""Opcodes that work element by element (``select`` and ``clamp`` also take scalars)."""
_MOVEMENT = (
    "add-dependency after-all batch-norm-grad batch-norm-inference batch-norm-training bitcast "
    "broadcast concatenate constant copy custom-call domain dynamic-reshape dynamic-slice "
    "dynamic-update-slice gather get-dimension-size get-tuple-element iota opt-barrier "
    "optimization-barrier pad parameter partition-id replica-id reshape reverse rng "
    "rng-bit-generator rng-get-and-update-state set-dimension-size slice top-k topk transpose tuple"
)
_CALLS = "call conditional fusion while"
PARTITIONED = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute reduce-scatter "
    "ragged-all-to-all send recv all-gather-start all-reduce-start collective-permute-start"
)
"""Opcodes that only modules hold which a partitioner has already processed."""


def _dot(call: Call) -> float:
    contracted = math.prod(call.operands[0][d] for d in call.instruction.dot.lhs_contracting)
    # 2 m n k: one multiply-add per result element and contracted position.
    return 2.0 * math.prod(call.results[0]) * contracted


def _convolution(call: Call) -> float:
    """Count two FLOPs per valid tap, without products with padding or holes of a dilated input."""
    numbers = call.instruction.convolution
    lhs, rhs, out = call.operands[0], call.operands[1], call.results[0]
    taps = 1
    for k, window in enumerate(call.instruction.window.dimensions):
        taps *= valid_taps(
            lhs[numbers.input_spatial[k]],
            rhs[numbers.kernel_spatial[k]],
            out[numbers.output_spatial[k]],
            window,
        )
    # Each output feature reads the input features of its own group alone.
    features = lhs[numbers.input_feature] // max(call.instruction.feature_group_count, 1)
    batch = lhs[numbers.input_batch] // max(call.instruction.batch_group_count, 1)
    return 2.0 * features * out[numbers.output_feature] * batch * taps


_LONGEST_KERNEL = 2**20
"""Limit of a window, along each dimension: its positions are iterated over."""


def valid_taps(size: int, kernel: int, output: int, window: Any) -> int:
    """Count the pairs (output position, kernel position) that fall on an element of the input.

    All sizes are along one spatial dimension; ``window`` is XLA's WindowDimension.
    """
    if min(size, kernel, output) < 1:
        return 0
    if kernel > _LONGEST_KERNEL:
        raise HloError(f"a window of {kernel:,} is longer than {_LONGEST_KERNEL:,}")
    steps = (max(x, 1) for x in (window.stride, window.base_dilation, window.window_dilation))
    return _taps(size, kernel, output, *steps, window.padding_low)


@lru_cache(maxsize=4096)
def _taps(
    size: int, kernel: int, output: int, stride: int, base: int, dilation: int, padding: int
) -> int:
    # Tap (o, k) reads index o stride + k dilation - padding of the dilated input, whose elements
    # are the multiples of base: o is in a range, and one residue of a period.
    shared = math.gcd(stride, base)
    period = base // shared
    inverse = pow(stride // shared, -1, period)
    taps = 0
    for k in range(kernel):
        offset = padding - k * dilation
        if offset % shared == 0:
            first = offset // shared * inverse % period
            low = max(-(-offset // stride), 0)
            high = min(((size - 1) * base + offset) // stride, output - 1)
            taps += max((high - first) // period - (low - 1 - first) // period, 0)
    return taps


def _reduce(call: Call) -> float:
    # Reducing n elements to m takes n - m applications.
    return (math.prod(call.operands[0]) - math.prod(call.results[0])) * call.applied[0]


def _in_windows(call: Call, positions: Shape) -> int:
    """Count the elements of the input in all windows: neither padding nor holes."""
    found = 1
    windows, sizes = call.instruction.window.dimensions, call.operands[0]
    padding, inner = call.pad or ((), sizes)
    for k, (size, count, window) in enumerate(zip(sizes, positions, windows, strict=True)):
        base, low = max(window.base_dilation, 1), window.padding_low
        if padding and base == 1 and min(padding[k].low, padding[k].high) >= 0:
            # An operand that was padded in front of the windows is as one that they pad.
            base, low = padding[k].interior + 1, low + padding[k].low
            size = inner[k]
        if window.size > _LONGEST_KERNEL:
            found *= min(size, window.size) * count
        elif min(size, window.size, count) < 1:
            return 0
        else:
            stride, dilation = max(window.stride, 1), max(window.window_dilation, 1)
            found *= _taps(size, window.size, count, stride, base, dilation, low)
    return found


def _reduce_window(call: Call) -> float:
    out = call.results[0]
    windows = call.instruction.window.dimensions
    reduced = [k for k, window in enumerate(windows) if window.size != 1]
    padded = [k for k, window in enumerate(windows) if window.padding_low or window.padding_high]
    if len(reduced) == len(padded) == 1 == len(call.results):
        k, window = reduced[0], windows[reduced[0]]
        whole_span = 2 * window.padding_low + 1
        # XLA's figure for a reduction that is broadcast back over its whole span.
        if window.padding_low == window.padding_high == out[k] - 1 and window.size == whole_span:
            return (math.prod(out) // out[k] + out[k] - 1) * call.applied[0]
    # A window of n elements takes n - 1 applications.
    return max(_in_windows(call, out) - math.prod(out), 0) * call.applied[0]


def _select_and_scatter(call: Call) -> float:
    source = math.prod(call.operands[1])
    # Each window selects by n - 1 comparisons, and scatters one value.
    selected = max(_in_windows(call, call.operands[1]) - source, 0)
    return selected * call.applied[0] + source * call.applied[1]


def _sort(call: Call) -> float:
    elements = math.prod(call.operands[0])
    # n ceil(log2 n) comparisons, as XLA counts them.
    return elements * max(elements - 1, 0).bit_length()


def _fft(call: Call) -> float:
    levels = math.prod(n.bit_length() - 1 for n in call.instruction.fft_length)
    # XLA multiplies the levels of several dimensions, where an FFT would add them.
    return 8.0 * levels * math.prod(call.operands[0])


OPCODES: dict[str, Callable[[Call], float]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), lambda call: math.prod(call.results[0])),
    **dict.fromkeys(_TRANSCENDENTAL.split(), lambda call: 0.0),
    **dict.fromkeys(_MOVEMENT.split(), lambda call: 0.0),
    **dict.fromkeys(_CALLS.split(), lambda call: max(call.applied, default=0.0)),
    # n^3 / 3 per matrix.
    "cholesky": lambda call: call.operands[0][-1] * math.prod(call.operands[0]) // 3,
    "convolution": _convolution,
    "dot": _dot,
    "fft": _fft,
    "map": lambda call: math.prod(call.results[0]) * call.applied[0],
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": lambda call: math.prod(call.operands[len(call.results) + 1]) * call.applied[0],
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    # Counted as a full product, as XLA does, though half of the matrix is zero.
    "triangular-solve": lambda call: 2.0 * call.operands[0][-1] * math.prod(call.operands[1]),
}
"""Opcode -> FLOPs of one execution."""

_NO_BYTES = (
    "parameter constant get-tuple-element tuple bitcast after-all domain opt-barrier "
    "optimization-barrier"
)
"""Opcodes that read and write nothing."""


def flops_of(call: Call) -> float:
    """Return the FLOPs of one instruction.

    Raises:
        HloError: the opcode is not in ``OPCODES``, or the module is already partitioned.
    """
    opcode = call.instruction.opcode
    formula = OPCODES.get(opcode)
    if formula is None:
        where = f"instruction {shown(call.instruction.name)} has opcode {shown(opcode)}"
        if opcode in PARTITIONED.split():
            raise HloError(
                f"{where}: the module is already partitioned; give the module before partitioning, "
                "and without shard_map"
            )
        raise HloError(
            f"{where}, which no rule knows; known opcodes are listed in parenvs.graph.opcodes"
        )
    return float(formula(call))


PARTS_READ = ("slice", "dynamic-slice", "gather", "dynamic-update-slice", "scatter")
"""Opcodes that read or write parts of their operands, see ``bytes_of``."""


def bytes_of(opcode: str, operand_bytes: Sequence[float], result_bytes: Sequence[float]) -> float:
    """Return the bytes that one instruction reads and writes, each operand and result once."""
    if opcode in _NO_BYTES.split():
        return 0.0
    out = sum(result_bytes)
    # Only the part is read and written, not the whole operand.
    if opcode == "slice":
        return 2.0 * out
    if opcode in ("dynamic-slice", "gather"):
        return 2.0 * out + operand_bytes[1]
    if opcode == "dynamic-update-slice":
        return 2.0 * operand_bytes[1] + operand_bytes[2]
    if opcode == "scatter":
        indices = len(result_bytes)  # operands are the inputs, the indices, then the updates
        # The updates and the elements that they change are read; these are written.
        return 3.0 * sum(operand_bytes[indices + 1 :]) + operand_bytes[indices]
    return sum(operand_bytes) + out


def is_relabelling(transpose: Any, operand: Any) -> bool:
    """Return whether a transpose moves nothing: its result's layout undoes it (XLA: a bitcast)."""
    shape, dims = transpose.shape, list(transpose.dimensions)
    default = list(range(len(dims)))[::-1]
    operand_order = list(operand.layout.minor_to_major) or default
    result_order = list(shape.layout.minor_to_major) or default
    # A dimension of size 1 has no place in memory, so its order does not matter.
    before = [d for d in operand_order if operand.dimensions[d] != 1]
    return before == [dims[d] for d in result_order if shape.dimensions[d] != 1]


Pair = tuple[int, int]
"""Slot and dimension: slot k >= 0 is operand k, slot -1-k is result k."""


class Kind(IntEnum):
    """What splitting a factor does to the result."""

    KEPT = 0
    CONTRACTED = 1
    REDUCED = 2
    INDEXED = 3


@dataclass(frozen=True)
class Factor:
    """Dimensions of one instruction that are split together.

    A kind other than ``KEPT`` leaves a partial result, completed by an all-reduce.
    """

    pairs: tuple[Pair, ...]
    kind: Kind = Kind.KEPT


@dataclass(frozen=True)
class Instruction:
    """What a rule may look at: opcode, ``Graph.attribute``, and shapes with tuples flattened."""

    opcode: str
    attribute: dict[str, Any]
    operands: Sequence[Shape]
    results: Sequence[Shape]

    @property
    def dimensions(self) -> list[int]:
        """The attribute of that name."""
        return list(self.attribute.get("dimensions", ()))

    def part(self, name: str) -> dict[str, Any]:
        """A group of attributes, empty if all have their default."""
        return dict(self.attribute.get(name, {}))


Factors = Iterator[Factor]
Rule = Callable[[Instruction], Factors]
OUT = -1
"""Slot of the first result."""


def elementwise(x: Instruction) -> Factors:
    """One factor per dimension of the result; operands of another rank are scalars."""
    for d in range(len(x.results[0])):
        operands = [(k, d) for k, o in enumerate(x.operands) if len(o) == len(x.results[0])]
        yield Factor((*operands, *((-1 - k, d) for k in range(len(x.results)))))


def bitcast_convert(x: Instruction) -> Factors:
    """All dimensions but the last of the longer side, where the widths differ."""
    for d in range(min(len(x.operands[0]), len(x.results[0]))):
        yield Factor(((0, d), (OUT, d)))


def whole_dimensions(x: Instruction) -> Factors:
    """Every dimension that the first operand and the result have in full, the others left alone."""
    for d, (size, out) in enumerate(zip(x.operands[0], x.results[0], strict=True)):
        if size == out:
            yield Factor(((0, d), (OUT, d)))


def dot(x: Instruction) -> Factors:
    """Batch, free and contracting dimensions; results list batch, lhs free, rhs free."""
    part = x.part("dot")
    batch = list(zip(part.get("lhs_batch", ()), part.get("rhs_batch", ()), strict=True))
    inner = list(zip(part.get("lhs_contracting", ()), part.get("rhs_contracting", ()), strict=True))
    for index, (lhs, rhs) in enumerate(batch):
        yield Factor(((0, lhs), (1, rhs), (OUT, index)))
    index = len(batch)
    for slot in (0, 1):
        taken = {pair[slot] for pair in (*batch, *inner)}
        for d in range(len(x.operands[slot])):
            if d not in taken:
                yield Factor(((slot, d), (OUT, index)))
                index += 1
    for lhs, rhs in inner:
        yield Factor(((0, lhs), (1, rhs)), Kind.CONTRACTED)


def convolution(x: Instruction) -> Factors:
    """Batch and features; with groups only what they leave whole, and no spatial dimension."""
    at: dict[str, int] = defaultdict(int, x.part("convolution"))
    features = x.attribute.get("feature_group_count", 1) > 1
    batches = x.attribute.get("batch_group_count", 1) > 1
    if not batches:
        yield Factor(((0, at["input_batch"]), (OUT, at["output_batch"])))
    if not features and not batches:
        yield Factor(((1, at["kernel_output_feature"]), (OUT, at["output_feature"])))
    if not features:
        pairs = ((0, at["input_feature"]), (1, at["kernel_input_feature"]))
        yield Factor(pairs, Kind.CONTRACTED)


def reduce(x: Instruction) -> Factors:
    """Kept dimensions, and reduced ones, for all inputs of a variadic reduction together."""
    count, index = len(x.results), 0
    for d in range(len(x.operands[0])):
        inputs = tuple((k, d) for k in range(count))
        if d in x.dimensions:
            yield Factor(inputs, Kind.REDUCED)
        else:
            yield Factor((*inputs, *((-1 - k, index) for k in range(count))))
            index += 1


def windowed(x: Instruction) -> Factors:
    """Dimensions that the window does not slide over."""
    arrays = range(1 if x.opcode == "reduce-window" else 2)
    for d, window in enumerate(x.part("window").get("dimensions", ())):
        sizes = {x.results[0][d], *(x.operands[k][d] for k in arrays)}
        if window.get("size", 1) == 1 and len(sizes) == 1:
            yield Factor((*((k, d) for k in arrays), (OUT, d)))


def broadcast(x: Instruction) -> Factors:
    """Operand dimensions where they go; each added dimension has a factor of its own."""
    dimensions = x.dimensions
    for d, index in enumerate(dimensions):
        yield Factor(((0, d), (OUT, index)))
    for index in range(len(x.results[0])):
        if index not in dimensions:
            yield Factor(((OUT, index),))


def transpose(x: Instruction) -> Factors:
    """Every dimension, where it goes."""
    for index, d in enumerate(x.dimensions):
        yield Factor(((0, d), (OUT, index)))


def reshape(x: Instruction) -> Factors:
    """The major dimensions of each group of dimensions that is split or merged."""
    left = [(d, size) for d, size in enumerate(x.operands[0]) if size != 1]
    right = [(d, size) for d, size in enumerate(x.results[0]) if size != 1]
    if any(size == 0 for _, size in left):
        return  # no elements: the groups cannot be told
    i = j = 0
    while i < len(left) and j < len(right):
        yield Factor(((0, left[i][0]), (OUT, right[j][0])))
        left_size, right_size = left[i][1], right[j][1]
        i, j = i + 1, j + 1
        while left_size != right_size:  # absorb minor dimensions until both sizes are equal
            if left_size < right_size:
                left_size, i = left_size * left[i][1], i + 1
            else:
                right_size, j = right_size * right[j][1], j + 1


def other_dimensions(x: Instruction) -> Factors:
    """All dimensions but the one that is concatenated, sorted or reversed along."""
    taken = x.dimensions or [0]
    yield from (factor for d, factor in enumerate(elementwise(x)) if d not in taken)


def dynamic_update_slice(x: Instruction) -> Factors:
    """Dimensions that the update covers in full."""
    for d, (size, update) in enumerate(zip(x.operands[0], x.operands[1], strict=True)):
        if size == update:
            yield Factor(((0, d), (1, d), (OUT, d)))


def gather(x: Instruction) -> Factors:
    """Batch dimensions of the indices, window dimensions taken whole, and the indexed ones."""
    part = x.part("gather")
    offset, collapsed = part.get("offset_dims", []), part.get("collapsed_slice_dims", [])
    batching = part.get("operand_batching_dims", [])
    indices = _index_dimensions(x, part)
    batch = [d for d in range(len(x.results[0])) if d not in offset]
    paired = dict(zip(part.get("start_indices_batching_dims", ()), batching, strict=True))
    for index, d in zip(batch, indices, strict=True):
        operand = ((0, paired[d]),) if d in paired else ()
        yield Factor((*operand, (1, d), (OUT, index)))
    windows = [d for d in range(len(x.operands[0])) if d not in (*collapsed, *batching)]
    for index, d in zip(offset, windows, strict=True):
        if x.attribute["gather_slice_sizes"][d] == x.operands[0][d]:
            yield Factor(((0, d), (OUT, index)))
    for d in collapsed:
        yield Factor(((0, d),), Kind.INDEXED)


def scatter(x: Instruction) -> Factors:
    """Window dimensions written whole, indexed ones, and the updates' batch, which is combined.

    Where the last update wins, the batch has an order and cannot be split.
    """
    part = x.part("scatter")
    arrays = range(len(x.results))
    window, inserted = part.get("update_window_dims", []), part.get("inserted_window_dims", [])
    batching = part.get("input_batching_dims", [])
    indices, updates = len(x.results), len(x.results) + 1
    paired = dict(zip(part.get("scatter_indices_batching_dims", ()), batching, strict=True))
    batch = [d for d in range(len(x.operands[updates])) if d not in window]
    for index, d in zip(batch, _index_dimensions(x, part, indices), strict=True):
        rows = ((indices, d), *((updates + k, index) for k in arrays))
        if d in paired:
            array = [((k, paired[d]), (-1 - k, paired[d])) for k in arrays]
            yield Factor((*rows, *(pair for both in array for pair in both)))
        elif x.attribute.get("applies", [[]])[0] in _COMBINERS:
            yield Factor(rows, Kind.REDUCED)
    written = [d for d in range(len(x.operands[0])) if d not in (*inserted, *batching)]
    for index, d in zip(window, written, strict=True):
        if x.operands[updates][index] == x.operands[0][d]:
            triples = [((k, d), (updates + k, index), (-1 - k, d)) for k in arrays]
            yield Factor(tuple(pair for triple in triples for pair in triple))
    for d in inserted:
        yield Factor(tuple(pair for k in arrays for pair in ((k, d), (-1 - k, d))))


def batch_only(minor: int) -> Rule:
    """A rule for batches of arrays, of which none has more than ``minor`` dimensions.

    It leaves these alone. All operands and results lead with the batch; numbers may stand beside
    them. Where the leading dimensions are not the same it is no such batch, and nothing is split.
    """

    def rule(x: Instruction) -> Factors:
        slots = {**dict(enumerate(x.operands)), **{-1 - k: s for k, s in enumerate(x.results)}}
        batch = max(map(len, slots.values()), default=0) - minor
        arrays = {slot: s for slot, s in slots.items() if s}
        if batch > 0 and len({s[:batch] for s in arrays.values()}) == 1:
            for d in range(batch):
                yield Factor(tuple((slot, d) for slot in arrays))

    return rule


def partial_selection(x: Instruction) -> Factors:
    """All dimensions but the one of which a part is selected; none if that cannot be told."""
    arrays = [k for k, o in enumerate(x.operands) if len(o) == len(x.results[0])]
    pairs = list(zip(x.operands[0], x.results[0], strict=False))
    if sum(size != out for size, out in pairs) == 1:
        for d, (size, out) in enumerate(pairs):
            if size == out:
                slots = (*arrays, *(-1 - k for k in range(len(x.results))))
                yield Factor(tuple((slot, d) for slot in slots))


def random_bits(x: Instruction) -> Factors:
    """A factor for each dimension of the last result; a generator's state is left alone."""
    for d in range(len(x.results[-1])):
        yield Factor(((-len(x.results), d),))


def unsplit(x: Instruction) -> Factors:
    """No dimension can be split."""
    return iter(())


def custom_call(x: Instruction) -> Factors:
    """What its target does; no dimension can be split where that is not known."""
    return (target_rule(x.attribute.get("target", "")) or unsplit)(x)


def target_rule(target: str) -> Rule | None:
    """Rule of a custom call's target, None if it is not known what the target does."""
    return next((rule for glob, rule in TARGETS.items() if fnmatchcase(target, glob)), None)


def _index_dimensions(x: Instruction, part: dict[str, Any], slot: int = 1) -> list[int]:
    return [d for d in range(len(x.operands[slot])) if d != part.get("index_vector_dim", 0)]


_COMBINERS = [["add"], ["multiply"], ["maximum"], ["minimum"], ["and"], ["or"], ["xor"]]
"""What may combine values in any order."""

TARGETS: dict[str, Rule] = {
    # Annotations: the value goes through as it is.
    **dict.fromkeys(("Sharding", "xla.sdy.ShardingConstraint"), elementwise),
    **dict.fromkeys(("xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier"), elementwise),
    **dict.fromkeys(("annotate_device_placement", "MoveToHost", "MoveToDevice"), elementwise),
    # Functions of single elements that StableHLO has no operation for, and random words.
    **dict.fromkeys(("mhlo.acos*", "mhlo.asin*", "mhlo.atan*", "mhlo.cosh"), elementwise),
    **dict.fromkeys(("mhlo.erf*", "mhlo.sinh", "mhlo.tan"), elementwise),
    **dict.fromkeys(("cu_threefry2x32*", "hip_threefry2x32*"), elementwise),
    # The largest of the last dimension, or of any one; permutations.
    **dict.fromkeys(("mhlo.topk", "TopK", "__gpu$TopK"), batch_only(1)),
    **dict.fromkeys(("ApproxTopK", "PartialReduce"), partial_selection),
    **dict.fromkeys(("cu_lu_pivots*", "hip_lu_pivots*"), batch_only(1)),
    # Factorizations and solvers on batches of matrices: LAPACK, CUDA, ROCm, TPU.
    **dict.fromkeys(("lapack_*_ffi", "cublas_*_ffi", "cusolver_*_ffi"), batch_only(2)),
    **dict.fromkeys(("hipblas_*_ffi", "hipsolver_*_ffi", "*sparse_gtsv2_ffi"), batch_only(2)),
    **dict.fromkeys(("cuhybrid_*", "hiphybrid_*", "Qr", "Eigh", "LuDecomposition"), batch_only(2)),
    "ProductOfElementaryHouseholderReflectors": batch_only(2),
}
"""Glob over the targets of custom calls, as JAX writes them -> rule; the first that fits counts."""

_NUMBERED = (convolution, dot, gather, scatter)
_OTHERS = (bitcast_convert, broadcast, custom_call, dynamic_update_slice, reduce, reshape)
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(("copy", "map", "add-dependency", "domain"), elementwise),
    **dict.fromkeys(("slice", "dynamic-slice", "pad"), whole_dimensions),
    **dict.fromkeys(("concatenate", "reverse", "sort"), other_dimensions),
    **dict.fromkeys(("reduce-window", "select-and-scatter"), windowed),
    **dict.fromkeys(("rng", "rng-bit-generator"), random_bits),
    **dict.fromkeys(("top-k", "topk"), batch_only(1)),
    **dict.fromkeys(("cholesky", "triangular-solve"), batch_only(2)),
    **{rule.__name__.replace("_", "-"): rule for rule in (*_NUMBERED, *_OTHERS, transpose)},
    # All dimensions but the transformed ones, which are the last.
    "fft": lambda x: batch_only(len(x.attribute.get("fft_length", ())))(x),
    # Their operands are no arrays to split, or the graph does not hold what a rule would need.
    **dict.fromkeys(("after-all", "return", "rng-get-and-update-state", "bitcast"), unsplit),
    **dict.fromkeys(("dynamic-reshape", "get-dimension-size", "set-dimension-size"), unsplit),
    **dict.fromkeys(("batch-norm-grad", "batch-norm-inference", "batch-norm-training"), unsplit),
}
"""Opcode -> factors. What is not here has no rule: see ``factors_of``."""


def factors_of(x: Instruction) -> tuple[Factor, ...]:
    """Factors of one instruction; dimensions of size 1 are in none.

    Raises:
        HloError: no rule knows the opcode, or a factor's dimensions are out of range or differ.
    """
    rule = RULES.get(x.opcode)
    if rule is None:
        raise HloError(f"no factor rule knows the opcode {x.opcode!r}")
    shapes = {**dict(enumerate(x.operands)), **{-1 - k: s for k, s in enumerate(x.results)}}
    factors = []
    try:
        for factor in rule(x):
            pairs = tuple((slot, d) for slot, d in factor.pairs if shapes[slot][d] != 1)
            # A negative number would be in range for Python, and belong to another tensor.
            alike = rule is reshape or len({shapes[slot][d] for slot, d in pairs}) < 2
            if not alike or any(d < 0 for _, d in pairs):
                raise ValueError
            if pairs:
                factors.append(Factor(pairs, factor.kind))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        shown = ", ".join(str(list(shape)) for shape in (*x.operands[:4], *x.results[:1]))
        raise HloError(cut(f"{x.opcode}: its dimensions do not fit its shapes {shown}")) from None
    return tuple(factors)


_BINARY = (
    "add and atan2 compare complex divide maximum minimum multiply or power remainder shift-left "
    "shift-right-arithmetic shift-right-logical stochastic-convert subtract xor"
)
_OPERAND_COUNTS: dict[str, tuple[int, float]] = {
    **dict.fromkeys(ELEMENTWISE, (1, 1)),
    **dict.fromkeys(_BINARY.split(), (2, 2)),
    **dict.fromkeys(("broadcast", "transpose", "reshape", "copy", "reverse", "slice"), (1, 1)),
    **dict.fromkeys(("bitcast", "fft"), (1, 1)),
    **dict.fromkeys(("dot", "convolution", "gather", "pad", "triangular-solve"), (2, 2)),
    **dict.fromkeys(("clamp", "select", "select-and-scatter"), (3, 3)),
    **dict.fromkeys(("constant", "iota", "parameter"), (0, 0)),
    **dict.fromkeys(("dynamic-slice", "dynamic-update-slice", "reduce"), (2, math.inf)),
    **dict.fromkeys(("concatenate", "sort"), (1, math.inf)),
    "reduce-window": (2, math.inf),
    "scatter": (3, math.inf),
}
"""Opcode -> fewest and most operands; opcodes that are not here may have any number."""
_TUPLE_RESULTS = ("sort", "reduce", "reduce-window", "scatter", "map", "constant", "parameter")
"""Of these opcodes, those whose result may be a tuple."""


def check_instruction(x: Instruction) -> None:
    """Check what is computed with later: the number of operands, and the dimensions of factors.

    Raises:
        HloError: they do not fit; the text says what, without the instruction's name.
    """
    minimum, maximum = _OPERAND_COUNTS.get(x.opcode, (0, math.inf))
    single = x.opcode in _OPERAND_COUNTS and x.opcode not in _TUPLE_RESULTS
    if not minimum <= len(x.operands) <= maximum or (single and len(x.results) != 1):
        raise HloError(f"{x.opcode} has {len(x.operands)} operands and {len(x.results)} results")
    if x.opcode in ("opt-barrier", "optimization-barrier") and list(x.operands) != list(x.results):
        raise HloError(f"{x.opcode}: its operands and results differ")
    if x.opcode in RULES:
        factors_of(x)
