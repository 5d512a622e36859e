"""Shipped problem sets: their environment, their problems, and the references of scores.

An environment plays a set in order with ``instance=SET, order="sequential"``. Planners compute the
references once and store them: a proven optimum, or the best known plan and a lower bound of the
cost. The score of an episode is the reference over its cost; where no plan is known, the bound
stands for the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from parenvs.core.plan import Answer
from parenvs.core.registry import TASKS, refuse_removed
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, refuse_unknown, shown

_Member = TypeVar("_Member")


class BestValue(NamedTuple):
    """The least cost known of a problem.

    Attributes:
        bound: a cost that no plan is below, proven.
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
        names: returns the names of the problems of a set.
        load: returns a problem by its name.
        costs: returns the least cost known of a problem by its name; None if there is none.
        reference: returns the least cost known of an answer's problem, if that depends on more
            than its name.
    """

    env_id: str
    names: Callable[[str], list[str]]
    load: Callable[[str], Any]
    costs: Callable[[str], BestValue | None]
    reference: Callable[[Answer], float] | None = None


class Validation(NamedTuple):
    """The validation set of policies that are trained on generated problems.

    Attributes:
        family: the only family of it that is played; None: all.
    """

    name: str
    family: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class ProblemSet:
    """A shipped set of problems, and how its task loads and plays them."""

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
        return {"instance": self.name, "family": family, "order": "sequential"}

    def answer_score(self, name: str, answer: Answer) -> float:
        """Return the score of a planner's answer to a problem; NaN without a legal plan."""
        if not answer.report.legal:
            return math.nan
        if self.kind.reference is not None:
            return self.kind.reference(answer) / float(answer.report.cost)
        known = self.kind.costs(name)
        return math.nan if known is None else known.value / answer.report.cost


def score_of(info: Mapping[str, float]) -> float:
    """Return the score of an episode from its last info; NaN if it has no legal plan."""
    best = info.get("reference", info.get("bound", math.nan))
    return best / info.get("cost", math.nan)


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
            validation = task.validation(env_id, env_kwargs)
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
    families: Mapping[str, str], family: str | None, owner: str, what: str = "family"
) -> list[str]:
    """Return the names of the problems of a family, or of all; ``families`` are by name.

    Raises:
        ParenvsError: no problem of the place is of that family.
    """
    if family is not None:
        known = dict.fromkeys(families.values())
        refuse_unknown(f"{what}: {owner} has no problem of {what}", family, known)
    return [name for name in families if family in (None, families[name])]


def member_of(members: Mapping[str, _Member], name: str) -> _Member:
    """Return the member ``SET/MEMBER`` of a set, whose members are given.

    Raises:
        UnknownInstanceError: the set has no such member.
    """
    set_name, _, member = name.rpartition("/")
    if member not in members:
        names = [f"{set_name}/{key}" for key in members]
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(name, names)}; {set_name} holds {len(names)}, "
            f"like {names[0]}"
        )
    return members[member]
