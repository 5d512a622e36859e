"""Makes the references of the sets of pipelines: optima, and the shortest plans known.

    python -m parenvs.agents.pipeline.references optima      # of sets of few stages, proven
    python -m parenvs.agents.pipeline.references             # what is missing or outdated
    python -m parenvs.agents.pipeline.references --again     # all anew; the better of both stays
    python -m parenvs.agents.pipeline.references --check     # judge all, change nothing

The plans are those of the planner ``corridor`` without a limit, so that every machine finds the
same, and so are their bounds. It takes about ten seconds a problem.
Each row is written when it is known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from parenvs.agents.pipeline.bounds import SLACK, least_length
from parenvs.agents.pipeline.exact import by_corridor, exact_points
from parenvs.agents.references import SAME, ReferenceFile, run
from parenvs.datasets.pipeline.problems import (
    LARGE,
    PROVE,
    PROVEN,
    REFERENCES,
    DrawnProblem,
    load_set,
    pipeline_of,
    save_optima,
)
from parenvs.errors import ParenvsError
from parenvs.instances import data_folder
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import PointSpace


def reference_of(problem: Pipeline) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    answer = by_corridor(problem)
    return {
        "fingerprint": problem.profile.fingerprint,
        "bound": answer.bound,
        "length": answer.cost,
        "cuts": list(answer.plan.cuts),
        "device_cuts": list(answer.plan.device_cuts),
    }


def fault_of(problem: Pipeline, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.profile.fingerprint:
        return "is of another chain"
    report = problem.report(problem.plan(np.array(row["cuts"]), np.array(row["device_cuts"])))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its plan takes {report.length_seconds} s, not {row['length']}, or is not legal"
    least = least_length(problem) * (1 - 2 * SLACK)
    if not least <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between that of the work and the length"
    return ""


def _names() -> Iterator[str]:
    for set_name in LARGE:
        yield from (problem.name for problem in load_set(set_name))


PIPELINE_REFERENCES = ReferenceFile(
    REFERENCES,
    "python -m parenvs.agents.pipeline.references",
    _names,
    pipeline_of,
    reference_of,
    fault_of,
)
"""References of the sets of pipelines of 16 stages and more."""


def optima_of(name: str) -> list[float]:
    """Return the return of the best episode on each problem of a shipped set, in their order.

    Raises:
        ParenvsError: an optimum is not proven.
    """
    optima = []
    every: Iterable[DrawnProblem] = load_set(name)
    if sys.stderr.isatty():  # before rich 14.3 a disabled bar prints an empty line
        every = track(every, name)
    for problem in every:
        answer = exact_points(PointSpace.build(problem.pipeline))
        if not answer.proven:
            raise ParenvsError(f"{problem.name}: the optimum is not proven")
        optima.append(answer.value)
    return optima


def main(arguments: Iterable[str] | None = None) -> int:
    """Prove the optima of the sets of few stages and write them; return the exit status."""
    parser = argparse.ArgumentParser(prog=PROVE, description="Prove optima again.")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the sets")
    options = parser.parse_args(None if arguments is None else list(arguments))
    path = save_optima({name: optima_of(name) for name in PROVEN}, options.out)
    print(f"{path}: optima of {', '.join(PROVEN)}, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["optima"]:
        sys.exit(main(sys.argv[2:]))
    run(PIPELINE_REFERENCES)
