"""Runs that leave one JSON line each in a file: read what is done, perform what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import Any, TypeVar

from parenvs.agents.learning.ray_tasks import LOCAL, RAY, on_ray
from parenvs.errors import ParenvsError
from parenvs.files import locked, naming, write_text

KeyOf = Callable[[dict[str, Any]], tuple[Any, ...]]
"""Gives what tells a row from others."""
WAIT = 60.0
"""Seconds that a record waits for another process that writes to its file."""
Run = TypeVar("Run")
"""Whatever describes a run; it can be pickled."""


class Rows:
    """The rows of a file by key; each is in the file as soon as it is added.

    Args:
        path: the file.
        key_of: gives what tells a row from others.
    """

    def __init__(self, path: Path, key_of: KeyOf) -> None:
        self.path, self.key_of = path, key_of
        self.by_key = read(path, key_of)

    def __contains__(self, row: dict[str, Any]) -> bool:
        """Whether there is a row with the key of this one."""
        return self.key_of(row) in self.by_key

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in the order of the file."""
        return iter(self.by_key.values())

    def __getitem__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row with the key of this one."""
        return self.by_key[self.key_of(row)]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.by_key)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, in place of one with its key."""
        append(self.path, row)
        self.by_key[self.key_of(row)] = row

    def of(self, **fields: Any) -> list[dict[str, Any]]:
        """The rows that have these values."""
        return [row for row in self if fields.items() <= row.items()]


def read(path: Path, key_of: KeyOf) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Read the records of a file, leaving out a last line that was cut off.

    Args:
        path: the file; if it does not exist, there are no records.
        key_of: gives the key of the run that left a record.

    Returns:
        the records by key; of several with one key, the last.

    Raises:
        ParenvsError: another line is not the record of such a run.
    """
    text, records = _text(path), {}
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
            records[key_of(record)] = record
        except (ValueError, TypeError, KeyError):
            raise ParenvsError(
                f"{path}, line {number}: no run of this kind; delete the line"
            ) from None
    return records


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record as the last line, in place of one that was cut off.

    Raises:
        ParenvsError: another process holds the file's lock for longer than ``WAIT`` seconds.
    """
    with locked(path, beside=True, wait=WAIT):
        text = _text(path)
        if not text.endswith("\n"):
            write_text(path, text[: text.rfind("\n") + 1])
        with naming(path), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def run_all(
    perform: Callable[[Run], dict[str, Any]],
    runs: Iterable[Run],
    jobs: int = 1,
    engine: str = LOCAL,
    address: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Perform runs in ``jobs`` processes, and yield their records as they are done.

    An error or an interruption ends the processes at once.

    Args:
        perform: performs a run and returns its record; with several ``jobs`` it is pickled.
        runs: the runs.
        jobs: number of processes; with 1 the local engine performs the runs in this process.
        engine: one of ``ENGINES``.
        address: of the cluster of Ray that the engine uses; None: this machine.
    """
    if engine == RAY:
        yield from on_ray(perform, runs, jobs, address)
        return
    if jobs == 1:
        yield from map(perform, runs)
        return
    other_processes = set(active_children())
    # Spawned, as torch's threads do not survive a fork. Only the parent reacts to Ctrl-C.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal, (SIGINT, SIG_IGN))
    waiting = iter(runs)
    pending = {pool.submit(perform, run) for _, run in zip(range(jobs), waiting, strict=False)}
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                pending |= {pool.submit(perform, run) for run in [next(waiting, None)] if run}
    except BaseException:
        for process in set(active_children()) - other_processes:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def reached(record: Mapping[str, Any], budget: str = "budget") -> bool:
    """Whether a run reached its target within its budget, beyond which the last update may go.

    Args:
        record: the record of the run.
        budget: key under which the record holds the budget.
    """
    return record["target_steps"] is not None and record["target_steps"] <= record[budget]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
