"""Where ``IntraOpSharding-v0`` gets its boards from: numbers, sets, added files and paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from parenvs.datasets.sharding.drawing import (
    FAMILIES,
    RANGES,
    SETS,
    check_family,
    drawn,
    of_set,
    set_names,
)
from parenvs.envs.base import PLAYED, is_sequential
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import board_of


@dataclass(frozen=True)
class Source:
    """Where the boards of episodes come from.

    Attributes:
        family: of drawn problems; of a set, its problems of this family (None: of all).
        instance: a set to draw from, a problem, or None to draw new ones.
        ranges: of new ones, a key of ``RANGES``.
        pool: how many different problems are drawn (None: a new one each time).
        reduction: whether problems that are named are reduced first.
        order: ``"random"``, or ``"sequential"``, which plays a set in its order.

    Raises:
        ParenvsError: an argument is unknown.
    """

    family: str | None = "mesh"
    instance: str | None = None
    ranges: str = "inside"
    pool: int | None = None
    reduction: bool = True
    order: str = PLAYED[0]
    _members: tuple[str, ...] = field(init=False, default=(), repr=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.family is not None or self.instance not in SETS:
            check_family(self.family)
        if is_sequential(self.order) and self.instance not in SETS:
            raise ParenvsError(
                f"order: {self.order!r} plays a set, like instance='intra-op-test'; leave it out"
            )
        if self.ranges not in RANGES:
            raise ParenvsError(
                f"ranges must be one of {', '.join(RANGES)}, not {shown(self.ranges)}"
            )
        pool = self.pool
        if pool is not None and (type(pool) is not int or not 1 <= pool <= 10**6):
            raise ParenvsError(
                f"pool must be a whole number from 1 to 1,000,000 or None, not {shown(pool)}"
            )
        if self.instance in SETS:
            start = "" if self.family is None else f"{self.family}-"
            members = tuple(x for x in set_names(self.instance) if f"/{start}" in x)
            object.__setattr__(self, "_members", members)

    @property
    def is_fixed(self) -> bool:
        """Whether all episodes have the same problem."""
        return self.instance is not None and self.instance not in SETS

    @property
    def families(self) -> tuple[str, ...]:
        """The families of what is drawn."""
        return FAMILIES if self.family is None else (self.family,)

    def draw(self, rng: np.random.Generator, played: int = 0) -> Board:
        """Return the board of the next episode.

        Args:
            rng: draws it; a fixed one draws no numbers.
            played: problems since the last seed, by which a set is played in its order.
        """
        if self.instance is None:
            number = int(rng.integers(self.pool or 10**6))
            return numbered(self.families[0], number, self.ranges)
        if self.instance in SETS:
            count = len(self._members)
            number = played % count if is_sequential(self.order) else int(rng.integers(count))
            return named(self._members[number])
        return named(self.instance, self.reduction)


@lru_cache(maxsize=4096)
def numbered(family: str, number: int, ranges: str) -> Board:
    """Return the board of a drawn problem, the same in every process."""
    return board_of(drawn(family, number, ranges))


@lru_cache(maxsize=256)
def _of_set(name: str) -> Board:
    return board_of(of_set(name))


@lru_cache(maxsize=32)
def _of_file(name: str, reduction: bool) -> Board:
    return board_of(store.find(name, SETS), reduction)


def named(name: object, reduction: bool = True) -> Board:
    """Return the board of a problem of a set, of an added file, or of a path, read once.

    Raises:
        ParenvsError: there is no such problem, no plan of it is legal, or nothing is to decide.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/mesh-000")
    return _of_set(name) if name.split("/")[0] in SETS else _of_file(name, reduction)
