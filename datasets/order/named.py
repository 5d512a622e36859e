"""Orders by name: of a set, or drawn, ``order/RANGES/TIER/WHICH``.

``WHICH`` is a number of the pool that environments draw from, or the state of the generator that a
problem was drawn by.
"""

from __future__ import annotations

import numpy as np

from parenvs.core.source import generator_of, word_of
from parenvs.datasets.order.drawing import INSIDE, OUTSIDE, POOL_SEED, TIERS, draw_ordering
from parenvs.errors import UnknownInstanceError, shown
from parenvs.tasks.order.load import load_ordering
from parenvs.tasks.order.problem import Order
from parenvs.tasks.order.task import TASK

RANGES = {"inside": INSIDE, "outside": OUTSIDE}
"""Words for the ranges that problems are drawn from."""


def drawn_by(rng: np.random.Generator, tier: str, ranges: str) -> Order:
    """Draw a problem, whose name has the state of the generator.

    Args:
        rng: the generator.
        tier: a key of ``TIERS``.
        ranges: a key of ``RANGES``.
    """
    return draw_ordering(rng, tier, RANGES[ranges], _name(tier, ranges, word_of(rng)))


def numbered(number: int, tier: str, ranges: str) -> Order:
    """Draw a problem of the pool by its number, from 0; the other arguments as of ``drawn_by``."""
    words = [list(TIERS).index(tier), list(RANGES).index(ranges), number]
    rng = np.random.default_rng([POOL_SEED, *words])
    return draw_ordering(rng, tier, RANGES[ranges], _name(tier, ranges, str(number)))


def find_order(name: str) -> Order:
    """Return a problem of a shipped set, or a drawn one.

    Raises:
        UnknownInstanceError: there is none of this name.
    """
    first, *words = name.split("/")
    if first not in TASK.drawn or name.endswith(".json") or ".json/" in name:
        return load_ordering(name)
    if len(words) == 3 and words[0] in RANGES and words[1] in TIERS:
        ranges, tier, which = words
        if which.isdecimal() and len(which) < 10:
            return numbered(int(which), tier, ranges)
        rng = generator_of(which)
        if rng is not None:
            return drawn_by(rng, tier, ranges)
    like = _name("p8-m16", "inside", "17")
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones are called like {like}: "
        f"ranges ({', '.join(RANGES)}), tier ({', '.join(TIERS)}) and number"
    )


def _name(tier: str, ranges: str, which: str) -> str:
    return f"{TASK.drawn[0]}/{ranges}/{tier}/{which}"
