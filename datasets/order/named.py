"""Orders by name: of a set, or drawn, ``order/RANGES/TIER/WHICH``.

``WHICH`` is a number, or the state of the generator that a problem was drawn by. The first problems
of each tier are kept as arrays, the bank that environments play.

    python -m parenvs.datasets.order.named              # make the banks again
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

import numpy as np

from parenvs.core.game import generator_of, word_of
from parenvs.datasets.banks import Bank, write_banks
from parenvs.datasets.order.drawing import (
    ALL_TIERS,
    INSIDE,
    OUTSIDE,
    POOL_SEED,
    draw_ordering,
    draw_step,
    step_of,
)
from parenvs.errors import UnknownInstanceError, shown
from parenvs.tasks.order.load import load_ordering
from parenvs.tasks.order.packing import PackedStep
from parenvs.tasks.order.problem import Order
from parenvs.tasks.order.task import OrderTask

SPEED_STEPS = 1000
"""Speeds of servers are multiples of one over this."""
RANGES = {"inside": INSIDE, "outside": OUTSIDE}
"""Words for the ranges that problems are drawn from."""
BANKS = {
    "p8-m32": 2000,
    "p16-m32": 2000,
    "p16-m64": 2000,
    "p32-m128": 1000,
    "p64-m256": 500,
    "p4-m8": 1000,
    "p8-m16": 1500,
}
"""Tier -> problems of its bank, those of the numbers from 0 and ranges inside."""


def drawn_by(rng: np.random.Generator, tier: str, ranges: str) -> Order:
    """Draw a problem, whose name has the state of the generator.

    Args:
        rng: the generator.
        tier: a key of ``ALL_TIERS``.
        ranges: a key of ``RANGES``.
    """
    return draw_ordering(rng, tier, RANGES[ranges], _name(tier, ranges, word_of(rng)))


def numbered(number: int, tier: str, ranges: str) -> Order:
    """Return a problem by its number, from 0; the other arguments as of ``drawn_by``."""
    if ranges == "inside" and number < BANKS[tier]:
        row = bank(tier)[number]
        step = step_of(
            str(row["model"]), int(row["tokens"]), row["speeds"] / SPEED_STEPS, row["squares"]
        )
    else:
        step = _drawn(number, tier, ranges)
    return Order.of_step(step, _name(tier, ranges, str(number)))


@lru_cache(maxsize=len(BANKS))
def bank(tier: str) -> Bank:
    """Return the bank of a tier."""
    return Bank(f"order-{tier}", BANKS[tier], partial(_row, tier))


def _drawn(number: int, tier: str, ranges: str) -> PackedStep:
    words = [list(ALL_TIERS).index(tier), list(RANGES).index(ranges), number]
    return draw_step(np.random.default_rng([POOL_SEED, *words]), tier, RANGES[ranges])


def _row(tier: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of a problem; speeds of servers have three digits."""
    step = _drawn(number, tier, "inside")
    return {
        "model": np.array(step.shape.name),
        "tokens": np.array(step.shape.sequence),
        "speeds": np.round(np.array(step.cluster.speeds) * SPEED_STEPS).astype(np.uint16),
        "squares": np.array(step.squares, dtype=np.int64),
    }


def find_order(name: str) -> Order:
    """Return a problem of a shipped set, or a drawn one.

    Raises:
        UnknownInstanceError: there is none of this name.
    """
    first, *words = name.split("/")
    if first not in OrderTask.drawn or name.endswith(".json") or ".json/" in name:
        return load_ordering(name)
    if len(words) == 3 and words[0] in RANGES and words[1] in ALL_TIERS:
        ranges, tier, which = words
        if which.isdecimal() and len(which) < 10:
            return numbered(int(which), tier, ranges)
        rng = generator_of(which)
        if rng is not None:
            return drawn_by(rng, tier, ranges)
    like = _name("p8-m16", "inside", "17")
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones are called like {like}: "
        f"ranges ({', '.join(RANGES)}), tier ({', '.join(ALL_TIERS)}) and number"
    )


def _name(tier: str, ranges: str, which: str) -> str:
    return f"{OrderTask.drawn[0]}/{ranges}/{tier}/{which}"


def main(arguments: Iterable[str] | None = None) -> int:
    """Make banks again, and return the exit status."""
    banks = {tier: partial(bank, tier) for tier in BANKS}
    return write_banks("parenvs.datasets.order.named", __doc__, banks, arguments)


if __name__ == "__main__":
    sys.exit(main())
