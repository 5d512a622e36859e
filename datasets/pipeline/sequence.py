"""Names of drawn problems of few stages.

They are numbered without end. Problem j is drawn from a generator that is seeded with the version,
the ranges, the family and j, so it can be made alone, whatever was made before.
"""

from __future__ import annotations

import numpy as np

from parenvs.core.game import generator_of, word_of
from parenvs.datasets.pipeline import generators
from parenvs.datasets.pipeline.generators import FAMILIES, DrawnProblem
from parenvs.errors import UnknownInstanceError, shown

VERSION = 2
"""Version of the draw: a problem's number, and what it is drawn from, change only with it."""
RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}
"""Values of the argument ``ranges``."""
ANY = "any"
"""In names, the family of problems whose family is drawn, too."""
FIRST = f"generated-{VERSION}"
"""First word of the names of numbered problems."""
FIRSTS = ("generated-1", FIRST)
"""First words of all names: version 1 has the state of the generator in place of a number."""


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
