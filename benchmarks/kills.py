"""Kills writers at random times, and looks at what they leave.

After each kill the old content or the new is there, whole; after the next writing nothing else is.
``swap`` writes sites as on systems that cannot exchange two folders in one step.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from typing import Any

from benchmarks.common import parser, progress, publish, table
from kills import KINDS, check, repeat


def kill(kind: str, folder: str, seed: int) -> None:
    """Fork a writer, which has everything imported, and kill it after up to 0.1 s."""
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        repeat(kind, folder)
    time.sleep(random.Random(seed).uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main() -> None:
    """Kill, look, print and write."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=200, help="of each writer")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    chosen = options.parse_args()
    data: dict[str, Any] = {}
    for kind in chosen.kinds:
        progress(kind)
        with tempfile.TemporaryDirectory() as folder:
            left = check(kind, folder, chosen.kills, kill)
        data[kind] = {"kills": chosen.kills, "left": left}
    rows = [[kind, raw["kills"], raw["left"]] for kind, raw in data.items()]
    sections = [
        "SIGKILL up to 0.1 s after a writer starts to write two contents by turns. After each kill "
        "the old or the new content is there, whole, and after the next writing nothing else; the "
        "first that is not ends the run with an error. Left: kills that left something under a "
        "temporary name, which the next start removed.",
        table(["writer", "kills", "left"], rows),
    ]
    publish("kills", sections, data, chosen.out)


if __name__ == "__main__":
    main()
