"""Data-parallel steps that synchronise in four ways: seconds and bytes, predicted and measured.

Needs the extra ``torch``. The machine is calibrated first, with sizes between those that are run;
all runs are reported, with the load at the beginning of each.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from common import parser, percent, progress, publish, table

from parenvs.clock.calibration import SIZES, calibrated
from parenvs.clock.synchronisation import (
    predicted_bytes,
    predicted_seconds,
    run,
    weight_bytes,
)
from parenvs.machine import counted

WORKERS = 2
HIDDEN = (64, 1024, 16384)
"""Hidden units of the models: 33 kB, 0.5 MB and 8.4 MB of weights."""


def load() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 1)


def main() -> None:
    """Calibrate, run, and write the page."""
    options = parser(__doc__, repeats=20)
    chosen = options.parse_args()
    progress("calibrating")
    calibration = calibrated(repeats=chosen.repeats, shapes=[(256, 256, 256)], sizes=SIZES[:-1])
    rows: list[dict[str, Any]] = []
    for hidden in HIDDEN:
        began, size = load(), weight_bytes(hidden)
        for method, found in run(hidden, WORKERS, chosen.repeats).items():
            rows.append({
                "method": method, "bytes": size, "load": began, "moved": found.loopback,
                "exchange": found.exchange._asdict(), "whole": found.whole._asdict(),
                "predicted": predicted_seconds(method, size, WORKERS, calibration),
                "predicted_bytes": predicted_bytes(method, size, WORKERS),
            })  # fmt: skip
            progress(str(rows[-1]))
    header = ["synchronisation", "weights MB", "MB sent, predicted", "on the loopback", "more"]
    header += ["ms predicted", "median", "quartiles", "predicted / median", "step ms", "load"]
    cells = [
        [
            x["method"],
            f"{x['bytes'] / 1e6:.3f}",
            f"{x['predicted_bytes'] / 1e6:.3f}",
            "" if x["moved"] is None else f"{x['moved'] / 1e6:.3f}",
            "" if x["moved"] is None else percent(x["moved"] / x["predicted_bytes"] - 1),
            f"{1e3 * x['predicted']:.3f}",
            f"{1e3 * x['exchange']['seconds']:.3f}",
            f"{1e3 * x['exchange']['low']:.3f} to {1e3 * x['exchange']['high']:.3f}",
            f"{x['predicted'] / x['exchange']['seconds']:.2f}",
            f"{1e3 * x['whole']['seconds']:.3f}",
            f"{x['load']:.1f}",
        ]
        for x in rows
    ]
    sections = [
        f"{chosen.repeats} steps each with {WORKERS} workers, processes of gloo with one thread; "
        "the central server is a third process. Predicted seconds are those of the collectives as "
        "calibrated just before, without the update; measured ones are of synchronisation and "
        "update, of the last worker to end. Bytes are counted by the system on the loopback, with "
        "headers, a barrier of three processes and whatever else used it. PyTorch's "
        "reduce-scatter on gloo sends as much as an all-reduce, so the sharded optimiser sends "
        "half as much again. All four ways give the same "
        f"weights. Load when the calibration began: {calibration.provenance['load']} on "
        f"{counted(os.cpu_count() or 1)}; on a machine that does other things, seconds are noise.",
        table(header, cells),
    ]
    data = {"rows": rows, "calibration": [asdict(x) for x in calibration.rows]}
    publish("synchronisation", sections, data, chosen.out)


if __name__ == "__main__":
    main()
