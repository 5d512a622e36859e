"""What evaluations know of the sets of partition problems."""

from __future__ import annotations

from parenvs.core.sets import Reference, SetKind
from parenvs.datasets.references import PARTITIONS, of_row
from parenvs.shipped import manifest
from parenvs.tasks.partition.sets import load, members, row_of


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of partition problems; see ``SetKind``."""
    return SetKind("PartitionPlan-v0", lambda name: list(members(name)), load, _reference)


def _reference(name: str) -> Reference:
    """Return the reference of a problem, whose graph need not be read for it."""
    graphs = manifest()["instances"][row_of(name).instance]["graphs"]
    return of_row(
        PARTITIONS,
        name,
        lambda row: graphs["train"]["fingerprint"],
        lambda row, field: 1.0 - float(row[field]) / float(row["replicated"]),
        "graph",
    )
