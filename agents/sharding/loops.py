"""Compiled loops of the search: memory over time, moves over trees, and the Lagrangian bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from parenvs.compiled import compiled
from parenvs.tasks.sharding.messages import Arrays, ranges, sweep
from parenvs.tasks.sharding.problem import Array, sums_over_time

_LEAST = -(2**62)
# Ratio of the first temperature of a schedule to the last.
_COOLED = 300.0


def empty_tree(m: Arrays) -> Array:
    """Return the tree of a plan in which every node uses its least."""
    half = 1 << max(len(m.slack) - 1, 0).bit_length()  # the least power of two that is enough
    tree = np.zeros((2, 2 * half), np.int64)
    # Leaves beyond the last time must never be a maximum.
    tree[0, half:] = _LEAST
    tree[0, half : half + len(m.slack)] = -m.slack
    for index in range(half - 1, 0, -1):
        tree[0, index] = max(tree[0, 2 * index], tree[0, 2 * index + 1])
    return tree


@compiled
def add(tree, lo, hi, amount):
    """Add an amount in the times from ``lo`` to before ``hi``."""
    half = tree.shape[1] // 2
    left, right = lo + half, hi + half
    first, last = left, right - 1
    while left < right:
        if left & 1:
            tree[0, left] += amount
            tree[1, left] += amount
            left += 1
        if right & 1:
            right -= 1
            tree[0, right] += amount
            tree[1, right] += amount
        left >>= 1
        right >>= 1
    while first > 1:
        first >>= 1
        tree[0, first] = max(tree[0, 2 * first], tree[0, 2 * first + 1]) + tree[1, first]
    while last > 1:
        last >>= 1
        tree[0, last] = max(tree[0, 2 * last], tree[0, 2 * last + 1]) + tree[1, last]


@compiled
def maximum(tree, lo, hi):
    """Return the maximum in the times from ``lo`` to before ``hi``."""
    half = tree.shape[1] // 2
    left, right = lo + half, hi + half
    best_left, best_right = _LEAST, _LEAST
    first, last = left, right - 1  # walked upward beside the borders, for what is added above
    while left < right:
        if left & 1:
            best_left = max(best_left, tree[0, left])
            left += 1
        if right & 1:
            right -= 1
            best_right = max(best_right, tree[0, right])
        left >>= 1
        right >>= 1
        first >>= 1
        last >>= 1
        if first >= 1:
            best_left += tree[1, first]
        if last >= 1:
            best_right += tree[1, last]
    while first > 1:
        first >>= 1
        best_left += tree[1, first]
    while last > 1:
        last >>= 1
        best_right += tree[1, last]
    return max(best_left, best_right)


@compiled
def place_node(m, tree, node, strategy, sign):
    """Add (1) or take away (-1) what a node's strategy uses."""
    for term in range(m.term_start[node], m.term_start[node + 1]):
        used = m.usage[m.term_at[term] + strategy]
        if used:
            add(tree, m.term_times[term, 0], m.term_times[term, 1], sign * used)


@compiled
def change_node(m, tree, node, old, new):
    """Change what a node uses from one strategy's to another's."""
    if old == new:
        return
    for term in range(m.term_start[node], m.term_start[node + 1]):
        more = m.usage[m.term_at[term] + new] - m.usage[m.term_at[term] + old]
        if more:
            add(tree, m.term_times[term, 0], m.term_times[term, 1], more)


@compiled
def fits(m, tree, node, strategy):
    """Whether a strategy of a node that uses its least in the tree keeps the limit."""
    for term in range(m.term_start[node], m.term_start[node + 1]):
        used = m.usage[m.term_at[term] + strategy]
        if used and maximum(tree, m.term_times[term, 0], m.term_times[term, 1]) + used > 0:
            return False
    return True


@compiled
def foresee(m, costs, messages, chosen, node, work):
    """Write a node's costs with earlier neighbors, and messages from later ones, into ``work``."""
    begin, size = m.offset[node], m.size[node]
    for s in range(size):
        work[s] = costs[begin + s]
    for p in range(m.start[node], m.start[node + 1]):
        other = m.neighbor[p]
        if other < node:
            row = m.table[m.reverse[p]] + chosen[other] * size
            for s in range(size):
                work[s] += m.pair[row + s]
        else:
            for s in range(size):
                work[s] += messages[m.message[p] + s]


@compiled
def complete(m, costs, messages, tree, allowed, chosen, work):
    """Choose a strategy for each node in turn, so that the limit is kept; return the first failure.

    Args:
        m: the model.
        costs: (s,) costs that lead the choice.
        messages: from neighbors that have not chosen.
        tree: memory of the empty plan; changed to that of the plan.
        allowed: (s,) int8, all 1; changed.
        chosen: (n,) overwritten.
        work: as long as the most strategies of a node.

    Returns:
        -1 if all nodes have a strategy, else the node that found none.
    """
    for node in range(len(m.size)):
        begin, size = m.offset[node], m.size[node]
        foresee(m, costs, messages, chosen, node, work)
        for s in range(size):
            if not allowed[begin + s]:
                work[s] = np.inf
        strategy = -1
        for _ in range(size):
            best = 0
            for s in range(1, size):
                if work[s] < work[best]:
                    best = s
            if work[best] == np.inf:
                break
            if fits(m, tree, node, best) and leaves_choice(m, allowed, node, best):
                place_node(m, tree, node, best, 1)
                if tree[0, 1] <= 0:
                    # The root of the segment tree is the largest excess over the limit.
                    strategy = best
                    break
                place_node(m, tree, node, best, -1)  # its terms fit alone, but not together
            work[best] = np.inf
        if strategy < 0:
            return node
        chosen[node] = strategy
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbor[p]
            if other > node:
                first, width, row = m.offset[other], m.size[other], m.table[p]
                for t in range(width):
                    if m.pair[row + strategy * width + t] == np.inf:
                        allowed[first + t] = 0
    return -1


@compiled
def leaves_choice(m, allowed, node, strategy):
    """Whether every later neighbor keeps a strategy that goes with this one."""
    for p in range(m.start[node], m.start[node + 1]):
        other = m.neighbor[p]
        if other < node:
            continue
        first, width = m.offset[other], m.size[other]
        row, is_free = m.table[p] + strategy * width, False
        for t in range(width):
            if allowed[first + t] and m.pair[row + t] < np.inf:
                is_free = True
                break
        if not is_free:
            return False
    return True


@compiled
def improve(
    m: Arrays,
    priced: Array,
    tree: Array,
    chosen: Array,
    best: Array,
    local: Array,
    blocked: Array,
    marks: Array,
    space: Array,
    rng: np.random.Generator,
    lead: float,
    first: int,
    moves: int,
    total: int,
    largest: int,
    warm: float,
) -> float:
    """Try moves over random trees; return the change of the plan's cost, which may be positive.

    Args:
        m: the model.
        priced: (s,) costs of memory of each strategy, at the prices of the bound.
        tree: memory of ``chosen``; changed with it.
        chosen: (n,) the plan, legal; changed.
        best: (n,) the best plan; changed where a better one is found.
        local: (s,) costs of each strategy with the neighbors in ``chosen``; changed with it.
        blocked: (s,) how many neighbors forbid each strategy, which ``local`` leaves out; changed.
        marks: (n,) int64, all 0; a place in the tree, or a number of neighbors in it, below 0.
        space: float64 scratch, (2 * largest + 1) * (most strategies of a node).
        rng: draws the trees.
        lead: by how much ``best`` is cheaper than ``chosen`` at first.
        first: number of moves of this schedule that were made before.
        moves: number of moves to make.
        total: number of moves of the whole schedule.
        largest: most nodes of a tree.
        warm: temperature at the first move, in units of cost.
    """
    cold = warm / _COOLED
    count = len(m.size)
    widest = len(space) // (2 * largest + 1)
    half = largest * widest
    # The second half becomes the costs of subtrees once forbidden neighbors are counted.
    outside, forbidden = space[:half], space[half : 2 * half]
    nodes = np.empty(largest, np.int64)
    parents = np.empty(largest, np.int64)  # directed edge to the parent
    fresh = np.empty(largest, np.int64)
    frontier = np.empty(4096, np.int64)
    current, lowest = 0.0, -lead
    for move in range(moves):
        left = 1.0 - (first + move) / total
        temperature = warm * (cold / warm) ** (1.0 - left) if warm > 0.0 else 0.0
        # Sizes are log-uniform: most trees are small, and some reach far.
        target_size = int(math.exp(rng.random() * math.log(largest + 1.0)))
        # Grow an induced tree: a node joins if exactly one neighbor is in it.
        size, waiting = 0, 0
        node, through = int(rng.random() * count), -1
        while True:
            nodes[size], parents[size] = node, through
            marks[node] = size + 1
            size += 1
            for p in range(m.start[node], m.start[node + 1]):
                other = m.neighbor[p]
                if marks[other] <= 0:
                    marks[other] -= 1
                    slot = waiting if waiting < len(frontier) else int(rng.random() * waiting)
                    frontier[slot] = m.reverse[p]
                    waiting = max(waiting, slot + 1)
            if size == target_size:
                break
            joins = False
            while waiting:
                slot = int(rng.random() * waiting)
                through = frontier[slot]
                waiting -= 1
                frontier[slot] = frontier[waiting]
                node = m.neighbor[m.reverse[through]]
                if marks[node] == -1:
                    joins = True
                    break
            if not joins:
                break
        # Costs of each strategy with the neighbors outside of the tree.
        for i in range(size):
            begin, width = m.offset[nodes[i]], m.size[nodes[i]]
            for s in range(width):
                outside[i * widest + s] = local[begin + s]
                forbidden[i * widest + s] = blocked[begin + s]
        for i in range(1, size):
            p = parents[i]
            node, other = nodes[i], m.neighbor[p]
            above = (marks[other] - 1) * widest
            add_row(m, p, chosen[node], -1.0, outside, forbidden, above)
            add_row(m, m.reverse[p], chosen[other], -1.0, outside, forbidden, i * widest)
        for i in range(size):
            for s in range(i * widest, i * widest + m.size[nodes[i]]):
                if forbidden[s] > 0.0:
                    outside[s] = np.inf
        # A random price of memory: mostly around that of the bound, sometimes any.
        drawn = rng.random()
        # Memory has all of its price at the first move, and none at the last.
        factor = 2.0 * left * drawn if rng.random() < 0.7 else 3.0 * drawn
        done = False
        for _ in range(3):
            best_subtrees(m, priced, nodes, parents, marks, size, factor, widest, space, fresh)
            change = price = 0.0
            same = True
            for i in range(size):
                node, old, new = nodes[i], chosen[nodes[i]], fresh[i]
                same = same and old == new
                change += outside[i * widest + new] - outside[i * widest + old]
                price += priced[m.offset[node] + new] - priced[m.offset[node] + old]
                if i:
                    p = parents[i]
                    other = m.neighbor[p]
                    width = m.size[other]
                    target = fresh[marks[other] - 1]
                    change += m.pair[m.table[p] + new * width + target]
                    change -= m.pair[m.table[p] + old * width + chosen[other]]
            if same:
                break
            # Metropolis' criterion on cost plus priced memory.
            worse = change + left * price
            if worse > 0.0 and (
                temperature <= 0.0 or rng.random() >= math.exp(-worse / temperature)
            ):
                break
            for i in range(size):
                change_node(m, tree, nodes[i], chosen[nodes[i]], fresh[i])
            if tree[0, 1] <= 0:
                done = True
                break
            for i in range(size):
                change_node(m, tree, nodes[i], fresh[i], chosen[nodes[i]])
            # The limit is exceeded: the same tree again with dearer memory.
            factor = 2.0 * factor + 0.5
        for i in range(size):
            node = nodes[i]
            for p in range(m.start[node], m.start[node + 1]):
                marks[m.neighbor[p]] = 0
            marks[node] = 0
            if done and fresh[i] != chosen[node]:
                for p in range(m.start[node], m.start[node + 1]):
                    begin = m.offset[m.neighbor[p]]
                    add_row(m, p, chosen[node], -1.0, local, blocked, begin)
                    add_row(m, p, fresh[i], 1.0, local, blocked, begin)
                chosen[node] = fresh[i]
        if done:
            current += change
            # A margin above rounding, so that a copy is made for real gains alone.
            if current < lowest - 1e-6:
                lowest = current
                best[:] = chosen
    return current


@compiled
def surroundings(m, chosen, local, blocked):
    """Write what each strategy costs with the neighbors in a choice, as ``improve`` takes it.

    Args:
        m: the model.
        chosen: (n,) the choice.
        local: (s,) overwritten by costs; forbidden pairs are left out.
        blocked: (s,) overwritten by numbers of forbidden pairs.
    """
    local[:] = m.costs
    blocked[:] = 0.0
    for node in range(len(m.size)):
        for p in range(m.start[node], m.start[node + 1]):
            strategy = chosen[m.neighbor[p]]
            add_row(m, m.reverse[p], strategy, 1.0, local, blocked, m.offset[node])


@compiled
def add_row(m, p, strategy, sign, costs, blocked, position):
    """Add what the neighbor at an edge costs beside a strategy to sums of costs; -1 takes away.

    Forbidden pairs are counted apart, since infinity cannot be taken away again.
    """
    width = m.size[m.neighbor[p]]
    row = m.table[p] + strategy * width
    for t in range(width):
        if m.pair[row + t] < np.inf:
            costs[position + t] += sign * m.pair[row + t]
        else:
            blocked[position + t] += sign


@compiled
def best_subtrees(m, priced, nodes, parents, marks, size, factor, widest, space, fresh):
    """Write the best strategies of a tree's nodes, with memory at a price, into ``fresh``.

    The first half of ``space`` holds the costs of strategies outside of the tree, the second
    becomes the best costs of what lies below each strategy. What led to them is found again on the
    way back, for the strategies that are taken alone.
    """
    half = (len(space) - widest) // 2
    low = 2 * half
    for i in range(size):
        begin, width = m.offset[nodes[i]], m.size[nodes[i]]
        for s in range(width):
            space[half + i * widest + s] = space[i * widest + s] + factor * priced[begin + s]
    # Leaves first: a node joins after its parent, so every child is folded in before.
    for i in range(size - 1, 0, -1):
        p = parents[i]
        node, other = nodes[i], m.neighbor[p]
        width, across = m.size[node], m.size[other]
        above, row, below = half + (marks[other] - 1) * widest, m.table[p], half + i * widest
        value, line, costs = space[below], m.pair[row : row + across], space[low : low + across]
        for t in range(across):
            costs[t] = value + line[t]
        for s in range(1, width):
            value = space[below + s]
            row += across
            line = m.pair[row : row + across]
            for t in range(across):
                whole = value + line[t]
                costs[t] = whole if whole < costs[t] else costs[t]
        for t in range(across):
            space[above + t] += costs[t]
    for i in range(size):
        width = m.size[nodes[i]]
        below = half + i * widest
        if i:
            other = m.neighbor[parents[i]]
            row = m.table[m.reverse[parents[i]]] + fresh[marks[other] - 1] * width
            for s in range(width):
                space[below + s] += m.pair[row + s]
        top = 0
        for s in range(1, width):
            if space[below + s] < space[below + top]:
                top = s
        fresh[i] = top


# Sweeps without a better bound until steps become shorter, by how much, and their momentum.
_PATIENCE, _SHORTER, _MOMENTUM = 20, 0.85, 0.85
PAIRS_AT_ONCE = 1 << 24
"""Pairs of strategies that are swept at once, until the clock is looked at."""
# Length of the steps to begin with again, at the best prices, and length to end with.
_STEPS = 0.1, 2e-3


@compiled
def priced_costs(m, price, out):
    """Write the costs of strategies with what their usage costs into ``out``, (s,).

    Args:
        m: the model.
        price: (T + 1,) sums of the prices of all times before each one.
        out: overwritten.
    """
    out[:] = m.costs
    for node in range(len(m.size)):
        begin, end = m.offset[node], m.offset[node + 1]
        for term in range(m.term_start[node], m.term_start[node + 1]):
            rate = price[m.term_times[term, 1]] - price[m.term_times[term, 0]]
            # A term costs its usage times the sum of the prices while it is in use.
            if rate > 0.0:
                base = m.term_at[term] - begin
                for s in range(begin, end):
                    out[s] += rate * m.usage[base + s]


@compiled
def share_out(m, costs, messages):
    """Take off each edge to an earlier node the share that ``sweep`` sends on it, in place."""
    for node in range(len(m.size)):
        # After this, costs of nodes and edges each have a minimum that sums to the bound.
        begin, size = m.offset[node], m.size[node]
        degree, before = m.start[node + 1] - m.start[node], 0
        for p in range(m.start[node], m.start[node + 1]):
            before += m.neighbor[p] < node
        share = 1.0 / max(degree - before, before, 1)
        for s in range(size):
            total = costs[begin + s]
            for p in range(m.start[node], m.start[node + 1]):
                total += messages[m.message[p] + s]
            for p in range(m.start[node], m.start[node] + before):
                messages[m.message[p] + s] -= share * total


@compiled
def decode(m, costs, messages, chosen, work):
    """Choose a strategy for each node in turn, by its costs, neighbors and messages.

    The memory is left out, and what is forbidden may be chosen where nothing else is left.
    """
    for node in range(len(m.size)):
        size = m.size[node]
        foresee(m, costs, messages, chosen, node, work)
        best = 0
        for s in range(1, size):
            if work[s] < work[best]:
                best = s
        chosen[node] = best


class Dual:
    """Maximizes the Lagrangian bound over the prices of memory.

    Attributes:
        price: (T,) its prices.
        chosen: (n,) the last choice that was decoded; it may exceed the limit.

    Args:
        stopped: returns whether to end a sweep early.
    """

    def __init__(self, model: Arrays, stopped: Callable[[], bool] = lambda: False) -> None:
        self.model, self.stopped = model, stopped
        steps = 2 * len(model.size)
        parts = max(2 * len(model.pair) // PAIRS_AT_ONCE, 1)
        self.part = max(-(-steps // parts), 1)
        times = len(model.slack)
        self.price = self.prices = np.zeros(times)
        self.momentum = np.zeros(times)
        self.costs = np.empty(len(model.costs))
        self.messages = np.zeros(int(model.message[-1]))
        self.best_messages = self.messages
        self.marginals = np.zeros(len(model.costs))
        self.work = np.zeros(int(model.size.max(initial=1)))
        self.chosen = np.zeros(len(model.size), np.int64)
        self.bound = -np.inf
        self.scale, self.stale = 1.0, 0

    def keep(self, kept: Array, model: Arrays) -> None:
        """Restrict the state to some strategies, (s,) bool, and their model."""
        source = self.model.source
        entry = kept[ranges(self.model.offset[source], self.model.size[source])]
        self.model, self.messages = model, self.messages[entry]
        self.best_messages = self.best_messages[entry]
        self.costs, self.marginals = self.costs[kept], self.marginals[kept]
        self.work = np.zeros(int(model.size.max(initial=1)))

    def priced(self, price: Array) -> Array:
        """Write the costs of strategies at prices of memory, (T,), into ``costs``; return them."""
        priced_costs(self.model, np.append(0.0, price.cumsum()), self.costs)
        return self.costs

    def step(self, best: float) -> float:
        """Sweep once, then move the prices; return the bound at the prices before.

        Args:
            best: cost of the best plan so far, infinite if there is none.
        """
        model = self.model
        self.priced(self.prices)
        value = self.sweep(self.messages) - float(self.prices @ model.slack)
        if not np.isfinite(value):  # it was stopped, or everything is forbidden
            return value
        if value > self.bound:
            gap = best - value if np.isfinite(best) else abs(value)
            is_large = not np.isfinite(self.bound) or value > self.bound + 1e-4 * abs(gap)
            self.stale = 0 if is_large else self.stale + 1
            self.bound, self.price = value, self.prices
            self.best_messages = self.messages.copy()
        else:
            self.stale += 1
        # Steps shrink when the bound stalls, and grow again from the best prices when tiny.
        if self.stale > _PATIENCE:
            self.scale, self.stale = _SHORTER * self.scale, 0
            if self.scale < _STEPS[1]:
                self.scale = _STEPS[0]
                self.return_to_best()
        if len(model.slack):
            self.move(value, best)
        return value

    def return_to_best(self) -> None:
        """Go back to the best prices and their messages."""
        self.prices, self.messages = self.price, self.best_messages.copy()
        self.momentum = np.zeros(len(self.momentum))
        self.priced(self.prices)

    def sweep(self, messages: Array) -> float:
        """Pass messages once, in parts; return the bound without memory, -inf if it was stopped."""
        bound, end = 0.0, 2 * len(self.model.size)
        for first in range(0, end, self.part):
            if self.stopped():
                return -np.inf
            bound += sweep(
                self.model, self.costs, messages, self.work, self.marginals, first,
                min(first + self.part, end),
            )  # fmt: skip
        return bound

    def settle(self, sweeps: int = 3) -> tuple[Array, Array]:
        """Return messages at the best prices after some sweeps, and marginals, (s,).

        A marginal is nearly by how much its strategy raises the bound. The least costs of nodes and
        of edges under the messages sum to the bound.
        """
        messages = self.best_messages.copy()
        self.priced(self.price)
        for _ in range(sweeps):
            self.sweep(messages)
        share_out(self.model, self.costs, messages)
        return messages, self.marginals.copy()

    def move(self, value: float, best: float) -> None:
        """Take a step of Polyak's length along what the decoded choice uses beyond the limit."""
        model = self.model
        decode(model, self.costs, self.messages, self.chosen, self.work)
        used = model.usage[model.term_at + self.chosen[model.owner]]
        excess = sums_over_time(model.term_times, used, len(model.slack)) - model.slack
        excess = excess.astype(float)
        # Projected subgradient: a price of 0 cannot fall.
        excess[(self.prices <= 0) & (excess < 0)] = 0.0
        length = float(excess @ excess)
        if not length:
            return
        top = best if np.isfinite(best) else value + 0.05 * abs(value) + 1.0
        # Polyak's step length needs the optimum; a point between bound and plan stands for it.
        target = self.bound + 0.3 * (top - self.bound)
        step = self.scale * max(target - value, 1e-6 * abs(value)) / length * excess
        self.momentum = _MOMENTUM * self.momentum + step
        self.prices = np.maximum(self.prices + self.momentum, 0.0)


class Chain:
    """A chain of plans in simulated annealing.

    The moves are compiled and hold no lock of the interpreter, so that chains in threads run beside
    each other.

    Args:
        chosen: (n,) the plan to begin with.

    Attributes:
        best: (n,) cheapest plan of the chain that was cheaper than the best one known, if any.
        change: cost of the current plan, above that of the first.
    """

    def __init__(
        self,
        model: Arrays,
        empty: Array,
        chosen: Array,
        rng: np.random.Generator,
        largest: int,
        widest: int,
    ) -> None:
        self.model, self.rng, self.largest = model, rng, largest
        self.chosen, self.best, self.change = chosen.copy(), chosen.copy(), 0.0
        self.tree = empty.copy()
        for node in range(len(chosen)):
            place_node(model, self.tree, node, chosen[node], 1)
        self.marks = np.zeros(len(chosen), np.int64)
        self.local, self.blocked = np.empty_like(model.costs), np.empty_like(model.costs)
        surroundings(model, self.chosen, self.local, self.blocked)
        self.space = np.zeros((2 * largest + 1) * widest)

    def move(
        self, priced: Array, warm: float, done: int, moves: int, total: int, lead: float
    ) -> None:
        """Make some moves.

        Args:
            priced: (s,) price of the memory of each strategy.
            warm: temperature of the chain's first move, in units of cost.
            done: number of moves made before.
            moves: number of moves to make.
            total: number of moves of the whole chain, over which it cools.
            lead: by how much the current plan costs more than the best one known.
        """
        self.change += improve(
            self.model, priced, self.tree, self.chosen, self.best, self.local, self.blocked,
            self.marks, self.space, self.rng, lead, done, moves, total, self.largest, warm,
        )  # fmt: skip
