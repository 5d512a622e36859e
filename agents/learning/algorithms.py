"""Algorithms by name; those of other packages come by the group ``parenvs.agents``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from parenvs.agents.learning.algorithm import Algorithm
from parenvs.agents.names import ALGORITHMS
from parenvs.core.removed import refuse_removed
from parenvs.core.task import late
from parenvs.errors import ParenvsError, did_you_mean, shown

GROUP = "parenvs.agents"
"""Entry-point group; what an entry names is a class derived from ``Algorithm``."""
_registered: dict[str, type[Algorithm]] = {}


def names() -> list[str]:
    """Return the names of all algorithms, those of this package first."""
    return list(
        dict.fromkeys((*ALGORITHMS, *(x.name for x in entry_points(group=GROUP)), *_registered))
    )


def algorithm(name: str) -> type[Algorithm]:
    """Return an algorithm by its name.

    Raises:
        ParenvsError: there is none.
    """
    if name in _registered:
        return _registered[name]
    refuse_removed("agent", name)
    known = {x.name: x.value for x in entry_points(group=GROUP)} | ALGORITHMS
    if name not in known:
        hint = did_you_mean(name, names())
        raise ParenvsError(f"unknown agent {shown(name)}{hint}; known: {', '.join(names())}")
    found: Any = late(known[name])
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ParenvsError(
            f"agent {shown(name)}: {known[name]} is no class derived from "
            "parenvs.agents.learning.algorithm.Algorithm"
        )
    return found


def register_agent(kind: type[Algorithm]) -> None:
    """Make an agent of one's own known to ``train`` and every command until the process ends.

    Args:
        kind: a class derived from ``parenvs.agents.learning.algorithm.Algorithm``, asked for by its
            attribute ``name``. A package registers its own with an entry point of that name, of the
            group ``parenvs.agents``, which names the class.

    Raises:
        ParenvsError: it is no such class, or the name is another agent's.
    """
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ParenvsError(f"an agent is a class derived from Algorithm, not {shown(kind)}")
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or (name in names() and algorithm(name) is not kind):
        raise ParenvsError(f"agent {shown(name)} is there already; choose another name")
    _registered[name] = kind
