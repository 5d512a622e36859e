"""``Board``: a reduced IOPDDL problem in the arrays that episodes are played on.

Nodes are decided in their order, which is that of the program. What a node uses is counted from its
*floor*, the least that any of its strategies uses at a time; floors are taken off the slack once,
so that the headroom is what the decided nodes leave if all others use their least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.reduced import NEVER, Reduced
from parenvs.tasks.sharding.reduction import reduce


class Known(NamedTuple):
    """What is known of the costs of a problem's plans, as far as it is; else NaN.

    Attributes:
        bound: no plan costs less.
        best: cost of the best plan known.
        optimum: the same, if it is proven.
    """

    bound: float = np.nan
    best: float = np.nan
    optimum: float = np.nan


class Beside(NamedTuple):
    """A neighbour of a node.

    Attributes:
        node: the neighbour.
        table: (k of the neighbour, k of the node) float64 costs of pairs; inf if forbidden.
        forbids: whether a pair is forbidden.
    """

    node: int
    table: np.ndarray
    forbids: bool


class Usage(NamedTuple):
    """What a node uses beyond its floor, in consecutive intervals of the kept times.

    Attributes:
        first: first time.
        last: end of the last interval.
        starts: (j,) where each interval begins, counted from ``first``.
        lengths: (j,) number of times of each interval.
        amount: (j, k) int64, what each strategy uses beyond the floor.
    """

    first: int
    last: int
    starts: np.ndarray
    lengths: np.ndarray
    amount: np.ndarray

    def at_times(self, chosen: np.ndarray) -> np.ndarray:
        """Return what strategies, (g,), use at each time from first to last, (g, times)."""
        return np.repeat(self.amount[:, chosen].T, self.lengths, axis=1)


@dataclass(frozen=True, eq=False)
class Board:
    """A problem to be decided node by node; n nodes, s strategies, T times.

    Attributes:
        instance: name or path of the problem.
        reduced: what is left of it to decide.
        offset: (n + 1,) where each node's strategies begin.
        costs: (s,) float64; inf if forbidden.
        usage: usage of each node, None if it uses nothing beyond its floor.
        headroom: (T + 1,) int64, slack less all floors; the last is no time.
        witness: (n,) strategies of a legal plan; empty while none is known.
        first: (n,) strategies of the greedy plan, with which the improving form begins.
        reference: its cost.
        known: costs that are known.
        draw: draws the problem by its name, if it is kept without.
        cache: what other modules compute of the board, by name.
    """

    instance: str
    reduced: Reduced
    offset: np.ndarray
    costs: np.ndarray
    usage: tuple[Usage | None, ...]
    headroom: np.ndarray
    witness: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reference: int = 1
    known: Known = field(default_factory=Known)
    draw: Callable[[str], Sharding] | None = None
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, problem: Sharding, reduction: bool = True) -> Board:
        """Make the arrays of a problem.

        Args:
            problem: the problem.
            reduction: whether it is reduced first; without, only what forbids every plan is.

        Raises:
            InfeasibleError: no plan is legal, or the reduction leaves nothing to decide.
        """
        reduced = reduce(problem) if reduction else reduce(problem, lambda: True)
        if not len(reduced):
            raise InfeasibleError(
                f"{problem.name}: its reduction decides every node, and leaves nothing to play; "
                "give reduction=False to play it as it is"
            )
        return cls.made(problem.instance, reduced)

    @classmethod
    def made(cls, instance: str, reduced: Reduced) -> Board:
        """Make the arrays of what a problem was reduced to.

        Args:
            instance: name or path of the problem.
            reduced: the reduced problem.

        Raises:
            InfeasibleError: no plan is legal.
        """
        sizes = np.diff(reduced.offset)
        headroom = np.append(reduced.slack, 2**62)
        usage = _usages(reduced, sizes, headroom)
        if headroom.min() < 0:
            raise InfeasibleError(f"{instance}: no plan keeps the limit")
        costs = np.where(reduced.costs >= NEVER, np.inf, reduced.costs.astype(float))
        if np.isinf(np.minimum.reduceat(costs, reduced.offset[:-1])).any():
            raise InfeasibleError(f"{instance}: a node has no strategy that is allowed")
        return cls(
            instance,
            reduced,
            reduced.offset,
            costs,
            usage,
            headroom,
        )

    def __len__(self) -> int:
        """Number of nodes, which is that of the turns."""
        return len(self.offset) - 1

    def __deepcopy__(self, memo: dict[int, object]) -> Board:
        """Itself: nothing in it changes."""
        return self

    @cached_property
    def sizes(self) -> np.ndarray:
        """(n,) number of strategies of each node."""
        return np.diff(self.offset)

    @cached_property
    def times(self) -> int:
        """Number of times, T."""
        return len(self.headroom) - 1

    @cached_property
    def beside(self) -> tuple[tuple[Beside, ...], ...]:
        """Neighbours of each node, ascending."""
        reduced, sizes = self.reduced, self.sizes
        beside: list[list[Beside]] = [[] for _ in sizes]
        values = np.where(reduced.edge_costs >= NEVER, np.inf, reduced.edge_costs.astype(float))
        for (a, b), begin in zip(reduced.ends.tolist(), reduced.edge_offset.tolist(), strict=False):
            table = values[begin : begin + sizes[a] * sizes[b]].reshape(sizes[a], sizes[b])
            forbids = not bool(np.isfinite(table).all())
            beside[a].append(Beside(b, np.ascontiguousarray(table.T), forbids))
            beside[b].append(Beside(a, table, forbids))
        return tuple(tuple(sorted(x, key=lambda other: other.node)) for x in beside)

    @cached_property
    def later(self) -> tuple[tuple[Beside, ...], ...]:
        """Neighbours of each node that are decided after it."""
        return tuple(
            tuple(other for other in others if other.node > node)
            for node, others in enumerate(self.beside)
        )

    @cached_property
    def mass(self) -> np.ndarray:
        """(s,) float64 what each strategy uses beyond the floor, summed over all times."""
        mass = np.zeros(len(self.costs))
        for node, usage in enumerate(self.usage):
            if usage is not None:
                at = slice(self.offset[node], self.offset[node + 1])
                mass[at] = usage.lengths @ usage.amount.astype(float)
        return mass

    @cached_property
    def is_free(self) -> bool:
        """Whether no pair is forbidden and every node has a strategy that never exceeds its floor.

        Then a partial plan can be completed if it keeps the limit with all other nodes at their
        floors: they take those strategies.
        """
        forbidden = bool((self.reduced.edge_costs >= NEVER).any())
        lean = np.where(np.isfinite(self.costs), self.mass, np.inf)
        return not forbidden and not np.minimum.reduceat(lean, self.offset[:-1]).any()

    @cached_property
    def floor(self) -> float:
        """What all nodes cost at least, with what the reduction took out."""
        least = np.minimum.reduceat(self.costs, self.offset[:-1])
        return float(least.sum() + self.reduced.constant)

    @cached_property
    def is_exact(self) -> bool:
        """Whether sums of costs are whole numbers that floats hold."""
        reduced = self.reduced
        total = float(reduced.constant)
        for costs, offset in (
            (reduced.costs, reduced.offset), (reduced.edge_costs, reduced.edge_offset)
        ):  # fmt: skip
            if len(costs):
                allowed = np.where(costs >= NEVER, 0, costs).astype(float)
                total += float(np.maximum.reduceat(allowed, offset[:-1]).sum())
        return total < 2.0**53

    @cached_property
    def lean(self) -> np.ndarray:
        """(n,) strategy of each node that uses least over all times, where it is allowed."""
        lean = np.where(np.isfinite(self.costs), self.mass, np.inf)
        spans = zip(self.offset[:-1].tolist(), self.offset[1:].tolist(), strict=True)
        return np.array([int(lean[a:b].argmin()) for a, b in spans], dtype=np.int64)

    @cached_property
    def unit(self) -> float:
        """What a node costs on average in a plan of the reference's cost, at least 1."""
        return max(self.reference / len(self), 1.0)

    @cached_property
    def whole(self) -> Reduced:
        """What is left to decide, with the way back to the problem's own strategies."""
        if self.reduced.problem is not None:
            return self.reduced
        assert self.draw is not None
        return reduce(self.draw(self.instance))

    @property
    def problem(self) -> Sharding:
        """The problem; one that is kept without is drawn again."""
        assert self.whole.problem is not None
        return self.whole.problem

    def spend(self, room: np.ndarray, node: int, strategy: int, sign: int) -> None:
        """Add to the room, (T + 1,), what a strategy uses (1), or take it off (-1)."""
        usage = self.usage[node]
        if usage is not None:
            used = np.repeat(usage.amount[:, strategy], usage.lengths)
            room[usage.first : usage.last] += sign * used

    def room_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return what a plan, (n,), leaves of the headroom, (T + 1,)."""
        room = self.headroom.copy()
        for node, strategy in enumerate(chosen.tolist()):
            self.spend(room, node, strategy, -1)
        return room


def _usages(reduced: Reduced, sizes: np.ndarray, headroom: np.ndarray) -> tuple[Usage | None, ...]:
    """Return the usage of each node, and take the floors off the headroom."""
    of_node: list[list[int]] = [[] for _ in sizes]
    for term, node in enumerate(reduced.term_node.tolist()):
        of_node[node].append(term)
    usages: list[Usage | None] = []
    for node, terms in enumerate(of_node):
        if not terms:
            usages.append(None)
            continue
        at = reduced.term_times[terms]
        borders = np.unique(at)
        change = np.zeros((len(borders), int(sizes[node])), dtype=np.int64)
        used = reduced.usages[reduced.term_offset[terms][:, None] + np.arange(sizes[node])]
        np.add.at(change, np.searchsorted(borders, at[:, 0]), used)
        np.subtract.at(change, np.searchsorted(borders, at[:, 1]), used)
        amount = np.cumsum(change, axis=0)[:-1]
        floor, lengths = amount.min(axis=1), np.diff(borders)
        first, last = int(borders[0]), int(borders[-1])
        headroom[first:last] -= np.repeat(floor, lengths)
        amount -= floor[:, None]
        usages.append(
            Usage(first, last, borders[:-1] - first, lengths, amount) if amount.any() else None
        )
    return tuple(usages)
