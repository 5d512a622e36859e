"""Every shipped set of problems by its name: who plays it, and what its problems are worth.

A set belongs to an environment, which plays it with ``instance=SET, order="sequential"``. What the
returns on it are measured against is data, which planners prove and write: an optimum, or the best
plan known and a bound that no plan beats. Without a row there is still the unit of the returns,
which no plan beats: they are at most 1. An episode is worth its return; where returns are in
another unit, or of another kind, it is worth what its info says.

A task says all this of its sets in its hook ``sets``, a function from a name to a ``SetKind``; on
which of them an agent is judged, in its hook ``validation``, a function from the arguments of the
environment of its hook ``train`` to a ``Validation``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from parenvs.core.plan import ILLEGAL, Answer
from parenvs.core.registry import TASKS, refuse_removed
from parenvs.errors import ParenvsError, did_you_mean, shown


class Reference(NamedTuple):
    """What the return of an episode is measured against.

    Attributes:
        bound: a return that no plan exceeds, certified.
        kind: ``"optimum"`` (proven), ``"best known"`` or ``"bound"``.
    """

    value: float
    bound: float
    kind: str


OPTIMUM, BEST_KNOWN, BOUND = KINDS = ("optimum", "best known", "bound")
"""Kinds of references."""


class SetKind(NamedTuple):
    """What a task says of a set.

    Attributes:
        reference: gives what returns on the problem of a name are measured against.
        argument: argument of the environment that leaves the problems of one family.
        worth: gives what a whole plan is worth, from the info at the end of its episode; None: its
            return.
        answered: gives what a planner's answer is worth, in the same unit.
    """

    env_id: str
    names: Callable[[str], list[str]]
    load: Callable[[str], Any]
    reference: Callable[[str], Reference]
    argument: str = "family"
    worth: Callable[[Mapping[str, float]], float] | None = None
    answered: Callable[[Answer], float] = attrgetter("value")


class Validation(NamedTuple):
    """The set on which a policy is judged that was trained on drawn problems.

    Attributes:
        family: a family of it; None: all.
    """

    name: str
    family: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


def unit(name: str) -> Reference:
    """Return the reference of a problem of which nothing is known: a return of 1."""
    return Reference(1.0, 1.0, BOUND)


@dataclass(frozen=True)
class ProblemSet:
    """A shipped set of problems."""

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
        chosen = tuple(x for x in self.problems if family in (None, family_named(x)))
        if not chosen:
            known = list(dict.fromkeys(map(family_named, self.problems)))
            raise ParenvsError(
                f"{self.name} has no problem of family {family!r}"
                f"{did_you_mean(str(family), known)}; known: {', '.join(known)}"
            )
        return chosen

    def env_kwargs(self, family: str | None) -> dict[str, Any]:
        """Return arguments with which the environment plays the set, or a family, in order."""
        return {"instance": self.name, self._kind.argument: family, "order": "sequential"}

    def load(self, name: str) -> Any:
        """Return the problem of a name."""
        return self._kind.load(name)

    def worth(self, total: float, info: Mapping[str, float]) -> float:
        """Return what an episode is worth, -1 if it ended with an illegal action or plan."""
        if self._kind.worth is None:
            return total
        try:
            return self._kind.worth(info)
        except KeyError:
            return float(ILLEGAL)

    def answered(self, answer: Answer) -> float:
        """Return what a planner's answer is worth."""
        return self._kind.answered(answer)

    def reference(self, name: str) -> Reference:
        """Return what returns on a problem are measured against.

        Raises:
            ParenvsError: the row of the problem is damaged, or of another problem.
        """
        return self._kind.reference(name)


def _share(info: Mapping[str, float]) -> float:
    return info.get("best_known", info["bound"]) / info["cost"]


def share_kind(
    env_id: str,
    names: Callable[[str], list[str]],
    load: Callable[[str], Any],
    costs: Callable[[str], Reference | None],
    argument: str,
) -> SetKind:
    """Return what a task says of a set on which a plan is worth the best cost known over its own.

    Args:
        env_id: id of an environment of ``parenvs.core.rows``.
        names: as of ``SetKind``.
        load: as of ``SetKind``.
        costs: gives the best cost of the problem of a name and its bound; None if none is known.
            Where no plan is known, both may be the bound: a plan is worth the bound over its cost.
        argument: as of ``SetKind``.
    """

    def best(name: str) -> float:
        known = costs(name)
        return math.nan if known is None else known.value

    def reference(name: str) -> Reference:
        known = costs(name)
        if known is None:
            return unit(name)
        return Reference(1.0, max(known.value / known.bound, 1.0), known.kind)

    return SetKind(
        env_id,
        names,
        load,
        reference,
        argument,
        _share,
        lambda answer: best(answer.problem.instance) / answer.cost,
    )


def set_names() -> tuple[str, ...]:
    """Return the names of all shipped sets."""
    return tuple(name for task in TASKS.values() for name in task.sets)


@lru_cache(maxsize=64)
def set_of(name: str, env_id: str | None = None) -> ProblemSet:
    """Return a shipped set by its name.

    Args:
        name: its name.
        env_id: id of the environment that is to play it (default: its own).

    Raises:
        ParenvsError: there is no such set, or the environment does not play it.
    """
    task = next((task for task in TASKS.values() if name in task.sets), None)
    if task is None:
        refuse_removed("set", name)
        raise ParenvsError(
            f"unknown set {shown(name)}{did_you_mean(str(name), set_names())}; known: "
            f"{', '.join(set_names())}"
        )
    kind = task.set_kind(name)
    if env_id not in (None, kind.env_id):
        raise ParenvsError(f"{name} is a set of {kind.env_id}, not of {shown(env_id)}")
    return ProblemSet(name, tuple(kind.names(name)), kind)


def validation_of(env_id: str, env_kwargs: Mapping[str, Any]) -> Validation | None:
    """Return the set on which a policy is judged that was trained on drawn problems.

    Args:
        env_id: id of the run's environment, without a namespace.
        env_kwargs: its arguments.

    Returns:
        None if no task has a set for agents that were trained in the environment.
    """
    for task in TASKS.values():
        if env_id in task.envs:
            validation = task.validation(env_kwargs)
            if validation is None:
                return None
            try:
                set_of(validation.name, env_id)
            except ParenvsError:  # of another environment of the task
                return None
            return validation
    return None


def family_named(problem: str) -> str:
    """Return the family in the name of a set's problem, ``SET/FAMILY-NUMBER``."""
    return problem.rpartition("/")[2].rpartition("-")[0]
