"""How the dimension classes that a plan splits lay out a step's arrays, and what they cost there.

What is all-reduced and memory are predicted twice: as the graph has them, and as XLA's compiler for
CPUs makes them, which is the one that compiles on virtual devices. It computes in float32 what is
bfloat16, and rewrites the backward pass of max pooling (``select-and-scatter``) as a scatter: for
each dimension of the pooled tensor an int32 tensor of its size is written out, the position of
every element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.compiled import Array
from parenvs.core.plan import Strategy, judge
from parenvs.core.stages import Step
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.checks import ELEMENT_TYPES
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.layout import DATA, MODEL, Layout, MeshAxis, Prediction
from parenvs.instances import load_graph
from parenvs.tasks.partition import formulas
from parenvs.tasks.partition.classes import RULE_SETS, DimensionClasses, nested
from parenvs.tasks.partition.eager import causes_of
from parenvs.tasks.partition.formulas import Footprint
from parenvs.tasks.partition.problem import SCOPES, Partitioning, PartitionPlan, PartitionReport
from parenvs.tasks.partition.words import Explainer

if TYPE_CHECKING:
    from typing_extensions import Self

_CODES = {name: code for code, (name, _) in ELEMENT_TYPES.items()}
_INDEX_BYTES = 4
_VIEWS = ("reshape", "transpose", "copy", "bitcast", "convert")
"""Operations that a partial result passes unchanged."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassLayout(Layout):
    """A layout by dimension classes. C classes.

    Attributes:
        chosen: of each axis, (C,) bool, the classes that it splits.
    """

    classes: DimensionClasses
    chosen: tuple[Array, ...]

    @classmethod
    def of(
        cls,
        plan: Any,
        graph: Graph,
        classes: DimensionClasses,
        axes: Iterable[tuple[str, int, Array]],
        zero: int = 0,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """Return the layout of axes: name, number of devices and chosen classes of each."""
        names, sizes, chosen = zip(*axes, strict=True)
        split = (graph.dims > 1) & np.array(chosen)[:, classes.label]
        mesh = tuple(map(MeshAxis, names, sizes, split))
        return cls(plan, graph, mesh, zero, notes, classes=classes, chosen=chosen)

    @property
    def causes(self) -> Mapping[str, str]:
        """See ``Layout``."""
        return causes_of(self.graph, self.classes)

    def expected(self) -> Prediction:
        """Return the all-reduces of a step, and memory.

        A result that several axes leave partial is all-reduced once, over all of them.
        """
        graph, classes = self.graph, self.classes
        chosen = np.logical_or.reduce(self.chosen)
        partial, share = [], np.ones(len(classes))
        for axis, split in zip(self.axes, self.chosen, strict=True):
            partial.append(formulas.partial_instructions(classes, split))
            share = np.where(split, formulas.device_share(classes, axis.size), share)
        _, results = graph.makes(np.unique(np.concatenate(partial)))
        arguments = sum(
            float(graph.tensor_bytes[tensor]) * self.share(spec)
            for tensor, spec in zip(graph.parameter_tensor.tolist(), self.inputs, strict=True)
        )

        def reduced_and_transient(graph: Graph) -> tuple[float, float]:
            footprint = Footprint(graph, classes.label, share)
            memory = footprint.memory(chosen)
            device_bytes = (graph.tensor_bytes * footprint.scale(chosen))[results]
            return float(device_bytes.sum()), memory.gradients + memory.activations

        reduced, transient = reduced_and_transient(graph)
        cpu_reduced, cpu_transient = reduced_and_transient(_widened(graph))
        indices = _index_bytes(graph, np.where(chosen, share, 1.0)[classes.label])
        return Prediction(
            arrays=len(results),
            bytes=reduced,
            argument_bytes=arguments,
            peak_bytes=arguments + transient,
            cpu_bytes=cpu_reduced,
            cpu_peak_bytes=arguments + cpu_transient + indices,
        )

    def rank_bytes(self, axis: int) -> dict[str, float]:
        """Return kind -> bytes that a device all-reduces and gathers along an axis, as DTensors do.

        Partial gradients that are only added are summed once, where the cost model counts each. A
        softmax over a split dimension is computed from its gathered operand, where the cost model
        sums the partial maximum and sum.
        """
        graph, classes, chosen = self.graph, self.classes, self.chosen[axis]
        partial = set(formulas.partial_instructions(classes, chosen).tolist())
        # A softmax begins with a maximum, whose operand DTensor gathers instead.
        reductions = [i for i in sorted(partial) if _opcode(graph, i) in ("reduce", "gather")]
        maxima = [
            i
            for i in reductions
            if _opcode(graph, i) == "reduce" and '"maximum"' in graph.strings[graph.attribute[i]]
        ]
        gathered = graph.operands[graph.operand_offset[maxima]].tolist()
        signatures = [self._split_signature(chosen, tensor) for tensor in gathered]
        operands = graph.operands[graph.operand_offset[reductions]].tolist()
        pairs = zip(reductions, operands, strict=True)
        partial -= {i for i, t in pairs if self._split_signature(chosen, t) in signatures}
        share = np.where(chosen, formulas.device_share(classes, self.axes[axis].size), 1.0)
        device_bytes = graph.tensor_bytes * Footprint(graph, classes.label, share).scale(chosen)
        # Scalars such as the loss are left out.
        summed = [t for t in summed_of(graph, partial) if np.prod(graph.shape(t), initial=1) > 1]
        return {
            "all-gather": float(graph.tensor_bytes[gathered].sum()),
            "all-reduce": float(device_bytes[summed].sum()),
        }

    def _split_signature(self, chosen: Array, tensor: int) -> tuple[int, ...]:
        first, end = self.graph.dim_offset[tensor : tensor + 2]
        labels = self.classes.label[first:end]
        return (*self.graph.shape(tensor), *labels[chosen[labels]].tolist())


def layout(plan: PartitionPlan, graph: Graph | None = None, eager: bool = False) -> ClassLayout:
    """Return how a plan lays out the training step of ``graph`` (default: the plan's instance).

    ``eager`` splits operations one by one as they run, as in PyTorch.

    Raises:
        InfeasibleError: the plan is illegal.
        ParenvsError: the plan is for another graph.
    """
    report = judge(plan, load_graph(plan.instance) if graph is None else graph)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    name = MODEL if plan.scope == SCOPES[0] else DATA
    notes: tuple[str, ...] = ()
    if eager and name == MODEL and plan.rules == RULE_SETS[0]:
        notes = (
            "rules: DTensor gathers what it has no rule to split, which the judge does not price; "
            "Parallel.collectives counts it, and plans with --rules automap need none",
        )
    axis = (name, plan.cluster.devices, report.chosen)
    return ClassLayout.of(plan, report.problem.graph, report.problem.classes, [axis], notes=notes)


def strategy(report: PartitionReport) -> Strategy:
    """Return what a judged plan does, for its price; a hook of the task."""
    problem, how = report.problem, report.problem.step
    samples = problem.graph.batch_size if how.micro_batch is None else how.micro_batch
    return Strategy(
        graph=problem.graph,
        cluster=problem.cluster,
        devices=(problem.cluster.devices,),
        micro_batch=samples,
        micro_batches=how.micro_batches,
        split=problem.partition(report.chosen, "all"),
        recompute=how.recomputes,
    )


def step(plan: PartitionPlan, target: Any, element_bytes: int) -> Step:
    """Return what a step holds; elements have ``element_bytes`` unless the graph has its own."""
    report = judge(plan, target)
    adam = Role.OPTIMIZER in report.problem.graph.parameter_role.tolist()
    return Step((float(report.memory.peak),), adam=adam)


def _widened(graph: Graph) -> Graph:
    narrow = graph.element_type == _CODES["bf16"]
    wide = np.where(narrow, _CODES["f32"], graph.element_type)
    return replace(graph, element_type=wide.astype(graph.element_type.dtype))


def _index_bytes(graph: Graph, share: Array) -> float:
    """Bytes of the indices that max pooling keeps for its backward pass; they live together.

    ``share`` (N,) is the part of each dimension that a device holds.
    """
    if "select-and-scatter" not in graph.opcodes:
        return 0.0
    total = 0.0
    poolings = np.flatnonzero(graph.opcode == graph.opcodes.index("select-and-scatter"))
    for tensor in graph.operands[graph.operand_offset[poolings]].tolist():
        dims = slice(*graph.dim_offset[tensor : tensor + 2].tolist())
        elements = float(np.prod(graph.dims[dims] * share[dims]))
        total += _INDEX_BYTES * len(graph.dims[dims]) * elements
    return total


def _opcode(graph: Graph, number: int) -> str:
    return str(graph.opcodes[graph.opcode[number]])


def summed_of(graph: Graph, partial: set[int]) -> set[int]:
    """Return the tensors that are all-reduced if partial gradients are first added up.

    In the forward pass each module sums its results. ``partial`` are the instructions that leave
    partial results.
    """
    readers = Counter(graph.operands.tolist())
    for tensor in graph.outputs.tolist():
        readers[tensor] += 1
    summed: set[int] = set()
    operands = nested(graph.operands, graph.operand_offset)
    results = nested(graph.results, graph.result_offset)
    for index in range(len(graph.opcode)):
        opcode = _opcode(graph, index)
        is_sum = opcode == "add" and graph.phase[index] == Phase.BACKWARD
        postponed = summed.intersection(operands[index])
        if index in partial:
            summed.update(results[index])
        elif (opcode in _VIEWS or is_sum) and postponed and all(readers[t] == 1 for t in postponed):
            summed -= postponed
            summed.update(results[index])
    return summed


class Decisions:
    """The decisions of a plan on a graph of P inputs; the hook ``decisions`` of its task.

    Args:
        graph: what it is for. Whether it fits is no matter of rules, so it has no memory limit.

    Attributes:
        graph: the graph that is split, at the plan's micro-batch.
        legal: whether the judge finds the plan legal.
        label: (N,) class of each of ``graph.dims``; what is split in a class is split in all of it.
        decided: class that is split -> its first input in the plan, by path, and the dimension.

    Raises:
        ParenvsError: the plan names an input or a dimension that the graph does not have.
    """

    def __init__(self, plan: PartitionPlan, graph: Graph) -> None:
        step = {**plan.step, "memory_limit": None}
        self._problem = Partitioning.build(graph, plan.cluster, plan.rules, plan.uneven, **step)
        self._report = self._problem.report(plan)
        self._explainer = Explainer(self._problem.classes)
        self.graph = self._problem.graph
        self.legal: bool = self._report.legal
        self.label: Array = self._problem.classes.label
        self.decided: dict[int, tuple[int, int]] = {}
        nameable = self._problem.parameters("all").tolist()
        self._index = {self.graph.paths[k]: k for k in nameable}
        for path, dimension in sorted(plan.partition.items()):
            k = self._index.get(path, -1)
            shape = self.graph.shape(int(self.graph.parameter_tensor[k])) if k >= 0 else ()
            if not 0 <= dimension < len(shape) or shape[dimension] == 1:
                raise ParenvsError(self._report.reasons[0])
            label = int(self.label[self._first_position(k) + dimension])
            self.decided.setdefault(label, (k, dimension))

    def words(self, class_: int) -> str:
        """Return the dimension that decides a class, in words."""
        parameter, dimension = self.decided[class_]
        return self._explainer.dimension(self._first_position(parameter) + dimension)

    def classes_of(self, parameter: int) -> list[int]:
        """Return the classes of an input's dimensions larger than 1."""
        return self.label[self._splittable_positions(parameter)].tolist()

    def without(self, classes: Collection[int]) -> tuple[list[list[int]], int]:
        """Return what follows from the plan without some of its classes.

        Returns:
            (P,) dimensions of each input that it partitions or implies, and the number of its
            all-reduces. Inputs that the task decides have exactly the plan's dimension, so that a
            variable that the plan forgets shows.
        """
        report = self._report
        # All dimensions of a class go together: a plan with a part of it would be illegal.
        if classes:
            partition = {
                path: dimension
                for path, dimension in report.plan.partition.items()
                if self.label[self._first_position(self._index[path]) + dimension] not in classes
            }
            report = self._problem.report(replace(report.plan, partition=partition))
        return self._dimensions(report), report.all_reduces

    def _dimensions(self, report: PartitionReport) -> list[list[int]]:
        problem, plan = self._problem, report.plan
        nameable = set(problem.parameters("all").tolist())
        decided = set(problem.parameters(plan.scope).tolist())
        dimensions: list[list[int]] = []
        for k, path in enumerate(problem.graph.paths):
            positions = self._splittable_positions(k)
            implied = positions[report.chosen[self.label[positions]]] - self._first_position(k)
            named = [plan.partition[path]] if k in nameable and path in plan.partition else []
            dimensions.append(named if named or k in decided else implied.tolist())
        return dimensions

    def _first_position(self, parameter: int) -> int:
        return int(self.graph.dim_offset[self.graph.parameter_tensor[parameter]])

    def _splittable_positions(self, parameter: int) -> Array:
        return self._problem.classes.splittable(int(self.graph.parameter_tensor[parameter]))
