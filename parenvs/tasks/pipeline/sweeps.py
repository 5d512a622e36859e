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

from typing import NamedTuple

import numpy as np

from parenvs import cluster as network
from parenvs.compiled import bare, compiled
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import RangeTable
from parenvs.tasks.pipeline.spaces import Cuts, distinct_pivots

GAIN = 1e-9
"""Relative: plans that are shorter by less are not looked for."""
_FRONT = 192  # labels of a place before they are thinned out; those beyond are left out

prepend_core = compiled(formulas.prepend_core)
prepend_tail = compiled(formulas.prepend_tail)
through = compiled(formulas.through)
compute_seconds = compiled(formulas.compute_seconds)
transfer_seconds = compiled(formulas.transfer_seconds)
_in_flight = compiled(formulas.in_flight)
_weight_bytes = compiled(formulas.weight_bytes)
_recomputed_bytes = compiled(formulas.recomputed_bytes)
_kept_bytes = compiled(formulas.kept_bytes)
_stage_bytes = compiled(formulas.stage_bytes)
_exchange_seconds = compiled(formulas.exchange_seconds)
_ring_bytes = compiled(network.ring_bytes)
_central_bytes = compiled(network.central_bytes)


class Tables(NamedTuple):
    """What costs of a stage [p, q) on the devices [e, d) are looked up in.

    Attributes:
        work, forward, backward, parameters, variables, frozen, resident: prefix sums, (n+1,).
        crossing: (n+1,) bytes that cross a cut before each pivot.
        largest: (levels, n) largest cut of 1, 2, 4, ... pivots from each on.
        rank: (n+1,) pivots that read a tied weight before each pivot.
        again, frozen_again, shared: bytes of tied weights, by the ranks of both ends.
        is_group: (D+1,) bool, whether a stage may have so many devices.
        bandwidth: (2,) bytes/s across servers and in one.
        exchange: bytes/s at which stages sum gradients of tied weights.
        stages, micro_batches: S and M.
        server: devices of a server.
        copies: copies of the parameters on each device.
        limit: bytes that a device may hold.
        whole: whether devices share no sample.
        keeps: whether activations are kept; else they are recomputed.
        central: whether a central server sums gradients; else rings do.
    """

    work: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    parameters: np.ndarray
    variables: np.ndarray
    frozen: np.ndarray
    resident: np.ndarray
    crossing: np.ndarray
    largest: np.ndarray
    rank: np.ndarray
    again: np.ndarray
    frozen_again: np.ndarray
    shared: np.ndarray
    is_group: np.ndarray
    bandwidth: np.ndarray
    exchange: float
    stages: int
    micro_batches: int
    server: int
    copies: float
    limit: float
    whole: bool
    keeps: bool
    central: bool


_NONE, _INDICES, _TABLE = np.zeros(2), np.zeros(2, dtype=np.int64), np.zeros((1, 1))
EMPTY = Tables(
    *(_NONE,) * 4, _INDICES, *(_NONE,) * 3, _TABLE, _INDICES, *(_TABLE,) * 3,
    np.zeros(2, dtype=np.bool_), _NONE, 1.0, 2, 1, 1, 1.0, 1.0, False, False, False,
)  # fmt: skip
"""Tables of no problem, for whose types loops are compiled."""


def tables_of(pipeline: Pipeline, pivots: np.ndarray | None = None) -> Tables:
    """Return the tables of a problem.

    Args:
        pipeline: the problem.
        pivots: where plans may cut, ascending, 0 and n included; they count as 0, 1, 2, ... in what
            takes the tables (default: all).
    """
    cluster, tied = pipeline.cluster, pipeline.tied_weights
    largest = pipeline.cuts_after.rows
    if pivots is None:
        pivots = np.arange(len(pipeline.profile) + 1)
    else:
        largest = RangeTable(pipeline.largest_cut(pivots[:-1], pivots[1:]), greatest=True).rows
    none = np.zeros((1, 1))
    return Tables(
        pipeline.seconds_sum[pivots], pipeline.forward_sum[pivots], pipeline.backward_sum[pivots],
        pipeline.parameter_sum[pivots], pipeline.variable_sum[pivots], pipeline.frozen_sum[pivots],
        pipeline.resident_sum[pivots], pipeline.cut_before[pivots], largest,
        np.zeros_like(pivots) if tied is None else tied.rank[pivots],
        *((none, none, none) if tied is None else (tied.again, tied.frozen, tied.shared)),
        pipeline.is_group, np.array([cluster.inter_bw, cluster.intra_bw], dtype=np.float64),
        # The other stage that holds a tied weight may be in any server.
        float(cluster.inter_bw if cluster.servers > 1 else cluster.intra_bw),
        int(pipeline.stages), int(pipeline.micro_batches), cluster.devices_per_server,
        float(pipeline.copies), float(pipeline.memory_limit), not pipeline.fractions,
        pipeline.recompute == "none", pipeline.sync == "parameter-server",
    )  # fmt: skip


def pivots_of(pipeline: Pipeline) -> np.ndarray:
    """The pivots that sweeps cut at, ascending, 0 and n included: all with variables around."""
    variables, pivots = pipeline.variable_sum, distinct_pivots(pipeline)
    inside = (variables[pivots] > 0) & (variables[pivots] < variables[-1])
    return np.concatenate([[0], pivots[inside], [len(pipeline.profile)]])


def placed(pipeline: Pipeline, tables: Tables, pivots: np.ndarray, plan: Cuts) -> Cuts:
    """Return the legal plan nearest to cuts and device cuts, (S-1,) each, as sweeps take it."""
    cuts = np.searchsorted(pivots, np.concatenate([[0], plan[0], pivots[-1:]]))
    devices = np.concatenate([[0], plan[1], [pipeline.cluster.devices]])
    spread(tables, cuts, devices)
    if tables.whole:
        to_groups(tables, cuts, devices)
    return cuts, devices


@bare
def is_near(tables, e, d):
    """1 if the devices [e, d) lie in one server, else 0."""
    return 1 if e // tables.server == (d - 1) // tables.server else 0


@bare
def link_seconds(tables, p, near):
    """Seconds of a transfer before pivot p, one direction, ``near`` in one server."""
    return transfer_seconds(tables.crossing[p], tables.bandwidth[near])


@bare
def bytes_of(tables, p, q, group, left):
    """Bytes on each device of a stage, with which ``left`` stages end the plan."""
    rank, end_rank = tables.rank[p], tables.rank[q]
    variable = tables.parameters[q] - tables.parameters[p] + tables.again[rank, end_rank]
    frozen = tables.frozen[q] - tables.frozen[p] + tables.frozen_again[rank, end_rank]
    weights = _weight_bytes(variable, tables.copies, frozen)
    flight = _in_flight(left, tables.micro_batches)
    if tables.keeps:
        activations = _kept_bytes(tables.resident[q] - tables.resident[p], flight)
    else:
        level = 0
        while 2 << level <= q - p:
            level += 1
        largest = max(tables.largest[level, p], tables.largest[level, q - (1 << level)])
        activations = _recomputed_bytes(largest, tables.crossing[p], flight)
    return _stage_bytes(weights, activations, group)


@bare
def sync_seconds(size, shared, group, bandwidth, exchange, central):
    """Seconds to synchronize ``size`` bytes over a group, and ``shared`` ones with other stages.

    It takes numbers alone: tables that a call passes on in a loop are counted each time.
    """
    passed = _central_bytes(2.0 * size, group) if central else _ring_bytes(2.0 * size, group)
    return passed / bandwidth + _exchange_seconds(shared, exchange)


@bare
def reduce_seconds(tables, p, q, near, group):
    """Seconds to synchronize gradients of a stage over a group, ``near`` in one server."""
    rank, end_rank = tables.rank[p], tables.rank[q]
    return sync_seconds(
        tables.parameters[q] - tables.parameters[p] + tables.again[rank, end_rank],
        tables.shared[rank, end_rank], group, tables.bandwidth[near], tables.exchange,
        tables.central,
    )  # fmt: skip


@bare
def in_front(tables, cuts, devices, stages):
    """Seconds that pass the first stages of a plan, those that hide all-reduces, core and tail.

    The transfer behind the stages does not count.
    """
    passed = core = hidden = tail = 0.0
    for s in range(stages):
        p, q, e, d = cuts[s], cuts[s + 1], devices[s], devices[s + 1]
        if s:
            link = link_seconds(tables, p, is_near(tables, devices[s - 1], d))
            passed += link + link
            hidden += link
            core = max(core, through(passed, link + link, tables.micro_batches))
        backward = compute_seconds(tables.backward[q] - tables.backward[p], d - e)
        x = compute_seconds(tables.forward[q] - tables.forward[p], d - e) + backward
        passed += x
        hidden += backward
        core = max(core, through(passed, x, tables.micro_batches))
        reduce = reduce_seconds(tables, p, q, is_near(tables, e, d), d - e)
        # What hides it is the sum less its last term, as in ``core_and_tail``.
        tail = max(tail, reduce - (hidden - backward))
    return passed, hidden, core, tail


@bare
def excess_bytes(tables, cuts, devices):
    """Bytes by which the fullest stage of a plan is too large.

    They are infinite where a stage has no variable, or devices that share a sample.
    """
    stages, most = len(cuts) - 1, -np.inf
    for s in range(stages):
        p, q, group = cuts[s], cuts[s + 1], devices[s + 1] - devices[s]
        if group < 1 or not tables.is_group[group] or tables.variables[q] <= tables.variables[p]:
            return np.inf
        most = max(most, bytes_of(tables, p, q, group, stages - s))
    return most - tables.limit


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
    while low < high:  # the labels before ``low`` have at most this core
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
    starts = np.zeros(count + 1, np.int64)  # where the stages that start at a place begin
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
            rank, end_rank = tables.rank[p], tables.rank[q]
            reduce = sync_seconds(
                tables.parameters[q] - tables.parameters[p] + tables.again[rank, end_rank],
                tables.shared[rank, end_rank], group, tables.bandwidth[near], tables.exchange,
                tables.central,
            )  # fmt: skip
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


@bare
def first_from(values, least):
    """The first of ascending values, (n,), that is at least ``least``; n if none is."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


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
