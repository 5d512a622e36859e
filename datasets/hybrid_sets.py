"""Fixed sets of hybrid problems, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.hybrid_sets --seed 1104              # make the file again
    python -m parenvs.datasets.hybrid_sets --seed 1104 --out /tmp   # into another folder

``hybrid-outside`` has larger models on larger clusters with other networks than training draws.
Problems are called ``SET/FAMILY-NUMBER``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from parenvs.datasets.hetero_sets import row_of
from parenvs.files import replacing
from parenvs.hybrid.drawing import INSIDE, OUTSIDE, Ranges, family_of, make
from parenvs.hybrid.problem import Hybrid
from parenvs.shipped import data_folder

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
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.seed < 0:
        print(f"{COMMAND}: --seed < 0", file=sys.stderr)
        return 2
    lines = []
    for name in SETS:
        rows = ",\n".join(json.dumps(row_of(problem)) for problem in make_set(name, options.seed))
        lines.append(f'"{name}": [\n{rows}\n]')
    path = options.out / FILE
    text = f'{{"schema": 1, "seed": {options.seed}, "sets": {{\n' + ",\n".join(lines) + "\n}}\n"
    with replacing(path) as stream:
        stream.write(text.encode())
    print(f"{path}: {len(SETS)} sets, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
