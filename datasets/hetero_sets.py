"""Fixed sets of hetero problems, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.hetero_sets --seed 2307              # make the file again
    python -m parenvs.datasets.hetero_sets --seed 2307 --out /tmp   # into another folder

A set is called ``TIER-validation``, ``TIER-test`` or ``TIER-outside``; the last has longer chains,
slower servers and other widths than training draws. Problems are called ``SET/FAMILY-NUMBER``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.files import replacing
from parenvs.hybrid.hetero.drawing import TIERS, family_of, make
from parenvs.hybrid.problem import Hybrid
from parenvs.shipped import data_folder, hetero_sets

COMMAND = "python -m parenvs.datasets.hetero_sets"
SEED = 2307
"""Seed of the shipped sets."""
FILE = "hetero.json"
"""Name of the shipped file."""
PARTS = {"validation": 16, "test": 16, "outside": 8}
"""Part of each tier -> number of its problems; families take turns."""


def set_names() -> list[str]:
    """Return the names of the shipped sets."""
    return [f"{tier}-{part}" for tier in TIERS for part in PARTS]


def hetero_set(name: str) -> list[Hybrid]:
    """Load the problems of a shipped set.

    Raises:
        UnknownInstanceError: there is no such set.
    """
    sets = hetero_sets()
    if name not in sets:
        raise UnknownInstanceError(
            f"unknown set {shown(name)}{did_you_mean(name, sets)}; shipped: {', '.join(sets)}"
        )
    return list(sets[name])


def make_set(name: str, seed: int) -> list[Hybrid]:
    """Draw the problems of a set, each from ``seed``, the set's place and its number.

    Args:
        name: one of ``set_names()``.
        seed: not negative.
    """
    tier, _, part = name.rpartition("-")
    place, counts, problems = set_names().index(name), Counter[str](), []
    ranges = TIERS[tier].outside if part == "outside" else TIERS[tier]
    for number in range(PARTS[part]):
        family = family_of(number)
        rng = np.random.default_rng([seed, place, number])
        problems.append(make(ranges, family, rng, f"{name}/{family}-{counts[family]:03d}"))
        counts[family] += 1
    return problems


def row_of(problem: Hybrid) -> dict[str, Any]:
    """Return a problem as an object of JSON types."""
    assert problem.model.shape is not None
    return {
        "shape": problem.model.shape.to_json(),
        "cluster": problem.cluster.to_json(),
        "batch": problem.batch,
        "stack": problem.stack.to_json(),
        "precision": problem.precision,
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    return write_sets(COMMAND, SEED, FILE, set_names(), make_set, arguments)


def write_sets(
    command: str,
    seed: int,
    file: str,
    names: Sequence[str],
    make: Callable[[str, int], list[Hybrid]],
    arguments: Iterable[str] | None = None,
) -> int:
    """Make sets of hybrid problems, as the command line says, and write them to one file.

    Args:
        command: name of the command, for its messages.
        seed: the seed by default.
        file: name of the file.
        names: the sets.
        make: makes the problems of a set from its name and the seed.
        arguments: of the command line (default: those of the process).

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog=command, description="Make the sets of a file anew.")
    parser.add_argument("--seed", type=int, default=seed, help=f"default: {seed}")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.seed < 0:
        print(f"{command}: --seed < 0", file=sys.stderr)
        return 2
    lines = []
    for name in names:
        rows = ",\n".join(json.dumps(row_of(problem)) for problem in make(name, options.seed))
        lines.append(f'"{name}": [\n{rows}\n]')
    path = options.out / file
    text = f'{{"schema": 1, "seed": {options.seed}, "sets": {{\n' + ",\n".join(lines) + "\n}}\n"
    with replacing(path) as stream:
        stream.write(text.encode())
    print(f"{path}: {len(names)} sets, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
