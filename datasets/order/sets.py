"""Fixed sets of packed steps, stored as data, so that they outlive changes of the generator.

    python -m parenvs.datasets.order.sets                    # make all sets again
    python -m parenvs.datasets.order.sets order-test --out /tmp/sets

A set is one ``.json`` of ``parenvs.tasks.order.files``: model, tokens, servers, layers and the sums
of squared lengths of each problem, from which the seconds follow. Problems are called TIER-NUMBER.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from parenvs.core.sets import Reference, SetKind, share_kind
from parenvs.datasets.order.drawing import (
    ALL_TIERS,
    INSIDE,
    LARGE,
    OUTSIDE,
    TIERS,
    OrderRanges,
    draw_step,
)
from parenvs.datasets.references import ORDERS, costs_of
from parenvs.datasets.set_commands import command_line, write_files
from parenvs.tasks.order.files import save_set
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.order.packing import PackedStep

MODULE = "parenvs.datasets.order.sets"
SEED = 1975
"""Seed of the shipped sets."""
SETS: dict[str, tuple[int, OrderRanges, Collection[str]]] = dict(
    zip(
        ORDER_SETS,
        ((10, INSIDE, TIERS), (20, INSIDE, TIERS), (10, OUTSIDE, TIERS), (20, INSIDE, LARGE)),
        strict=True,
    )
)
"""Shipped set -> number of problems of each tier, their ranges, and the tiers."""


def make_set(name: str, seed: int) -> dict[str, PackedStep]:
    """Draw the problems of a shipped set, each from ``seed``, its set, its tier and its number."""
    count, ranges, tiers = SETS[name]
    stream = list(SETS).index(name)
    return {
        f"{tier}-{number:03d}": draw_step(
            np.random.default_rng([seed, stream, row, number]), tier, ranges
        )
        for row, tier in enumerate(ALL_TIERS)
        if tier in tiers
        for number in range(count)
    }


def write_set(name: str, seed: int, folder: Path) -> tuple[Path, int]:
    """Make a shipped set and write it into a folder; return the path and the number of problems."""
    path = folder / f"{name}.json"
    steps = make_set(name, seed)
    save_set(path, steps)
    return path, len(steps)


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of orders; see ``SetKind``."""

    def names(name: str) -> list[str]:
        return [f"{name}/{member}" for member in ordering_steps(name)]

    return share_kind("MicroBatchOrder-v1", names, load_ordering, costs, "tier")


def costs(name: str) -> Reference | None:
    """Return the least seconds known of a problem of a set, and their bound; None without them."""
    return costs_of(ORDERS, name, load_ordering(name).fingerprint)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    return write_files(command_line(MODULE, __doc__, SEED), SETS, write_set, arguments)


if __name__ == "__main__":
    sys.exit(main())
