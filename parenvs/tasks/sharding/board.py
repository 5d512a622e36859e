"""``Board``: a reduced IOPDDL problem in the arrays that episodes are played on.

Nodes are decided in their order, which is that of the program. What a node uses is counted from its
*floor*, the least that any of its strategies uses at a time; floors are taken off the slack once,
so that the headroom is what the decided nodes leave if all others use their least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.messages import arrays_of, begins, sweep
from parenvs.tasks.sharding.problem import (
    NEVER,
    Array,
    Reduced,
    Sharding,
    as_floats,
    largest_sum,
    reduce,
)

SWEEPS = 60
"""Sweeps of message passing."""


class KnownCosts(NamedTuple):
    """Costs of a problem's plans that are known in advance; NaN where unknown."""

    bound: float = np.nan
    best: float = np.nan


class Neighbor(NamedTuple):
    """A neighbor of a node.

    Attributes:
        table: (k of the neighbor, k of the node) float64 costs of pairs; inf if forbidden.
        forbids: whether a pair is forbidden.
    """

    node: int
    table: Array
    forbids: bool


class Usage(NamedTuple):
    """What a node uses beyond its floor, in consecutive intervals of the kept times.

    Attributes:
        starts: (j,) where each interval begins, counted from ``first``.
        lengths: (j,) number of times of each interval.
        amount: (j, k) int64, what each strategy uses beyond the floor.
    """

    first: int
    last: int
    starts: Array
    lengths: Array
    amount: Array

    def least(self, remaining: Array) -> Array:
        """Return the least entry of ``remaining``, (T + 1,), in each interval, (j,)."""
        return np.minimum.reduceat(remaining[self.first : self.last], self.starts)


@dataclass(frozen=True, eq=False)
class Board:
    """A problem to be decided node by node; n nodes, s strategies, T times.

    Attributes:
        reduced: the problem after reduction.
        offset: (n + 1,) where each node's strategies begin.
        costs: (s,) float64; inf if forbidden.
        usage: usage of each node, None if it uses nothing beyond its floor.
        headroom: (T + 1,) int64, slack less all floors; the last entry is no time.
        witness: (n,) strategies of a legal plan; empty while none is known.
        greedy: (n,) strategies of the greedy plan, with which the improving form begins.
        generate: generates the problem by its name, if ``reduced`` does not hold it.
        stored_messages: (s,) ``messages`` that were computed before.
    """

    instance: str
    reduced: Reduced
    offset: Array
    costs: Array
    usage: tuple[Usage | None, ...]
    headroom: Array
    witness: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    greedy: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    reference: int = 1
    known: KnownCosts = field(default_factory=KnownCosts)
    generate: Callable[[str], Sharding] | None = None
    stored_messages: Array | None = field(default=None, repr=False)

    @classmethod
    def of(cls, problem: Sharding, reduction: bool = True) -> Board:
        """Build the board of a problem.

        Args:
            problem: the problem.
            reduction: whether the problem is reduced first.

        Raises:
            InfeasibleError: no plan is legal, or the reduction leaves nothing to decide.
        """
        reduced = reduce(problem, lambda: not reduction)
        if not len(reduced):
            raise InfeasibleError(
                f"{problem.name}: its reduction decides every node, and leaves nothing to play; "
                "give reduction=False to play it as it is"
            )
        return cls.of_reduced(problem.instance, reduced)

    @classmethod
    def of_reduced(cls, instance: str, reduced: Reduced) -> Board:
        """Build the board of a reduced problem.

        Raises:
            InfeasibleError: no plan is legal.
        """
        sizes = np.diff(reduced.offset)
        # The last entry stands for no time.
        headroom = np.append(reduced.slack, 2**62)
        usage = _usages(reduced, sizes, headroom)
        if headroom.min() < 0:
            raise InfeasibleError(f"{instance}: no plan keeps the limit")
        costs = as_floats(reduced.costs)
        if np.isinf(np.minimum.reduceat(costs, reduced.offset[:-1])).any():
            raise InfeasibleError(f"{instance}: a node has no strategy that is allowed")
        return cls(instance, reduced, reduced.offset, costs, usage, headroom)

    def __len__(self) -> int:
        """Number of nodes, which is that of the steps."""
        return len(self.offset) - 1

    def __deepcopy__(self, memo: dict[int, object]) -> Board:
        """Return the board itself: it is immutable."""
        return self

    @cached_property
    def sizes(self) -> Array:
        """(n,) number of strategies of each node."""
        return np.diff(self.offset)

    @cached_property
    def neighbors(self) -> tuple[tuple[Neighbor, ...], ...]:
        """Neighbors of each node, ascending."""
        reduced, sizes = self.reduced, self.sizes
        neighbors: list[list[Neighbor]] = [[] for _ in sizes]
        values = as_floats(reduced.edge_costs)
        for (a, b), begin in zip(reduced.ends.tolist(), reduced.edge_offset.tolist(), strict=False):
            table = values[begin : begin + sizes[a] * sizes[b]].reshape(sizes[a], sizes[b])
            forbids = not bool(np.isfinite(table).all())
            neighbors[a].append(Neighbor(b, np.ascontiguousarray(table.T), forbids))
            neighbors[b].append(Neighbor(a, table, forbids))
        return tuple(tuple(sorted(near, key=lambda other: other.node)) for near in neighbors)

    @cached_property
    def mass(self) -> Array:
        """(s,) float64 what each strategy uses beyond the floor, summed over all times."""
        mass = np.zeros(len(self.costs))
        for node, usage in enumerate(self.usage):
            if usage is not None:
                span = slice(self.offset[node], self.offset[node + 1])
                mass[span] = usage.lengths @ usage.amount.astype(float)
        return mass

    @property
    def _allowed_mass(self) -> Array:
        return np.where(np.isfinite(self.costs), self.mass, np.inf)

    @cached_property
    def is_free(self) -> bool:
        """Whether no pair is forbidden and every node has a strategy that never exceeds its floor.

        Then a partial plan can be completed if it keeps the limit with all other nodes at their
        floors: they take those strategies.
        """
        forbidden = bool((self.reduced.edge_costs >= NEVER).any())
        least_mass = np.minimum.reduceat(self._allowed_mass, self.offset[:-1])
        return not forbidden and not least_mass.any()

    @cached_property
    def floor(self) -> float:
        """Sum of the least costs of all nodes, with what the reduction took out."""
        least = np.minimum.reduceat(self.costs, self.offset[:-1])
        return float(least.sum() + self.reduced.constant)

    @cached_property
    def is_exact(self) -> bool:
        """Whether sums of costs are whole numbers that floats hold."""
        # Above this the sums in float64 would differ from the exact cost.
        return self.worst < 2.0**53

    @cached_property
    def worst(self) -> float:
        """Sum of the largest allowed costs of all nodes and edges, which no legal plan exceeds."""
        reduced = self.reduced
        total = reduced.constant + largest_sum(reduced.costs, reduced.offset, NEVER)
        return total + largest_sum(reduced.edge_costs, reduced.edge_offset, NEVER)

    @cached_property
    def lean(self) -> Array:
        """(n,) strategy of each node that uses least over all times, where it is allowed."""
        mass = self._allowed_mass
        spans = zip(self.offset[:-1].tolist(), self.offset[1:].tolist(), strict=True)
        return np.array([int(mass[a:b].argmin()) for a, b in spans], np.int64)

    @cached_property
    def unit(self) -> float:
        """What a node costs on average in a plan of the reference's cost, at least 1."""
        return max(self.reference / len(self), 1.0)

    @cached_property
    def liftable(self) -> Reduced:
        """The reduced problem, able to ``lift`` choices to the problem's strategies."""
        if self.reduced.problem is not None:
            return self.reduced
        assert self.generate is not None
        return reduce(self.generate(self.instance))

    @cached_property
    def messages(self) -> Array:
        """(s,) float32 sum of the messages to each strategy from all later neighbors.

        They are those of the sweep with the best bound.
        """
        if self.stored_messages is not None:
            return self.stored_messages
        model = arrays_of(self.reduced)
        sizes = self.sizes.tolist()
        work, marginals = np.zeros(max(sizes)), np.zeros(len(self.costs))
        best, messages = -np.inf, np.zeros(int(model.message[-1]))
        best_messages = messages.copy()
        for _ in range(SWEEPS):
            bound = sweep(model, self.costs, messages, work, marginals, 0, 2 * len(sizes))
            if bound > best:
                best, best_messages = bound, messages.copy()
        totals = np.zeros(len(self.costs))
        for node, (begin, size) in enumerate(zip(self.offset.tolist(), sizes, strict=False)):
            for edge in range(model.start[node], model.start[node + 1]):
                if model.neighbor[edge] > node:
                    position = model.message[edge]
                    totals[begin : begin + size] += best_messages[position : position + size]
        return totals.astype(np.float32)

    @cached_property
    def wanted(self) -> Array:
        """(n,) strategies that the messages lead to if memory has no limit."""
        # Greedy by messages: on a tree without a limit it is optimal.
        total, chosen = self.costs + self.messages, np.zeros(len(self), np.int64)
        for node in range(len(self)):
            chosen[node] = total[self.offset[node] : self.offset[node + 1]].argmin()
            for other in self.neighbors[node]:
                # Earlier nodes have chosen: what is added to them is not read.
                span = slice(self.offset[other.node], self.offset[other.node + 1])
                total[span] += other.table[:, chosen[node]]
        return chosen

    @cached_property
    def flat(self) -> dict[str, Array]:
        """The board of n nodes, m edges and j intervals as arrays; positions count within it.

        Of nodes, (n,): ``offset``, first strategy; ``size``, number of strategies; ``edge``, first
        edge to a later node; ``later`` and ``earlier``, number of such neighbors; ``interval`` and
        ``intervals``, first and number of the intervals in which it uses memory; ``headroom``, the
        least headroom in them. Of edges, (m,): ``other``, first strategy of the later node;
        ``width``, number of them; ``pair``, first pair. Of intervals, (j,): ``begin``, first time;
        ``length``, number of times; ``whole``, least headroom; ``amount``, where what strategies
        use begins in ``amounts``. ``mass`` is of strategies, as a share of the node's largest;
        ``pairs`` are costs, those of the earlier node's first strategy first.
        """
        reduced, sizes, first = self.reduced, self.sizes, self.offset[:-1]
        earlier_node, later_node = reduced.ends.T
        order = np.lexsort((later_node, earlier_node))
        later, earlier = (np.bincount(x, minlength=len(self)) for x in (earlier_node, later_node))
        none = np.zeros(0, np.int64)
        begin, length, least_free, amounts = [none], [none], [none], [none]
        intervals, headroom = np.zeros((2, len(self)), np.int64)
        for node, usage in enumerate(self.usage):
            if usage is not None:
                least = usage.least(self.headroom)
                intervals[node], headroom[node] = len(least), least.min()
                begin.append(usage.first + usage.starts)
                length.append(usage.lengths)
                least_free.append(least)
                amounts.append(usage.amount.ravel())
        # Shares of the largest make nodes of all sizes alike.
        largest = np.maximum.reduceat(self.mass, first)
        return {
            "offset": first,
            "size": sizes,
            "edge": begins(later),
            "later": later,
            "earlier": earlier,
            "interval": begins(intervals),
            "intervals": intervals,
            "headroom": headroom,
            "other": first[later_node[order]],
            "width": sizes[later_node[order]],
            "pair": reduced.edge_offset[:-1][order],
            "begin": np.concatenate(begin),
            "length": np.concatenate(length),
            "whole": np.concatenate(least_free),
            "amount": begins(np.repeat(sizes, intervals)),
            "amounts": np.concatenate(amounts),
            "mass": self.mass / np.maximum(np.repeat(largest, sizes), 1.0),
            "pairs": as_floats(reduced.edge_costs),
        }

    @property
    def problem(self) -> Sharding:
        """The problem, generated again if ``reduced`` does not hold it."""
        assert self.liftable.problem is not None
        return self.liftable.problem

    def costs_of(self, node: int, chosen: Array, without: Container[int] = ()) -> Array:
        """Return the costs of a node's strategies, (k,), with its neighbors in a plan.

        Neighbors in ``without`` are left out.
        """
        costs = self.costs[self.offset[node] : self.offset[node + 1]].copy()
        for other in self.neighbors[node]:
            if other.node not in without:
                costs += other.table[chosen[other.node]]
        return costs

    def spend(self, remaining: Array, node: int, strategy: int, sign: int) -> None:
        """Add ``sign`` times what a strategy uses to ``remaining``, (T + 1,)."""
        usage = self.usage[node]
        if usage is not None:
            used = np.repeat(usage.amount[:, strategy], usage.lengths)
            remaining[usage.first : usage.last] += sign * used

    def replace(self, remaining: Array, node: int, old: int, new: int) -> None:
        """Update ``remaining``, (T + 1,), for a node that changes its strategy."""
        self.spend(remaining, node, old, 1)
        self.spend(remaining, node, new, -1)

    def remaining_of(self, chosen: Array) -> Array:
        """Return what a plan, (n,), leaves of the headroom, (T + 1,)."""
        return np.append(self.reduced.slack - self.reduced.profile(chosen), self.headroom[-1])


def _usages(reduced: Reduced, sizes: Array, headroom: Array) -> tuple[Usage | None, ...]:
    """Return the usage of each node; take the floors off ``headroom`` in place."""
    terms_of: list[list[int]] = [[] for _ in sizes]
    for term, node in enumerate(reduced.term_node.tolist()):
        terms_of[node].append(term)
    usages: list[Usage | None] = []
    for node, terms in enumerate(terms_of):
        if not terms:
            usages.append(None)
            continue
        # Terms overlap; between consecutive borders the usage is constant.
        times = reduced.term_times[terms]
        borders = np.unique(times)
        change = np.zeros((len(borders), int(sizes[node])), np.int64)
        used = reduced.usages[reduced.term_offset[terms][:, None] + np.arange(sizes[node])]
        np.add.at(change, np.searchsorted(borders, times[:, 0]), used)
        np.subtract.at(change, np.searchsorted(borders, times[:, 1]), used)
        amount = np.cumsum(change, axis=0)[:-1]
        # What every strategy uses at least is taken off the headroom once.
        floor, lengths = amount.min(axis=1), np.diff(borders)
        first, last = int(borders[0]), int(borders[-1])
        headroom[first:last] -= np.repeat(floor, lengths)
        amount -= floor[:, None]
        usages.append(
            Usage(first, last, borders[:-1] - first, lengths, amount) if amount.any() else None
        )
    return tuple(usages)


class Witness:
    """A legal plan that agrees with all decided nodes.

    Attributes:
        chosen: (n,) strategies.
        remaining: (T + 1,) what the plan leaves of the headroom.
        mended: strategy of the current node -> neighbors and the strategies they change to.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.chosen = board.witness.copy()
        self.remaining = board.remaining_of(self.chosen)
        self.mended: dict[int, dict[int, int]] = {}

    def look(self, node: int, costs: Array, legal: Array) -> None:
        """Find the strategies that the witness can be mended for.

        Args:
            node: the current node.
            costs: (s,) of strategies with all decided neighbors; inf if forbidden.
            legal: (k,) bool, strategies to look at; those that fail become false.
        """
        self.mended = {int(self.chosen[node]): {}}
        for strategy in np.flatnonzero(legal).tolist():
            # The witness's own strategy needs no change.
            if strategy not in self.mended:
                changes = self._mend(node, strategy, costs)
                if changes is None:
                    legal[strategy] = False
                else:
                    self.mended[strategy] = changes
        legal[self.chosen[node]] = True

    def take(self, node: int, strategy: int) -> None:
        """Mend the plan for a strategy of the node that was looked at."""
        for other, value in {node: strategy, **self.mended[strategy]}.items():
            self.board.replace(self.remaining, other, int(self.chosen[other]), value)
            self.chosen[other] = value

    def _mend(self, node: int, strategy: int, costs: Array) -> dict[int, int] | None:
        """Return the neighbors that must change for a strategy, and to what; None if it fails."""
        board, changes = self.board, {node: strategy}
        remaining = self.remaining.copy()
        board.replace(remaining, node, int(self.chosen[node]), strategy)
        for other in board.neighbors[node]:
            is_later = other.forbids and other.node > node
            if is_later and np.isinf(other.table[self.chosen[other.node], strategy]):
                value = self._replacement(other.node, changes, costs, remaining)
                if value < 0:
                    return None
                changes[other.node] = value
        del changes[node]
        return changes if remaining.min() >= 0 else None

    def _replacement(
        self, node: int, changes: dict[int, int], costs: Array, remaining: Array
    ) -> int:
        """Return the leanest strategy of a node that fits all around it; -1 if none does."""
        board = self.board
        begin, end = board.offset[node], board.offset[node + 1]
        allowed = np.isfinite(costs[begin:end])
        first = min(changes)  # the current node; costs hold what is decided before it
        for other in board.neighbors[node]:
            if other.forbids and other.node >= first:
                value = changes.get(other.node, int(self.chosen[other.node]))
                allowed &= np.isfinite(other.table[value])
        board.spend(remaining, node, int(self.chosen[node]), 1)
        # Lean strategies leave most for what is mended later.
        order = np.argsort(board.mass[begin:end], kind="stable")
        for value in order[allowed[order]].tolist():
            board.spend(remaining, node, value, -1)
            usage = board.usage[node]
            if usage is None or remaining[usage.first : usage.last].min() >= 0:
                return int(value)
            board.spend(remaining, node, value, 1)
        return -1


BOARDS_KEPT = 64
"""Boards that are kept besides those in play."""


class Tables:
    """The arrays of ``flat`` of several boards by name, one board after the other.

    Args:
        count: number of episodes.
        looks: whether messages, and the plan that they lead to (``wanted``), are needed.
    """

    def __init__(self, count: int, looks: bool) -> None:
        self.count, self.looks = count, looks
        self.clear()

    def clear(self) -> None:
        """Remove all boards; ``starts`` of earlier calls become invalid."""
        self._boards: dict[int, tuple[Board, int, int]] = {}
        self._length: Counter[str] = Counter()
        self._arrays: dict[str, Array] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state; boards have new ids."""
        self.__dict__.update(state)
        self._boards = {id(entry[0]): entry for entry in self._boards.values()}

    def __getattr__(self, name: str) -> Array:
        """Return an array by its name."""
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def is_full(self) -> bool:
        """Whether there are so many more boards than episodes that ``clear`` pays."""
        return len(self._boards) > 2 * self.count + BOARDS_KEPT

    def starts(self, board: Board) -> tuple[int, int]:
        """Return where nodes and strategies of a board begin; add the board if it is new."""
        if id(board) not in self._boards:
            length, arrays = self._length, board.flat
            # The entry keeps the board alive, so that its id stays unique.
            self._boards[id(board)] = board, length["offset"], length["mass"]
            if self.looks:
                arrays = {**arrays, "wanted": board.wanted, "messages": board.messages}
            # What counts from 0 within a board is moved behind the boards before it.
            begin = {name: length[target] for name, target in _COUNTS.items()}
            for name, values in arrays.items():
                self._append(name, values + begin.get(name, 0))
        return self._boards[id(board)][1:]

    def _append(self, name: str, values: Array) -> None:
        first = self._length[name]
        self._length[name] = last = first + len(values)
        if not first:
            self._arrays[name] = values
        elif len(self._arrays[name]) < last:
            # Doubling keeps the cost of appending linear.
            self._arrays[name] = np.resize(self._arrays[name], max(2 * first, last))
        self._arrays[name][first:last] = values


# Array of positions -> an array in which they are positions.
_COUNTS = {"edge": "other", "interval": "begin", "pair": "pairs", "amount": "amounts"}
