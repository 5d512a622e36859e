"""Files of ordering problems: one problem of one's own, or a set of drawn ones.

A problem is a packed step, ``{"schema": 1, "model": ..., "tokens": ..., "cluster": ..., "layers":
[...], "squares": [...]}``, or seconds, ``{"schema": 1, "forward": [[...], ...], "backward": [[...],
...]}``, a list for each stage. A set is ``{"schema": 1, "problems": [{"name": ..., ...}, ...]}``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.fields import SCHEMA, read, read_rows, words, write_rows
from parenvs.files import read_object
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.order.packing import MAX_MICRO_BATCHES, MAX_STAGES, PackedStep, StepRow
from parenvs.tasks.order.problem import Order

_Stage = Annotated[
    tuple[Annotated[float, words("a number of seconds above 0", gt=0, lt=1e6)], ...],
    words(
        f"a list of seconds, one for each of 1 to {MAX_MICRO_BATCHES} micro-batches",
        min_length=1,
        max_length=MAX_MICRO_BATCHES,
    ),
]
_Matrix = Annotated[
    tuple[_Stage, ...],
    words(
        f"a list of lists of seconds, one for each of 1 to {MAX_STAGES} stages",
        min_length=1,
        max_length=MAX_STAGES,
    ),
]


@dataclass(frozen=True)
class _Seconds:
    """A problem in seconds."""

    forward: _Matrix
    backward: _Matrix

    def __post_init__(self) -> None:
        """Refuse stages with different numbers of micro-batches."""
        for name, rows in vars(self).items():
            if len({len(row) for row in rows}) != 1:
                raise ParenvsError(f"field {name!r} must have as many seconds in each list")


def read_problem(
    path: str | os.PathLike[str], shapes: dict[str, TransformerShape], instance: str | None = None
) -> Order:
    """Read the file of one problem.

    Args:
        path: the file.
        shapes: models by name.
        instance: name that plans carry (default: the path).

    Raises:
        ParenvsError: the file is missing or wrong; the line names the file and the field.
    """
    where = os.fspath(path)
    content = read_object(where, SCHEMA)
    if not {"forward", "backward"} & set(content):
        row = read(StepRow, content, where)
        return Order.of_step(PackedStep.of_row(row, shapes, where), instance or where)
    given = read(_Seconds, content, where)
    try:
        return Order(np.array(given.forward), np.array(given.backward), instance or where)
    except ParenvsError as error:
        raise ParenvsError(f"{where}: {error}") from None


def read_set(
    path: str | os.PathLike[str], shapes: dict[str, TransformerShape]
) -> dict[str, PackedStep]:
    """Read the packed steps of a set, by name.

    Raises:
        ParenvsError: the file is missing or wrong; the line names the file, the problem and the
            field.
    """
    return read_rows(StepRow, path, lambda row, where: PackedStep.of_row(row, shapes, where))


def save_set(path: str | os.PathLike[str], steps: Mapping[str, PackedStep]) -> None:
    """Write the packed steps of a set, a line each, whole or not at all."""
    write_rows(path, {name: step.to_json() for name, step in steps.items()})
