"""What a plan's run should show: seconds of a step, bytes of memory and of each collective.

Bytes of collectives are those of whole arrays, summed over all processes: of an all-gather its
result, of a reduce-scatter its operand. Arrays of one element, the mean of a loss, do not count.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.clock.calibration import Calibration
from parenvs.core.judge import judge
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.exports.sharding import Sharding, sharding_of
from parenvs.exports.stages import stages_of
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.graph.graph import Graph, Role
from parenvs.instances import load_graph
from parenvs.machine import cores, processor
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.memory import Footprint
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.pipeline.load import load_profile
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.profile import StageProfile

ELEMENT = 4
"""Bytes of an element: what runs here is in float32."""
_VIEWS = ("reshape", "transpose", "copy", "bitcast", "convert")
"""Operations that a partial result passes unchanged."""


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
    """

    seconds: float | None
    memory: tuple[float, ...]
    traffic: dict[str, float]
    adam: bool = False
    updates: bool = False
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
    plan: Plan, graph: Graph | None, calibration: Calibration | None, kind: str, where: str = ""
) -> tuple[TorchPlan, Prediction]:
    """Return a plan in PyTorch's words, and what is predicted of its run.

    Args:
        plan: a plan of a partition, a pipeline, or a hybrid one; also of a measured chain.
        graph: what it was made for (default: the plan's instance).
        calibration: of this machine, or None.
        kind: of the devices that will run it.
        where: the calibration's file.

    Raises:
        ParenvsError: the plan cannot be run, or the calibration is of other devices.
    """
    if isinstance(plan, PipelinePlan) and plan.instance.endswith(".csv"):
        chain = load_profile(plan.instance, plan.cluster, plan.micro_batch)
        found = torch_of_chain(plan, chain)
        return found, _of_pipeline(plan, plan, chain, found, calibration, kind, where)
    if not isinstance(plan, PartitionPlan | HybridPlan | PipelinePlan):
        raise ParenvsError(f"run takes plans of pipelines, partitions and hybrid ones, not {plan}")
    found = torch_plan(plan, graph)
    if isinstance(plan, PipelinePlan):
        stages = stages_of(plan, graph)
        cuts = tuple(stages.bounds[first] for first, _ in stages.parts[1:])
        moved = replace(plan, cuts=cuts, cut_after=())
        return found, _of_pipeline(plan, moved, graph, found, calibration, kind, where)
    graph = load_graph(plan.instance) if graph is None else graph
    timed = None if calibration is None else on_machine(calibration, plan, kind, where)
    if isinstance(plan, HybridPlan):
        return found, _of_hybrid(plan, timed, graph, found)
    sharding = sharding_of(plan, graph)
    report = judge(plan, graph)
    seconds = None if timed is None else float(judge(timed, graph).step_seconds)
    devices = found.data * found.model
    traffic = {kind: size * devices for kind, size in rank_bytes(sharding).items()}
    memory = (float(report.memory.peak),) * (found.data * found.model)
    adam = Role.OPTIMISER in graph.parameter_role.tolist()
    return found, Prediction(seconds, memory, _nonzero(traffic), adam, True, found.notes)


def torch_of_chain(plan: PipelinePlan, chain: StageProfile) -> TorchPlan:
    """Return a plan of a measured chain in PyTorch's words: its layers are modules by name.

    Raises:
        ParenvsError: the plan is illegal, its stages have different numbers of devices, or a cut
            falls in front of a layer's second run.
    """
    report = judge(plan, chain)
    if not report.legal:
        raise ParenvsError(f"the plan is illegal: {report.reasons[0]}")
    bounds = [0, *plan.device_cuts, plan.cluster.devices]
    replicas = {end - first for first, end in itertools.pairwise(bounds)}
    if len(replicas) > 1:
        raise ParenvsError(
            f"device_cuts: PyTorch gives every stage as many replicas, and the plan has "
            f"{sorted(replicas)}; plan with --devices-used"
        )
    (data,) = replicas
    if plan.micro_batch % data:
        raise ParenvsError(
            f"micro_batch: {plan.micro_batch} samples cannot be shared by {data} replicas"
        )
    cuts = tuple(str(chain.names[cut]) for cut in plan.cuts)
    for name in cuts:
        if "#" in name:
            raise ParenvsError(f"cuts: {name} is a layer's second run, and stages are of modules")
    notes: tuple[str, ...] = ()
    if plan.recompute != "none":
        notes = ("recompute: what a module does not recompute itself is kept",)
    return TorchPlan(
        plan.instance, plan.task, len(cuts) + 1, data, 1, {}, {}, {}, {},
        batch=plan.micro_batch * plan.micro_batches, cuts=cuts,
        micro_batches=plan.micro_batches, notes=notes,
    )  # fmt: skip


def _of_pipeline(
    plan: PipelinePlan,
    moved: PipelinePlan,
    target: Any,
    found: TorchPlan,
    calibration: Calibration | None,
    kind: str,
    where: str,
) -> Prediction:
    """Predict a pipeline; ``moved`` is the plan with its cuts at borders between modules."""
    timed = None if calibration is None else on_machine(calibration, moved, kind, where)
    chain = target if isinstance(target, StageProfile) else None
    seconds = None if timed is None else judge(timed, target).length_seconds
    kept = replace(moved, recompute="none")
    has_kept = chain is None or chain.resident_bytes is not None
    report = judge(kept if has_kept else moved, target)
    crossing = report.pipeline.profile.cut_bytes[np.array(moved.cuts, dtype=int) - 1]
    held = [stage.parameter_bytes for stage in report.stages]
    traffic = {
        "send": 2.0 * plan.micro_batches * float(np.sum(crossing)),
        "all-reduce": found.data * sum(held) if found.data > 1 else 0.0,
    }  # fmt: skip
    memory = tuple(
        stage.memory_bytes for stage in report.stages for _ in range(found.data * found.model)
    )
    return Prediction(seconds, memory, _nonzero(traffic), adam=plan.copies >= 4, notes=found.notes)


def _of_hybrid(
    plan: HybridPlan, timed: HybridPlan | None, graph: Graph, found: TorchPlan
) -> Prediction:
    """Predict a hybrid plan of a graph."""
    model = HybridModel.of_graph(graph)
    report = judge(plan, model)
    seconds = None if timed is None else judge(timed, model).length_seconds
    memory = tuple(
        float(stage.memory["total"])
        for stage in report.stages
        for _ in range(found.data * found.model)
    )
    elements = [
        model.crossing_after[first]
        for first, _ in sorted(part for stage in plan.stages for part in stage.layers)[1:]
    ]
    sent = 2.0 * ELEMENT * plan.batch * found.model * float(sum(elements))
    traffic: dict[str, float] = defaultdict(float, {"send": sent})
    trained = [
        path.replace("/", ".")
        for path, role in zip(graph.paths, graph.parameter_role.tolist(), strict=True)
        if role == Role.VARIABLE
    ]
    weights = float(sum(_local(found, name) for name in trained))
    if found.zero and found.data > 1:
        # PyTorch pads the first dimension of each parameter to whole shares
        padded = float(sum(_local(found, name, found.data) for name in trained))
        passes = found.micro_batches if found.pipe == 1 else 1
        gathers = 2 * passes if found.zero == 3 else 1
        traffic["all-gather"] += gathers * padded * found.data * found.model
        traffic["reduce-scatter"] += passes * padded * found.data * found.model
    elif found.data > 1:
        traffic["all-reduce"] += weights * found.data * found.model
    if found.model > 1:
        sharding = sharding_of(plan, graph, pipelines=True)
        ranks = replace(sharding, axes=sharding.axes[1:])
        scale = plan.batch / graph.batch_size * found.model
        for kind, size in rank_bytes(ranks).items():
            traffic[kind] += size * scale
    seconds = seconds if seconds is not None and math.isfinite(seconds) else None
    return Prediction(seconds, memory, _nonzero(traffic), True, True, found.notes)


def rank_bytes(sharding: Sharding) -> dict[str, float]:
    """Return the bytes that a device all-reduces and gathers in a step, as DTensors do it.

    Partial results that are only added to each other are summed once, where the judge counts each.
    A softmax over a split dimension, as of a loss over split words, is made of its gathered
    operand, where the judge sums the partial results of maximum and sum.

    Args:
        sharding: of one axis.

    Returns:
        Kind of a collective -> bytes of its arrays.
    """
    graph, classes = sharding.graph, sharding.classes
    (axis,) = sharding.axes
    partial = set(formulas.partial_instructions(classes, axis.chosen).tolist())
    gathered = [
        number
        for number in sorted(partial)
        if _opcode(graph, number) == "reduce" and '"maximum"' in _attribute(graph, number)
    ]
    operands = [_operand(graph, number) for number in gathered]
    split = [_split(sharding, tensor) for tensor in operands]
    partial -= {
        number
        for number in partial
        if _opcode(graph, number) in ("reduce", "gather")
        and _split(sharding, _operand(graph, number)) in split
    }
    share = np.where(axis.chosen, formulas.device_share(classes, axis.size), 1.0)
    held = graph.tensor_bytes * Footprint(graph, classes.label, share).scale(axis.chosen)
    summed = [tensor for tensor in _summed(graph, partial) if _many(graph, tensor)]
    return {
        "all-gather": float(graph.tensor_bytes[operands].sum()),
        "all-reduce": float(held[summed].sum()),
    }


def _opcode(graph: Graph, number: int) -> str:
    """Operation of an instruction."""
    return str(graph.opcodes[graph.opcode[number]])


def _attribute(graph: Graph, number: int) -> str:
    """JSON text of what an instruction has besides its operands."""
    return str(graph.strings[graph.attribute[number]])


def _operand(graph: Graph, number: int) -> int:
    """First tensor that an instruction reads."""
    return int(graph.operands[graph.operand_offset[number]])


def _split(sharding: Sharding, tensor: int) -> tuple[int, ...]:
    """Shape of a tensor and those of its dimension classes that the axis splits."""
    graph, (axis,) = sharding.graph, sharding.axes
    first, end = graph.dim_offset[tensor : tensor + 2]
    labels = sharding.classes.label[first:end]
    return (*graph.shape(tensor), *labels[axis.chosen[labels]].tolist())


def _summed(graph: Graph, partial: set[int]) -> set[int]:
    """Tensors that are all-reduced if partial ones are first added to each other.

    Args:
        graph: the step.
        partial: instructions that leave partial results.
    """
    readers = Counter(graph.operands.tolist())
    for tensor in graph.outputs.tolist():
        readers[tensor] += 1
    waiting: set[int] = set()
    for number in range(len(graph.opcode)):
        name = _opcode(graph, number)
        first, end = graph.operand_offset[number : number + 2].tolist()
        operands = graph.operands[first:end].tolist()
        made_first, made_end = graph.result_offset[number : number + 2].tolist()
        made = graph.results[made_first:made_end].tolist()
        passes = name in _VIEWS or (name == "add" and len(operands) == 2)
        lonely = operands and all(x in waiting and readers[x] == 1 for x in operands)
        if number in partial:
            waiting |= set(made)
        elif passes and lonely:
            waiting -= set(operands)
            waiting |= set(made)
    return waiting


def _many(graph: Graph, tensor: int) -> bool:
    """Whether a tensor has more than one element."""
    return int(np.prod(graph.shape(tensor), initial=1)) > 1


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


def _nonzero(traffic: Mapping[str, float]) -> dict[str, float]:
    """Kinds that there are."""
    return {kind: float(size) for kind, size in sorted(traffic.items()) if size}
