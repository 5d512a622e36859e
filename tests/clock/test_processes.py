"""Processes that meet: answers by rank, failures as one line, and nobody left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parenvs.errors import ParenvsError

pytest.importorskip("torch")

import clock_work

from parenvs.clock.kernels import together


@pytest.mark.thorough
def test_together__answers_by_rank():
    assert together(clock_work.summed, 2, (5,), threads=1) == [(11.0, 1), (11.0, 1)]
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_together__a_failure_is_one_line_and_ends_all():
    begin = time.perf_counter()
    with pytest.raises(ParenvsError, match=r"^process 1 of 2: no luck$"):
        together(clock_work.failing, 2)
    assert time.perf_counter() - begin < 30  # nobody waits for the limit of a barrier
    assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_together__killed_leaves_no_process(tmp_path):
    code = (
        "import clock_work\n"
        "from parenvs.clock.kernels import together\n"
        f"if __name__ == '__main__': together(clock_work.sleeping, 2, ({str(tmp_path)!r},))\n"
    )
    script = tmp_path / "script"
    script.write_text(code)
    paths = [str(Path(clock_work.__file__).parent), str(Path(__file__).parents[2])]
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stderr=subprocess.DEVNULL,
    )
    try:
        members = waited(lambda: [int(x.name) for x in tmp_path.iterdir() if x.name.isdecimal()], 2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    deadline = time.monotonic() + 20
    while any(lives(member) for member in members) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(lives(member) for member in members)


def waited(found, count, seconds=60):
    """What ``found`` gives as soon as that is ``count`` things."""
    deadline = time.monotonic() + seconds
    while len(found()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found()


def lives(number):
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")
