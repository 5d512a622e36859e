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
from parenvs.tasks.sharding.problem import NEVER, Reduced, Sharding, largest_sum, reduce

SWEEPS = 60
"""Sweeps of the messages."""


class Known(NamedTuple):
    """What is known of the costs of a problem's plans, as far as it is; else NaN."""

    bound: float = np.nan
    best: float = np.nan


class Beside(NamedTuple):
    """A neighbor of a node.

    Attributes:
        table: (k of the neighbor, k of the node) float64 costs of pairs; inf if forbidden.
        forbids: whether a pair is forbidden.
    """

    node: int
    table: np.ndarray
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
    starts: np.ndarray
    lengths: np.ndarray
    amount: np.ndarray

    def least(self, room: np.ndarray) -> np.ndarray:
        """Return the least room, of (T + 1,), in each interval, (j,)."""
        return np.minimum.reduceat(room[self.first : self.last], self.starts)


@dataclass(frozen=True, eq=False)
class Board:
    """A problem to be decided node by node; n nodes, s strategies, T times.

    Attributes:
        reduced: what is left of it to decide.
        offset: (n + 1,) where each node's strategies begin.
        costs: (s,) float64; inf if forbidden.
        usage: usage of each node, None if it uses nothing beyond its floor.
        headroom: (T + 1,) int64, slack less all floors; the last is no time.
        witness: (n,) strategies of a legal plan; empty while none is known.
        first: (n,) strategies of the greedy plan, with which the improving form begins.
        draw: draws the problem by its name, if it is kept without.
        kept_messages: (s,) ``messages`` that were computed before.
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
    kept_messages: np.ndarray | None = field(default=None, repr=False)

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
        return cls.of_reduced(problem.instance, reduced)

    @classmethod
    def of_reduced(cls, instance: str, reduced: Reduced) -> Board:
        """Make the arrays of what a problem was reduced to.

        Raises:
            InfeasibleError: no plan is legal.
        """
        sizes = np.diff(reduced.offset)
        # The last entry stands for no time.
        headroom = np.append(reduced.slack, 2**62)
        usage = _usages(reduced, sizes, headroom)
        if headroom.min() < 0:
            raise InfeasibleError(f"{instance}: no plan keeps the limit")
        costs = np.where(reduced.costs >= NEVER, np.inf, reduced.costs.astype(float))
        if np.isinf(np.minimum.reduceat(costs, reduced.offset[:-1])).any():
            raise InfeasibleError(f"{instance}: a node has no strategy that is allowed")
        return cls(instance, reduced, reduced.offset, costs, usage, headroom)

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
    def beside(self) -> tuple[tuple[Beside, ...], ...]:
        """Neighbors of each node, ascending."""
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
        """Neighbors of each node that are decided after it."""
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
        # Every node can stay at its floor, and no choice forbids another: no dead ends.
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
        # Above this the sums in float64 would differ from the exact cost.
        return self.most < 2.0**53

    @cached_property
    def most(self) -> float:
        """What no legal plan exceeds: the largest costs of all nodes and edges that are allowed."""
        reduced = self.reduced
        total = reduced.constant + largest_sum(reduced.costs, reduced.offset, NEVER)
        return total + largest_sum(reduced.edge_costs, reduced.edge_offset, NEVER)

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

    @cached_property
    def messages(self) -> np.ndarray:
        """(s,) float32 sum of the messages to each strategy from all later neighbors.

        They are those of the sweep with the best bound.
        """
        if self.kept_messages is not None:
            return self.kept_messages
        model = arrays_of(self.reduced)
        sizes = self.sizes.tolist()
        work, marginals = np.zeros(max(sizes)), np.zeros(len(self.costs))
        best, messages = -np.inf, np.zeros(int(model.message[-1]))
        kept = messages.copy()
        for _ in range(SWEEPS):
            bound = sweep(model, self.costs, messages, work, marginals, 0, 2 * len(sizes))
            if bound > best:
                best, kept = bound, messages.copy()
        ahead = np.zeros(len(self.costs))
        for node, (begin, size) in enumerate(zip(self.offset.tolist(), sizes, strict=False)):
            for edge in range(model.start[node], model.start[node + 1]):
                if model.neighbor[edge] > node:
                    at = model.message[edge]
                    ahead[begin : begin + size] += kept[at : at + size]
        return ahead.astype(np.float32)

    @cached_property
    def wanted(self) -> np.ndarray:
        """(n,) strategies that the messages lead to if memory has no limit."""
        # Greedy by messages: on a tree without a limit it is optimal.
        total, chosen = self.costs + self.messages, np.zeros(len(self), dtype=np.int64)
        for node in range(len(self)):
            chosen[node] = total[self.offset[node] : self.offset[node + 1]].argmin()
            for other in self.later[node]:
                at = slice(self.offset[other.node], self.offset[other.node + 1])
                total[at] += other.table[:, chosen[node]]
        return chosen

    @cached_property
    def flat(self) -> dict[str, np.ndarray]:
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
        a, b = reduced.ends.T
        order = np.lexsort((b, a))
        later, earlier = (np.bincount(x, minlength=len(self)) for x in (a, b))
        none = np.zeros(0, dtype=np.int64)
        begin, length, whole, amounts = [none], [none], [none], [none]
        intervals, headroom = np.zeros((2, len(self)), dtype=np.int64)
        for node, usage in enumerate(self.usage):
            if usage is not None:
                least = usage.least(self.headroom)
                intervals[node], headroom[node] = len(least), least.min()
                begin.append(usage.first + usage.starts)
                length.append(usage.lengths)
                whole.append(least)
                amounts.append(usage.amount.ravel())
        # Shares of the largest make nodes of all sizes alike.
        largest = np.maximum.reduceat(self.mass, first)
        forbidden = reduced.edge_costs >= NEVER
        return {
            "offset": first,
            "size": sizes,
            "edge": begins(later),
            "later": later,
            "earlier": earlier,
            "interval": begins(intervals),
            "intervals": intervals,
            "headroom": headroom,
            "other": first[b[order]],
            "width": sizes[b[order]],
            "pair": reduced.edge_offset[:-1][order],
            "begin": np.concatenate(begin),
            "length": np.concatenate(length),
            "whole": np.concatenate(whole),
            "amount": begins(np.repeat(sizes, intervals)),
            "amounts": np.concatenate(amounts),
            "mass": self.mass / np.maximum(np.repeat(largest, sizes), 1.0),
            "pairs": np.where(forbidden, np.inf, reduced.edge_costs.astype(np.float64)),
        }

    @property
    def problem(self) -> Sharding:
        """The problem; one that is kept without is drawn again."""
        assert self.whole.problem is not None
        return self.whole.problem

    def costs_of(self, node: int, chosen: np.ndarray, without: Container[int] = ()) -> np.ndarray:
        """Return the costs of a node's strategies, (k,), with its neighbors in a plan, but some."""
        costs = self.costs[self.offset[node] : self.offset[node + 1]].copy()
        for other in self.beside[node]:
            if other.node not in without:
                costs += other.table[chosen[other.node]]
        return costs

    def spend(self, room: np.ndarray, node: int, strategy: int, sign: int) -> None:
        """Add to the room, (T + 1,), what a strategy uses (1), or take it off (-1)."""
        usage = self.usage[node]
        if usage is not None:
            used = np.repeat(usage.amount[:, strategy], usage.lengths)
            room[usage.first : usage.last] += sign * used

    def replace(self, room: np.ndarray, node: int, old: int, new: int) -> None:
        """Change the room, (T + 1,), where a node takes a new strategy in place of an old one."""
        self.spend(room, node, old, 1)
        self.spend(room, node, new, -1)

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
        # Terms overlap; between consecutive borders the usage is constant.
        at = reduced.term_times[terms]
        borders = np.unique(at)
        change = np.zeros((len(borders), int(sizes[node])), dtype=np.int64)
        used = reduced.usages[reduced.term_offset[terms][:, None] + np.arange(sizes[node])]
        np.add.at(change, np.searchsorted(borders, at[:, 0]), used)
        np.subtract.at(change, np.searchsorted(borders, at[:, 1]), used)
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
        spare: (T + 1,) what the plan leaves of the headroom.
        mended: strategy of the node in hand -> what the others change to for it.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.chosen = board.witness.copy()
        self.spare = board.room_of(self.chosen)
        self.mended: dict[int, dict[int, int]] = {}

    def look(self, node: int, costs: np.ndarray, legal: np.ndarray) -> None:
        """Find the strategies that the witness can be mended for.

        Args:
            node: the node in hand.
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
            self.board.replace(self.spare, other, int(self.chosen[other]), value)
            self.chosen[other] = value

    def _mend(self, node: int, strategy: int, costs: np.ndarray) -> dict[int, int] | None:
        """Return what neighbors change to so that a strategy can be taken; None if nothing."""
        board, changes = self.board, {node: strategy}
        spare = self.spare.copy()
        board.replace(spare, node, int(self.chosen[node]), strategy)
        for other in board.later[node]:
            if other.forbids and np.isinf(other.table[self.chosen[other.node], strategy]):
                value = self._instead(other.node, changes, costs, spare)
                if value < 0:
                    return None
                changes[other.node] = value
        del changes[node]
        return changes if spare.min() >= 0 else None

    def _instead(
        self, node: int, changes: dict[int, int], costs: np.ndarray, spare: np.ndarray
    ) -> int:
        """Choose the leanest strategy of a node that goes with all around it; -1 if none does."""
        board = self.board
        begin, end = board.offset[node], board.offset[node + 1]
        allowed = np.isfinite(costs[begin:end])
        first = min(changes)  # the node in hand; costs hold what is decided before it
        for other in board.beside[node]:
            if other.forbids and other.node >= first:
                value = changes.get(other.node, int(self.chosen[other.node]))
                allowed &= np.isfinite(other.table[value])
        board.spend(spare, node, int(self.chosen[node]), 1)
        # Lean strategies leave most for what is mended later.
        order = np.argsort(board.mass[begin:end], kind="stable")
        for value in order[allowed[order]].tolist():
            board.spend(spare, node, value, -1)
            usage = board.usage[node]
            if usage is None or spare[usage.first : usage.last].min() >= 0:
                return int(value)
            board.spend(spare, node, value, 1)
        return -1


BOARDS_KEPT = 64
"""Boards that are kept beside those in play."""


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
        """Give all boards up; places have to be asked for again."""
        self._boards: dict[int, tuple[Board, int, int]] = {}
        self._length: Counter[str] = Counter()
        self._arrays: dict[str, np.ndarray] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled; boards have other identities then."""
        self.__dict__.update(state)
        self._boards = {id(entry[0]): entry for entry in self._boards.values()}

    def __getattr__(self, name: str) -> np.ndarray:
        """Return an array by its name."""
        try:
            return self.__dict__["_arrays"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def is_full(self) -> bool:
        """Whether there are many more boards than episodes, so that it is time to begin anew."""
        return len(self._boards) > 2 * self.count + BOARDS_KEPT

    def places(self, board: Board) -> tuple[int, int]:
        """Return where nodes and strategies of a board begin; it is added if it is not there."""
        if id(board) not in self._boards:
            length, arrays = self._length, board.flat
            # The board is kept with its places, so its id stays its own.
            self._boards[id(board)] = board, length["offset"], length["mass"]
            if self.looks:
                arrays = {**arrays, "wanted": board.wanted, "messages": board.messages}
            # What counts from 0 within a board is moved behind the boards before it.
            begin = {name: length[target] for name, target in _COUNTS.items()}
            for name, values in arrays.items():
                self._append(name, values + begin.get(name, 0))
        return self._boards[id(board)][1:]

    def _append(self, name: str, values: np.ndarray) -> None:
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
