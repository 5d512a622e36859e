"""Verifies partition plans with XLA's own partitioner, Shardy, in process (extra ``jax``).

A plan lists all variables that it partitions. Shardy is told one of them for each dimension class,
the first by path, and has to find the others by itself. Then every dimension of every input of the
module (variables, optimiser state, batch) is compared, and no value may be resharded.

All-reduces: the judge counts one for each partial result, as Shardy does; a reduction of several
arrays, as in argmax, leaves several. A collective in a function counts once for each call, one in a
loop once.

Shardy does not propagate to dimensions that are no multiple of the mesh axis, and whether a plan is
legal does not depend on the axis's size. So the axis gets the size with which most classes can be
compared: the largest such divisor of the plan's devices, or else a prime. The verification reports
the classes that are still left out as not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parenvs.core.plan import Plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph
from parenvs.shardy.module import Module, module_of, need_jax
from parenvs.shardy.oracle import ShardyOracle

_LISTED = 3
"""Items of a list that a sentence names; the others are counted."""


@dataclass(frozen=True)
class Disagreement:
    """An input that Shardy partitions differently.

    Attributes:
        path: path of the input.
        ours: dimensions that the plan partitions, or that follow from it by the rules.
        shardy: dimensions that Shardy partitions.
    """

    path: str
    ours: tuple[int, ...]
    shardy: tuple[int, ...]


@dataclass(frozen=True)
class Verification:
    """Result of comparing a partition plan with Shardy's propagation.

    Attributes:
        instance: instance of the plan.
        task: task of the plan.
        legal: whether the judge finds the plan legal.
        mesh: size of the mesh axis.
        decided: number of dimensions that Shardy was told, one for each class that was compared.
        compared: number of inputs that were compared, of those with a dimension larger than 1.
        disagreements: compared inputs that Shardy partitions differently.
        not_compared: a dimension that the plan partitions -> why its class was not compared.
        reshards: types of the values that Shardy has to reshard.
        collectives: name -> number of the collectives that Shardy inserts.
        predicted_all_reduces: number of all-reduces by the judge, in the classes compared.
    """

    instance: str
    task: str
    legal: bool
    mesh: int
    decided: int
    compared: int
    disagreements: tuple[Disagreement, ...]
    not_compared: Mapping[str, str]
    reshards: tuple[str, ...]
    collectives: Mapping[str, int]
    predicted_all_reduces: int

    @property
    def agrees(self) -> bool:
        """Whether all compared inputs agree and no value is resharded.

        False as well if no class that the plan partitions could be compared.
        """
        vacuous = bool(self.not_compared) and not self.decided
        return not (self.disagreements or self.reshards or vacuous)

    @property
    def all_reduces(self) -> int:
        """Number of all-reduces that Shardy inserts."""
        return self.collectives.get("all_reduce", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the verification as an object of JSON types."""
        disagreements = [
            {"path": x.path, "ours": list(x.ours), "shardy": list(x.shardy)}
            for x in self.disagreements
        ]
        return {
            "agrees": self.agrees,
            **asdict(self),
            "disagreements": disagreements,
            "reshards": list(self.reshards),
            "all_reduces": self.all_reduces,
        }

    def text(self) -> str:
        """Return the verification in a few sentences."""
        verdict = "Shardy agrees" if self.agrees else "Shardy disagrees"
        judged = "legal" if self.legal else "illegal"
        agreed = self.compared - len(self.disagreements)
        sentences = [
            f"{verdict} with this {self.task} plan of {self.instance}, {judged} by the judge.",
            f"Told {_count(self.decided, 'dimension')} on a mesh axis of {self.mesh}, it "
            f"partitions {agreed:,} of {_count(self.compared, 'input')} as the plan does and "
            f"reshards {_count(len(self.reshards), 'value')}.",
        ]
        if self.disagreements:
            differences = [
                f"{x.path} (plan: {_numbers(x.ours)}; Shardy: {_numbers(x.shardy)})"
                for x in self.disagreements
            ]
            sentences.append(f"Dimensions that differ: {_listed(differences)}.")
        if self.reshards:
            sentences.append(f"Resharded: {_listed(self.reshards)}.")
        same = self.all_reduces == self.predicted_all_reduces
        expected = "as predicted" if same else f"{self.predicted_all_reduces:,} were predicted"
        sentences.append(f"It inserts {_count(self.all_reduces, 'all-reduce')}, {expected}.")
        if self.not_compared:
            left_out = [f"{name} ({reason})" for name, reason in self.not_compared.items()]
            sentences.append(f"Not compared: {_listed(left_out)}.")
        return " ".join(sentences)


def verify_plan(plan: Plan, source: Any = None) -> Verification:
    """Verify a plan on the graph that its instance names, or else on that of ``source``.

    Args:
        plan: a plan of a task with decisions for a partitioner.
        source: the module; see ``verify``.

    Raises:
        ParenvsError: see ``verify``.
    """
    need_jax()
    if source is None:
        return verify(load_graph(plan.instance), plan)
    try:
        graph = load_graph(plan.instance)
    except UnknownInstanceError:
        graph = module_of(source).graph
    return verify(graph, plan, source)


def verify(graph: Graph, plan: Plan, source: Any = None) -> Verification:
    """Let Shardy propagate a plan's decisions, and compare every input of the module.

    Args:
        graph: the graph that the plan is for.
        plan: a plan of a task with decisions for a partitioner.
        source: the module that the graph was read from (a graph holds arrays only): what
            ``jax.jit(f, keep_unused=True).lower(...)`` returns, the path of a ``.pb`` or ``.txt``,
            or a shipped name (default: the plan's instance; beside a ``.npz``, the module of its
            name).

    Raises:
        ParenvsError: JAX is missing, the plan is not for the graph, or ``source`` is not its
            module.
    """
    need_jax()
    task = task_with(plan, Task.decisions)
    proto = module_for(graph, plan, source).proto
    return _compare(plan, task.decisions(plan, graph), proto)


def module_for(graph: Graph, plan: Plan, source: Any = None) -> Module:
    """Return the module that a plan's graph was read from.

    Args:
        graph: the graph that the plan is for.
        plan: the plan.
        source: see ``verify``.

    Raises:
        ParenvsError: the plan is not for the graph, or ``source`` is not its module.
    """
    if plan.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {graph.name} is "
            f"{graph.fingerprint[:19]}...; make the plan anew, or verify it on the graph that it "
            "was made for"
        )
    module = module_of(plan.instance if source is None else source)
    # Whoever reads a graph names its variables and batch size; they are no part of the module.
    same = replace(
        module.graph,
        batch_size=graph.batch_size,
        parameter_role=graph.parameter_role,
        phase=graph.phase,
        free=graph.free,
    )
    if same.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"{module.where}: not the module that the plan's graph was read from; {module.remedy}"
        )
    return module


def _compare(plan: Any, decisions: Any, proto: bytes) -> Verification:
    """Tell Shardy one dimension of each class of a plan, and compare all inputs."""
    graph, label = decisions.graph, decisions.label
    sizes = {class_: graph.dims[(label == class_) & (graph.dims > 1)] for class_ in decisions.told}
    mesh = _mesh(plan.cluster.devices, [int(np.gcd.reduce(x)) for x in sizes.values()])
    left_out = {  # class -> its smallest size that the mesh axis does not divide
        class_: int(size[size % mesh != 0].min())
        for class_, size in sizes.items()
        if (size % mesh).any()
    }
    expected, all_reduces = decisions.without(left_out)
    decided = [decision for class_, decision in decisions.told.items() if class_ not in left_out]
    propagation = ShardyOracle(proto, mesh).propagate(decided)
    theirs: list[list[int]] = [[] for _ in graph.paths]
    for k, dimension in propagation.partitioned:
        theirs[k].append(dimension)
    count, disagreements = 0, []
    for k, ours in enumerate(expected):
        classes = decisions.classes_of(k)
        if not classes or any(class_ in left_out for class_ in classes):
            continue
        count += 1
        if ours != theirs[k]:
            disagreements.append(Disagreement(graph.paths[k], tuple(ours), tuple(theirs[k])))
    return Verification(
        instance=plan.instance,
        task=plan.task,
        legal=decisions.legal,
        mesh=mesh,
        decided=len(decided),
        compared=count,
        disagreements=tuple(disagreements),
        not_compared={
            decisions.words(class_): f"size {size} in its class is no multiple of {mesh}"
            for class_, size in left_out.items()
        },
        reshards=propagation.reshards,
        collectives=dict(propagation.collectives),
        predicted_all_reduces=all_reduces,
    )


def _mesh(devices: int, sizes: Sequence[int]) -> int:
    """Return the size of the mesh axis with which most classes can be compared.

    Args:
        devices: devices of the plan; ties go to its largest divisor.
        sizes: greatest common divisor of the sizes in each class.
    """
    divisors = [n for n in range(devices, 1, -1) if devices % n == 0]
    primes = {next(n for n in range(2, size + 1) if size % n == 0) for size in sizes if size > 1}
    return max([*divisors, *sorted(primes)], key=lambda n: sum(size % n == 0 for size in sizes))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _numbers(dimensions: Sequence[int]) -> str:
    return ", ".join(map(str, dimensions)) or "none"


def _listed(texts: Sequence[str]) -> str:
    """Join the first ``_LISTED`` of ``texts``, and say how many more there are."""
    more = len(texts) - _LISTED
    return "; ".join([*texts[:_LISTED], *([f"and {more:,} more"] if more > 0 else [])])
