"""Sweeps: the shortest of many plans near a plan, in compiled loops.

Compiled searches take a problem as ``Tables``, and a plan as the first pivots and the first devices
of its stages, ends included, (S+1,) int64 each. Their costs are those of
``parenvs.tasks.pipeline.formulas``, whose functions they call.

Around each cut of a plan lie *places*, pairs of a pivot and a device. A sweep goes from the last
stage to the first, keeps labels (core, tail) of what lies behind each place, and finds the shortest
of all plans that cut at places; the plan itself is one of them.

1. With one more stage or transfer in front, of x seconds (B of them backward) and AR seconds of
   all-reduce, ``formulas.prepend_core`` and ``formulas.prepend_tail`` give the new label. Both grow
   with the old ones, so that only Pareto fronts of labels have to be kept.
2. The transfer in front is fast only if the stage before it and the first stage behind it lie in
   one server. So a place has two fronts: for a stage before that starts in the server of its
   device, and for one that does not.
3. A forward pass over the same stages tells how many seconds pass in front of a place at least, and
   how many of them hide an all-reduce. Labels with which the plan would be no shorter than the one
   at hand are dropped, and tails are raised to what is hidden in any case.
4. Of a front, a few labels stay, spread evenly. A sweep is exact where none was left out.

Places may be *tilted*: a cut that moves along the chain takes its devices with it, by the work that
it passes, so that stages keep their seconds.
"""

from __future__ import annotations

import numpy as np

from parenvs.compiled import Array, compiled
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import (
    Pipeline,
    Tables,
    bytes_of,
    compute_seconds,
    excess_bytes,
    first_from,
    in_front,
    link_seconds,
    reduce_seconds,
    through,
)
from parenvs.tasks.pipeline.spaces import Cuts, distinct_pivots

GAIN = 1e-9
"""Relative: plans that are shorter by less are not looked for."""
# Labels of a place before they are thinned out; those beyond are left out.
_FRONT = 192

prepend_core = compiled(formulas.prepend_core)
prepend_tail = compiled(formulas.prepend_tail)


def pivots_of(pipeline: Pipeline) -> Array:
    """The pivots that sweeps cut at, ascending, 0 and n included: all with variables around."""
    variables, pivots = pipeline.variable_sum, distinct_pivots(pipeline)
    inside = (variables[pivots] > 0) & (variables[pivots] < variables[-1])
    return np.concatenate([[0], pivots[inside], [len(pipeline.profile)]])


def placed(pipeline: Pipeline, tables: Tables, pivots: Array, plan: Cuts) -> Cuts:
    """Return the legal plan nearest to cuts and device cuts, (S-1,) each, as sweeps take it."""
    cuts, devices = pipeline.boundaries(*plan)
    cuts = np.searchsorted(pivots, cuts)
    spread(tables, cuts, devices)
    if tables.whole:
        to_groups(tables, cuts, devices)
    return cuts, devices


@compiled
def fitting_seconds(tables, cuts, devices):
    """Core plus tail of a plan; infinite where it is not legal."""
    if excess_bytes(tables, cuts, devices) > 0:
        return np.inf
    _, _, core, tail = in_front(tables, cuts, devices, len(cuts) - 1)
    return core + tail


@compiled
def insert_label(cores, tails, parents, row, count, core, tail, parent):
    """Put a label on a front, a row that is sorted by core, unless it is dominated.

    Returns the front's size. A label that a full front has no room for is left out.
    """
    low, high = 0, count
    # The labels before ``low`` have at most this core.
    while low < high:
        middle = (low + high) // 2
        if cores[row, middle] <= core:
            low = middle + 1
        else:
            high = middle
    if low and tails[row, low - 1] <= tail:
        return count
    begin = low - 1 if low and cores[row, low - 1] == core else low  # an equal core, a greater tail
    stop = low
    while stop < count and tails[row, stop] >= tail:
        stop += 1
    shift = begin + 1 - stop
    if shift > 0 and count == cores.shape[1]:
        return count
    for i in range(count - stop):
        at = count - 1 - i if shift > 0 else stop + i
        cores[row, at + shift], tails[row, at + shift] = cores[row, at], tails[row, at]
        parents[row, at + shift] = parents[row, at]
    cores[row, begin], tails[row, begin], parents[row, begin] = core, tail, parent
    return count + shift


@compiled
def _places(tables, cuts, devices, mode, free):
    """Lay places around the cuts of a plan; see ``sweep``.

    Returns their pivots and devices, those of both ends of the chain included, and, (S+2,), where
    those of each of the S+1 cuts begin.
    """
    reach, step, device_reach, device_step, is_tilted = mode
    stages = len(cuts) - 1
    size = (2 * reach + 1) * (2 * device_reach + 3) * stages + 2
    pivots, places = np.empty(size, np.int64), np.empty(size, np.int64)
    begin = np.zeros(stages + 2, np.int64)
    pivots[0] = places[0] = 0
    count = 1
    rate = devices[-1] / tables.work[-1]
    for s in range(1, stages):
        begin[s] = count
        cut = cuts[s]
        if not free[s]:
            pivots[count], places[count] = cut, devices[s]
            count += 1
            continue
        for i in range(-reach, reach + 1):
            p = cut
            if i:
                # Of the other pivots of a bin, the one before which fewest bytes cross.
                low = cut + i * step - step // 2
                p, high = -1, min(low + step, cuts[-1])
                for other in range(max(low, 1), high):
                    if other != cut and (p < 0 or tables.crossing[other] < tables.crossing[p]):
                        p = other
                if p < 0:
                    continue
            center = devices[s]
            if is_tilted:
                center += int(np.rint((tables.work[p] - tables.work[cut]) * rate))
            start = count
            for j in range(2 * device_reach + 3):
                d = center + (j - device_reach) * device_step
                if j > 2 * device_reach:
                    # Both boundaries of the server, too: stages that cross neither are fast.
                    side = j - 2 * device_reach - 1
                    d = (center // tables.server + side) * tables.server
                    same = start
                    while same < count and places[same] != d:
                        same += 1
                    if same < count:
                        continue
                if s <= d <= devices[-1] - stages + s:
                    pivots[count], places[count] = p, d
                    count += 1
    begin[stages], begin[stages + 1] = count, count + 1
    pivots[count], places[count] = cuts[-1], devices[-1]
    return pivots[: count + 1], places[: count + 1], begin


@compiled
def sweep(tables, cuts, devices, mode, free, upper, most):
    """Change a plan, in place, into the shortest that cuts at places around its own cuts.

    Args:
        tables: the problem.
        cuts: first pivots of the stages.
        devices: their first devices.
        mode: pivots of places to either side of a cut and how far they are apart, devices of each
            pivot likewise, and 1 if places are tilted, else 0.
        free: (S+1,) bool, the cuts that move; others stay where they are.
        upper: seconds of core plus tail; only a shorter plan is taken.
        most: labels of a place and row that stay.

    Returns:
        Core plus tail of the plan, or ``upper`` if it stays as it is.
    """
    m, stages = tables.micro_batches, len(cuts) - 1
    budget = upper * (1 - GAIN)
    pivots, places, begin = _places(tables, cuts, devices, mode, free)
    count = len(pivots)
    work, variables = tables.work[pivots], tables.variables[pivots]
    server, last_server = places // tables.server, (places - 1) // tables.server
    slow, fast = np.empty(count), np.empty(count)
    # Forward: the stages that keep the budget, and what passes in front of places at least.
    passed, forward, hidden = np.full(count, np.inf), np.zeros(count), np.zeros(count)
    passed[0], forward[1:], hidden[1:] = 0.0, np.inf, np.inf
    size = 0
    for s in range(stages):
        size += (begin[s + 1] - begin[s]) * (begin[s + 2] - begin[s + 1])
        for i in range(begin[s], begin[s + 1]):
            slow[i] = 2 * link_seconds(tables, pivots[i], 0)
            fast[i] = 2 * link_seconds(tables, pivots[i], 1)
    stage_end, seconds = np.empty(size, np.int32), np.empty((size, 2))
    # Where the stages that start at a place begin.
    starts = np.zeros(count + 1, np.int64)
    size = 0
    for s in range(stages):
        for i in range(begin[s], begin[s + 1]):
            starts[i] = size
            link = min(slow[i], fast[i])
            before = passed[i] + link
            if not through(before, link, m) <= budget:
                continue
            for j in range(begin[s + 1], begin[s + 2]):
                group = places[j] - places[i]
                if group < 1 or variables[j] <= variables[i]:
                    continue
                x = compute_seconds(work[j] - work[i], group)
                if through(before + x, x, m) > budget or not tables.is_group[group]:
                    continue
                backward = tables.backward[pivots[j]] - tables.backward[pivots[i]]
                backward = compute_seconds(backward, group)
                stage_end[size], seconds[size, 0], seconds[size, 1] = j, x, backward
                size += 1
                passed[j] = min(passed[j], before + x)
                forward[j] = min(forward[j], forward[i] + link / 2 + x - backward)
                hidden[j] = min(hidden[j], hidden[i] + link / 2 + backward)
    starts[count - 1] = starts[count] = size
    # Backward: labels, the transfer in front of a place included; row 1 is for a stage in front
    # that starts in the server of the place's device.
    cores, tails = np.zeros((count, 2, most)), np.zeros((count, 2, most))
    parents, sizes = np.zeros((count, 2, most), np.int64), np.zeros((count, 2), np.int64)
    sizes[-1] = 1
    front_cores, front_tails = np.empty((3, _FRONT)), np.empty((3, _FRONT))
    front_parents, front_sizes = np.empty((3, _FRONT), np.int64), np.zeros(2, np.int64)
    left, merged = 1, len(front_sizes)  # the last row is of both
    for i in range(begin[stages] - 1, -1, -1):
        while i < begin[stages - left]:
            left += 1
        front_sizes[:] = 0
        p, link = pivots[i], min(slow[i], fast[i])
        before, before_forward = passed[i] + link, forward[i] + link / 2
        for at in range(starts[i], starts[i + 1]):
            j, x, backward = stage_end[at], seconds[at, 0], seconds[at, 1]
            row = 1 if server[i] == server[j] else 0
            if sizes[j, row] == 0 or before + prepend_core(cores[j, row, 0], x, m, max) > budget:
                continue
            q, group = pivots[j], places[j] - places[i]
            if bytes_of(tables, p, q, group, left) > tables.limit:
                continue
            near = 1 if server[i] == last_server[j] else 0
            reduce = reduce_seconds(tables, p, q, near, group)
            reduce = max(reduce, hidden[i] + link / 2)
            for label in range(sizes[j, row]):
                core = prepend_core(cores[j, row, label], x, m, max)
                if before + core > budget:
                    break  # they are sorted by core
                tail = prepend_tail(tails[j, row, label], backward, reduce, max)
                if before_forward + core + tail <= budget:
                    front_sizes[near] = insert_label(
                        front_cores, front_tails, front_parents, near, front_sizes[near],
                        core, tail, (2 * j + row) * most + label,
                    )  # fmt: skip
        for row in range(2):
            kept = sizes[i, row]  # 0 so far
            for near in range(2):
                link = fast[i] if row and near else slow[i]
                for label in range(front_sizes[near]):
                    core = prepend_core(front_cores[near, label], link, m, max)
                    tail = prepend_tail(front_tails[near, label], link / 2, hidden[i], max)
                    if passed[i] + core <= budget and forward[i] + core + tail <= budget:
                        kept = insert_label(
                            front_cores, front_tails, front_parents, merged, kept, core, tail,
                            front_parents[near, label],
                        )  # fmt: skip
            # Evenly over the front, its ends included: the least core and the least tail stay.
            sizes[i, row] = min(kept, most)
            for rank in range(sizes[i, row]):
                label = rank * (kept - 1) // max(sizes[i, row] - 1, 1)
                cores[i, row, rank] = front_cores[2, label]
                tails[i, row, rank] = front_tails[2, label]
                parents[i, row, rank] = front_parents[2, label]
    best, parent = budget, -1
    for label in range(sizes[0, 0]):
        both = cores[0, 0, label] + max(tails[0, 0, label], 0.0)
        if both < best:
            best, parent = both, parents[0, 0, label]
    if parent < 0:
        return upper
    for s in range(1, stages):
        i, row, label = parent // (2 * most), parent // most % 2, parent % most
        cuts[s], devices[s], parent = pivots[i], places[i], parents[i, row, label]
    return best


@compiled
def spread(tables, cuts, devices):
    """Move cuts and devices as little as needed, in place, so that stages have a variable and one.

    Where devices must not share a sample, ``to_groups`` follows.
    """
    stages, total = len(cuts) - 1, tables.variables[-1]
    for s in range(1, stages):
        before = tables.variables[cuts[s - 1]]
        wanted = max(tables.variables[min(max(cuts[s], 0), cuts[-1])], before + 1)
        wanted = min(wanted, total - (stages - s))
        low = first_from(tables.variables, wanted)
        high = first_from(tables.variables, wanted + 1) - 1
        cuts[s] = min(max(cuts[s], low), high)
        devices[s] = min(max(devices[s], devices[s - 1] + 1), devices[-1] - (stages - s))


@compiled
def to_groups(tables, cuts, devices):
    """Move devices as little as needed, in place, so that stages have allowed numbers of them.

    Where no stages of such groups fit the memory, they are moved as if it were no limit.
    """
    stages, total = len(cuts) - 1, devices[-1]
    chosen = np.zeros((stages, total + 1), np.int64)
    for limit in (tables.limit, np.inf):
        # A dynamic program over the stages: sum of distances, by the devices dealt out.
        distance = np.full(total + 1, np.inf)
        distance[0] = 0.0
        for s in range(stages):
            after = np.full(total + 1, np.inf)
            for group in range(1, total + 1):
                if not tables.is_group[group]:
                    continue
                if bytes_of(tables, cuts[s], cuts[s + 1], group, stages - s) > limit:
                    continue
                for d in range(group, total + 1):
                    moved = distance[d - group] + abs(d - devices[s + 1])
                    if moved < after[d]:
                        after[d], chosen[s, d] = moved, group
            distance = after
        if distance[total] < np.inf:
            for s in range(stages - 1, 0, -1):
                devices[s] = devices[s + 1] - chosen[s, devices[s + 1]]
            return
