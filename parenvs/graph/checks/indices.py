"""Checks of the shapes of what reads and writes at computed places: slices, gathers, scatters."""

from __future__ import annotations

from collections.abc import Sequence

from parenvs.graph.checks.sizes import Fields, distinct, expect, first, inside
from parenvs.graph.flops import Shape


def dynamic_slice(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
    """The slice is not larger than the operand."""
    sizes = fields.get("dynamic_slice_sizes", [])
    if not inside(sizes, operands[0]):
        return f"its sizes {sizes} do not fit into the operand"
    return _starts(operands[1:], operands[0]) or expect(results[0], sizes)


def dynamic_update_slice(operands: Sequence[Shape], results: Sequence[Shape], _: Fields) -> str:
    """The update is not larger than the operand, whose shape stays."""
    if not inside(operands[1], operands[0]):
        return "the update does not fit into the operand"
    return _starts(operands[2:], operands[0]) or expect(results[0], operands[0])


def gather(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
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
    if not inside(sizes, source):
        return f"its slice sizes {sizes} do not fit into the operand"
    paired = part.get("start_indices_batching_dims", [])
    if not (distinct(dropped, len(source)) and distinct(offset, len(out))):
        return "its dimension numbers repeat or are out of range"
    if not _paired(source, batching, indices, paired):
        return "its batching dimensions differ"
    if any(sizes[d] > 1 for d in dropped):
        return f"it drops dimensions of which its slice sizes {sizes} are not 1"
    window = [size for d, size in enumerate(sizes) if d not in dropped]
    if [out[d] for d in offset] != window:
        return f"its windows of {window} are not those of the result"
    return expect([size for d, size in enumerate(out) if d not in offset], _but(indices, vector))


def scatter(operands: Sequence[Shape], results: Sequence[Shape], fields: Fields) -> str:
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
    if not (distinct(dropped, len(source)) and distinct(window, len(updates))):
        return "its dimension numbers repeat or are out of range"
    if not _paired(source, batching, indices, paired):
        return "its batching dimensions differ"
    written = [size for d, size in enumerate(source) if d not in dropped]
    if not inside([updates[d] for d in window], written):
        return "its windows do not fit into the operand"
    if set(operands[:count]) != {source} or set(operands[count + 1 :]) != {updates}:
        return "the inputs differ, or the updates"
    batch = [size for d, size in enumerate(updates) if d not in window]
    wrong = expect(batch, _but(indices, vector))
    return wrong or first(expect(shape, source) for shape in results)


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
    if len(places) != length or not distinct(places, len(source)):
        return f"its indices have {length} numbers, for dimensions {list(places)}"
    return ""


def _paired(source: Shape, mine: Sequence[int], indices: Shape, others: Sequence[int]) -> bool:
    """Return whether batching dimensions of operand and indices have the same sizes."""
    return (
        len(mine) == len(others)
        and distinct(others, len(indices))
        and all(source[a] == indices[b] for a, b in zip(mine, others, strict=True))
    )


def _but(shape: Shape, dimension: int) -> Shape:
    """Return a shape without a dimension, which may be the one behind the last."""
    return (*shape[:dimension], *shape[dimension + 1 :])
