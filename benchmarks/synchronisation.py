"""Data-parallel steps that synchronise in four ways: seconds and bytes, predicted and measured.

Needs the extra ``torch``. The machine is calibrated first, with sizes between those that are run;
all runs are reported, with the load at the beginning of each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.framework import Column, columns, main, measurement, percent, progress
from parenvs.clock.calibration import SIZES, calibrated
from parenvs.clock.synchronisation import (
    predicted_arrays,
    predicted_bytes,
    predicted_seconds,
    run,
    update_seconds,
    weight_bytes,
)
from parenvs.machine import counted

WORKERS = (2, 3, 4)
HIDDEN = (60, 1020, 16380)
"""Hidden units of the models, multiples of all workers: 31 kB, 0.5 MB and 8.4 MB of weights."""


def measured(repeats: int, workers: Sequence[int], quick: bool = False) -> list[dict[str, Any]]:
    """Calibrate, and run every way to synchronise.

    Args:
        repeats: steps of each that count.
        workers: numbers of workers.
        quick: whether to take the smallest model alone, and the smallest calibration.
    """
    progress("calibrating")
    calibration = calibrated(
        processes=max(workers),
        repeats=repeats,
        shapes=[(256, 256, 256)],
        sizes=SIZES[:3] if quick else SIZES[:-1],
        groups=tuple(workers),
    )
    rows: list[dict[str, Any]] = []
    for count in workers:
        for hidden in HIDDEN[: 1 if quick else None]:
            began, size = round(os.getloadavg()[0], 2), weight_bytes(hidden)
            for method, found in run(hidden, count, repeats).items():
                rows.append({
                    "method": method, "workers": count, "bytes": size, "load": began,
                    "moved": found.loopback,
                    "exchange": found.exchange._asdict(), "whole": found.whole._asdict(),
                    "arrays": found.arrays,
                    "predicted_arrays": predicted_arrays(method, size, count),
                    "predicted": predicted_seconds(method, size, count, calibration),
                    "update": update_seconds(method, size, count, calibration),
                    "predicted_bytes": predicted_bytes(method, size, count),
                })  # fmt: skip
                progress(str(rows[-1]))
    return rows


def ratio(row: dict[str, Any]) -> str:
    return f"{(row['predicted'] + row['update']) / row['exchange']['seconds']:.2f}"


def arrays(row: dict[str, Any]) -> str:
    found, told = row["arrays"], row["predicted_arrays"]
    if found == told:
        return "as predicted"
    return f"{sum(found.values()):,} / {sum(told.values()):,.0f}"


def more(row: dict[str, Any]) -> str:
    return "" if row["moved"] is None else percent(row["moved"] / row["predicted_bytes"] - 1)


COLUMNS: list[Column] = [
    ("synchronisation", "{method}"),
    ("workers", "{workers}"),
    ("weights MB", "{bytes:.3f/1e6}"),
    ("bytes of arrays", arrays),
    ("MB sent, predicted", "{predicted_bytes:.3f/1e6}"),
    ("on the loopback", "{moved:.3f/1e6}"),
    ("more", more),
    ("ms predicted", lambda row: f"{1e3 * (row['predicted'] + row['update']):.3f}"),
    ("of it update", "{update:.3f*1e3}"),
    ("median", "{exchange[seconds]:.3f*1e3}"),
    ("quartiles", "{exchange[low]:.3f*1e3} to {exchange[high]:.3f*1e3}"),
    ("predicted / median", ratio),
    ("step ms", "{whole[seconds]:.3f*1e3}"),
    ("load", "{load:.1f}"),
]


def section(rows: Sequence[dict[str, Any]], repeats: int, when: str) -> list[str]:
    """A paragraph and the table."""
    equal = sum(x["arrays"] == x["predicted_arrays"] for x in rows)
    words = (
        f"{repeats} data-parallel steps each, processes of gloo with one thread; the central "
        f"server is a process more, and {counted(os.cpu_count() or 1)} serve them all. Predicted "
        "seconds are those of the collectives as calibrated just before, and of sums and updates "
        "by the memory's bandwidth; measured ones are of synchronisation and update, of the last "
        f"worker to end. Bytes of arrays are counted in the processes, by kind: {equal} of "
        f"{len(rows)} rows as predicted. Bytes on the loopback are counted by the system, with "
        "headers, a barrier of all processes and whatever else used it. PyTorch's reduce-scatter "
        "on gloo sends as much as an all-reduce, so the sharded optimiser sends half as much "
        f"again. All four ways give the same weights. {when}"
    )
    return [words, columns(rows, COLUMNS)]


@measurement(
    title="Ways to synchronise gradients",
    about={"workers": "numbers of them", "quick": "the smallest model alone, to try it"},
)
def synchronisation(
    repeats: int = 20, workers: tuple[int, ...] = WORKERS, quick: bool = False
) -> dict[str, Any]:
    return {"rows": measured(repeats, tuple(workers), quick)}


@synchronisation.page
def page(data: dict[str, Any], repeats: int) -> list[str]:
    when = "On a machine that does other things, seconds are noise."
    return section(data["rows"], repeats, when)


if __name__ == "__main__":
    main(synchronisation)
