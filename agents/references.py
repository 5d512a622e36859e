"""Makes files of references, problem by problem, so that an interruption loses one of them.

Several commands may make problems of one file at once.

``parenvs.datasets.references`` has the form of the files and reads them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from parenvs.agents.learning.ray_tasks import ENGINES, LOCAL, RAY, on_ray
from parenvs.datasets.references import Row, read, write
from parenvs.errors import ParenvsError, printable
from parenvs.files import locked
from parenvs.instances import data_folder

SAME = 1e-9
"""Share by which seconds may differ by rounding."""
WAIT = 60.0
"""Seconds that a row waits until another command has written its own."""
DUE, CHECK, AGAIN = "due", "check", "again"
"""What is solved: what is missing or outdated, nothing, or everything."""


@dataclass(frozen=True)
class ReferenceFile:
    """A file of references and how its rows are made.

    Attributes:
        file: its name among the shipped ones.
        command: the command that makes it.
        names: lists the problems; those that are in the file are looked at, too.
        load: loads a problem by name.
        make: solves a problem, and returns its row.
        fault: says what is wrong with a row in words, or returns an empty text.
    """

    file: str
    command: str
    names: Callable[[], Iterable[str]]
    load: Callable[[str], Any]
    make: Callable[[Any], Row]
    fault: Callable[[Any, Row], str]

    def main(self, arguments: Iterable[str] | None = None) -> int:
        """Run the command line, and return the exit status."""
        parser = argparse.ArgumentParser(
            prog=self.command, description="Make the references that are missing or outdated."
        )
        parser.add_argument("problems", nargs="*", metavar="NAME", help="default: all")
        parser.add_argument("--check", action="store_true", help="judge all, change nothing")
        parser.add_argument(
            "--again", action="store_true", help="solve all anew, and keep the better of both"
        )
        parser.add_argument("--out", type=Path, default=data_folder() / self.file)
        parser.add_argument("--engine", choices=ENGINES, default=LOCAL, help="default: local")
        parser.add_argument("--jobs", type=_count, default=2, help="tasks of Ray (default: 2)")
        parser.add_argument("--address", help="of a cluster of Ray (default: this machine)")
        options = parser.parse_args(None if arguments is None else list(arguments))
        rows, faults = read(options.out), 0
        due = CHECK if options.check else AGAIN if options.again else DUE
        names = options.problems or dict.fromkeys((*self.names(), *rows))
        items = [(name, rows.get(name), due) for name in names]
        results: Iterable[tuple[str, str, Row | None]] = map(self.look, items)
        try:
            if options.engine == RAY:
                results = on_ray(self.look, items, options.jobs, options.address, in_order=True)
            for name, fault, row in results:
                faults += bool(fault)
                if row is not None:
                    # Read again under the lock: another command may have written since.
                    with locked(options.out, beside=True, wait=WAIT):
                        rows = {**rows, **read(options.out), name: row}
                        write(options.out, rows)
                if fault or row is not None:
                    words = fault if row is None else f"{row['length']}"
                    print(f"{name}: {words}", flush=True)
        except ParenvsError as error:
            print(printable(str(error)), file=sys.stderr)
            return 2
        verb = "wrong" if options.check else "made"
        print(f"{options.out}: {len(rows)} references, {faults} {verb}")
        if rows:
            over = sorted(row["length"] / row["bound"] - 1 for row in rows.values())
            print(f"length over bound: median {median(over):.2%}, most {over[-1]:.2%}")
        return 1 if options.check and faults else 0

    def look(self, item: tuple[str, Row | None, str]) -> tuple[str, str, Row | None]:
        """Look at ``item``: a problem's name, its row if any, and ``DUE``, ``CHECK`` or ``AGAIN``.

        Returns:
            its name, what is wrong with the row in words, and the new row, if one was made.
        """
        name, row, due = item
        problem = self.load(name)
        fault = self.fault(problem, row) if row is not None else "is missing"
        if due == CHECK or not (fault or due == AGAIN):
            return name, fault, None
        made = self.make(problem)
        return name, fault, made if fault or row is None else better(row, made)


def better(one: Row, other: Row) -> Row:
    """Return the shorter plan of two references of a problem, with the higher bound of both."""
    shorter = min(one, other, key=lambda row: row["length"])
    row = {**shorter, "bound": max(one["bound"], other["bound"])}
    if "proven" in row:
        row["proven"] = shorter["proven"] or row["bound"] >= row["length"]
    return row


def run(references: ReferenceFile) -> None:
    """Run the command line of a file of references, and end the process."""
    sys.exit(references.main())


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
