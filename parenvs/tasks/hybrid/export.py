"""What exports and runs need of a hybrid plan: where arrays lie, its stages, what a step holds.

The mesh of a stage has two axes: ``data`` over the replicas, which split the classes of the batch,
and ``model`` over the tp ranks, which are neighbors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.cluster import DEVICES, PRECISIONS, Cluster
from parenvs.core import plan as costs
from parenvs.core.plan import Price, Strategy, judge
from parenvs.core.stages import Stage, Stages, Step
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.flow import chain_bytes
from parenvs.graph.graph import Graph
from parenvs.graph.layout import DATA, MODEL
from parenvs.graph.unroll import unrolled
from parenvs.instances import load_graph, step_of
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.graph_work import Splitting
from parenvs.tasks.hybrid.model import HybridModel, load_shape
from parenvs.tasks.hybrid.plan import SCHEDULES, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid, best_precision, default_stack
from parenvs.tasks.hybrid.report import HybridReport, pivot_of, seconds_by_part
from parenvs.tasks.hybrid.schedules import TWO_WAYS
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.uniform import stage_speeds
from parenvs.tasks.partition.classes import DimensionClasses, dimension_classes
from parenvs.tasks.partition.eager import batch_classes, check_classes
from parenvs.tasks.partition.layout import ClassLayout
from parenvs.tasks.pipeline.borders import borders_of, forward_part

_PART = re.compile(r"\[\d+\]$")
_ALIKE = (
    "schedule", "chunks", "sequence_parallel", "context", "expert", "expert_tp", "shard",
    "gradient_bytes", "gradient_overlap", "p2p",
)  # fmt: skip
"""Decisions that plans and the stages of exports name alike."""


def layout(plan: HybridPlan, graph: Graph | None = None, eager: bool = False) -> ClassLayout:
    """Return how a plan of one stage lays out its step, or the first of several; a hook.

    ``graph``: the step's graph (default: the plan's instance); ``eager``: whether operations are
    split one by one as they run, as in PyTorch, which has pipelines, micro-batches and shared
    states of its own.

    Raises:
        InfeasibleError: the judge finds the plan illegal, or the batch cannot be split.
        ParenvsError: a plan of a shape, for another graph, or with a field that layouts cannot say.
    """
    if not eager and len(plan.stages) > 1:
        raise ParenvsError(
            f"stages: JAX's shardings have no pipeline, and the plan has {len(plan.stages)} "
            "stages; plan with --stages 1, or export --to torch"
        )
    _check_shared(plan)
    _refuse_offload(plan)
    given = graph
    if graph is None:
        if load_shape(plan.instance) is not None:
            what, source = ("modules", "MODULE") if eager else ("parameters by path", "FUNCTION")
            raise ParenvsError(
                f"instance: {plan.instance} is a shape, which has no {what}; plan the "
                f"{'module' if eager else 'step'} itself (parenvs plan FILE.py:{source} "
                "--task hybrid)"
            )
        graph = load_graph(plan.instance)
    report = _legal(plan, graph if eager else given)
    assert report.model.work is not None  # a shape was refused above
    stage = plan.stages[0]
    classes, split = _model_classes(graph, report.model.work.splitting, stage.tp)
    replicas = stage.devices // stage.tp
    notes = _notes(plan, report.micro_batches, eager)
    batch = np.zeros(len(classes), bool)
    try:
        # PyTorch takes micro-batches by the same dimensions.
        batch = batch_classes(classes, graph) if eager or replicas > 1 else batch
    except InfeasibleError as error:
        if replicas > 1 and (not eager or stage.tp > 1):
            raise
        words = (f"inputs: {error}; each replica runs the step on samples of its own",)
        notes += words if replicas > 1 else ()
    axes = ((DATA, replicas, batch), (MODEL, stage.tp, split))
    return ClassLayout.of(plan, graph, classes, axes, stage.zero, notes)


def stages(plan: HybridPlan, graph: Graph | None = None, measured: bool = False) -> Stages:
    """Return the stages of a plan; a hook of the task. ``measured`` is of no matter here.

    Raises:
        InfeasibleError: the judge finds the plan illegal.
    """
    report = _legal(plan, graph)
    model, stack = report.model, report.machine.stack
    if plan.schedule == TWO_WAYS:
        raise InfeasibleError(
            f"schedule: {TWO_WAYS} has every layer on two stages, which no export can write; plan "
            "with --schedule 1f1b"
        )
    _refuse_offload(plan)
    names, shared = tuple(f"layer_{i}" for i in range(len(model))), tuple[str, ...]()
    if model.work is not None:
        names = model.work.program.borders.names
        # Labels of layers count the embedding as 0 and the head as n + 1.
        stage_of = {0: 0, len(model) + 1: len(plan.stages) - 1}
        for index, stage in enumerate(plan.stages):
            for begin, end in stage.layers:
                stage_of |= dict.fromkeys(range(begin + 1, end + 1), index)
        places = {name: {stage_of[x] for x in at} for name, at in model.work.shared.items()}
        shared = tuple(name for name, held in places.items() if len(held) > 1)

    def replan(stages: Sequence[Stage]) -> HybridPlan:
        replanned = tuple(
            replace(old, layers=x.layers, recompute=x.modes if set(x.modes) != {"none"} else ())
            for old, x in zip(plan.stages, stages, strict=True)
        )
        return replace(plan, stages=replanned)

    alike = ("batch", "micro_batch", "precision", *_ALIKE)
    attention = "written" if stack.attention_share is None else "fused"
    order = f"servers: start the ranks on the servers in the order {list(plan.servers)}"
    return Stages(
        plan=plan,
        run=plan,
        replan=replan,
        names=names,
        stages=tuple(Stage(x.layers, x.devices, x.tp, x.zero, x.modes) for x in plan.stages),
        attention=attention if model.attends else "none",
        tensor_overlap=stack.tensor_overlap > 0,
        target=None if graph is None else model,
        shared=shared,
        frozen=model.frozen,
        notes=(order,) if plan.servers else (),
        **{name: getattr(plan, name) for name in alike},
    )


def _legal(plan: HybridPlan, target: Graph | None) -> HybridReport:
    """Judge a plan that must be legal."""
    report = judge(plan, target)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    return report


def read_back(problem: Hybrid, said: Stages) -> HybridPlan:
    """Return the plan of a problem that stages say, as the file of a framework has them; a hook.

    Raises:
        ParenvsError: they are of another batch, precision or number of layers.
    """
    for name, given, expected in (
        ("batch", said.batch, problem.batch),
        ("precision", said.precision, problem.precision),
        ("layers", len(said.names), len(problem.model)),
    ):
        if given != expected:
            raise ParenvsError(f"{name}: the file says {given}, and the problem has {expected}")
    plan_stages = []
    for x in said.stages:
        # Counts are shorter, where the first layers are those that run again.
        stage = HybridStage(x.layers, x.devices, x.tp, x.zero, Counter(x.modes))
        listed = stage if stage.modes == x.modes else replace(stage, recompute=x.modes)
        plan_stages.append(listed)
    fields, usual = {name: getattr(said, name) for name in _ALIKE}, software_of(problem).of_plan
    fields["p2p"] = fields["p2p"] or usual["p2p"]
    if said.gradient_overlap is None:
        fields["gradient_overlap"] = usual["gradient_overlap"]
    return problem.plan(plan_stages, said.micro_batch, **fields)


def step(plan: HybridPlan, target: Any, element_bytes: int) -> Step:
    """Return what a step holds and sends; a hook of the task.

    ``element_bytes``: bytes of an element of what runs.
    """
    report = judge(plan, target)
    parts = sorted(part for stage in plan.stages for part in stage.layers)
    elements = [report.model.crossing_after[first] for first, _ in parts[1:]]
    return Step(
        tuple(float(stage.memory["total"]) for stage in report.stages),
        sent=2.0 * element_bytes * (plan.batch * plan.stages[0].tp) * float(sum(elements)),
        adam=any(stage.memory["optimizer"] for stage in report.stages),
    )


def _refuse_offload(plan: HybridPlan) -> None:
    if plan.offload:
        raise InfeasibleError(
            "offload: no export can write that activations wait in the memory of the server; leave "
            "it out of the plan"
        )


def _check_shared(plan: HybridPlan) -> None:
    """Refuse what a layout cannot say: that only some of the ranks share something."""
    for name, what, other in (("context", "tokens", 1), ("expert", "experts", 1),
                              ("shard", "states", 0)):  # fmt: skip
        if getattr(plan, name) > 1:
            raise ParenvsError(
                f"{name}: shardings of inputs cannot say which ranks share {what}; plan with "
                f"--{name} {other}"
            )


def _model_classes(
    graph: Graph, splitting: Splitting, tp: int
) -> tuple[DimensionClasses, np.ndarray]:
    """The classes of a graph, and (C,) bool, those that tp ranks split.

    The chain's own graph has loops over layers written out, whose weights are parts of the graph's:
    ``layers/q[3]`` is the fourth row of ``layers/q``.
    """
    written, split = splitting.program.graph, splitting.class_shares(tp) < 1
    if written is graph:
        return splitting.classes, split
    classes = dimension_classes(graph)
    chosen = np.zeros(len(classes), bool)
    whole = dict(zip(graph.paths, graph.parameter_tensor.tolist(), strict=True))
    for path, part in zip(written.paths, written.parameter_tensor.tolist(), strict=True):
        start, end = written.dim_offset[part : part + 2].tolist()
        cut = split[splitting.classes.label[start:end]] & (written.dims[start:end] > 1)
        # A loop's own dimension comes first, so dimensions are counted from the last.
        first = graph.dim_offset[whole[_PART.sub("", path)] + 1] - (end - start)
        chosen[classes.label[first + np.flatnonzero(cut)]] = True
    check_classes(classes, chosen, "stages[0].tp: a loop cannot be split so")
    return classes, chosen


def _notes(plan: HybridPlan, micro_batches: int, eager: bool) -> tuple[str, ...]:
    stage = plan.stages[0]
    again = " and ".join(f"{count} in {mode}" for mode, count in stage.redone.items())
    notes = {
        f"micro_batch: a step has {micro_batches} micro-batches; sum their gradients in the step "
        "(lax.scan), or the batch is computed at once and needs their memory together": (
            micro_batches > 1 and not eager
        ),
        f"recompute: of the layers {again}; wrap these in jax.checkpoint": again,
        "sequence_parallel: what lies between the matrices is split where the step says so "
        "(lax.with_sharding_constraint of the residual stream), else it is whole on each rank": (
            plan.sequence_parallel
        ),
        "zero: XLA decides where gradients are; ZeRO 2 is exported as ZeRO 1": (
            stage.zero == 2 and not eager
        ),
    }
    return tuple(note for note, holds in notes.items() if holds)


_GRADIENT_BYTES = float(HybridPlan.gradient_bytes)


def own(report: HybridReport) -> Price:
    """Return the price of a hybrid plan: what it costs; a hook of the task."""
    seconds = None if report.step is None else report.length_seconds
    notes = report.model.notes if seconds is not None else ("the plan is malformed",)
    by = f" and {report.outlook.trials}" if report.outlook else ""
    return Price(
        model=words(report.machine) + by, seconds=seconds, parts=report.seconds, notes=notes
    )


def words(machine: Machine) -> str:
    """Return how the cost model is called on a machine."""
    return f"{costs.MODEL} ({machine.stack.name} at {machine.precision})"


def price(strategy: Strategy) -> Price:
    """Return the seconds of a step of a strategy; a hook of the task."""
    cluster, precision = _unpinned(strategy.cluster)
    try:
        graph, cuts, notes = _of_step(strategy.graph, strategy.cuts)
        model = _model(_Key.of(graph, cuts, strategy.split or {}))
        precision = precision or best_precision(cluster, model.is_half)
        machine = default_stack(cluster).machine(cluster, precision)
    except ParenvsError as error:
        return Price(notes=(str(error),))
    work = model.work
    assert work is not None
    if strategy.split is not None:  # a rank holds its share of tied weights, which may be whole
        tied = work.tied_elements(strategy.devices[0]) if model.head else 0.0
        model = replace(model, tied_parameters=strategy.devices[0] * tied)
    stages = _stages(strategy, model, cluster, cuts)
    step = formulas.step(model, cluster, machine, stages)
    pivot = pivot_of(step, strategy.micro_batches, SCHEDULES[0])
    parts = seconds_by_part(step, pivot, strategy.micro_batches)
    if strategy.split is not None:
        # Gradients of weights that all ranks hold are summed once a step, as by replicas.
        replicas = stages._replace(tp=stages.dp, dp=stages.tp)
        zero = np.zeros(1)
        held = np.array([work.summed_gradients(int(stages.tp[0]))]), zero
        parts["gradients"] += float(formulas.reduction(held, machine, replicas, zero)[1][0])
    return Price(
        model=words(machine),
        seconds=sum(parts.values()),
        parts=parts,
        notes=(*strategy.notes, *notes, *model.notes),
    )


def problem_of(strategy: Strategy) -> Hybrid:
    """Return the problem that a strategy answers, as a hybrid one.

    Raises:
        ParenvsError: the graph has no layers, or the device no precision for it.
    """
    cluster, precision = _unpinned(strategy.cluster)
    graph, _, _ = _of_step(strategy.graph, ())
    batch = round(strategy.micro_batch * strategy.micro_batches)
    model = _model(_Key.of(graph, (), {}))
    return Hybrid(model, cluster, batch, precision=precision, instance=graph.name)


@dataclass(frozen=True)
class _Key:
    """What a model is made of, as a key: the graph, cuts, and what is split, by path."""

    fingerprint: str
    cuts: tuple[int, ...]
    split: tuple[tuple[str, int], ...]
    graph: Graph = field(compare=False)

    @classmethod
    def of(cls, graph: Graph, cuts: tuple[int, ...], split: Mapping[str, int]) -> _Key:
        return cls(graph.fingerprint, cuts, tuple(sorted(split.items())), graph)


@lru_cache(maxsize=2)
def _model(key: _Key) -> HybridModel:
    return HybridModel.of_graph(key.graph, uneven="pad", chosen=dict(key.split), cuts=key.cuts)


def _unpinned(cluster: Cluster) -> tuple[Cluster, str]:
    """A cluster whose device has one precision, as the device with all, and that precision."""
    name, _, precision = cluster.device.name.partition("-")
    if name in DEVICES and precision in PRECISIONS:
        return replace(cluster, device=DEVICES[name]), precision
    return cluster, ""


def _of_step(graph: Graph, cuts: tuple[int, ...]) -> tuple[Graph, tuple[int, ...], tuple[str, ...]]:
    """The training step of a graph, cuts of its pivots, and notes.

    A forward pass has fewer pivots than its step: the inside of a layer is cut at the same share of
    it.
    """
    step = step_of(graph)
    if step is graph or not cuts:
        return step, cuts, ()
    chains = []
    for part in (graph, step):
        written = forward_part(unrolled(part))
        pivots = written.pivots()
        borders = borders_of(written, pivots, chain_bytes(written, pivots))
        chains.append((borders.names, np.array([0, *borders.bounds, len(pivots)], float)))
    (names, old), (other_names, new) = chains
    if len(names) != len(other_names):
        return graph, cuts, ("its training step has other layers: twice the forward pass is taken",)
    return step, tuple(np.round(np.interp(cuts, old, new)).astype(int).tolist()), ()


def _stages(
    strategy: Strategy, model: HybridModel, cluster: Cluster, cuts: tuple[int, ...]
) -> formulas.Stages:
    """The strategy as arrays; a split stage's devices are tp ranks, others' are replicas."""
    assert model.work is not None
    program, count = model.work.program, len(strategy.devices)
    devices = np.array(strategy.devices)
    first = devices.cumsum() - devices
    bounds = [0, *np.searchsorted(program.borders.bounds, cuts), len(model)]
    layers = np.diff(model.kinds_before[bounds], axis=0).T
    scale = model.work.element_bytes * program.graph.batch_size
    crossing = program.counted.cut[np.array(cuts, int) - 1] / scale
    ahead, behind = np.append(crossing, 0.0)[:, None], np.insert(crossing, 0, 0.0)[:, None]
    ones, is_split = np.ones(count, int), strategy.split is not None
    nothing = np.zeros_like(layers)
    figures: dict[str, Any] = formulas.of_chunks(layers[:, :, None], ahead, behind)
    return formulas.Stages(
        **figures,
        full=layers if strategy.recompute else nothing,
        selective=nothing,
        tp=devices if is_split else ones,
        dp=ones if is_split else devices,
        zero=0 * ones,
        device=first,
        speed=stage_speeds(cluster, first, devices),
        samples=float(strategy.micro_batch),
        micro_batches=strategy.micro_batches,
        gradient_bytes=_GRADIENT_BYTES,
        schedule=SCHEDULES[0],
    )
