"""Partition problems of sets, by name: ``SET/FAMILY-NUMBER``, or ``FILE.json/NAME``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.shipped import data_folder
from parenvs.tasks.partition.drawn.files import SetRow, read_set
from parenvs.tasks.partition.load import load_partitioning
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.task import PartitionTask

PARTITION_SETS = PartitionTask.sets
"""Shipped sets of problems of ``PartitionPlan-v1``; ``SET/FAMILY-NUMBER`` is one of a set."""
REWARD = "step_time"
"""What partition problems of sets pay."""


def is_set(name: str) -> bool:
    """Return whether a name is that of a set, shipped or a file, and not of one of its problems."""
    return name in PARTITION_SETS or name.endswith(".json")


def family_of(name: str) -> str:
    """Return the family in the name of a problem, ``[SET/]FAMILY-NUMBER``."""
    return name.rpartition("/")[2].rpartition("-")[0]


def members(set_name: str, family: str | None = None) -> tuple[str, ...]:
    """Return the full names of the problems of a set, or of a family of it, in their order.

    Raises:
        ParenvsError: there is no such set or file, it is wrong, or it has nothing of the family.
    """
    names = tuple(f"{set_name}/{name}" for name in partition_rows(set_name))
    chosen = tuple(name for name in names if family in (None, family_of(name)))
    if not chosen:
        known = list(dict.fromkeys(map(family_of, names)))
        raise ParenvsError(
            f"family: {set_name} has no problem of family {shown(family)}"
            f"{did_you_mean(str(family), known)}; known: {', '.join(known)}"
        )
    return chosen


def row_of(name: str) -> SetRow:
    """Return a problem in words.

    Raises:
        UnknownInstanceError: there is no such set, file or problem.
        ParenvsError: the file is wrong.
    """
    set_name, _, member = name.rpartition("/")
    if not set_name:
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(name, PARTITION_SETS)}; give a set "
            f"({', '.join(PARTITION_SETS)}), SET/NAME, or the path of a .json file of a set"
        )
    rows = partition_rows(set_name)
    if member not in rows:
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(member, rows)}; {set_name} holds {len(rows)}, "
            f"like {next(iter(rows))}"
        )
    return rows[member]


def load(name: str) -> Partitioning:
    """Build the problem of a name.

    Raises:
        ParenvsError: see ``row_of``, or the graph cannot be loaded with these settings.
    """
    return build(row_of(name), name)


def build(row: SetRow, name: str) -> Partitioning:
    """Build a problem of its description.

    Args:
        row: the description.
        name: what messages call it.

    Raises:
        ParenvsError: the graph cannot be loaded with these settings; the line names the problem.
    """
    options = row.options
    try:
        return load_partitioning(
            row.instance,
            Cluster.parse(row.cluster),
            reward=REWARD,
            **options,
        )
    except ParenvsError as error:
        raise type(error)(f"{name}: {error}") from None


def partition_rows(name: str) -> dict[str, SetRow]:
    """Read the problems of a shipped set of ``PartitionPlan-v1``, or of a ``.json`` file of a set.

    Raises:
        UnknownInstanceError: there is no such set or file.
        ParenvsError: the file is wrong; the line names the file, the problem and the field.
    """
    if name in PARTITION_SETS:
        return _shipped_partitions(name)
    if name.endswith(".json") and Path(name).exists():
        return read_set(name)
    if name.endswith(".json"):
        raise UnknownInstanceError(f"instance {name!r}: no such file")
    raise UnknownInstanceError(
        f"unknown set {name!r}{did_you_mean(name, PARTITION_SETS)}; known: "
        f"{', '.join(PARTITION_SETS)}, or give the path of a .json file of a set"
    )


@lru_cache(maxsize=len(PARTITION_SETS))
def _shipped_partitions(name: str) -> dict[str, SetRow]:
    """Read a shipped set of partition problems once."""
    return read_set(data_folder() / f"{name}.json")
