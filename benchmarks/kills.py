"""Kills writers at random times, and looks at what they leave.

After each kill the old content or the new is there, whole; after the next writing nothing else is.
``swap`` writes sites as on systems that cannot exchange two folders in one step. Whole commands are
killed too, with what they left the last time before them, and at last run to their end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from functools import partial

from benchmarks.framework import ROOT, Case, Row, columns, main, measurement
from killed_commands import COMMANDS
from killed_commands import check as check_command
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


def wrote(kind: str, count: int) -> Row:
    """Kill a writer ``count`` times."""
    with tempfile.TemporaryDirectory() as folder:
        return {"kills": count, "left": check(kind, folder, count, kill)}


def ran(name: str, count: int) -> Row:
    """Kill a command ``count`` times."""
    with tempfile.TemporaryDirectory() as folder:
        return {"kills": count, **check_command(name, folder, count)}


@measurement(
    title="Writers killed at random times",
    key="killed name",
    about={"kills": "of each writer", "each": "of each command"},
    among={"kinds": KINDS, "commands": [*COMMANDS]},
)
def kills(
    kills: int = 200, each: int = 20, kinds: tuple[str, ...] = KINDS,
    commands: tuple[str, ...] = tuple(COMMANDS),
) -> list[Case]:  # fmt: skip
    sys.path.append(str(ROOT / "examples"))
    return [
        *(({"killed": "writer", "name": name}, partial(wrote, name, kills)) for name in kinds),
        *(({"killed": "command", "name": name}, partial(ran, name, each)) for name in commands),
    ]


@kills.page
def page(rows: list[Row]) -> list[str]:
    writers, commands = (
        [row for row in rows if row["killed"] == what] for what in ("writer", "command")
    )
    return [
        "SIGKILL up to 0.1 s after a writer starts to write two contents by turns. After each kill "
        "the old or the new content is there, whole, and after the next writing nothing else; the "
        "first that is not ends the run with an error. Left: kills that left something under a "
        "temporary name, which the next start removed.",
        columns(writers, [(name, f"{{{name}}}") for name in ("name", "kills", "left")]),
        "SIGKILL at a random time of a whole command, mostly on what the last one left: files are "
        "whole, and the command ends well at last, with nothing left under a temporary name. "
        "Resumed: killed runs that went on from a checkpoint of one killed before. "
        "Outlived: kills after which a process that the command had started ran for 20 s more.",
        columns(
            commands, [(name, f"{{{name}}}") for name in ("name", "kills", "resumed", "outlived")]
        ),
    ]


if __name__ == "__main__":
    main(kills)
