"""Reads the equations of jaxprs: what they call, and what they take apart, into which sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.graph.graph import Phase
from parenvs.graph.phases import scope_phases

Sizes = tuple[int, ...]
_INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_LOOPS = ("scan", "while", "cond")
JOINS = ("concatenate", "stack", "pad", "dynamic_update_slice")
"""Primitives that join parts, or put one among zeros."""


@dataclass(frozen=True)
class Equation:
    """An equation of a jaxpr whose calls are inlined.

    Attributes:
        name: of its primitive.
        params: of its primitive.
        scope: names that it stands under.
        inputs: what it reads.
        outputs: what it makes.
        before: shape of the first input.
        shapes: of the outputs.
    """

    name: str
    params: dict[str, Any]
    scope: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    before: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]


def is_backward(scope: str) -> bool:
    """Whether scopes are those of a backward pass."""
    return scope_phases([scope]) == [Phase.BACKWARD]


def inner_of(equation: Any) -> Any:
    """Return the closed jaxpr that a call runs, None if it is no call."""
    from jax.extend.core import ClosedJaxpr

    if equation.primitive.name not in _INLINED and "remat" not in equation.primitive.name:
        return None
    inner: Any = next((equation.params[key] for key in _INNER if key in equation.params), None)
    plain = inner is not None and not hasattr(inner, "consts")
    return ClosedJaxpr(inner, ()) if plain else inner


def bodies(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs of a loop or of branches."""
    if equation.primitive.name in _LOOPS:
        for value in equation.params.values():
            for one in value if isinstance(value, tuple) else (value,):
                if hasattr(one, "jaxpr"):
                    yield one.jaxpr


def flat(jaxpr: Any, scope: str = "") -> Iterator[list[Equation]]:
    """Yield the equations of a jaxpr, calls inlined, and those of each loop and branch in it."""
    equations: list[Equation] = []
    loops: list[tuple[Any, str]] = []
    count = itertools.count()
    literals: dict[int, Any] = {}

    def sliced(params: dict[str, Any], shape: Sequence[int], places: Sequence[int]) -> Any:
        """Parameters of the slice that a dynamic one at constant places is."""
        sizes = params["slice_sizes"]
        starts = constants([literals.get(place) for place in places], shape, sizes)
        if starts is None:
            return None
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        return {"start_indices": starts, "limit_indices": ends, "strides": None}

    def walk(jaxpr: Any, given: Sequence[Any], scope: str) -> list[Any]:
        known = dict(zip(jaxpr.invars, given, strict=True))

        def read(atom: Any) -> Any:
            if not hasattr(atom, "val"):
                return known.setdefault(atom, next(count))
            number = next(count)
            literals[number] = atom.val
            return number

        for equation in jaxpr.eqns:
            inner, operands = inner_of(equation), [read(atom) for atom in equation.invars]
            names = f"{scope}/{equation.source_info.name_stack}"
            if inner is not None:
                made = walk(inner.jaxpr, operands, names)
                known.update(zip(equation.outvars, made, strict=True))
                continue
            loops.extend((body, names) for body in bodies(equation))
            shapes = [
                tuple(getattr(x.aval, "shape", ()))
                for x in (*equation.invars[:1], *equation.outvars)
            ]
            name, params = equation.primitive.name, equation.params
            if name == "dynamic_slice":
                fixed = sliced(params, shapes[0], operands[1:])
                name, params = ("slice", fixed) if fixed else (name, params)
            equations.append(
                Equation(
                    name,
                    params,
                    names,
                    tuple(operands),
                    tuple(map(read, equation.outvars)),
                    shapes[0] if operands else (),
                    tuple(shapes[len(operands[:1]) :]),
                )
            )
        return [read(atom) for atom in jaxpr.outvars]

    walk(jaxpr, [next(count) for _ in jaxpr.invars], scope)
    yield equations
    for loop, names in loops:
        yield from flat(loop, names)


def taken_apart(jaxpr: Any) -> tuple[set[Sizes], set[Sizes]]:
    """Return the sizes into which weights may be taken apart, and those of all that is.

    By ``split``, or by slices that make up the whole, behind a reshape or not; loops included, the
    backward pass not.
    """
    weights: set[Sizes] = set()
    places: set[Sizes] = set()
    for equations in flat(jaxpr):
        readers: dict[Any, list[Equation]] = {}
        for one in equations:
            for atom in one.inputs if not is_backward(one.scope) else ():
                readers.setdefault(atom, []).append(one)
        for one in equations:
            if is_backward(one.scope):
                continue
            if one.name == "split":
                sizes = _refined(one, readers)
                weights.add(sizes)
                places |= {sizes, tuple(map(int, one.params["sizes"]))}
            for atom, shape in zip(one.outputs, one.shapes, strict=True):
                sliced = _tiles(shape, readers.get(atom, ()))
                weights |= set(sliced.values())
                places |= set(sliced.values())
            if one.name == "reshape":
                for axis, sizes in _behind(one.outputs[0], one.shapes[0], readers):
                    tail = math.prod(one.shapes[0][axis + 1 :])
                    ahead = math.prod(one.shapes[0][:axis])
                    for place, size in enumerate(one.before):
                        inner = math.prod(one.before[place + 1 :])
                        unit = tail // inner if inner and tail % inner == 0 else 0
                        if math.prod(one.before[:place]) == ahead and size == unit * sum(sizes):
                            weights.add(tuple(n * unit for n in sizes))
                            places |= {sizes, tuple(n * unit for n in sizes)}
    return weights, places


def takes_apart(jaxpr: Any, places: set[Sizes]) -> bool:
    """Whether a jaxpr takes anything apart, or joins it, at known places."""
    return any(
        one.name in ("split", "unstack")
        or (
            one.name in ("slice", *JOINS)
            and any(
                sum(sizes) == size
                for sizes in places
                for size in (one.before if one.name == "slice" else one.shapes[0])
            )
        )
        for equations in flat(jaxpr)
        for one in equations
    )


def constants(
    places: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]
) -> list[int] | None:
    """Return where a slice of constant places begins, as it is moved inside; None if none is.

    Args:
        places: of the slice, along each dimension.
        shape: of what it is taken of.
        sizes: of the slice.
    """
    from jax.core import Tracer

    if any(place is None or isinstance(place, Tracer) for place in places):
        return None
    known = [int(np.asarray(place)) for place in places]
    return [
        max(0, min(start + all_ * (start < 0), all_ - size))
        for start, all_, size in zip(known, shape, sizes, strict=True)
    ]


def bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each part."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _refined(one: Equation, readers: dict[Any, list[Equation]]) -> Sizes:
    """Sizes of a split whose parts may be split again."""
    sizes: list[int] = []
    for part, size in zip(one.outputs, one.params["sizes"], strict=True):
        again = [
            reader
            for reader in readers.get(part, ())
            if reader.name == "split" and reader.params["axis"] == one.params["axis"]
        ]
        sizes += _refined(again[0], readers) if len(again) == 1 else [int(size)]
    return tuple(sizes)


def _tiles(shape: Sequence[int], readers: Sequence[Equation]) -> dict[int, Sizes]:
    """Dimensions that slices take apart, and the sizes of the slices, which make up the whole."""
    taken: dict[int, set[tuple[int, int]]] = {}
    found: dict[int, Sizes] = {}
    for reader in readers:
        if reader.name == "unstack":
            found[reader.params["axis"]] = (1,) * len(reader.outputs)
        if reader.name == "slice" and not any(s != 1 for s in reader.params["strides"] or ()):
            starts, ends = reader.params["start_indices"], reader.params["limit_indices"]
            own = [
                (axis, (start, end))
                for axis, (start, end, size) in enumerate(zip(starts, ends, shape, strict=True))
                if (start, end) != (0, size)
            ]
            if len(own) == 1:
                taken.setdefault(own[0][0], set()).add(own[0][1])
    for axis, places in taken.items():
        ordered = sorted(places)
        ends = [0, *(end for _, end in ordered)]
        if [start for start, _ in ordered] == ends[:-1] and ends[-1] == shape[axis]:
            found[axis] = tuple(end - start for start, end in ordered)
    return found


def _behind(
    atom: Any, shape: tuple[int, ...], readers: dict[Any, list[Equation]]
) -> Iterator[tuple[int, Sizes]]:
    """Yield dimensions that are taken apart behind transposes and casts, and the sizes."""
    yield from _tiles(shape, readers.get(atom, ())).items()
    for reader in readers.get(atom, ()):
        if reader.name == "split":
            yield reader.params["axis"], tuple(map(int, reader.params["sizes"]))
        elif reader.name == "transpose":
            order = reader.params["permutation"]
            for axis, sizes in _behind(reader.outputs[0], reader.shapes[0], readers):
                yield order[axis], sizes
        elif reader.name == "convert_element_type":
            yield from _behind(reader.outputs[0], shape, readers)
