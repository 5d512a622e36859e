"""How a plan splits every input and output of a training step over the axes of a mesh.

A partition plan has one axis over all of its devices. A hybrid plan of one stage has two: ``data``
over the replicas, which split the classes of the batch, and ``model`` over the tp ranks, which are
neighbours, so that the model's axis is the last one of the mesh.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parenvs.core.judge import judge
from parenvs.core.plan import Plan
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph, Role
from parenvs.graph.training import find_updates
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.graph.splitting import Splitting
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.partition.classes import DimensionClasses, dimension_classes
from parenvs.tasks.partition.explain import Explainer, shape_text
from parenvs.tasks.partition.plan import PartitionPlan

DATA, MODEL = "data", "model"
"""Names of the axes."""
STATES = (Role.OPTIMISER,)
"""Roles of inputs that replicas share from ZeRO 1 on."""
WEIGHTS = (*STATES, Role.VARIABLE, Role.FROZEN)
"""The same at ZeRO 3."""
UPDATED = (Role.VARIABLE, Role.OPTIMISER, Role.STATISTICS)
"""Roles of inputs that a step writes anew, in their place."""
Spec = tuple[str | None, ...]
"""The axis that splits each dimension of a tensor."""
_NAMED = 3
_PART = re.compile(r"\[\d+\]$")


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh.

    Attributes:
        name: ``"data"`` or ``"model"``.
        size: number of devices along it.
        chosen: (C,) bool, the dimension classes that it splits.
    """

    name: str
    size: int
    chosen: np.ndarray


@dataclass(frozen=True, eq=False)
class Sharding:
    """How a training step is split over a mesh. P inputs, O outputs, C dimension classes.

    Attributes:
        plan: the plan.
        graph: the step.
        classes: its dimension classes.
        axes: the axes of the mesh, the last one over neighbours.
        zero: 0 to 3, which states the data's axis shares besides.
        notes: what the plan says and shardings of inputs cannot, in sentences.
    """

    plan: Plan
    graph: Graph
    classes: DimensionClasses
    axes: tuple[MeshAxis, ...]
    zero: int = 0
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return int(np.prod([axis.size for axis in self.axes]))

    @cached_property
    def taken_places(self) -> dict[int, int]:
        """Output's tensor -> tensor of the input whose place it takes."""
        return {update.output: update.source for update in find_updates(Flow(self.graph))}

    @cached_property
    def _shared(self) -> dict[int, int]:
        """Tensor of an input -> its dimension that ZeRO splits: the largest that can be."""
        roles = WEIGHTS if self.zero == 3 else STATES if self.zero else ()
        shared: dict[int, int] = {}
        for tensor, role in zip(
            self.graph.parameter_tensor.tolist(), self.graph.parameter_role.tolist(), strict=True
        ):
            whole = [
                (size, -dimension)
                for dimension, (size, axis) in enumerate(
                    zip(self.graph.shape(tensor), self.spec_by_class(tensor), strict=True)
                )
                if axis is None and size % self.axes[0].size == 0
            ]
            if role in roles and whole and self.axes[0].size > 1:
                shared[tensor] = -max(whole)[1]
        return shared

    def spec_by_class(self, tensor: int) -> Spec:
        """Return the axis that splits each dimension of a tensor by its class, without ZeRO."""
        start, end = self.graph.dim_offset[tensor : tensor + 2].tolist()
        spec: list[str | None] = [None] * (end - start)
        for axis in self.axes:
            split = axis.chosen[self.classes.label[start:end]] & (self.graph.dims[start:end] > 1)
            for dimension in np.flatnonzero(split).tolist():
                spec[dimension] = axis.name
        return tuple(spec)

    def spec(self, tensor: int) -> Spec:
        """Return the axis that splits each dimension of a tensor, None where none does."""
        spec = list(self.spec_by_class(tensor))
        source = self.taken_places.get(tensor, tensor)
        if source in self._shared and self.graph.shape(tensor) == self.graph.shape(source):
            spec[self._shared[source]] = self.axes[0].name
        return tuple(spec)

    @cached_property
    def inputs(self) -> tuple[Spec, ...]:
        """(P,) specs of the step's inputs, in the order of the flat arguments."""
        return tuple(self.spec(t) for t in self.graph.parameter_tensor.tolist())

    @cached_property
    def outputs(self) -> tuple[Spec, ...]:
        """(O,) specs of the step's results."""
        return tuple(self.spec(t) for t in self.graph.outputs.tolist())

    @property
    def donated(self) -> tuple[int, ...]:
        """Inputs that the step writes anew, by number."""
        return tuple(np.flatnonzero(np.isin(self.graph.parameter_role, UPDATED)).tolist())

    def share(self, spec: Spec) -> float:
        """Share of a tensor that a device holds."""
        sizes = {axis.name: axis.size for axis in self.axes}
        return float(1 / np.prod([sizes[name] for name in spec if name is not None]))

    def check_even(self, framework: str = "JAX") -> None:
        """Refuse what frameworks refuse: an input or output that an axis does not divide.

        Args:
            framework: its name, for the line.

        Raises:
            InfeasibleError: there is one; the line names the first few.
        """
        sizes = {axis.name: axis.size for axis in self.axes}
        names = dict(zip(self.graph.parameter_tensor.tolist(), self.graph.paths, strict=True))
        odd = [
            f"dimension {dimension} of {names.get(tensor, 'an output')}, "
            f"{shape_text(self.graph, tensor)}, by {sizes[axis]}"
            for tensor, spec in zip(
                [*self.graph.parameter_tensor.tolist(), *self.graph.outputs.tolist()],
                (*self.inputs, *self.outputs),
                strict=True,
            )
            for dimension, axis in enumerate(spec)
            if axis is not None and self.graph.shape(tensor)[dimension] % sizes[axis]
        ]
        if odd:
            more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
            raise InfeasibleError(
                f"{framework} splits evenly only, and the plan splits {'; '.join(odd[:_NAMED])}"
                f"{more}; make the plan with --uneven forbid"
            )


def sharding_of(plan: Plan, graph: Graph | None = None, pipelines: bool = False) -> Sharding:
    """Return how a plan splits the training step that it was made for.

    Args:
        plan: a plan of operator partitioning or data parallelism, or a hybrid one of one stage.
        graph: the step's graph (default: the plan's instance).
        pipelines: whether hybrid plans may have stages, whose meshes are all alike.

    Raises:
        InfeasibleError: the judge finds the plan illegal, or the batch cannot be split.
        ParenvsError: a plan of another task, of a shape, or with stages, or for another graph.
    """
    if not isinstance(plan, PartitionPlan | HybridPlan):
        raise ParenvsError(
            f"shardings take plans of partitions and hybrid plans, not of task {plan.task!r}"
        )
    if isinstance(plan, HybridPlan):
        return _of_hybrid(plan, graph, pipelines)
    report = judge(plan, load_graph(plan.instance) if graph is None else graph)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    name = DATA if plan.scope == "inputs" else MODEL
    axis = MeshAxis(name, plan.cluster.devices, report.chosen)
    return Sharding(plan, report.problem.graph, report.problem.classes, (axis,))


def _of_hybrid(plan: HybridPlan, graph: Graph | None, pipelines: bool) -> Sharding:
    """The sharding of a hybrid plan of one stage, or of the first of stages that are alike."""
    if len(plan.stages) > 1 and not pipelines:
        raise ParenvsError(
            f"stages: JAX's shardings have no pipeline, and the plan has {len(plan.stages)} "
            "stages; plan with --stages 1, or export --to torch"
        )
    for name, what, other in (("context", "tokens", 1), ("expert", "experts", 1),
                              ("shard", "states", 0)):  # fmt: skip
        if getattr(plan, name) > 1:
            raise ParenvsError(
                f"{name}: shardings of inputs cannot say which ranks share {what}; plan with "
                f"--{name} {other}"
            )
    report = judge(plan) if graph is None else judge(plan, HybridModel.of_graph(graph))
    chain = report.model.chain
    if chain is None:
        raise ParenvsError(
            f"{plan.instance} is a shape, which has no parameters by path; plan the step itself "
            "(parenvs plan FILE.py:FUNCTION --task hybrid)"
        )
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    stage = plan.stages[0]
    graph = load_graph(plan.instance) if graph is None else graph
    classes, split = _model_classes(graph, chain.splitting, stage.tp)
    replicas = stage.devices // stage.tp
    batch = _batch_classes(classes, graph) if replicas > 1 else np.zeros(len(classes), bool)
    axes = (MeshAxis(DATA, replicas, batch), MeshAxis(MODEL, stage.tp, split))
    return Sharding(plan, graph, classes, axes, stage.zero, _notes(plan, report))


def _model_classes(
    graph: Graph, splitting: Splitting, tp: int
) -> tuple[DimensionClasses, np.ndarray]:
    """The classes of a graph, and (C,) bool, those that tp ranks split.

    The chain's own graph has loops over layers written out, whose weights are parts of the graph's:
    ``layers/q[3]`` is the fourth row of ``layers/q``.
    """
    written = splitting.program.graph
    split = splitting.class_shares(tp) < 1
    if written is graph:
        return splitting.classes, split
    classes = dimension_classes(graph)
    chosen = np.zeros(len(classes), dtype=bool)
    whole = dict(zip(graph.paths, graph.parameter_tensor.tolist(), strict=True))
    for path, part in zip(written.paths, written.parameter_tensor.tolist(), strict=True):
        start, end = written.dim_offset[part : part + 2].tolist()
        cut = split[splitting.classes.label[start:end]] & (written.dims[start:end] > 1)
        last = int(graph.dim_offset[whole[_PART.sub("", path)] + 1])
        for dimension in np.flatnonzero(cut).tolist():  # a loop's own dimension comes first
            chosen[classes.label[last - (end - start) + dimension]] = True
    words = Explainer(classes)
    for label in np.flatnonzero(chosen & classes.blocked).tolist():
        raise InfeasibleError(f"stages[0].tp: a loop cannot be split so: {words.blocked(label)}")
    for first, second in classes.conflicts[chosen[classes.conflicts].all(axis=1)].tolist():
        raise InfeasibleError(
            f"stages[0].tp: a loop cannot be split so: {words.conflict(first, second)}"
        )
    return classes, chosen


def _batch_classes(classes: DimensionClasses, graph: Graph) -> np.ndarray:
    """(C,) bool, the classes of the batch inputs' first dimensions."""
    chosen = np.zeros(len(classes), dtype=bool)
    for parameter in np.flatnonzero(graph.parameter_role == Role.BATCH).tolist():
        tensor = int(graph.parameter_tensor[parameter])
        shape = graph.shape(tensor)
        if shape and shape[0] == graph.batch_size > 1:
            chosen[classes.label[graph.dim_offset[tensor]]] = True
    words = Explainer(classes)
    for label in np.flatnonzero(chosen & classes.blocked).tolist():
        raise InfeasibleError(f"the batch cannot be split: {words.blocked(label)}")
    for first, second in classes.conflicts[chosen[classes.conflicts].all(axis=1)].tolist():
        raise InfeasibleError(f"the batch cannot be split: {words.conflict(first, second)}")
    if not chosen.any():
        raise InfeasibleError(
            f"{graph.name}: no batch input begins with the batch of {graph.batch_size}; name the "
            "inputs with --batch"
        )
    return chosen


def _notes(plan: HybridPlan, report: object) -> tuple[str, ...]:
    """What a hybrid plan says beyond the shardings of inputs and outputs."""
    stage = plan.stages[0]
    notes = []
    micro_batches = report.micro_batches  # type: ignore[attr-defined]
    if micro_batches > 1:
        notes.append(
            f"micro_batch: a step has {micro_batches} micro-batches; sum their gradients in the "
            "step (lax.scan), or the batch is computed at once and needs their memory together"
        )
    if set(stage.modes) - {"none"}:
        counts = {mode: stage.modes.count(mode) for mode in ("full", "selective")}
        words = " and ".join(f"{n} in {mode}" for mode, n in counts.items() if n)
        notes.append(f"recompute: of the layers {words}; wrap these in jax.checkpoint")
    if plan.sequence_parallel:
        notes.append(
            "sequence_parallel: what lies between the matrices is split where the step says so "
            "(lax.with_sharding_constraint of the residual stream), else it is whole on each rank"
        )
    if stage.zero == 2:
        notes.append("zero: XLA decides where gradients are; ZeRO 2 is exported as ZeRO 1")
    return tuple(notes)
