"""Runs jaxprs on arrays that are there in parts: product by product, the same is computed."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
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
    """An equation of a jaxpr with calls inlined; ``input_shape`` is that of the first input."""

    name: str
    params: dict[str, Any]
    scope: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    input_shape: tuple[int, ...]
    output_shapes: tuple[tuple[int, ...], ...]


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


def flat_equations(jaxpr: Any, scope: str = "") -> Iterator[list[Equation]]:
    """Yield the equations of a jaxpr, calls inlined, and those of each loop and branch in it."""
    equations: list[Equation] = []
    loops: list[tuple[Any, str]] = []
    count = itertools.count()
    literals: dict[int, Any] = {}

    def static_slice(params: dict[str, Any], shape: Sequence[int], positions: Sequence[int]) -> Any:
        """Parameters of the static slice that a dynamic one at constant positions equals."""
        sizes = params["slice_sizes"]
        starts = constant_starts([literals.get(position) for position in positions], shape, sizes)
        if starts is None:
            return None
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        return {"start_indices": starts, "limit_indices": ends, "strides": None}

    def walk(jaxpr: Any, inputs: Sequence[Any], scope: str) -> list[Any]:
        number_of = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Any:
            # A literal has a value and no name, so each use is an atom of its own.
            if not hasattr(atom, "val"):
                return number_of.setdefault(atom, next(count))
            number = next(count)
            literals[number] = atom.val
            return number

        for equation in jaxpr.eqns:
            inner, operands = inner_of(equation), [read(atom) for atom in equation.invars]
            scopes = f"{scope}/{equation.source_info.name_stack}"
            if inner is not None:
                result = walk(inner.jaxpr, operands, scopes)
                number_of.update(zip(equation.outvars, result, strict=True))
                continue
            # A loop's body is read apart: what it takes apart is inside one iteration.
            if equation.primitive.name == "scan":
                loops.append((equation.params["jaxpr"].jaxpr, scopes))
            name, params = equation.primitive.name, equation.params
            input_shape = _shape(equation.invars[0]) if operands else ()
            if name == "dynamic_slice":
                static = static_slice(params, input_shape, operands[1:])
                name, params = ("slice", static) if static else (name, params)
            results = tuple(map(read, equation.outvars))
            shapes = tuple(map(_shape, equation.outvars))
            item = Equation(name, params, scopes, tuple(operands), results, input_shape, shapes)
            equations.append(item)
        return [read(atom) for atom in jaxpr.outvars]

    walk(jaxpr, [next(count) for _ in jaxpr.invars], scope)
    yield equations
    for loop, scopes in loops:
        yield from flat_equations(loop, scopes)


def split_sizes(jaxpr: Any) -> tuple[set[Sizes], set[Sizes]]:
    """Return the sizes into which weights may be split, and those of all splits.

    Splits are ``split``, or slices that make up the whole, behind a reshape or not; loops included,
    the backward pass not.
    """
    weights: set[Sizes] = set()
    others: set[Sizes] = set()
    for equations in flat_equations(jaxpr):
        readers: dict[Any, list[Equation]] = {}
        for item in equations:
            for atom in item.inputs if not is_backward(item.scope) else ():
                readers.setdefault(atom, []).append(item)
        for item in equations:
            if is_backward(item.scope):
                continue
            if item.name == "split":
                weights.add(_nested_split_sizes(item, readers))
                others.add(tuple(map(int, item.params["sizes"])))
            for atom, shape in zip(item.outputs, item.output_shapes, strict=True):
                weights.update(_tiles(shape, readers.get(atom, ())).values())
            if item.name == "reshape":
                for sizes, input_sizes in _splits_of_reshape(item, readers):
                    weights.add(input_sizes)
                    others.add(sizes)
    return weights, weights | others


def _splits_of_reshape(
    reshape: Equation, readers: dict[Any, list[Equation]]
) -> Iterator[tuple[Sizes, Sizes]]:
    """Yield sizes into which a reshape's result is split, and those of the same split before it."""
    before, (after, *_) = reshape.input_shape, reshape.output_shapes
    for axis, sizes in _splits_after(reshape.outputs[0], after, readers):
        outer, inner = math.prod(after[:axis]), math.prod(after[axis + 1 :])
        for dimension, size in enumerate(before):
            stride = math.prod(before[dimension + 1 :])
            unit = inner // stride if stride and inner % stride == 0 else 0
            if math.prod(before[:dimension]) == outer and size == unit * sum(sizes):
                yield sizes, tuple(n * unit for n in sizes)


def has_splits(jaxpr: Any, splits: set[Sizes]) -> bool:
    """Whether a jaxpr splits anything, or joins it, into the sizes of known splits."""
    lengths = {sum(sizes) for sizes in splits}
    for item in itertools.chain.from_iterable(flat_equations(jaxpr)):
        shape = item.input_shape if item.name == "slice" else ()
        shape = item.output_shapes[0] if item.name in JOINS else shape
        if item.name in ("split", "unstack") or not lengths.isdisjoint(shape):
            return True
    return False


def constant_starts(
    positions: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]
) -> list[int] | None:
    """Return the clamped starts of a slice at constant positions; None if one is not constant."""
    if any(position is None or isinstance(position, Tracer) for position in positions):
        return None
    starts = [int(np.asarray(position)) for position in positions]
    return [
        # As in JAX: a negative start counts from the end, and the slice is clamped into the array.
        max(0, min(start + length * (start < 0), length - size))
        for start, length, size in zip(starts, shape, sizes, strict=True)
    ]


def bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of each part."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _nested_split_sizes(split: Equation, readers: dict[Any, list[Equation]]) -> Sizes:
    """Sizes of a split whose parts may be split again."""
    sizes: list[int] = []
    for part, size in zip(split.outputs, split.params["sizes"], strict=True):
        splits = [
            reader
            for reader in readers.get(part, ())
            if reader.name == "split" and reader.params["axis"] == split.params["axis"]
        ]
        sizes += _nested_split_sizes(splits[0], readers) if len(splits) == 1 else [int(size)]
    return tuple(sizes)


def _tiles(shape: Sequence[int], readers: Sequence[Equation]) -> dict[int, Sizes]:
    """Dimensions that slices tile completely, and the sizes of the slices."""
    taken: dict[int, set[tuple[int, int]]] = {}
    result: dict[int, Sizes] = {}
    for reader in readers:
        if reader.name == "unstack":
            result[reader.params["axis"]] = (1,) * len(reader.outputs)
        if reader.name == "slice" and not any(s != 1 for s in reader.params["strides"] or ()):
            starts, ends = reader.params["start_indices"], reader.params["limit_indices"]
            extents = enumerate(zip(starts, ends, shape, strict=True))
            partial = [(axis, (x, y)) for axis, (x, y, size) in extents if (x, y) != (0, size)]
            if len(partial) == 1:
                [(axis, extent)] = partial
                taken.setdefault(axis, set()).add(extent)
    for axis, slices in taken.items():
        ordered = sorted(slices)
        ends = [0, *(end for _, end in ordered)]
        # Slices tile the dimension: each begins where the one before ends.
        if [start for start, _ in ordered] == ends[:-1] and ends[-1] == shape[axis]:
            result[axis] = tuple(end - start for start, end in ordered)
    return result


def _splits_after(
    atom: Any, shape: tuple[int, ...], readers: dict[Any, list[Equation]]
) -> Iterator[tuple[int, Sizes]]:
    """Yield dimensions of an array that are split behind transposes and casts, and the sizes."""
    yield from _tiles(shape, readers.get(atom, ())).items()
    for reader in readers.get(atom, ()):
        if reader.name == "split":
            yield reader.params["axis"], tuple(map(int, reader.params["sizes"]))
        elif reader.name == "transpose":
            for axis, sizes in _splits_after(reader.outputs[0], reader.output_shapes[0], readers):
                yield reader.params["permutation"][axis], sizes
        elif reader.name == "convert_element_type":
            yield from _splits_after(reader.outputs[0], shape, readers)


_NAMES = """
    abs add add_any and ceil clamp convert_element_type copy cos div eq erf exp exp2 expm1 floor ge
    gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow reduce_precision
    rem round rsqrt select_n sign sin sqrt square stop_gradient sub tan tanh xor
"""

_ELEMENTWISE = frozenset(_NAMES.split())
"""Primitives that work element by element; those of one operand or more of the same shape."""

_PASSED = ("optimization_barrier", "sharding_constraint")
"""Primitives that return their operands."""


class Kind(enum.IntEnum):
    """What an array in parts is; a combination has the largest kind of its operands."""

    WEIGHT = 0  # an input, cast or with its dimensions in another order
    OTHER = 1
    PRODUCT = 2  # of a weight with something else


@dataclass(frozen=True)
class Form:
    """How an array is in parts along an axis; ``origins`` are inputs that it is made of."""

    axis: int
    sizes: Sizes
    origins: frozenset[int] = frozenset()
    kind: Kind = Kind.OTHER

    def fits(self, other: Form | None) -> bool:
        """Whether the parts are the same."""
        return other is not None and (self.axis, self.sizes) == (other.axis, other.sizes)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=["axis", "origins", "kind"]
)
@dataclass
class Pieces:
    """An array that is there in parts along one dimension, see ``Form``.

    ``whole`` is the array as one, once something has needed it.
    """

    axis: int
    parts: list[Any]
    origins: frozenset[int] = frozenset()
    kind: Kind = Kind.OTHER
    whole: Any = field(default=None, init=False)

    @property
    def sizes(self) -> Sizes:
        """Size of each part along the dimension."""
        return tuple(part.shape[self.axis] for part in self.parts)

    @property
    def form(self) -> Form:
        """How it is in parts."""
        return Form(self.axis, self.sizes, self.origins, self.kind)

    @property
    def dtype(self) -> Any:
        """Type of its elements."""
        return self.parts[0].dtype

    def like(self, axis: int, parts: Sequence[Any], kind: Kind | None = None) -> Pieces:
        """Return other parts that are made of these."""
        return Pieces(axis, list(parts), self.origins, self.kind if kind is None else kind)

    def multiplied(self, axis: int, parts: Sequence[Any]) -> Pieces:
        """Return the products of these with something else."""
        return self.like(axis, parts, Kind.OTHER if self.kind == Kind.OTHER else Kind.PRODUCT)


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
        confirmed: numbers of the inputs whose parts a split of the function matches.
    """

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self._groups: list[frozenset[int]] = []

    def tie(self, *origins: frozenset[int]) -> frozenset[int]:
        """Tie inputs to each other, and return them."""
        # A weight, its gradient and its moments meet in the update, so they are taken apart alike.
        tied = frozenset().union(*origins)
        if len(tied) > 1:
            self._groups.append(tied)
        return tied

    def confirmed_and_tied(self) -> set[int]:
        """Return the confirmed inputs and all that ties connect them to (a connected component)."""
        result, groups = set(self.confirmed), set(self._groups)
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


def resized(shape: Sequence[int], axis: int, size: int) -> Sizes:
    """Return a shape with another size of one dimension."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def _part(value: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    if isinstance(value, Filled):
        return [replace(value, shape=resized(value.shape, axis, size)) for size in sizes]
    return [lax.slice_in_dim(value, start, end, axis=axis) for start, end in bounds(sizes)]


def in_form(value: Any, form: Form | None) -> Any:
    """Return an array in the parts of a form, as one if that is None."""
    if form is None:
        return whole(value)
    if isinstance(value, Pieces):
        if form.fits(value.form):
            kind = max(form.kind, value.kind)
            parts = [whole(part) for part in value.parts]
            return Pieces(form.axis, parts, form.origins | value.origins, kind)
        value = whole(value)
    parts = [whole(part) for part in _part(value, form.axis, form.sizes)]
    return Pieces(form.axis, parts, form.origins, form.kind)


def form_of(value: Any) -> Form | None:
    """Return how an array is in parts, None if it is one."""
    return value.form if isinstance(value, Pieces) else None


def filled(value: Any) -> Any:
    """Return an array, or one in parts, of which nothing is left to fill."""
    return in_form(value, form_of(value))


def _moved(value: Any, steps: int) -> Any:
    """An array to which ``steps`` dimensions were added in front, or taken away."""
    return value.like(value.axis + steps, value.parts) if isinstance(value, Pieces) else value


class Interpreter:
    """Runs a jaxpr on arrays that may be there in parts.

    ``ties`` collects inputs that go together; ``splits`` are the sizes of the function's splits.
    """

    def __init__(self, ties: Ties, splits: set[Sizes]) -> None:
        self.ties, self.splits = ties, splits
        self._splits_of: dict[int, bool] = {}
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
                result = self.evaluate(equation, operands, scope)
            self._scopes.pop()
            known.update(zip(equation.outvars, result, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def evaluate(self, equation: Any, operands: list[Any], scope: str) -> list[Any]:
        """Return the results of an equation, in parts where a rule can."""
        name, inner = equation.primitive.name, inner_of(equation)
        in_parts = any(isinstance(x, Pieces) for x in operands)
        if inner is not None and (in_parts or self._contains_splits(inner.jaxpr)):
            if equation.params.get("differentiated") and equation.params.get("prevent_cse"):
                operands = self._barrier(operands)
            return self.run(inner.jaxpr, inner.consts, operands)
        is_concerned = name == "scan" and self._contains_splits(equation.params["jaxpr"].jaxpr)
        if name == "broadcast_in_dim" and len(operands) == 1 and not in_parts:
            aval = equation.outvars[0].aval
            if equation.invars[0].aval.shape == () and not aval.weak_type:
                return [Filled(operands[0], tuple(aval.shape), aval.dtype, scope)]
        if in_parts or name in JOINS or is_concerned:
            rule = getattr(self, f"_{name}", None)
            if name in _ELEMENTWISE:
                rule = self._elementwise
            elif name in _PASSED:
                rule = self._passed
            result = None if rule is None else rule(equation, operands)
            if result is not None:
                return result if isinstance(result, list) else [result]
        result = self._bind(equation, operands)
        return list(result) if equation.primitive.multiple_results else [result]

    def _contains_splits(self, jaxpr: Any) -> bool:
        if id(jaxpr) not in self._splits_of:
            self._splits_of[id(jaxpr)] = has_splits(jaxpr, self.splits)
        return self._splits_of[id(jaxpr)]

    def _confirm(self, x: Pieces) -> None:
        if x.kind != Kind.OTHER and not is_backward("/".join(self._scopes)):
            self.ties.confirmed |= x.origins

    @staticmethod
    def _barrier(operands: list[Any]) -> list[Any]:
        """Hold apart what is computed again, as ``jax.checkpoint`` does."""
        return lax.optimization_barrier(list(map(filled, operands)))

    @staticmethod
    def _bind(equation: Any, operands: Sequence[Any]) -> Any:
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
            if first.form.fits(form_of(x)):
                rows.append(x.parts)
            elif isinstance(x, Pieces):
                return None
            elif len(shape) != len(first.parts[0].shape) or shape[first.axis] == 1:
                rows.append([x] * len(first.parts))  # a number, or the same for all
            else:
                rows.append(_part(x, first.axis, first.sizes))
        result = [self._combined(equation, row) for row in zip(*rows, strict=True)]
        return self._joined(first.axis, result, [x for x in operands if isinstance(x, Pieces)])

    def _joined(self, axis: int, parts: list[Any], sources: list[Pieces]) -> Pieces:
        """Parts that are made of several arrays in parts, whose inputs are tied by that."""
        origins = self.ties.tie(*(x.origins for x in sources))
        return Pieces(axis, parts, origins, max(x.kind for x in sources))

    def _combined(self, equation: Any, row: Sequence[Any]) -> Any:
        """One part of what is made element by element; nothing is added to by zeros."""
        if equation.primitive.name in ("add", "add_any"):
            others = [x for x in row if not (isinstance(x, Filled) and x.is_zero)]
            if len(others) == 1:
                return others[0]
        return self._bind(equation, row)

    def _transpose(self, equation: Any, operands: list[Any]) -> Any:
        order = list(equation.params["permutation"])
        (x,) = operands
        return x.like(order.index(x.axis), [self._bind(equation, [part]) for part in x.parts])

    def _squeeze(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        axis = x.axis - sum(d < x.axis for d in equation.params["dimensions"])
        return x.like(axis, [self._bind(equation, [part]) for part in x.parts])

    def _broadcast_in_dim(self, equation: Any, operands: list[Any]) -> Any:
        x, *rest = operands
        shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
        axis = dimensions[x.axis]
        if rest or shape[axis] != sum(x.sizes):
            return None
        result = [
            lax.broadcast_in_dim(whole(part), resized(shape, axis, size), dimensions)
            for part, size in zip(x.parts, x.sizes, strict=True)
        ]
        # A bias that is repeated for each sample is no weight any more.
        same = math.prod(result[0].shape) == math.prod(x.parts[0].shape)
        return x.like(axis, result, x.kind if same else max(x.kind, Kind.OTHER))

    def _reshape(self, equation: Any, operands: list[Any]) -> Any:
        x, *rest = operands
        before, after = equation.invars[0].aval.shape, equation.params["new_sizes"]
        if rest or equation.params.get("dimensions"):
            return None
        ahead, inner = math.prod(before[: x.axis]), math.prod(before[x.axis + 1 :])
        for axis, size in enumerate(after):
            tail = math.prod(after[axis + 1 :])
            if math.prod(after[:axis]) != ahead or not tail or size < len(x.parts):
                continue
            sizes = [n * inner // tail for n in x.sizes]
            if sum(sizes) == size and all(n * inner % tail == 0 for n in x.sizes):
                pairs = zip(x.parts, sizes, strict=True)
                result = [lax.reshape(whole(part), resized(after, axis, n)) for part, n in pairs]
                return x.like(axis, result)
        return None

    def _dot_general(self, equation: Any, operands: list[Any]) -> Any:
        contracting, batching = equation.params["dimension_numbers"]
        sides = [k for k, x in enumerate(operands) if isinstance(x, Pieces)]
        # A product of two arrays in parts follows the one of lower rank.
        side = min(sides, key=lambda k: len(operands[k].parts[0].shape))  # weights before data
        x, other = operands[side], operands[1 - side]
        batch = list(batching[side])
        paired = [*contracting[side], *batch]
        parts = [other] * len(x.parts)
        if x.axis in paired:  # parts are multiplied with those of the other operand
            axis = (*contracting[1 - side], *batching[1 - side])[paired.index(x.axis)]
            fits = Form(axis, x.sizes).fits(form_of(other))
            parts = other.parts if fits else _part(whole(other), axis, x.sizes)
        pairs = zip(x.parts, parts, strict=True)
        products = [self._bind(equation, pair if side == 0 else pair[::-1]) for pair in pairs]
        if x.axis in contracting[side]:
            return functools.reduce(operator.add, products)
        if x.axis in batch:
            return x.multiplied(batch.index(x.axis), products)
        free = [d for d in range(len(x.parts[0].shape)) if d not in paired]
        rank = equation.outvars[0].aval.ndim
        axis = (len(batch) if side == 0 else rank - len(free)) + free.index(x.axis)
        return x.multiplied(axis, products)

    def _reduced(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        axes, name = equation.params["axes"], equation.primitive.name
        result = [self._bind(equation, [part]) for part in x.parts]
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
        taken = [self._parts_between(x, *ends) for ends in bounds(sizes)]
        if any(part is None for part in taken):
            return None
        self._confirm(x)
        return taken

    def _unstack(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        if equation.params["axis"] != x.axis or set(x.sizes) != {1}:
            return None
        self._confirm(x)
        return [lax.squeeze(whole(part), [x.axis]) for part in x.parts]

    def _slice(self, equation: Any, operands: list[Any]) -> Any:
        names = ("start_indices", "limit_indices", "strides")
        return self._sliced(operands[0], *(equation.params[name] for name in names))

    def _sliced(
        self, x: Pieces, first: Sequence[int], last: Sequence[int], strides: Sequence[int] | None
    ) -> Any:
        starts, ends, steps = list(first), list(last), list(strides or [1] * len(first))
        start, end = int(starts[x.axis]), int(ends[x.axis])
        picked = self._parts_between(x, start, end) if steps[x.axis] == 1 else None
        if picked is None:
            return None
        if (start, end) != (0, sum(x.sizes)):
            self._confirm(x)

        def rest(part: Any) -> Any:
            starts[x.axis], ends[x.axis] = 0, part.shape[x.axis]
            return lax.slice(whole(part), starts, ends, steps)

        if isinstance(picked, Pieces):
            return x.like(x.axis, list(map(rest, picked.parts)))
        return rest(picked)

    @staticmethod
    def _parts_between(x: Pieces, start: int, end: int) -> Any:
        """The parts from one position to another: one, several, or None if they end elsewhere."""
        inside = [
            part
            for part, (first, last) in zip(x.parts, bounds(x.sizes), strict=True)
            if start <= first and last <= end
        ]
        if not inside or sum(part.shape[x.axis] for part in inside) != end - start:
            return None
        return inside[0] if len(inside) == 1 else x.like(x.axis, inside)

    def _dynamic_slice(self, equation: Any, operands: list[Any]) -> Any:
        x, *positions = operands
        sizes = equation.params["slice_sizes"]
        starts = constant_starts(positions, equation.invars[0].aval.shape, sizes)
        if starts is not None:
            ends = [start + size for start, size in zip(starts, sizes, strict=True)]
            return self._sliced(x, starts, ends, None)
        if sizes[x.axis] != sum(x.sizes):
            return None
        indices = list(map(whole, positions))
        result = [
            lax.dynamic_slice(whole(part), indices, resized(sizes, x.axis, size))
            for part, size in zip(x.parts, x.sizes, strict=True)
        ]
        return x.like(x.axis, result)

    def _dynamic_update_slice(self, equation: Any, operands: list[Any]) -> Any:
        x, update, *positions = operands
        shape, inner = (list(item.aval.shape) for item in equation.invars[:2])
        starts = constant_starts(positions, shape, inner)
        partial = [axis for axis, size in enumerate(inner) if size != shape[axis]]
        if starts is not None and isinstance(x, Filled) and len(partial) == 1:
            [axis] = partial
            return self._zero_padded(update, x.number, axis, starts[axis], shape[axis])
        pieces = [y for y in (x, update) if isinstance(y, Pieces)]
        form = pieces[0].form if pieces else None
        if form is None or inner[form.axis] != sum(form.sizes):
            return None
        if not all(form.fits(y.form) for y in pieces):
            return None
        indices = list(map(whole, positions))
        result = [
            lax.dynamic_update_slice(item, part, indices)
            for item, part in zip(*(in_form(y, form).parts for y in (x, update)), strict=True)
        ]
        return self._joined(form.axis, result, pieces)

    def _concatenate(self, equation: Any, operands: list[Any]) -> Any:
        axis, sources = equation.params["dimension"], [x for x in operands if isinstance(x, Pieces)]
        if any(x.axis != axis for x in sources):
            return None
        parts = [part for x in operands for part in getattr(x, "parts", [x])]
        result = Pieces(axis, parts, self.ties.tie(*(x.origins for x in sources)))
        return result if result.sizes in self.splits else None

    def _stack(self, equation: Any, operands: list[Any]) -> Any:
        axis = equation.params["axis"]
        result = Pieces(axis, [lax.expand_dims(whole(x), [axis]) for x in operands])
        return result if result.sizes in self.splits else None

    def _pad(self, equation: Any, operands: list[Any]) -> Any:
        x, number = operands
        padding = equation.params["padding_config"]
        padded = [(axis, *map(int, ends)) for axis, ends in enumerate(padding) if any(ends)]
        if len(padded) != 1:
            return None
        [(axis, before, after, between)] = padded
        if min(before, after) < 0 or between:
            return None
        return self._zero_padded(x, number, axis, before, equation.outvars[0].aval.shape[axis])

    def _zero_padded(self, x: Any, number: Any, axis: int, before: int, end: int) -> Any:
        """An array in zeros, along one dimension, if its parts match those of a known split."""
        if not Filled(number, (), x.dtype, "").is_zero:
            return None
        if isinstance(x, Pieces) and x.axis != axis:
            return None
        parts = getattr(x, "parts", [x])
        part_sizes = [part.shape[axis] for part in parts]
        for sizes in sorted(self.splits):
            starts, ends = zip(*bounds(sizes), strict=True)
            if ends[-1] != end or before not in starts:
                continue
            first = starts.index(before)
            if list(sizes[first : first + len(part_sizes)]) != part_sizes:
                continue
            shape, dtype = parts[0].shape, parts[0].dtype
            result = [Filled(number, resized(shape, axis, size), dtype, "") for size in sizes]
            result[first : first + len(parts)] = parts
            return Pieces(axis, result, getattr(x, "origins", frozenset()))
        return None

    def _loop_forms(
        self, call: Callable[[list[Any]], list[Any]], carried: list[Any]
    ) -> tuple[list[Form | None], list[Form | None]]:
        """Return how a loop carries values, and how all that an iteration returns is in parts.

        What comes out in parts goes in so, unless it has to be whole elsewhere.
        """
        forms = list(map(form_of, carried))
        refused: set[int] = set()
        # Parts spread through a loop until what goes in and what comes out agree (a fixed point).
        while True:
            result = list(map(form_of, call(list(map(in_form, carried, forms)))))
            changed = False
            for k, (old, new) in enumerate(zip(forms, result[: len(forms)], strict=True)):
                if old is not None and new is not None and old.fits(new):
                    origins = self.ties.tie(old.origins, new.origins)
                    forms[k] = replace(old, origins=origins, kind=max(old.kind, new.kind))
                    changed |= forms[k] != old
                elif old is not None:
                    forms[k], changed = None, True
                    refused.add(k)
                elif new is not None and k not in refused:
                    forms[k], changed = new, True
            if not changed:
                return forms, result

    def _scan(self, equation: Any, operands: list[Any]) -> Any:
        """Run a loop whose constants, carried values and rows may be in parts."""
        params = equation.params
        body, first = params["jaxpr"], params["num_consts"]
        last = first + params["num_carry"]
        carried = operands[first:last]
        fixed = list(map(filled, operands[:first]))
        # Of what is in parts along the loop's own dimension, an iteration has no part.
        rows = [whole(x) if getattr(x, "axis", 0) == 0 else filled(x) for x in operands[last:]]
        row_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)

        def iterate(carried: list[Any], row: list[Any], fixed: list[Any]) -> list[Any]:
            values = [*fixed, *carried, *(_moved(x, -1) for x in row)]
            return self.run(body.jaxpr, body.consts, values)

        def abstract(carried: list[Any]) -> list[Any]:  # traces one iteration for its forms
            def call(*given: Any) -> list[Any]:
                return list(map(filled, iterate(*given)))

            return jax.eval_shape(call, carried, row_shapes, fixed)

        forms, result = self._loop_forms(abstract, carried)
        count = len(forms)

        def step(given: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            values = list(map(in_form, iterate(given, row, fixed), [*forms, *result[count:]]))
            return values[:count], values[count:]

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        end, out = lax.scan(step, list(map(in_form, carried, forms)), rows, **options)
        return [*end, *(_moved(x, 1) for x in out)]
