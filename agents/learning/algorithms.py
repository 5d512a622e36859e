"""Algorithms by name; those of other packages come by the group ``parenvs.algorithms``."""

from __future__ import annotations

from importlib.metadata import entry_points

from parenvs.agents.learning.algorithm import Algorithm
from parenvs.core.task import late
from parenvs.errors import ParenvsError, did_you_mean, shown

GROUP = "parenvs.algorithms"
"""Entry-point group."""
_OWN = {
    "ppo": "parenvs.agents.learning.ppo:PPO",
    "a2c": "parenvs.agents.learning.ppo:A2C",
    "group": "parenvs.agents.learning.ppo:Group",
    "rainbow": "parenvs.agents.learning.distributional:Rainbow",
    "imitate": "parenvs.agents.learning.imitate:Imitate",
}
_registered: dict[str, type[Algorithm]] = {}


def names() -> list[str]:
    """Return the names of all algorithms, those of this package first."""
    return list(dict.fromkeys((*_OWN, *(x.name for x in entry_points(group=GROUP)), *_registered)))


def algorithm(name: str) -> type[Algorithm]:
    """Return an algorithm by its name.

    Raises:
        ParenvsError: there is none.
    """
    if name in _registered:
        return _registered[name]
    known = {x.name: x.value for x in entry_points(group=GROUP)} | _OWN
    if name not in known:
        hint = did_you_mean(name, names())
        raise ParenvsError(f"unknown agent {shown(name)}{hint}; known: {', '.join(names())}")
    found: type[Algorithm] = late(known[name])
    return found


def register(kind: type[Algorithm]) -> None:
    """Add an algorithm until the process ends."""
    _registered[kind.name] = kind
