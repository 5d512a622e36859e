"""Proves the optima of the shipped sets of problems and writes them beside the sets.

python -m parenvs.agents.pipeline.optima
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.progress import track

from parenvs.agents.pipeline.points import exact_points
from parenvs.datasets.pipeline.generators import DrawnProblem
from parenvs.datasets.pipeline.optima import COMMAND, save_optima
from parenvs.datasets.pipeline.sets import PROVEN, load_set
from parenvs.errors import ParenvsError
from parenvs.shipped import data_folder
from parenvs.tasks.pipeline.spaces import PointSpace


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
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the sets")
    options = parser.parse_args(None if arguments is None else list(arguments))
    path = save_optima({name: optima_of(name) for name in PROVEN}, options.out)
    print(f"{path}: optima of {', '.join(PROVEN)}, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
