"""Options of tasks whose problems are made of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parenvs.core.task import option


def globs(texts: Sequence[str]) -> int | tuple[str, ...]:
    """Return what commands take for parameters: globs over paths, or the index of an argument."""
    return int(texts[0]) if len(texts) == 1 and texts[0].isdecimal() else tuple(texts)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """How a graph's entry parameters are read, see ``parenvs.load_graph``."""

    arguments: str | None = option(
        None, "What gives a function's arguments: NAME in its file, or FILE.py:NAME.", flag="args"
    )
    variables: Any = option(
        None, "Globs over paths, or an argument's index: trained variables.", kind=list, read=globs
    )
    batch: Any = option(
        None,
        "The same: inputs whose first dimension is the batch.",
        "batch-inputs",
        kind=list,
        read=globs,
    )
    frozen: Any = option(None, "The same: weights that are not trained.", kind=list, read=globs)
