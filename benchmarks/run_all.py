"""Run every benchmark, one after the other, and put the tables into the README.

python benchmarks/run_all.py

It rewrites ``benchmarks/results``, the README and docs/results/. The agents are left out, because
they take hours: ``parenvs bench agents --out benchmarks/results``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "known_cuts",
    "exact",
    "proofs",
    "limits",
    "simulation",
    "flops",
    "hybrid_cases",
    "hybrid_graphs",
    "hybrid_versions",
    "text_order",
    "shardy",
    "classes",
    "verify",
    "partition",
    "paper_plans",
    "fits",
    "memory",
    "models",
    "conflicts",
    "public_models",
    "reading",
    "roles",
    "cartpole",
    "distributions",
    "paper_claims",
    "exact_points",
    "inference",
    "learners",
    "instead",
)


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    here = Path(__file__).parent
    commands = {name: [str(here / f"{name}.py")] for name in SCRIPTS}
    commands["bench speed"] = ["-m", "parenvs", "bench", "speed", "--out", str(here / "results")]
    own = ["--leave-out", "--search", "--out", str(here / "results")]
    commands["bench hybrid"] = ["-m", "parenvs", "bench", "hybrid", *own]
    commands["readme"] = [str(here / "readme.py")]
    for name, command in commands.items():
        print(f"== {name}", flush=True)
        status = subprocess.run([sys.executable, *command], cwd=here.parent, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
