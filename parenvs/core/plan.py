"""What plans of every task have in common."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.cluster import Cluster
from parenvs.errors import did_you_mean
from parenvs.files import write_text

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the plan files."""
ILLEGAL = -1.0
"""Value of a plan that breaks a rule or exceeds the memory (arXiv 2007.04069)."""
HEAD = ("schema", "task", "instance", "fingerprint")
"""Fields that plan files of every task begin with."""

OLD_TASKS: dict[str, dict[str, str]] = {
    "pipeline-cut": {"task": "pipeline"},
    "operator-partition": {"task": "partition"},
    "data-parallel": {"task": "partition", "scope": "inputs"},
    "packed-order": {"task": "order"},
    "iopddl": {"task": "sharding"},
}
"""Task of files written before a task had one name -> the fields that say it now."""


def current(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a plan file with the task as it is called now."""
    task = content.get("task")
    return {**content, **OLD_TASKS.get(task if isinstance(task, str) else "", {})}


def remedy(task: object, known: Collection[str]) -> str:
    """Return what a message says after an unknown task: its name now or a near one; the known."""
    old = OLD_TASKS.get(task) if isinstance(task, str) else None
    if old is not None:
        return "; it is called " + ", ".join(f"{key} {value!r}" for key, value in old.items())
    return f"{did_you_mean(str(task), known)}; known: {', '.join(known)}"


class Plan(ABC):
    """Base of the plans of every task."""

    task: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "cluster")
    """Fields that say for what problem a plan is; the others are what it decides."""
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
