"""Files of sets of elastic problems: a model and a chain each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parenvs.errors import ParenvsError, shown
from parenvs.files import DuplicateFieldError, no_duplicates, write_text
from parenvs.tasks.elastic.markov import Markov

SCHEMA = 1
"""Version of the files."""
_FIELDS = ("name", "model", "intervals", "chain")


class Row(NamedTuple):
    """A problem of a set: the model's name, the intervals of an episode, and the chain."""

    model: str
    intervals: int
    chain: Markov


def save_set(path: str | os.PathLike[str], rows: Mapping[str, Row]) -> None:
    """Write the problems of a set, a line each, whole or not at all."""
    lines = (
        json.dumps({"name": name, **row._asdict(), "chain": row.chain.to_json()})
        for name, row in rows.items()
    )
    body = ",\n  ".join(lines)
    write_text(path, f'{{"schema": {SCHEMA}, "problems": [\n  {body}\n]}}\n')


def read_set(path: str | os.PathLike[str], models: Iterable[str]) -> dict[str, Row]:
    """Read the problems of a set, by name.

    Args:
        path: the file.
        models: names of models that problems may have.

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, problem and field.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=no_duplicates)
    except DuplicateFieldError as error:
        raise ParenvsError(f"{where}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ParenvsError(f"{where}: not a JSON file ({type(error).__name__})") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ParenvsError(f"{where}: expected an object with the field 'schema' {SCHEMA}")
    problems = content.get("problems")
    if not isinstance(problems, list):
        raise ParenvsError(f"{where}: field 'problems' must be a list")
    known, rows = tuple(models), {}
    for number, item in enumerate(problems):
        place = f"{where}: problems[{number}]"
        if not isinstance(item, dict) or sorted(item) != sorted(_FIELDS):
            raise ParenvsError(f"{place}: expected an object of the fields {', '.join(_FIELDS)}")
        rows[_checked(item, known, place)] = Row(
            item["model"], item["intervals"], Markov.from_json(item["chain"], place)
        )
    return rows


def _checked(item: dict[str, Any], models: tuple[str, ...], place: str) -> str:
    """Return the name of a problem whose fields are right.

    Raises:
        ParenvsError: one is not.
    """
    if not isinstance(item["name"], str):
        raise ParenvsError(f"{place}: field 'name' must be a text, not {shown(item['name'])}")
    if item["model"] not in models:
        raise ParenvsError(
            f"{place}: field 'model' must be one of {', '.join(models)}, not {shown(item['model'])}"
        )
    if type(item["intervals"]) is not int:
        raise ParenvsError(f"{place}: field 'intervals' must be a whole number")
    return item["name"]
