"""Plans from messages, and their improvement by exact moves over random trees.

A move takes a random induced tree of nodes, frees them, and finds their best strategies together by
dynamic programming, with memory at a price; the limit itself is checked in the segment tree.
"""

from __future__ import annotations

import math

import numpy as np

from parenvs.agents.sharding.memory import change_node, fits, place_node
from parenvs.agents.sharding.model import Arrays
from parenvs.compiled import compiled


@compiled
def complete(
    m: Arrays,
    costs: np.ndarray,
    messages: np.ndarray,
    tree: np.ndarray,
    allowed: np.ndarray,
    chosen: np.ndarray,
    work: np.ndarray,
) -> int:
    """Choose a strategy for each node in turn, so that the limit is kept; return the first failure.

    Args:
        m: the model.
        costs: (s,) costs that lead the choice.
        messages: from neighbours that have not chosen.
        tree: memory of the empty plan; changed to that of the plan.
        allowed: (s,) int8, all 1; changed.
        chosen: (n,) overwritten.
        work: as long as the most strategies of a node.

    Returns:
        -1 if all nodes have a strategy, else the node that found none.
    """
    for node in range(len(m.offset) - 1):
        begin, size = m.offset[node], m.offset[node + 1] - m.offset[node]
        for s in range(size):
            work[s] = costs[begin + s] if allowed[begin + s] else np.inf
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbour[p]
            if other < node:
                row = m.table[m.reverse[p]] + chosen[other] * size
                for s in range(size):
                    work[s] += m.pair[row + s]
            else:
                for s in range(size):
                    work[s] += messages[m.message[p] + s]
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
                    strategy = best
                    break
                place_node(m, tree, node, best, -1)  # its terms fit alone, but not together
            work[best] = np.inf
        if strategy < 0:
            return node
        chosen[node] = strategy
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbour[p]
            if other > node:
                at, row = m.offset[other], m.table[p]
                width = m.offset[other + 1] - at
                for t in range(width):
                    if m.pair[row + strategy * width + t] == np.inf:
                        allowed[at + t] = 0
    return -1


@compiled
def leaves_choice(m: Arrays, allowed: np.ndarray, node: int, strategy: int) -> bool:
    """Whether every later neighbour keeps a strategy that goes with this one."""
    for p in range(m.start[node], m.start[node + 1]):
        other = m.neighbour[p]
        if other < node:
            continue
        at = m.offset[other]
        width = m.offset[other + 1] - at
        row, is_free = m.table[p] + strategy * width, False
        for t in range(width):
            if allowed[at + t] and m.pair[row + t] < np.inf:
                is_free = True
                break
        if not is_free:
            return False
    return True


@compiled
def plan_cost(m: Arrays, chosen: np.ndarray) -> float:
    """Return the cost of a choice."""
    total = 0.0
    for node in range(len(m.offset) - 1):
        total += m.costs[m.offset[node] + chosen[node]]
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbour[p]
            if other > node:
                width = m.offset[other + 1] - m.offset[other]
                total += m.pair[m.table[p] + chosen[node] * width + chosen[other]]
    return total


@compiled
def improve(
    m: Arrays,
    priced: np.ndarray,
    tree: np.ndarray,
    chosen: np.ndarray,
    best: np.ndarray,
    local: np.ndarray,
    blocked: np.ndarray,
    marks: np.ndarray,
    space: np.ndarray,
    rng: np.random.Generator,
    lead: float,
    first: int,
    moves: int,
    total: int,
    largest: int,
    warm: float,
    cold: float,
    heed: float,
) -> float:
    """Try moves over random trees; return the change of the plan's cost, which may be positive.

    Args:
        m: the model.
        priced: (s,) costs of memory of each strategy, at the prices of the bound.
        tree: memory of ``chosen``; changed with it.
        chosen: (n,) the plan, legal; changed.
        best: (n,) the best plan; changed where a better one is found.
        local: (s,) costs of each strategy with the neighbours in ``chosen``; changed with it.
        blocked: (s,) how many neighbours forbid each strategy, which ``local`` leaves out; changed.
        marks: (n,) int64, all 0; a place in the tree, or a number of neighbours in it, below 0.
        space: float64 scratch, (2 * largest + 1) * (most strategies of a node).
        rng: draws the trees.
        lead: by how much ``best`` is cheaper than ``chosen`` at first.
        first: number of moves of this schedule that were made before.
        moves: number of moves to make.
        total: number of moves of the whole schedule.
        largest: most nodes of a tree.
        warm: temperature at the first move, in units of cost.
        cold: temperature at the last move.
        heed: share of the price of memory that counts at the first move; 0 at the last.
    """
    count = len(m.offset) - 1
    widest = len(space) // (2 * largest + 1)
    half = largest * widest
    nodes = np.empty(largest, dtype=np.int64)
    parents = np.empty(largest, dtype=np.int64)  # directed edge to the parent
    fresh = np.empty(largest, dtype=np.int64)
    frontier = np.empty(4096, dtype=np.int64)
    current, lowest = 0.0, -lead
    for move in range(moves):
        left = 1.0 - (first + move) / total
        temperature = warm * (cold / warm) ** (1.0 - left) if warm > 0.0 else 0.0
        wanted = int(math.exp(rng.random() * math.log(largest + 1.0)))
        # Grow an induced tree: a node joins if exactly one neighbour is in it.
        size, waiting = 0, 0
        node, through = int(rng.random() * count), -1
        while True:
            nodes[size], parents[size] = node, through
            marks[node] = size + 1
            size += 1
            for p in range(m.start[node], m.start[node + 1]):
                other = m.neighbour[p]
                if marks[other] <= 0:
                    marks[other] -= 1
                    if waiting < len(frontier):
                        frontier[waiting] = m.reverse[p]
                        waiting += 1
                    else:
                        at = int(rng.random() * waiting)
                        frontier[at] = m.reverse[p]
            if size == wanted:
                break
            improved = False
            while waiting:
                at = int(rng.random() * waiting)
                through = frontier[at]
                waiting -= 1
                frontier[at] = frontier[waiting]
                node = m.neighbour[m.reverse[through]]
                if marks[node] == -1:
                    improved = True
                    break
            if not improved:
                break
        # Costs of each strategy with the neighbours outside of the tree; the forbidden ones are
        # counted in the second half meanwhile.
        for i in range(size):
            begin, width = m.offset[nodes[i]], m.offset[nodes[i] + 1] - m.offset[nodes[i]]
            for s in range(width):
                space[i * widest + s] = local[begin + s]
                space[half + i * widest + s] = blocked[begin + s]
        for i in range(1, size):
            p = parents[i]
            node, other = nodes[i], m.neighbour[p]
            above = (marks[other] - 1) * widest
            width, across = (
                m.offset[node + 1] - m.offset[node],
                m.offset[other + 1] - m.offset[other],
            )
            withdraw(m.pair, m.table[p] + chosen[node] * across, across, space, above, half)
            withdraw(
                m.pair,
                m.table[m.reverse[p]] + chosen[other] * width,
                width,
                space,
                i * widest,
                half,
            )
        for i in range(size):
            for s in range(i * widest, i * widest + m.offset[nodes[i] + 1] - m.offset[nodes[i]]):
                if space[half + s] > 0.0:
                    space[s] = np.inf
        drawn = rng.random()
        theta = heed * left
        factor = 2.0 * theta * drawn if rng.random() < 0.7 else 3.0 * drawn
        done = False
        for _ in range(3):
            best_subtrees(m, priced, nodes, parents, marks, size, factor, widest, space, fresh)
            change = price = 0.0
            same = True
            for i in range(size):
                node, old, new = nodes[i], chosen[nodes[i]], fresh[i]
                same = same and old == new
                change += space[i * widest + new] - space[i * widest + old]
                price += priced[m.offset[node] + new] - priced[m.offset[node] + old]
                if i:
                    p = parents[i]
                    other = m.neighbour[p]
                    width = m.offset[other + 1] - m.offset[other]
                    target = fresh[marks[other] - 1]
                    change += m.pair[m.table[p] + new * width + target]
                    change -= m.pair[m.table[p] + old * width + chosen[other]]
            if same:
                break
            worse = change + theta * price
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
            factor = 2.0 * factor + 0.5
        for i in range(size):
            node = nodes[i]
            for p in range(m.start[node], m.start[node + 1]):
                marks[m.neighbour[p]] = 0
            marks[node] = 0
            if done and fresh[i] != chosen[node]:
                tell_neighbours(m, node, chosen[node], fresh[i], local, blocked)
                chosen[node] = fresh[i]
        if done:
            current += change
            if current < lowest - 1e-6:
                lowest = current
                for node in range(count):
                    best[node] = chosen[node]
    return current


@compiled
def surroundings(m: Arrays, chosen: np.ndarray, local: np.ndarray, blocked: np.ndarray) -> None:
    """Write what each strategy costs with the neighbours in a choice, as ``improve`` takes it.

    Args:
        m: the model.
        chosen: (n,) the choice.
        local: (s,) overwritten by costs; forbidden pairs are left out.
        blocked: (s,) overwritten by numbers of forbidden pairs.
    """
    for s in range(len(m.costs)):
        local[s] = m.costs[s]
        blocked[s] = 0.0
    for node in range(len(m.offset) - 1):
        begin, width = m.offset[node], m.offset[node + 1] - m.offset[node]
        for p in range(m.start[node], m.start[node + 1]):
            row = m.table[m.reverse[p]] + chosen[m.neighbour[p]] * width
            for s in range(width):
                cost = m.pair[row + s]
                local[begin + s] += cost if cost < np.inf else 0.0
                blocked[begin + s] += 0.0 if cost < np.inf else 1.0


@compiled
def tell_neighbours(
    m: Arrays, node: int, old: int, new: int, local: np.ndarray, blocked: np.ndarray
) -> None:
    """Change what the neighbours' strategies cost with a node that changes its own."""
    for p in range(m.start[node], m.start[node + 1]):
        other = m.neighbour[p]
        begin, width = m.offset[other], m.offset[other + 1] - m.offset[other]
        before, after = m.table[p] + old * width, m.table[p] + new * width
        for t in range(width):
            lost, won = m.pair[before + t], m.pair[after + t]
            local[begin + t] += (won if won < np.inf else 0.0) - (lost if lost < np.inf else 0.0)
            blocked[begin + t] += (0.0 if won < np.inf else 1.0) - (0.0 if lost < np.inf else 1.0)


@compiled
def withdraw(pair: np.ndarray, row: int, width: int, space: np.ndarray, at: int, half: int) -> None:
    """Take a row of pairs out of sums of costs, and out of the numbers of forbidden ones."""
    for t in range(width):
        cost = pair[row + t]
        space[at + t] -= cost if cost < np.inf else 0.0
        space[half + at + t] -= 0.0 if cost < np.inf else 1.0


@compiled
def best_subtrees(
    m: Arrays,
    priced: np.ndarray,
    nodes: np.ndarray,
    parents: np.ndarray,
    marks: np.ndarray,
    size: int,
    factor: float,
    widest: int,
    space: np.ndarray,
    fresh: np.ndarray,
) -> None:
    """Write the best strategies of a tree's nodes, with memory at a price, into ``fresh``.

    The first half of ``space`` holds the costs of strategies outside of the tree, the second
    becomes the best costs of what lies below each strategy. What led to them is found again on the
    way back, for the strategies that are taken alone.
    """
    half = (len(space) - widest) // 2
    low = 2 * half
    for i in range(size):
        begin, width = m.offset[nodes[i]], m.offset[nodes[i] + 1] - m.offset[nodes[i]]
        for s in range(width):
            space[half + i * widest + s] = space[i * widest + s] + factor * priced[begin + s]
    for i in range(size - 1, 0, -1):
        p = parents[i]
        node, other = nodes[i], m.neighbour[p]
        width, across = m.offset[node + 1] - m.offset[node], m.offset[other + 1] - m.offset[other]
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
        width = m.offset[nodes[i] + 1] - m.offset[nodes[i]]
        below = half + i * widest
        if i:
            other = m.neighbour[parents[i]]
            row = m.table[m.reverse[parents[i]]] + fresh[marks[other] - 1] * width
            for s in range(width):
                space[below + s] += m.pair[row + s]
        top = 0
        for s in range(1, width):
            if space[below + s] < space[below + top]:
                top = s
        fresh[i] = top
