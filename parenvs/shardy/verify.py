"""Partition plans against XLA's own partitioner, Shardy, in process (extra ``jax``).

A plan lists all variables that it partitions. Shardy is told one of them for each dimension class,
the first by path, and has to find the others by itself; then every dimension of every input of the
module (variables, optimiser state, batch) is compared, and nothing may be resharded.

All-reduces: the judge counts one for each instruction that leaves a partial result, Shardy one for
each result of it; only a reduction of several arrays, as in argmax, has more than one. What is in a
function counts once for each call, what is in a loop once.

Shardy does not propagate to dimensions that are no multiple of the mesh axis, and whether a plan is
legal does not depend on its size. So the axis has the size with which most classes can be compared:
a divisor of the plan's devices, the largest one, or else a prime. Classes that are still left out
are reported as not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.graph.graph import Graph
from parenvs.instances import load_graph
from parenvs.partitioning.classes import scope_of
from parenvs.partitioning.problem import Partitioning, PartitionReport
from parenvs.plan import PartitionPlan, Plan
from parenvs.shardy.module import module_of, need_jax
from parenvs.shardy.oracle import ShardyOracle

_MOST_NAMED = 3


@dataclass(frozen=True)
class Disagreement:
    """An input that Shardy partitions differently.

    Attributes:
        path: of the input.
        ours: dimensions that the plan partitions, or brings about.
        shardy: dimensions that Shardy partitions.
    """

    path: str
    ours: tuple[int, ...]
    shardy: tuple[int, ...]


@dataclass(frozen=True)
class Verification:
    """What Shardy says of a partition plan.

    Attributes:
        instance: the plan's.
        task: the plan's.
        legal: whether the judge finds it legal.
        mesh: size of the mesh axis.
        decided: dimensions that Shardy was told, one for each class that was compared.
        compared: inputs that were compared, of those with a dimension larger than 1.
        disagreements: those of them that are partitioned differently.
        not_compared: what was left out: a dimension that the plan partitions -> the reason.
        reshards: types of the values that Shardy has to reshard.
        collectives: number of each collective that Shardy inserts.
        predicted_all_reduces: number of all-reduces by the judge, without what was left out.
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
        """Whether all compared inputs agree and nothing is resharded.

        False as well if everything that the plan partitions had to be left out.
        """
        vacuous = bool(self.not_compared) and not self.decided
        return not (self.disagreements or self.reshards or vacuous)

    @property
    def all_reduces(self) -> int:
        """Number of all-reduces by Shardy."""
        return self.collectives.get("all_reduce", 0)

    def to_json(self) -> dict[str, Any]:
        """The verification as an object of JSON types."""
        disagreements = [
            {"path": one.path, "ours": list(one.ours), "shardy": list(one.shardy)}
            for one in self.disagreements
        ]
        return {
            "agrees": self.agrees,
            **asdict(self),
            "disagreements": disagreements,
            "reshards": list(self.reshards),
            "all_reduces": self.all_reduces,
        }

    def text(self) -> str:
        """The verification in a few sentences."""
        verdict = "Shardy agrees" if self.agrees else "Shardy disagrees"
        judged = "legal" if self.legal else "illegal"
        agreed = self.compared - len(self.disagreements)
        words = [
            f"{verdict} with this {self.task} plan of {self.instance}, {judged} by the judge.",
            f"Told {_count(self.decided, 'dimension')} on a mesh axis of {self.mesh}, it "
            f"partitions {agreed:,} of {_count(self.compared, 'input')} as the plan does and "
            f"reshards {_count(len(self.reshards), 'value')}.",
        ]
        if self.disagreements:
            some = [
                f"{x.path} (plan: {_numbers(x.ours)}; Shardy: {_numbers(x.shardy)})"
                for x in self.disagreements
            ]
            words.append(f"Dimensions that differ: {_some(some)}.")
        if self.reshards:
            words.append(f"Resharded: {_some(self.reshards)}.")
        same = self.all_reduces == self.predicted_all_reduces
        expected = "as predicted" if same else f"{self.predicted_all_reduces:,} were predicted"
        words.append(f"It inserts {_count(self.all_reduces, 'all-reduce')}, {expected}.")
        if self.not_compared:
            some = [f"{name} ({reason})" for name, reason in self.not_compared.items()]
            words.append(f"Not compared: {_some(some)}.")
        return " ".join(words)


def verify_plan(plan: Plan, source: Any = None) -> Verification:
    """Verify a partition plan; its graph is loaded by the plan's instance, or read from the source.

    Args:
        plan: of operator partitioning or data parallelism.
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
    """Propagate a plan's decisions with Shardy and compare.

    Args:
        graph: the graph that the plan is for.
        plan: of operator partitioning or data parallelism.
        source: the module that the graph was read from (a graph holds arrays only): what
            ``jax.jit(f, keep_unused=True).lower(...)`` returns, the path of a ``.pb`` or ``.txt``,
            or a shipped name (default: the plan's instance).

    Raises:
        ParenvsError: no JAX, a plan that is not for the graph, or a source that is not its module.
    """
    need_jax()
    if not isinstance(plan, PartitionPlan):
        raise ParenvsError(f"only partition plans can be verified, not one of task {plan.task!r}")
    if plan.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {graph.name} is "
            f"{graph.fingerprint[:19]}...; make the plan anew, or verify it on the graph that it "
            "was made for"
        )
    module = module_of(plan.instance if source is None else source)
    # What is named when a graph is read is no property of the module: roles and batch size.
    same = replace(
        module.graph,
        batch_size=graph.batch_size,
        parameter_role=graph.parameter_role,
        free=graph.free,
    )
    if same.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"{module.where}: not the module that the plan's graph was read from; {module.remedy}"
        )
    problem = Partitioning.build(graph, plan.cluster, plan.rules, plan.uneven)
    return _compare(plan, problem, module.proto)


def _compare(plan: PartitionPlan, problem: Partitioning, proto: bytes) -> Verification:
    """Tell Shardy one dimension of each class of a plan, and compare all inputs."""
    graph, label = problem.graph, problem.classes.label
    report = problem.report(plan)
    number = {graph.paths[k]: k for k in problem.parameters("all").tolist()}
    first: dict[int, tuple[int, int]] = {}  # class -> its first input and dimension in the plan
    for path, dimension in sorted(plan.partition.items()):
        shape = _shape(graph, number[path]) if path in number else ()
        if not 0 <= dimension < len(shape) or shape[dimension] == 1:
            raise ParenvsError(report.reasons[0])
        at = _start(graph, number[path]) + dimension
        first.setdefault(int(label[at]), (number[path], dimension))
    sizes = {one: graph.dims[(label == one) & (graph.dims > 1)] for one in first}
    mesh = _mesh(plan.cluster.devices, [int(np.gcd.reduce(x)) for x in sizes.values()])
    left_out = {one: int(x[x % mesh != 0].min()) for one, x in sizes.items() if (x % mesh).any()}
    compared = report
    if left_out:
        rest = {
            path: d
            for path, d in plan.partition.items()
            if int(label[_start(graph, number[path]) + d]) not in left_out
        }
        compared = problem.report(replace(plan, partition=rest))
    decided = [pair for one, pair in first.items() if one not in left_out]
    found = ShardyOracle(proto, mesh).propagate(decided)
    theirs: list[list[int]] = [[] for _ in graph.paths]
    for k, dimension in found.partitioned:
        theirs[k].append(dimension)
    count, disagreements = 0, []
    for k, ours in enumerate(_partitioned(compared)):
        wide = _wide(graph, k)
        if not len(wide) or any(one in left_out for one in label[wide].tolist()):
            continue
        count += 1
        if ours != theirs[k]:
            disagreements.append(Disagreement(graph.paths[k], tuple(ours), tuple(theirs[k])))
    return Verification(
        instance=plan.instance,
        task=plan.task,
        legal=report.legal,
        mesh=mesh,
        decided=len(decided),
        compared=count,
        disagreements=tuple(disagreements),
        not_compared={
            report.explainer.dimension(_start(graph, first[one][0]) + first[one][1]): (
                f"size {size} in its class is no multiple of {mesh}"
            )
            for one, size in left_out.items()
        },
        reshards=found.reshards,
        collectives=dict(found.collectives),
        predicted_all_reduces=compared.all_reduces,
    )


def _partitioned(report: PartitionReport) -> list[list[int]]:
    """(P,) dimensions of each entry parameter that a plan partitions or brings about.

    What the task decides counts as the plan says it, so that a variable left out shows.
    """
    problem, plan = report.problem, report.plan
    graph = problem.graph
    nameable = set(problem.parameters("all").tolist())
    decided = set(problem.parameters(scope_of(plan.task, "paper")).tolist())
    found = []
    for k, path in enumerate(graph.paths):
        if k in nameable and path in plan.partition:
            found.append([plan.partition[path]])
        elif k in decided:
            found.append([])
        else:
            wide = _wide(graph, k)
            follows = wide[report.chosen[problem.classes.label[wide]]]
            found.append((follows - _start(graph, k)).tolist())
    return found


def _mesh(devices: int, sizes: Sequence[int]) -> int:
    """Size of the mesh axis that divides most of the classes' common factors."""
    divisors = [n for n in range(devices, 1, -1) if devices % n == 0]
    primes = {next(n for n in range(2, size + 1) if size % n == 0) for size in sizes if size > 1}
    return max([*divisors, *sorted(primes)], key=lambda n: sum(size % n == 0 for size in sizes))


def _start(graph: Graph, parameter: int) -> int:
    """Position in ``graph.dims`` of the first dimension of an entry parameter."""
    return int(graph.dim_offset[graph.parameter_tensor[parameter]])


def _wide(graph: Graph, parameter: int) -> np.ndarray:
    """Positions in ``graph.dims`` of the dimensions larger than 1 of an entry parameter."""
    start = _start(graph, parameter)
    return start + np.flatnonzero(np.array(_shape(graph, parameter)) > 1)


def _shape(graph: Graph, parameter: int) -> tuple[int, ...]:
    return graph.shape(int(graph.parameter_tensor[parameter]))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _numbers(dimensions: Sequence[int]) -> str:
    return ", ".join(map(str, dimensions)) or "none"


def _some(texts: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = len(texts) - _MOST_NAMED
    return "; ".join([*texts[:_MOST_NAMED], *([f"and {more:,} more"] if more > 0 else [])])
