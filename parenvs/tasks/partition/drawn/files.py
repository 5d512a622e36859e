"""Files of sets of partition problems: graphs on clusters, each with a limit of memory.

A set is ``{"schema": 1, "problems": [{"name": "t5-000", "instance": "t5-3b", "cluster":
"2x8:a100", "memory_limit": "device", "micro_batch": 8, "micro_batches": 4, "recompute": "full"},
...]}``; the last three fields, ``rules`` and ``uneven`` may be left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, one_line, shown
from parenvs.fields import Count, Size, Text, one_of, read_rows, write_rows
from parenvs.tasks.partition.plan import REMADE, RULE_SETS, UNEVEN
from parenvs.tasks.partition.step import DEVICE, Step

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
        """The settings as arguments of ``load_partitioning``, but the cluster."""
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
    rows = read_rows(SetRow, path, _checked)
    for name in rows:
        if "/" in name:
            raise ParenvsError(f"{os.fspath(path)}: field 'name' is {shown(name)}; leave '/' out")
    return rows


def save_set(path: str | os.PathLike[str], rows: Mapping[str, SetRow]) -> None:
    """Write the problems of a set, a line each, whole or not at all."""
    write_rows(path, {name: row.to_json() for name, row in rows.items()})


def _checked(row: SetRow, where: str) -> SetRow:
    """Return a row whose settings are possible on its cluster."""
    try:
        Step.of(
            Cluster.parse(row.cluster), row.micro_batch, row.micro_batches, row.recompute,
            row.memory_limit,
        )  # fmt: skip
    except ParenvsError as error:
        raise ParenvsError(f"{where}: {one_line(error)}") from None
    return row
