"""A chain of moves over random trees, from one plan on; several may run at once."""

from __future__ import annotations

import numpy as np

from parenvs.agents.sharding.memory import place_node
from parenvs.agents.sharding.model import Arrays
from parenvs.agents.sharding.trees import improve, surroundings

_COOLED = 300.0
"""Ratio of the first temperature to the last."""


class Chain:
    """Plans that follow one another by moves that a temperature allows.

    The moves are compiled and hold no lock of the interpreter, so that chains in threads run beside
    each other.

    Args:
        model: the problem.
        empty: memory of the empty plan.
        chosen: (n,) the plan to begin with.
        rng: draws the moves.
        largest: most nodes of a tree.
        widest: most strategies of a node.

    Attributes:
        best: (n,) cheapest plan that the chain has passed, as far as it was cheaper than what was
            known.
        change: cost of the plan it is at, above that of the first.
    """

    def __init__(
        self,
        model: Arrays,
        empty: np.ndarray,
        chosen: np.ndarray,
        rng: np.random.Generator,
        largest: int,
        widest: int,
    ) -> None:
        self.model, self.rng, self.largest = model, rng, largest
        self.chosen, self.best, self.change = chosen.copy(), chosen.copy(), 0.0
        self.tree = empty.copy()
        for node in range(len(chosen)):
            place_node(model, self.tree, node, chosen[node], 1)
        self.marks = np.zeros(len(chosen), dtype=np.int64)
        self.local, self.blocked = np.empty_like(model.costs), np.empty_like(model.costs)
        surroundings(model, self.chosen, self.local, self.blocked)
        self.space = np.zeros((2 * largest + 1) * widest)

    def move(
        self, priced: np.ndarray, warm: float, done: int, moves: int, total: int, lead: float
    ) -> None:
        """Make some moves.

        Args:
            priced: (s,) price of the memory of each strategy.
            warm: temperature of the chain's first move, in units of cost.
            done: number of moves made before.
            moves: number of moves to make.
            total: number of moves of the whole chain, over which it cools.
            lead: by how much the plan it is at costs more than the best one known.
        """
        self.change += improve(
            self.model, priced, self.tree, self.chosen, self.best, self.local, self.blocked,
            self.marks, self.space, self.rng, lead, done, moves, total, self.largest, warm,
            warm / _COOLED, 1.0,
        )  # fmt: skip
