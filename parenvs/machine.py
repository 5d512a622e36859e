"""Describes the host (processor, cores, versions) beside whatever was measured on it."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "gymnasium", "torch", "stable-baselines3", "sb3-contrib")
"""Packages whose versions change the times; those of the extra ``agents`` may be missing."""


def processor() -> str:
    """Model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Number of cores that the system shows."""
    return os.cpu_count() or 1


def hold_cores(rank: int, processes: int) -> None:
    """Keep this process on its share of the cores, where there is one for each process (Linux).

    Otherwise two processes wait for one core now and then, while another is idle.

    Args:
        rank: of this process, from 0.
        processes: how many share the machine.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    mine = sorted(os.sched_getaffinity(0))
    share = len(mine) // processes
    if share:
        os.sched_setaffinity(0, mine[rank * share : (rank + 1) * share])


def counted(number: int) -> str:
    """A number of cores in words: ``"1 core"``, ``"2 cores"``."""
    return f"{number} core{'' if number == 1 else 's'}"


def versions() -> dict[str, str]:
    """Versions of Python and of those ``PACKAGES`` that are installed."""
    by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return by_name


def host() -> dict[str, object]:
    """Processor, cores and versions as JSON types; every log of a training holds them."""
    return {"processor": processor(), "cores": cores(), **versions()}
