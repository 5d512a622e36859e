"""Where the problems of ``PartitionPlan-v1`` come from: shipped sets, files of sets, objects."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from parenvs.core.game import Fixed, Members, Source, is_sequential
from parenvs.datasets.partition.bank import played, sizes_of
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.partition import sets
from parenvs.tasks.partition.drawn.board import Sizes
from parenvs.tasks.partition.drawn.files import SetRow
from parenvs.tasks.partition.drawn.linear import Linear
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.sets import PARTITION_SETS
from parenvs.tasks.partition.task import PartitionTask

KEPT = 64
"""Problems of files that a process keeps."""


def source_of(
    instance: str | None, family: str | None, order: str, problem: Partitioning | Linear | None
) -> tuple[Source, Sizes]:
    """Return the source of problems that the arguments of ``PartitionChoice`` name.

    Returns:
        The source, and the sizes of its largest problem.

    Raises:
        ParenvsError: an argument is unknown, or there is no set that has an order or families.
    """
    name = PARTITION_SETS[0] if instance is None else instance
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a set or problem, not {shown(name)}")
    sequential = is_sequential(order)
    if problem is None and sets.is_set(name):
        members = sets.members(name, family)
        if name in PARTITION_SETS:
            return Members(members, played, order), sizes_of(name)
        problems = [named(member) for member in members]
        largest = Sizes.of(problems[0])
        for each in problems[1:]:
            largest = largest.with_(Sizes.of(each))
        return Members(members, named, order), largest
    for argument, given in (("family", family), ("order", sequential or None)):
        if given is not None:
            raise ParenvsError(f"{argument}: {name} is one problem, no set; leave {argument} out")
    if isinstance(problem, Linear):
        found = problem
    else:
        found = _begun(problem) if problem is not None else named(name)
    return Fixed(found), Sizes.of(found)


def named(name: object) -> Linear:
    """Return a problem of a shipped set, or of a file of one, whose settings are read anew.

    Raises:
        ParenvsError: there is no such problem, or no plan of it fits.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if sets.is_set(name):
        example = sets.members(name)[0]
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {example}")
    row = sets.row_of(name)
    if name.rpartition("/")[0] in PARTITION_SETS:
        return played(name)
    path = Path(row.instance)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _built(name, json.dumps(row.to_json(), sort_keys=True, default=str), stamp)


def problem_of(linear: Linear) -> Partitioning:
    """Return the problem itself, whose graph is read once."""
    found = linear.cache.get("problem")
    if found is None:
        found = linear.cache["problem"] = sets.load(linear.name)
    problem: Partitioning = found
    return problem


@lru_cache(maxsize=KEPT)
def _built(name: str, row: str, stamp: int) -> Linear:
    """Build a problem; ``stamp``, the time of its graph's last change, is part of the key."""
    return _begun(sets.build(SetRow(**json.loads(row)), name), name)


def _begun(problem: Partitioning, name: str = "") -> Linear:
    """Return a problem with the plans within memory that it begins with.

    Raises:
        ParenvsError: it has no limit of memory, or pays another reward; no plan of it fits.
    """
    if problem.scope != "variables" or problem.reward != sets.REWARD:
        raise ParenvsError(
            "problem: PartitionPlan-v1 plays the scope variables with the reward "
            f"{sets.REWARD}, not {problem.scope} with {problem.reward}"
        )
    if problem.step.limit is None:
        raise ParenvsError(f"problem: {problem.instance} has no limit; give memory_limit='device'")
    linear: Linear = PartitionTask().start(Linear.of(problem, name))
    linear.cache["problem"] = problem
    return linear
