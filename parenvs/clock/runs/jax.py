"""Runs a plan on virtual devices of JAX, or on GPUs (extra ``jax``).

What runs is the module that the plan's graph was read from; the model gives its arguments.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenvs.clock.calibration import Calibration
from parenvs.clock.runs.comparison import Run, States, nudged, traffic_of
from parenvs.clock.runs.pairing import Pairing, masters
from parenvs.clock.runs.prediction import on_machine, seconds_of
from parenvs.clock.timer import Timing
from parenvs.clock.xla.devices import devices, with_devices
from parenvs.errors import ParenvsError, need_extra
from parenvs.exports.compilation import callable_of, collectives_of
from parenvs.exports.jax import partition_spec
from parenvs.exports.stages import layout_of
from parenvs.graph.graph import Graph, Role
from parenvs.graph.layout import Layout, Spec
from parenvs.graph.python_source import jax_function
from parenvs.instances import load_graph
from parenvs.shardy.verify import module_for

_SEED, _SCALE = 0, 0.02
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def run(
    file: str | os.PathLike[str],
    plan: Any,
    source: str,
    arguments: str | None,
    steps: int,
    calibration: Calibration | None,
    kind: str,
    where: str,
    loss: str | None = None,
) -> Run:
    """Run a plan that says how a step is laid out; see ``parenvs.clock.runs.run``.

    Raises:
        ParenvsError: JAX is missing, the plan cannot be exported, the model's arguments are not
            those of the plan, it is not to be told which of its outputs the loss is, or the
            calibration is of other devices.
    """
    with need_extra("jax", "running a plan"):
        import jax  # noqa: F401
    graph = load_graph(plan.instance)
    layout = layout_of(plan, graph)
    layout.check_even()
    proto = module_for(graph, plan).proto
    function, positional, named = jax_function(source, arguments, parts=True)
    leaves_of(graph, source, positional, named)
    pairing = Pairing.of(graph, layout.taken_places, function, positional, named)
    feeds = pairing.feeds
    values, notes = values_of(graph, source, arguments, feeds)
    if not feeds:
        notes.append("the model updates nothing: it is no training step, and all losses are equal")
    stale = pairing.stale(graph)
    if stale:
        more = f" and {len(stale) - 3} more" if len(stale) > 3 else ""
        notes.append(
            f"the step returns no new {', '.join(stale[:3])}{more}: each begins with the old ones"
        )
    loss_output = pairing.loss(graph, loss)
    timed = None if calibration is None else on_machine(calibration, plan, kind, where)
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0
    request = {**layout.to_json(), "feeds": feeds, "loss": loss_output}
    given = (request, proto, values, steps, kind)
    found = with_devices(train, kind, layout.devices, given)
    expected = layout.expected()
    on_cpus = kind == "cpu"  # where XLA widens half precision
    reduced = (expected.cpu_bytes if on_cpus else expected.bytes) * layout.devices
    traffic = {"all-reduce": reduced} if reduced else {}
    held = expected.cpu_peak_bytes if on_cpus else expected.peak_bytes
    mesh = " x ".join(f"{axis.name} {axis.size}" for axis in layout.axes if axis.size > 1)
    return Run(
        plan=os.fspath(file),
        words=mesh or "one device",
        devices=layout.devices,
        losses=tuple(found["losses"]),
        single=tuple(found["single"]),
        step=Timing.of(found["step"]),
        single_step=Timing.of(found["single_step"]),
        seconds=None if timed is None else seconds_of(timed, graph),
        traffic=traffic_of([found["traffic"]] * layout.devices, traffic),
        memory=(found["peak_bytes"],) * layout.devices,
        predicted_memory=(held,) * layout.devices,
        load=load,
        states=_states(graph, found) if feeds else None,
        loss=pairing.words(loss_output),
        notes=(*notes, *layout.notes, *_zero_note(layout)),
    )


def values_of(
    graph: Graph, source: str, arguments: str | None, feeds: Mapping[int, int]
) -> tuple[list[np.ndarray], list[str]]:
    """Return the arguments of a step as arrays, in the order of the graph's inputs, and notes.

    Arguments that are shapes get values: normal ones; zeros where they are whole numbers or the
    optimiser's, whose copies of weights are equal to them; ones where they are statistics.

    Raises:
        ParenvsError: they are not the arguments that the graph has.
    """
    import jax

    _, positional, named = jax_function(source, arguments, parts=True)
    leaves = leaves_of(graph, source, positional, named)
    shapes = [graph.shape(tensor) for tensor in graph.parameter_tensor.tolist()]
    random = np.random.default_rng(_SEED)
    copied = masters(graph, feeds)
    values: list[np.ndarray] = []
    drawn = 0
    for number, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
        if _is_key(leaf):
            is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
            drawn += is_shape
            key = np.zeros(shape, np.uint32) if is_shape else jax.random.key_data(leaf)
            values.append(np.asarray(key))
            continue
        if isinstance(leaf, jax.ShapeDtypeStruct):
            drawn += 1
            role = graph.parameter_role[number]
            made = np.zeros(shape)  # whole numbers, and the optimiser's arrays
            if role == Role.STATISTICS:
                made = np.ones(shape)  # of variances, too
            elif role != Role.OPTIMISER and str(leaf.dtype) in _FLOATS:
                made = _SCALE * random.standard_normal(shape)
            values.append(np.asarray(made).astype(leaf.dtype))
        else:
            values.append(np.asarray(leaf))
    for number, weight in copied.items():
        if isinstance(leaves[number], jax.ShapeDtypeStruct):
            values[number] = values[weight].astype(values[number].dtype)
    if not drawn:
        return values, []
    more = "; the optimiser's are zeros" if Role.OPTIMISER in graph.parameter_role else ""
    return values, [f"{drawn} arguments are shapes, and were given values{more}"]


def leaves_of(graph: Graph, source: str, positional: Any, named: Any) -> list[Any]:
    """Return the arrays or shapes of arguments.

    Raises:
        ParenvsError: they are not those that the graph has as inputs.
    """
    import jax

    leaves = jax.tree.leaves((positional, named))
    if len(leaves) != len(graph.parameter_tensor):
        raise ParenvsError(
            f"--args: {source} is of another model than the plan: {len(leaves)} arrays, and the "
            f"plan's step has {len(graph.parameter_tensor)}"
        )
    for path, leaf, tensor in zip(graph.paths, leaves, graph.parameter_tensor, strict=True):
        shape, found = graph.shape(int(tensor)), tuple(np.shape(leaf))
        if found != shape and not _is_key(leaf):
            raise ParenvsError(
                f"--args: {source} is of another model than the plan: {path or 'an input'} has the "
                f"shape {found}, and was planned as {shape}"
            )
    return leaves


def _is_key(leaf: Any) -> bool:
    """Whether an array is a random key of JAX's own type, which hides its words."""
    import jax

    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def train(
    request: dict[str, Any], proto: bytes, values: Sequence[np.ndarray], steps: int, kind: str
) -> dict[str, Any]:
    """Train on one device, then as sharded; in a process with devices."""
    import jax

    call, _ = callable_of(proto)
    sizes, names = zip(*[(count, name) for name, count in request["mesh"]], strict=True)
    own = devices(kind, int(np.prod(sizes)))
    mesh = jax.sharding.Mesh(np.array(own).reshape(sizes), names)

    def sharded(specs: Sequence[Spec]) -> list[Any]:
        return [jax.NamedSharding(mesh, partition_spec(tuple(spec))) for spec in specs]

    single = jax.jit(call, keep_unused=True)
    state = sorted(request["feeds"].values())

    def alone(values: Sequence[np.ndarray]) -> tuple[list[float], list[float], dict[int, Any]]:
        given = [jax.device_put(x, own[0]) for x in values]
        losses, seconds = _curve(single, given, steps, request)
        return losses, seconds, {number: np.asarray(given[number]) for number in state}

    losses, seconds, wanted = alone(values)
    moved = [
        nudged(x, number) if number in state and str(x.dtype) in _FLOATS else x
        for number, x in enumerate(values)
    ]
    again = alone(moved)[2]
    placed = sharded(request["inputs"])
    jitted = jax.jit(
        call,
        in_shardings=tuple(placed),
        out_shardings=sharded(request["outputs"]),
        donate_argnums=tuple(request["donated"]),
        keep_unused=True,
    )
    first = [jax.device_put(x, s) for x, s in zip(values, placed, strict=True)]
    compiled = jitted.lower(*first).compile()
    curve, taken = _curve(compiled, first, steps, request)
    memory: Any = compiled.memory_analysis()
    return {
        "losses": curve,
        "single": losses,
        "start": {number: np.asarray(values[number]) for number in state},
        "wanted": wanted,
        "again": again,
        "state": {number: np.asarray(first[number]) for number in state},
        "step": taken,
        "single_step": seconds,
        "traffic": {
            name: (found.arrays, found.bytes)
            for name, found in collectives_of(compiled.as_text() or "").items()
        },
        "peak_bytes": float(
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        ),
    }


def _curve(
    step: Any, values: list[Any], steps: int, request: dict[str, Any]
) -> tuple[list[float], list[float]]:
    """Losses of steps, and the seconds of each but the first, which compiles."""
    import jax

    losses, seconds = [], []
    for _ in range(1 + steps):
        begin = time.perf_counter()
        made = step(*values)
        jax.block_until_ready(made)
        seconds.append(time.perf_counter() - begin)
        losses.append(float(made[request["loss"]]))
        for output, number in request["feeds"].items():
            values[number] = made[output]
    return losses, seconds[1:]


def _states(graph: Graph, found: dict[str, Any]) -> States:
    """The state that both runs end with, by name."""
    count = Counter(graph.paths)  # weights and their moments may have the same
    names = [
        path if path and count[path] == 1 else f"{path or 'input'} (input {number})"
        for number, path in enumerate(graph.paths)
    ]
    return States.of(
        *(
            {names[number]: value for number, value in found[key].items()}
            for key in ("start", "wanted", "again", "state")
        )
    )


def _zero_note(layout: Layout) -> tuple[str, ...]:
    """What is not predicted of states that replicas share."""
    if not layout.zero:
        return ()
    return ("zero: XLA gathers and exchanges shared states as it likes; no bytes are predicted",)
