"""Measures the layers of a JAX function (extra ``jax``): seconds, and bytes at their borders.

Layers are named scopes (``jax.named_scope``): the function is traced, and its operations are cut
into runs of equal outermost scope, or of the next one inside if all have the same. What stands
between two scopes belongs to the one in front; in front of the first, to that one. Each layer runs
alone, compiled. The first argument holds the weights, all others are data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parenvs.clock.measured import Layers
from parenvs.clock.timer import Timing, samples
from parenvs.clock.xla.devices import devices
from parenvs.errors import ProfileError, need_extra, one_line
from parenvs.graph.python_source import jax_function

_INLINED = ("pjit", "jit", "closed_call", "core_call", "remat", "checkpoint")
"""Operations whose bodies are opened; ``checkpoint`` is not measured as recomputing."""


@dataclass
class _Layer:
    """A run of operations of one scope.

    Attributes:
        name: of the scope.
        operations: of it.
        reads: variables that it takes from outside, in order.
        makes: variables that later layers or the function's results need.
    """

    name: str
    operations: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    makes: list[Any] = field(default_factory=list)


def profiled(
    source: str,
    arguments: str | None,
    name: str = "function",
    repeats: int = 20,
    warm_up: int = 3,
    device: str = "cpu",
) -> Layers:
    """Measure each named scope of a JAX function ``FILE.py:NAME``.

    Args:
        source: the function, see ``parenvs.graph.python_source.jax_function``.
        arguments: its arguments, see there.
        name: of the profile.
        repeats: runs of each layer that count.
        warm_up: runs before them; one more compiles.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        ProfileError: it has fewer than two scopes, or fails on its arguments.
        ParenvsError: JAX is missing, or there is no such device.
    """
    with need_extra("jax", "profiling"):
        import jax
    function, positional, named = jax_function(source, arguments)
    (target,) = devices(device, 1)
    with jax.default_device(target):
        return measured_scopes(function, positional, named, name, repeats, warm_up)


def measured_scopes(
    function: Any,
    positional: Sequence[Any],
    named: dict[str, Any] | None = None,
    name: str = "function",
    repeats: int = 20,
    warm_up: int = 3,
) -> Layers:
    """Measure each named scope of a function.

    Args:
        function: ``function(weights, *data)``: a loss, or what one is made of.
        positional: its arguments; shapes get values.
        named: arguments by name, data too.
        name: of the profile.
        repeats: runs of each layer that count.
        warm_up: runs before them; one more compiles.

    Raises:
        ProfileError: it has fewer than two scopes, or fails on its arguments.
    """
    import jax

    positional = jax.tree.map(_valued, tuple(positional))
    named = jax.tree.map(_valued, dict(named or {}))
    try:
        traced = jax.make_jaxpr(function)(*positional, **named)
    except Exception as error:
        raise ProfileError(
            f"profile {name}: it fails on its arguments ({one_line(error)})"
        ) from None
    leaves = jax.tree.leaves((positional, named))
    weights = len(jax.tree.leaves(positional[:1]))
    values: dict[Any, Any] = dict(zip(traced.jaxpr.constvars, traced.consts, strict=True))
    values |= dict(zip(traced.jaxpr.invars, leaves, strict=True))
    trained = {x for x in traced.jaxpr.invars[:weights] if _floats(x)}
    operations, results = _flat(traced.jaxpr, values)
    layers = _layers(operations, results)
    if len(layers) < 2:
        raise ProfileError(
            f"profile {name}: {len(layers)} named scopes, and a chain needs at least two; give "
            "layers names by jax.named_scope, and write loops over them out"
        )
    timings, activations = [], []
    needing = set(trained)
    for layer in layers:
        both, saved = _timed(layer, values, needing, trained, repeats, warm_up)
        timings.append(both)
        activations.append(saved)
    data = [x for x in jax.tree.leaves((positional[1:], named)) if np.ndim(x)]
    whole = _whole(function, tuple(positional), named, repeats, warm_up)
    return Layers.of(
        name,
        [layer.name for layer in layers],
        timings,
        whole,
        int(np.shape(data[0])[0]) if data else 1,
        cut_bytes=_cut_bytes(layers, results),
        parameter_bytes=_first_uses(layers, trained),
        resident_bytes=activations,
    )


def _valued(leaf: Any) -> Any:
    """An array; a shape gets normal values, or zeros."""
    import jax
    import jax.numpy as jnp

    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return 0.02 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _floats(variable: Any) -> bool:
    """Whether a variable has gradients."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(variable.aval.dtype, jnp.floating))


def _flat(jaxpr: Any, values: dict[Any, Any]) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Operations with their scopes, calls of jitted functions opened; and the results."""
    equations: list[tuple[str, Any]] = []

    def walk(body: Any, scope: str, known: dict[Any, Any]) -> dict[Any, Any]:
        """Rename the variables of an inner body to those outside."""
        for operation in body.eqns:
            own = "/".join(filter(None, [scope, str(operation.source_info.name_stack)]))
            inputs = [known.get(x, x) if _is_variable(x) else x for x in operation.invars]
            inner = operation.params.get("jaxpr")
            if operation.primitive.name in _INLINED and inner is not None:
                inner_values = getattr(inner, "consts", ())
                inner = getattr(inner, "jaxpr", inner)
                values.update(zip(inner.constvars, inner_values, strict=True))
                results = walk(inner, own, dict(zip(inner.invars, inputs, strict=True)))
                for outside, x in zip(operation.outvars, inner.outvars, strict=True):
                    known[outside] = results.get(x, x) if _is_variable(x) else x
            else:
                equations.append((own, operation.replace(invars=inputs)))
        return known

    known = walk(jaxpr, "", {})
    return equations, [known.get(x, x) if _is_variable(x) else x for x in jaxpr.outvars]


def _is_variable(x: Any) -> bool:
    """Whether an operand is a variable, not a number."""
    return not hasattr(x, "val")


def _layers(operations: Sequence[tuple[str, Any]], results: Sequence[Any]) -> list[_Layer]:
    """Cut operations into layers, and find what each takes and gives."""
    paths = [[part for part in scope.split("/") if part] for scope, _ in operations]
    depth = 0
    named = [path for path in paths if path]
    while named and len({path[depth] for path in named if len(path) > depth}) == 1:
        if not any(len(path) > depth + 1 for path in named):
            break
        depth += 1
    layers: list[_Layer] = []
    runs: dict[str, int] = {}
    waiting: list[Any] = []
    for path, (_, operation) in zip(paths, operations, strict=True):
        name = path[depth] if len(path) > depth else ""
        if name and (not layers or layers[-1].name.split("#")[0] != name):
            runs[name] = runs.get(name, 0) + 1
            again = f"#{runs[name]}" if runs[name] > 1 else ""
            layers.append(_Layer(name + again, waiting))
            waiting = []
        (layers[-1].operations if layers else waiting).append(operation)
    used_later = set(filter(_is_variable, results))
    for layer in reversed(layers):
        made = {x for operation in layer.operations for x in operation.outvars}
        reads = dict.fromkeys(
            x for operation in layer.operations for x in operation.invars
            if _is_variable(x) and x not in made
        )  # fmt: skip
        layer.reads = list(reads)
        layer.makes = [x for x in dict.fromkeys(_outputs(layer)) if x in used_later]
        used_later |= set(reads)
    return layers


def _outputs(layer: _Layer) -> Iterator[Any]:
    """Variables that a layer's operations make."""
    for operation in layer.operations:
        yield from operation.outvars


def _timed(
    layer: _Layer,
    values: dict[Any, Any],
    needing: set[Any],
    trained: set[Any],
    repeats: int,
    warm_up: int,
) -> tuple[tuple[Timing, Timing], int]:
    """Time a layer alone, add its results to the values; and the bytes that it keeps.

    ``needing`` has the variables with gradients; the layer's are added.
    """
    import jax
    from jax.extend import core

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of names for debuggers, left out
        jaxpr = core.Jaxpr([], layer.reads, layer.makes, layer.operations)
    body = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))
    taken = [values[x] for x in layer.reads]
    wanted = [k for k, x in enumerate(layer.reads) if x in needing and _floats(x)]

    def part(*arguments: Any) -> list[Any]:
        """The layer as a function of what needs gradients."""
        full = list(taken_by)
        for k, value in zip(wanted, arguments, strict=True):
            full[k] = value
        return body(*full)

    taken_by: list[Any] = []

    def forward(given: list[Any]) -> Any:
        taken_by[:] = given
        if not wanted:
            return body(*given), None
        return jax.vjp(part, *[given[k] for k in wanted])

    run = jax.jit(forward)
    outputs, back = run(taken)
    values.update(zip(layer.makes, outputs, strict=True))
    forward_timing = Timing.of(samples(lambda: jax.block_until_ready(run(taken)), repeats, warm_up))
    if back is None or not any(_floats(x) for x in layer.makes):
        return (forward_timing, Timing(0.0, 0.0, 0.0, repeats)), 0
    needing |= {x for x in layer.makes if _floats(x)}
    gradients = [_gradient_of(x) for x in outputs]
    pull = jax.jit(lambda function, given: function(given))
    jax.block_until_ready(pull(back, gradients))
    behind = Timing.of(
        samples(lambda: jax.block_until_ready(pull(back, gradients)), repeats, warm_up)
    )
    traced = jax.make_jaxpr(forward)(taken).jaxpr
    own = {x for x, y in zip(traced.invars, layer.reads, strict=True) if y in trained}
    residuals = {x for x in traced.outvars[len(outputs) :] if _is_variable(x)} - own
    return (forward_timing, behind), sum(map(_size, residuals))


def _gradient_of(value: Any) -> Any:
    """Ones like a result; whole numbers have gradients of no type."""
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.ones_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


def _size(variable: Any) -> int:
    """Bytes of a variable."""
    return int(np.prod(variable.aval.shape, initial=1)) * variable.aval.dtype.itemsize


def _cut_bytes(layers: Sequence[_Layer], results: Sequence[Any]) -> list[int]:
    """Bytes that cross a cut behind each layer: what later ones read, and the results."""
    made = [set(layer.makes) for layer in layers]
    sizes = []
    for number in range(len(layers)):
        before = set().union(*made[: number + 1])
        later = {x for layer in layers[number + 1 :] for x in layer.reads}
        later |= set(filter(_is_variable, results))
        sizes.append(sum(_size(x) for x in before & later))
    return sizes


def _first_uses(layers: Sequence[_Layer], trained: set[Any]) -> list[int]:
    """Bytes of the trained weights of each layer of which none was in an earlier one."""
    seen: set[Any] = set()
    uses = []
    for layer in layers:
        own = (set(layer.reads) & trained) - seen
        seen |= own
        uses.append(sum(_size(x) for x in own))
    return uses


def _whole(
    function: Any, positional: tuple[Any, ...], named: dict[str, Any], repeats: int, warm_up: int
) -> tuple[Timing, Timing]:
    """Time the forward and the backward pass of the whole function."""
    import jax

    def forward(weights: Any, others: Any, keywords: Any) -> Any:
        return jax.vjp(lambda own: function(own, *others, **keywords), weights)

    run = jax.jit(forward)
    outputs, back = run(positional[0], positional[1:], named)
    forward_timing = Timing.of(samples(
        lambda: jax.block_until_ready(run(positional[0], positional[1:], named)), repeats, warm_up
    ))  # fmt: skip
    gradients = jax.tree.map(_gradient_of, outputs)
    pull = jax.jit(lambda pulled, given: pulled(given))
    jax.block_until_ready(pull(back, gradients))
    behind = Timing.of(
        samples(lambda: jax.block_until_ready(pull(back, gradients)), repeats, warm_up)
    )
    return forward_timing, behind
