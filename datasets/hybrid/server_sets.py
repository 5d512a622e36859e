"""Fixed sets of hetero problems, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.hybrid.server_sets --seed 2307              # make the file again
    python -m parenvs.datasets.hybrid.server_sets --seed 2307 --out /tmp   # into another folder

A set is called ``TIER-validation``, ``TIER-test`` or ``TIER-outside``; the last has longer chains,
slower servers and other widths than training draws. Problems are called ``SET/FAMILY-NUMBER``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial

from parenvs.datasets.hybrid.servers import TIERS, family_of, make
from parenvs.datasets.hybrid.sets import draw, rows
from parenvs.datasets.set_commands import command_line, write_file
from parenvs.errors import UnknownInstanceError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import hetero_sets

MODULE = "parenvs.datasets.hybrid.server_sets"
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
    ranges = TIERS[tier].outside if part == "outside" else TIERS[tier]
    seeds = seed, set_names().index(name)
    return draw(name, seeds, PARTS[part], family_of, partial(make, ranges))


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = command_line(MODULE, __doc__, SEED, choose=False)
    return write_file(parser, FILE, set_names(), lambda *of: rows(make_set(*of)), arguments)


if __name__ == "__main__":
    sys.exit(main())
