"""What processes of tests do that need no framework."""

import os
import signal
import time
from pathlib import Path


def killed(rank, folder):
    """The second process is killed when all are there; the others stay."""
    (Path(folder) / str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.01)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def missed(rank, folder):
    """The second process fails; the first misses it and says so before."""
    there = Path(folder) / "there"
    if rank == 0:
        while not there.exists():
            time.sleep(0.01)
        raise RuntimeError("Connection closed by peer")
    there.touch()
    time.sleep(0.2)
    raise ValueError("the cause")
