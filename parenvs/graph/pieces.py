"""Runs jaxprs on arrays that are there in parts: product by product, the same is computed."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from parenvs.graph.graph import Phase
from parenvs.graph.training import scope_phases

Sizes = tuple[int, ...]
_INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
JOINS = ("concatenate", "stack", "pad", "dynamic_update_slice")
"""Primitives that join parts, or put one among zeros."""


@dataclass(frozen=True)
class Equation:
    """An equation of a jaxpr with calls inlined; ``before`` is the shape of the first input."""

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
    if equation.primitive.name not in _INLINED and "remat" not in equation.primitive.name:
        return None
    inner: Any = next((equation.params[key] for key in _INNER if key in equation.params), None)
    plain = inner is not None and not hasattr(inner, "consts")
    return ClosedJaxpr(inner, ()) if plain else inner


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


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
            # A literal has a value and no name, so each use is an atom of its own.
            if not hasattr(atom, "val"):
                return known.setdefault(atom, next(count))
            number = next(count)
            literals[number] = atom.val
            return number

        for equation in jaxpr.eqns:
            inner, operands = inner_of(equation), [read(atom) for atom in equation.invars]
            names = f"{scope}/{equation.source_info.name_stack}"
            if inner is not None:
                result = walk(inner.jaxpr, operands, names)
                known.update(zip(equation.outvars, result, strict=True))
                continue
            # A loop's body is read apart: what it takes apart is inside one iteration.
            if equation.primitive.name == "scan":
                loops.append((equation.params["jaxpr"].jaxpr, names))
            name, params = equation.primitive.name, equation.params
            before = _shape(equation.invars[0]) if operands else ()
            if name == "dynamic_slice":
                fixed = sliced(params, before, operands[1:])
                name, params = ("slice", fixed) if fixed else (name, params)
            results = tuple(map(read, equation.outvars))
            shapes = tuple(map(_shape, equation.outvars))
            item = Equation(name, params, names, tuple(operands), results, before, shapes)
            equations.append(item)
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
        for item in equations:
            for atom in item.inputs if not is_backward(item.scope) else ():
                readers.setdefault(atom, []).append(item)
        for item in equations:
            if is_backward(item.scope):
                continue
            if item.name == "split":
                sizes = _refined(item, readers)
                weights.add(sizes)
                places |= {sizes, tuple(map(int, item.params["sizes"]))}
            for atom, shape in zip(item.outputs, item.shapes, strict=True):
                sliced = _tiles(shape, readers.get(atom, ()))
                weights |= set(sliced.values())
                places |= set(sliced.values())
            if item.name == "reshape":
                for axis, sizes in _behind(item.outputs[0], item.shapes[0], readers):
                    tail = math.prod(item.shapes[0][axis + 1 :])
                    ahead = math.prod(item.shapes[0][:axis])
                    for place, size in enumerate(item.before):
                        inner = math.prod(item.before[place + 1 :])
                        unit = tail // inner if inner and tail % inner == 0 else 0
                        if math.prod(item.before[:place]) == ahead and size == unit * sum(sizes):
                            weights.add(tuple(n * unit for n in sizes))
                            places |= {sizes, tuple(n * unit for n in sizes)}
    return weights, places


def takes_apart(jaxpr: Any, places: set[Sizes]) -> bool:
    """Whether a jaxpr takes anything apart, or joins it, at known places."""
    known = {sum(sizes) for sizes in places}
    for item in itertools.chain.from_iterable(flat(jaxpr)):
        shape = item.before if item.name == "slice" else ()
        shape = item.shapes[0] if item.name in JOINS else shape
        if item.name in ("split", "unstack") or not known.isdisjoint(shape):
            return True
    return False


def constants(
    places: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]
) -> list[int] | None:
    """Return where a slice of constant places begins, as it is moved inside; None if none is."""
    if any(place is None or isinstance(place, Tracer) for place in places):
        return None
    known = [int(np.asarray(place)) for place in places]
    return [
        # As in JAX: a negative start counts from the end, and the slice is moved inside.
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
    result: dict[int, Sizes] = {}
    for reader in readers:
        if reader.name == "unstack":
            result[reader.params["axis"]] = (1,) * len(reader.outputs)
        if reader.name == "slice" and not any(s != 1 for s in reader.params["strides"] or ()):
            starts, ends = reader.params["start_indices"], reader.params["limit_indices"]
            extents = enumerate(zip(starts, ends, shape, strict=True))
            local = [(axis, (x, y)) for axis, (x, y, size) in extents if (x, y) != (0, size)]
            if len(local) == 1:
                taken.setdefault(local[0][0], set()).add(local[0][1])
    for axis, places in taken.items():
        ordered = sorted(places)
        ends = [0, *(end for _, end in ordered)]
        # Slices tile the dimension: each begins where the one before ends.
        if [start for start, _ in ordered] == ends[:-1] and ends[-1] == shape[axis]:
            result[axis] = tuple(end - start for start, end in ordered)
    return result


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


_NAMES = """
    abs add add_any and ceil clamp convert_element_type copy cos div eq erf exp exp2 expm1 floor ge
    gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow reduce_precision
    rem round rsqrt select_n sign sin sqrt square stop_gradient sub tan tanh xor
"""

_ELEMENTWISE = frozenset(_NAMES.split())
"""Primitives that work element by element; those of one operand or more of the same shape."""

_PASSED = ("optimization_barrier", "sharding_constraint")
"""Primitives that return their operands."""


class Made(enum.IntEnum):
    """What an array in parts is; what is combined is the largest of its own."""

    WEIGHT = 0  # an input, cast or with its dimensions in another order
    OTHER = 1
    PRODUCT = 2  # of a weight with something else


@dataclass(frozen=True)
class Form:
    """How an array is in parts along an axis; ``origins`` are inputs that it is made of."""

    axis: int
    sizes: Sizes
    origins: frozenset[int] = frozenset()
    made: Made = Made.OTHER

    def fits(self, other: Form | None) -> bool:
        """Whether the parts are the same."""
        return other is not None and (self.axis, self.sizes) == (other.axis, other.sizes)


@dataclass
class Pieces:
    """An array that is there in parts along one dimension, see ``Form``.

    ``whole`` is the array as one, once something has needed it.
    """

    axis: int
    parts: list[Any]
    origins: frozenset[int] = frozenset()
    made: Made = Made.OTHER
    whole: Any = None

    @property
    def sizes(self) -> Sizes:
        """Size of each part along the dimension."""
        return tuple(part.shape[self.axis] for part in self.parts)

    @property
    def form(self) -> Form:
        """How it is in parts."""
        return Form(self.axis, self.sizes, self.origins, self.made)

    @property
    def dtype(self) -> Any:
        """Type of its elements."""
        return self.parts[0].dtype

    def like(self, axis: int, parts: Sequence[Any], made: Made | None = None) -> Pieces:
        """Return other parts that are made of these."""
        return Pieces(axis, list(parts), self.origins, self.made if made is None else made)

    def multiplied(self, axis: int, parts: Sequence[Any]) -> Pieces:
        """Return the products of these with something else."""
        return self.like(axis, parts, Made.OTHER if self.made == Made.OTHER else Made.PRODUCT)


@dataclass
class Filled:
    """An array of equal numbers, which is made where it is needed, in the shape that is."""

    number: Any
    shape: tuple[int, ...]
    dtype: Any
    scope: str

    @property
    def is_zero(self) -> bool:
        """Whether it is known to be zero."""
        return not isinstance(self.number, Tracer) and not np.any(np.asarray(self.number))

    def of_shape(self, shape: Sequence[int]) -> Any:
        """Return an array of its numbers."""
        with _scoped(self.scope):
            return lax.full(tuple(shape), self.number, self.dtype)


class Ties:
    """Inputs that are combined with each other element by element, in parts.

    Attributes:
        met: numbers of the inputs whose parts a split has found again.
    """

    def __init__(self) -> None:
        self.met: set[int] = set()
        self._groups: list[frozenset[int]] = []

    def tie(self, *origins: frozenset[int]) -> frozenset[int]:
        """Tie inputs to each other, and return them."""
        # A weight, its gradient and its moments meet in the update, so they are taken apart alike.
        every = frozenset().union(*origins)
        if len(every) > 1:
            self._groups.append(every)
        return every

    def with_met(self) -> set[int]:
        """Return the inputs that are tied to those that were met."""
        result, groups = set(self.met), set(self._groups)
        while True:
            joined = {group for group in groups if not result.isdisjoint(group)}
            if not joined:
                return result
            groups -= joined
            result = result.union(*joined)


def _scoped(scope: str) -> Any:
    return jax.named_scope(scope) if scope else nullcontext()


def whole(value: Any) -> Any:
    """Return an array as one."""
    if isinstance(value, Filled):
        return value.of_shape(value.shape)
    if not isinstance(value, Pieces):
        return value
    if value.whole is None:
        value.whole = lax.concatenate([whole(part) for part in value.parts], value.axis)
    return value.whole


def _part(value: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    if isinstance(value, Filled):
        shapes = [(*value.shape[:axis], size, *value.shape[axis + 1 :]) for size in sizes]
        return [replace(value, shape=shape) for shape in shapes]
    return [lax.slice_in_dim(value, start, end, axis=axis) for start, end in bounds(sizes)]


def formed(value: Any, form: Form) -> Pieces:
    """Return an array in the parts of a form."""
    if isinstance(value, Pieces):
        if form.fits(value.form):
            result = max(form.made, value.made)
            parts = [whole(part) for part in value.parts]
            return Pieces(form.axis, parts, form.origins | value.origins, result)
        value = whole(value)
    parts = [whole(part) for part in _part(value, form.axis, form.sizes)]
    return Pieces(form.axis, parts, form.origins, form.made)


def _packed(value: Any, form: Form | None) -> Any:
    return whole(value) if form is None else formed(value, form).parts


def _unpacked(value: Any, form: Form | None, steps: int = 0) -> Any:
    """An array of a form; ``steps`` dimensions were added in front since, or taken away."""
    if form is None:
        return value
    return Pieces(form.axis + steps, list(value), form.origins, form.made)


def _form(value: Any) -> Form | None:
    return value.form if isinstance(value, Pieces) else None


class Interpreter:
    """Runs a jaxpr on arrays that may be there in parts.

    ``ties`` tells which inputs go together, ``places`` the sizes into which anything is split.
    """

    def __init__(self, ties: Ties, places: set[Sizes]) -> None:
        self.ties, self.places = ties, places
        self._concerned: dict[int, bool] = {}
        self._scopes: list[str] = []

    def run(self, jaxpr: Any, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Return the results."""
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            scope = str(equation.source_info.name_stack)
            self._scopes.append(scope)
            with _scoped(scope):
                result = self.made(equation, operands, scope)
            self._scopes.pop()
            known.update(zip(equation.outvars, result, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def made(self, equation: Any, operands: list[Any], scope: str) -> list[Any]:
        """Return what an equation makes of its operands."""
        name, inner = equation.primitive.name, inner_of(equation)
        in_parts = any(isinstance(x, Pieces) for x in operands)
        if inner is not None and (in_parts or self._concerns(inner.jaxpr)):
            if equation.params.get("differentiated") and equation.params.get("prevent_cse"):
                operands = self._barrier(operands)
            return self.run(inner.jaxpr, inner.consts, operands)
        is_concerned = name == "scan" and self._concerns(equation.params["jaxpr"].jaxpr)
        if name == "broadcast_in_dim" and len(operands) == 1 and not in_parts:
            kind = equation.outvars[0].aval
            if equation.invars[0].aval.shape == () and not kind.weak_type:
                return [Filled(operands[0], tuple(kind.shape), kind.dtype, scope)]
        if in_parts or name in JOINS or is_concerned:
            rule = getattr(self, f"_{name}", None)
            if name in _ELEMENTWISE:
                rule = self._elementwise
            elif name in _PASSED:
                rule = self._passed
            result = None if rule is None else rule(equation, operands)
            if result is not None:
                return result if isinstance(result, list) else [result]
        made = self._bound(equation, operands)
        return list(made) if equation.primitive.multiple_results else [made]

    def _concerns(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._concerned:
            self._concerned[id(jaxpr)] = takes_apart(jaxpr, self.places)
        return self._concerned[id(jaxpr)]

    def _meet(self, x: Pieces) -> None:
        if x.made != Made.OTHER and not is_backward("/".join(self._scopes)):
            self.ties.met |= x.origins

    @staticmethod
    def _barrier(operands: list[Any]) -> list[Any]:
        """Hold apart what is computed again, as ``jax.checkpoint`` does."""
        flat = [
            [whole(part) for part in x.parts] if isinstance(x, Pieces) else whole(x)
            for x in operands
        ]
        held = lax.optimization_barrier(flat)
        return [
            x.like(x.axis, parts) if isinstance(x, Pieces) else parts
            for x, parts in zip(operands, held, strict=True)
        ]

    @staticmethod
    def _bound(equation: Any, operands: Sequence[Any]) -> Any:
        given = equation.primitive.get_bind_params(equation.params)
        functions, given = given if isinstance(given, tuple) else ((), given)
        return equation.primitive.bind(*functions, *map(whole, operands), **given)

    def _passed(self, equation: Any, operands: list[Any]) -> Any:
        return self._barrier(operands) if len(operands) == len(equation.outvars) else None

    def _elementwise(self, equation: Any, operands: list[Any]) -> Any:
        if equation.primitive.multiple_results:
            return None
        # All operands have to be in the same parts; numbers and repeated dimensions fit any.
        first = next(x for x in operands if isinstance(x, Pieces))
        rows = []
        for x in operands:
            shape = getattr(x, "shape", ())
            if isinstance(x, Pieces):
                if not first.form.fits(x.form):
                    return None
                rows.append(x.parts)
            elif len(shape) != len(first.parts[0].shape) or shape[first.axis] == 1:
                rows.append([x] * len(first.parts))  # a number, or the same for all
            elif shape[first.axis] == sum(first.sizes):
                rows.append(_part(x, first.axis, first.sizes))
            else:
                return None
        result = [self._combined(equation, row) for row in zip(*rows, strict=True)]
        return self._joined(first.axis, result, [x for x in operands if isinstance(x, Pieces)])

    def _joined(self, axis: int, parts: list[Any], sources: list[Pieces]) -> Pieces:
        """Parts that are made of several arrays in parts, whose inputs are tied by that."""
        origins = self.ties.tie(*(x.origins for x in sources))
        return Pieces(axis, parts, origins, max(x.made for x in sources))

    def _combined(self, equation: Any, row: Sequence[Any]) -> Any:
        """One part of what is made element by element; nothing is added to by zeros."""
        if equation.primitive.name in ("add", "add_any"):
            others = [x for x in row if not (isinstance(x, Filled) and x.is_zero)]
            if len(others) == 1:
                return others[0]
        return self._bound(equation, row)

    def _transpose(self, equation: Any, operands: list[Any]) -> Any:
        order = list(equation.params["permutation"])
        (x,) = operands
        return x.like(order.index(x.axis), [self._bound(equation, [part]) for part in x.parts])

    def _squeeze(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        gone = equation.params["dimensions"]
        axis = x.axis - sum(d < x.axis for d in gone)
        return x.like(axis, [self._bound(equation, [part]) for part in x.parts])

    def _broadcast_in_dim(self, equation: Any, operands: list[Any]) -> Any:
        x, *rest = operands
        dimensions = equation.params["broadcast_dimensions"]
        shape, axis = list(equation.params["shape"]), dimensions[x.axis]
        if rest or shape[axis] != sum(x.sizes):
            return None
        result = []
        for part, size in zip(x.parts, x.sizes, strict=True):
            shape[axis] = size
            result.append(lax.broadcast_in_dim(whole(part), tuple(shape), dimensions))
        # A bias that is repeated for each sample is no weight any more.
        same = math.prod(result[0].shape) == math.prod(x.parts[0].shape)
        return x.like(axis, result, x.made if same else max(x.made, Made.OTHER))

    def _reshape(self, equation: Any, operands: list[Any]) -> Any:
        x, *rest = operands
        before, after = equation.invars[0].aval.shape, list(equation.params["new_sizes"])
        if rest or equation.params.get("dimensions"):
            return None
        ahead, inner = math.prod(before[: x.axis]), math.prod(before[x.axis + 1 :])
        for axis, size in enumerate(after):
            tail = math.prod(after[axis + 1 :])
            if math.prod(after[:axis]) != ahead or not tail or size < len(x.parts):
                continue
            if all(n * inner % tail == 0 for n in x.sizes):
                sizes = [n * inner // tail for n in x.sizes]
                if sum(sizes) == size:
                    result = []
                    for part, local in zip(x.parts, sizes, strict=True):
                        after[axis] = local
                        result.append(lax.reshape(whole(part), tuple(after)))
                    return x.like(axis, result)
        return None

    def _dot_general(self, equation: Any, operands: list[Any]) -> Any:
        numbers = equation.params["dimension_numbers"]
        sides = [k for k, x in enumerate(operands) if isinstance(x, Pieces)]
        # A product of two arrays in parts follows the one of lower rank.
        side = min(sides, key=lambda k: len(operands[k].parts[0].shape))  # weights before data
        x, other = operands[side], operands[1 - side]
        gone, shared = list(numbers[0][side]), list(numbers[1][side])
        if x.axis in gone:
            axis = numbers[0][1 - side][gone.index(x.axis)]
            return functools.reduce(operator.add, self._both(equation, side, operands, axis))
        if x.axis in shared:
            axis = numbers[1][1 - side][shared.index(x.axis)]
            return x.multiplied(shared.index(x.axis), self._both(equation, side, operands, axis))
        local = [d for d in range(len(x.parts[0].shape)) if d not in (*gone, *shared)]
        out = equation.outvars[0].aval.ndim
        axis = (len(shared) if side == 0 else out - len(local)) + local.index(x.axis)
        return x.multiplied(axis, self._each(equation, side, x.parts, [other] * len(x.parts)))

    def _each(
        self, equation: Any, side: int, parts: Sequence[Any], others: Sequence[Any]
    ) -> list[Any]:
        pairs = zip(parts, others, strict=True)
        return [self._bound(equation, pair if side == 0 else pair[::-1]) for pair in pairs]

    def _both(self, equation: Any, side: int, operands: list[Any], axis: int) -> list[Any]:
        """Products of parts with those of the other operand, along a dimension of it."""
        x, other = operands[side], operands[1 - side]
        fits = isinstance(other, Pieces) and Form(axis, x.sizes).fits(other.form)
        parts = other.parts if fits else _part(whole(other), axis, x.sizes)
        return self._each(equation, side, x.parts, parts)

    def _reduced(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        axes, name = equation.params["axes"], equation.primitive.name
        result = [self._bound(equation, [part]) for part in x.parts]
        if x.axis in axes:
            # How what is reduced part by part is joined.
            joins = {"sum": operator.add, "prod": operator.mul, "max": lax.max, "min": lax.min}
            joins |= {"and": operator.and_, "or": operator.or_}
            return functools.reduce(joins[name.removeprefix("reduce_")], result)
        return x.like(x.axis - sum(a < x.axis for a in axes), result)

    _reduce_sum = _reduce_prod = _reduce_max = _reduce_min = _reduce_and = _reduce_or = _reduced

    def _split(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        if equation.params["axis"] != x.axis:
            return None
        sizes = tuple(map(int, equation.params["sizes"]))
        taken = [self._between(x, *ends) for ends in bounds(sizes)]
        if any(part is None for part in taken):
            return None
        self._meet(x)
        return taken

    def _unstack(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        if equation.params["axis"] != x.axis or set(x.sizes) != {1}:
            return None
        self._meet(x)
        return [lax.squeeze(whole(part), [x.axis]) for part in x.parts]

    def _slice(self, equation: Any, operands: list[Any]) -> Any:
        names = ("start_indices", "limit_indices", "strides")
        return self._sliced(operands[0], *(equation.params[name] for name in names))

    def _sliced(
        self, x: Pieces, first: Sequence[int], last: Sequence[int], strides: Sequence[int] | None
    ) -> Any:
        starts, ends, steps = list(first), list(last), list(strides or [1] * len(first))
        start, end = int(starts[x.axis]), int(ends[x.axis])
        picked = self._between(x, start, end) if steps[x.axis] == 1 else None
        if picked is None:
            return None
        if (start, end) != (0, sum(x.sizes)):
            self._meet(x)

        def rest(part: Any) -> Any:
            starts[x.axis], ends[x.axis] = 0, part.shape[x.axis]
            return lax.slice(whole(part), starts, ends, steps)

        if isinstance(picked, Pieces):
            return x.like(x.axis, list(map(rest, picked.parts)))
        return rest(picked)

    @staticmethod
    def _between(x: Pieces, start: int, end: int) -> Any:
        """The parts from one position to another: one, several, or None if they end elsewhere."""
        inside = [
            part
            for part, (first, last) in zip(x.parts, bounds(x.sizes), strict=True)
            if start <= first and last <= end
        ]
        if sum(part.shape[x.axis] for part in inside) != end - start or not inside:
            return None
        return inside[0] if len(inside) == 1 else x.like(x.axis, inside)

    def _dynamic_slice(self, equation: Any, operands: list[Any]) -> Any:
        x, *places = operands
        sizes = list(equation.params["slice_sizes"])
        starts = constants(places, equation.invars[0].aval.shape, sizes)
        if starts is not None:
            ends = [start + size for start, size in zip(starts, sizes, strict=True)]
            return self._sliced(x, starts, ends, None)
        if sizes[x.axis] != sum(x.sizes):
            return None
        result = []
        for part, size in zip(x.parts, x.sizes, strict=True):
            sizes[x.axis] = size
            result.append(lax.dynamic_slice(whole(part), list(map(whole, places)), sizes))
        return x.like(x.axis, result)

    def _dynamic_update_slice(self, equation: Any, operands: list[Any]) -> Any:
        x, update, *places = operands
        shape, inner = (list(item.aval.shape) for item in equation.invars[:2])
        starts = constants(places, shape, inner)
        wide = [axis for axis, size in enumerate(inner) if size != shape[axis]]
        if starts is not None and isinstance(x, Filled) and len(wide) == 1:
            return self._padded(update, x.number, wide[0], starts[wide[0]], shape[wide[0]])
        both = [y for y in (x, update) if isinstance(y, Pieces)]
        if not both or inner[both[0].axis] != sum(both[0].sizes):
            return None
        form = both[0].form
        if any(not form.fits(y.form) for y in both):
            return None
        where = list(map(whole, places))
        result = [
            lax.dynamic_update_slice(item, part, where)
            for item, part in zip(*(formed(y, form).parts for y in (x, update)), strict=True)
        ]
        return self._joined(form.axis, result, both)

    def _concatenate(self, equation: Any, operands: list[Any]) -> Any:
        axis, sources = equation.params["dimension"], [x for x in operands if isinstance(x, Pieces)]
        if any(x.axis != axis for x in sources):
            return None
        parts = [part for x in operands for part in getattr(x, "parts", [x])]
        result = Pieces(axis, parts, self.ties.tie(*(x.origins for x in sources)))
        return result if result.sizes in self.places else None

    def _stack(self, equation: Any, operands: list[Any]) -> Any:
        axis = equation.params["axis"]
        result = Pieces(axis, [lax.expand_dims(whole(x), [axis]) for x in operands])
        return result if result.sizes in self.places else None

    def _pad(self, equation: Any, operands: list[Any]) -> Any:
        x, number = operands
        padding = equation.params["padding_config"]
        wide = [k for k, ends in enumerate(padding) if any(ends)]
        if len(wide) != 1:
            return None
        before, after, between = map(int, padding[wide[0]])
        if min(before, after) < 0 or between:
            return None
        end = equation.outvars[0].aval.shape[wide[0]]
        return self._padded(x, number, wide[0], before, end)

    def _padded(self, x: Any, number: Any, axis: int, before: int, end: int) -> Any:
        """What is zero around an array, along one dimension, if its parts are at known places."""
        if not Filled(number, (), x.dtype, "").is_zero:
            return None
        if isinstance(x, Pieces) and x.axis != axis:
            return None
        parts = getattr(x, "parts", [x])
        local = [part.shape[axis] for part in parts]
        for sizes in sorted(self.places):
            starts, ends = zip(*bounds(sizes), strict=True)
            if ends[-1] != end or before not in starts:
                continue
            first = starts.index(before)
            if list(sizes[first : first + len(local)]) != local:
                continue
            shape = list(parts[0].shape)
            result = []
            for k, size in enumerate(sizes):
                shape[axis] = size
                inside = first <= k < first + len(local)
                zeros = Filled(number, tuple(shape), parts[0].dtype, "")
                result.append(parts[k - first] if inside else zeros)
            origins = x.origins if isinstance(x, Pieces) else frozenset()
            return Pieces(axis, result, origins, getattr(x, "made", Made.OTHER))
        return None

    def _settled(
        self, call: Callable[[list[Any]], list[Any]], carried: list[Any]
    ) -> tuple[list[Form | None], list[Form | None]]:
        """Return how a loop carries values, and how all that an iteration returns is in parts.

        What comes out in parts goes in so, unless it has to be whole elsewhere.
        """
        forms = [_form(x) for x in carried]
        refused: set[int] = set()
        # Parts spread through a loop until what goes in and what comes out agree (a fixed point).
        while True:
            result = [
                _form(x) for x in call(list(map(_unpacked, map(_packed, carried, forms), forms)))
            ]
            changed = False
            for k, (local, new) in enumerate(zip(forms, result[: len(forms)], strict=True)):
                if local is not None and new is not None and local.fits(new):
                    every = self.ties.tie(local.origins, new.origins)
                    kind = max(local.made, new.made)
                    if (every, kind) != (local.origins, local.made):
                        forms[k], changed = replace(local, origins=every, made=kind), True
                elif local is not None:
                    forms[k], changed = None, True
                    refused.add(k)
                elif new is not None and k not in refused:
                    forms[k], changed = new, True
            if not changed:
                return forms, result

    def _scan(self, equation: Any, operands: list[Any]) -> Any:
        params = equation.params
        body, first = params["jaxpr"], params["num_consts"]
        last = first + params["num_carry"]
        constants, carried, rows = operands[:first], operands[first:last], operands[last:]
        fixed_forms = [_form(x) for x in constants]
        row_forms = [None if f is None or f.axis == 0 else f for f in map(_form, rows)]
        fixed = [_packed(x, f) for x, f in zip(constants, fixed_forms, strict=True)]
        stacks = [_packed(x, f) for x, f in zip(rows, row_forms, strict=True)]

        def iterate(carried: list[Any], row: Sequence[Any], fixed: Sequence[Any]) -> list[Any]:
            values = [
                *map(_unpacked, fixed, fixed_forms),
                *carried,
                *(_unpacked(x, f, -1) for x, f in zip(row, row_forms, strict=True)),
            ]
            return self.run(body.jaxpr, body.consts, values)

        def abstract(carried: list[Any]) -> list[Any]:
            result: list[Any] = []
            forms = [_form(x) for x in carried]

            def call(given: list[Any], row: list[Any], fixed: list[Any]) -> list[Any]:
                result[:] = iterate(list(map(_unpacked, given, forms)), row, fixed)
                return [_packed(x, _form(x)) for x in result]

            given = [_packed(x, f) for x, f in zip(carried, forms, strict=True)]
            item = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stacks)
            jax.eval_shape(call, given, item, fixed)
            return result

        forms, result = self._settled(abstract, carried)
        row_results = result[len(forms) :]

        def step(given: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            values = iterate(list(map(_unpacked, given, forms)), row, fixed)
            local, out = values[: len(forms)], values[len(forms) :]
            return list(map(_packed, local, forms)), list(map(_packed, out, row_results))

        how = {name: params[name] for name in ("length", "reverse", "unroll")}
        end, out = lax.scan(step, list(map(_packed, carried, forms)), stacks, **how)
        return [
            *map(_unpacked, end, forms),
            *(_unpacked(x, f, 1) for x, f in zip(out, row_results, strict=True)),
        ]
