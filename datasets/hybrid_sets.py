"""Fixed sets of hybrid problems, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.hybrid_sets --seed 1104              # make the file again
    python -m parenvs.datasets.hybrid_sets --seed 1104 --out /tmp   # into another folder

``hybrid-outside`` has larger models on larger clusters with other networks than training draws.
Problems are called ``SET/FAMILY-NUMBER``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np

from parenvs.datasets.hetero_sets import write_sets
from parenvs.hybrid.drawing import INSIDE, OUTSIDE, Ranges, family_of, make
from parenvs.hybrid.problem import Hybrid

COMMAND = "python -m parenvs.datasets.hybrid_sets"
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
    place, counts, problems = list(SETS).index(name), Counter[str](), []
    for number in range(count):
        family = family_of(number)
        rng = np.random.default_rng([seed, place, number])
        problems.append(make(ranges, family, rng, f"{name}/{family}-{counts[family]:03d}"))
        counts[family] += 1
    return problems


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    return write_sets(COMMAND, SEED, FILE, list(SETS), make_set, arguments)


if __name__ == "__main__":
    sys.exit(main())
