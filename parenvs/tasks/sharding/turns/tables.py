"""``Tables``: the arrays of many boards in a row, so that episodes of all are played together.

Boards differ in nodes, strategies and neighbours, so that everything is ragged: places of a node's
strategies, edges and intervals are a beginning and a length, and ``ranges`` lists them for many
nodes at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.tasks.sharding.reduced import NEVER
from parenvs.tasks.sharding.turns.advice import messages_of, wanted_of
from parenvs.tasks.sharding.turns.board import Board

NODES = (
    "offset", "size", "edge", "later", "earlier", "interval", "intervals", "headroom", "wanted",
)  # fmt: skip
"""Whole numbers of nodes: where its strategies begin in the board, and how many they are; where its
edges to nodes that follow begin, how many they and the others are; the same of the intervals in
which it uses memory; the least headroom in these; what the messages lead to."""
EDGES = ("other", "width", "pair")
"""Of edges to nodes that follow: where the other's strategies begin, how many; the first pair."""
INTERVALS = ("begin", "length", "whole", "amount")
"""Of intervals: first time, number of times, least headroom, where what strategies use begins."""
_KEPT = 64
"""Boards that are kept beside those in play."""


def ranges(begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return whole numbers from each beginning on, so many of each, (sum of lengths,)."""
    ends = length.cumsum()
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - ends + length, length)


def begins(length: np.ndarray) -> np.ndarray:
    """Return where parts of these lengths begin in a row."""
    return length.cumsum() - length


class Tables:
    """Arrays of boards by name, one board after the other.

    Their names are those of ``NODES``, ``EDGES`` and ``INTERVALS``; ``mass`` and ``messages`` are
    of strategies, the first as a share of the node's largest; ``pairs`` are costs of an edge's
    pairs, those of the node's first strategy first; ``amounts`` are what strategies use in an
    interval.

    Args:
        count: number of episodes.
        looks: whether messages are needed.
    """

    def __init__(self, count: int, looks: bool) -> None:
        self.count, self.looks = count, looks
        self._clear()

    def _clear(self) -> None:
        self._places: dict[int, tuple[Board, int, int]] = {}
        self._held = dict.fromkeys(("node", "edge", "interval", "strategy", "pair", "use"), 0)
        self._parts: dict[str, np.ndarray] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled; boards have other identities then."""
        self.__dict__.update(state)
        self._places = {id(held[0]): held for held in self._places.values()}

    def __getattr__(self, name: str) -> np.ndarray:
        """Return an array by its name."""
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def places(self, board: Board) -> tuple[int, int]:
        """Return where nodes and strategies of a board begin; it is added if it is not there."""
        held = self._places.get(id(board))
        if held is None:
            self._places[id(board)] = held = self._add(board)
        return held[1:]

    @property
    def is_full(self) -> bool:
        """Whether there are many more boards than episodes, so that it is time to begin anew."""
        return len(self._places) > 2 * self.count + _KEPT

    def clear(self) -> None:
        """Give all boards up; places have to be asked for again."""
        self._clear()

    def _add(self, board: Board) -> tuple[Board, int, int]:
        arrays, held = flat(board), self._held
        node, strategy = held["node"], held["strategy"]
        moved = {
            "edge": held["edge"], "interval": held["interval"], "pair": held["pair"],
            "amount": held["use"],
        }  # fmt: skip
        for name, values in arrays.items():
            self._append(name, values + moved.get(name, 0), held[_kind(name)])
        if self.looks:
            self._append("wanted", wanted_of(board), node)
            self._append("messages", messages_of(board), strategy)
        for name in ("offset", "other", "begin", "mass", "pairs", "amounts"):
            held[_kind(name)] += len(arrays[name])
        return board, node, strategy

    def _append(self, name: str, values: np.ndarray, at: int) -> None:
        """Write values from a place on into an array that grows."""
        array = self._parts.get(name)
        if array is None or len(array) < at + len(values):
            grown = np.zeros(max(2 * at, at + len(values)), dtype=values.dtype)
            if array is not None:
                grown[:at] = array[:at]
            self._parts[name] = array = grown
        array[at : at + len(values)] = values


def _kind(name: str) -> str:
    """What an array is of."""
    for kind, names in (
        ("node", NODES), ("edge", EDGES), ("interval", INTERVALS), ("pair", ("pairs",)),
        ("use", ("amounts",)),
    ):  # fmt: skip
        if name in names:
            return kind
    return "strategy"


def flat(board: Board) -> dict[str, np.ndarray]:
    """Return the arrays of a board, made once; places are those within the board."""
    if "flat" not in board.cache:
        board.cache["flat"] = _flat(board)
    return board.cache["flat"]


def _flat(board: Board) -> dict[str, np.ndarray]:
    reduced, sizes = board.reduced, board.sizes
    a, b = reduced.ends.T
    order = np.lexsort((b, a))
    later, earlier = (np.bincount(x, minlength=len(board)) for x in (a, b))
    amounts, count, begin, length, whole, headroom = [], [], [], [], [], []
    for usage in board.usage:
        count.append(0 if usage is None else len(usage.starts))
        if usage is None:
            headroom.append(0)
            continue
        span = board.headroom[usage.first : usage.last]
        least = np.minimum.reduceat(span, usage.starts)
        begin.append(usage.first + usage.starts)
        length.append(usage.lengths)
        whole.append(least)
        headroom.append(int(least.min()))
        amounts.append(usage.amount.ravel())

    def row(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    intervals = np.array(count, dtype=np.int64)
    mass = board.mass
    most = np.maximum.reduceat(mass, board.offset[:-1])
    return {
        "offset": board.offset[:-1],
        "size": sizes,
        "edge": begins(later),
        "later": later,
        "earlier": earlier,
        "interval": begins(intervals),
        "intervals": intervals,
        "headroom": np.array(headroom, dtype=np.int64),
        "other": board.offset[:-1][b[order]],
        "width": sizes[b[order]],
        "pair": reduced.edge_offset[:-1][order],
        "begin": row(begin),
        "length": row(length),
        "whole": row(whole),
        "amount": begins(np.repeat(sizes, intervals)),
        "amounts": row(amounts),
        "mass": mass / np.maximum(np.repeat(most, sizes), 1.0),
        "pairs": np.where(
            reduced.edge_costs >= NEVER, np.inf, reduced.edge_costs.astype(np.float64)
        ),
    }
