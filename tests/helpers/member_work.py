"""What processes of tests do that need no framework."""

import time
from pathlib import Path


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
