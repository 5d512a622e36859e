"""Training runs as lines of a file: read what is done, run what is missing, in processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from common import progress

Run = TypeVar("Run")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a results file; a line that was cut off is left out."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                progress(f"{path}: left out a broken line")


def append(path: Path, record: dict[str, Any]) -> None:
    """Add one line, after ending one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    broken = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a", encoding="utf-8") as stream:
        stream.write(("\n" if broken else "") + json.dumps(record) + "\n")


def run_all(
    perform: Callable[[Run], dict[str, Any]], runs: Iterable[Run], jobs: int
) -> Iterator[dict[str, Any]]:
    """The records of the runs, as they are done."""
    if jobs == 1:
        yield from map(perform, runs)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(perform, run) for run in runs]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def reached(record: dict[str, Any]) -> bool:
    """Whether the target was reached within the budget; the last update may go beyond it."""
    return record["target_steps"] is not None and record["target_steps"] <= record["steps"]
