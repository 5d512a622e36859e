"""A short run of the fuzz command over every reader, with a fixed seed."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time

import pytest

from parenvs.errors import ParenvsError

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")
fuzz = pytest.importorskip("benchmarks.fuzz", reason="needs the limits of a POSIX system")


NEEDS = {"mlir": "jax", "function": "jax", "config": "sb3_contrib", "model": "sb3_contrib",
         "checkpoint": "sb3_contrib", "metadata": "torch", "piece": "torch",
         "index": "torch"}  # fmt: skip
"""Reader -> what it cannot do without."""


@pytest.mark.thorough
def test_fuzz__corpus():
    """What went wrong once is read now, or refused in a line."""
    found = [path for path in sorted(fuzz.CORPUS.glob("*/*")) if path.parent.name != "seeds"]
    assert len(found) > 3
    for path in found:
        reader = path.parent.name
        if reader not in NEEDS or importlib.util.find_spec(NEEDS[reader]):
            kind, text = fuzz.replayed(reader, path)
            assert kind in ("accepted", "refused"), (path, text)


@pytest.mark.slow
def test_fuzz__short_run(tmp_path):
    """It is a process of its own, as it forks, and JAX has threads."""
    pytest.importorskip("jax")
    pytest.importorskip("sb3_contrib")
    total = sum(reader.weight for reader in fuzz.READERS.values())
    command = [sys.executable, fuzz.__file__, "all", "--count", str(total), "--seed", "1"]
    ended = subprocess.run(
        [*command, "--out", tmp_path, "--keep", tmp_path / "wrong"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, list(tmp_path.glob("wrong/*/*"))) == (0, []), ended.stderr[-4000:]
    lines = (tmp_path / "fuzz.jsonl").read_text().splitlines()
    readers = {row["reader"]: row for row in map(json.loads, lines)}
    assert list(readers) == list(fuzz.READERS)
    for name, tally in readers.items():
        counts = tally["outcomes"]
        assert set(counts) <= {"accepted", "refused"}, name
        assert sum(counts.values()) == fuzz.READERS[name].weight
        if sum(counts.values()) > 10:
            assert len(tally["reasons"]) > 2, name  # not all at the first check


@pytest.mark.slow
def test_fuzz__valid_files_start_no_threads():
    """A process that is forked while there are others may wait for them for ever."""
    pytest.importorskip("jax")
    pytest.importorskip("sb3_contrib")
    code = (
        "import benchmarks.benchmarks, importlib, os\n"
        "from benchmarks.fuzz import LARGE, READERS\n"
        "for name in LARGE: importlib.import_module(name)\n"
        "for name, reader in READERS.items():\n"
        "    assert reader.seeds(), name\n"
        "    assert len(os.listdir('/proc/self/task')) == 1, name\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, cwd=fuzz.CORPUS.parents[1], check=True)


@pytest.mark.thorough
def test_fuzz__what_goes_wrong_becomes_a_file_of_the_corpus(tmp_path, monkeypatch, capsys):
    def read(path):
        if path.read_bytes() != b"ok":
            raise KeyError("x")

    broken = fuzz.Reader(".x", 1, lambda: [b"ok"], read, lambda value: None)
    monkeypatch.setitem(fuzz.READERS, "broken", broken)
    assert fuzz.tried(["broken"], 5, 7, 60.0, tmp_path) == 1
    fuzz._worker.pop().stop()
    kept = sorted(tmp_path.glob("broken/7-*.x"))
    assert len(kept) == 5 and all(fuzz.replayed("broken", x)[0] == "traceback" for x in kept)
    assert fuzz.tried(["broken"], 5, 7, 0.0, tmp_path) == 0  # its time is up
    assert "5 traceback" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "patience", "words"),
    [
        (lambda: time.sleep(60), 0.2, "more than 0.2 s"),
        (lambda: os._exit(1), 60.0, "died with status 1"),
    ],
)
def test_fuzz__a_reader_of_valid_files_that_never_ends(monkeypatch, first, patience, words):
    """What it waits for at the start has a limit, too."""
    slow = fuzz.Reader(".x", 1, lambda: [b"ok"], lambda path: first(), lambda value: None)
    monkeypatch.setitem(fuzz.READERS, "slow", slow)
    monkeypatch.setattr(fuzz, "PATIENCE", patience)
    with pytest.raises(ParenvsError, match=f"slow: a file to be changed is not read: .*{words}"):
        fuzz.Worker("slow", [b"ok"])
    assert not multiprocessing.active_children()


def test_fuzz__short_runs_come_to_other_readers(tmp_path, monkeypatch):
    """A run that is over soon begins elsewhere with another seed, and with the same one there."""
    begun = []
    monkeypatch.setattr(fuzz, "parts", lambda names, *_: begun.append([*names]) or ())
    for seed in (1, 2, 1):
        assert fuzz.tried(fuzz.READERS, 10**9, seed, 60.0, tmp_path) == 0
    assert begun[0] == begun[2] != begun[1] and sorted(begun[0]) == sorted(fuzz.READERS)


@pytest.mark.slow
def test_fuzz__goes_on_where_it_was(tmp_path, monkeypatch):
    pytest.importorskip("jax")  # what readers share is imported before the first forks
    monkeypatch.setattr(fuzz, "PART", 3)
    monkeypatch.setattr(fuzz, "READERS", {"cluster": fuzz.READERS["cluster"]})
    done = {"reader": "cluster", "seed": 1, "part": 0, "seconds": 9.0, "megabytes": 0.0}
    line = json.dumps({**done, "outcomes": {"accepted": 3}, "reasons": {}})
    (tmp_path / "fuzz.jsonl").write_text(f"{line}\n")
    options = {"reader": "all", "count": 5, "seed": 1, "seconds": None, "keep": tmp_path}
    rows = fuzz.fuzz_.run(tmp_path, options)
    tried = sum(sum(row["outcomes"].values()) for row in rows)
    assert (tried, rows[0]["seconds"]) == (5, 9.0)


def test_fuzz__same_seed_same_files():
    for name in ("txt", "npz", "cluster"):
        reader = fuzz.READERS[name]
        data = reader.seeds()[0]
        drawn = [fuzz.mutated(data, reader.suffix, random.Random(3)) for _ in range(2)]
        assert drawn[0] == drawn[1] != data


def outcome(read, path, check=lambda value: None):
    return fuzz.outcome(fuzz.Reader(".x", 0, list, read, check), path)


def test_fuzz__outcomes_are_told_apart(tmp_path):
    def fail(_):
        raise KeyError("x")

    def refuse(_):
        raise fuzz.ParenvsError("no")

    def refuse_at_length(_):
        raise fuzz.ParenvsError("no " * 999)

    def much(_):
        raise MemoryError

    def much_in_one_line(_):
        try:
            raise MemoryError
        except MemoryError:
            raise fuzz.ParenvsError("too large") from None

    def wrong(_):
        raise fuzz.WrongAcceptanceError("negative")

    assert outcome(fail, tmp_path)[0] == "traceback"
    assert outcome(refuse, tmp_path) == ("refused", "no")
    assert outcome(refuse_at_length, tmp_path)[0] == "traceback"
    assert outcome(much, tmp_path)[0] == outcome(much_in_one_line, tmp_path)[0] == "memory"
    assert outcome(str, tmp_path, wrong)[0] == "wrong"
    assert outcome(str, tmp_path)[0] == "accepted"


@pytest.mark.thorough
def test_fuzz__process_that_spins_or_grows(monkeypatch):
    def read(path):
        data = path.read_bytes()
        while data == b"spin":
            pass
        return bytearray(2**31) if data == b"grow" else data

    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setitem(
        fuzz.READERS, "x", fuzz.Reader(".x", 0, lambda: [b"ok"], read, lambda value: None)
    )
    worker = fuzz.Worker("x", [b"ok"])
    try:
        found = [worker.run(data).outcome for data in (b"spin", b"ok", b"grow", b"ok")]
    finally:
        worker.stop()
    assert found == ["hang", "accepted", "memory", "accepted"]
