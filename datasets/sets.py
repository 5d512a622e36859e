"""Every shipped set of problems by its name: who plays it, and what its problems are worth.

A set belongs to an environment, which plays it with ``instance=SET, order="sequential"``. What the
returns on it are measured against is data, that other modules prove and write:

* ``plan-*``: proven optima (``parenvs.datasets.pipeline.optima``);
* ``hybrid-*``, ``hetero-*``, ``order-*``, ``partition-*`` and ``intra-op-*``: the best plan known
  and a bound that no plan beats (``parenvs.datasets.references``). Where they meet, or the row says
  so, the plan is an optimum.

Without a row there is still the unit of the returns, which no plan beats: they are at most 1. An
episode is worth its return; where returns are in another unit, or of another kind, it is worth what
its info says: ``intra-op-*`` the cost of the greedy plan over that of the plan, ``elastic-*`` the
share of the ideal of the very course.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from parenvs.core.plan import ILLEGAL
from parenvs.datasets.hybrid.named import find_hybrid
from parenvs.datasets.pipeline import sets as instance_sets
from parenvs.datasets.pipeline.optima import optimum_of
from parenvs.datasets.references import (
    HETERO,
    HYBRID,
    INTRA_OP,
    ORDERS,
    PARTITIONS,
    Row,
    references,
)
from parenvs.datasets.sharding import drawing as intra_op
from parenvs.errors import ParenvsError, did_you_mean, one_line, shown
from parenvs.shipped import data_folder, manifest
from parenvs.tasks.elastic.load import ELASTIC_SETS, elastic_rows, load_elastic
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.partition import sets as partitions
from parenvs.tasks.partition.sets import PARTITION_SETS


class Reference(NamedTuple):
    """What the return of an episode is measured against.

    Attributes:
        value: return of the best plan known; of the bound, if no plan is known.
        bound: a return that no plan exceeds, certified.
        kind: ``"optimum"`` (proven), ``"best known"`` or ``"bound"``.
    """

    value: float
    bound: float
    kind: str


SAME = 1e-9
"""Share by which a proven length and its bound may differ by rounding."""
KINDS = ("optimum", "best known", "bound")
"""Kinds of references."""


class _Kind(NamedTuple):
    """What the sets of an environment have in common.

    Attributes:
        env_id: id of the environment.
        argument: its argument that leaves the problems of one family.
        file: of the references; empty for optima of their own file.
        names: gives the names of the problems of a set.
        load: gives the problem of a name.
        worth: gives what a whole plan is worth, from the info at the end of its episode; None: its
            return.
    """

    env_id: str
    argument: str
    file: str
    names: Callable[[str], list[str]]
    load: Callable[[str], Any]
    worth: Callable[[Mapping[str, float]], float] | None = None


_PLAN = _Kind(
    "PipelinePlan-v0", "family", "",
    lambda name: [problem.name for problem in instance_sets.load_set(name)],
    lambda name: instance_sets.find(name).pipeline,
)  # fmt: skip
_HYBRID = _Kind(
    "HybridPlan-v0", "family", HYBRID,
    lambda name: [problem.instance for problem in problem_sets()[name]], find_hybrid,
)  # fmt: skip
_HETERO = _HYBRID._replace(file=HETERO)
_ORDER = _Kind(
    "MicroBatchOrder-v0", "tier", ORDERS,
    lambda name: [f"{name}/{member}" for member in ordering_steps(name)], load_ordering,
)  # fmt: skip
_PARTITION = _Kind(
    "PartitionPlan-v0", "family", PARTITIONS,
    lambda name: list(partitions.members(name)), partitions.load,
)  # fmt: skip
_INTRA_OP = _Kind(
    "IntraOpSharding-v0", "family", INTRA_OP, intra_op.set_names, intra_op.of_set,
    lambda info: max(info["reference"], 1.0) / max(info["cost"], 1.0),
)  # fmt: skip
_ELASTIC = _Kind(
    "ElasticPlan-v0", "family", "",
    lambda name: [f"{name}/{member}" for member in elastic_rows(name)], load_elastic,
    lambda info: info["share"],
)  # fmt: skip
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(instance_sets.SETS, _PLAN),
    **dict.fromkeys(ORDER_SETS, _ORDER),
    **dict.fromkeys(PARTITION_SETS, _PARTITION),
    **dict.fromkeys(intra_op.SETS, _INTRA_OP),
    **dict.fromkeys(ELASTIC_SETS, _ELASTIC),
}
"""Kind of each set but those of hybrid plans, whose names are read from their files."""


@dataclass(frozen=True)
class ProblemSet:
    """A shipped set of problems.

    Attributes:
        name: its name.
        problems: names of its problems, in their order, ``SET/FAMILY-NUMBER``.
    """

    name: str
    problems: tuple[str, ...]
    _kind: _Kind

    @property
    def env_id(self) -> str:
        """Id of the environment that plays it."""
        return self._kind.env_id

    def of(self, family: str | None) -> tuple[str, ...]:
        """Return the names of the problems of a family (of a tier of orders), or of all.

        Raises:
            ParenvsError: there are none.
        """
        found = tuple(x for x in self.problems if family in (None, family_named(x)))
        if not found:
            known = list(dict.fromkeys(map(family_named, self.problems)))
            raise ParenvsError(
                f"{self.name} has no problem of family {family!r}"
                f"{did_you_mean(str(family), known)}; known: {', '.join(known)}"
            )
        return found

    def env_kwargs(self, family: str | None) -> dict[str, Any]:
        """Return arguments with which the environment plays the set, or a family, in order."""
        return {"instance": self.name, self._kind.argument: family, "order": "sequential"}

    def load(self, name: str) -> Any:
        """Return the problem of a name."""
        return self._kind.load(name)

    @property
    def is_of_returns(self) -> bool:
        """Whether an episode is worth its return, and planners have names."""
        return self._kind.worth is None

    def worth(self, total: float, info: Mapping[str, float]) -> float:
        """Return what an episode is worth, -1 if it ended with an illegal action or plan.

        Args:
            total: its return.
            info: at its end.
        """
        if self._kind.worth is None:
            return total
        try:
            return self._kind.worth(info)
        except KeyError:
            return float(ILLEGAL)

    def reference(self, name: str) -> Reference:
        """Return what returns on a problem are measured against.

        Raises:
            ParenvsError: the row of the problem is damaged, or of another problem.
        """
        if self._kind is _ELASTIC:
            return Reference(1.0, 1.0, KINDS[2])
        if not self._kind.file:
            optimum = optimum_of(name)
            assert optimum is not None
            return Reference(optimum, optimum, KINDS[0])
        row = references(self._kind.file).get(name)
        if row is None:
            return Reference(1.0, 1.0, KINDS[2])
        if self._kind is _PARTITION:
            return _partition_reference(name, row)
        if self._kind is _INTRA_OP:
            return _intra_op_reference(name, row)
        problem = self.load(name)
        own = problem.model.fingerprint if isinstance(problem, Hybrid) else problem.fingerprint
        path = data_folder() / self._kind.file
        try:
            if row["fingerprint"] != own:
                raise ParenvsError(f"{path}: {name}: of another problem; make the file anew")
            bound = min(problem.bound_seconds / float(row["bound"]), 1.0)
            value = problem.bound_seconds / float(row["length"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ParenvsError(f"{path}: {name}: {one_line(error)}; make the file anew") from None
        proven = bool(row.get("proven")) or value >= bound * (1 - SAME)
        return Reference(value, max(bound, value), KINDS[0 if proven else 1])


def _partition_reference(name: str, row: Row) -> Reference:
    """Return the reference of a partition problem, whose graph need not be read for it."""
    path = data_folder() / PARTITIONS
    graphs = manifest()["instances"][partitions.row_of(name).instance]["graphs"]
    try:
        if row["fingerprint"] != graphs["train"]["fingerprint"]:
            raise ParenvsError(f"{path}: {name}: of another graph; make the file anew")
        replicated = float(row["replicated"])
        value = 1.0 - float(row["length"]) / replicated
        bound = 1.0 - float(row["bound"]) / replicated
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ParenvsError(f"{path}: {name}: {one_line(error)}; make the file anew") from None
    return Reference(value, max(bound, value), KINDS[0 if row.get("proven") else 1])


def _intra_op_reference(name: str, row: Row) -> Reference:
    """Return the reference of a sharding problem, which need not be drawn for it."""
    path = data_folder() / INTRA_OP
    try:
        if row["fingerprint"] != intra_op.fingerprint_of(name):
            raise ParenvsError(f"{path}: {name}: of another problem; make the file anew")
        greedy = max(float(row["greedy"]), 1.0)
        value = greedy / max(float(row["length"]), 1.0)
        bound = greedy / max(float(row["bound"]), 1.0)
    except (KeyError, TypeError, ValueError) as error:
        raise ParenvsError(f"{path}: {name}: {one_line(error)}; make the file anew") from None
    return Reference(value, max(bound, value), KINDS[0 if row.get("proven") else 1])


@lru_cache(maxsize=1)
def set_names() -> tuple[str, ...]:
    """Return the names of all shipped sets."""
    return (
        *instance_sets.SETS, *problem_sets(), *ORDER_SETS, *PARTITION_SETS, *intra_op.SETS,
        *ELASTIC_SETS,
    )  # fmt: skip


@lru_cache(maxsize=64)
def set_of(name: str) -> ProblemSet:
    """Return a shipped set by its name.

    Raises:
        ParenvsError: there is no such set.
    """
    if name not in set_names():
        raise ParenvsError(
            f"unknown set {shown(name)}{did_you_mean(str(name), set_names())}; known: "
            f"{', '.join(set_names())}"
        )
    kind = _KINDS.get(name, _HETERO if name.startswith("hetero-") else _HYBRID)
    return ProblemSet(name, tuple(kind.names(name)), kind)


def family_named(problem: str) -> str:
    """Return the family in the name of a set's problem, ``SET/FAMILY-NUMBER``."""
    return problem.rpartition("/")[2].rpartition("-")[0]


def known_reference(problem: str) -> Reference | None:
    """Return the reference of a problem by its name; None if it is of no shipped set."""
    set_name, slash, _ = problem.partition("/")
    if not slash or set_name not in set_names():
        return None
    found = set_of(set_name)
    return found.reference(problem) if problem in found.problems else None


@lru_cache(maxsize=4096)
def proven_optimum(problem: str) -> float | None:
    """Return the largest return on a problem of a shipped set, if it is proven."""
    reference = known_reference(problem)
    return reference.value if reference is not None and reference.kind == KINDS[0] else None
