"""Where the problems of ``IntraOpSharding-v1`` come from: banks, sets, fresh draws, names."""

from __future__ import annotations

from functools import lru_cache, partial

from parenvs.core.game import Drawn, Fixed, Members, Source, Stream, is_sequential
from parenvs.core.sets import family_named
from parenvs.datasets.sharding import drawing
from parenvs.datasets.sharding.bank import BANKS, board_of_set, numbered
from parenvs.datasets.sharding.drawing import FAMILIES, RANGES, SETS
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import board_of

DRAWS = 10**6
"""Numbers of the problems that are drawn."""
KEPT = 1024
"""Problems of banks and sets that are kept as they are played."""


def source_of(
    instance: str | None, family: str | None, fresh: bool, ranges: str, order: str,
    reduction: bool, problem: Sharding | None,
) -> Source:  # fmt: skip
    """Return the source of boards that the arguments of ``IntraOpSharding`` name.

    Raises:
        ParenvsError: an argument is wrong, or goes with no other.
    """
    if family is not None:
        drawing.check_family(family)
    if ranges not in RANGES:
        raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {shown(ranges)}")
    is_drawn = problem is None and instance is None
    for name, is_given, words in (
        ("order", is_sequential(order) and (problem is not None or instance not in SETS),
         "of a set, like instance='intra-op-test'"),
        ("fresh", fresh and not is_drawn, "of problems that are drawn"),
        ("reduction", not reduction and (is_drawn or instance in SETS), "of one problem"),
    ):  # fmt: skip
        if is_given:
            raise ParenvsError(f"{name}: it is {words}; leave it out")
    if problem is not None:
        if not isinstance(problem, Sharding):
            raise ParenvsError(f"problem must be a Sharding, not {shown(problem)}")
        return Fixed(board_of(problem, reduction))
    families = list(FAMILIES) if family is None else [family]
    if instance is None:
        if fresh or ranges != "inside":
            return Drawn(partial(_fresh, families, ranges))
        return Drawn(partial(_of_bank, families))
    if instance not in SETS:
        return Fixed(named(instance, reduction))
    members = [x for x in drawing.set_names(instance) if family_named(x) in families]
    return Members(members, named, order)


def named(name: object, reduction: bool = True) -> Board:
    """Return the board of a problem of a set, a drawn one, an added file, or a path, read once.

    Raises:
        ParenvsError: there is no such problem, no plan of it is legal, or nothing is to decide.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/mesh-000")
    if name.split("/")[0] == drawing.FIRST:
        board = _numbered(*drawing.named(name))
        return board if reduction else board_of(board.problem, reduction)
    if name.split("/")[0] in SETS:
        return _of_set(name) if reduction else board_of(drawing.of_set(name), reduction)
    return _of_file(name, reduction)


@lru_cache(maxsize=KEPT)
def _numbered(family: str, number: int, ranges: str) -> Board:
    return numbered(family, number, ranges)


@lru_cache(maxsize=KEPT)
def _of_set(name: str) -> Board:
    return board_of_set(name)


@lru_cache(maxsize=32)
def _of_file(name: str, reduction: bool) -> Board:
    return board_of(store.find(name, SETS), reduction)


def _family(families: list[str], stream: Stream) -> str:
    return families[int(stream.rng.integers(len(families)))] if len(families) > 1 else families[0]


def _of_bank(families: list[str], stream: Stream) -> Board:
    family = _family(families, stream)
    return _numbered(family, int(stream.rng.integers(BANKS[family])), "inside")


def _fresh(families: list[str], ranges: str, stream: Stream) -> Board:
    family = _family(families, stream)
    return numbered(family, int(stream.rng.integers(BANKS[family], DRAWS)), ranges)
