"""What ships with the package: graphs by name, and where their files are."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

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
def shapes() -> dict[str, dict[str, Any]]:
    """Read the shipped shapes of transformers: name -> what its file has of it."""
    rows = json.loads((data_folder() / "shapes.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in rows}
