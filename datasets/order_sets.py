"""Fixed sets of packed steps, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.order_sets                    # make all sets again
    python -m parenvs.datasets.order_sets order-test --out /tmp/sets

A set is one ``.json`` of ``parenvs.ordering.files``: model, tokens, servers, layers and the sums of
squared lengths of each problem, from which the seconds follow. Problems are called TIER-NUMBER.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from parenvs.datasets.drawing.orders import INSIDE, OUTSIDE, TIERS, OrderRanges, draw_step
from parenvs.ordering.files import save_set
from parenvs.ordering.packing import PackedStep
from parenvs.shipped import ORDER_SETS, data_folder

COMMAND = "python -m parenvs.datasets.order_sets"
SEED = 1975
"""Seed of the shipped sets."""
SETS: dict[str, tuple[int, OrderRanges]] = dict(
    zip(ORDER_SETS, ((10, INSIDE), (20, INSIDE), (10, OUTSIDE)), strict=True)
)
"""Shipped set -> number of problems of each tier, and their ranges."""


def make_set(name: str, seed: int) -> dict[str, PackedStep]:
    """Draw the problems of a shipped set, each from ``seed``, its set, its tier and its number."""
    count, ranges = SETS[name]
    place = list(SETS).index(name)
    return {
        f"{tier}-{number:03d}": draw_step(
            np.random.default_rng([seed, place, row, number]), tier, ranges
        )
        for row, tier in enumerate(TIERS)
        for number in range(count)
    }


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help="sets (default: all)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the files")
    options = parser.parse_args(None if arguments is None else list(arguments))
    unknown = [name for name in options.sets if name not in SETS]
    if unknown or options.seed < 0:
        fault = f"no set {unknown[0]!r}; known: {', '.join(SETS)}" if unknown else "--seed < 0"
        print(f"{COMMAND}: {fault}", file=sys.stderr)
        return 2
    for name in options.sets or SETS:
        path = options.out / f"{name}.json"
        steps = make_set(name, options.seed)
        save_set(path, steps)
        print(f"{path}: {len(steps):,} problems, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
