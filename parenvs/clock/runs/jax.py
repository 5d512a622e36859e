"""Runs a plan on virtual devices of JAX, or on GPUs (extra ``jax``).

What runs is the module that the plan's graph was read from; the model gives its arguments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.clock.calibration import Calibration
from parenvs.clock.runs.comparison import Run, traffic_of
from parenvs.clock.runs.prediction import on_machine, seconds_of
from parenvs.clock.timer import Timing
from parenvs.clock.xla.devices import devices, with_devices
from parenvs.errors import ParenvsError, need_extra, shown
from parenvs.exports.compilation import callable_of, collectives_of
from parenvs.exports.jax import partition_spec
from parenvs.exports.layout import layout_of
from parenvs.graph.graph import Graph
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
) -> Run:
    """Run a plan that says how a step is laid out; see ``parenvs.clock.runs.run``.

    Raises:
        ParenvsError: JAX is missing, the plan cannot be exported, the model's arguments are not
            those of the plan, or the calibration is of other devices.
    """
    with need_extra("jax", "running a plan"):
        import jax  # noqa: F401
    graph = load_graph(plan.instance)
    layout = layout_of(plan, graph)
    layout.check_even()
    proto = module_for(graph, plan).proto
    values, notes = values_of(graph, source, arguments)
    targets = dict(enumerate(graph.parameter_tensor.tolist()))
    inputs = {tensor: number for number, tensor in targets.items()}
    feeds = {
        number: inputs[layout.taken_places[tensor]]
        for number, tensor in enumerate(graph.outputs.tolist())
        if tensor in layout.taken_places
    }
    if not feeds:
        notes.append("the model updates nothing: it is no training step, and all losses are equal")
    loss = _loss(graph, feeds)
    timed = None if calibration is None else on_machine(calibration, plan, kind, where)
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else -1.0
    request = {**layout.to_json(), "feeds": feeds, "loss": loss}
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
        notes=(*notes, *layout.notes, *_zero_note(layout)),
    )


def values_of(
    graph: Graph, source: str, arguments: str | None
) -> tuple[list[np.ndarray], list[str]]:
    """Return the arguments of a step as arrays, in the order of the graph's inputs, and notes.

    Arguments that are shapes get values: normal ones, and zeros where they are whole numbers.

    Raises:
        ParenvsError: they are not the arguments that the graph has.
    """
    import jax

    _, positional, named = jax_function(source, arguments)
    leaves = jax.tree.leaves((positional, named))
    shapes = [graph.shape(tensor) for tensor in graph.parameter_tensor.tolist()]
    if len(leaves) != len(shapes):
        raise ParenvsError(
            f"--args: {source} is of another model than the plan: {len(leaves)} arrays, and the "
            f"plan's step has {len(shapes)}"
        )
    random = np.random.default_rng(_SEED)
    values, drawn = [], 0
    for path, leaf, shape in zip(graph.paths, leaves, shapes, strict=True):
        if tuple(np.shape(leaf)) != shape:
            raise ParenvsError(
                f"--args: {source} is of another model than the plan: {path or 'an input'} has the "
                f"shape {tuple(np.shape(leaf))}, and was planned as {shape}"
            )
        if isinstance(leaf, jax.ShapeDtypeStruct):
            drawn += 1
            is_float = str(leaf.dtype) in _FLOATS
            made = _SCALE * random.standard_normal(shape) if is_float else np.zeros(shape)
            values.append(np.asarray(made).astype(leaf.dtype))
        else:
            values.append(np.asarray(leaf))
    notes = [f"{drawn} arguments are shapes, and were given values"] if drawn else []
    return values, notes


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
    losses, seconds = _curve(single, [jax.device_put(x, own[0]) for x in values], steps, request)
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


def _loss(graph: Graph, feeds: dict[int, int]) -> int:
    """The number of the output that is the loss: the first single number that updates nothing.

    Raises:
        ParenvsError: there is none.
    """
    for number, tensor in enumerate(graph.outputs.tolist()):
        if number not in feeds and graph.shape(tensor) == ():
            return number
    raise ParenvsError(
        f"{shown(graph.name)}: the step returns no loss (a single number); return it, and plan anew"
    )


def _zero_note(layout: Layout) -> tuple[str, ...]:
    """What is not predicted of states that replicas share."""
    if not layout.zero:
        return ()
    return ("zero: XLA gathers and exchanges shared states as it likes; no bytes are predicted",)
