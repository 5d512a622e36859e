"""Shipped problem sets: their environment, their problems, and the references of scores.

An environment plays a set in order with ``instance=SET, order="sequential"``. Planners compute the
references once and store them: a proven optimum, or the best known plan and a lower bound of the
cost. The score of an episode is its return, or a figure of its last info where the task defines
one. A problem without a stored reference has the largest possible score, 1, as its bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from parenvs.core.plan import ILLEGAL, Answer
from parenvs.core.registry import TASKS, refuse_removed
from parenvs.errors import (
    ParenvsError,
    UnknownInstanceError,
    did_you_mean,
    refuse_unknown,
    shown,
)

_Member = TypeVar("_Member")


class BestValue(NamedTuple):
    """The best known value of a problem: a score, or a cost where the caller says so.

    Attributes:
        bound: a value that no plan beats, proven.
        kind: ``"optimum"`` (proven), ``"best known"`` or ``"bound"``.
    """

    value: float
    bound: float
    kind: str


OPTIMUM, BEST_KNOWN, BOUND = KINDS = ("optimum", "best known", "bound")
"""Kinds of best values."""


class SetKind(NamedTuple):
    """A task's description of one of its sets.

    Attributes:
        reference: returns the best known score of a problem.
        argument: the environment's argument that selects the problems of one family.
        score: returns the score of an episode from its last info; None: the score is the return.
        answer_score: returns the score of a planner's answer.
    """

    env_id: str
    names: Callable[[str], list[str]]
    load: Callable[[str], Any]
    reference: Callable[[str], BestValue]
    argument: str = "family"
    score: Callable[[Mapping[str, float]], float] | None = None
    answer_score: Callable[[Answer], float] = attrgetter("value")


class Validation(NamedTuple):
    """The validation set of policies that are trained on generated problems.

    Attributes:
        family: the only family of it that is played; None: all.
    """

    name: str
    family: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


def unit(name: str) -> BestValue:
    """Return the reference of a problem without a stored one: the largest possible score."""
    return BestValue(1.0, 1.0, BOUND)


@dataclass(frozen=True)
class ProblemSet:
    """A shipped set of problems, and how its task loads, plays and scores them."""

    name: str
    problems: tuple[str, ...]
    kind: SetKind

    def of(self, family: str | None) -> tuple[str, ...]:
        """Return the names of the problems of a family, or of all.

        Raises:
            ParenvsError: no problem is of that family.
        """
        return tuple(chosen({x: family_named(x) for x in self.problems}, family, self.name))

    def env_kwargs(self, family: str | None) -> dict[str, Any]:
        """Return the environment's arguments to play the set, or a family of it, in order."""
        return {"instance": self.name, self.kind.argument: family, "order": "sequential"}

    def score(self, total: float, info: Mapping[str, float]) -> float:
        """Return the score of an episode from its return and its last info; -1 if illegal."""
        if self.kind.score is None:
            return total
        # An episode that ended illegally has no cost in its info.
        try:
            return self.kind.score(info)
        except KeyError:
            return float(ILLEGAL)


def _share(info: Mapping[str, float]) -> float:
    return info.get("best_known", info["bound"]) / info["cost"]


def share_kind(
    env_id: str,
    names: Callable[[str], list[str]],
    load: Callable[[str], Any],
    costs: Callable[[str], BestValue | None],
    argument: str,
) -> SetKind:
    """Return the description of a set where a plan's score is the best known cost over its own.

    Args:
        env_id: id of an environment of ``parenvs.core.game``.
        names: as of ``SetKind``.
        load: as of ``SetKind``.
        costs: returns the best known cost of a problem and its lower bound, or None. Where no plan
            is known, both may be the bound; the score is then the bound over the cost.
        argument: as of ``SetKind``.
    """

    def answer_score(answer: Answer) -> float:
        known = costs(answer.problem.instance)
        return math.nan if known is None else known.value / answer.cost

    def reference(name: str) -> BestValue:
        known = costs(name)
        if known is None:
            return unit(name)
        # Shares: the best known cost has 1, and the bound allows value / bound >= 1.
        return BestValue(1.0, max(known.value / known.bound, 1.0), known.kind)

    return SetKind(env_id, names, load, reference, argument, _share, answer_score)


def set_names() -> tuple[str, ...]:
    """Return the names of all shipped sets."""
    return tuple(name for task in TASKS.values() for name in task.sets)


@lru_cache(maxsize=64)
def set_of(name: str, env_id: str | None = None) -> ProblemSet:
    """Return a shipped set by its name.

    Args:
        name: name of the set.
        env_id: if given, the environment that must be the set's.

    Raises:
        ParenvsError: there is no such set, or the environment does not play it.
    """
    refuse_removed("set", name)
    refuse_unknown("unknown set", name, set_names())
    task = next(task for task in TASKS.values() if name in task.sets)
    kind = task.set_kind(name)
    if env_id not in (None, kind.env_id):
        raise ParenvsError(f"{name} is a set of {kind.env_id}, not of {shown(env_id)}")
    return ProblemSet(name, tuple(kind.names(name)), kind)


def validation_of(env_id: str, env_kwargs: Mapping[str, Any]) -> Validation | None:
    """Return the validation set of policies that are trained on an environment's problems.

    Args:
        env_id: id of the environment, without a namespace.
        env_kwargs: its arguments.

    Returns:
        None if no task has a validation set for the environment.
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


def chosen(
    families: Mapping[str, str], family: str | None, place: str, what: str = "family"
) -> list[str]:
    """Return the names of the problems of a family, or of all; ``families`` are by name.

    Raises:
        ParenvsError: no problem of the place is of that family.
    """
    if family is not None:
        known = dict.fromkeys(families.values())
        refuse_unknown(f"{what}: {place} has no problem of {what}", family, known)
    return [name for name in families if family in (None, families[name])]


def member_of(members: Mapping[str, _Member], name: str) -> _Member:
    """Return the member ``SET/MEMBER`` of a set, whose members are given.

    Raises:
        UnknownInstanceError: the set has no such member.
    """
    place, _, member = name.rpartition("/")
    if member not in members:
        names = [f"{place}/{each}" for each in members]
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(name, names)}; {place} holds {len(names)}, "
            f"like {names[0]}"
        )
    return members[member]
