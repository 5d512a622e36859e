"""Reading plan files of any task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parenvs.core import fields
from parenvs.core.plan import SCHEMA, Plan, current
from parenvs.core.registry import TASKS
from parenvs.core.task import late
from parenvs.errors import PlanError, shown
from parenvs.files import DuplicateFieldError, no_duplicates


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
    if not fields.is_integer(schema) or schema != SCHEMA:
        raise PlanError(f"{where}: field 'schema' is {shown(schema)}; this version reads {SCHEMA}")
    content = current(content)
    task = content.get("task")
    if not isinstance(task, str) or task not in TASKS or not TASKS[task].plan:
        known = ", ".join(name for name, each in TASKS.items() if each.plan)
        raise PlanError(f"{where}: field 'task' is {shown(task)}; known: {known}")
    plan_class: type[Plan] = late(TASKS[task].plan)
    return plan_class.from_json(content, where)


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
