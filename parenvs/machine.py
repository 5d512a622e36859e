"""Describes the host (processor, cores, versions) for tables of times and leaderboard entries."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "gymnasium")
EXTRA = ("torch", "stable-baselines3", "sb3-contrib")


def processor() -> str:
    """Return the model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that the system shows."""
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that times depend on."""
    version_by_package = {"python": platform.python_version()}
    for name in (*PACKAGES, *EXTRA):
        try:
            version_by_package[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return version_by_package


def counted(number: int) -> str:
    """Return ``number`` cores in words, for example ``"2 cores"``."""
    return f"{number} core{'' if number == 1 else 's'}"
