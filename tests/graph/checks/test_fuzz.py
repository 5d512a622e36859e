"""A short run of the fuzz command over every reader, with a fixed seed."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")
fuzz = pytest.importorskip("benchmarks.fuzz", reason="needs the limits of a POSIX system")


@pytest.mark.slow
def test_fuzz__short_run(tmp_path):
    """It is a process of its own, as it forks, and JAX has threads."""
    pytest.importorskip("jax")
    pytest.importorskip("sb3_contrib")
    command = [sys.executable, fuzz.__file__, "all", "100", "1", "--out", tmp_path]
    ended = subprocess.run(
        [*command, "--keep", tmp_path / "wrong"], capture_output=True, text=True, check=False
    )
    logs = [path.read_text()[-2000:] for path in tmp_path.glob("wrong/*.log")]
    assert (ended.returncode, logs) == (0, []), ended.stderr
    lines = (tmp_path / "fuzz.jsonl").read_text().splitlines()
    readers = {row["reader"]: row for row in map(json.loads, lines)}
    assert list(readers) == list(fuzz.READERS)
    for name, tally in readers.items():
        counts = tally["outcomes"]
        assert set(counts) <= {"accepted", "refused"}, name
        assert sum(counts.values()) == fuzz.READERS[name].weight
        if sum(counts.values()) > 10:
            assert len(tally["reasons"]) > 2, name  # not all at the first check


def test_fuzz__weights():
    assert sum(reader.weight for reader in fuzz.READERS.values()) == 100


@pytest.mark.slow
def test_fuzz__goes_on_where_it_was(tmp_path, monkeypatch):
    pytest.importorskip("jax")  # what readers share is imported before the first forks
    monkeypatch.setattr(fuzz, "PART", 3)
    monkeypatch.setattr(fuzz, "READERS", {"cluster": fuzz.READERS["cluster"]})
    done = {"reader": "cluster", "seed": 1, "part": 0, "seconds": 9.0, "megabytes": 0.0}
    line = json.dumps({**done, "outcomes": {"accepted": 3}, "reasons": {}})
    (tmp_path / "fuzz.jsonl").write_text(f"{line}\n")
    rows = fuzz.fuzz_.run(tmp_path, {"reader": "all", "count": 100, "seed": 1, "keep": None})
    tried = sum(sum(row["outcomes"].values()) for row in rows)
    assert (tried, rows[0]["seconds"]) == (fuzz.READERS["cluster"].weight, 9.0)


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
