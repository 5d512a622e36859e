"""The price of plans of every task: a step of what they do by the formulas of hybrid plans.

What a plan does not say is taken as hybrid plans have it by default: the device's stack, 1F1B with
sends that block, gradients of 4 bytes that are summed behind the last backward pass, no ZeRO.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from parenvs.cluster import DEVICES, PRECISIONS, Cluster
from parenvs.core.plan import MODEL, Price, Strategy
from parenvs.errors import ParenvsError
from parenvs.graph.flow import chain_bytes
from parenvs.graph.graph import Graph
from parenvs.graph.unroll import unrolled
from parenvs.instances import step_of
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SCHEDULES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid, best_precision, default_stack, stage_speeds
from parenvs.tasks.hybrid.report import HybridReport, pivot_of, seconds_by_part
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.stages import Stages
from parenvs.tasks.pipeline.borders import borders_of, forward_part

_GRADIENT_BYTES = float(HybridPlan.gradient_bytes)


def own(report: HybridReport) -> Price:
    """Return the price of a hybrid plan: what it costs; a hook of the task."""
    seconds = None if report.step is None else report.length_seconds
    notes = report.model.notes if seconds is not None else ("the plan is malformed",)
    return Price(model=words(report.machine), seconds=seconds, parts=report.seconds, notes=notes)


def words(machine: Machine) -> str:
    """Return how the cost model is called on a machine."""
    return f"{MODEL} ({machine.stack.name} at {machine.precision})"


def price(strategy: Strategy) -> Price:
    """Return the seconds of a step of a strategy; a hook of the task."""
    cluster, precision = _unpinned(strategy.cluster)
    try:
        graph, cuts, notes = _of_step(strategy.graph, strategy.cuts)
        model = _model(_Key(graph, cuts, tuple(sorted((strategy.split or {}).items()))))
        precision = precision or best_precision(cluster, model.is_half)
        machine = default_stack(cluster).machine(cluster, precision)
    except ParenvsError as error:
        return Price(notes=(str(error),))
    assert model.chain is not None
    if strategy.split is not None:  # a rank holds its share of tied weights, which may be whole
        tied = model.chain.work.tied_elements(strategy.devices[0]) if model.head else 0.0
        model = replace(model, tied_parameters=strategy.devices[0] * tied)
    stages = _stages(strategy, model, cluster, cuts)
    step = formulas.step(model, cluster, machine, stages)
    pivot = pivot_of(step, strategy.micro_batches, SCHEDULES[0])
    parts = seconds_by_part(step, pivot, strategy.micro_batches)
    if strategy.split is not None:
        parts["gradients"] += _summed(model, machine, stages)
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
    model = _model(_Key(graph, (), ()))
    return Hybrid(model, cluster, batch, precision=precision, instance=graph.name)


class _Key:
    """What a model is made of, as a key: the graph, cuts, and what is split, by path."""

    def __init__(
        self, graph: Graph, cuts: tuple[int, ...], split: tuple[tuple[str, int], ...]
    ) -> None:
        self.graph, self.cuts, self.split = graph, cuts, split

    def __hash__(self) -> int:
        return hash((self.graph.fingerprint, self.cuts, self.split))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and hash(self) == hash(other)


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

    A shipped forward pass has fewer pivots than its step: what lies inside a layer is cut at the
    same share of it.
    """
    step = step_of(graph)
    if step is graph or not cuts:
        return step, cuts, ()
    found = []
    for each in (graph, step):
        written = forward_part(unrolled(each))
        pivots = written.pivots()
        borders = borders_of(written, pivots, chain_bytes(written, pivots))
        found.append((borders.names, np.array([0, *borders.bounds, len(pivots)], dtype=float)))
    (names, old), (other_names, new) = found
    if len(names) != len(other_names):
        return graph, cuts, ("its training step has other layers: twice the forward pass is taken",)
    places = np.round(np.interp(cuts, old, new)).astype(int)
    return step, tuple(places.tolist()), ()


def _stages(
    strategy: Strategy, model: HybridModel, cluster: Cluster, cuts: tuple[int, ...]
) -> Stages:
    """The strategy as arrays; a split stage's devices are tp ranks, others' are replicas."""
    assert model.chain is not None
    program, count = model.chain.program, len(strategy.devices)
    devices = np.array(strategy.devices)
    first = devices.cumsum() - devices
    bounds = [0, *np.searchsorted(program.borders.bounds, cuts), len(model)]
    layers = np.diff(model.kinds_before[bounds], axis=0).T
    scale = model.chain.work.element_bytes * program.graph.batch_size
    crossing = program.counted.cut[np.array(cuts, dtype=int) - 1] / scale
    on, back = np.append(crossing, 0.0), np.insert(crossing, 0, 0.0)
    on[0], back[-1] = 2 * on[0], 2 * back[-1]
    ones, is_split = np.ones(count, dtype=int), strategy.split is not None
    nothing = np.zeros_like(layers)
    return Stages(
        layers=layers,
        first_chunk=layers,
        full=layers if strategy.recompute else nothing,
        selective=nothing,
        on=on,
        back=back,
        first=np.ones(count),
        links=crossing,
        tp=devices if is_split else ones,
        dp=ones if is_split else devices,
        zero=0 * ones,
        device=first,
        speed=stage_speeds(cluster, first, devices),
        samples=float(strategy.micro_batch),
        micro_batches=strategy.micro_batches,
        chunks=1,
        context=1,
        sequence_parallel=False,
        expert=1,
        blocking=True,
        gradient_bytes=_GRADIENT_BYTES,
        gradient_overlap=False,
        schedule=SCHEDULES[0],
    )


def _summed(model: HybridModel, machine: Machine, stages: Stages) -> float:
    """Seconds in which the ranks of one stage sum the gradients of weights that all of them hold.

    They are summed as replicas do it, once a step.
    """
    assert model.chain is not None
    elements = model.chain.work.summed_gradients(int(stages.tp[0]))
    replicas = stages._replace(tp=stages.dp, dp=stages.tp)
    held = np.array([elements]), np.zeros(1)
    return float(formulas.reduction(held, machine, replicas, np.zeros(1))[1][0])
