"""Optima of the shipped sets of problems, stored as data, so that environments can tell regret.

``python -m parenvs.agents.pipeline.optima`` proves them and writes the file; nothing here solves
a problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from parenvs.core.sets import OPTIMUM, Reference, SetKind, share_kind
from parenvs.datasets.pipeline import large
from parenvs.datasets.pipeline import sets as instance_sets
from parenvs.errors import ParenvsError, one_line
from parenvs.files import write_text
from parenvs.shipped import data_folder

FILE = "plan-optima.json"
"""File beside the sets: set -> checksum of the set's file, and the optimum of each problem."""
COMMAND = "python -m parenvs.agents.pipeline.optima"


def optimum_of(name: str) -> float | None:
    """Return what the shortest plan over points and units is worth, of a problem of a shipped set.

    Args:
        name: name of the problem, like ``"plan-test/transformer-017"``.

    Returns:
        1/L, proven, L in units of the bubble-free time; None for a problem of no such set.
    """
    set_name, slash, _ = name.partition("/")
    if not slash or set_name not in instance_sets.PROVEN:
        return None
    return _optima(set_name).get(name)


def save_optima(values: dict[str, list[float]], folder: Path) -> Path:
    """Write the optima of sets to ``folder``, and return the path of the file.

    Args:
        values: set -> the optimum of each of its problems, in their order.
        folder: the folder of the sets' files.
    """
    content = {
        name: {"sha256": _checksum(folder / f"{name}.npz"), "optima": optima}
        for name, optima in values.items()
    }
    path = folder / FILE
    write_text(path, json.dumps({"made_by": COMMAND, "sets": content}) + "\n")
    return path


@lru_cache(maxsize=len(instance_sets.PROVEN))
def _optima(set_name: str) -> dict[str, float]:
    """Read the optima of a shipped set, by the names of its problems.

    Raises:
        ParenvsError: the file is missing, damaged, or of another version of the set.
    """
    path = data_folder() / FILE
    try:
        entry: Any = json.loads(path.read_text(encoding="utf-8"))["sets"][set_name]
        checksum, optima = str(entry["sha256"]), [float(value) for value in entry["optima"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParenvsError(f"{path}: {one_line(error)}; make it anew with {COMMAND}") from None
    problems = instance_sets.load_set(set_name)
    if checksum != _checksum(data_folder() / f"{set_name}.npz") or len(optima) != len(problems):
        raise ParenvsError(f"{path}: of another file of {set_name}; make it anew with {COMMAND}")
    names = [problem.name for problem in problems]
    return dict(zip(names, optima, strict=True))


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def set_kind(name: str) -> SetKind:
    """Return what the leaderboard and evaluations know of a set of pipelines; see ``SetKind``."""

    def names(name: str) -> list[str]:
        return [problem.name for problem in instance_sets.load_set(name)]

    if name in instance_sets.LARGE:
        load = instance_sets.pipeline_of
        return share_kind("PipelinePlan-v1", names, load, lambda x: large.costs(load(x)), "family")
    return SetKind("PipelinePlan-v1", names, instance_sets.pipeline_of, _reference, worth=_worth)


def _worth(info: Mapping[str, float]) -> float:
    """Return 1/L of an episode's plan; of these sets the bound is the bubble-free time."""
    return info["bound"] / info["cost"]


def _reference(name: str) -> Reference:
    optimum = optimum_of(name)
    assert optimum is not None
    return Reference(optimum, optimum, OPTIMUM)
