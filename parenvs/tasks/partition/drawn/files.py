"""Files of sets of partition problems: graphs on clusters, each with a limit of memory.

A set is ``{"schema": 1, "problems": [{"name": "t5-000", "instance": "t5-3b", "cluster":
"2x8:a100", "memory_limit": "device", "micro_batch": 8, "micro_batches": 4, "recompute": "full"},
...]}``; the last three fields, ``rules`` and ``uneven`` may be left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, did_you_mean, one_line, shown
from parenvs.files import read_object, write_text
from parenvs.tasks.partition.plan import REMADE, RULE_SETS, UNEVEN
from parenvs.tasks.partition.step import DEVICE, Step

SCHEMA = 1
"""Version of the files."""
NEEDED = ("instance", "cluster")
"""Fields that every problem has besides its name."""
DEFAULTS: dict[str, Any] = {
    "memory_limit": DEVICE, "micro_batch": None, "micro_batches": 1, "recompute": REMADE[0],
    "rules": RULE_SETS[0], "uneven": UNEVEN[0],
}  # fmt: skip
"""Fields that may be left out."""


@dataclass(frozen=True)
class SetRow:
    """A partition problem in words.

    Attributes:
        instance: shipped name or path of a graph.
        cluster: the devices, in any form that ``Cluster.parse`` takes.
        memory_limit: bytes on a device, or ``"device"`` for what plans may use of one.
        micro_batch: samples of a micro-batch; None: the graph's batch.
        micro_batches: micro-batches of a step.
        recompute: ``"none"`` or ``"full"``.
        rules: ``"shardy"`` or ``"automap"``.
        uneven: ``"pad"`` or ``"forbid"``.
    """

    instance: str
    cluster: Any
    memory_limit: float | str = DEVICE
    micro_batch: int | None = None
    micro_batches: int = 1
    recompute: str = REMADE[0]
    rules: str = RULE_SETS[0]
    uneven: str = UNEVEN[0]

    @property
    def options(self) -> dict[str, Any]:
        """The settings as arguments of ``parenvs.tasks.partition.load.load_partitioning``, but the cluster."""
        return {name: getattr(self, name) for name in DEFAULTS}

    def to_json(self) -> dict[str, Any]:
        """The fields that are not left out, as an object of JSON types."""
        row: dict[str, Any] = {name: getattr(self, name) for name in NEEDED}
        for name, default in DEFAULTS.items():
            if getattr(self, name) != default or name == "memory_limit":
                row[name] = getattr(self, name)
        return row


def read_set(path: str | os.PathLike[str]) -> dict[str, SetRow]:
    """Read the problems of a set, by name, in their order.

    Raises:
        ParenvsError: the file is missing or wrong; the line names the file, the problem and the
            field.
    """
    where = os.fspath(path)
    content = read_object(where, SCHEMA)
    for key in content:
        if key not in ("schema", "problems"):
            raise ParenvsError(f"{where}: unknown field {shown(key)}")
    problems = content.get("problems")
    if not isinstance(problems, list) or not problems:
        raise ParenvsError(f"{where}: field 'problems' must be a list of one problem or more")
    rows: dict[str, SetRow] = {}
    for number, row in enumerate(problems):
        place = f"{where}: problems[{number}]"
        if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not row["name"]:
            raise ParenvsError(f"{place}: expected an object with the field 'name', a text")
        if "/" in row["name"]:
            raise ParenvsError(f"{place}: field 'name' is {shown(row['name'])}; leave '/' out")
        if row["name"] in rows:
            raise ParenvsError(f"{place}: field 'name' is {shown(row['name'])} a second time")
        rows[row["name"]] = _row({k: v for k, v in row.items() if k != "name"}, place)
    return rows


def save_set(path: str | os.PathLike[str], rows: Mapping[str, SetRow]) -> None:
    """Write the problems of a set, a line each, whole or not at all."""
    lines = (json.dumps({"name": name, **row.to_json()}) for name, row in rows.items())
    body = ",\n  ".join(lines)
    write_text(path, f'{{"schema": {SCHEMA}, "problems": [\n  {body}\n]}}\n')


def _row(fields: dict[str, Any], where: str) -> SetRow:
    """Return the problem of an object, whose settings are checked."""
    known = (*NEEDED, *DEFAULTS)
    for key in fields:
        if key not in known:
            raise ParenvsError(f"{where}: unknown field {shown(key)}{did_you_mean(key, known)}")
    for key in NEEDED:
        if key not in fields:
            raise ParenvsError(f"{where}: field {key!r} is missing")
    if not isinstance(fields["instance"], str):
        raise ParenvsError(f"{where}: field 'instance' must be a text")
    for key, choices in (("rules", RULE_SETS), ("uneven", UNEVEN)):
        if fields.get(key, DEFAULTS[key]) not in choices:
            raise ParenvsError(
                f"{where}: field {key!r} must be one of {', '.join(choices)}, not "
                f"{shown(fields[key])}"
            )
    row = SetRow(**fields)
    try:
        step = Step.of(
            Cluster.parse(row.cluster), row.micro_batch, row.micro_batches, row.recompute,
            row.memory_limit,
        )  # fmt: skip
    except (ParenvsError, TypeError) as error:
        raise ParenvsError(f"{where}: {one_line(error)}") from None
    if step.limit is None:
        raise ParenvsError(f"{where}: field 'memory_limit' must be bytes or {DEVICE!r}")
    return row
