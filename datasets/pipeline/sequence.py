"""Names of drawn problems; draw version 2, the problems of a seed, each by its number.

Generated problems are numbered without end. Problem j is drawn from a generator that is seeded with
the version, the ranges, the family and j, so it can be made alone, whatever was made before. The
k-th problem (from 0) that an environment with the seed s draws is one of the ``WINDOW`` problems
from number k / ``PACE`` on, rounded down; a hash of s and k chooses. So environments draw from a
window of the same problems, which moves by one problem when each has drawn ``PACE``: n environments
play each problem about ``PACE`` n times while it lies in the window, which is why their problems
can be kept in a ``ProblemPool`` (``parenvs.tasks.pipeline.game.pool``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parenvs.core.source import generator_of, word_of
from parenvs.datasets.pipeline import generators
from parenvs.datasets.pipeline.generators import FAMILIES, DrawnProblem
from parenvs.errors import UnknownInstanceError, shown

VERSION = 2
"""Version of the draw: a problem's number, and what it is drawn from, change only with it."""
WINDOW = 10_000
"""Problems that environments draw from at a time."""
PACE = 4
"""Draws of an environment in which the window moves by one problem."""
RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}
"""Values of the argument ``ranges``."""
ANY = "any"
"""In names, the family of problems whose family is drawn, too."""
FIRST = f"generated-{VERSION}"
"""First word of the names of numbered problems."""
FIRSTS = ("generated-1", FIRST)
"""First words of all names: version 1 has the state of the generator in place of a number."""
_WORD = (1 << 64) - 1


def number_of(seeds: np.ndarray | Sequence[int], turns: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the number of the k-th problem of each seed, (n,) int64.

    Args:
        seeds: (n,) whole numbers; of larger ones the last 64 bits count.
        turns: (n,) k, the number of problems that were drawn since the seed was set.
    """
    turns = np.asarray(turns, dtype=np.int64)
    if isinstance(seeds, np.ndarray) and seeds.dtype == np.uint64:
        words = seeds
    else:
        words = np.array([int(seed) & _WORD for seed in seeds], dtype=np.uint64)
    mixed = _mixed(_mixed(words) + turns.astype(np.uint64))
    return turns // PACE + (mixed % np.uint64(WINDOW)).astype(np.int64)


def problem_of(number: int, family: str | None, ranges: str) -> DrawnProblem:
    """Draw the problem of a number.

    Args:
        number: j, from 0.
        family: draw problems of this family only; None draws the family, too.
        ranges: a key of ``RANGES``.
    """
    stream = 0 if family is None else 1 + list(FAMILIES).index(family)
    rng = np.random.default_rng([VERSION, list(RANGES).index(ranges), stream, number])
    return generators.draw(rng, family, RANGES[ranges], name_of(number, family, ranges))


def name_of(number: int, family: str | None, ranges: str) -> str:
    """Return the name of the problem of a number, like ``"generated-2/inside/any/17"``."""
    return f"{FIRST}/{ranges}/{family or ANY}/{number}"


def drawn_by(rng: np.random.Generator, family: str | None, ranges: str) -> DrawnProblem:
    """Draw a problem by draw version 1, whose name has the state of the generator.

    Args:
        rng: the generator.
        family: see ``problem_of``.
        ranges: a key of ``RANGES``.
    """
    name = f"{FIRSTS[0]}/{ranges}/{family or ANY}/{word_of(rng)}"
    return generators.draw(rng, family, RANGES[ranges], name)


def named(name: str) -> DrawnProblem:
    """Draw the problem of a name that ``name_of`` or ``drawn_by`` gave.

    Raises:
        UnknownInstanceError: it is no such name.
    """
    first, *words = name.split("/")
    if len(words) == 3 and words[0] in RANGES and words[1] in (ANY, *FAMILIES):
        ranges, which = words[0], words[2]
        family = None if words[1] == ANY else words[1]
        if first == FIRST and which.isdecimal():
            return problem_of(int(which), family, ranges)
        rng = generator_of(which) if first == FIRSTS[0] else None
        if rng is not None:
            return drawn_by(rng, family, ranges)
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones are called like {name_of(17, None, 'inside')}: "
        f"ranges ({', '.join(RANGES)}), family ({', '.join((ANY, *FAMILIES))}) and number"
    )


def _mixed(words: np.ndarray) -> np.ndarray:
    """Return the finaliser of SplitMix64 (Steele et al., OOPSLA 2014) of (n,) uint64."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
