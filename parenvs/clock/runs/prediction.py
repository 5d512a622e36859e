"""What a plan's run should show: seconds of a step, bytes of memory and of each collective.

Bytes of collectives are those of whole arrays, summed over all processes: of an all-gather its
result, of a reduce-scatter its operand. Arrays of one element, the mean of a loss, do not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parenvs.clock.calibration import Calibration
from parenvs.cluster import Cluster
from parenvs.cluster.collectives import Links
from parenvs.core.plan import Plan, judge
from parenvs.core.registry import task_with
from parenvs.core.stages import Step
from parenvs.core.task import Task
from parenvs.errors import ParenvsError
from parenvs.exports.torch import TorchPlan, export
from parenvs.graph.graph import Graph, Role
from parenvs.graph.layout import Layout
from parenvs.machine import cores, processor

ELEMENT = 4
"""Bytes of an element: what runs here is in float32."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a step.

    Attributes:
        seconds: of the step; None if the plan's devices are not those of a calibration.
        memory: bytes on each device, by rank; empty if nothing is predicted.
        traffic: kind of a collective -> bytes of its arrays over all processes.
        adam: whether the step updates by Adam, whose states the memory counts.
        updates: whether the seconds count the update.
        notes: what is left out, in sentences.
        measured: bytes of the weights of each layer of a measured chain, by name.
    """

    seconds: float | None
    memory: tuple[float, ...]
    traffic: dict[str, float]
    adam: bool = False
    updates: bool = False
    notes: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Traced:
    """What the module that runs says of the bytes of a step.

    Attributes:
        shapes: of its parameters, by name: those of weights that are several in one are planned
            with a dimension for the parts.
        sent: bytes that stages send each other, both ways, over all processes: with masks,
            positions and labels, which a trace of the module passes from stage to stage; None of
            one stage.
        traffic: of a step that was rehearsed with collectives that send nothing, as in
            ``Prediction``: DTensor gathers and sums what the plan's placements leave to it; None if
            it was not.
        notes: why it was not, in sentences.
    """

    shapes: Mapping[str, tuple[int, ...]]
    sent: float | None = None
    traffic: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()


def on_machine(calibration: Calibration, plan: Any, kind: str, where: str) -> Any:
    """Return a plan on the devices of a calibration.

    Args:
        calibration: of this machine.
        plan: the plan.
        kind: ``"cpu"`` or ``"cuda"``, of the devices that will run it.
        where: the calibration's file.

    Raises:
        ParenvsError: the calibration is of other devices, or of fewer.
    """
    told = calibration.provenance
    device = calibration.cluster.device.name
    if (device == "cpu") != (kind == "cpu"):
        raise ParenvsError(
            f"--calibration {where}: a calibration of {device}, and the plan runs on {kind}; run "
            f"parenvs calibrate --device {kind}"
        )
    own: dict[str, Any] = {"processor": processor(), "cores": cores()}
    for key, here in own.items():
        if key in told and told[key] != here:
            raise ParenvsError(
                f"--calibration {where}: a calibration of another machine ({key} {told[key]}, here "
                f"{here}); run parenvs calibrate here"
            )
    if calibration.cluster.devices < plan.cluster.devices:
        raise ParenvsError(
            f"--calibration {where}: of {calibration.cluster.devices} devices, and the plan has "
            f"{plan.cluster.devices}; run parenvs calibrate --processes {plan.cluster.devices}"
        )
    return replace(plan, cluster=calibration.cluster.part(plan.cluster.devices))


def of_plan(
    plan: Plan,
    graph: Graph | None,
    calibration: Calibration | None,
    kind: str,
    where: str = "",
    trace: Callable[[TorchPlan], Traced] | None = None,
) -> tuple[TorchPlan, Prediction]:
    """Return a plan in PyTorch's words, and what is predicted of its run.

    Args:
        plan: a plan of a task with a layout or with stages; also of a measured chain.
        graph: what it was made for (default: the plan's instance).
        calibration: of this machine, or None.
        kind: of the devices that will run it.
        where: the calibration's file.
        trace: asks the module that runs, where it says more than its graph, of stages, ZeRO and
            tensor parallelism; a measured chain knows its own.

    Raises:
        ParenvsError: the plan cannot be run, or the calibration is of other devices.
    """
    found, layout, stages = export(plan, graph, measured=True)
    run = plan if stages is None else stages.run
    target = graph if layout is None else layout.graph
    target = target if stages is None else stages.target
    seconds, cluster = None, run.cluster
    if calibration is not None:
        timed = on_machine(calibration, run, kind, where)
        seconds, cluster = seconds_of(timed, target), timed.cluster
    step = task_with(plan, Task.step).step(run, target, ELEMENT)
    ranks = found.data * found.model
    traffic: dict[str, float] = defaultdict(float)
    shared = found.pipe > 1 or found.zero or found.model > 1
    told = trace(found) if trace and shared and not step.measured else Traced({})
    if layout is not None and stages is None:
        for axis in range(len(layout.axes)):
            for key, size in layout.rank_bytes(axis).items():
                traffic[key] += size * ranks
    else:
        traffic["send"] += step.sent if told.sent is None else told.sent
        own = {x: shape for x, shape in told.shapes.items() if x not in found.placements}
        known = replace(found, shapes={**found.shapes, **own})
        _add_gradients(traffic, known, layout, step)
    if layout is not None and stages is not None and found.model > 1:
        scale = found.batch / layout.graph.batch_size * found.model
        for key, size in layout.rank_bytes(len(layout.axes) - 1).items():
            traffic[key] += size * scale
    notes = (*found.notes, *told.notes)
    if told.traffic is not None:
        more = {key: told.traffic.get(key, 0.0) - traffic[key] for key in {*told.traffic, *traffic}}
        longer = _collective_seconds({key: x / ranks for key, x in more.items()}, cluster, found)
        if any(more.values()):
            notes += (
                f"PyTorch's tensors exchange {sum(told.traffic.values()):,.0f} bytes a step where "
                f"the plan counts {sum(traffic.values()):,.0f}: {longer:.3g} s more on {cluster}",
            )
        seconds = None if seconds is None else seconds + longer
        traffic = dict(told.traffic)
    return found, Prediction(
        seconds,
        memory=tuple(held for held in step.memory for _ in range(ranks)),
        traffic={key: float(size) for key, size in sorted(traffic.items()) if size},
        adam=step.adam,
        updates=step.updates,
        notes=notes,
        measured=step.measured,
    )


def seconds_of(timed: Plan, target: Any) -> float | None:
    """Return the seconds of a step as the judge has them; None of a plan that cannot be run.

    Args:
        timed: the plan on the devices that run it.
        target: what it is judged on.
    """
    seconds = float(judge(timed, target).step_seconds)
    return seconds if math.isfinite(seconds) else None


def _collective_seconds(sizes: Mapping[str, float], cluster: Cluster, found: TorchPlan) -> float:
    """Seconds of collectives among tp ranks, by kind and bytes of whole arrays on each rank."""
    links = Links(cluster.devices_per_server, cluster.intra_bw, cluster.device_nic_bw)
    each: dict[str, Callable[..., Any]] = {
        "all-reduce": links.all_reduce, "all-to-all": links.all_to_all,
    }  # fmt: skip
    return float(
        sum(each.get(key, links.all_gather)(size, found.model, 1) for key, size in sizes.items())
    )


def _add_gradients(
    traffic: dict[str, float], found: TorchPlan, layout: Layout | None, step: Step
) -> None:
    """Add what replicas of stages exchange of their weights and gradients."""
    if found.data == 1:
        return
    ranks = found.data * found.model
    trained = [] if layout is None else [
        path.replace("/", ".")
        for path, role in zip(layout.graph.paths, layout.graph.parameter_role.tolist(), strict=True)
        if role == Role.VARIABLE
    ]  # fmt: skip
    if found.zero:
        # PyTorch pads the first dimension of each parameter to whole shares
        padded = float(sum(_local(found, name, found.data) for name in trained))
        passes = found.micro_batches if found.pipe == 1 else 1
        gathers = 2 * passes if found.zero == 3 else 1
        traffic["all-gather"] += gathers * padded * ranks
        traffic["reduce-scatter"] += passes * padded * ranks
    else:
        weights = step.trained or float(sum(_local(found, name) for name in trained))
        traffic["all-reduce"] += weights * ranks
    if layout is not None and (found.zero or found.apart):
        traffic["all-reduce"] += _statistics(layout) * found.micro_batches * ranks


def _statistics(layout: Layout) -> float:
    """Bytes of the means and variances of batch normalisations, and of their gradients."""
    graph = layout.graph
    elements = [
        math.prod(graph.shape(tensor))
        for path, tensor in zip(graph.paths, graph.parameter_tensor.tolist(), strict=True)
        if path.rpartition("/")[2] == "running_mean"
    ]
    return 4.0 * ELEMENT * sum(elements)


def _local(found: TorchPlan, name: str, multiple: int = 1) -> float:
    """Bytes of a rank's share of a parameter, its first dimension padded to a multiple."""
    shape = list(found.shapes[name])
    split = found.placements.get(name, (None, None))[1]
    if split is not None:
        shape[split] //= found.model
    if shape:
        shape[0] = -(-shape[0] // multiple) * multiple
    elements = math.prod(shape)
    return ELEMENT * elements if elements > 1 else 0.0
