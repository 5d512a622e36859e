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

from benchmarks.framework import main, measurement, progress, table
from killed_writers import KINDS, check, repeat


def kill(kind: str, folder: str, seed: int) -> None:
    """Fork a writer, which has everything imported, and kill it after up to 0.1 s."""
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        repeat(kind, folder)
    time.sleep(random.Random(seed).uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@measurement(about={"kills": "of each writer"}, among={"kinds": KINDS})
def kills(kills: int = 200, kinds: tuple[str, ...] = KINDS) -> dict[str, dict[str, int]]:
    data = {}
    for kind in kinds:
        progress(kind)
        with tempfile.TemporaryDirectory() as folder:
            data[kind] = {"kills": kills, "left": check(kind, folder, kills, kill)}
    return data


@kills.page
def page(data: dict[str, dict[str, int]]) -> list[str]:
    return [
        "SIGKILL up to 0.1 s after a writer starts to write two contents by turns. After each kill "
        "the old or the new content is there, whole, and after the next writing nothing else; the "
        "first that is not ends the run with an error. Left: kills that left something under a "
        "temporary name, which the next start removed.",
        table(["writer", "kills", "left"], [[kind, *raw.values()] for kind, raw in data.items()]),
    ]


if __name__ == "__main__":
    main(kills)
