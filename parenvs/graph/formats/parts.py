"""Takes weights of a JAX function apart that are several in one, and split behind their product.

One weight often holds the projections to queries, keys and values, or to an attention and a
feed-forward network beside it, and ``jnp.split`` takes their product apart. As one dimension it
cannot be split by heads: a device would hold some of the queries only. So the function is read as
one whose argument has the parts instead: it computes the same, product by product.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from parenvs.errors import need_extra
from parenvs.graph.twins import keys_of

_NAMES = """
    abs add add_any and ceil clamp convert_element_type copy cos div eq erf exp exp2 expm1 floor ge
    gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow reduce_precision
    rem round rsqrt select_n sign sin sqrt square stop_gradient sub tan tanh xor
"""
_ELEMENTWISE = frozenset(_NAMES.split())
"""Primitives that work element by element; those of one operand or more of the same shape."""
_INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass
class Pieces:
    """An array that is there in parts along one dimension.

    Attributes:
        axis: the dimension.
        parts: the parts, in order.
        origins: numbers of the inputs that it is made of in parts.
        whole: the array as one, once something has needed it.
    """

    axis: int
    parts: list[Any]
    origins: frozenset[int]
    whole: Any = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of each part along the dimension."""
        return tuple(part.shape[self.axis] for part in self.parts)

    def like(self, axis: int, parts: Sequence[Any]) -> Pieces:
        """Return other parts that are made of these."""
        return Pieces(axis, list(parts), self.origins)


Cut = tuple[int, tuple[int, ...]]
"""Dimension along which an array is in parts, and the size of each."""


def in_parts(
    function: Callable[..., Any], *args: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Take weights of a JAX function apart that are several in one (extra ``jax``).

    What ``jnp.split`` takes apart behind its product, the projections to queries, keys and values
    in one weight, say, becomes arrays of its own: ``params['qkv']`` a dictionary of parts,
    ``params['qkv']['000:064']``, and its optimiser state, of the same path and shape, and its new
    value alike. So partitions can split it by heads. Products inside loops stay as they are.

    Args:
        function: the training step or forward pass.
        *args: its arguments, arrays or ``jax.ShapeDtypeStruct``.

    Returns:
        A function that computes the same, and its arguments, abstract where there are no parts.
        Function and arguments are those that were given, if nothing is to be taken apart.

    Raises:
        ParenvsError: JAX is missing.
    """
    with need_extra("jax", "planning a function"):
        import jax

    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    leaves = jax.tree.leaves(tuple(args))
    tree: Any = jax.tree.structure(tuple(args))
    cuts, met = _found(closed, tuple(args))
    if not met:
        return function, tuple(args)
    results = jax.tree.structure(shape)

    @functools.wraps(function)
    def parted(*given: Any) -> Any:
        values = _run(closed, cuts, tree.flatten_up_to(tuple(given)), set())
        return jax.tree.unflatten(results, [_dictionary(value) for value in values])

    return parted, jax.tree.unflatten(tree, _abstract(leaves, cuts))


def several_in_one(jitted: Any, args: Sequence[Any], named: dict[str, Any]) -> tuple[str, ...]:
    """Return a note on weights that ``in_parts`` would take apart; none if there are none.

    Args:
        jitted: the jitted function.
        args: its positional arguments.
        named: its keyword arguments.
    """
    import jax

    if not hasattr(jitted, "trace"):
        return ()
    closed, given = jitted.trace(*args, **named).jaxpr, (tuple(args), dict(named))
    leaves = jax.tree.leaves(given)
    if len(leaves) != len(closed.jaxpr.invars) or not any(_splits(closed.jaxpr)):
        return ()
    try:
        _, met = _found(closed, given)
    except Exception:  # a note is not worth a model that cannot be read
        return ()
    if not met:
        return ()
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(given)]
    _, keys = keys_of(paths[min(met)])
    more = f" and {len(met) - 1:,} more" if len(met) > 1 else ""
    return (
        f"{'/'.join(keys[2:]) or 'a weight'}{more} hold several weights in one, whose product is "
        "split: as one dimension these are not planned by heads; parenvs.in_parts(function, *args) "
        "gives the function with the parts as arrays",
    )


def _found(closed: Any, args: Any) -> tuple[dict[int, Cut], set[int]]:
    """Return the inputs that are to be taken apart, and those whose product is split."""
    import jax

    flat = jax.tree_util.tree_leaves_with_path(args)
    leaves, keys = [leaf for _, leaf in flat], [jax.tree_util.keystr(p[1:]) for p, _ in flat]
    sizes = {sum(parts): parts for parts in _splits(closed.jaxpr) if len(parts) > 1}
    tried: dict[int, Cut] = {}
    for number, leaf in enumerate(leaves):
        if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            for axis, size in enumerate(leaf.shape):
                if size in sizes:
                    tried[number] = axis, sizes[size]
    met: set[int] = set()
    if tried:

        def dry(given: Any) -> list[Any]:
            return [_whole(value) for value in _run(closed, tried, given, met)]

        jax.eval_shape(dry, _abstract(leaves, tried))
    ends = [(keys[k], leaves[k].shape) for k in met]
    return {
        k: cut
        for k, cut in tried.items()
        if k in met or any(keys[k].endswith(e) and leaves[k].shape == shape for e, shape in ends)
    }, met


def _run(closed: Any, cuts: dict[int, Cut], given: Sequence[Any], met: set[int]) -> list[Any]:
    """Run a function's jaxpr on its flat arguments, those of ``cuts`` in parts."""
    values = [
        Pieces(cuts[k][0], [value[name] for name in sorted(value)], frozenset([k]))
        if k in cuts
        else value
        for k, value in enumerate(given)
    ]
    return _Interpreter(met, set(_splits(closed.jaxpr))).run(closed.jaxpr, closed.consts, values)


def _abstract(leaves: Sequence[Any], cuts: dict[int, Cut]) -> list[Any]:
    """Return abstract arguments, those of ``cuts`` in parts."""
    import jax

    return [
        _named(leaf, *cuts[k])
        if k in cuts
        else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if hasattr(leaf, "dtype")
        else leaf
        for k, leaf in enumerate(leaves)
    ]


def _splits(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Yield the sizes into which anything is split, outside of loops."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "split":
            yield tuple(map(int, equation.params["sizes"]))
        inner = _inner(equation)
        if inner is not None:
            yield from _splits(inner.jaxpr)


def _inner(equation: Any) -> Any:
    """The closed jaxpr that a call runs, None if it is no call."""
    from jax.extend.core import ClosedJaxpr

    if equation.primitive.name not in _INLINED and "remat" not in equation.primitive.name:
        return None
    inner: Any = next((equation.params[key] for key in _INNER if key in equation.params), None)
    plain = inner is not None and not hasattr(inner, "consts")
    return ClosedJaxpr(inner, ()) if plain else inner


def _bounds(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each part."""
    return list(itertools.pairwise([0, *itertools.accumulate(sizes)]))


def _names(sizes: Sequence[int]) -> list[str]:
    """Names of parts: their place in the whole, which sorts as they stand."""
    width = len(str(sum(sizes)))
    return [f"{start:0{width}}:{end:0{width}}" for start, end in _bounds(sizes)]


def _named(leaf: Any, axis: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Abstract parts of an array, by name."""
    import jax

    shapes = [(*leaf.shape[:axis], size, *leaf.shape[axis + 1 :]) for size in sizes]
    parts = [jax.ShapeDtypeStruct(shape, leaf.dtype) for shape in shapes]
    return dict(zip(_names(sizes), parts, strict=True))


def _dictionary(value: Any) -> Any:
    """A result as it is returned."""
    if not isinstance(value, Pieces):
        return value
    return dict(zip(_names(value.sizes), value.parts, strict=True))


def _whole(value: Any) -> Any:
    """An array of its parts."""
    from jax import lax

    if not isinstance(value, Pieces):
        return value
    if value.whole is None:
        value.whole = lax.concatenate(value.parts, value.axis)
    return value.whole


def _part(value: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    """Parts of an array that is there as one."""
    from jax import lax

    return [lax.slice_in_dim(value, start, end, axis=axis) for start, end in _bounds(sizes)]


class _Interpreter:
    """Runs a jaxpr on arrays that may be there in parts.

    Attributes:
        met: numbers of the inputs whose parts a split has found again.
        splits: sizes into which anything is split; what is joined of such parts stays in parts.
    """

    def __init__(self, met: set[int], splits: set[tuple[int, ...]]) -> None:
        self.met, self.splits = met, splits

    def run(self, jaxpr: Any, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Return the results."""
        import jax

        known: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        known.update(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))
        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            scope = str(equation.source_info.name_stack)
            with jax.named_scope(scope) if scope else nullcontext():
                made = self.made(equation, operands)
            known.update(zip(equation.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def made(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Return what an equation makes of its operands."""
        inner = _inner(equation)
        if any(isinstance(x, Pieces) for x in operands) or self._joins(equation):
            if inner is not None:
                return self.run(inner.jaxpr, inner.consts, operands)
            rule = getattr(self, f"_{equation.primitive.name}", None)
            if equation.primitive.name in _ELEMENTWISE:
                rule = self._elementwise
            found = None if rule is None else rule(equation, operands)
            if found is not None:
                return found if isinstance(found, list) else [found]
        elif inner is not None and any(_splits(inner.jaxpr)):
            return self.run(inner.jaxpr, inner.consts, operands)
        made = self._bound(equation, [_whole(x) for x in operands])
        return list(made) if equation.primitive.multiple_results else [made]

    @staticmethod
    def _joins(equation: Any) -> bool:
        return equation.primitive.name == "concatenate"

    @staticmethod
    def _bound(equation: Any, operands: Sequence[Any]) -> Any:
        given = equation.primitive.get_bind_params(equation.params)
        functions, given = given if isinstance(given, tuple) else ((), given)
        return equation.primitive.bind(*functions, *operands, **given)

    def _elementwise(self, equation: Any, operands: list[Any]) -> Any:
        first = next(x for x in operands if isinstance(x, Pieces))
        rows = []
        for x in operands:
            if isinstance(x, Pieces):
                if (x.axis, x.sizes) != (first.axis, first.sizes):
                    return None
                rows.append(x.parts)
            elif len(getattr(x, "shape", ())) != first.parts[0].ndim or x.shape[first.axis] == 1:
                rows.append([x] * len(first.parts))  # a number, or the same for all
            elif x.shape[first.axis] == sum(first.sizes):
                rows.append(_part(x, first.axis, first.sizes))
            else:
                return None
        made = [self._bound(equation, row) for row in zip(*rows, strict=True)]
        if equation.primitive.multiple_results:
            return None
        every = frozenset().union(*(x.origins for x in operands if isinstance(x, Pieces)))
        return Pieces(first.axis, made, every)

    def _transpose(self, equation: Any, operands: list[Any]) -> Any:
        order = list(equation.params["permutation"])
        (x,) = operands
        return x.like(order.index(x.axis), [self._bound(equation, [part]) for part in x.parts])

    def _broadcast_in_dim(self, equation: Any, operands: list[Any]) -> Any:
        from jax import lax

        x, *rest = operands
        dimensions = equation.params["broadcast_dimensions"]
        shape, axis = list(equation.params["shape"]), dimensions[x.axis]
        if rest or shape[axis] != sum(x.sizes):
            return None
        made = []
        for part, size in zip(x.parts, x.sizes, strict=True):
            shape[axis] = size
            made.append(lax.broadcast_in_dim(part, tuple(shape), dimensions))
        return x.like(axis, made)

    def _reshape(self, equation: Any, operands: list[Any]) -> Any:
        from jax import lax

        x, *rest = operands
        before, after = equation.invars[0].aval.shape, list(equation.params["new_sizes"])
        ahead = math.prod(before[: x.axis])
        fits = [
            k
            for k, size in enumerate(after)
            if size == before[x.axis] and math.prod(after[:k]) == ahead
        ]
        if rest or not fits or equation.params.get("dimensions"):
            return None
        made = []
        for part, size in zip(x.parts, x.sizes, strict=True):
            after[fits[0]] = size
            made.append(lax.reshape(part, tuple(after)))
        return x.like(fits[0], made)

    def _dot_general(self, equation: Any, operands: list[Any]) -> Any:
        numbers = equation.params["dimension_numbers"]
        side = next(k for k, x in enumerate(operands) if isinstance(x, Pieces))
        x, other = operands[side], operands[1 - side]
        gone, shared = numbers[0][side], numbers[1][side]
        if x.axis in shared:
            return None
        if x.axis in gone:
            axis = numbers[0][1 - side][list(gone).index(x.axis)]
            if isinstance(other, Pieces) and (other.axis, other.sizes) == (axis, x.sizes):
                parts = other.parts
            else:
                parts = _part(_whole(other), axis, x.sizes)
            both = zip(x.parts, parts, strict=True)
            made = [self._bound(equation, pair if side == 0 else pair[::-1]) for pair in both]
            return functools.reduce(lambda one, two: one + two, made)
        other = _whole(other)
        own = [d for d in range(x.parts[0].ndim) if d not in (*gone, *shared)]
        out = equation.outvars[0].aval.ndim
        axis = (len(shared) if side == 0 else out - len(own)) + own.index(x.axis)
        pairs = [(part, other) if side == 0 else (other, part) for part in x.parts]
        return x.like(axis, [self._bound(equation, pair) for pair in pairs])

    def _reduce_sum(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        axes = equation.params["axes"]
        made = [self._bound(equation, [part]) for part in x.parts]
        if x.axis in axes:
            return functools.reduce(lambda one, two: one + two, made)
        return x.like(x.axis - sum(a < x.axis for a in axes), made)

    def _split(self, equation: Any, operands: list[Any]) -> Any:
        (x,) = operands
        if equation.params["axis"] != x.axis or tuple(equation.params["sizes"]) != x.sizes:
            return None
        self.met |= x.origins
        return list(x.parts)

    def _concatenate(self, equation: Any, operands: list[Any]) -> Any:
        made = Pieces(equation.params["dimension"], operands, frozenset())
        if any(isinstance(x, Pieces) for x in operands) or made.sizes not in self.splits:
            return None
        return made
