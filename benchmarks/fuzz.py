"""Mutated files for every reader: each is read, or refused in one line.

``python benchmarks/fuzz.py READER N SEED`` changes small valid files N times (bytes, words,
numbers, fields, cells, elements), reads each in a process with limits, and counts what comes of it.
It ends with status 1 if a reader gave a traceback, took more than 5 seconds, asked for more than
1 GB, or accepted what must not be. ``python benchmarks/fuzz.py all N SEED`` divides N among all
readers and writes ``results/fuzz.md``; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads would reserve memory, and share the seconds
from benchmarks import fuzz_readers
from benchmarks.common import RESULTS, percent, progress, publish, table
from benchmarks.fuzz_elastic import ELASTIC
from benchmarks.fuzz_hybrid import HYBRID
from benchmarks.fuzz_inputs import mutated
from benchmarks.fuzz_readers import Reader, WrongAcceptanceError
from benchmarks.fuzz_runs import RUNS
from parenvs.errors import ParenvsError

SECONDS, BYTES = 5.0, 2**30
"""Limits of one reading: seconds of the process, and memory beyond what it has before."""
PATIENCE = 60.0
"""Seconds of the clock after which a process counts as one that hangs, whatever it does."""
OUTCOMES = ("accepted", "refused", "traceback", "hang", "memory", "wrong")
BAD = OUTCOMES[2:]
READERS = {**fuzz_readers.READERS, **HYBRID, **ELASTIC, **RUNS}
"""Name -> reader."""
LARGE = ("jax", "sb3_contrib", "parenvs.agents.learning.train.run")
"""Modules that take seconds to import."""
PART = 500
"""Inputs of a part of a run, which is what a run that was stopped does again."""
_KILLERS = {signal.SIGPROF: "hang", signal.SIGKILL: "memory"}


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

    def merge(self, other: Tally) -> None:
        """Count what another tally has."""
        self.outcomes += other.outcomes
        self.reasons += other.reasons
        self.seconds = max(self.seconds, other.seconds)
        self.megabytes = max(self.megabytes, other.megabytes)


def form(text: str) -> str:
    """Return a refusal without the file, the names and the numbers in it."""
    text = re.sub(r"^\S*(mutated\.\w+(:\w+)?|/run(/\w+\.\w+)?): ", "", text)
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
        return ("refused", text) if "\n" not in text else ("traceback", text)
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
            ParenvsError: the valid files are not read.
        """
        fork = multiprocessing.get_context("fork")
        self.link, theirs = fork.Pipe()
        self.process = fork.Process(
            target=_work, args=(self.name, self.originals, theirs, self.link), daemon=True
        )
        self.process.start()
        theirs.close()
        first = self.link.recv()
        if first.outcome != "accepted":
            raise ParenvsError(f"{self.name}: a file to be changed is not read: {first.text}")

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()

    def run(self, data: bytes) -> Found:
        """Return what comes of a file."""
        self.link.send_bytes(data)
        try:
            if self.link.poll(PATIENCE):
                return self.link.recv()
            found = Found("hang", f"more than {PATIENCE} seconds of the clock", PATIENCE)
        except EOFError:
            self.process.join()
            number = -(self.process.exitcode or 0)
            kind = _KILLERS.get(signal.Signals(number), "traceback") if number > 0 else "traceback"
            found = Found(kind, f"the process died of signal {number}")
        self.stop()
        self.start()
        return found


def fuzz(
    name: str, count: int, seed: int | str, keep: Path | None = None, limit: int = PART
) -> Tally:
    """Read mutated files and return what came of them.

    Args:
        name: a name in ``READERS``.
        count: number of files.
        seed: of the mutations; the same files come of the same seed.
        keep: folder for the files that went wrong, with the tracebacks beside them.
        limit: files after which the source of the choices is made anew.
    """
    total = Tally()
    for _, tally in parts(name, count, seed, keep, limit):
        total.merge(tally)
    return total


def parts(
    name: str,
    count: int,
    seed: int | str,
    keep: Path | None = None,
    limit: int = PART,
    done: frozenset[int] = frozenset(),
) -> Iterator[tuple[int, Tally]]:
    """Yield the number and the tally of each part of a run that is not done."""
    reader = READERS[name]
    missing = [part for part in range(-(-count // limit)) if part not in done]
    if not missing:
        return
    originals = reader.seeds()
    worker = Worker(name, originals)
    try:
        for part in missing:
            draw, tally = random.Random(f"{name} {seed} {part}"), Tally()
            for number in range(part * limit, min(count, (part + 1) * limit)):
                data = mutated(draw.choice(originals), reader.suffix, draw)
                found = worker.run(data)
                tally.add(found)
                if found.outcome in BAD and keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    path = keep / f"{name}-{seed}-{number}{reader.suffix}"
                    path.write_bytes(data)
                    log = path.with_name(f"{path.name}.log")
                    log.write_text(f"{found.outcome}\n{found.text}", encoding="utf-8")
            yield part, tally
    finally:
        worker.stop()


def every(count: int, seed: int, keep: Path | None, folder: Path) -> dict[str, Tally]:
    """Divide ``count`` files among all readers; keep what is done, and go on from there."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in LARGE:  # once, for all processes that are forked
        importlib.import_module(module)
    path = folder / f"fuzz-{count}-{seed}.jsonl"
    totals: dict[str, Tally] = {name: Tally() for name in READERS}
    done: dict[str, set[int]] = {name: set() for name in READERS}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            raw = json.loads(line)
            name, part = raw.pop("reader"), raw.pop("part")
            counters = {key: Counter(raw.pop(key)) for key in ("outcomes", "reasons")}
            totals[name].merge(Tally(**counters, **raw))
            done[name].add(part)
    for name, reader in READERS.items():
        share = count * reader.weight // 100
        for part, tally in parts(name, share, seed, keep, PART, frozenset(done[name])):
            totals[name].merge(tally)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"reader": name, "part": part, **vars(tally)}) + "\n")
            progress(f"{name} {totals[name].outcomes.total()}/{share} {line_of(tally)}")
    path.unlink()
    return totals


def line_of(tally: Tally) -> str:
    """Return the counts in a line."""
    counts = ", ".join(f"{tally.outcomes[kind]} {kind}" for kind in OUTCOMES)
    return f"{counts}; {tally.seconds:.2f} s, {tally.megabytes:.0f} MB at most"


def page(totals: dict[str, Tally], folder: Path) -> None:
    """Write the results of all readers."""
    whole = Tally()
    for tally in totals.values():
        whole.merge(tally)
    columns = ["reader", "tried", *OUTCOMES, "forms of refusal", "most s", "most MB"]
    rows = [
        [
            name,
            tally.outcomes.total(),
            *(tally.outcomes[kind] for kind in OUTCOMES),
            len(tally.reasons),
            f"{tally.seconds:.2f}",
            f"{tally.megabytes:.0f}",
        ]
        for name, tally in [*totals.items(), ("all", whole)]
    ]
    shares = [
        [name, percent(number / tally.outcomes.total(), 1), f"`{reason}`".replace("|", "\\|")]
        for name, tally in totals.items()
        for reason, number in tally.reasons.most_common(6)
    ]
    sections = [
        "Valid files with one to four changes (of bytes, words, numbers, fields of messages, "
        "values of JSON, cells, elements of arrays). Each is read in a process that may use "
        f"{SECONDS:.0f} s of processor time and {BYTES / 2**30:.0f} GiB beyond what it has, and "
        "what is read is used: graphs are saved, read back and made into a chain and a "
        "partitioning, and a plan is judged. Wrong: accepted, with a figure that is negative or "
        "not finite, an index out of range, or another fingerprint when read back.",
        table(columns, rows),
        "The most frequent refusals of each reader, with names and numbers left out:",
        table(["reader", "share", "refusal"], shares),
    ]
    publish("fuzz", sections, {name: vars(tally) for name, tally in totals.items()}, folder)


def main() -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("reader", choices=[*READERS, "all"])
    options.add_argument("count", type=int, metavar="N")
    options.add_argument("seed", type=int)
    options.add_argument("--keep", type=Path, help="folder for the files that went wrong")
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the page of `all`")
    given = options.parse_args()
    if given.reader == "all":
        totals = every(given.count, given.seed, given.keep, given.out)
        page(totals, given.out)
        return int(any(tally.outcomes[kind] for tally in totals.values() for kind in BAD))
    tally = fuzz(given.reader, given.count, given.seed, given.keep)
    print(given.reader, line_of(tally))
    for reason, number in tally.reasons.most_common():
        print(f"{number:7} {reason}")
    return int(any(tally.outcomes[kind] for kind in BAD))


if __name__ == "__main__":
    raise SystemExit(main())
