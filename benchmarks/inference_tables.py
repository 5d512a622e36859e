"""Tables of ``inference.py``: planners' lengths over proven optima, and their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import numbers, percent
from parenvs.agents.learning.pretrained.planner import DRAWS
from parenvs.datasets.pipeline.generators import INSIDE

MAIN, REFINED = f"network, {DRAWS} plans", "refined"
"""The network's names among the planners."""
CNN = ("vgg-19", "vgg-16", "resnet-50")
HEADER = (
    "planner", "problems", "median", "95 %", "99 %", "worst", "at the optimum", "over the memory",
    "ms, median", "ms, 95 %",
)  # fmt: skip


def ratios(found: Iterable[dict[str, Any]], name: str, over: str = "bound") -> np.ndarray:
    """Lengths over the optimum, of the plans that fit the memory."""
    plans = [(raw["planners"][name], raw[over]) for raw in found]
    return np.array([plan["length"] / best for plan, best in plans if plan["fits"]])


def row(name: str, found: Sequence[dict[str, Any]], over: str = "bound") -> list[str]:
    """The table's row of a planner."""
    found = [raw for raw in found if name in raw["planners"]]
    some = ratios(found, name, over)
    spent = [raw["planners"][name]["seconds"] for raw in found]
    seconds = [x for x in spent if x is not None]
    figures = [*np.percentile(some, (50, 95, 99)), some.max()] if len(some) else [np.nan] * 4
    return [
        name, f"{len(found):,}", *(f"{x:.4f}" for x in figures),
        percent(float(np.mean(some <= 1.001)) if len(some) else None, 1),
        str(len(found) - len(some)),
        *(f"{1000 * np.percentile(seconds, p):.1f}" if seconds else "" for p in (50, 95)),
    ]  # fmt: skip


def exact_row(found: Sequence[dict[str, Any]], key: str = "exact_seconds") -> list[str]:
    """The table's row of the exact solver, which shows its time."""
    seconds = [raw[key] for raw in found]
    name = "exact, all pivots" if key == "full_seconds" else "exact"
    times = (f"{1000 * np.percentile(seconds, p):.1f}" for p in (50, 95))
    return [name, f"{len(found):,}", *["1.0000"] * 4, "100.0 %", "0", *times]


def groups(
    found: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], Any]
) -> list[list[str]]:
    """Rows of the network, as it is and refined, for each value that ``key`` gives of a problem."""
    rows = []
    for value in sorted({key(raw) for raw in found}):
        some = [raw for raw in found if key(raw) == value]
        cells = [
            f"{x:.4f}"
            for name in (MAIN, REFINED)
            for x in np.percentile(ratios(some, name), (50, 95))
        ]
        rows.append([str(value), str(len(some)), *cells])
    return rows


def scaling_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows of the network by number of devices and of stages."""
    rows = []
    for d, s in dict.fromkeys((raw["devices"], raw["stages"]) for raw in found):
        some = [raw for raw in found if (raw["devices"], raw["stages"]) == (d, s)]
        open_ = sum(raw["bound"] < raw["optimum"] for raw in some)
        times = [
            1000 * np.median([raw["planners"][name]["seconds"] for raw in some])
            for name in (MAIN, REFINED)
        ]
        exact = 1000 * np.median([raw["exact_seconds"] for raw in some])
        cells = [
            f"{x:.3f}"
            for name in (MAIN, REFINED)
            for x in (np.median(ratios(some, name)), ratios(some, name).max())
        ]
        inside = "inside" if d <= INSIDE.devices[1] and s <= INSIDE.stages[1] else "outside"
        rows.append(
            [
                str(d), str(s), inside, str(len(some)), *cells,
                *(f"{x:.1f}" for x in (*times, exact)), str(open_) if open_ else "",
            ]
        )  # fmt: skip
    return rows


def real_rows(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row for each real problem."""
    rows = []
    for raw in found:
        net, more = raw["planners"][MAIN], raw["planners"][REFINED]
        rows.append(
            [
                raw["name"], raw["cluster"], str(raw["stages"]), f"{raw['pivots']:,}",
                *(f"{x['length'] / raw['bound']:.4f}" for x in (net, more)),
                *(f"{x['length'] / raw['full_bound']:.4f}" for x in (net, more)),
                *(f"{1000 * x['seconds']:.0f}" for x in (net, more)),
                f"{1000 * raw['exact_seconds']:.0f}", f"{1000 * raw['full_seconds']:.0f}",
            ]
        )  # fmt: skip
    return rows


def device_cuts(found: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The paper's Table 8: device cuts of four stages on configuration C."""
    rows = []
    for raw in found:
        if raw["cluster"] != "C" or raw["stages"] != 4:
            continue
        family = "CNN" if raw["name"].removesuffix(".csv") in CNN else "NLP"
        cuts = [raw["planners"][name]["device_cuts"] for name in (MAIN, REFINED)]
        cuts.append(raw["full_device_cuts"])
        paper = "(8, 16, 24)" if family == "NLP" else ""
        rows.append([raw["name"], family, paper, *map(numbers, cuts)])
    return rows
