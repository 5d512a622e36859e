"""What exports and runs need of a pipeline plan: stages of whole layers, and what a step holds.

Cuts of pipeline plans lie anywhere on the chain of pivots, and modules are whole layers; so each
cut is moved to a border between layers. The layers of a measured chain are modules already.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenvs.cluster import SYNC_METHODS
from parenvs.core.plan import Price, Strategy, judge
from parenvs.core.stages import Stage, Stages, Step
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.chain import chain_bytes
from parenvs.graph.graph import Graph
from parenvs.graph.loops.unroll import unrolled
from parenvs.instances import load_graph
from parenvs.tasks.pipeline.borders import borders_of, forward_part
from parenvs.tasks.pipeline.load import load_profile
from parenvs.tasks.pipeline.plan import RECOMPUTE, PipelinePlan
from parenvs.tasks.pipeline.problem import Report
from parenvs.tasks.pipeline.profile import StageProfile

ADAM_COPIES = 4
"""Copies of the parameters from which on Adam's two moments are among them."""


def stages(
    plan: PipelinePlan, graph: Graph | StageProfile | None = None, measured: bool = False
) -> Stages:
    """Return the stages of a plan, its cuts at borders between layers; a hook of the task.

    Args:
        plan: the plan.
        graph: the graph or measured chain that it was made for (default: the plan's instance).
        measured: whether an instance may be a measured chain.

    Raises:
        InfeasibleError: the judge finds the plan illegal, there are fewer layers than stages, or
            replicas cannot share a micro-batch.
        ParenvsError: the plan is for a chain and ``measured`` is false, or a stage of a chain
            begins with a layer's second run.
    """
    target: Any = graph
    if graph is None and plan.instance.endswith(".csv"):
        if not measured:
            raise ParenvsError(
                f"instance: {plan.instance} is a profile, which has no layers by name"
            )
        target = load_profile(plan.instance, plan.cluster, plan.micro_batch)
    report = judge(plan, target)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    make = _of_chain if isinstance(target, StageProfile) else _of_graph
    names, bounds, run, notes = make(plan, target)
    ends = [0, *(int(np.searchsorted(bounds, cut)) for cut in run.cuts), len(names)]
    devices = [0, *plan.device_cuts, plan.cluster.devices]
    made = tuple(
        Stage(((first, end),), last - device, modes=(plan.recompute,) * (end - first))
        for (first, end), (device, last) in zip(
            itertools.pairwise(ends), itertools.pairwise(devices), strict=True
        )
    )
    for remark in report.remarks[:1]:
        raise InfeasibleError(f"micro_batch: {remark}; plan anew without --fractions")

    def replan(stages: Sequence[Stage]) -> PipelinePlan:
        cuts = tuple(bounds[stage.layers[0][0]] for stage in stages[1:])
        return replace(run, cuts=cuts, cut_after=())

    return Stages(
        plan=plan,
        run=run,
        replan=replan,
        names=names,
        stages=made,
        batch=plan.micro_batch * plan.micro_batches,
        micro_batch=plan.micro_batch // made[0].devices,
        target=target,
        notes=tuple(notes),
    )


def step(plan: PipelinePlan, target: Any, element_bytes: int) -> Step:
    """Return what a step holds and sends, nothing recomputed where that is known; a hook.

    Args:
        plan: the plan that is run.
        target: what it is judged on.
        element_bytes: bytes of an element of what runs; chains have their own.
    """
    chain = target if isinstance(target, StageProfile) else None
    knows_kept = chain is None or chain.resident_bytes is not None
    report = judge(replace(plan, recompute="none") if knows_kept else plan, target)
    crossing = report.pipeline.profile.cut_bytes[np.array(plan.cuts, dtype=int) - 1]
    measured: dict[str, float] = {}
    if chain is not None:
        measured = dict(zip(map(str, chain.names), chain.parameter_bytes.tolist(), strict=True))
    return Step(
        tuple(stage.memory_bytes for stage in report.stages),
        sent=2.0 * plan.micro_batches * float(np.sum(crossing)),
        trained=sum(stage.parameter_bytes for stage in report.stages),
        adam=plan.copies >= ADAM_COPIES,
        updates=False,
        measured=measured,
    )


def strategy(report: Report) -> Strategy | Price:
    """Return what a judged plan does, for its price; a hook of the task."""
    plan, profile = report.plan, report.pipeline.profile
    if not report.stages:
        return Price(own=report.cost_words, notes=("the plan is malformed",))
    if profile.graph is None:
        nothing = "the chain was measured or drawn, and says nothing of kernels"
        return Price(own=report.cost_words, notes=(nothing,))
    summed = SYNC_METHODS[0]
    return Strategy(
        graph=profile.graph,
        cluster=report.pipeline.cluster,
        devices=tuple(stage.device_end - stage.device_first for stage in report.stages),
        micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches,
        cuts=plan.cuts,
        recompute=plan.recompute != RECOMPUTE[-1],
        notes=()
        if plan.sync == summed
        else (f"sync: gradients are summed by {summed}, not by {plan.sync}",),
    )


def _of_chain(
    plan: PipelinePlan, chain: StageProfile
) -> tuple[tuple[str, ...], Sequence[int], PipelinePlan, list[str]]:
    """Names and bounds of the layers of a measured chain, the plan that is run, and notes."""
    for cut in plan.cuts:
        if "#" in chain.names[cut]:
            raise ParenvsError(
                f"cuts: {chain.names[cut]} is a layer's second run, and stages are of modules"
            )
    again = plan.recompute != "none"
    notes = ["recompute: what a module does not recompute itself is kept"] if again else []
    return tuple(map(str, chain.names)), range(len(chain) + 1), plan, notes


def _of_graph(
    plan: PipelinePlan, graph: Graph | None
) -> tuple[tuple[str, ...], Sequence[int], PipelinePlan, list[str]]:
    """The same of a graph, of the plan with its cuts at the nearest borders."""
    source = load_graph(plan.instance, "forward") if graph is None else graph
    written = forward_part(unrolled(source))
    pivots = written.pivots()
    borders = borders_of(written, pivots, chain_bytes(written, pivots))
    names, bounds = borders.names, borders.bounds.tolist()
    if len(names) < len(plan.cuts) + 1:
        raise InfeasibleError(
            f"cuts: {len(plan.cuts) + 1} stages of {len(names)} layers; no border is left"
        )
    chosen = nearest_borders(plan.cuts, borders.bounds[1:-1])
    run = replace(plan, cuts=tuple(bounds[1 + k] for k in chosen), cut_after=())
    notes = [
        f"cut {number} moved by {new - old:+d} of {len(pivots):,} pivots, in front of "
        f"{names[k + 1]}"
        for number, (old, new, k) in enumerate(zip(plan.cuts, run.cuts, chosen, strict=True), 1)
        if old != new
    ]
    return names, bounds, run, notes


def nearest_borders(cuts: Sequence[int], borders: np.ndarray) -> list[int]:
    """Return the increasing borders, by number, nearest to cuts in the sum of their distances.

    Args:
        cuts: (S-1) increasing places.
        borders: (B,) increasing places, at least as many.
    """
    count = len(borders)
    distance = np.abs(np.subtract.outer(np.asarray(cuts), np.asarray(borders))).astype(float)
    best = np.zeros(count + 1)  # least sum of the cuts so far, on borders below each one
    came: list[np.ndarray] = []
    for row in distance:
        total = best[:-1] + row
        came.append(np.array([int(np.argmin(total[: k + 1])) for k in range(count)]))
        best = np.concatenate([[np.inf], np.minimum.accumulate(total)])
    chosen: list[int] = []
    last = count - 1
    for row_choice in reversed(came):
        chosen.append(int(row_choice[last]))
        last = chosen[-1] - 1
    return chosen[::-1]
