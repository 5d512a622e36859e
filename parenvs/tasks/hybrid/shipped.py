"""Shipped shapes of transformers, and shipped sets of hybrid problems."""

from __future__ import annotations

import json
import os
from functools import lru_cache

from parenvs import shipped
from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, UnknownInstanceError
from parenvs.files import read_json
from parenvs.shipped import data_folder
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.task import HybridTask


@lru_cache(maxsize=1)
def shapes() -> dict[str, TransformerShape]:
    """Read the shipped shapes, by name."""
    return {name: TransformerShape.from_json(row) for name, row in shipped.shapes().items()}


def load_shape(instance: str | os.PathLike[str]) -> TransformerShape | None:
    """Load a transformer's shape by shipped name or from a ``.json`` file; None if it has none.

    A drawn problem, or one of a set, has the shape of its model.

    Raises:
        UnknownInstanceError: a ``.json`` file is missing, or does not hold a shape.
    """
    text = os.fspath(instance)
    if text in shapes():
        return shapes()[text]
    task = HybridTask()
    if task.names(text):
        return task.find(text).model.shape
    if not text.endswith(".json"):
        return None
    return TransformerShape.from_json(read_json(text, UnknownInstanceError), text)


def hetero_sets() -> dict[str, tuple[Hybrid, ...]]:
    """Read the shipped sets of hetero problems: set -> its problems, called ``SET/FAMILY-NUMBER``.

    Raises:
        ParenvsError: the file is damaged.
    """
    return _sets("hetero.json", "hetero_sets")


def problem_sets() -> dict[str, tuple[Hybrid, ...]]:
    """Read all shipped sets of hybrid problems, hetero ones among them; see ``hetero_sets``."""
    return {**_sets("hybrid.json", "hybrid_sets"), **hetero_sets()}


@lru_cache(maxsize=2)
def _sets(file: str, maker: str) -> dict[str, tuple[Hybrid, ...]]:
    """Read a file of sets, which a module of ``parenvs.datasets`` made."""
    path = data_folder() / file
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: tuple(
                Hybrid(
                    HybridModel.of_shape(TransformerShape.from_json(row["shape"])),
                    Cluster.parse(row["cluster"]),
                    row["batch"],
                    Stack.parse(row["stack"], stored=True),
                    row["precision"],
                )
                for row in rows
            )
            for name, rows in content["sets"].items()
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ParenvsError(
            f"{path}: damaged ({error}); make it anew with python -m parenvs.datasets.{maker}"
        ) from None
