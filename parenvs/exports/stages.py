"""What launchers and PyTorch need of a plan with stages: whole layers, degrees, micro-batches.

Cuts of pipeline plans lie anywhere on the chain of pivots, and modules are whole layers; so each
cut is moved to a border between layers, and the judge says what that costs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.core.judge import judge
from parenvs.core.plan import Plan
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.graph.program import Program
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.view.words import duration

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PlannedStages:
    """Stages of whole layers. n layers, S stages.

    Attributes:
        plan: the plan.
        names: (n,) what the model calls its layers.
        stages: (S,) the stages, as hybrid plans have them.
        batch: samples of a step.
        micro_batch: samples of a micro-batch in one replica of the first stage.
        schedule: ``"1f1b"``, ``"interleaved"`` or ``"early"``.
        chunks: ranges of layers on each stage.
        sequence_parallel: whether tp ranks share what lies between the matrices.
        context: ranks that share the tokens of a sample.
        expert: replicas among which experts are dealt out.
        shard: replicas, context ranks counted, among which ZeRO shares states; 0: all.
        precision: of products; "" if the plan does not say.
        shape: the model's shape, if the plan is for one.
        bounds: (n+1,) of a pipeline plan: where its chain of pivots may be cut, with both ends.
        target: what the judge judges it on; None for the plan's instance.
        notes: what was moved and what that costs, in sentences.
    """

    plan: Plan
    names: tuple[str, ...]
    stages: tuple[HybridStage, ...]
    batch: int
    micro_batch: int
    schedule: str = "1f1b"
    chunks: int = 1
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    shard: int = 0
    precision: str = ""
    shape: TransformerShape | None = None
    bounds: tuple[int, ...] = ()
    target: Any = None
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices in use."""
        return sum(stage.devices for stage in self.stages)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.batch // (self.micro_batch * self.replicas[0])

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """(S,) replicas of each stage."""
        return tuple(stage.devices // (stage.tp * self.context) for stage in self.stages)

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Ranges of layers in the model's order: the first chunk of each stage, then the second."""
        return tuple(stage.layers[k] for k in range(self.chunks) for stage in self.stages)

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """(n,) what is recomputed of each layer."""
        modes = ["none"] * len(self.names)
        for stage in self.stages:
            layers = [layer for first, end in stage.layers for layer in range(first, end)]
            for layer, mode in zip(layers, stage.modes, strict=True):
                modes[layer] = mode
        return tuple(modes)

    def same(self, field: str, framework: str) -> int:
        """Return a field of the stages that a framework wants to be the same on all.

        Raises:
            InfeasibleError: the stages differ.
        """
        values = self.replicas if field == "dp" else [getattr(x, field) for x in self.stages]
        for number, value in enumerate(values):
            if value != values[0]:
                raise InfeasibleError(
                    f"stages[{number}].{field}: {framework} gives every stage the same, and the "
                    f"plan has {value} there and {values[0]} on the first stage"
                )
        return values[0]

    def refuse_stacks(self, framework: str) -> None:
        """Refuse a model of several stacks of layers, as of an encoder and a decoder.

        Raises:
            ParenvsError: it has more than one.
        """
        stacks = list(dict.fromkeys(_NUMBER.sub("N", name) for name in self.names))
        if len(stacks) > 1:
            raise ParenvsError(
                f"instance: {framework}'s pipelines are of one stack of layers, and "
                f"{self.plan.instance} has {', '.join(stacks[:3])}"
            )

    def recomputed(self, mode: str, framework: str) -> str:
        """Say that a framework recomputes all layers alike, and what that costs.

        Args:
            mode: of all layers.
            framework: which cannot do otherwise.
        """
        note = f"recompute: {framework} treats all layers alike; all are recomputed: {mode}"
        if not isinstance(self.plan, HybridPlan):
            return note
        stages = tuple(replace(stage, recompute=(mode,) * stage.size) for stage in self.stages)
        return f"{note}, {cost(self.plan, replace(self.plan, stages=stages), self.target)}"

    def with_parts(self, parts: Sequence[tuple[int, int]], framework: str) -> PlannedStages:
        """Give each stage, of one chunk, other layers, and say what that costs."""
        moved = [
            f"{new[0] - old[0]:+d}"
            for old, new in zip(self.parts[1:], parts[1:], strict=True)
            if new[0] != old[0]
        ]
        stages = tuple(
            replace(stage, layers=(part,), recompute=_fitted(stage, part[1] - part[0]))
            for stage, part in zip(self.stages, parts, strict=True)
        )
        note = f"stages: {framework} divides layers evenly; cuts moved by {', '.join(moved)} layers"
        if isinstance(self.plan, HybridPlan):
            note += f", {cost(self.plan, replace(self.plan, stages=stages), self.target)}"
        elif isinstance(self.plan, PipelinePlan):
            cuts = tuple(self.bounds[first] for first, _ in parts[1:])
            moved_plan = replace(self.plan, cuts=cuts, cut_after=())
            note += f", {cost(self.plan, moved_plan, self.target)}"
        return replace(self, stages=stages, notes=(*self.notes, note))


def _fitted(stage: HybridStage, size: int) -> tuple[str, ...]:
    """Modes for another number of layers: as many of each kind, the last kind for more."""
    modes = stage.modes
    return (*modes[:size], *(modes[-1:] * (size - len(modes)))) if set(modes) != {"none"} else ()


def cost(
    plan: HybridPlan | PipelinePlan, rounded: HybridPlan | PipelinePlan, target: Any = None
) -> str:
    """Return in words by how much a rounded plan is slower: ``a step 1.2 % longer (3.4 s)``.

    Args:
        plan: as it was planned.
        rounded: as it is run.
        target: what both are judged on (default: the plan's instance).
    """
    report = judge(rounded, target)
    seconds, old = report.length_seconds, judge(plan, target).length_seconds
    if not report.legal:
        return f"and the judge says: {report.reasons[0]}"
    change = seconds / old - 1
    words = "longer" if change > 0 else "shorter"
    return f"a step {abs(change):.2%} {words} ({duration(seconds)})"


def stages_of(plan: Plan, graph: Graph | None = None) -> PlannedStages:
    """Return the stages of a hybrid or pipeline plan, of whole layers.

    Args:
        plan: the plan.
        graph: the graph that it was made for (default: the plan's instance).

    Raises:
        InfeasibleError: the judge finds the plan illegal, or there are fewer layers than stages.
        ParenvsError: a plan of another task, or of a profile, which has no layers.
    """
    if isinstance(plan, PipelinePlan):
        return _of_pipeline(plan, graph)
    if not isinstance(plan, HybridPlan):
        raise ParenvsError(
            f"task: {plan.task} has no stages; export --to jax, or plan with --task hybrid"
        )
    target = None if graph is None else HybridModel.of_graph(graph)
    report = judge(plan, target)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    model = report.model
    names = tuple(f"layer_{i}" for i in range(len(model)))
    notes: tuple[str, ...] = ()
    if plan.servers:
        notes = (f"servers: start the ranks on the servers in the order {list(plan.servers)}",)
    return PlannedStages(
        plan=plan,
        names=names if model.chain is None else model.chain.names,
        stages=plan.stages,
        batch=plan.batch,
        micro_batch=plan.micro_batch,
        schedule=plan.schedule,
        chunks=plan.chunks,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context,
        expert=plan.expert,
        shard=plan.shard,
        precision=plan.precision,
        shape=model.shape,
        target=target,
        notes=notes,
    )


def _of_pipeline(plan: PipelinePlan, graph: Graph | None) -> PlannedStages:
    """The stages of a pipeline plan, its cuts moved to borders between layers."""
    if plan.instance.endswith(".csv"):
        raise ParenvsError(f"instance: {plan.instance} is a profile, which has no layers by name")
    report = judge(plan, graph)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    source = load_graph(plan.instance, "forward") if graph is None else graph
    program = Program.of(source, twice=True)
    names, bounds = program.borders.names, program.borders.bounds
    if len(names) < len(plan.cuts) + 1:
        raise InfeasibleError(
            f"cuts: {len(plan.cuts) + 1} stages of {len(names)} layers; no border is left"
        )
    chosen = nearest_borders(plan.cuts, bounds[1:-1])
    moved = replace(plan, cuts=tuple(int(bounds[1 + k]) for k in chosen), cut_after=())
    notes = []
    for number, (old, new, k) in enumerate(zip(plan.cuts, moved.cuts, chosen, strict=True), 1):
        if old != new:
            notes.append(
                f"cut {number} moved by {new - old:+d} of {len(program.pivots):,} pivots, in front "
                f"of {names[k + 1]}"
            )
    if notes:
        notes.append(f"with the cuts moved, {cost(plan, moved, graph)}")
    ends = [0, *(k + 1 for k in chosen), len(names)]
    devices = [0, *plan.device_cuts, plan.cluster.devices]
    mode = plan.recompute
    stages = tuple(
        HybridStage(
            ((ends[s], ends[s + 1]),),
            devices[s + 1] - devices[s],
            recompute=(mode,) * (ends[s + 1] - ends[s]) if mode != "none" else (),
        )
        for s in range(len(ends) - 1)
    )
    for remark in report.remarks[:1]:
        raise InfeasibleError(f"micro_batch: {remark}; plan anew without --fractions")
    return PlannedStages(
        plan=plan,
        names=names,
        stages=stages,
        batch=plan.micro_batch * plan.micro_batches,
        micro_batch=plan.micro_batch // stages[0].devices,
        bounds=tuple(bounds.tolist()),
        target=graph,
        notes=tuple(notes),
    )


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
