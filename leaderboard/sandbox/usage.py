"""What a process and all that it started use: memory, processor time, processes.

Memory that several share counts once: pages of forks by their share (PSS), shared memory by its
object, whether it is mapped, held by a descriptor alone or, as that of System V, by nobody.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_SHARED = ("/memfd:", "/dev/zero", "/dev/shm/", "/SYSV")
"""Beginnings of the names under which Linux shows memory that processes share."""


@dataclass(frozen=True)
class Process:
    """What ``/proc/PID/stat`` says of a process.

    Attributes:
        parent: its parent.
        state: a letter.
        seconds: processor time, with that of the children that it has waited for.
        threads: their number.
    """

    parent: int
    state: str
    seconds: float
    threads: int


def processes() -> dict[int, Process]:
    """Return all processes that are to be seen; none where the system does not show them."""
    result: dict[int, Process] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return result
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
        except OSError:
            continue
        seconds = sum(map(int, fields[11:15])) / ticks
        result[int(name)] = Process(int(fields[1]), fields[0].decode(), seconds, int(fields[17]))
    return result


def family(pid: int) -> dict[int, Process]:
    """Return a process and its descendants, without those that have ended."""
    everything = processes()
    children: dict[int, list[int]] = {}
    for other, process in everything.items():
        children.setdefault(process.parent, []).append(other)
    result, rest = {}, [pid] if pid in everything else []
    while rest:
        one = rest.pop()
        result[one] = everything[one]
        rest += [child for child in children.get(one, ()) if child not in result]
    return {one: process for one, process in result.items() if process.state not in "ZX"}


def memory(pids: Collection[int], makers: Collection[int], enough: int) -> int:
    """Return the bytes that processes hold together.

    Args:
        pids: the processes.
        makers: those that may have made memory of System V, the ended ones too.
        enough: bytes below which a quick upper bound will do.
    """
    objects: dict[tuple[int, int], int] = {}
    for pid in pids:
        _mapped(pid, objects)
        _open(pid, objects)
    shared = sum(objects.values()) + _system_v(makers)
    resident = sum(map(_resident, pids))
    if resident + shared <= enough:
        return resident + shared
    return sum(map(_proportional, pids)) + shared


def _fields(path: str) -> dict[str, int]:
    """Return the figures of a file of lines ``name: value kB``, in bytes; none if unreadable."""
    try:
        rows = [line.split() for line in Path(path).read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {row[0]: 1024 * int(row[1]) for row in rows if row[-1] == "kB"}


def _resident(pid: int) -> int:
    """Return bytes in memory or swap that are not shared memory; pages of forks count in each."""
    fields = _fields(f"/proc/{pid}/status")
    return sum(fields.get(name, 0) for name in ("RssAnon:", "RssFile:", "VmSwap:"))


def _proportional(pid: int) -> int:
    """Return the same with each page divided among those that map it, where that may be read."""
    fields = _fields(f"/proc/{pid}/smaps_rollup")
    if "Pss:" not in fields:
        return _resident(pid)
    return fields["Pss:"] - fields.get("Pss_Shmem:", 0) + fields.get("SwapPss:", 0)


def _mapped(pid: int, objects: dict[tuple[int, int], int]) -> None:
    """Add the shared memory that a process maps: device and number -> bytes."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    sizes: dict[tuple[int, int], int] = {}
    for line in lines:
        row = line.split(maxsplit=5)
        if len(row) < 6 or row[1][3] != "s" or not row[5].startswith(_SHARED):
            continue
        if row[5].startswith("/SYSV"):
            continue  # counted as such
        major, minor = (int(x, 16) for x in row[3].split(":"))
        first, last = (int(x, 16) for x in row[0].split("-"))
        key = (os.makedev(major, minor), int(row[4]))
        sizes[key] = sizes.get(key, 0) + last - first
    for key, size in sizes.items():
        objects[key] = max(size, objects.get(key, 0))


def _open(pid: int, objects: dict[tuple[int, int], int]) -> None:
    """Add the shared memory that a process has open."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            if not os.readlink(f"{folder}/{name}").startswith(_SHARED):
                continue
            result = os.stat(f"{folder}/{name}")
        except OSError:
            continue
        key = (result.st_dev, result.st_ino)
        objects[key] = max(512 * result.st_blocks, objects.get(key, 0))


def _system_v(makers: Collection[int]) -> int:
    """Return the bytes of System V's shared memory that processes made or used last."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:
        return 0
    head = lines[0].split()
    rows = (dict(zip(head, map(int, line.split()), strict=False)) for line in lines[1:])
    return sum(row["rss"] + row["swap"] for row in rows if {row["cpid"], row["lpid"]} & set(makers))
