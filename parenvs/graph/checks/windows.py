"""Checks of the shapes of reductions, convolutions, and of what slides a window over an array."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.graph.checks.sizes import Fields, distinct, expect, first
from parenvs.graph.flops import Shape


def reduce(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The reduced dimensions go; all inputs of a variadic reduction have one shape."""
    gone = fields.get("dimensions", [])
    if len(operands) != 2 * len(results):
        return f"it has {len(operands)} operands and {len(results)} results"
    if not distinct(gone, len(operands[0])):
        return f"its dimensions {gone} repeat or are out of range"
    wrong = _merged(operands, len(results))
    kept = [size for d, size in enumerate(operands[0]) if d not in gone]
    return wrong or first(expect(shape, kept) for shape in results)


def reduce_window(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The results have a place for each window on the inputs, which have one shape."""
    if len(operands) != 2 * len(results):
        return f"it has {len(operands)} operands and {len(results)} results"
    wrong, places = _places(operands[0], fields)
    wrong = wrong or _merged(operands, len(results))
    return wrong or first(expect(shape, places) for shape in results)


def select_and_scatter(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The source has an element for each window on the operand, whose shape stays."""
    wrong, places = _places(operands[0], fields)
    wrong = wrong or _merged(operands[1:], 1) or expect(operands[1], places)
    return wrong or expect(results[0], operands[0])


def convolution(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
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
        if not len(numbers) == spatial + 2 == len(shape) or not distinct(numbers, len(shape)):
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
    wrong = wrong or expect([rhs[d] for d in part.get("kernel_spatial", ())], taps)
    return wrong or expect([out[d] for d in part.get("output_spatial", ())], fits)


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
