"""Plans from messages, and their improvement by exact moves over random trees.

A move takes a random induced tree of nodes, frees them, and finds their best strategies together by
dynamic programming, with memory at a price; the limit itself is checked in the segment tree.
"""

from __future__ import annotations

import math

import numpy as np

from parenvs.agents.iopddl.compiled import compiled
from parenvs.agents.iopddl.memory import fits, place_node
from parenvs.agents.iopddl.model import Arrays


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
        found = -1
        for _ in range(size):
            best = 0
            for s in range(1, size):
                if work[s] < work[best]:
                    best = s
            if work[best] == np.inf:
                break
            if fits(m, tree, node, best) and leaves_choice(m, allowed, node, best):
                found = best
                break
            work[best] = np.inf
        if found < 0:
            return node
        chosen[node] = found
        place_node(m, tree, node, found, 1)
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbour[p]
            if other > node:
                at, row = m.offset[other], m.table[p]
                width = m.offset[other + 1] - at
                for t in range(width):
                    if m.pair[row + found * width + t] == np.inf:
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
        row, some = m.table[p] + strategy * width, False
        for t in range(width):
            if allowed[at + t] and m.pair[row + t] < np.inf:
                some = True
                break
        if not some:
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
    marks: np.ndarray,
    space: np.ndarray,
    back: np.ndarray,
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
        marks: (n,) int64, all 0; a place in the tree, or a number of neighbours in it, below 0.
        space: float64 scratch, 2 * largest * (most strategies of a node).
        back: int64 scratch, of the same size.
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
    widest = len(space) // (2 * largest)
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
            found = False
            while waiting:
                at = int(rng.random() * waiting)
                through = frontier[at]
                waiting -= 1
                frontier[at] = frontier[waiting]
                node = m.neighbour[m.reverse[through]]
                if marks[node] == -1:
                    found = True
                    break
            if not found:
                break
        # Costs of each strategy with the neighbours outside of the tree.
        for i in range(size):
            node = nodes[i]
            begin, width = m.offset[node], m.offset[node + 1] - m.offset[node]
            for s in range(width):
                space[i * widest + s] = m.costs[begin + s]
            for p in range(m.start[node], m.start[node + 1]):
                other = m.neighbour[p]
                if marks[other] <= 0:
                    row = m.table[m.reverse[p]] + chosen[other] * width
                    for s in range(width):
                        space[i * widest + s] += m.pair[row + s]
            place_node(m, tree, node, chosen[node], -1)
        drawn = rng.random()
        factor = 2.0 * left * drawn if rng.random() < 0.7 else 3.0 * drawn
        done = False
        for _ in range(3):
            best_subtrees(m, priced, nodes, parents, marks, size, factor, widest, space, back)
            half = largest * widest
            root = m.offset[nodes[0] + 1] - m.offset[nodes[0]]
            top = 0
            for s in range(1, root):
                if space[half + s] < space[half + top]:
                    top = s
            fresh[0] = top
            for i in range(1, size):
                parent = marks[m.neighbour[parents[i]]] - 1
                fresh[i] = back[i * widest + fresh[parent]]
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
                    there = fresh[marks[other] - 1]
                    change += m.pair[m.table[p] + new * width + there]
                    change -= m.pair[m.table[p] + old * width + chosen[other]]
            if same:
                break
            worse = change + heed * left * price
            if worse > 0.0 and (
                temperature <= 0.0 or rng.random() >= math.exp(-worse / temperature)
            ):
                break
            for i in range(size):
                place_node(m, tree, nodes[i], fresh[i], 1)
            if tree[0, 1] <= 0:
                done = True
                break
            for i in range(size):
                place_node(m, tree, nodes[i], fresh[i], -1)
            factor = 2.0 * factor + 0.5
        for i in range(size):
            node = nodes[i]
            for p in range(m.start[node], m.start[node + 1]):
                marks[m.neighbour[p]] = 0
            if not done:
                place_node(m, tree, node, chosen[node], 1)
        for i in range(size):
            marks[nodes[i]] = 0
            if done:
                chosen[nodes[i]] = fresh[i]
        if done:
            current += change
            if current < lowest - 1e-6:
                lowest = current
                for node in range(count):
                    best[node] = chosen[node]
    return current


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
    back: np.ndarray,
) -> None:
    """Fill the second half of ``space`` and ``back``: best costs below each strategy of a tree."""
    half = len(space) // 2
    for i in range(size):
        begin, width = m.offset[nodes[i]], m.offset[nodes[i] + 1] - m.offset[nodes[i]]
        for s in range(width):
            space[half + i * widest + s] = space[i * widest + s] + factor * priced[begin + s]
    for i in range(size - 1, 0, -1):
        p = parents[i]
        node, other = nodes[i], m.neighbour[p]
        width, across = m.offset[node + 1] - m.offset[node], m.offset[other + 1] - m.offset[other]
        above = half + (marks[other] - 1) * widest
        row = m.table[m.reverse[p]]
        for t in range(across):
            low, at = np.inf, 0
            for s in range(width):
                value = space[half + i * widest + s] + m.pair[row + t * width + s]
                if value < low:
                    low, at = value, s
            space[above + t] += low
            back[i * widest + t] = at
