"""Lower bounds of what the stages in front of a suffix cost: which suffixes a search may drop.

The stages in front of a suffix are s stages on the first e devices, with C seconds of work (on one
device). For a plan shorter than a budget of U seconds, ``Bounds`` uses that

1. their seconds sum to at least ``C / (e - s + 1)``, as one of them has at most e - s + 1 devices,
   and to at least ``C - (e - s) U / M``, as each takes at most U / M and has at least one device;
2. stage j of them takes at most ``(U - seconds before it) / M``, so that
   ``C <= U / M (e - s + sum_{j<s} (1 - 1/M)^j)``; the same holds for the k stages of the suffix,
   with U less what comes before them;
3. an all-reduce of the suffix costs what is left of it after all backward passes in front, so that
   core plus tail of the suffix, plus the forward seconds in front, are a lower bound of the length,
   too.

``Prefixes`` bounds the same by a dynamic program over a coarse chain, forward over the stages.

4. The pivots are merged into blocks. A cut anywhere in a block is replaced by the best of all its
   pivots for each term: the stage behind it starts at the block's last pivot, the stage before it
   ends at the first, and the fewest bytes of the block cross. So what is bounded for a block is
   bounded for each of its pivots.
5. Three numbers are bounded for each (stages s, block, devices e): the length of the first s stages
   taken alone; their seconds plus the tail that they bring; and their forward seconds (transfers
   included). With x the seconds of the next stage, f its forward seconds, r its all-reduce and t
   the seconds of the transfer before it,

       seconds' >= max(seconds + t, forward + t / 2 + r) + x
       length'  >= max(length, seconds + M t, seconds' + (M - 1) x)
       forward' >= forward + t / 2 + f

``Relaxation`` tests limits of core and tail by a similar program over all stages. Paths to a block
are merged by the seconds that have passed: these limit those of the next stage, and its all-reduce.

Seconds of single stages and transfers are those of ``parenvs.tasks.pipeline.formulas``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from parenvs.cluster import group_bandwidth, same_server
from parenvs.compiled import Array, compiled, warm
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.sweeps import pivots_of

SLACK = 1e-12
"""Relative: plans that beat the incumbent by less than this are not looked for. It is far above
the rounding of the few sums that a bound is made of, and far below any difference that matters."""
BLOCKS = 128
"""Most blocks of pivots."""
# Most pairs of a block and a device by default: fewer blocks on large clusters.
_PLACES = 8192
_ELEMENTS = 65_536  # of one matrix


class OutOfTimeError(Exception):
    """The time limit passed before the proof was complete."""


def capacity(stages: int, micro_batches: int) -> Array:
    """The sums over j < s of ``(1 - 1/M)^j`` for s from 0 to ``stages``, (S+1,): fact 2."""
    decay = (1.0 - 1.0 / micro_batches) ** np.arange(stages)
    return np.append(0.0, np.cumsum(decay))


def least_length(pipeline: Pipeline) -> float:
    """Seconds that no plan of the problem's stages and devices is shorter than, by its work alone.

    This is fact 2 over all stages; the more stages, the greater it is.
    """
    return float(least_lengths(pipeline, pipeline.cluster.devices)[pipeline.stages - 1])


def least_lengths(pipeline: Pipeline, devices: int) -> Array:
    """``least_length`` of 1, 2, ... stages on so many devices, (devices,)."""
    m, stages = pipeline.micro_batches, np.arange(1, devices + 1)
    # Fact 2 for whole plans: M C <= U (D - S + capacity).
    most_work = devices - stages + capacity(devices, m)[1:]
    return formulas.compose(m * pipeline.seconds_sum[-1] / most_work, 0.0)


class PrefixBounds(NamedTuple):
    """Lower bounds of prefixes of plans, seconds, (p,) each; infinite where none keeps the budget.

    Attributes:
        length: length of a plan that is the prefix alone.
        seconds: forward plus backward seconds, plus the tail that the prefix brings.
        forward: forward seconds.
    """

    length: Array
    seconds: Array
    forward: Array


class Prefixes:
    """Bounds for prefixes whose cuts are among ``pivots``, of plans shorter than ``budget``."""

    def __init__(
        self,
        pipeline: Pipeline,
        pivots: Array,
        budget: float,
        deadline: float = np.inf,
        devices: Array | None = None,
    ) -> None:
        """Compute the tables of 1 to S - 1 stages, or raise ``OutOfTimeError`` at ``deadline``.

        Plans may cut the chain at ``pivots``, ascending, and the devices at ``devices``, both ends
        included (default: anywhere); ``budget`` are seconds of core plus tail.
        """
        self.pipeline, self.budget, self._deadline = pipeline, budget, deadline
        stages = pipeline.stages
        block_count = min(BLOCKS, max(_PLACES // pipeline.cluster.devices, 1))
        edges = np.linspace(0, len(pivots), block_count, endpoint=False)
        starts = np.unique(edges.astype(np.int64))
        self._first_pivot = pivots[starts]
        self._last_pivot = pivots[np.append(starts[1:], len(pivots)) - 1]
        self._fewest_bytes = np.minimum.reduceat(pipeline.cut_before[pivots], starts)
        device_count, work = pipeline.cluster.devices, pipeline.seconds_sum
        m = pipeline.micro_batches
        device_cuts = np.arange(1, device_count) if devices is None else devices[1:-1]
        # By the number of stages: devices, blocks and bounds within the budget, sorted by both.
        self._tables: dict[int, tuple[Array, Array, PrefixBounds]] = {}
        for s in range(1, stages):
            e = device_cuts[s - 1 : len(device_cuts) - stages + s + 1]
            # The work before a block and the work behind it must fit their devices.
            fits = m * work[self._first_pivot] <= budget * e[:, None]
            fits &= m * (work[-1] - work[self._last_pivot]) <= budget * (device_count - e[:, None])
            row, block = np.nonzero(fits)
            device = e[row]
            bounds = self._ending_at(s, device, self._first_pivot[block], self._last_pivot[block])
            feasible = bounds.length <= budget
            bounds = PrefixBounds(*(bound[feasible] for bound in bounds))
            self._tables[s] = device[feasible], block[feasible], bounds

    def bounds(self, s: int, e: Array, pivots: Array) -> PrefixBounds:
        """Bounds of the s stages in front of each pivot, (p,), on ``e`` devices, (p,) ascending."""
        # By fact 4, a pivot keeps the budget only if its block does.
        (devices, blocks, _), count = self._tables[s], len(self._first_pivot)
        block = np.searchsorted(self._first_pivot, pivots, side="right") - 1
        feasible = np.flatnonzero(np.isin(e * count + block, devices * count + blocks))
        result = np.full((3, len(pivots)), np.inf)
        result[:, feasible] = self._ending_at(s, e[feasible], pivots[feasible], pivots[feasible])
        return PrefixBounds(*result)

    def _ending_at(self, s: int, e: Array, first_pivot: Array, last_pivot: Array) -> PrefixBounds:
        """Bounds of s stages on e devices that end at a pivot from ``first_pivot`` to the last."""
        pipeline, cluster = self.pipeline, self.pipeline.cluster
        m, server = pipeline.micro_batches, cluster.devices_per_server
        work, forward_work = pipeline.seconds_sum, pipeline.forward_sum
        parameters = pipeline.parameter_sum
        if s == 1:
            reduce = cluster.sync_seconds(
                parameters[first_pivot], np.zeros_like(e), e, pipeline.sync
            )
            seconds = formulas.compute_seconds(work[first_pivot], e)
            forward = formulas.compute_seconds(forward_work[first_pivot], e)
            return PrefixBounds(m * seconds + reduce, seconds + reduce, forward)
        device, block, bounds = self._tables[s - 1]
        # Of the cut in front of the last stage, the best of its block for each term.
        latest, earliest = self._last_pivot[block], self._first_pivot[block]
        crossing = self._fewest_bytes[block]
        fastest = max(cluster.intra_bw, cluster.inter_bw)
        best = np.full((3, len(e)), np.inf)
        for end_device in np.unique(e):
            if time.perf_counter() > self._deadline:
                raise OutOfTimeError
            n = int(np.searchsorted(device, end_device))
            if not n:
                continue
            # All stages [d, end_device) at once, a column for each d and block.
            d = device[:n]
            # The transfer before it starts on device 0, or at best on the device before d.
            near = same_server(np.zeros_like(d) if s == 2 else d - 1, end_device, server)
            bandwidth = group_bandwidth(near, fastest, cluster.inter_bw)
            transfer = 2 * formulas.transfer_seconds(crossing[:n], bandwidth)
            sync = cluster.sync_seconds(np.ones(1), d, end_device, pipeline.sync)
            before = bounds.seconds[:n] + transfer
            forward_before = bounds.forward[:n] + transfer / 2
            length_before = np.maximum(bounds.length[:n], before + (m - 1) * transfer)
            share = formulas.compute_seconds(1.0, end_device - d)
            begin, stop = np.searchsorted(e, [end_device, end_device + 1])
            step = max(_ELEMENTS // n, 1)
            for row in range(begin, stop, step):
                rows = slice(row, min(row + step, stop))
                # Fact 5, in place where the arrays allow it.
                p = first_pivot[rows, None]
                x = np.maximum(work[p] - work[latest[:n]], 0.0) * share
                seconds = np.maximum(parameters[p] - parameters[latest[:n]], 0.0) * sync
                seconds += forward_before
                np.maximum(seconds, before, out=seconds)
                seconds += x
                forward = np.maximum(forward_work[p] - forward_work[latest[:n]], 0.0) * share
                forward += forward_before
                length = x
                length *= m - 1
                length += seconds
                np.maximum(length, length_before, out=length)
                length[last_pivot[rows, None] <= earliest[:n]] = np.inf  # no stage in between
                over_budget = length > self.budget
                seconds[over_budget] = np.inf
                forward[over_budget] = np.inf
                best[:, rows] = length.min(axis=1), seconds.min(axis=1), forward.min(axis=1)
        return PrefixBounds(*best)


class Columns(NamedTuple):
    """States (k, p, e) of one k that may be part of a shorter plan, (states,) each.

    "In front" means the s stages before the transfer at p, and the transfers between them.

    Attributes:
        pivot: p.
        device: e.
        seconds: prefix sum of seconds at p.
        before: least seconds in front; by ``Prefixes``, with the tail that they bring.
        before_forward: least forward seconds in front.
        before_backward: least backward seconds in front.
        reduce: least seconds of tail that the stages in front bring: the all-reduce of a single
            stage, else 0.
        fast: seconds (forward plus backward) of the transfer at p if the first stage of the suffix
            lies in one server and the stage before starts there.
        slow: seconds of that transfer otherwise.
        core_limit: greatest seconds of transfer plus core that the budget allows.
        sum_limit: greatest seconds of half the transfer plus core plus tail that it allows.
    """

    pivot: Array
    device: Array
    seconds: Array
    before: Array
    before_forward: Array
    before_backward: Array
    reduce: Array
    fast: Array
    slow: Array
    core_limit: Array
    sum_limit: Array

    def take(self, rows: Array) -> Columns:
        """Return the states where ``rows``, bool, is true."""
        return Columns(*(values[rows] for values in self))


class Bounds:
    """Lower bounds for plans of a problem.

    Attributes:
        prefixes: better bounds of the stages in front, or None.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.stages = pipeline, pipeline.stages
        self.prefixes: Prefixes | None = None
        # The least shares of any pivot's seconds that are forward, and that are backward.
        seconds = pipeline.profile.seconds
        works = seconds > 0
        share = pipeline.profile.forward[works] / seconds[works]
        self._forward_share, self._backward_share = float(share.min()), float((1 - share).min())
        # Entry p: fewest bytes that cross a cut strictly inside the first p pivots.
        fewest = np.minimum.accumulate(np.append(np.inf, pipeline.cut_before[1:-1]))
        self._least_cut = np.append(0.0, np.where(np.isfinite(fewest), fewest, 0.0))
        self._fastest = max(pipeline.cluster.intra_bw, pipeline.cluster.inter_bw)
        # Entry s: the sum over j < s of fact 2.
        self._capacity = capacity(self.stages, pipeline.micro_batches)

    def columns(self, k: int, e: int | Array, p: Array, upper: float) -> Columns:
        """Those states in which the last k stages may be part of a plan shorter than ``upper``.

        ``e`` are the first devices, (p,) or a number, and ``p`` the first pivots, (p,).
        """
        pipeline = self.pipeline
        e = np.broadcast_to(e, p.shape)
        m, s = pipeline.micro_batches, self.stages - k
        budget = formulas.core_budget(upper) * (1.0 - SLACK)
        work, parameters = pipeline.seconds_sum, pipeline.parameter_sum
        variables, copies = pipeline.variable_sum, pipeline.copies
        limit = pipeline.memory_limit * (1 + SLACK)
        legal = (variables[p] >= s) & (variables[-1] - variables[p] >= k)
        # Whatever the cuts, the stages on either side of p hold its parameters once.
        legal &= formulas.weight_bytes(parameters[p], copies) <= s * limit
        legal &= formulas.weight_bytes(parameters[-1] - parameters[p], copies) <= k * limit
        legal &= m * work[p] <= budget * (e - s + self._capacity[s])  # fact 2
        zero, reduce = np.zeros_like(p), np.zeros(len(p))
        if s == 1:
            reduce = pipeline.reduce_seconds(zero, p, zero, zero + e)
            legal &= m * work[p] / e + reduce <= budget
            needed_bytes = pipeline.memory_of(zero, p, zero + e, zero + self.stages)
            legal &= needed_bytes <= pipeline.memory_limit
        columns = self._add_front_bounds(k, e[legal], p[legal], reduce[legal], budget)
        columns = self._within_limits(k, columns)
        if s > 1 and self.prefixes is not None and columns.pivot.size:
            length, seconds, forward = self.prefixes.bounds(s, columns.device, columns.pivot)
            seconds = np.maximum(columns.before, seconds)
            forward = np.maximum(columns.before_forward, forward)
            columns = columns._replace(
                before=seconds, before_forward=forward, sum_limit=budget - forward,
                core_limit=budget - seconds - columns.reduce,
            )  # fmt: skip
            columns = self._within_limits(k, columns.take(length <= budget))
        return columns

    def _within_limits(self, k: int, columns: Columns) -> Columns:
        """The states whose transfer, and whose suffix's work by fact 2, keep the core limit."""
        m, transfer = self.pipeline.micro_batches, np.minimum(columns.fast, columns.slow)
        room = self.pipeline.cluster.devices - columns.device - k + self._capacity[k]
        work = self.pipeline.seconds_sum[-1] - columns.seconds
        work_limit = (columns.core_limit - transfer) * room
        return columns.take((m * transfer <= columns.core_limit) & (m * work <= work_limit))

    def _add_front_bounds(
        self, k: int, e: Array, p: Array, reduce: Array, budget: float
    ) -> Columns:
        """The states (p,), with bounds by the work of the stages in front of p alone (fact 1)."""
        pipeline, cluster, s = self.pipeline, self.pipeline.cluster, self.stages - k
        work = pipeline.seconds_sum[p]
        # Fact 1.
        before = work / (e - s + 1)
        if np.isfinite(budget):
            before = np.maximum(before, work - (e - s) * budget / pipeline.micro_batches)
        forward = np.maximum(pipeline.forward_sum[p] / (e - s + 1), self._forward_share * before)
        backward = np.maximum(pipeline.backward_sum[p] / (e - s + 1), self._backward_share * before)
        transfers = (s - 1) * self._least_cut[p] / self._fastest  # between them, one direction
        before = before + 2 * transfers
        # The single stage in front starts at device 0; of several, the last may start anywhere.
        near = cluster.same_server(np.zeros_like(e) if s == 1 else e - 1, e + 1)
        slow, fast = (
            2 * formulas.transfer_seconds(pipeline.cut_before[p], bandwidth)
            for bandwidth in (cluster.inter_bw, cluster.intra_bw)
        )
        fast = np.where(near, fast, slow)
        return Columns(
            p, e, work, before, forward + transfers, backward + transfers, reduce, fast, slow,
            budget - before - reduce, budget - forward - transfers,
        )  # fmt: skip


PRICES = (0.15, 0.5, 1.5)
"""Prices of a device, as multiples of C / D."""
SLOTS = 2
"""Parts of a server that are told apart."""
PHASES = ((16,), 1), ((16, 4, 1), 1), ((16, 4, 1), 4), ((16, 4, 1), 8)
"""Of the searches for a bound, one after the other: pivots of a block, and cells."""
# Of a relaxation; those of longer chains have more pivots.
MOST_BLOCKS = 1024
STEP, WIDTH = 5e-3, 1e-2
"""Relative: steps of the bound and of intervals of the tail."""
WORK = 200_000_000
"""Extensions of cells in all, at most."""
# Relative: by how much the first bound that is tried is below the plan.
_FIRST = 0.04
# Relative: limits are looser by so much, far above the rounding of their sums.
_ROUNDING = 1e-9
# Relative: the seconds of the cells of a block reach so far beyond those known.
_PAD = 1e-6


class Chain(NamedTuple):
    """Blocks of pivots where stages may start and end, and what is known of the stages.

    Attributes:
        low, high: (6, b) least and greatest prefix sums of the pivots of each block: seconds,
            backward seconds, backward seconds beyond ``share``, bytes to synchronize, bytes of
            weights, variables.
        links: (2, 2, b) seconds of a transfer, both directions: least and greatest, far and near.
        capacity: (S+1,) the sums of fact 2.
        groups: (2, D+2) the next number of devices that a stage may have, up and down.
        bandwidth: (2,) bytes/s across servers and in one.
        server, slots: devices of a server, 1 if it is no faster inside; parts that are told apart.
        limit: bytes that a device may hold.
        share: of all seconds, those that are backward.
    """

    low: Array
    high: Array
    links: Array
    capacity: Array
    groups: Array
    bandwidth: Array
    stages: int
    devices: int
    micro_batches: int
    server: int
    slots: int
    limit: float
    share: float


@compiled
def _largest_group(alone, allowed):
    """Most devices whose ring takes ``allowed`` seconds; ``alone`` are those of 2W bytes."""
    return np.inf if alone <= allowed else alone / (alone - allowed) + _ROUNDING


@compiled
def _extend(chain, s, core, tail, prices, cells, now, then, least, most):
    """Put stage s, from 0 on, behind the cells ``now``; merge the results into ``then``.

    Args:
        chain: the problem.
        s: number of the stage.
        core: most seconds of the plan's core.
        tail: most seconds of its tail.
        prices: of a device, seconds.
        cells: parts of the seconds that may have passed at a block.
        now: (b (slots + 1) cells, prices + 4), of the paths to a cell: the least sums of seconds
            passed and devices times price, the fewest devices (infinite without a path), the least
            seconds passed, the most hidden seconds, the most of them beyond ``share``.
        then: likewise, behind the stage.
        least: (2, b) seconds that have passed at a block at least, without the transfer there, in
            front of the stage and behind it; infinite where no stage starts.
        most: (2, b) likewise, at most.

    Returns:
        The number of extensions.
    """
    m, server, slots, kinds = chain.micro_batches, chain.server, chain.slots, len(prices)
    devices, seconds, hidden, beyond = kinds, kinds + 1, kinds + 2, kinds + 3
    low, high, left, work = chain.low, chain.high, chain.stages - s, 0
    blocks, row, passes = low.shape[1], (slots + 1) * cells, m if left == 1 else 1
    sources, near_of = np.empty((2, 2 * row), np.int64)
    begins, ends, most_seconds, most_reduce = np.empty((4, 2 * row))
    roots, cheapest = np.empty((2, kinds))
    most_devices = np.zeros(blocks)
    for k in range(blocks):
        if left == 1:
            most_devices[k] = chain.devices
        elif least[1, k] < core:  # fact 2, for the stages behind
            needed = m * (low[0, -1] - high[0, k]) / (core - least[1, k])
            needed = left - 1 + max(needed - chain.capacity[left - 1], 0.0)
            most_devices[k] = (chain.devices - needed) * (1 + _ROUNDING)
    for i in range(blocks):
        count, step = 0, (most[0, i] - least[0, i]) / cells
        for source in range(i * row, (i + 1) * row):
            if now[source, devices] == np.inf:
                continue
            for near in range(2 if source % row < slots * cells else 1):
                start = least[0, i] + source % cells * step
                end = start + step
                link, longest = chain.links[0, near, i], chain.links[1, near, i]
                start = max(start, now[source, seconds]) + link
                if not start + (m - 1) * link < core:
                    continue
                hides = min(now[source, hidden], now[source, beyond] + chain.share * end)
                sources[count], near_of[count] = source, near
                begins[count], ends[count] = start, end + longest
                most_seconds[count], most_reduce[count] = (core - start) / m, tail
                most_reduce[count] += hides + longest / 2
                count += 1
        is_open = count > 0
        for k in range(i, blocks):
            if not is_open:
                break
            if (k == blocks - 1) != (left == 1) or least[1, k] == np.inf or high[5, k] <= low[5, i]:
                continue
            x, longer = max(low[0, k] - high[0, i], 0.0), high[0, k] - low[0, i]
            size = 2 * max(low[3, k] - high[3, i], 0.0)
            if low[4, k] - high[4, i] > chain.limit:
                break
            backward, excess = high[1, k] - low[1, i], high[2, k] - low[2, i]
            first_end, width = least[1, k], (most[1, k] - least[1, k]) / cells
            for n in range(kinds):
                roots[n] = np.sqrt(passes * x / prices[n])
                cheapest[n] = 2 * roots[n] * prices[n]
            is_open = False
            for c in range(count):
                source, near = sources[c], near_of[c]
                used, start, end = now[source, devices], begins[c], ends[c]
                bottom, top = max(x / most_seconds[c], 1.0), chain.devices - left + 1 - used
                group = _largest_group(size / chain.bandwidth[1], most_reduce[c])
                top = min(top, group, server - 1.0 if near else np.inf)
                if not near:
                    group = _largest_group(size / chain.bandwidth[0], most_reduce[c])
                    top = min(top, max(group, server))
                if bottom > top:
                    continue
                # Where none is open, stages that end later have too much work, too.
                is_open = True
                top = min(top, most_devices[k] - used)
                if bottom > top:
                    continue
                lowest = chain.groups[0, int(np.ceil(bottom - _ROUNDING))]
                highest = chain.groups[1, int(top)]
                # Part 0 forgets the server; the others are what the stage fills of it.
                for part in range(near, slots + 1 if lowest < server else 1):
                    bottom, top, slot = lowest, highest, slots
                    if part:
                        bottom = max(bottom, -(-(part - 1) * server // slots))
                        top = min(top, -(-part * server // slots) - 1)
                        slot = part - 1 + (source % row // cells if near else 0)
                    if top < bottom or slot > slots:
                        continue
                    first = (start + x / top - first_end) / width - _PAD
                    last = (end + longer / bottom - first_end) / width + _PAD
                    for j in range(int(max(first, 0.0)), int(min(max(last, -1.0) + 1, cells))):
                        # Only with these devices do the seconds passed lie in the cell.
                        until = first_end + (j + 1) * width + _ROUNDING * core - start
                        since = first_end + j * width - _ROUNDING * core - end
                        if until <= 0:
                            continue
                        fewer = max(bottom, int(np.ceil(x / until - _ROUNDING)))
                        more = min(top, int(longer / since + _ROUNDING)) if since > 0 else top
                        if more < fewer:
                            continue
                        work += 1
                        cell = k * row + slot * cells + j
                        link, longest = chain.links[0, near, i], chain.links[1, near, i]
                        if then[cell, devices] == np.inf:
                            then[cell, : kinds + 2] = np.inf
                            then[cell, kinds + 2 :] = -np.inf
                        then[cell, devices] = min(then[cell, devices], used + fewer)
                        passed = now[source, seconds] + link + x / more
                        then[cell, seconds] = min(then[cell, seconds], passed)
                        hides = now[source, hidden] + longest / 2 + backward / fewer
                        then[cell, hidden] = max(then[cell, hidden], hides)
                        hides = (longest if chain.share < 0.5 else link) * (0.5 - chain.share)
                        hides += now[source, beyond] + excess / (fewer if excess > 0 else more)
                        then[cell, beyond] = max(then[cell, beyond], hides)
                        for n in range(kinds):
                            cost = cheapest[n]
                            if roots[n] < fewer:
                                cost = passes * x / fewer + prices[n] * fewer
                            elif roots[n] > more:
                                cost = passes * x / more + prices[n] * more
                            then[cell, n] = min(then[cell, n], now[source, n] + link + cost)
    return work


@compiled
def _drop(chain, left, core, prices, cells, then, least, most):
    """Drop the cells from which no plan keeps the core with ``left`` stages behind.

    Raises the seconds passed of the others, whose devices leave too few; with one cell of a block,
    ``least`` and ``most``, (b,), follow. Returns the number of cells that stay.
    """
    kinds, m, low, high = len(prices), chain.micro_batches, chain.low, chain.high
    row, count = (chain.slots + 1) * cells, 0
    for k in range(low.shape[1]):
        rest, step = m * (low[0, -1] - high[0, k]), (most[k] - least[k]) / cells
        first = least[k]
        if cells == 1:
            least[k], most[k] = np.inf, -np.inf
        for cell in range(k * row, (k + 1) * row):
            if then[cell, kinds] == np.inf:
                continue
            passed, end = then[cell, kinds + 1], core
            if left:
                passed = max(passed, first + cell % cells * step)
                spare = chain.devices - then[cell, kinds] - left + chain.capacity[left]
                end = min(first + (cell % cells + 1) * step, core - rest / spare)
            for _ in range(3):
                free = float(chain.devices)
                if left and passed < core:
                    free -= left + max(rest / (core - passed) - chain.capacity[left], 0.0)
                for n in range(kinds):
                    passed = max(passed, then[cell, n] - prices[n] * free)
            if passed > end + _ROUNDING * core or then[cell, kinds] > free * (1 + _ROUNDING):
                then[cell, kinds] = np.inf
                continue
            then[cell, kinds + 1], count = passed, count + 1
            if cells == 1:
                least[k], most[k] = min(least[k], passed), max(most[k], end)
    return count


def lower_bound(pipeline: Pipeline, upper: float, deadline: float = np.inf) -> float:
    """Seconds that no plan of the problem's stages and devices is shorter than.

    Args:
        pipeline: the problem.
        upper: seconds of a plan; the bound is no greater.
        deadline: the search for a greater bound ends at this ``time.perf_counter()``.
    """
    prepare()
    high = formulas.core_budget(upper)
    low = core = min(formulas.core_budget(least_length(pipeline)) * (1 - SLACK), high)
    relaxation = Relaxation(pipeline, deadline)
    for strides, cells in PHASES if pipeline.stages > 1 else ():
        relaxation.refine(strides, cells)
        if cells == 1:  # a shorter plan has no longer tail than this
            core = relaxation.greatest(core, high, partial(relaxation.excludes, high - core))
        low = relaxation.greatest(
            max(low, core), high, partial(relaxation.excludes_length, core, high - core)
        )
    return float(formulas.compose(low, 0.0))


class Relaxation:
    """Tests whether a problem of two stages or more has a plan of some core and tail.

    At each block of pivots, the seconds that may have passed are divided into cells, and the paths
    to a cell are merged: it keeps the best of each number.
    """

    def __init__(self, pipeline: Pipeline, deadline: float = np.inf) -> None:
        self.pipeline, self.deadline, self._work = pipeline, deadline, 0
        self._pivots = pivots_of(pipeline)[1:-1]
        self._excluded: list[tuple[float, float]] = []
        self._possible: list[tuple[float, float]] = []
        self._levels: list[tuple[Chain, Array, int]] = []

    def refine(self, strides: Sequence[int], cells: int) -> None:
        """Test with blocks of so many pivots in turn, and with cells of the last blocks."""
        least = -(-len(self._pivots) // MOST_BLOCKS)
        few = [stride for stride in strides[:-1] if len(self._pivots) < 8 * stride]
        chains = [self._chain(stride * least) for stride in strides[len(few) :]]
        self._levels = [(*chain, 1) for chain in chains]
        self._levels += [(*chains[-1], cells)] * (cells > 1)
        self._possible = []

    def _chain(self, stride: int) -> tuple[Chain, Array]:
        pipeline, cluster, pivots = self.pipeline, self.pipeline.cluster, self._pivots
        n, starts = len(pipeline.profile), np.arange(0, len(pivots), stride)
        block_of = np.concatenate([[0], 1 + np.arange(len(pivots)) // stride, [len(starts) + 1]])
        first = np.concatenate([[0], pivots[starts], [n]])
        last = np.concatenate([[0], pivots[np.append(starts[1:], len(pivots)) - 1], [n]])
        work, backward = pipeline.seconds_sum, pipeline.backward_sum
        parameters = pipeline.parameter_sum
        share = float(backward[-1] / work[-1]) if work[-1] else 0.5
        weights = formulas.weight_bytes(parameters, pipeline.copies, pipeline.frozen_sum)
        excess = backward - share * work
        sums = np.array([work, backward, excess, parameters, weights, pipeline.variable_sum])
        low, high = np.take(sums, first, axis=1), np.take(sums, last, axis=1)
        low[2, 1:-1] = np.minimum.reduceat(sums[2, pivots], starts)
        high[2, 1:-1] = np.maximum.reduceat(sums[2, pivots], starts)
        crossing = np.zeros((2, 1, len(first)))
        for row, best in zip(crossing, (np.minimum, np.maximum), strict=True):
            row[0, 1:-1] = best.reduceat(pipeline.cut_before[pivots], starts)
        fast, slow = (best(cluster.intra_bw, cluster.inter_bw) for best in (max, min))
        alone = cluster.devices_per_server == 1
        is_faster = cluster.intra_bw > cluster.inter_bw and not alone
        far = (cluster.inter_bw,) * 2 if is_faster or alone else (fast, slow)
        bandwidth = np.array([[far[0], fast], [far[1], fast if is_faster else slow]])
        sizes = np.append(pipeline.is_group, False)
        numbers = np.arange(len(sizes))
        up = np.minimum.accumulate(np.where(sizes, numbers, len(sizes) - 1)[::-1])[::-1]
        chain = Chain(
            low, high, 2 * formulas.transfer_seconds(crossing, bandwidth[:, :, None]),
            capacity(pipeline.stages, pipeline.micro_batches),
            np.array([up, np.maximum.accumulate(np.where(sizes, numbers, 0))]),
            bandwidth[0].astype(float), int(pipeline.stages), cluster.devices,
            int(pipeline.micro_batches), cluster.devices_per_server if is_faster else 1,
            min(SLOTS, cluster.devices_per_server) if is_faster else 0,
            float(pipeline.memory_limit) * (1 + _ROUNDING), share,
        )  # fmt: skip
        return chain, block_of

    def greatest(self, low: float, high: float, excluded: Callable[[float], bool]) -> float:
        """The greatest of some seconds from ``low`` to ``high`` that are known to be excluded."""
        below = _FIRST
        while high > low * (1 + STEP) and self._has_budget():
            # The bound is most often near the plan; else, the middle of relative steps.
            middle = max(high * (1 - below), (low * high) ** 0.5)
            if excluded(middle):
                low, below = middle, 1.0
            else:
                high, below = middle, 2 * below
        return low

    def excludes_length(self, least_core: float, span: float, length: float) -> bool:
        """Whether it is known that no plan is as short as ``length``, and none has less core.

        The tails are intervals of ``span`` seconds in halves, whatever the length.
        """
        tails = [(0.0, span)]
        while tails:
            low, high = tails.pop()
            if low > length - least_core or self.excludes(high, length - low):
                continue
            if high - low <= WIDTH * length or not self._has_budget():
                return False
            middle = (low + high) / 2
            tails += [(low, middle), (middle, high)]
        return True

    def _has_budget(self) -> bool:
        return self._work < WORK and time.perf_counter() < self.deadline

    def excludes(self, tail: float, core: float) -> bool:
        """Whether it is known that no plan has at most this core and this tail, seconds."""
        if any(core <= c and tail <= t for c, t in self._excluded):
            return True
        if core <= 0 or any(core >= c and tail >= t for c, t in self._possible):
            return False
        excluded = self._test(core, tail)
        (self._excluded if excluded else self._possible).append((core, tail))
        return excluded

    def _test(self, core: float, tail: float) -> bool:
        pipeline, stages = self.pipeline, self.pipeline.stages
        prices = np.array(PRICES) * core / pipeline.cluster.devices
        tail, core = tail + _ROUNDING * (tail + core), core * (1 + _ROUNDING)
        least, most = np.zeros((stages + 1, 1)), np.full((stages + 1, 1), core)
        before = np.zeros(len(self._pivots) + 2, np.int64)
        for chain, block_of, cells in self._levels:
            # What is known of a block holds for the smaller ones in it.
            _, pivot = np.unique(block_of, return_index=True)
            wider = least - _PAD * core, most + _PAD * core
            least, most = (np.take(x, before[pivot], axis=1) for x in wider)
            before, blocks, row = block_of, len(pivot), (chain.slots + 1) * cells
            least[0, 0] = most[0, 0] = 0.0
            now, then = np.empty((2, blocks * row, len(prices) + 4))
            now[:, len(prices)] = np.inf
            now[row - cells] = 0.0
            for s in range(stages):
                if not self._has_budget():
                    return False
                then[:, len(prices)] = np.inf
                both, left = slice(s, s + 2), stages - s - 1
                self._work += _extend(
                    chain, s, core, tail, prices, cells, now, then, least[both], most[both]
                )
                ranges = least[s + 1], most[s + 1]
                if not _drop(chain, left, core, prices, cells, then, *ranges):
                    return True
                now, then = then, now
            least[stages], most[stages] = 0.0, core
        return False


@cache
def prepare() -> None:
    """Compile the loops, or load them, once per process: that is no part of a search."""
    table, row = np.zeros((1, 1)), np.zeros(1)
    chain = Chain(
        table, table, np.zeros((1, 1, 1)), row, np.zeros((1, 1), np.int64), row, *(1,) * 5,
        1.0, 1.0,
    )  # fmt: skip
    warm(_extend, chain, 0, 1.0, 1.0, row, 1, table, table, table, table)
    warm(_drop, chain, 0, 1.0, row, 1, table, row, row)
