"""A short run of the fuzz command over every reader, with a fixed seed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")
fuzz = pytest.importorskip("benchmarks.fuzz", reason="needs the limits of a POSIX system")


NEEDS = {"mlir": "jax", "config": "sb3_contrib", "model": "sb3_contrib",
         "checkpoint": "sb3_contrib", "index": "torch"}  # fmt: skip
"""Reader -> what it cannot do without."""


@pytest.mark.thorough
def test_fuzz__corpus():
    """What went wrong once is read now, or refused in a line."""
    found = [path for path in sorted(fuzz.CORPUS.glob("*/*")) if path.parent.name != "seeds"]
    assert len(found) > 3
    assert {path.parent.name for path in found} <= set(fuzz.READERS)
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
    rows = json.loads((tmp_path / "fuzz.json").read_text())["data"]
    assert {row["reader"] for row in rows} == set(fuzz.READERS)
    for row in rows:
        weight = fuzz.READERS[row["reader"]].weight
        assert row["accepted"] + row["refused"] == weight, row
    assert sum(row["accepted"] for row in rows) > 10  # not all are refused
