"""Mutated files for every reader: each is read, or refused in one line.

    python benchmarks/fuzz.py                                   # all readers
    python benchmarks/fuzz.py plan --count 1000 --seed 3
    python benchmarks/fuzz.py all --seconds 600 --out build     # until the time is up

Small valid files are changed (bytes, words, numbers, values, cells, elements) and read in a process
with limits. Status 1: a reader gave a traceback, took more than 5 seconds, asked for more than
1 GB, refused in more than a line, or accepted what must not be. Each such file becomes one of
``tests/corpus/READER``, which tests read from then on.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads would reserve memory, and share the seconds
from benchmarks.framework import Row, columns, main, measurement
from benchmarks.fuzz_inputs import mutated
from benchmarks.fuzz_readers import CORPUS, READERS, Reader, WrongAcceptanceError
from parenvs.errors import ParenvsError

SECONDS, BYTES = 5.0, 2**30
"""Limits of one reading: seconds of the process, and memory beyond what it has before."""
PATIENCE = 600.0
"""Seconds of the clock after which a process counts as one that hangs."""
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory", "wrong")
BAD = OUTCOMES[2:]
LONGEST = 1_000
"""Characters of a refusal at most, without the path: what files hold is cut short."""
LARGE = ("jax", "parenvs.agents.learning.trainer")
"""Modules that take seconds to import."""
TURN = 50
"""Files of a reader before the next reader's turn."""
_KILLERS: dict[int, str] = {signal.SIGPROF: "hang", signal.SIGKILL: "memory"}


class Result(NamedTuple):
    """What came of a file: one of ``OUTCOMES``, the error, and what reading took."""

    outcome: str
    text: str
    seconds: float = 0.0
    megabytes: float = 0.0


def outcome(reader: Reader, path: Path) -> tuple[str, str]:
    """Return what comes of reading a file, and the text of the error."""
    try:
        reader.check(reader.read(path))
    except ParenvsError as error:
        text, cause = str(error), error.__context__
        while cause is not None:
            if isinstance(cause, MemoryError):
                return "memory", f"{text}\n{traceback.format_exc()}"
            cause = cause.__context__
        is_line = "\n" not in text and len(text.replace(str(path), "")) <= LONGEST
        return ("refused" if is_line else "traceback", text)
    except WrongAcceptanceError:
        return "wrong", traceback.format_exc()
    except MemoryError:
        return "memory", traceback.format_exc()
    except Exception:  # what a user would see as a traceback
        return "traceback", traceback.format_exc()
    return "accepted", ""


def _work(name: str, originals: list[bytes], link: Connection, other: Connection) -> None:
    """Read files that come as bytes, within limits, and answer with what came of each."""
    other.close()  # so that the link ends when the process that asks does
    warnings.simplefilter("ignore")
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutated{reader.suffix}"
        for data in originals:  # so that what is imported and cached does not count
            path.write_bytes(data)
            first = outcome(reader, path)
            if first[0] != "accepted":
                link.send(Result(*first))
                return
        link.send(Result("accepted", ""))
        limit = _status("VmSize") + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        while True:
            try:
                path.write_bytes(link.recv_bytes())
            except (EOFError, ConnectionResetError):
                return
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
            before, begin = _status("VmRSS"), time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
            result = outcome(reader, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            grown = (_status("VmHWM") - before) / 1e6
            link.send(Result(*result, time.process_time() - begin, grown))


def _status(key: str) -> int:
    """Return a figure of the process in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(rf"{key}:\s*(\d+)", text)[1])  # type: ignore[index]


class Worker:
    """A process that reads files; a new one takes its place when it hangs or dies."""

    def __init__(self, name: str) -> None:
        self.name, self.originals = name, READERS[name].seeds()
        self.start()

    def start(self) -> None:
        """Start the process.

        Raises:
            ParenvsError: the valid files are not read.
        """
        fork = multiprocessing.get_context("fork")
        self.link, theirs = fork.Pipe()
        self.process = fork.Process(
            target=_work, args=(self.name, self.originals, theirs, self.link), daemon=True
        )
        self.process.start()
        theirs.close()
        first, _ = self._heard()
        if first.outcome != "accepted":
            self.stop()
            raise ParenvsError(f"{self.name}: a file to be changed is not read: {first.text}")

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def run(self, data: bytes) -> Result:
        """Return what comes of a file."""
        self.link.send_bytes(data)
        result, is_well = self._heard()
        if not is_well:
            self.stop()
            self.start()
        return result

    def _heard(self) -> tuple[Result, bool]:
        """Return the next answer, or why there is none, and whether there was one."""
        try:
            if self.link.poll(PATIENCE):
                return self.link.recv(), True
            return Result("hang", f"more than {PATIENCE} seconds of the clock", PATIENCE), False
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            words = f"of signal {-code}" if code < 0 else f"with status {code}"
            return Result(_KILLERS.get(-code, "traceback"), f"the process died {words}"), False


def replayed(name: str, path: Path) -> tuple[str, str]:
    """Return what comes of a file of a corpus, and the error's text; nothing is written beside."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(READERS[name], Path(shutil.copy(path, folder)))


@measurement(
    title="Mutated files for every reader",
    wrong=lambda rows: any(row[kind] for row in rows for kind in BAD),
    positional=("reader",),
    among={"reader": [*READERS, "all"]},
    about={
        "count": "files that are tried, shared by the readers' weights",
        "seconds": "go on until so many seconds are over, whatever the count",
        "keep": "corpus that gets the files that went wrong",
    },
)
def fuzz(
    reader: str = "all", count: int = 50_000, seed: int = 0, seconds: float | None = None,
    keep: Path = CORPUS,
) -> list[Row]:  # fmt: skip
    for module in LARGE:  # once, for all processes that are forked
        importlib.import_module(module)
    names = [*READERS] if reader == "all" else [reader]
    random.Random(seed).shuffle(names)  # so that short runs come to all of them
    total = sum(READERS[name].weight for name in names)
    left = {name: -(-count * READERS[name].weight // total) for name in names}
    end = time.monotonic() + (float("inf") if seconds is None else seconds)
    rows: dict[str, Any] = {}
    while any(left.values()) or seconds is not None:
        for name in names:
            size = TURN if seconds is not None else min(TURN, left[name])
            if time.monotonic() > end:
                return [*rows.values()]
            if size:
                left[name] -= size
                row = rows.setdefault(
                    name, {"reader": name, **dict.fromkeys(OUTCOMES, 0), "seconds": 0.0, "mb": 0.0}
                )
                part = f"{name} {seed} {left[name]}"
                for kind, result in _turn(name, part, size, keep).items():
                    row[kind] = row[kind] + result if kind in OUTCOMES else max(row[kind], result)
    return [*rows.values()]


def _turn(name: str, part: str, size: int, keep: Path) -> dict[str, Any]:
    """Read mutated files; the same files come of the same ``part``."""
    worker, reader, draw = Worker(name), READERS[name], random.Random(part)
    counts: Counter[str] = Counter()
    longest = largest = 0.0
    for number in range(size):
        data = mutated(draw.choice(worker.originals), reader.suffix, draw)
        result = worker.run(data)
        counts[result.outcome] += 1
        longest, largest = max(longest, result.seconds), max(largest, result.megabytes)
        if result.outcome in BAD:
            words = re.sub(r"\W+", "-", part.removeprefix(name).strip())
            path = keep / name / f"{words}-{number}{reader.suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{path}: {result.outcome}\n{result.text}", file=sys.stderr)
    worker.stop()
    return {**counts, "seconds": longest, "mb": largest}


@fuzz.page
def page(rows: list[Row]) -> list[str]:
    return [
        "Valid files with one to four changes, each read in a process that may use "
        f"{SECONDS:.0f} s of processor time and {BYTES / 2**30:.0f} GiB beyond what it has; what "
        "is read is used. Wrong: accepted, with a figure that is negative or not finite, or with "
        "another fingerprint when read back.",
        columns(
            rows,
            [
                ("reader", "{reader}"), *((kind, f"{{{kind}}}") for kind in OUTCOMES),
                ("most s", "{seconds:.2f}"), ("most MB", "{mb:.0f}"),
            ],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(fuzz)
