"""Plans: environments build them, solvers return them, files hold them.

Plan files are JSON; every error in one names the file and the field. This module also holds the
defaults of the settings that a plan is made for (micro-batches, copies, rules, ...), as a file may
leave them out.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.errors import PlanError, did_you_mean, shown
from parenvs.files import DuplicateFieldError, no_duplicates, write_text

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the plan files."""
ILLEGAL = -1.0
"""Value of a plan that breaks a rule or exceeds the memory (arXiv 2007.04069)."""
MICRO_BATCH = 16
"""Samples per micro-batch.

arXiv 2007.04069 gives the number 16 without saying of what; it is the default of both numbers.
"""
MICRO_BATCHES = 16
"""Micro-batches per step (arXiv 2007.04069)."""
COPIES = 2
"""Copies of a stage's parameters held by each device: weight and gradient."""
RECOMPUTE = ("full", "none")
"""The backward pass recomputes all activations of a stage, or none."""
TIED = ("once", "held")
"""Weights that several stages read count where they are first read, or are held by each of them."""
RULE_SETS = ("shardy", "automap")
"""Factor rules; ``automap`` also forbids to partition a reduced dimension."""
UNEVEN = ("pad", "forbid")
"""Dimensions that the number of devices does not divide are padded, or stay replicated."""
LARGEST_NUMBER = 2**31 - 1
"""Largest number in a plan file."""
_LONGEST_TEXT = 4096  # as long as a path can be
_SETTINGS = ("copies", "recompute", "sync", "tied")
"""Fields of the cost model that files of pipelines may leave out."""
HEAD = ("schema", "task", "instance", "fingerprint")
"""Fields that plan files of every task begin with."""


class Bounded(Protocol):
    """A planner's answer to a problem; the gap of a plan is measured against its bound."""

    @property
    def bound(self) -> float | None:
        """Proven bound of what the task minimises (seconds) or maximises (return), or None."""


class Plan(ABC):
    """Base of the plans of every task."""

    task: ClassVar[str]
    instance: str
    fingerprint: str
    cluster: Cluster

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""

    @classmethod
    @abstractmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """Check an object of JSON types and make a plan of it.

        Raises:
            PlanError: a key is missing or unknown, or a value has the wrong type. Whether the plan
                is legal is left to the judge.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a JSON file."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def _head(self) -> dict[str, Any]:
        """Return the fields that plans of every task begin with."""
        return {
            "schema": SCHEMA,
            "task": self.task,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """Cuts of a chain into S stages, and of the devices into S groups.

    Attributes:
        instance: shipped name or path of the graph or profile.
        fingerprint: ``sha256:...`` of the arrays of the graph or profile.
        cluster: the devices.
        cuts: (S-1) index of the first pivot of every stage but the first.
        device_cuts: (S-1) first device of every stage but the first.
        micro_batch: samples per micro-batch.
        micro_batches: micro-batches per step.
        copies: copies of the parameters on each device of a stage.
        recompute: ``"full"`` or ``"none"``.
        sync: how gradients are synchronised, see ``Cluster.sync_seconds``.
        tied: ``"once"`` or ``"held"``.
        cut_after: (S-1) name of the last pivot before each cut, for readers of the file; may be
            empty.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    micro_batch: int = MICRO_BATCH
    micro_batches: int = MICRO_BATCHES
    copies: float = COPIES
    recompute: str = RECOMPUTE[0]
    sync: str = SYNC_METHODS[0]
    tied: str = TIED[0]
    cut_after: tuple[str, ...] = field(default=(), compare=False)

    task: ClassVar[str] = "pipeline-cut"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        Copies, recomputation, synchronisation and tied weights are left out where they have their
        defaults.
        """
        defaults = (COPIES, RECOMPUTE[0], SYNC_METHODS[0], TIED[0])
        options = dict(zip(_SETTINGS, defaults, strict=True))
        content: dict[str, Any] = {
            **self._head(),
            "cluster": self.cluster.to_json(),
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            **{key: value for key in options if (value := getattr(self, key)) != options[key]},
            "cuts": list(self.cuts),
            "device_cuts": list(self.device_cuts),
        }
        if self.cut_after:
            content["cut_after"] = list(self.cut_after)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        needed = {*HEAD, "cluster", "micro_batch", "micro_batches", "cuts", "device_cuts"}
        _check_keys(content, needed, {*_SETTINGS, "cut_after"}, where)
        return cls(
            instance=_text(content, "instance", where),
            fingerprint=_text(content, "fingerprint", where),
            cluster=_cluster(content, "cluster", where),
            cuts=_integers(content, "cuts", where),
            device_cuts=_integers(content, "device_cuts", where),
            micro_batch=_count(content, "micro_batch", where),
            micro_batches=_count(content, "micro_batches", where),
            copies=_number(content, "copies", COPIES, where),
            recompute=_choice(content, "recompute", RECOMPUTE, where),
            sync=_choice(content, "sync", SYNC_METHODS, where),
            tied=_choice(content, "tied", TIED, where),
            cut_after=_texts(content, "cut_after", where) if "cut_after" in content else (),
        )


@dataclass(frozen=True)
class PartitionPlan(Plan):
    """Dimensions of variables that are partitioned over all devices.

    Every variable that is not named is replicated. Batch inputs may be named too; the partitioning
    of those that are not named follows from the variables.

    Attributes:
        instance: shipped name or path of the graph.
        fingerprint: ``sha256:...`` of the arrays of the graph.
        cluster: the devices.
        partition: path of a variable or batch input -> its partitioned dimension.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    partition: dict[str, int]
    rules: str = "shardy"
    uneven: str = "pad"

    task: ClassVar[str] = "operator-partition"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        One server of V100 is written as its number of devices, without ``cluster``.
        """
        content: dict[str, Any] = {**self._head(), "devices": self.cluster.devices}
        if self.cluster != Cluster.parse(f"1x{self.cluster.devices}:v100"):
            content["cluster"] = self.cluster.to_json()
        return {
            **content,
            "rules": self.rules,
            "uneven": self.uneven,
            "partition": dict(sorted(self.partition.items())),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``; rules are ``shardy`` and uneven is ``pad`` if not given."""
        needed = {*HEAD, "devices", "partition"}
        _check_keys(content, needed, {"cluster", "rules", "uneven"}, where)
        devices = _count(content, "devices", where)
        if devices < 2:
            raise PlanError(f"{where}: field 'devices' must be 2 or more, not {devices}")
        if "cluster" in content:
            cluster = _cluster(content, "cluster", where)
        else:
            cluster = _cluster({"devices": f"1x{devices}:v100"}, "devices", where)
        if cluster.devices != devices:
            raise PlanError(
                f"{where}: field 'devices' is {devices}, but the cluster has {cluster.devices}"
            )
        return cls(
            instance=_text(content, "instance", where),
            fingerprint=_text(content, "fingerprint", where),
            cluster=cluster,
            partition=_dimensions(content, "partition", where),
            rules=_choice(content, "rules", RULE_SETS, where),
            uneven=_choice(content, "uneven", UNEVEN, where),
        )


@dataclass(frozen=True)
class BatchPlan(PartitionPlan):
    """Dimensions of batch inputs that are partitioned over all devices.

    Batch inputs that are not named are replicated; the partitioning of variables follows from the
    inputs.
    """

    task: ClassVar[str] = "data-parallel"


PARTITION_PLANS: dict[str, type[PartitionPlan]] = {
    kind.task: kind for kind in (PartitionPlan, BatchPlan)
}
"""Task -> class of its plans, the tasks of partitioning."""
PLANS: dict[str, type[Plan]] = {PipelinePlan.task: PipelinePlan, **PARTITION_PLANS}
"""Task -> class of its plans, all tasks."""


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file of any task.

    Raises:
        PlanError: the file is missing or not JSON, its schema or task is unknown, or a field is
            wrong.
    """
    where = os.fspath(path)
    try:
        content = json.loads(
            Path(path).read_text(encoding="utf-8"),
            object_pairs_hook=no_duplicates,
            parse_constant=_Constant,
        )
    except DuplicateFieldError as error:
        raise PlanError(f"{where}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "nested too deeply"
        raise PlanError(f"{where}: not a JSON file ({reason})") from None
    if not isinstance(content, dict):
        raise PlanError(f"{where}: expected one JSON object")
    for field_name, text in _constants(content):
        raise PlanError(f"{where}: field {shown(field_name)}: {text} is not a JSON number")
    schema = content.get("schema")
    if not _is_integer(schema) or schema != SCHEMA:
        raise PlanError(f"{where}: field 'schema' is {shown(schema)}; this version reads {SCHEMA}")
    task = content.get("task")
    if not isinstance(task, str) or task not in PLANS:
        raise PlanError(f"{where}: field 'task' is {shown(task)}; known: {', '.join(PLANS)}")
    return PLANS[task].from_json(content, where)


class _Constant(str):
    """NaN or Infinity where JSON has a number."""


def _constants(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of the field and the text of each NaN and Infinity."""
    if isinstance(content, _Constant):
        yield path, str(content)
    elif isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in pairs:
            yield from _constants(value, f"{path}.{key}".lstrip("."))


# Each check of a field returns its value, or raises a PlanError that names the file and the field.


def _check_keys(
    content: Mapping[str, Any], needed: set[str], optional: set[str], where: str
) -> None:
    """Raise a PlanError for missing and unknown keys."""
    for key in sorted(needed - set(content)):
        raise PlanError(f"{where}: field {key!r} is missing")
    for key in sorted(set(content) - needed - optional):
        raise PlanError(
            f"{where}: unknown field {shown(key)}{did_you_mean(key, needed | optional)}"
        )


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    """Return a field that is a text and not empty."""
    value = content[key]
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT:
        raise PlanError(
            f"{where}: field {key!r} must be a text of 1 to {_LONGEST_TEXT:,} characters, not "
            f"{shown(value)}"
        )
    return value


def _texts(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Return a field that is a list of texts."""
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of texts")
    return tuple(value)


def _count(content: Mapping[str, Any], key: str, where: str) -> int:
    """Return a field that is a whole number from 1."""
    value = content[key]
    if not _is_integer(value) or not 1 <= value <= LARGEST_NUMBER:
        raise PlanError(f"{where}: field {key!r} must be a whole number from 1, not {shown(value)}")
    return value


def _number(content: Mapping[str, Any], key: str, default: float, where: str) -> float:
    """Return a field that is a number from 0; ``default`` if the key is missing."""
    value = content.get(key, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= LARGEST_NUMBER
    ):
        raise PlanError(f"{where}: field {key!r} must be a number from 0, not {shown(value)}")
    return value


def _integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """Return a field that is a list of whole numbers."""
    value = content[key]
    if not isinstance(value, list) or not all(
        _is_integer(x) and abs(x) <= LARGEST_NUMBER for x in value
    ):
        raise PlanError(f"{where}: field {key!r} must be a list of whole numbers")
    return tuple(value)


def _choice(content: Mapping[str, Any], key: str, known: Sequence[str], where: str) -> str:
    """Return a field that is one of the ``known`` words; the first if the key is missing."""
    value = content.get(key, known[0])
    if value not in known:
        raise PlanError(
            f"{where}: field {key!r} must be one of {', '.join(known)}, not {shown(value)}"
        )
    return str(value)


def _cluster(content: Mapping[str, Any], key: str, where: str) -> Cluster:
    """Return the cluster that a field describes in a form that ``Cluster.parse`` takes."""
    try:
        return Cluster.parse(content[key])
    except ValueError as error:
        raise PlanError(f"{where}: field {key!r}: {error}") from None


def _dimensions(content: Mapping[str, Any], key: str, where: str) -> dict[str, int]:
    """Return a field that is an object of paths and dimensions."""
    value = content[key]
    if not isinstance(value, dict):
        raise PlanError(f"{where}: field {key!r} must be an object of paths and dimensions")
    for path, dimension in value.items():
        if not _is_integer(dimension) or not 0 <= dimension <= LARGEST_NUMBER:
            raise PlanError(
                f"{where}: field {key!r}: the dimension of {shown(path)} must be a whole number "
                f"from 0, not {shown(dimension)}"
            )
    return dict(value)


def _is_integer(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)
