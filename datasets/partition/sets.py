"""What evaluations know of the sets of partition problems."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from parenvs.core.plan import ILLEGAL, Answer
from parenvs.core.sets import Reference, SetKind, share_kind
from parenvs.datasets.references import PARTITIONS, costs_of
from parenvs.shipped import manifest
from parenvs.tasks.partition import sets
from parenvs.tasks.partition.problem import Partitioning

_names: WeakKeyDictionary[Partitioning, str] = WeakKeyDictionary()
"""Names of the problems that were loaded, whose plans carry the name of the graph."""


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of partition problems; see ``SetKind``."""
    kind = share_kind(
        "PartitionPlan-v1", lambda name: list(sets.members(name)), load, costs, "family"
    )
    return kind._replace(answered=_answered)


def load(name: str) -> Partitioning:
    """Return the problem of a name."""
    problem = sets.load(name)
    _names[problem] = name
    return problem


def costs(name: str) -> Reference | None:
    """Return the least seconds known of a problem of a set, and their bound; None without them.

    The graph need not be read for it.
    """
    graphs = manifest()["instances"][sets.row_of(name).instance]["graphs"]
    return costs_of(PARTITIONS, name, graphs["train"]["fingerprint"])


def _answered(answer: Answer) -> float:
    """Return the least seconds known over those of an answer; -1 if its plan does not fit."""
    if not answer.report.legal:
        return float(ILLEGAL)
    known = costs(_names[answer.problem])
    assert known is not None
    return known.value / answer.cost
