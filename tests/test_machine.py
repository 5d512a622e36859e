"""Cores that are held or kept awake, without anybody left over; the commit that runs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from parenvs import machine
from parenvs.machine import awake_cores, hold_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="schedulers of Linux")


def counting(parent):
    """Processes of the lowest class that a process started: number -> its cores."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        number = int(place.name)
        try:
            owner = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if owner == parent and os.sched_getscheduler(number) == os.SCHED_IDLE:
                found[number] = os.sched_getaffinity(number)
        except OSError:  # ended meanwhile
            continue
    return found


def until(true, seconds=20):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


def test_awake_cores__one_process_a_core_that_ends_with_the_block():
    cores = [{core} for core in sorted(os.sched_getaffinity(0))]
    with awake_cores():
        until(lambda: sorted(counting(os.getpid()).values(), key=min) == cores)
        numbers = list(counting(os.getpid()))
    assert not counting(os.getpid())
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)


@pytest.mark.slow
def test_awake_cores__end_when_their_parent_is_killed():
    code = "from parenvs.machine import awake_cores\nwith awake_cores(): input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    until(lambda: len(counting(parent.pid)) == len(os.sched_getaffinity(0)))
    numbers = list(counting(parent.pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not any(Path(f"/proc/{number}").exists() for number in numbers))


@pytest.mark.parametrize(
    ("rank", "processes", "held"),
    [(0, 2, {0, 1}), (1, 2, {2, 3}), (2, 3, {2}), (3, 5, {0, 1, 2, 3})],
)
def test_hold_cores__a_share_for_each_where_there_are_enough(monkeypatch, rank, processes, held):
    """Five processes on four cores go where they like."""
    now = [{0, 1, 2, 3}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: now[0])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, given: now.__setitem__(0, set(given)))
    hold_cores(rank, processes)
    assert now[0] == held


def test_commit__is_that_of_the_checkout_with_its_edits_and_else_the_version(tmp_path):
    """Another repository around an installed package is not taken for its own."""
    root = tmp_path / "checkout"
    (root / "parenvs").mkdir(parents=True)
    shutil.copy(machine.__file__, root / "parenvs" / "machine.py")
    (root / "setup.cfg").touch()

    def git(*words, cwd=root):
        mine = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *mine, *words], cwd=cwd, capture_output=True, check=True)
        return done.stdout.decode().strip()

    def told():
        call = "import runpy; print(runpy.run_path('parenvs/machine.py')['commit']())"
        done = subprocess.run(
            [sys.executable, "-c", call], cwd=root, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    git("init", "-q", cwd=tmp_path)
    (tmp_path / "other").touch()
    git("add", "other", cwd=tmp_path)
    git("commit", "-qm", "of others", cwd=tmp_path)
    assert told() == f"parenvs {version('parenvs')}"
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    assert told() == git("rev-parse", "HEAD")[:12]
    (root / "page.md").write_text("no code")
    (root / "parenvs" / "machine.py").open("a").write("\n")
    assert told() == git("rev-parse", "HEAD")[:12] + "+changes"
