"""Mutated files for every reader: each is read, or refused in one line.

``python benchmarks/fuzz.py [READER] --count N --seed S`` changes small valid files N times (bytes,
words, numbers, fields, cells, elements), reads each in a process with limits, and counts what comes
of it; all readers share N, and write ``results/fuzz.md``. ``--seconds T`` goes on until the time is
up, and writes no page. Status 1: a reader gave a traceback, took more than 5 seconds, asked for
more than 1 GB, refused in more than a line, or accepted what must not be. Each such file becomes
one of ``tests/corpus/READER``, which tests read from then on.
"""

from __future__ import annotations

import importlib
import math
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads would reserve memory, and share the seconds
from benchmarks.framework import (
    Case,
    Column,
    Row,
    columns,
    main,
    measurement,
    parser,
    percent,
    table,
)
from benchmarks.fuzz_inputs import mutated
from benchmarks.fuzz_readers import CORPUS, READERS, Reader, WrongAcceptanceError
from parenvs.errors import ParenvsError

SECONDS, BYTES = 5.0, 2**30
"""Limits of one reading: seconds of the process, and memory beyond what it has before."""
PATIENCE = 600.0
"""Seconds of the clock after which a process counts as one that hangs, whatever it does."""
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory", "wrong")
BAD = OUTCOMES[2:]
LONGEST = 1_000
"""Characters of a refusal at most, without the path: what files hold is cut short."""
LARGE = ("jax", "parenvs.agents.learning.trainer")
"""Modules that take seconds to import."""
PART = 250
"""Inputs of a part of a run, which is what a run that was stopped does again."""
_KILLERS: dict[int, str] = {signal.SIGPROF: "hang", signal.SIGKILL: "memory"}


class Found(NamedTuple):
    """What came of a file.

    Attributes:
        outcome: one of ``OUTCOMES``.
        text: the error's text; empty if the file was accepted.
        seconds: of the process.
        megabytes: by which the process grew.
    """

    outcome: str
    text: str
    seconds: float = 0.0
    megabytes: float = 0.0


@dataclass
class Tally:
    """Counts of a run.

    Attributes:
        outcomes: outcome -> number of files.
        reasons: form of a refusal -> number of files; numbers and names are left out of a form.
        seconds: largest of a file.
        megabytes: largest of a file.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    megabytes: float = 0.0

    def add(self, found: Found) -> None:
        """Count a file."""
        self.outcomes[found.outcome] += 1
        if found.outcome == "refused":
            self.reasons[form(found.text)] += 1
        self.seconds = max(self.seconds, found.seconds)
        self.megabytes = max(self.megabytes, found.megabytes)

    @classmethod
    def of(cls, row: Row) -> Tally:
        """The tally that a row holds."""
        counters = (Counter(row["outcomes"]), Counter(row["reasons"]))
        return cls(*counters, row["seconds"], row["megabytes"])

    def merge(self, other: Tally) -> None:
        """Count what another tally has."""
        self.outcomes += other.outcomes
        self.reasons += other.reasons
        self.seconds = max(self.seconds, other.seconds)
        self.megabytes = max(self.megabytes, other.megabytes)


def form(text: str) -> str:
    """Return a refusal without the file, the names and the numbers in it."""
    text = re.sub(r"^\S*(mutated\.\w+(:\w+)?|/run(/\w+\.\w+)?): ", "", text)
    text = re.sub(r"(?<!\S)/\S*/(?=\S)", "", text)  # the folder of a file
    text = re.sub(r"codec can't decode.*?(?=\)|$)", "codec can't decode", text)
    text = re.sub(r"^line \d+[^:]*: |^(field|array) '[^']*':? ", r"\1 ", text)
    text = re.sub(r"(dims is broken; build the file anew \(|instruction '[^']*': )", "", text)
    text = re.sub(r"'(?:[^'\\]|\\.)*'|\"[^\"]*\"|\[[^\]]*\]", "…", text)
    return re.sub(r"[-+]?\d[\d.,e+]*|\b(nan|inf)\b", "N", text)[:72].strip()


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
    """Read files that come as bytes, within limits, and answer with what came of each.

    Args:
        name: of the reader.
        originals: valid files.
        link: where files come from, and answers go to.
        other: its other end, of which this process has a copy: closed, the link ends when the
            process that asks does.
    """
    other.close()
    warnings.simplefilter("ignore")
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutated{reader.suffix}"
        for data in originals:  # so that what is imported and cached does not count
            path.write_bytes(data)
            first = outcome(reader, path)
            if first[0] != "accepted":
                link.send(Found(*first))
                return
        link.send(Found("accepted", ""))
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
            found = outcome(reader, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            grown = (_status("VmHWM") - before) / 1e6
            link.send(Found(*found, time.process_time() - begin, grown))


def _status(key: str) -> int:
    """Return a figure of the process in bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(rf"{key}:\s*(\d+)", text)[1])  # type: ignore[index]


class Worker:
    """A process that reads files; a new one takes its place when it hangs or dies."""

    def __init__(self, name: str, originals: list[bytes]) -> None:
        self.name, self.originals = name, originals
        self.start()

    def start(self) -> None:
        """Start the process.

        Raises:
            ParenvsError: the valid files are not read, or not within ``PATIENCE``.
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

    def run(self, data: bytes) -> Found:
        """Return what comes of a file."""
        self.link.send_bytes(data)
        found, is_well = self._heard()
        if not is_well:
            self.stop()
            self.start()
        return found

    def _heard(self) -> tuple[Found, bool]:
        """Return the next answer, or why there is none, and whether there was one."""
        try:
            if self.link.poll(PATIENCE):
                return self.link.recv(), True
            return Found("hang", f"more than {PATIENCE} seconds of the clock", PATIENCE), False
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode or 0
            words = f"of signal {-code}" if code < 0 else f"with status {code}"
            return Found(_KILLERS.get(-code, "traceback"), f"the process died {words}"), False


_worker: list[Worker] = []
"""That of the reader whose files are read."""


def worker_of(name: str) -> Worker:
    """The process of a reader; that of another one ends."""
    if not (_worker and _worker[0].name == name and _worker[0].process.is_alive()):
        while _worker:
            _worker.pop().stop()
        _worker.append(Worker(name, READERS[name].seeds()))
    return _worker[0]


def part_of(name: str, seed: int | str, part: int, size: int, keep: Path = CORPUS) -> Tally:
    """Read mutated files and return what came of them.

    Args:
        name: a name in ``READERS``.
        seed: of the mutations; the same files come of the same seed.
        part: number of the part of a run.
        size: number of files.
        keep: corpus that gets the files that went wrong; what went wrong is printed.
    """
    worker, reader = worker_of(name), READERS[name]
    draw, tally = random.Random(f"{name} {seed} {part}"), Tally()
    for number in range(part * PART, part * PART + size):
        data = mutated(draw.choice(worker.originals), reader.suffix, draw)
        found = worker.run(data)
        tally.add(found)
        if found.outcome in BAD:
            path = keep / name / f"{seed}-{number}{reader.suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{path}: {found.outcome}\n{found.text}", file=sys.stderr)
    return tally


def replayed(name: str, path: Path) -> tuple[str, str]:
    """Return what comes of a file of a corpus, and the error's text; nothing is written beside."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(READERS[name], Path(shutil.copy(path, folder)))


def parts(names: Iterable[str], count: int, seed: int, keep: Path) -> Iterator[Case]:
    """Yield the parts of a run that ``names`` share by their weights, the first of each first."""
    names = list(names)
    total = sum(READERS[name].weight for name in names)
    shares = {name: -(-count * READERS[name].weight // total) for name in names}
    for part in range(-(-max(shares.values()) // PART)):
        for name, share in shares.items():
            if share > part * PART:
                size = min(PART, share - part * PART)
                key = {"reader": name, "seed": seed, "part": part}
                yield key, lambda a=(name, seed, part, size, keep): vars(part_of(*a))


def is_bad(rows: list[Row]) -> bool:
    return any(row["outcomes"].get(kind) for row in rows for kind in BAD)


@measurement(
    title="Mutated files for every reader",
    key="reader seed part",
    wrong=is_bad,
    positional=("reader",),
    among={"reader": [*READERS, "all"]},
    about={
        "count": "files that are tried",
        "seconds": "go on with further files until so many seconds are over",
        "keep": "corpus that gets the files that went wrong",
    },
)
def fuzz_(
    known: list[Row], reader: str = "all", count: int = 50_000, seed: int = 0,
    seconds: float | None = None, keep: Path = CORPUS,
) -> Iterator[Case]:  # fmt: skip
    for module in LARGE:  # once, for all processes that are forked
        importlib.import_module(module)
    yield from parts(READERS, count, seed, keep)


def line_of(tally: Tally) -> str:
    """Return the counts in a line."""
    counts = ", ".join(f"{tally.outcomes[kind]} {kind}" for kind in OUTCOMES)
    return f"{counts}; {tally.seconds:.2f} s, {tally.megabytes:.0f} MB at most"


COLUMNS: list[Column] = [
    ("reader", lambda pair: pair[0]),
    ("tried", lambda pair: pair[1].outcomes.total()),
    *((kind, lambda pair, kind=kind: pair[1].outcomes[kind]) for kind in OUTCOMES),
    ("forms of refusal", lambda pair: len(pair[1].reasons)),
    ("most s", lambda pair: f"{pair[1].seconds:.2f}"),
    ("most MB", lambda pair: f"{pair[1].megabytes:.0f}"),
]


@fuzz_.page
def page(rows: list[Row]) -> list[str]:
    seed = rows[-1]["seed"]
    totals: dict[str, Tally] = {}
    for row in (row for row in rows if row["seed"] == seed):
        for name in (row["reader"], "all"):
            totals.setdefault(name, Tally()).merge(Tally.of(row))
    everything = totals.pop("all")
    shares = [
        (name, percent(number / tally.outcomes.total(), 1), f"`{reason}`".replace("|", "\\|"))
        for name, tally in totals.items()
        for reason, number in tally.reasons.most_common(6)
    ]
    return [
        "Valid files with one to four changes (of bytes, words, numbers, fields of messages, "
        "values of JSON, cells, elements of arrays). Each is read in a process that may use "
        f"{SECONDS:.0f} s of processor time and {BYTES / 2**30:.0f} GiB beyond what it has, and "
        "what is read is used: graphs are saved, read back and made into a chain and a "
        "partitioning, and a plan is judged. Wrong: accepted, with a figure that is negative or "
        "not finite, an index out of range, or another fingerprint when read back.",
        columns([*totals.items(), ("all", everything)], COLUMNS),
        "The most frequent refusals of each reader, with names and numbers left out:",
        table(["reader", "share", "refusal"], shares),
    ]


def tried(names: Iterable[str], count: int, seed: int, seconds: float, keep: Path) -> int:
    """Try readers, print what came of them, and keep no row; returns the exit status.

    Their order is another with each seed, so that short runs come to all of them.
    """
    end, tallies = time.monotonic() + seconds, dict[str, Tally]()
    order = sorted(names)
    random.Random(seed).shuffle(order)
    for key, work in parts(order, count, seed, keep):
        if time.monotonic() > end:
            break
        tallies.setdefault(key["reader"], Tally()).merge(Tally.of(work()))
    for name, tally in tallies.items():
        print(name, line_of(tally))
        for reason, number in tally.reasons.most_common() if len(tallies) == 1 else ():
            print(f"{number:7} {reason}")
    return int(is_bad([vars(tally) for tally in tallies.values()]))


if __name__ == "__main__":
    given = parser(fuzz_).parse_args()
    if given.reader == "all" and given.seconds is None:
        main(fuzz_)
    endless = given.seconds is not None
    names = READERS if given.reader == "all" else (given.reader,)
    count = 10**9 if endless else given.count
    limit = given.seconds if endless else math.inf
    raise SystemExit(tried(names, count, given.seed, limit, given.keep))
