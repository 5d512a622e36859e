"""Exact lower bounds: prices and messages rounded to whole numbers, and everything summed as such.

Whatever messages are, moving them between an edge and its ends leaves the cost of every plan as it
is, and whatever prices of memory are, if none is below 0, a legal plan pays no more than the slack
is worth. So the sum of all least costs of nodes and edges is a bound, exact in whole numbers.
The unit is 1 / 2^k of a unit of cost, as small as 64 bits allow.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

import numpy as np

from parenvs.agents.sharding.model import Arrays, ranges
from parenvs.tasks.sharding.reduced import NEVER, Reduced

_BITS = 61
"""Every number that is computed is less than two to this power."""
_FINEST = 40
"""Largest k of the unit."""
_PART = 2**20
"""Pairs that are looked at at once."""


class Certificate(NamedTuple):
    """An exact bound of a reduced problem, and what each strategy adds to it.

    Attributes:
        whole: bound of the cost without the constant, in units of 2^-k, a Python integer.
        extra: (s,) int64, by how much each strategy raises it if it is taken, in the same units.
        shift: k.
    """

    whole: int
    extra: np.ndarray
    shift: int

    @property
    def bound(self) -> int:
        """The bound as a whole cost."""
        return -(-self.whole >> self.shift)

    def better(self, cost: int) -> np.ndarray:
        """Which strategies, (s,) bool, a plan that costs less than ``cost`` can take."""
        room = ((cost - 1) << self.shift) - self.whole
        return self.extra <= min(max(room, -1), 2**63 - 1)


def certify(
    reduced: Reduced,
    model: Arrays,
    price: np.ndarray,
    messages: np.ndarray,
    kept: np.ndarray | None = None,
) -> Certificate:
    """Return the exact bound of prices and messages, which may be any.

    Those that are too large for numbers of 64 bits count as 0.

    Args:
        reduced: the problem.
        model: its arrays.
        price: (T,) prices of memory; what is below 0 counts as 0.
        messages: what is moved from edges to their ends, as ``Arrays.message`` orders it.
        kept: (s,) bool, strategies that may be taken, at least one of each node (default: all).
    """
    price = np.where(np.isfinite(price), np.maximum(price, 0.0), 0.0)
    moved = np.where(np.isfinite(messages), messages, 0.0)
    node = np.repeat(np.arange(len(reduced)), np.diff(model.offset))
    sizes = np.diff(model.offset)
    source = np.repeat(np.arange(len(reduced)), np.diff(model.start))
    at = ranges(model.offset[source], sizes[source])  # strategy of each entry of the messages
    used_at, term, used = usages_of(model)
    allowed = reduced.costs < NEVER
    allowed = allowed if kept is None else allowed & kept
    # How large anything can get.
    totals = np.where(allowed, reduced.costs, 0).astype(float)
    np.add.at(totals, at, np.abs(moved))
    sums = np.concatenate([[0.0], np.cumsum(price)])
    each = np.diff(sums[model.term_times], axis=1)[term, 0]
    rounding = len(price) * np.finfo(float).eps * sums[-1]  # of the differences of sums
    np.add.at(totals, used_at, (each + rounding) * used + 1.0)
    pairs = reduced.edge_costs[reduced.edge_costs < NEVER]
    largest = max(float(totals.max(initial=1.0)), float(pairs.max(initial=0)), 1.0)
    largest += 3 * float(np.abs(moved).max(initial=0.0)) + 2.0
    shift = min(_BITS - int(np.ceil(np.log2(min(largest, 2.0**200)))) - 1, _FINEST)
    if shift < 0 or sums[-1] > 2.0**_BITS / 4:
        return certify(reduced, model, 0.0 * price, 0.0 * moved, kept)
    unit = float(2**shift)
    # Costs of nodes: messages, and prices in units of their own, as exact products.
    own = np.where(allowed, reduced.costs, 0) << shift
    whole_messages = np.rint(moved * unit).astype(np.int64)
    np.add.at(own, at, whole_messages)
    fine, whole_price = _fixed_point(price)
    before = np.concatenate([[0], np.cumsum(whole_price)])
    worth = np.diff(before[model.term_times], axis=1)[term, 0]
    np.add.at(own, used_at, _scaled(used, worth, fine - shift))
    priced = whole_price > 0
    paid = sum(map(mul, whole_price[priced].tolist(), model.slack[priced].tolist()))
    paid = -(-paid >> (fine - shift)) if fine >= shift else paid << (shift - fine)
    if not allowed.all():
        own[~allowed] = 2**62
    least = np.minimum.reduceat(own, model.offset[:-1])
    extra = own - least[node]
    rows, edges = _edges(reduced, model, whole_messages, shift, allowed[at])
    np.add.at(extra, at, rows)
    return Certificate(sum(least.tolist()) + edges - paid, extra, shift)


class Usages(NamedTuple):
    """What strategies use by the terms of their nodes, an entry for each strategy of each term.

    Attributes:
        strategy: number of the strategy among all.
        term: number of the term.
        used: int64.
    """

    strategy: np.ndarray
    term: np.ndarray
    used: np.ndarray


def usages_of(model: Arrays) -> Usages:
    """Return what the strategies of a problem use."""
    sizes = np.diff(model.offset)
    node = np.repeat(np.arange(len(sizes)), np.diff(model.term_start))
    return Usages(
        ranges(model.offset[node], sizes[node]),
        np.repeat(np.arange(len(node)), sizes[node]),
        model.usage[ranges(model.term_at, sizes[node])],
    )


def _fixed_point(price: np.ndarray) -> tuple[int, np.ndarray]:
    """Prices, (T,), as whole numbers of 2^-q whose sum fits, and q."""
    total = float(price.sum())
    if not total > 0:
        return 0, np.zeros(len(price), dtype=np.int64)
    fine = max(_BITS - 1 - int(np.ceil(np.log2(total + len(price)))), 0)
    fine = min(fine, 2 * _FINEST)
    return fine, np.floor(np.ldexp(price, fine)).astype(np.int64)


def _scaled(used: np.ndarray, worth: np.ndarray, shift: int) -> np.ndarray:
    """Floors of ``used * worth / 2^shift``, all exact, in parts of few Python integers."""
    out = np.zeros(len(used), dtype=np.int64)
    (at,) = np.nonzero((used > 0) & (worth > 0))
    for begin in range(0, len(at), _PART):
        part = at[begin : begin + _PART]
        whole = used[part].astype(object) * worth[part]
        out[part] = whole >> shift if shift >= 0 else whole << -shift
    return out


def _edges(
    reduced: Reduced, model: Arrays, messages: np.ndarray, shift: int, allowed: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return what each strategy at an end of an edge adds to its least cost, and those in sum.

    The first is ordered as messages are.
    """
    count, source = len(reduced.ends), np.repeat(np.arange(len(reduced)), np.diff(model.start))
    (forward,) = np.nonzero(source < model.neighbour)  # as edges by nodes, ascending
    order = np.lexsort((reduced.ends[:, 1], reduced.ends[:, 0]))
    degree = int(np.diff(model.start).max(initial=0))
    cap = 2**_BITS // (degree + 1)
    extra, total = np.zeros(len(messages), dtype=np.int64), 0
    length = np.diff(reduced.edge_offset)[order]
    ends = np.cumsum(length)
    begin = 0
    while begin < count:
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + _PART, side="right")), begin + 1)
        part, p = order[begin:end], forward[begin:end]
        entry = ranges(reduced.edge_offset[part], length[begin:end])
        width = np.diff(model.offset)[model.neighbour[p]]
        height = length[begin:end] // width
        row = ranges(model.message[p], height)
        each_row = np.repeat(row, np.repeat(width, height))
        column = ranges(
            np.repeat(model.message[model.reverse[p]], height), np.repeat(width, height)
        )
        cost = reduced.edge_costs[entry]
        left = (np.where(cost < NEVER, cost, 0) << shift) - messages[each_row] - messages[column]
        left[(cost >= NEVER) | ~allowed[each_row] | ~allowed[column]] = 2**62
        starts = np.concatenate([[0], np.cumsum(np.repeat(width, height))[:-1]])
        of_row = np.minimum.reduceat(left, starts)
        of_edge = np.minimum.reduceat(of_row, np.concatenate([[0], np.cumsum(height)[:-1]]))
        of_column = np.full(len(messages), 2**62)
        np.minimum.at(of_column, column, left)
        column = ranges(model.message[model.reverse[p]], width)
        extra[row] = np.minimum(of_row - np.repeat(of_edge, height), cap)
        extra[column] = np.minimum(of_column[column] - np.repeat(of_edge, width), cap)
        total += sum(of_edge.tolist())
        begin = end
    return extra, total
