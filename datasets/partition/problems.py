"""Partition problems of sets, by name: ``SET/FAMILY-NUMBER``, or ``FILE.json/NAME``.

A set is ``{"schema": 1, "problems": [{"name": "t5-000", "instance": "t5-3b", "cluster":
"2x8:a100", "memory_limit": "device", "micro_batch": 8, "micro_batches": 4, "recompute": "full"},
...]}``; the last three fields, ``rules`` and ``uneven`` may be left out. To read a graph and search
for plans within memory takes seconds, so shipped sets lie beside it as arrays, with plans that fit.
``LIMITS`` problems that follow one another differ in their memory limit alone, and share all else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.core.game import Fixed, Members, Source, is_sequential
from parenvs.core.sets import OPTIMUM, BestValue, SetKind, chosen, family_named, member_of
from parenvs.datasets.banks import Bank
from parenvs.datasets.references import PARTITIONS, costs_of
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, one_line, shown
from parenvs.fields import Count, Size, Text, one_of, read_rows, write_rows
from parenvs.files import StrPath
from parenvs.instances import data_folder, manifest
from parenvs.tasks.partition.classes import DEVICE, REMADE, RULE_SETS, UNEVEN, StepSettings
from parenvs.tasks.partition.linear import CLASS, Linear, Sizes
from parenvs.tasks.partition.problem import STEP_OPTIONS, Partitioning, load_partitioning
from parenvs.tasks.partition.task import PartitionTask


@dataclass(frozen=True)
class SetRow:
    """The description of a problem in a set file; see ``PartitionOptions`` for the settings.

    Attributes:
        instance: shipped name or path of a graph.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        memory_limit: bytes per device, or ``"device"`` for the share that plans may use.
    """

    instance: Text
    cluster: Any
    memory_limit: Size | Annotated[str, one_of(DEVICE)] = DEVICE
    micro_batch: Count | None = None
    micro_batches: Count = 1
    recompute: Annotated[str, one_of(*REMADE)] = REMADE[0]
    rules: Annotated[str, one_of(*RULE_SETS)] = RULE_SETS[0]
    uneven: Annotated[str, one_of(*UNEVEN)] = UNEVEN[0]

    @property
    def options(self) -> dict[str, Any]:
        """The settings as arguments of ``load_partitioning``, without the cluster."""
        return {k: value for k, value in vars(self).items() if k not in ("instance", "cluster")}

    def to_json(self) -> dict[str, Any]:
        """The fields as an object of JSON types; defaults are left out, but for the limit."""
        plain = vars(SetRow(self.instance, self.cluster))
        always = ("instance", "cluster", "memory_limit")
        return {k: v for k, v in vars(self).items() if k in always or v != plain[k]}


def read_set(path: StrPath) -> dict[str, SetRow]:
    """Read the problems of a set file, by name, in their order.

    Raises:
        ParenvsError: the file is missing or wrong; names the file, the problem and the field.
    """
    rows = read_rows(SetRow, path, _checked)
    for name in rows:
        if "/" in name:
            raise ParenvsError(f"{os.fspath(path)}: field 'name' is {shown(name)}; leave '/' out")
    return rows


def save_set(path: StrPath, rows: Mapping[str, SetRow]) -> None:
    """Write the problems of a set, a line each, whole or not at all."""
    write_rows(path, {name: row.to_json() for name, row in rows.items()})


def _checked(row: SetRow, where: str) -> SetRow:
    try:
        step = {name: getattr(row, name) for name in STEP_OPTIONS}
        StepSettings.of(Cluster.parse(row.cluster), **step)
    except ParenvsError as error:
        raise ParenvsError(f"{where}: {one_line(error)}") from None
    return row


PARTITION_SETS = PartitionTask.sets
"""Shipped sets of problems of ``PartitionPlan-v2``; ``SET/FAMILY-NUMBER`` is one of a set."""
REWARD = "step_time"
"""What partition problems of sets pay."""


def is_set(name: str) -> bool:
    """Return whether a name is that of a shipped set or a set file."""
    return name in PARTITION_SETS or name.endswith(".json")


def members(set_name: str, family: str | None = None) -> tuple[str, ...]:
    """Return the names of the problems of a set, or of one family, in their order."""
    families = {f"{set_name}/{name}": family_named(name) for name in partition_rows(set_name)}
    return tuple(chosen(families, family, set_name))


def row_of(name: str) -> SetRow:
    """Return the description of a problem by its name, or raise ``UnknownInstanceError``."""
    set_name = name.rpartition("/")[0]
    if not set_name:
        raise UnknownInstanceError(
            f"unknown problem {name!r}{did_you_mean(name, PARTITION_SETS)}; give a set "
            f"({', '.join(PARTITION_SETS)}), SET/NAME, or the path of a .json file of a set"
        )
    return member_of(partition_rows(set_name), name)


def problem_named(name: str) -> Partitioning:
    """Build the problem of a name.

    Raises:
        ParenvsError: see ``row_of``, or the graph cannot be loaded with these settings.
    """
    return build(row_of(name), name)


def build(row: SetRow, name: str) -> Partitioning:
    """Build a problem from its description; errors begin with ``name``."""
    cluster = Cluster.parse(row.cluster)
    try:
        return load_partitioning(row.instance, cluster, reward=REWARD, **row.options)
    except ParenvsError as error:
        raise type(error)(f"{name}: {error}") from None


def partition_rows(name: str) -> dict[str, SetRow]:
    """Read the problems of a shipped set, or of a ``.json`` file of a set.

    Raises:
        UnknownInstanceError: there is no such set or file.
        ParenvsError: the file is wrong.
    """
    if name in PARTITION_SETS:
        return _shipped_partitions(name)
    if name.endswith(".json"):
        if Path(name).exists():
            return read_set(name)
        raise UnknownInstanceError(f"instance {name!r}: no such file")
    raise UnknownInstanceError(
        f"unknown set {name!r}{did_you_mean(name, PARTITION_SETS)}; known: "
        f"{', '.join(PARTITION_SETS)}, or give the path of a .json file of a set"
    )


@lru_cache(maxsize=len(PARTITION_SETS))
def _shipped_partitions(name: str) -> dict[str, SetRow]:
    return read_set(data_folder() / f"{name}.json")


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of partition problems; see ``SetKind``."""
    return SetKind("PartitionPlan-v2", lambda name: list(members(name)), problem_named, costs)


def costs(name: str) -> BestValue | None:
    """Return the least step time known of a problem, and its bound, without reading the graph."""
    return costs_of(PARTITIONS, name, fingerprint_of(row_of(name).instance))


LIMITS = 8
"""Problems that share arrays."""


@lru_cache(maxsize=len(PARTITION_SETS))
def bank(name: str) -> Bank:
    """Return the bank of a set, which has a row for each ``LIMITS`` problems."""
    return Bank(name, len(members(name)) // LIMITS)


@lru_cache(maxsize=1024)
def played(name: str) -> Linear:
    """Return a problem of a shipped set."""
    set_name, _, member = name.rpartition("/")
    rows = partition_rows(set_name)
    number, member_index = divmod(list(rows).index(member), LIMITS)
    shared, arrays = _shared_part(set_name, number)
    limit, best = float(arrays["limits"][member_index]), costs(name)
    return replace(
        shared,
        name=name,
        limit=limit,
        step=arrays["step"].reshape(LIMITS, -1)[member_index],
        witnesses=arrays["witnesses"].reshape(LIMITS, -1, len(shared.gain))[member_index],
        best=np.nan if best is None else best.value,
        optimal=best is not None and best.kind == OPTIMUM,
        cache={},
    )


@lru_cache(maxsize=len(PARTITION_SETS))
def sizes_of(name: str) -> Sizes:
    """Return the sizes of the largest problem of a shipped set."""
    sizes = []
    for number in range(len(bank(name))):
        linear, arrays = _shared_part(name, number)
        witnesses = arrays["witnesses"].size // (LIMITS * len(linear.gain))
        sizes.append(Sizes.of(linear)._replace(witnesses=witnesses))
    return reduce(Sizes.with_, sizes)


@lru_cache(maxsize=256)
def _shared_part(name: str, number: int) -> tuple[Linear, dict[str, Any]]:
    """Return what ``LIMITS`` problems of a set share, and the row that says the rest."""
    arrays = bank(name)[number]
    instance = str(arrays["instance"])
    if str(arrays["fingerprint"]) != fingerprint_of(instance):
        raise ParenvsError(
            f"{bank(name).file}: of another {instance}; make it anew with python "
            f"benchmarks/make_sets.py banks/{bank(name).file}"
        )
    count, moments = len(arrays["gain"]), len(arrays["whole"])
    split_bytes = arrays["held"].reshape(count, moments).astype(float)
    label, rival = arrays["rivals"].astype(np.int64).T
    linear = Linear(
        name="",
        classes=arrays["classes"].astype(np.int64),
        replicated_seconds=float(arrays["replicated"]),
        rivals=tuple(np.sort(rival[label == k]) for k in range(count)),
        replicated_bytes=arrays["whole"].astype(float),
        saved_bytes=split_bytes * arrays["spared"][:, None],
        limit=np.nan,
        groups=tuple(np.split(arrays["members"].astype(np.int64), np.cumsum(arrays["sizes"])[:-1])),
        figures=arrays["figures"].reshape(count, len(CLASS)),
        witnesses=np.zeros((0, count), bool),
        fullest=arrays["fullest"].astype(np.int64),
        **{name: arrays[name] for name in ("gain", "weights", "paid", "step")},
    )
    return linear, arrays


def fingerprint_of(instance: str) -> str:
    """Return the fingerprint of a shipped training step."""
    return manifest()["instances"][instance]["graphs"]["train"]["fingerprint"]


KEPT = 64
"""Problems of files that a process keeps."""


def source_of(
    instance: str | None, family: str | None, order: str, problem: Partitioning | Linear | None
) -> tuple[Source, Sizes]:
    """Return the source of problems of ``PartitionChoice``'s arguments, and its largest sizes.

    Raises:
        ParenvsError: an argument is unknown, or there is no set that has an order or families.
    """
    name = PARTITION_SETS[0] if instance is None else instance
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a set or problem, not {shown(name)}")
    sequential = is_sequential(order)
    if problem is None and is_set(name):
        names = members(name, family)
        if name in PARTITION_SETS:
            return Members(names, played, order), sizes_of(name)
        largest = reduce(Sizes.with_, (Sizes.of(named(member)) for member in names))
        return Members(names, named, order), largest
    for argument, value in (("family", family), ("order", sequential or None)):
        if value is not None:
            raise ParenvsError(f"{argument}: {name} is one problem, no set; leave {argument} out")
    if problem is None:
        problem = named(name)
    elif isinstance(problem, Partitioning):
        problem = _with_witnesses(problem)
    return Fixed(problem), Sizes.of(problem)


def named(name: object) -> Linear:
    """Return a problem of a shipped set, or of a file of one, whose settings are read anew.

    Raises:
        ParenvsError: there is no such problem, or no plan of it fits.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if is_set(name):
        example = members(name)[0]
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {example}")
    row = row_of(name)
    if name.rpartition("/")[0] in PARTITION_SETS:
        return played(name)
    path = Path(row.instance)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _build_cached(name, json.dumps(row.to_json(), sort_keys=True, default=str), stamp)


def problem_of(linear: Linear) -> Partitioning:
    """Return the problem itself, whose graph is read once."""
    if "problem" not in linear.cache:
        linear.cache["problem"] = problem_named(linear.name)
    return linear.cache["problem"]


@lru_cache(maxsize=KEPT)
def _build_cached(name: str, row: str, stamp: int) -> Linear:
    return _with_witnesses(build(SetRow(**json.loads(row)), name), name)


def _with_witnesses(problem: Partitioning, name: str = "") -> Linear:
    """Return a problem with the plans within memory that it begins with."""
    if problem.scope != "variables" or problem.reward != REWARD:
        raise ParenvsError(
            "problem: PartitionPlan-v2 plays the scope variables with the reward "
            f"{REWARD}, not {problem.scope} with {problem.reward}"
        )
    if problem.step.limit is None:
        raise ParenvsError(f"problem: {problem.instance} has no limit; give memory_limit='device'")
    linear: Linear = PartitionTask().start(Linear.of(problem, name))
    linear.cache["problem"] = problem
    return linear
