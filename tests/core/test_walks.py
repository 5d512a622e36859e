"""How many of our modules a user's first commands import: what is imported has to be read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNT = "print(len([x for x in sys.modules if x.split('.')[0] == 'parenvs']))"
MAKE = f"""
import sys, gymnasium as gym, parenvs
gym.make("PipelineCut-v0", instance="t5-3b")
{COUNT}
"""
PLAN = f"""
import sys
from parenvs.cli import main
sys.argv = ["parenvs", "plan", "t5-3b", "--cluster", "C", "--agent", "even"]
try:
    main()
except SystemExit:
    {COUNT}
"""


def count(code):
    """Run code in a process of its own; returns the number that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return int(done.stdout.split()[-1])


@pytest.mark.thorough
def test_walk__an_environment():
    assert count(MAKE) < 40


@pytest.mark.thorough
def test_walk__a_plan():
    assert count(PLAN) < 90
