"""Make every page that is made of other files again, and tell of each that is now another one.

    python benchmarks/renew.py

Such pages are made in no time, and nobody may write in them. The exit status is 1 where one
differs; ``make renew`` and the nightly workflow run it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.framework import RESULTS, ROOT

PAGES = ("environments", "instead")
"""Scripts whose pages are made of other files alone, without a clock."""
MACHINE = 4
"""Line of a page that says where it was made."""


def figures(page: str) -> list[str]:
    """Return the lines of a page, but for that of the machine."""
    return [line for k, line in enumerate(page.splitlines()) if k != MACHINE]


def differing(committed: Path, made: Path) -> str:
    """Say how a page that was made again differs from the committed one; empty if it does not."""
    old, new = (figures(path.read_text(encoding="utf-8")) for path in (committed, made))
    rows = [line for line, other in zip(old, new, strict=False) if line != other]
    if len(old) == len(new) and not rows:
        return ""
    return f"{committed.name}: {rows[0] if rows else 'another number of lines'}"


def main() -> int:
    """Print what differs; returns the exit status."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in PAGES:
            script = str(ROOT / "benchmarks" / f"{name}.py")
            command = [sys.executable, script, "--out", folder]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            words = differing(RESULTS / f"{name}.md", Path(folder) / f"{name}.md")
            print(words or f"{name}.md: the same")
            wrong += bool(words)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
