"""Files of ordering problems: one problem of one's own, or a set of drawn ones.

A problem is a packed step, ``{"schema": 1, "model": ..., "tokens": ..., "cluster": ..., "layers":
[...], "squares": [...]}``, or seconds, ``{"schema": 1, "forward": [[...], ...], "backward": [[...],
...]}``, a list for each stage. A set is ``{"schema": 1, "problems": [{"name": ..., ...}, ...]}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import read_object, write_text
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.order.packing import FIELDS, MOST_MICRO_BATCHES, MOST_STAGES, PackedStep
from parenvs.tasks.order.problem import Order

SCHEMA = 1
"""Version of the files."""
_SECONDS = ("forward", "backward")


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
    if not set(_SECONDS) & set(content):
        return Order.of_step(_step(content, shapes, where), instance or where)
    _check_keys(content, {"schema", *_SECONDS}, where)
    arrays = [np.array(_matrix(content, key, where), dtype=float) for key in _SECONDS]
    try:
        return Order(arrays[0], arrays[1], instance or where)
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
    where = os.fspath(path)
    content = read_object(where, SCHEMA)
    _check_keys(content, {"schema", "problems"}, where)
    if not isinstance(content["problems"], list):
        raise ParenvsError(f"{where}: field 'problems' must be a list of problems")
    steps: dict[str, PackedStep] = {}
    for number, row in enumerate(content["problems"]):
        place = f"{where}: problems[{number}]"
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise ParenvsError(f"{place}: expected an object with the field 'name', a text")
        if row["name"] in steps:
            raise ParenvsError(f"{place}: field 'name' is {shown(row['name'])} a second time")
        body = {key: value for key, value in row.items() if key != "name"}
        steps[row["name"]] = _step({"schema": SCHEMA, **body}, shapes, place)
    return steps


def save_set(path: str | os.PathLike[str], steps: Mapping[str, PackedStep]) -> None:
    """Write the packed steps of a set, a line each, whole or not at all."""
    rows = (json.dumps({"name": name, **step.to_json()}) for name, step in steps.items())
    body = ",\n  ".join(rows)
    write_text(path, f'{{"schema": {SCHEMA}, "problems": [\n  {body}\n]}}\n')


def _step(content: dict[str, Any], shapes: dict[str, TransformerShape], where: str) -> PackedStep:
    _check_keys(content, {"schema", *FIELDS}, where)
    return PackedStep.from_json(content, shapes, where)


def _check_keys(content: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raise a ParenvsError for missing and unknown keys."""
    for key in sorted(set(content) - known):
        raise ParenvsError(f"{where}: unknown field {shown(key)}{did_you_mean(key, known)}")
    for key in sorted(known - set(content)):
        raise ParenvsError(f"{where}: field {key!r} is missing")


def _matrix(content: Mapping[str, Any], key: str, where: str) -> list[list[float]]:
    """Return a field that is a list for each stage of a number for each micro-batch."""
    value = content[key]
    rows: Sequence[Any] = value if isinstance(value, list) else ()
    width = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    fits = 1 <= len(rows) <= MOST_STAGES and 1 <= width <= MOST_MICRO_BATCHES
    if not fits or not all(
        isinstance(row, list) and len(row) == width and all(map(_is_number, row)) for row in rows
    ):
        raise ParenvsError(
            f"{where}: field {key!r} must hold a list of seconds for each of 1 to {MOST_STAGES} "
            f"stages, one for each of 1 to {MOST_MICRO_BATCHES} micro-batches"
        )
    return value


def _is_number(value: Any) -> bool:
    """Return whether a value is a number above 0 that float64 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e6
