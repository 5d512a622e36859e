"""Run every benchmark that takes minutes, one after the other, then write the pages.

    python benchmarks/run_all.py

Trainings (``learners.py``, ``distributions.py``, ``clients.py``), ``mutants.py`` and ``fuzz.py``
take hours and are left out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "hybrid --leave-out", "speed", "environments", "price", "frameworks", "shardy",
    "stages", "limits", "scaling", "proofs", "elastic", "live", "kills", "newcomer", "instead",
    "house", "exports", "memory", "pages",
)  # fmt: skip


def main() -> int:
    here = Path(__file__).parent
    for words in SCRIPTS:
        name, *options = words.split()
        print(f"== {words}", flush=True)
        done = subprocess.run([sys.executable, str(here / f"{name}.py"), *options], cwd=here.parent)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
