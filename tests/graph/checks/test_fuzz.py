"""A short run of the fuzz command over every reader that needs no extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

fuzz = pytest.importorskip("fuzz", reason="needs the limits of a POSIX system")


@pytest.mark.parametrize("reader", sorted(set(fuzz.READERS) - {"mlir"}))
def test_fuzz__short_run(reader, tmp_path):
    counted = fuzz.fuzz(reader, 40, 1, tmp_path)
    logs = [path.read_text()[-2000:] for path in tmp_path.glob("*.log")]
    assert {name: counted[name] for name in fuzz.BAD} == dict.fromkeys(fuzz.BAD, 0), logs
    assert counted["accepted"] + counted["refused"] == 40
    assert counted["refused"]


def test_fuzz__outcomes_are_told_apart(tmp_path):
    def fail(_):
        raise KeyError("x")

    def refuse(_):
        raise fuzz.ParenvsError("no")

    def much(_):
        raise MemoryError

    assert fuzz.outcome(fail, tmp_path)[0] == "traceback"
    assert fuzz.outcome(refuse, tmp_path) == ("refused", "no")
    assert fuzz.outcome(much, tmp_path)[0] == "memory"
    assert fuzz.outcome(str, tmp_path)[0] == "accepted"
