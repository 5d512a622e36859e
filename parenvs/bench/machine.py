"""What a machine is, for every table of times.

JOINED: Tables of Markdown, as GitHub shows them.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "gymnasium")
EXTRA = ("torch", "stable-baselines3", "sb3-contrib")


def processor() -> str:
    """Model of the processor, as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that the system shows."""
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of Python and of what times depend on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *EXTRA):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def counted(number: int) -> str:
    """``2 cores``."""
    return f"{number} core{'' if number == 1 else 's'}"


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], left: int | Sequence[int] = 1
) -> str:
    """A table; the first ``left`` columns, or those, are flush left, the others right."""
    flush = range(left) if isinstance(left, int) else left
    rule = [":--" if i in flush else "--:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(str(x) for x in line) + " |" for line in lines)
