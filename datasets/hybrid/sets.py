"""Fixed sets of hybrid problems, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.hybrid.sets --seed 1104              # make the file again
    python -m parenvs.datasets.hybrid.sets --seed 1104 --out /tmp   # into another folder

``hybrid-outside`` has larger models on larger clusters with other networks than training draws.
Problems are called ``SET/FAMILY-NUMBER``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from parenvs.datasets.hybrid.drawing import INSIDE, OUTSIDE, Ranges, family_of, make
from parenvs.datasets.set_commands import command_line, write_file
from parenvs.tasks.hybrid.problem import Hybrid

MODULE = "parenvs.datasets.hybrid.sets"
SEED = 1104
"""Seed of the shipped sets."""
FILE = "hybrid.json"
"""Name of the shipped file."""
SETS: dict[str, tuple[int, Ranges]] = {
    "hybrid-validation": (60, INSIDE),
    "hybrid-test": (120, INSIDE),
    "hybrid-outside": (60, OUTSIDE),
}
"""Set -> number of its problems, and their ranges; families take turns."""


def make_set(name: str, seed: int) -> list[Hybrid]:
    """Draw the problems of a set, each from ``seed``, the set's place and its number.

    Args:
        name: one of ``SETS``.
        seed: not negative.
    """
    count, ranges = SETS[name]
    return draw(name, (seed, list(SETS).index(name)), count, family_of, partial(make, ranges))


def draw(
    name: str,
    seeds: tuple[int, int],
    count: int,
    family_of: Callable[[int], str],
    make: Callable[[str, np.random.Generator, str], Hybrid],
) -> list[Hybrid]:
    """Draw the problems of a set; each has a generator of its own.

    Args:
        name: the set, with which the problems' names begin.
        seeds: what the generators are seeded by before the problem's number.
        count: number of problems.
        family_of: gives the family of a problem's number.
        make: draws a problem from its family, a generator and its name.
    """
    counts, problems = Counter[str](), []
    for number in range(count):
        family = family_of(number)
        rng = np.random.default_rng([*seeds, number])
        problems.append(make(family, rng, f"{name}/{family}-{counts[family]:03d}"))
        counts[family] += 1
    return problems


def rows(problems: Iterable[Hybrid]) -> Iterator[dict[str, Any]]:
    """Give the problems as objects of JSON types."""
    for problem in problems:
        assert problem.model.shape is not None
        yield {
            "shape": problem.model.shape.to_json(),
            "cluster": problem.cluster.to_json(),
            "batch": problem.batch,
            "stack": problem.stack.to_json(),
            "precision": problem.precision,
        }


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = command_line(MODULE, __doc__, SEED, choose=False)
    return write_file(parser, FILE, SETS, lambda *of: rows(make_set(*of)), arguments)


if __name__ == "__main__":
    sys.exit(main())
