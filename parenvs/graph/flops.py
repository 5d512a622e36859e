"""FLOPs and bytes of one HLO instruction, by the conventions of XLA's own cost analysis.

One multiply-add is two FLOPs. An elementwise instruction costs one FLOP per result element; a
transcendental function costs none, as XLA counts these apart; data movement costs none. A loop
costs its number of iterations times its body, where XLA's analysis takes every loop once, and a
branch the dearest of its computations (``parenvs.graph.loops.costs`` adds these up). A
``custom-call`` costs none, as its code is not known (XLA's own figure is -1). ``OPCODES`` lists the
opcodes that the reader knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.errors import HloError, shown

Shape = tuple[int, ...]
"""Dimensions of a tensor."""


@dataclass(frozen=True)
class Call:
    """An instruction as the cost formulas see it.

    Attributes:
        instruction: the HloInstructionProto.
        operands: shapes of the operands, tuples flattened.
        results: shapes of the results, tuples flattened.
        applied: FLOPs of one application of each called computation.
    """

    instruction: Any
    operands: Sequence[Shape]
    results: Sequence[Shape]
    applied: Sequence[float]


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
    """Count two FLOPs for each pair of a result element and a contracted element."""
    lhs = call.operands[0]
    contracted = math.prod(lhs[d] for d in call.instruction.dot.lhs_contracting)
    return 2.0 * math.prod(call.results[0]) * contracted


def _convolution(call: Call) -> float:
    """Count two FLOPs per valid tap, without products with padding or holes of a dilated input."""
    numbers = call.instruction.convolution
    lhs, rhs, out = call.operands[0], call.operands[1], call.results[0]
    taps = 1
    for k, window in enumerate(call.instruction.window.dimensions):
        taps *= _valid_taps(
            lhs[numbers.input_spatial[k]],
            rhs[numbers.kernel_spatial[k]],
            out[numbers.output_spatial[k]],
            window,
        )
    features = lhs[numbers.input_feature] // max(call.instruction.feature_group_count, 1)
    batch = lhs[numbers.input_batch] // max(call.instruction.batch_group_count, 1)
    return 2.0 * features * out[numbers.output_feature] * batch * taps


def _valid_taps(size: int, kernel: int, output: int, window: Any) -> int:
    """Count the pairs (output position, kernel position) that fall on an element of the input.

    Args:
        size: of the input, in one spatial dimension.
        kernel: size of the kernel.
        output: size of the output.
        window: XLA's WindowDimension, with stride, padding and dilations.
    """
    stride, base = max(window.stride, 1), max(window.base_dilation, 1)
    dilation, padding = max(window.window_dilation, 1), window.padding_low
    if min(size, kernel, output) < 1:
        return 0
    shared = math.gcd(stride, base)
    both = math.gcd(dilation, shared)
    if padding % both:
        return 0  # every tap falls into a hole of the dilated input
    # Of the kernel positions, those at first, first + every, ... can meet an element; each then
    # meets one at every period-th output, beginning with output (start + step t) % period.
    every, period = shared // both, base // shared
    first = padding // both * pow(dilation // both, -1, every) % every
    inverse = pow(stride // shared, -1, period)
    start = (padding - first * dilation) // shared * inverse
    step = -every * dilation // shared * inverse

    def up_to(last: int) -> int:
        """Count the pairs whose place in the padded and dilated input is at most ``last``."""
        positions = (min(kernel - 1, last // dilation) - first) // every + 1
        if last < 0 or positions < 1:
            return 0
        rest = last - first * dilation  # of which each further kernel position takes a part
        part = every * dilation
        whole = (rest - stride * (output - 1)) // part + 1  # of these, every output reaches
        whole = min(max(whole, 0), positions)
        rest, left = rest - part * whole, positions - whole
        return (
            _sum_of_quotients(whole, period, -step, output - 1 - start)
            + _sum_of_quotients(
                left,
                stride * period,
                -part - stride * step,
                rest - stride * (start + step * whole),
            )
            - _sum_of_quotients(positions, period, -step, -1 - start)
        )

    return up_to(padding + (size - 1) * base) - up_to(padding - 1)


def _sum_of_quotients(count: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of ``(start + step k) // divisor`` over k < ``count``.

    It counts the points below a line, by turns along either axis, as Euclid's algorithm: the number
    of turns grows with the logarithm of the divisor.
    """
    total = 0
    while count > 0:
        total += step // divisor * (count * (count - 1) // 2) + start // divisor * count
        step, start = step % divisor, start % divisor
        count, start = divmod(step * count + start, divisor)
        divisor, step = step, divisor
    return total


def _reduce(call: Call) -> float:
    """Count one application per element that is merged into another."""
    return (math.prod(call.operands[0]) - math.prod(call.results[0])) * call.applied[0]


def _window_size(call: Call) -> int:
    """Return the number of elements in the window."""
    return math.prod(d.size for d in call.instruction.window.dimensions)


def _reduce_window(call: Call) -> float:
    """Count one application per further element of each window."""
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
    return (_window_size(call) - 1) * math.prod(out) * call.applied[0]


def _select_and_scatter(call: Call) -> float:
    """Count the selection in each window, and one application of the scatter per element."""
    source = math.prod(call.operands[1])
    return source * ((_window_size(call) - 1) * call.applied[0] + call.applied[1])


def _scatter(call: Call) -> float:
    """Count one application per element of the updates."""
    updates = call.operands[len(call.results) + 1]
    return math.prod(updates) * call.applied[0]


def _sort(call: Call) -> float:
    """Count ``n ceil(log2 n)`` comparisons for the n elements of the first operand."""
    elements = math.prod(call.operands[0])
    return elements * max(elements - 1, 0).bit_length()


def _fft(call: Call) -> float:
    """Count eight FLOPs per element, times the product of the lengths' ``floor(log2 n)``."""
    levels = math.prod(n.bit_length() - 1 for n in call.instruction.fft_length)
    return 8.0 * levels * math.prod(call.operands[0])


def _triangular_solve(call: Call) -> float:
    """Count two FLOPs per element of the right-hand side and row of the matrix."""
    return 2.0 * call.operands[0][-1] * math.prod(call.operands[1])


def _cholesky(call: Call) -> float:
    """Count a third of n^3 FLOPs per matrix of n rows."""
    return call.operands[0][-1] * math.prod(call.operands[0]) // 3


OPCODES: dict[str, Callable[[Call], float]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), lambda call: math.prod(call.results[0])),
    **dict.fromkeys(_TRANSCENDENTAL.split(), lambda call: 0.0),
    **dict.fromkeys(_MOVEMENT.split(), lambda call: 0.0),
    **dict.fromkeys(_CALLS.split(), lambda call: max(call.applied, default=0.0)),
    "cholesky": _cholesky,
    "convolution": _convolution,
    "dot": _dot,
    "fft": _fft,
    "map": lambda call: math.prod(call.results[0]) * call.applied[0],
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "triangular-solve": _triangular_solve,
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
            f"{where}, which no rule knows; known opcodes are listed in parenvs.graph.flops"
        )
    return float(formula(call))


PARTS_READ = ("slice", "dynamic-slice", "gather", "dynamic-update-slice", "scatter")
"""Opcodes that read or write parts of their operands, see ``bytes_of``."""


def bytes_of(opcode: str, operand_bytes: Sequence[float], result_bytes: Sequence[float]) -> float:
    """Return the bytes that one instruction reads and writes, each operand and result once.

    Args:
        opcode: its opcode.
        operand_bytes: bytes of each operand, tuples flattened.
        result_bytes: bytes of each result, tuples flattened.
    """
    if opcode in _NO_BYTES.split():
        return 0.0
    out = sum(result_bytes)
    if opcode == "slice":
        return 2.0 * out
    if opcode in ("dynamic-slice", "gather"):
        return 2.0 * out + operand_bytes[1]
    if opcode == "dynamic-update-slice":
        return 2.0 * operand_bytes[1] + operand_bytes[2]
    if opcode == "scatter":
        indices = len(result_bytes)  # operands are the inputs, the indices, then the updates
        return 3.0 * sum(operand_bytes[indices + 1 :]) + operand_bytes[indices]
    return sum(operand_bytes) + out


def is_relabelling(transpose: Any, operand: Any) -> bool:
    """Return whether a transpose moves nothing: its result's layout undoes it (XLA: a bitcast).

    Args:
        transpose: the HloInstructionProto.
        operand: shape of its operand, with a layout.
    """
    shape, dims = transpose.shape, list(transpose.dimensions)
    default = list(range(len(dims)))[::-1]
    operand_order = list(operand.layout.minor_to_major) or default
    result_order = list(shape.layout.minor_to_major) or default
    before = [d for d in operand_order if operand.dimensions[d] != 1]
    return before == [dims[d] for d in result_order if shape.dimensions[d] != 1]
