"""Which addresses a process and all that it started listen at (Linux)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def family(root: int) -> set[int]:
    """A process and its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(words[1])
    found, before = {root}, set()
    while found != before:
        before = set(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def listening(root: int) -> set[tuple[str, int]]:
    """Addresses, as the kernel writes them, and ports of the sockets of a family that listen."""
    inodes = set()
    for process in family(root):
        with suppress(OSError):
            for handle in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    inodes |= set(re.findall(r"socket:\[(\d+)\]", str(handle.readlink())))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found
