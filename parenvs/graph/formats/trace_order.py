"""Recovers the order in which a program was traced from HLO text.

Text lists each computation in depth-first post-order, so an instruction stands just before its
first user, wherever the program computed it. The names keep a part of the trace: a name is a stem
and a counter (``dot.5``, ``dot.6``) that grows with the trace, stem by stem. The order between two
stems is not written down; it is guessed as a programmer would write the program, by two rules:

* an instruction stands right after the one operand that nothing else uses (they form a run), unless
  the counters forbid it;
* read from the end, the run that produces what was needed last comes next.

If neither of two parts uses the other and their stems differ, the text does not say which came
first, and the guess may differ from the trace (benchmarks/text_order.py counts how often).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Lists = list[list[int]]
"""A ragged list: of each instruction or run, the numbers of others."""


def trace_order(names: Sequence[str], operands: Lists) -> list[int]:
    """Sort the instructions of a computation as the trace had them, as far as that is known.

    Args:
        names: name of each instruction, in the order of the text.
        operands: positions of each instruction's operands, all of them earlier ones.

    Returns:
        Positions in the text, in a topological order. The order is the text's own where the
        counters contradict the operands.
    """
    before = _constraints(names, operands)
    if len(in_order(before, list(range(len(names))))) < len(names):
        return list(range(len(names)))  # the counters are no trace order
    users = [0] * len(names)
    for row in operands:
        for operand in row:
            users[operand] += 1
    previous = [max((x for x in row if users[x] == 1), default=-1) for row in operands]
    run = _runs(before, previous)
    members: Lists = [[] for _ in range(max(run, default=-1) + 1)]
    for position, number in enumerate(run):
        members[number].append(position)
    return [i for r in _merge(members, _between(before, run), _between(operands, run)) for i in r]


def _constraints(names: Sequence[str], operands: Lists) -> Lists:
    """Return what must come before each instruction: operands, and the counter before its own."""
    before = [list(row) for row in operands]
    stems: dict[str, list[tuple[int, int]]] = {}
    for position, name in enumerate(names):
        stem, _, counter = name.rpartition(".")
        if counter.isdecimal():
            stems.setdefault(stem, []).append((int(counter), position))
    for group in stems.values():
        group.sort()
        for (_, earlier), (_, later) in pairwise(group):
            before[later].append(earlier)
    return [sorted(set(row)) for row in before]


def in_order(before: Lists, rank: list[int]) -> list[int]:
    """Return a topological order, lowest rank first; it is too short if there is a cycle."""
    waiting = [len(row) for row in before]
    after: Lists = [[] for _ in before]
    for position, row in enumerate(before):
        for earlier in row:
            after[earlier].append(position)
    ready = [(rank[i], i) for i, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready)[1])
        for later in after[order[-1]]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, (rank[later], later))
    return order


def _runs(before: Lists, previous: list[int]) -> list[int]:
    """Return the number of the run that each instruction is in.

    Runs that wait for each other are cut, each at the instruction that waits for most others,
    until no runs wait for each other.

    Args:
        before: what must come before each instruction.
        previous: the operand that each instruction should follow in its run, or -1.
    """
    previous = list(previous)
    tail = np.repeat(np.arange(len(before)), [len(row) for row in before])
    head = np.array([i for row in before for i in row], dtype=np.int64)
    while True:
        run: list[int] = []
        count = 0
        for operand in previous:
            run.append(run[operand] if operand >= 0 else count)
            count += operand < 0
        number = np.array(run, dtype=np.int64)
        crosses = number[head] != number[tail]
        edges = (np.ones(crosses.sum(), np.int8), (number[head[crosses]], number[tail[crosses]]))
        groups, label = connected_components(
            coo_array(edges, shape=(count, count)), directed=True, connection="strong"
        )
        if groups == count:
            return run
        in_cycle = np.bincount(label)[label] > 1
        cut: dict[int, tuple[int, int]] = {}
        for position, operand in enumerate(previous):
            if operand >= 0 and in_cycle[run[position]]:
                outside = sum(run[i] != run[position] for i in before[position])
                cut[run[position]] = max(cut.get(run[position], (0, 0)), (outside, position))
        for _, position in cut.values():
            previous[position] = -1


def _between(rows: Lists, run: list[int]) -> Lists:
    """Return the relation ``rows`` of instructions as a relation of runs, without loops."""
    out: list[set[int]] = [set() for _ in range(max(run, default=-1) + 1)]
    for position, row in enumerate(rows):
        out[run[position]].update(run[i] for i in row)
    return [sorted(numbers - {number}) for number, numbers in enumerate(out)]


def _merge(members: Lists, before: Lists, operands: Lists) -> Lists:
    """Return the runs in an order that ``before`` allows, built from the end.

    Of the runs that may come next, the one whose result was needed last is taken; the order of the
    text breaks ties.

    Args:
        members: instructions of each run.
        before: runs that must come before each run.
        operands: runs whose results each run uses.
    """
    waiting = [0] * len(members)
    users: Lists = [[] for _ in members]
    for number, row in enumerate(before):
        for earlier in row:
            waiting[earlier] += 1
        for operand in operands[number]:
            users[operand].append(number)
    place: dict[int, int] = {}

    def key(number: int) -> tuple[int, int, int]:
        needed = max((place[user] for user in users[number]), default=-1)
        return -needed, -max(members[number]), number

    ready = [key(number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    while ready:
        number = heapq.heappop(ready)[2]
        place[number] = len(place)
        for earlier in before[number]:
            waiting[earlier] -= 1
            if not waiting[earlier]:
                heapq.heappush(ready, key(earlier))
    return [members[number] for number in reversed(list(place))]
