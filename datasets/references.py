"""References of shipped problems, stored as data: the best plan known, and a proven lower bound.

A file is one object, name of a problem -> row; a row has ``length`` and ``bound`` in seconds, and
what was decided. Planners make the files (``parenvs.agents.references``); nothing here solves
a problem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from parenvs.core.sets import BEST_KNOWN, OPTIMUM, BestValue
from parenvs.errors import ParenvsError, one_line
from parenvs.files import read_json, write_text
from parenvs.instances import data_folder

HYBRID = "hybrid-references.json"
"""References of the hybrid sets, and of the first problems of ``hetero-N-test``."""
PARTITIONS = "partition-references.json"
"""References of the sets of partition problems; lengths and bounds are seconds."""
INTRA_OP = "intra-op-references.json"
"""References of the sets and banks of ``IntraOpSharding-v2``; lengths and bounds are costs."""

SAME = 1e-9
"""Share by which a proven length and its bound may differ by rounding."""
Row = dict[str, Any]
"""A reference as an object of JSON types."""


@lru_cache(maxsize=8)
def references(file: str) -> dict[str, Row]:
    """Read a shipped file of references; it is cached.

    Raises:
        ParenvsError: the file is missing or damaged.
    """
    path = data_folder() / file
    if not path.exists():
        raise ParenvsError(f"{path}: no such file; the package is not whole, install it anew")
    return read(path)


def read(path: Path) -> dict[str, Row]:
    """Read a file of references; one that does not exist has none.

    Raises:
        ParenvsError: the file is damaged.
    """
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict) or not all(isinstance(x, dict) for x in content.values()):
        raise ParenvsError(f"{path}: damaged (expected an object of objects); remove it")
    return content


def write(path: Path, rows: Mapping[str, Row]) -> None:
    """Write references, a line each, whole or not at all."""
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def costs_of(file: str, name: str, fingerprint: str) -> BestValue | None:
    """Return the best cost known of a problem and the bound of costs; None if there is no row.

    Args:
        file: name of the file.
        name: of the problem.
        fingerprint: of the problem, which the row must have.

    Raises:
        ParenvsError: the row is damaged, or of another problem.
    """
    row = references(file).get(name)
    if row is None:
        return None
    where = f"{data_folder() / file}: {name}"
    try:
        if row["fingerprint"] != fingerprint:
            raise ParenvsError(f"{where}: of another problem; make the file anew")
        best, bound = float(row["length"]), float(row["bound"])
    except (KeyError, TypeError, ValueError) as error:
        raise ParenvsError(f"{where}: {one_line(error)}; make the file anew") from None
    proven = row.get("proven") or best <= bound * (1 + SAME)
    return BestValue(best, min(bound, best), OPTIMUM if proven else BEST_KNOWN)
