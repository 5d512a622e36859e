"""A control group (version 2) of Linux for a process and all that it starts, where one can be made.

See "Control Group v2" of the kernel's administration guide. A group is made beside the caller's own
or above it, in the first whose groups have the controllers and whose files the caller may write.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NEEDED = ("memory", "pids")


class Group:
    """A group with limits of memory and processes.

    Attributes:
        folder: its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made(cls, memory: int, processes: int, tops: Iterator[Path] | None = None) -> Group | None:
        """Make a group; None if the system has none that this user may make.

        Args:
            memory: bytes of all processes together, swap included.
            processes: processes and threads.
            tops: folders to make it in, the first that will do (default: the caller's own).
        """
        for top in _tops() if tops is None else tops:
            try:
                passed_on = set((top / "cgroup.subtree_control").read_text().split())
                if not (passed_on >= set(NEEDED) and os.access(top / "cgroup.procs", os.W_OK)):
                    continue
                folder = Path(tempfile.mkdtemp(prefix="parenvs-", dir=top))
            except OSError:
                continue
            try:
                (folder / "memory.max").write_text(str(memory))
                (folder / "pids.max").write_text(str(processes))
                if (folder / "memory.swap.max").exists():
                    (folder / "memory.swap.max").write_text("0")
            except OSError:
                folder.rmdir()
                continue
            return cls(folder)
        return None

    def add(self, pid: int) -> bool:
        """Move a process into the group, and return whether that could be done."""
        try:
            (self.folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    @property
    def has_overflowed(self) -> bool:
        """Whether a process was ended for memory."""
        try:
            lines = (self.folder / "memory.events").read_text().splitlines()
            return any(line.startswith("oom_kill ") and int(line[9:]) > 0 for line in lines)
        except (OSError, ValueError):
            return False

    def end(self) -> None:
        """End all processes of the group, and remove it."""
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for _ in range(100):  # a group can be removed once the kernel is done with them
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.01)


def _tops() -> Iterator[Path]:
    """Find the caller's own group and those above it, below the mount of version 2."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    paths = [line[3:] for line in own if line.startswith("0::/") and ".." not in line]
    for row in mounts:
        if row[row.index("-") + 1] == "cgroup2" and paths:
            below, top = Path(paths[0]), Path(row[4])
            for folder in (below, *below.parents):
                yield top / str(folder).lstrip("/")
