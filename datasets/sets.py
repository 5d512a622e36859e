"""Every shipped set of problems by its name: who plays it, and what its problems are worth.

A set belongs to an environment, which plays it with ``instance=SET, order="sequential"``. What the
returns on it are measured against is data, which planners prove and write: an optimum, or the best
plan known and a bound that no plan beats. Without a row there is still the unit of the returns,
which no plan beats: they are at most 1. An episode is worth its return; where returns are in
another unit, or of another kind, it is worth what its info says.

A task says all this of its sets in its hook ``sets``, a function from a name to a ``SetKind``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from parenvs.core.plan import ILLEGAL
from parenvs.core.registry import TASKS
from parenvs.datasets.references import references
from parenvs.errors import ParenvsError, did_you_mean, one_line, shown
from parenvs.shipped import data_folder


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
OPTIMUM, BEST_KNOWN, BOUND = KINDS = ("optimum", "best known", "bound")
"""Kinds of references."""


class SetKind(NamedTuple):
    """What a task says of a set.

    Attributes:
        env_id: id of the environment that plays it.
        names: gives the names of its problems, in their order.
        load: gives the problem of a name.
        reference: gives what returns on the problem of a name are measured against.
        argument: argument of the environment that leaves the problems of one family.
        worth: gives what a whole plan is worth, from the info at the end of its episode; None: its
            return.
    """

    env_id: str
    names: Callable[[str], list[str]]
    load: Callable[[str], Any]
    reference: Callable[[str], Reference]
    argument: str = "family"
    worth: Callable[[Mapping[str, float]], float] | None = None


def unit(name: str) -> Reference:
    """Return the reference of a problem of which nothing is known: a return of 1."""
    return Reference(1.0, 1.0, BOUND)


def of_row(
    file: str,
    name: str,
    fingerprint: Callable[[Any], str],
    value: Callable[[Any, str], float],
    of: str = "problem",
) -> Reference:
    """Return the reference of a problem by its row in a file of references.

    Args:
        file: name of the file.
        name: of the problem; without a row its reference is ``unit``.
        fingerprint: gives that which the row must have.
        value: gives the return of the plan of a row, from its ``"length"`` or its ``"bound"``.
        of: what has the fingerprint, in words.

    Raises:
        ParenvsError: the row is damaged, or of another problem.
    """
    row = references(file).get(name)
    if row is None:
        return unit(name)
    path = data_folder() / file
    try:
        if row["fingerprint"] != fingerprint(row):
            raise ParenvsError(f"{path}: {name}: of another {of}; make the file anew")
        best, bound = value(row, "length"), value(row, "bound")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ParenvsError(f"{path}: {name}: {one_line(error)}; make the file anew") from None
    return Reference(best, max(bound, best), OPTIMUM if row.get("proven") else BEST_KNOWN)


def timed_reference(file: str, name: str, problem: Any, fingerprint: str) -> Reference:
    """Return the reference of a problem whose returns are ``bound_seconds`` over its length.

    Args:
        file: name of the file of references.
        name: of the problem.
        problem: the problem.
        fingerprint: that which the row must have.
    """

    def value(row: Any, field: str) -> float:
        share = problem.bound_seconds / float(row[field])
        return min(share, 1.0) if field == "bound" else share

    found = of_row(file, name, lambda row: fingerprint, value)
    meets = found.value >= found.bound * (1 - SAME) and found.kind == BEST_KNOWN
    return found._replace(kind=OPTIMUM) if meets else found


@dataclass(frozen=True)
class ProblemSet:
    """A shipped set of problems.

    Attributes:
        name: its name.
        problems: names of its problems, in their order, ``SET/FAMILY-NUMBER``.
    """

    name: str
    problems: tuple[str, ...]
    _kind: SetKind

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
        return self._kind.reference(name)


def set_names() -> tuple[str, ...]:
    """Return the names of all shipped sets."""
    return tuple(name for task in TASKS.values() for name in task.sets)


@lru_cache(maxsize=64)
def set_of(name: str) -> ProblemSet:
    """Return a shipped set by its name.

    Raises:
        ParenvsError: there is no such set.
    """
    task = next((task for task in TASKS.values() if name in task.sets), None)
    if task is None:
        raise ParenvsError(
            f"unknown set {shown(name)}{did_you_mean(str(name), set_names())}; known: "
            f"{', '.join(set_names())}"
        )
    kind: SetKind = task.hook("sets")(name)
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
    return reference.value if reference is not None and reference.kind == OPTIMUM else None
