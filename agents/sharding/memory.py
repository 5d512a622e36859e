"""The memory in use at each time as a segment tree of maxima, for plans that change step by step.

``tree`` is (2, 2 P) int64, P a power of two from the number of times: in the first row the maximum
below each place, in the second what is added to all below it. Entries are what is used less the
slack, so that a plan keeps the limit if the maximum at place 1 is at most 0.
"""

from __future__ import annotations

import numpy as np

from parenvs.agents.sharding.model import Arrays
from parenvs.compiled import compiled

_LEAST = -(2**62)


def empty_tree(m: Arrays) -> np.ndarray:
    """Return the tree of a plan in which every node uses its least."""
    half = 1
    while half < max(len(m.slack), 1):
        half *= 2
    tree = np.zeros((2, 2 * half), dtype=np.int64)
    tree[0, half:] = _LEAST
    tree[0, half : half + len(m.slack)] = -m.slack
    for index in range(half - 1, 0, -1):
        tree[0, index] = max(tree[0, 2 * index], tree[0, 2 * index + 1])
    return tree


@compiled
def add(tree: np.ndarray, lo: int, hi: int, amount: int) -> None:
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
def most(tree: np.ndarray, lo: int, hi: int) -> int:
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
def place_node(m: Arrays, tree: np.ndarray, node: int, strategy: int, sign: int) -> None:
    """Add (1) or take away (-1) what a node's strategy uses."""
    for term in range(m.term_start[node], m.term_start[node + 1]):
        used = m.usage[m.term_at[term] + strategy]
        if used:
            add(tree, m.term_times[term, 0], m.term_times[term, 1], sign * used)


@compiled
def change_node(m: Arrays, tree: np.ndarray, node: int, old: int, new: int) -> None:
    """Change what a node uses from one strategy's to another's."""
    if old == new:
        return
    for term in range(m.term_start[node], m.term_start[node + 1]):
        more = m.usage[m.term_at[term] + new] - m.usage[m.term_at[term] + old]
        if more:
            add(tree, m.term_times[term, 0], m.term_times[term, 1], more)


@compiled
def fits(m: Arrays, tree: np.ndarray, node: int, strategy: int) -> bool:
    """Whether a strategy of a node that uses its least in the tree keeps the limit."""
    for term in range(m.term_start[node], m.term_start[node + 1]):
        used = m.usage[m.term_at[term] + strategy]
        if used and most(tree, m.term_times[term, 0], m.term_times[term, 1]) + used > 0:
            return False
    return True
