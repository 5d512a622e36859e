"""Takes weights of a JAX function apart that are several in one, and split behind their product.

One weight often holds the projections to queries, keys and values, or to an attention and a
feed-forward network beside it, and ``jnp.split`` takes their product apart. As one dimension it
cannot be split by heads: a device would hold some of the queries only. So the function is read as
one whose argument has the parts instead: it computes the same, product by product.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from parenvs.errors import HloError, listed, one_line
from parenvs.graph.pieces import (
    Form,
    Interpreter,
    Kind,
    Pieces,
    Sizes,
    Ties,
    bounds,
    filled,
    form_of,
    in_form,
    resized,
    split_sizes,
)
from parenvs.graph.reader import proto_of, read_proto, results_of
from parenvs.graph.roles import find_twins, keys_of

_MOST_WAYS = 16
"""Parts that one weight may have."""
_ROUNDS = 6
"""Ways of taking an input apart that are tried: dimensions and sizes that it may be."""
Cut = tuple[int, Sizes]
"""Dimension along which an array is in parts, and the size of each."""


@dataclass(frozen=True)
class SplitFunction:
    """A function whose weights that are several in one are arrays of their own."""

    function: Callable[..., Any]
    positional: tuple[Any, ...]
    named: dict[str, Any]
    note: str


def _note(paths: Sequence[str]) -> str:
    what = listed([paths[0] or "a weight", *paths[1:]], 1)
    verb = "holds" if len(paths) == 1 else "hold"
    return (
        f"{what} {verb} several weights in one, whose product is split: "
        "planned part by part; function, args = parenvs.in_parts(function, *args) gives the "
        "function that takes the parts, and from_jax(..., parts=False) keeps them whole"
    )


def split_fused(
    function: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]
) -> SplitFunction | None:
    """Return a function in parts, see ``parenvs.in_parts``; None if nothing is taken apart."""
    jitted = function if hasattr(function, "trace") else jax.jit(function, keep_unused=True)
    traced = jitted.trace(*positional, **named)
    closed = traced.jaxpr
    args = tuple(positional), dict(named)
    inputs, _ = jax.tree_util.tree_flatten_with_path(args)
    tree: Any = jax.tree.structure(args)
    if len(inputs) != len(closed.jaxpr.invars):
        return None  # some are no arrays
    leaves = [leaf for _, leaf in inputs]
    try:
        weights = functools.cache(lambda: _weights(jitted, args))
        cuts, confirmed, result = _find_cuts(closed, leaves, weights)
    except Exception as error:  # a model that is read whole is worth more than none
        words = f"weights that are several in one stay whole: {one_line(error)}"
        return SplitFunction(function, *args, note=words)
    if not confirmed:
        return None
    returned, results = jax.tree_util.tree_flatten_with_path(traced.out_info)
    forms = _outputs(inputs, returned, cuts, result)

    @functools.wraps(function)
    def run(*positional: Any, **named: Any) -> Any:
        values = _interpret(closed, cuts, tree.flatten_up_to((positional, named)), Ties())
        values = list(map(in_form, values, forms))
        return jax.tree.unflatten(
            results, [_by_range(x.parts, x.sizes) if isinstance(x, Pieces) else x for x in values]
        )

    ordered, named = jax.tree.unflatten(
        tree, [_split_leaf(x, *cuts[k]) if k in cuts else x for k, x in enumerate(leaves)]
    )
    paths = [
        "/".join(keys_of(_name(inputs[k][0]))[1])
        for k in sorted(confirmed, key=lambda k: (leaves[k].ndim < 2, k))
    ]
    return SplitFunction(run, ordered, named, _note(paths))


def _name(path: Any) -> str:
    """Name of an argument's array as JAX writes it, ``x0['encoder']['q']``."""
    argument = getattr(path[1], "idx", None)
    head = f"x{argument}" if argument is not None else str(path[1].key)
    return head + str(jax.tree_util.keystr(path[2:]))


def _outputs(
    inputs: Sequence[Any], returned: Sequence[Any], cuts: dict[int, Cut], results: Sequence[Any]
) -> list[Form | None]:
    """Return the form of each result: that of the input with its path, None for a whole array."""

    def kind(leaf: Any) -> object:
        return tuple(leaf.shape), str(leaf.dtype)

    kinds = [kind(jax.typeof(leaf) if not hasattr(leaf, "dtype") else leaf) for _, leaf in inputs]
    cut_kinds = {(kinds[k], axis, sizes) for k, (axis, sizes) in cuts.items()}
    paths_in = [_name(path) for path, _ in inputs]
    paths_out = [str(jax.tree_util.keystr(path)) for path, _ in returned]
    twins = dict(find_twins(paths_in, paths_out, (kinds, [kind(leaf) for _, leaf in returned])))
    forms: list[Form | None] = []
    for output, (form, (_, leaf)) in enumerate(zip(results, returned, strict=True)):
        if output in twins:
            cut = cuts.get(twins[output])
            forms.append(None if cut is None else Form(*cut))
        else:
            fits = form is not None and (kind(leaf), form.axis, form.sizes) in cut_kinds
            forms.append(form if fits else None)
    return forms


def _weights(jitted: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> set[int]:
    """Return the numbers of the arguments that are weights; none if the function is not read."""

    def plain(*positional: Any, **named: Any) -> Any:
        return jitted(*positional, **named)

    lowered = jax.jit(plain, keep_unused=True).lower(*given[0], **given[1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are said of what is read in the end
            graph = read_proto(proto_of(lowered), results=results_of(lowered))
    except HloError:
        return set()  # who reads it says why
    return set(graph.weights.tolist())


def _find_cuts(
    closed: Any, leaves: Sequence[Any], weights: Callable[[], set[int]]
) -> tuple[dict[int, Cut], set[int], list[Any]]:
    """Return the cuts of inputs, the inputs whose product is split, and the forms of the results.

    Several ways of taking an input apart are tried, one after another, until a split finds its
    parts again. What is combined with it element by element goes with it.
    """
    taken = split_sizes(closed.jaxpr)[0]
    candidates: dict[int, list[Cut]] = {}
    # Splits into single elements are indexing, not several weights in one.
    sizes = sorted(way for way in taken if len(way) <= _MOST_WAYS and max(way) > 1)
    for number, leaf in enumerate(leaves):
        if not hasattr(leaf, "dtype") or not jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            continue
        splits = [
            (axis, parts)
            for axis, size in enumerate(leaf.shape)
            for parts in sizes
            if sum(parts) == size
        ]
        if splits:
            candidates[number] = splits
    cuts: dict[int, Cut] = {}
    confirmed: set[int] = set()

    whole = [jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in leaves]

    def trace(tried: dict[int, Cut], ties: Ties) -> list[Any]:
        def run(given: Any) -> list[Any]:
            return list(map(filled, _interpret(closed, tried, given, ties)))

        shapes = (_split_leaf(x, *tried[k]) if k in tried else x for k, x in enumerate(whole))
        return list(map(form_of, jax.eval_shape(run, list(shapes))))

    for attempt in range(min(_ROUNDS, max(map(len, candidates.values()), default=0))):
        open_ways = {
            k: way[attempt] for k, way in candidates.items() if k not in cuts and attempt < len(way)
        }
        if not open_ways:
            continue
        tried, ties = {**cuts, **open_ways}, Ties()
        trace(tried, ties)
        # The roles cost a lowering, so they are asked for only if something was found.
        if ties.confirmed:
            ties.confirmed &= weights()
        tied = ties.confirmed_and_tied()
        confirmed |= ties.confirmed
        cuts |= {k: tried[k] for k in tied}
    return cuts, confirmed, trace(cuts, Ties()) if confirmed else []


def _interpret(closed: Any, cuts: dict[int, Cut], inputs: Sequence[Any], ties: Ties) -> list[Any]:
    values = [
        Pieces(cuts[k][0], [value[name] for name in sorted(value)], frozenset([k]), Kind.WEIGHT)
        if k in cuts
        else value
        for k, value in enumerate(inputs)
    ]
    sizes = split_sizes(closed.jaxpr)[1]
    return Interpreter(ties, sizes).run(closed.jaxpr, closed.consts, values)


def _by_range(parts: Sequence[Any], sizes: Sizes) -> dict[str, Any]:
    width = len(str(sum(sizes)))
    names = [f"{start:0{width}}:{end:0{width}}" for start, end in bounds(sizes)]
    return dict(zip(names, parts, strict=True))


def _split_leaf(leaf: Any, axis: int, sizes: Sizes) -> dict[str, Any]:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        parts = [leaf[(slice(None),) * axis + (slice(*ends),)] for ends in bounds(sizes)]
        return _by_range(parts, sizes)
    shapes = [resized(leaf.shape, axis, size) for size in sizes]
    return _by_range([jax.ShapeDtypeStruct(shape, leaf.dtype) for shape in shapes], sizes)
