"""Measures the layers of a JAX function (extra ``jax``): seconds, and bytes at their borders.

Layers are named scopes (``jax.named_scope``): the function is traced, and its operations are cut
into runs of equal outermost scope, or of the next one inside if all have the same. What stands
between two scopes belongs to the one in front; in front of the first, to that one. Each layer runs
alone, compiled. The first argument holds the weights, all others are data.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parenvs.clock import compilation, members
from parenvs.clock.calibration import Calibration
from parenvs.clock.comparison import Run, States, nudged, on_machine, seconds_of, traffic_of
from parenvs.clock.members import Layers, Timing
from parenvs.clock.pairing import Pairing, masters
from parenvs.cluster import COLLECTIVES
from parenvs.errors import ParenvsError, ProfileError, listed, one_line
from parenvs.exports.stages import layout_of
from parenvs.files import StrPath
from parenvs.graph.graph import Graph, Role
from parenvs.graph.python_source import jax_function
from parenvs.instances import load_graph
from parenvs.shardy.verify import module_for


def with_devices(work: Callable[..., Any], kind: str, count: int, given: Sequence[Any] = ()) -> Any:
    """Return ``work(*given)`` of a process in which JAX has devices; see ``run_members``.

    On ``"cpu"``, ``count`` virtual devices share the cores; on ``"cuda"`` they are GPUs.

    Raises:
        ParenvsError: there are no such devices, or the process failed.
    """
    members.check_devices(kind, 0, "JAX", 0)
    environment = compilation.virtual_devices(count) if kind == "cpu" else {}
    (answer,) = members.run_members(work, [given], environment=environment)
    return answer


def devices(kind: str, count: int) -> list[Any]:
    """Return the first ``count`` devices of this process.

    Raises:
        ParenvsError: there are fewer.
    """
    try:
        available = jax.devices("gpu" if kind == "cuda" else "cpu")
    except RuntimeError:
        available = []
    members.check_devices(kind, count, f"JAX {jax.__version__}", len(available))
    return available[:count]


# Operations whose bodies are opened; `checkpoint` is not measured as recomputing.
_INLINED = ("pjit", "jit", "closed_call", "core_call", "remat", "checkpoint")


@dataclass
class _Layer:
    """A run of operations of one scope.

    Attributes:
        reads: variables that it takes from outside, in order.
        makes: variables that later layers or the function's results need.
    """

    name: str
    operations: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    makes: list[Any] = field(default_factory=list)


def profiled(
    source: str, arguments: str | None, name: str, repeats: int, warm_up: int, device: str
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
        ParenvsError: there is no such device.
    """
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
    positional = jax.tree.map(_with_values, tuple(positional))
    named = jax.tree.map(_with_values, dict(named or {}))
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
    trained = {x for x in traced.jaxpr.invars[:weights] if _is_floating(x)}
    operations, results = _flat_operations(traced.jaxpr, values)
    layers = _layers(operations, results)
    if len(layers) < 2:
        raise ProfileError(
            f"profile {name}: {len(layers)} named scopes, and a chain needs at least two; give "
            "layers names by jax.named_scope, and write loops over them out"
        )
    needing = set(trained)
    time = partial(_timing, repeats, warm_up)
    measured = [_timed(layer, values, needing, trained, time) for layer in layers]
    timings, activations = zip(*measured, strict=True)
    data = [x for x in jax.tree.leaves((positional[1:], named)) if np.ndim(x)]

    def forward(weights: Any, others: Any, keywords: Any) -> Any:
        return jax.vjp(lambda params: function(params, *others, **keywords), weights)

    run, given = jax.jit(forward), (positional[0], positional[1:], named)
    outputs, pullback = run(*given)
    whole = time(run, *given), _backward(time, pullback, outputs)
    return Layers.of(
        name,
        [layer.name for layer in layers],
        timings,
        whole,
        int(np.shape(data[0])[0]) if data else 1,
        cut_bytes=_cut_bytes(layers, results),
        parameter_bytes=members.first_uses(
            {x: _size(x) for x in layer.reads if x in trained} for layer in layers
        ),
        resident_bytes=activations,
    )


def _with_values(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        # 0.02 is the usual deviation of initial weights, so activations stay finite.
        return 0.02 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _is_floating(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.floating))


def _flat_operations(jaxpr: Any, values: dict[Any, Any]) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Operations with their scopes, calls of jitted functions opened; and the results."""
    equations: list[tuple[str, Any]] = []

    def walk(body: Any, scope: str, value_of: dict[Any, Any]) -> dict[Any, Any]:
        for operation in body.eqns:
            path = "/".join(filter(None, [scope, str(operation.source_info.name_stack)]))
            inputs = [value_of.get(x, x) if _is_variable(x) else x for x in operation.invars]
            inner = operation.params.get("jaxpr")
            if operation.primitive.name in _INLINED and inner is not None:
                inner_values = getattr(inner, "consts", ())
                inner = getattr(inner, "jaxpr", inner)
                values.update(zip(inner.constvars, inner_values, strict=True))
                results = walk(inner, path, dict(zip(inner.invars, inputs, strict=True)))
                for outside, x in zip(operation.outvars, inner.outvars, strict=True):
                    value_of[outside] = results.get(x, x) if _is_variable(x) else x
            else:
                equations.append((path, operation.replace(invars=inputs)))
        return value_of

    value_of = walk(jaxpr, "", {})
    return equations, [value_of.get(x, x) if _is_variable(x) else x for x in jaxpr.outvars]


def _is_variable(x: Any) -> bool:
    return not hasattr(x, "val")


def _layers(operations: Sequence[tuple[str, Any]], results: Sequence[Any]) -> list[_Layer]:
    """Cut operations into runs of equal scope, and find what each run reads and makes."""
    paths = [[part for part in scope.split("/") if part] for scope, _ in operations]
    # A scope that encloses everything, such as the model's name, tells no layers apart: go inside.
    depth = 0
    scoped = [path for path in paths if path]
    while scoped and len({path[depth] for path in scoped if len(path) > depth}) == 1:
        if not any(len(path) > depth + 1 for path in scoped):
            break
        depth += 1
    layers: list[_Layer] = []
    run_count = Counter[str]()
    # Operations in front of the first scope wait for it; later ones outside join the layer before.
    pending: list[Any] = []
    for path, (_, operation) in zip(paths, operations, strict=True):
        name = path[depth] if len(path) > depth else ""
        if name and (not layers or layers[-1].name.split("#")[0] != name):
            run_count[name] += 1
            suffix = f"#{run_count[name]}" if run_count[name] > 1 else ""
            layers.append(_Layer(name + suffix, pending))
            pending = []
        (layers[-1].operations if layers else pending).append(operation)
    # Backwards, as what a layer makes is what later ones read.
    used_later = set(filter(_is_variable, results))
    for layer in reversed(layers):
        outputs = [x for operation in layer.operations for x in operation.outvars]
        produced = set(outputs)
        reads = dict.fromkeys(
            x for operation in layer.operations for x in operation.invars
            if _is_variable(x) and x not in produced
        )  # fmt: skip
        layer.reads = list(reads)
        layer.makes = [x for x in dict.fromkeys(outputs) if x in used_later]
        used_later |= set(reads)
    return layers


def _timed(
    layer: _Layer,
    values: dict[Any, Any],
    needing: set[Any],
    trained: set[Any],
    time: Callable[..., Timing],
) -> tuple[tuple[Timing, Timing], int]:
    """Time a layer alone, add its results to the values; and the bytes that it keeps.

    ``needing`` has the variables with gradients; the layer's are added.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of names for debuggers, left out
        jaxpr = core.Jaxpr([], layer.reads, layer.makes, layer.operations)
    body = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))
    inputs = [values[x] for x in layer.reads]
    active = [k for k, x in enumerate(layer.reads) if x in needing and _is_floating(x)]

    def forward(given: list[Any]) -> Any:
        def part(*arguments: Any) -> list[Any]:
            full = list(given)
            for k, value in zip(active, arguments, strict=True):
                full[k] = value
            return body(*full)

        return jax.vjp(part, *[given[k] for k in active]) if active else (body(*given), None)

    run = jax.jit(forward)
    outputs, pullback = run(inputs)
    values.update(zip(layer.makes, outputs, strict=True))
    forward_timing = time(run, inputs)
    if pullback is None or not any(_is_floating(x) for x in layer.makes):
        return (forward_timing, Timing(0.0, 0.0, 0.0, forward_timing.repeats)), 0
    needing |= {x for x in layer.makes if _is_floating(x)}
    backward_timing = _backward(time, pullback, outputs)
    traced = jax.make_jaxpr(forward)(inputs).jaxpr
    # The weights themselves stay in memory anyway.
    weights = {x for x, y in zip(traced.invars, layer.reads, strict=True) if y in trained}
    residuals = {x for x in traced.outvars[len(outputs) :] if _is_variable(x)} - weights
    return (forward_timing, backward_timing), sum(map(_size, residuals))


def _timing(repeats: int, warm_up: int, run: Callable[..., Any], *given: Any) -> Timing:
    return Timing.of(members.samples(partial(_run_to_end, run, *given), repeats, warm_up))


def _backward(time: Callable[..., Timing], pullback: Any, outputs: Any) -> Timing:
    gradients = jax.tree.map(_gradient_of, outputs)
    apply = jax.jit(lambda function, given: function(given))
    _run_to_end(apply, pullback, gradients)
    return time(apply, pullback, gradients)


def _gradient_of(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.floating):
        return jnp.ones_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


def _size(variable: Any) -> int:
    return int(np.prod(variable.aval.shape, initial=1)) * variable.aval.dtype.itemsize


def _cut_bytes(layers: Sequence[_Layer], results: Sequence[Any]) -> list[int]:
    """Bytes that cross a cut behind each layer: what later ones read, and the results."""
    produced = [set(layer.makes) for layer in layers]
    sizes = []
    for number in range(len(layers)):
        before = set().union(*produced[: number + 1])
        later = {x for layer in layers[number + 1 :] for x in layer.reads}
        later |= set(filter(_is_variable, results))
        sizes.append(sum(_size(x) for x in before & later))
    return sizes


_TYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
_AXIS = "device"


def measure(
    kind: str,
    count: int,
    shapes: Sequence[members.Shape],
    attended: Sequence[tuple[int, ...]],
    copied: Sequence[int],
    sizes: Sequence[int],
    groups: Sequence[int],
    repeats: int,
) -> dict[str, Any]:
    """Measure kernels on all devices at once, then collectives of growing groups.

    Args:
        kind: ``"cpu"`` or ``"cuda"``.
        count: number of devices.
        shapes: of products.
        attended: of attention, which is not measured here.
        copied: bytes of the arrays that are copied on each device.
        sizes: bytes of the arrays of collectives.
        groups: devices of the collectives.
        repeats: runs that count.

    Returns:
        See ``parenvs.clock.kernels.measure``; and ``"device"``, the name, and ``"memory"``,
        bytes of a device or None.
    """
    targets = devices(kind, count)

    def prepare(precision: str, shape: members.Shape) -> Callable[[], Any]:
        _, _, m, k, n = shape  # XLA lays arrays out as it likes
        words = {"tf32": "tensorfloat32", "fp32": "highest"}.get(precision)
        a, b = (_sharded_ones(targets, size, _TYPES[precision]) for size in ((m, k), (k, n)))
        return partial(_run_to_end, _on_all(targets, partial(jnp.matmul, precision=words)), a, b)

    time = partial(members.repeated, repeats=repeats, warm_up=1)
    rates, missing = members.timed_products(_TYPES, shapes, kind, prepare, time)
    seconds: dict[tuple[str, int, int], list[float]] = {}
    for group in groups:
        for name in COLLECTIVES:
            if name == "send" and group > 2:
                continue
            for size in sizes:
                exact = members.sized(size, group)
                try:
                    run = collective(name, exact, targets[:group])
                    seconds[name, group, exact] = members.samples(run, repeats, 3)
                except Exception as error:  # of any kind, from within XLA
                    missing[f"{name} of {group}"] = one_line(error)
                    break
    stats = targets[0].memory_stats() or {}
    return {
        "products": rates,
        "attention": {},
        "copies": {size: _copies(targets, size, repeats) for size in copied},
        "collectives": seconds,
        "missing": missing,
        "device": targets[0].device_kind,
        "memory": stats.get("bytes_limit"),
    }


def collective(name: str, size: int, targets: Sequence[Any]) -> Callable[[], Any]:
    """Return what runs a collective once, on arrays that are made beforehand.

    Args:
        name: one of ``COLLECTIVES``; a send is from the first device to the second.
        size: bytes as the methods of ``Links`` take them: of a reduction what each device has, of
            an all-gather the result.
        targets: the devices.
    """
    whole = size // members.ELEMENT
    length = whole // len(targets) if name == "all-gather" else whole
    bodies: dict[str, Callable[[Any], Any]] = {
        "send": lambda x: lax.ppermute(x, _AXIS, [(0, 1)]),
        "all-reduce": lambda x: lax.psum(x, _AXIS),
        "all-gather": lambda x: lax.all_gather(x, _AXIS, tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, _AXIS, tiled=True),
        "all-to-all": lambda x: lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
    }
    array = _sharded_ones(targets, (length,), "float32")
    return partial(_run_to_end, _on_all(targets, bodies[name]), array)


def _run_to_end(run: Callable[..., Any], *given: Any) -> None:
    jax.block_until_ready(run(*given))


def _copies(targets: Sequence[Any], size: int, repeats: int) -> list[float]:
    array = _sharded_ones(targets, (size // members.ELEMENT,), "float32")
    run = _on_all(targets, lambda x: x + 1)  # a plain copy would be left out
    return members.repeated(partial(_run_to_end, run, array), repeats, 1)


def _sharded_ones(targets: Sequence[Any], shape: tuple[int, ...], name: str) -> Any:
    kind = NamedSharding(Mesh(np.array(targets), (_AXIS,)), PartitionSpec(_AXIS))
    whole = (shape[0] * len(targets), *shape[1:])
    return jax.block_until_ready(
        jax.jit(lambda: jnp.ones(whole, jnp.dtype(name)), out_shardings=kind)()
    )


def _on_all(targets: Sequence[Any], body: Callable[..., Any]) -> Callable[..., Any]:
    part = PartitionSpec(_AXIS)
    mesh = Mesh(np.array(targets), (_AXIS,))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=part, out_specs=part))


_SEED, _SCALE = 0, 0.02
_ZERO = "zero: XLA gathers and exchanges shared states as it likes; no bytes are predicted"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def run(
    file: StrPath,
    plan: Any,
    source: str,
    arguments: str | None,
    steps: int,
    calibration: Calibration | None,
    kind: str,
    where: str,
    loss: str | None = None,
) -> Run:
    """Run a plan that says how a step is laid out; see ``parenvs.clock.run``.

    Raises:
        ParenvsError: the plan cannot be exported, the model's arguments are not those of the plan,
            it is not to be told which of its outputs the loss is, or the calibration is of other
            devices.
    """
    graph = load_graph(plan.instance)
    layout = layout_of(plan, graph)
    layout.check_even()
    proto = module_for(graph, plan).proto
    function, positional, named = jax_function(source, arguments, parts=True)
    leaves = leaves_of(graph, source, positional, named)
    pairing = Pairing.of(graph, layout.updated_inputs, function, positional, named)
    feeds = pairing.feeds
    values, notes = values_of(graph, leaves, feeds)
    if not feeds:
        notes.append("the model updates nothing: it is no training step, and all losses are equal")
    stale = pairing.stale(graph)
    if stale:
        notes.append(f"the step returns no new {listed(stale)}: each begins with the old ones")
    loss_output = pairing.loss(graph, loss)
    timed = None if calibration is None else on_machine(calibration, plan, kind, where)
    load = members.system_load()
    request = {**layout.to_json(), "feeds": feeds, "loss": loss_output}
    measured = with_devices(train, kind, layout.devices, (request, proto, values, steps, kind))
    expected = layout.expected()
    on_cpus = kind == "cpu"  # where XLA widens half precision
    # All devices together, as the counted bytes are.
    reduced = (expected.cpu_bytes if on_cpus else expected.bytes) * layout.devices
    traffic = {"all-reduce": reduced} if reduced else {}
    predicted_bytes = expected.cpu_peak_bytes if on_cpus else expected.peak_bytes
    mesh = " x ".join(f"{axis.name} {axis.size}" for axis in layout.axes if axis.size > 1)
    return Run(
        plan=os.fspath(file),
        words=mesh or "one device",
        devices=layout.devices,
        losses=tuple(measured["losses"]),
        single=tuple(measured["single"]),
        step=Timing.of(measured["step"]),
        single_step=Timing.of(measured["single_step"]),
        seconds=None if timed is None else seconds_of(timed, graph),
        traffic=traffic_of([measured["traffic"]] * layout.devices, traffic),
        memory=(measured["peak_bytes"],) * layout.devices,
        predicted_memory=(predicted_bytes,) * layout.devices,
        load=load,
        states=_states(graph, measured) if feeds else None,
        loss=pairing.words(loss_output),
        notes=(*notes, *layout.notes, *((_ZERO,) if layout.zero else ())),
    )


def values_of(
    graph: Graph, leaves: Sequence[Any], feeds: Mapping[int, int]
) -> tuple[list[np.ndarray], list[str]]:
    """Return the arguments of a step as arrays, in the order of the graph's inputs, and notes.

    Arguments that are shapes get values: normal ones; zeros where they are whole numbers or the
    optimizer's, whose copies of weights are equal to them; ones where they are statistics.

    Args:
        graph: the step.
        leaves: its arguments, see ``leaves_of``.
        feeds: number of an output -> number of the input that it feeds.
    """
    random = np.random.default_rng(_SEED)
    shapes = [graph.shape(tensor) for tensor in graph.parameter_tensor.tolist()]
    are_shapes = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    values: list[np.ndarray] = []
    for leaf, shape, is_shape, role in zip(
        leaves, shapes, are_shapes, graph.parameter_role.tolist(), strict=True
    ):
        if _is_key(leaf):
            value = np.zeros(shape, np.uint32) if is_shape else jax.random.key_data(leaf)
        elif not is_shape:
            value = leaf
        else:
            value = np.zeros(shape, leaf.dtype)
            if role == Role.STATISTICS:
                value = np.ones(shape, leaf.dtype)  # of variances, too
            elif role != Role.OPTIMIZER and str(leaf.dtype) in _FLOATS:
                value = (_SCALE * random.standard_normal(shape)).astype(leaf.dtype)
        values.append(np.asarray(value))
    for number, weight in masters(graph, feeds).items():
        if are_shapes[number]:
            values[number] = values[weight].astype(values[number].dtype)
    if not any(are_shapes):
        return values, []
    more = "; the optimizer's are zeros" if Role.OPTIMIZER in graph.parameter_role else ""
    return values, [f"{sum(are_shapes)} arguments are shapes, and were given values{more}"]


def leaves_of(graph: Graph, source: str, positional: Any, named: Any) -> list[Any]:
    """Return the arrays or shapes of arguments.

    Raises:
        ParenvsError: they are not those that the graph has as inputs.
    """
    leaves = jax.tree.leaves((positional, named))
    words = f"--args: {source} is of another model than the plan"
    count = len(graph.parameter_tensor)
    if len(leaves) != count:
        raise ParenvsError(f"{words}: {len(leaves)} arrays, and the plan's step has {count}")
    for path, leaf, tensor in zip(graph.paths, leaves, graph.parameter_tensor, strict=True):
        shape, actual = graph.shape(int(tensor)), tuple(np.shape(leaf))
        if actual != shape and not _is_key(leaf):
            raise ParenvsError(
                f"{words}: {path or 'an input'} has the shape {actual}, and was planned as {shape}"
            )
    return leaves


def _is_key(leaf: Any) -> bool:
    """Whether an array is a random key of JAX's own type, which hides its words."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def train(
    request: dict[str, Any], proto: bytes, values: Sequence[np.ndarray], steps: int, kind: str
) -> dict[str, Any]:
    """Train on one device, then as sharded; in a process with devices."""
    call, _ = compilation.callable_of(proto)
    sizes, names = zip(*[(count, name) for name, count in request["mesh"]], strict=True)
    targets = devices(kind, int(np.prod(sizes)))
    mesh = Mesh(np.array(targets).reshape(sizes), names)
    single = jax.jit(call, keep_unused=True)
    state = sorted(request["feeds"].values())

    def single_run(values: Sequence[np.ndarray]) -> tuple[list[float], list[float], dict[int, Any]]:
        placed = [jax.device_put(x, targets[0]) for x in values]
        losses, seconds = _train_steps(single, placed, steps, request)
        return losses, seconds, {number: np.asarray(placed[number]) for number in state}

    losses, seconds, wanted = single_run(values)
    # The same steps from values moved by their last place show what rounding alone does.
    nudged_values = [
        nudged(x, number) if number in state and str(x.dtype) in _FLOATS else x
        for number, x in enumerate(values)
    ]
    again = single_run(nudged_values)[2]
    jitted, shardings, _ = compilation.sharded_step(call, request, mesh)
    placed_values = [jax.device_put(x, s) for x, s in zip(values, shardings, strict=True)]
    compiled = jitted.lower(*placed_values).compile()
    sharded_losses, step_seconds = _train_steps(compiled, placed_values, steps, request)
    return {
        "losses": sharded_losses,
        "single": losses,
        "start": {number: np.asarray(values[number]) for number in state},
        "wanted": wanted,
        "again": again,
        "state": {number: np.asarray(placed_values[number]) for number in state},
        "step": step_seconds,
        "single_step": seconds,
        "traffic": {
            name: (counts.arrays, counts.bytes)
            for name, counts in compilation.collectives_of(compiled.as_text() or "").items()
        },
        "peak_bytes": float(compilation.peak_bytes(compiled.memory_analysis())),
    }


def _train_steps(
    step: Any, values: list[Any], steps: int, request: dict[str, Any]
) -> tuple[list[float], list[float]]:
    losses, seconds = [], []
    for _ in range(1 + steps):
        begin = time.perf_counter()
        outputs = step(*values)
        jax.block_until_ready(outputs)
        seconds.append(time.perf_counter() - begin)
        losses.append(float(outputs[request["loss"]]))
        # The new state is the input of the next step.
        for output, number in request["feeds"].items():
            values[number] = outputs[output]
    return losses, seconds[1:]


def _states(graph: Graph, measured: dict[str, Any]) -> States:
    count = Counter(graph.paths)  # weights and their moments may have the same
    names = [
        path if path and count[path] == 1 else f"{path or 'input'} (input {number})"
        for number, path in enumerate(graph.paths)
    ]
    arrays = (
        {names[number]: value for number, value in measured[key].items()}
        for key in ("start", "wanted", "again", "state")
    )
    return States.of(*arrays)
