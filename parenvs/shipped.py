"""What ships with the package: graphs and shapes by name, and where their files are."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from parenvs.errors import UnknownInstanceError
from parenvs.files import DuplicateFieldError, no_duplicates
from parenvs.hybrid.shape import TransformerShape

PAPER = ("vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48")
"""Shipped instances of Auto-MAP's paper (arXiv 2007.04069), which the leaderboard plans."""


def data_folder() -> Path:
    """Return the folder of the shipped graphs."""
    return Path(str(resources.files("parenvs.datasets"))) / "data"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Read the list of shipped instances: sizes, checksums and the command that made them."""
    return json.loads((data_folder() / "manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of the shipped instances."""
    return list(manifest()["instances"])


@lru_cache(maxsize=1)
def shapes() -> dict[str, TransformerShape]:
    """Read the shipped shapes, by name."""
    rows = json.loads((data_folder() / "shapes.json").read_text(encoding="utf-8"))
    return {row["name"]: TransformerShape.from_json(row) for row in rows}


def load_shape(instance: str | os.PathLike[str]) -> TransformerShape | None:
    """Load a transformer's shape by shipped name or from a ``.json`` file; None if it has none.

    Raises:
        UnknownInstanceError: a ``.json`` file is missing, or does not hold a shape.
    """
    text = os.fspath(instance)
    if text in shapes():
        return shapes()[text]
    if not text.endswith(".json"):
        return None
    try:
        content = json.loads(
            Path(text).read_text(encoding="utf-8"), object_pairs_hook=no_duplicates
        )
    except DuplicateFieldError as error:
        raise UnknownInstanceError(f"{text}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "nested too deeply"
        raise UnknownInstanceError(f"{text}: not a JSON file ({reason})") from None
    return TransformerShape.from_json(content, text)
