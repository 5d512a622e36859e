"""Data-parallel steps that synchronise in four ways: seconds and bytes, predicted and measured.

Needs the extra ``torch``. The machine is calibrated first, with sizes between those that are run;
all runs are reported, with the load at the beginning of each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.common import parser, percent, progress, publish, table
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


def section(rows: Sequence[dict[str, Any]], repeats: int, when: str) -> list[str]:
    """A paragraph and the table."""
    header = ["synchronisation", "workers", "weights MB", "bytes of arrays", "MB sent, predicted"]
    header += ["on the loopback", "more", "ms predicted", "of it update", "median", "quartiles"]
    header += ["predicted / median", "step ms", "load"]
    equal = sum(x["arrays"] == x["predicted_arrays"] for x in rows)
    cells = [
        [
            x["method"],
            x["workers"],
            f"{x['bytes'] / 1e6:.3f}",
            "as predicted"
            if x["arrays"] == x["predicted_arrays"]
            else f"{sum(x['arrays'].values()):,} / {sum(x['predicted_arrays'].values()):,.0f}",
            f"{x['predicted_bytes'] / 1e6:.3f}",
            "" if x["moved"] is None else f"{x['moved'] / 1e6:.3f}",
            "" if x["moved"] is None else percent(x["moved"] / x["predicted_bytes"] - 1),
            f"{1e3 * (x['predicted'] + x['update']):.3f}",
            f"{1e3 * x['update']:.3f}",
            f"{1e3 * x['exchange']['seconds']:.3f}",
            f"{1e3 * x['exchange']['low']:.3f} to {1e3 * x['exchange']['high']:.3f}",
            f"{(x['predicted'] + x['update']) / x['exchange']['seconds']:.2f}",
            f"{1e3 * x['whole']['seconds']:.3f}",
            f"{x['load']:.1f}",
        ]
        for x in rows
    ]
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
    return [words, table(header, cells)]


def main() -> None:
    """Calibrate, run, and write the page."""
    options = parser(__doc__, repeats=20)
    options.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of them")
    options.add_argument("--quick", action="store_true", help="the smallest model alone, to try it")
    chosen = options.parse_args()
    rows = measured(chosen.repeats, tuple(chosen.workers), chosen.quick)
    when = "On a machine that does other things, seconds are noise."
    publish("synchronisation", section(rows, chosen.repeats, when), {"rows": rows}, chosen.out)


if __name__ == "__main__":
    main()
