"""What plans of every task have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, cast

from msgspec import to_builtins

from parenvs.cluster import Cluster
from parenvs.core.registry import OLD_NAMES, TASKS
from parenvs.core.removed import refuse_removed
from parenvs.errors import PlanError, did_you_mean, shown
from parenvs.fields import read
from parenvs.files import check_schema, read_json, write_text

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMA = 1
"""Version of the plan files."""
ILLEGAL = -1.0
"""Value of a plan that breaks a rule or exceeds the memory (arXiv 2007.04069)."""


class Plan:
    """Base of the plans of every task: dataclasses, whose types say what their files hold."""

    task: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "cluster")
    """Fields that say for what problem a plan is; the others are what it decides."""
    always: ClassVar[tuple[str, ...]] = ()
    """Fields that files have even where the class has a default."""
    instance: str
    fingerprint: str
    cluster: Cluster

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        own = [
            each.name
            for each in fields(cast(Any, self))
            if each.name not in ("instance", "fingerprint")
        ]
        return {**self._head(), **{name: to_builtins(getattr(self, name)) for name in own}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """Check an object of JSON types and make a plan of it.

        Raises:
            PlanError: a field is missing or unknown, or a value has the wrong type. Whether the
                plan is legal is left to the judge.
        """
        content = current(content)
        check_schema(content, SCHEMA, where, PlanError)
        refuse_removed("task", content.get("task"), where, PlanError)
        if content.get("task") != cls.task:
            raise PlanError(
                f"{where}: field 'task' must be {cls.task!r}, not {shown(content.get('task'))}"
            )
        body = {key: value for key, value in content.items() if key not in ("schema", "task")}
        return cls._of(body, where)

    @classmethod
    def _of(cls, body: dict[str, Any], where: str) -> Self:
        """Make a plan of the fields of a file behind schema and task; see ``from_json``."""
        plan = read(cls, body, where, PlanError)
        for name in cls.always:
            if name not in body:
                raise PlanError(f"{where}: field {name!r} is missing")
        return plan

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


def current(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a plan file with the task as it is called now."""
    task = content.get("task")
    return {**content, **OLD_NAMES.get(task if isinstance(task, str) else "", {})}


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file of any task.

    Raises:
        PlanError: the file is missing or not JSON, its schema or task is unknown, or a field is
            wrong.
    """
    where, content = os.fspath(path), read_json(path, PlanError)
    if not isinstance(content, dict):
        raise PlanError(f"{where}: expected one JSON object")
    check_schema(content, SCHEMA, where, PlanError)
    content = current(content)
    task, known = content.get("task"), list(TASKS)
    refuse_removed("task", task, where, PlanError)
    if task not in known:
        near = did_you_mean(task, known) if isinstance(task, str) else ""
        raise PlanError(f"{where}: field 'task' is {shown(task)}{near}; known: {', '.join(known)}")
    return TASKS[task].plan_class().from_json(content, where)
