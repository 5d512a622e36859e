"""How far predictions are from measurements: by source and table, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from parenvs.bench.hybrid.constants import CONSTANTS, Constant
from parenvs.bench.hybrid.predict import Prediction
from parenvs.bench.hybrid.rows import PEAKS, read_rows


@dataclass(frozen=True)
class Group:
    """The predictions of one table.

    Attributes:
        source: who published it.
        table: its name; what tells a part of it apart stands behind a comma.
        stack: the stack.
        device: the devices.
        predictions: of its rows.
        constants: those that were fitted on rows among them.
    """

    source: str
    table: str
    stack: str
    device: str
    predictions: tuple[Prediction, ...]
    constants: tuple[Constant, ...]

    @property
    def errors(self) -> np.ndarray:
        """(n,) predicted over measured, less 1."""
        return np.array([one.error for one in self.predictions])

    @property
    def mean(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.errors).mean())

    @property
    def worst(self) -> float:
        """The error that is farthest from 0, with its sign."""
        return float(self.errors[np.abs(self.errors).argmax()])

    @property
    def rank(self) -> float | None:
        """Rank correlation; None for less than three rows, or figures of several units."""
        if len(self.predictions) < 3 or len({one.unit for one in self.predictions}) > 1:
            return None
        return rank_correlation(
            [one.measured for one in self.predictions], [one.predicted for one in self.predictions]
        )

    def of_tool(self, tool: str) -> tuple[int, float] | None:
        """Rows that a tool's output is recorded for, and its mean absolute error."""
        found = [abs(x.others[tool] / x.measured - 1) for x in self.predictions if tool in x.others]
        return (len(found), float(np.mean(found))) if found else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the table as JSON types."""
        tools = {tool for one in self.predictions for tool in one.others}
        return {
            "source": self.source,
            "table": self.table,
            "stack": self.stack,
            "device": self.device,
            "n": len(self.predictions),
            "mean_absolute": self.mean,
            "worst": self.worst,
            "rank_correlation": self.rank,
            "fitted": [constant.words for constant in self.constants],
            "tools": {tool: self.of_tool(tool) for tool in sorted(tools)},
        }


@cache
def _shipped() -> frozenset[tuple]:
    """Figures of the shipped file, which constants were fitted on."""
    return frozenset(
        (row.source, row.table, row.name, row.get("gpus"), figure)
        for row in read_rows().rows
        for figure in row.measured.values()
    )


def fitted_on(one: Prediction) -> list[Constant]:
    """Return the constants that were fitted on a figure; none on one of another file."""
    if (one.source, one.table, one.name, one.gpus, one.measured) not in _shipped():
        return []
    if one.column in PEAKS:
        return []  # bytes are counted
    where = (one.source, one.table, one.name, one.stack, one.device, one.precision)
    return [item for item in CONSTANTS if item.is_of(*where)]


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties by their mean rank.

    None for less than three figures, or if all of one kind are equal.
    """
    if len(one) < 3:
        return None
    first, second = (_ranks(np.asarray(figures, dtype=float)) for figures in (one, other))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(figures: np.ndarray) -> np.ndarray:
    order, place = np.unique(figures, return_inverse=True)
    counts = np.bincount(place, minlength=len(order))
    return (counts.cumsum() - (counts - 1) / 2)[place]


def groups(predictions: Iterable[Prediction]) -> list[Group]:
    """Return the predictions by source and table, in the order of the file.

    A table with rows of several stacks or devices, or of ZeRO 3 and without, is taken apart, and
    so are the bytes of devices.
    """
    found = list(predictions)
    variants: dict[tuple[str, str], list[set]] = {}
    for one in found:
        kinds = variants.setdefault((one.source, one.table), [set(), set(), set(), set()])
        for kind, value in zip(kinds, _variant(one), strict=True):
            kind.add(value)
    tables: dict[tuple[str, str], list[Prediction]] = {}
    for one in found:
        kinds = variants[one.source, one.table]
        pairs = zip(kinds, _variant(one), strict=True)
        told = [value for kind, value in pairs if len(kind) > 1 and value]
        tables.setdefault((one.source, ", ".join(filter(None, [one.table, *told]))), []).append(one)
    return [
        Group(
            source,
            table,
            " ".join(sorted({one.stack for one in members})),
            " ".join(sorted({one.device for one in members})),
            tuple(members),
            tuple(dict.fromkeys(item for one in members for item in fitted_on(one))),
        )
        for (source, table), members in tables.items()
    ]


def _variant(one: Prediction) -> tuple[str, str, str, str]:
    zero = one.details.get("plan", {}).get("zero", 0)
    memory = "memory" if one.column in PEAKS else ""
    return one.stack, one.device, "ZeRO 3" if zero == 3 else "", memory
