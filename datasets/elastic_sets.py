"""Fixed sets of clusters whose nodes come and go by chance, stored as data.

    python -m parenvs.datasets.elastic_sets                      # make all sets again
    python -m parenvs.datasets.elastic_sets elastic-test --out /tmp/sets

A set is one ``.json`` of ``parenvs.elastic.files``: chains of each family and measured model, drawn
by ``parenvs.elastic.markov.draw_markov``. Problems are called FAMILY-MODEL-NUMBER.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from parenvs.elastic.files import Row, save_set
from parenvs.elastic.markov import FAMILIES, draw_markov
from parenvs.elastic.problem import INTERVALS
from parenvs.shipped import ELASTIC_SETS, MEASURED, data_folder

COMMAND = "python -m parenvs.datasets.elastic_sets"
SEED = 2024
"""Seed of the shipped sets."""
NODES = 32
"""Nodes at most; as many as the measured steps go."""
COUNTS = dict(zip(ELASTIC_SETS, (16, 2, 4), strict=True))
"""Shipped set -> problems of each family and model."""


def make_set(name: str, seed: int) -> dict[str, Row]:
    """Draw the problems of a shipped set, each from the seed, its set, family, model and number."""
    place = list(COUNTS).index(name)
    return {
        f"{family}-{model}-{number:03d}": Row(
            model,
            INTERVALS,
            draw_markov(np.random.default_rng([seed, place, i, k, number]), family, NODES),
        )
        for i, family in enumerate(FAMILIES)
        for k, model in enumerate(MEASURED)
        for number in range(COUNTS[name])
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets (default: all)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the files")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for name in options.sets:
        if name not in COUNTS:
            print(f"{COMMAND}: no set {name!r}; known: {', '.join(COUNTS)}", file=sys.stderr)
            return 2
    for name in options.sets or COUNTS:
        rows = make_set(name, abs(options.seed))
        save_set(options.out / f"{name}.json", rows)
        print(f"{options.out / name}.json: {len(rows):,} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
