"""Plans, the one currency: what an environment builds, a solver returns and a file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import PlanError, did_you_mean, shown
from parenvs.files import write_text

SCHEMA = 1
"""Version of the plan files."""


@dataclass(frozen=True)
class PipelinePlan:
    """A chain cut into stages and the devices cut into as many groups.

    Attributes:
        instance: shipped name or path of the graph or profile.
        fingerprint: ``sha256:...`` of its arrays.
        cluster: the devices.
        cuts: (S-1) index of the first pivot of every stage but the first.
        device_cuts: (S-1) first device of every stage but the first.
        micro_batch: samples per micro-batch.
        micro_batches: micro-batches per step.
        cut_after: (S-1) name of the last pivot before each cut, for people; may be empty.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    micro_batch: int = 16
    micro_batches: int = 16
    cut_after: tuple[str, ...] = field(default=(), compare=False)

    task = "pipeline-cut"

    def to_json(self) -> dict[str, Any]:
        """The plan as an object of JSON types, schema version first."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "task": self.task,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            "cluster": self.cluster.to_json(),
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            "cuts": list(self.cuts),
            "device_cuts": list(self.device_cuts),
        }
        if self.cut_after:
            content["cut_after"] = list(self.cut_after)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> PipelinePlan:
        """Check an object of JSON types and make a plan of it.

        Raises:
            PlanError: a key is missing or unknown, or a value has the wrong type; legality is the
                judge's business.
        """
        _keys(content, _PIPELINE_KEYS, {"cut_after"}, where)
        try:
            cluster = Cluster.parse(content["cluster"])
        except ValueError as error:
            raise PlanError(f"{where}: field 'cluster': {error}") from None
        return cls(
            instance=_text(content, "instance", where),
            fingerprint=_text(content, "fingerprint", where),
            cluster=cluster,
            cuts=_integers(content, "cuts", where),
            device_cuts=_integers(content, "device_cuts", where),
            micro_batch=_count(content, "micro_batch", where),
            micro_batches=_count(content, "micro_batches", where),
            cut_after=_texts(content, "cut_after", where) if "cut_after" in content else (),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as a JSON file."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")


def load_plan(path: str | os.PathLike[str]) -> PipelinePlan:
    """Read a plan file of any task.

    Raises:
        PlanError: no such file, no JSON, another schema or task, or a field that is wrong.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "nested too deeply"
        raise PlanError(f"{where}: not a JSON file ({reason})") from None
    if not isinstance(content, dict):
        raise PlanError(f"{where}: expected one JSON object")
    schema = content.get("schema")
    if not _is_integer(schema) or schema != SCHEMA:
        raise PlanError(f"{where}: field 'schema' is {shown(schema)}; this version reads {SCHEMA}")
    task = content.get("task")
    if not isinstance(task, str) or task not in _TASKS:
        raise PlanError(f"{where}: field 'task' is {shown(task)}; known: {', '.join(_TASKS)}")
    return _TASKS[task].from_json(content, where)


_PIPELINE_KEYS = {
    "schema",
    "task",
    "instance",
    "fingerprint",
    "cluster",
    "micro_batch",
    "micro_batches",
    "cuts",
    "device_cuts",
}
_TASKS = {PipelinePlan.task: PipelinePlan}


def _keys(content: Mapping[str, Any], needed: set[str], optional: set[str], where: str) -> None:
    for key in sorted(needed - set(content)):
        raise PlanError(f"{where}: field {key!r} is missing")
    for key in sorted(set(content) - needed - optional):
        raise PlanError(
            f"{where}: unknown field {shown(key)}{did_you_mean(key, needed | optional)}"
        )


def _text(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content[key]
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where}: field {key!r} must be a text, not {shown(value)}")
    return value


def _texts(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of texts")
    return tuple(value)


def _count(content: Mapping[str, Any], key: str, where: str) -> int:
    value = content[key]
    if not _is_integer(value) or not 1 <= value <= _LARGEST:
        raise PlanError(f"{where}: field {key!r} must be a whole number from 1, not {shown(value)}")
    return value


def _integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    value = content[key]
    if not isinstance(value, list) or not all(_is_integer(x) and abs(x) <= _LARGEST for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of whole numbers")
    return tuple(value)


_LARGEST = 2**31 - 1


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise PlanError(f"field {shown(twice)} stands twice")
    return content


def _no_constant(text: str) -> float:
    raise PlanError(f"{text} is not a JSON number")
