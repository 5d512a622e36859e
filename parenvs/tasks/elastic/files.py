"""Files of sets of elastic problems: a model and a chain each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.fields import Integer, Text, read_rows, write_rows
from parenvs.tasks.elastic.markov import Markov


@dataclass(frozen=True)
class Row:
    """A problem of a set: the model's name, the intervals of an episode, and the chain."""

    model: Text
    intervals: Integer
    chain: Markov


def save_set(path: str | os.PathLike[str], rows: Mapping[str, Row]) -> None:
    """Write the problems of a set, a line each, whole or not at all."""
    write_rows(
        path, {name: {**vars(row), "chain": row.chain.to_json()} for name, row in rows.items()}
    )


def read_set(path: str | os.PathLike[str], models: Iterable[str]) -> dict[str, Row]:
    """Read the problems of a set, by name.

    Args:
        path: the file.
        models: names of models that problems may have.

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, problem and field.
    """
    known = tuple(models)

    def known_model(row: Row, where: str) -> Row:
        if row.model not in known:
            raise ParenvsError(
                f"{where}: field 'model' must be one of {', '.join(known)}, not "
                f"{shown(row.model)}{did_you_mean(row.model, known)}"
            )
        return row

    return read_rows(Row, path, known_model)
