"""Commands that are killed, and many that start at once; ``benchmarks/kills.py`` has them all."""

import os
import subprocess
import sys
from pathlib import Path

import killed_commands
import pytest
from cases import slow

ROOT = Path(__file__).parents[2]
NEEDS = {"train": "sb3_contrib", "calibrate": "torch", "export": "scipy", "elastic-run": "torch"}
AT_ONCE = 64
"""Processes that import the package at once."""


@pytest.mark.parametrize("name", slow(*NEEDS))
def test_killed__what_is_left_is_whole_and_the_next_run_ends(name, tmp_path):
    pytest.importorskip(NEEDS[name])
    assert killed_commands.check(name, tmp_path, 3)["outlived"] == 0


@pytest.mark.slow
def test_killed__many_import_at_once(tmp_path):
    """None of them has compiled the package before, and all of them do."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    code = "import parenvs.cli; print(len(parenvs.problem('vgg-19', 'B').profile))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(AT_ONCE)
    ]  # fmt: skip
    found = [(*process.communicate(), process.returncode) for process in processes]
    assert found == [("164\n", "", 0)] * AT_ONCE
