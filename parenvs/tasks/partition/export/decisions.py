"""What a partition plan decides, class by class, for a partitioner that propagates it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport


class Decisions:
    """The decisions of a plan on a graph of P inputs; the hook ``decisions`` of its task.

    Args:
        plan: the plan.
        graph: what it is for. Whether it fits is no matter of rules, so it has no memory limit.

    Attributes:
        graph: the graph that is split, at the plan's micro-batch.
        legal: whether the judge finds the plan legal.
        label: (N,) class of each of ``graph.dims``; what is split in a class is split in all of it.
        told: class that is split -> its first input in the plan, by path, and the dimension.

    Raises:
        ParenvsError: the plan names an input or a dimension that the graph does not have.
    """

    def __init__(self, plan: PartitionPlan, graph: Graph) -> None:
        step = {**plan.step, "memory_limit": None}
        self._problem = Partitioning.build(graph, plan.cluster, plan.rules, plan.uneven, **step)
        self._report = self._problem.report(plan)
        self.graph = self._problem.graph
        self.legal: bool = self._report.legal
        self.label: np.ndarray = self._problem.classes.label
        self.told: dict[int, tuple[int, int]] = {}
        nameable = self._problem.parameters("all").tolist()
        self._number = {self.graph.paths[k]: k for k in nameable}
        for path, dimension in sorted(plan.partition.items()):
            k = self._number.get(path, -1)
            shape = self.graph.shape(int(self.graph.parameter_tensor[k])) if k >= 0 else ()
            if not 0 <= dimension < len(shape) or shape[dimension] == 1:
                raise ParenvsError(self._report.reasons[0])
            self.told.setdefault(int(self.label[self._start(k) + dimension]), (k, dimension))

    def words(self, class_: int) -> str:
        """Return what a class is told by in words."""
        parameter, dimension = self.told[class_]
        return self._report.explainer.dimension(self._start(parameter) + dimension)

    def classes_of(self, parameter: int) -> list[int]:
        """Return the classes of an input's dimensions larger than 1."""
        found: list[int] = self.label[self._wide(parameter)].tolist()
        return found

    def without(self, classes: Collection[int]) -> tuple[list[list[int]], int]:
        """Return what follows from the plan without some of its classes.

        Returns:
            (P,) dimensions of each input that it partitions or implies, and the number of its
            all-reduces. Inputs that the task decides have exactly the plan's dimension, so that a
            variable that the plan forgets shows.
        """
        report = self._report
        if classes:
            partition = {
                path: dimension
                for path, dimension in report.plan.partition.items()
                if int(self.label[self._start(self._number[path]) + dimension]) not in classes
            }
            report = self._problem.report(replace(report.plan, partition=partition))
        return self._dimensions(report), report.all_reduces

    def _dimensions(self, report: PartitionReport) -> list[list[int]]:
        """Dimensions of each input, (P,), that a plan partitions or implies."""
        problem, plan = self._problem, report.plan
        nameable = set(problem.parameters("all").tolist())
        decided = set(problem.parameters(plan.scope).tolist())
        dimensions = []
        for k, path in enumerate(problem.graph.paths):
            if k in nameable and path in plan.partition:
                dimensions.append([plan.partition[path]])
            elif k in decided:
                dimensions.append([])
            else:
                positions = self._wide(k)
                implied = positions[report.chosen[self.label[positions]]]
                dimensions.append((implied - self._start(k)).tolist())
        return dimensions

    def _start(self, parameter: int) -> int:
        """Position in ``graph.dims`` of the first dimension of an input."""
        return int(self.graph.dim_offset[self.graph.parameter_tensor[parameter]])

    def _wide(self, parameter: int) -> np.ndarray:
        """Positions in ``graph.dims`` of an input's dimensions larger than 1."""
        shape = self.graph.shape(int(self.graph.parameter_tensor[parameter]))
        return self._start(parameter) + np.flatnonzero(np.array(shape) > 1)
