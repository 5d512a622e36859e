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

Seconds of single stages and transfers are those of ``parenvs.tasks.pipeline.formulas``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parenvs.cluster import group_bandwidth, same_server
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import distinct_pivots

SLACK = 1e-12
"""Relative: plans that beat the incumbent by less than this are not looked for. It is far above
the rounding of the few sums that a bound is made of, and far below any difference that matters."""
BLOCKS = 128
"""Most blocks of pivots."""
_PLACES = 8192  # most pairs of a block and a device by default: fewer blocks on large clusters
_ELEMENTS = 65_536  # of one matrix


class OutOfTimeError(Exception):
    """The time limit passed before the proof was complete."""


def capacity(stages: int, micro_batches: int) -> np.ndarray:
    """The sums over j < s of ``(1 - 1/M)^j`` for s from 0 to ``stages``, (S+1,): fact 2."""
    decay = (1.0 - 1.0 / micro_batches) ** np.arange(stages)
    return np.append(0.0, np.cumsum(decay))


def least_length(pipeline: Pipeline) -> float:
    """Seconds that no plan of the problem's stages and devices is shorter than, by its work alone.

    This is fact 2 over all stages; the more stages, the greater it is.
    """
    return float(least_lengths(pipeline, pipeline.cluster.devices)[pipeline.stages - 1])


def least_lengths(pipeline: Pipeline, devices: int) -> np.ndarray:
    """``least_length`` of 1, 2, ... stages on so many devices, (devices,)."""
    m, stages = pipeline.micro_batches, np.arange(1, devices + 1)
    # Fact 2 for whole plans: M C <= U (D - S + capacity).
    most_work = devices - stages + capacity(devices, m)[1:]
    return np.asarray(formulas.compose(m * pipeline.seconds_sum[-1] / most_work, 0.0))


def least_shares(pipeline: Pipeline) -> tuple[float, float]:
    """The least shares of any pivot's seconds that are forward, and that are backward."""
    seconds = pipeline.profile.seconds
    works = seconds > 0
    forward_share = pipeline.profile.forward[works] / seconds[works]
    return float(forward_share.min()), float((1 - forward_share).min())


class PrefixBounds(NamedTuple):
    """Lower bounds of prefixes of plans, seconds, (p,) each; infinite where none keeps the budget.

    Attributes:
        length: length of a plan that is the prefix alone.
        seconds: forward plus backward seconds, plus the tail that the prefix brings.
        forward: forward seconds.
    """

    length: np.ndarray
    seconds: np.ndarray
    forward: np.ndarray


class Prefixes:
    """Bounds for prefixes whose cuts are among ``pivots``, of plans shorter than ``budget``."""

    def __init__(
        self,
        pipeline: Pipeline,
        pivots: np.ndarray,
        budget: float,
        deadline: float = np.inf,
        devices: np.ndarray | None = None,
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
        self._tables: dict[int, tuple[np.ndarray, np.ndarray, PrefixBounds]] = {}
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

    def bounds(self, s: int, e: np.ndarray, pivots: np.ndarray) -> PrefixBounds:
        """Bounds of the s stages in front of each pivot, (p,), on ``e`` devices, (p,) ascending."""
        # By fact 4, a pivot keeps the budget only if its block does.
        (devices, blocks, _), count = self._tables[s], len(self._first_pivot)
        block = np.searchsorted(self._first_pivot, pivots, side="right") - 1
        feasible = np.flatnonzero(np.isin(e * count + block, devices * count + blocks))
        result = np.full((3, len(pivots)), np.inf)
        result[:, feasible] = self._ending_at(s, e[feasible], pivots[feasible], pivots[feasible])
        return PrefixBounds(*result)

    def _ending_at(
        self, s: int, e: np.ndarray, first_pivot: np.ndarray, last_pivot: np.ndarray
    ) -> PrefixBounds:
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

    pivot: np.ndarray
    device: np.ndarray
    seconds: np.ndarray
    before: np.ndarray
    before_forward: np.ndarray
    before_backward: np.ndarray
    reduce: np.ndarray
    fast: np.ndarray
    slow: np.ndarray
    core_limit: np.ndarray
    sum_limit: np.ndarray

    def take(self, rows: np.ndarray) -> Columns:
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
        self._forward_share, self._backward_share = least_shares(pipeline)
        # Entry p: fewest bytes that cross a cut strictly inside the first p pivots.
        fewest = np.minimum.accumulate(np.append(np.inf, pipeline.cut_before[1:-1]))
        self._least_cut = np.append(0.0, np.where(np.isfinite(fewest), fewest, 0.0))
        self._fastest = max(pipeline.cluster.intra_bw, pipeline.cluster.inter_bw)
        # Entry s: the sum over j < s of fact 2.
        self._capacity = capacity(self.stages, pipeline.micro_batches)

    def columns(self, k: int, e: int | np.ndarray, p: np.ndarray, upper: float) -> Columns:
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
        self, k: int, e: np.ndarray, p: np.ndarray, reduce: np.ndarray, budget: float
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


SLOTS = 8
"""Parts of a server that are told apart."""
PRICES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Prices of a device, as multiples of C / D."""
STEP, WIDTH, TESTS = 5e-3, 1e-2, 250
"""Relative: steps of the bound and of intervals of the tail; tests in all at most."""
_ROUNDING = 1e-9  # relative: limits are looser by so much, far above the rounding of their sums


def lower_bound(pipeline: Pipeline, upper: float, deadline: float = np.inf) -> float:
    """Seconds that no plan of the problem's stages and devices is shorter than.

    Args:
        pipeline: the problem.
        upper: seconds of a plan; the bound is no greater.
        deadline: the search for a greater bound ends at this ``time.perf_counter()``.
    """
    high = formulas.core_budget(upper)
    low = min(formulas.core_budget(least_length(pipeline)) * (1 - SLACK), high)
    if pipeline.stages > 1:
        relaxation = Relaxation(pipeline, deadline)
        core = relaxation.greatest(low, high, lambda core: relaxation.excludes(core, np.inf))
        low = relaxation.greatest(core, high, lambda both: relaxation.excludes_length(both, core))
    return float(formulas.compose(low, 0.0))


class Relaxation:
    """The programmes of one problem, of two stages or more."""

    def __init__(self, pipeline: Pipeline, deadline: float = np.inf) -> None:
        self.pipeline, self.deadline, self._tests = pipeline, deadline, 0
        cluster, variables = pipeline.cluster, pipeline.variable_sum
        pivots = distinct_pivots(pipeline)
        pivots = pivots[(variables[pivots] > 0) & (variables[pivots] < variables[-1])]
        edges = np.linspace(0, len(pivots), min(BLOCKS, len(pivots)), endpoint=False)
        starts = edges.astype(np.int64)
        end = len(pipeline.profile)
        first = np.concatenate([[0], pivots[starts], [end]])
        last = np.concatenate([[0], pivots[np.append(starts[1:], len(pivots)) - 1], [end]])
        crossing = np.minimum.reduceat(pipeline.cut_before[pivots], starts)
        crossing = np.concatenate([[0.0], crossing, [0.0]])
        self._slow, self._fast = (
            2 * formulas.transfer_seconds(crossing, bandwidth)
            for bandwidth in (cluster.inter_bw, max(cluster.intra_bw, cluster.inter_bw))
        )
        # Of a matrix, rows are the blocks where stages end, columns those where they start.
        work, parameters = pipeline.seconds_sum, pipeline.parameter_sum
        # From the last pivot of one block to the first of another: the least that lies between.
        self._work = np.maximum(work[first][:, None] - work[last], 0.0)
        self._rest = work[-1] - work[last]
        self._weights = np.maximum(parameters[first][:, None] - parameters[last], 0.0)
        held = formulas.weight_bytes(self._weights, pipeline.copies)
        self._legal = (variables[last][:, None] > variables[first]) & (last[:, None] > first)
        self._legal &= held <= pipeline.memory_limit * (1 + _ROUNDING)
        self._capacity = capacity(pipeline.stages, pipeline.micro_batches)
        self._backward_share = max(1.0 - least_shares(pipeline)[0], 0.5)  # of a transfer, half

    def greatest(self, low: float, high: float, excluded: Callable[[float], bool]) -> float:
        """The greatest of some seconds from ``low`` to ``high`` that are known to be excluded."""
        while high > low * (1 + STEP) and self._has_budget():
            # Steps are relative, so the middle is the geometric one.
            middle = (low * high) ** 0.5
            low, high = (middle, high) if excluded(middle) else (low, middle)
        return low

    def excludes_length(self, length: float, least_core: float) -> bool:
        """Whether it is known that no plan is as short as ``length``, and none has less core."""
        tails = [(0.0, length - least_core)]
        while tails:
            low, high = tails.pop()
            if self.excludes(length - low, high):
                continue
            if high - low <= WIDTH * length or not self._has_budget():
                return False
            middle = (low + high) / 2
            tails += [(low, middle), (middle, high)]
        return True

    def _has_budget(self) -> bool:
        return self._tests < TESTS and time.perf_counter() < self.deadline

    def excludes(self, core: float, tail: float) -> bool:
        """Whether it is known that no plan has at most this core and this tail, seconds."""
        self._tests += 1
        pipeline, m = self.pipeline, self.pipeline.micro_batches
        stages, devices = pipeline.stages, pipeline.cluster.devices
        tail = tail + _ROUNDING * (tail + core)
        core = core * (1 + _ROUNDING)
        # Sums are of ``counts`` times seconds, and ``prices`` times devices.
        prices = np.array([price * core / devices for price in PRICES] + [1.0])
        counts = np.array([1.0] * len(PRICES) + [0.0])
        # By the parts of a server that are filled, by price, by block.
        sums = np.full((SLOTS + 1, len(prices), len(self._rest)), np.inf)
        sums[SLOTS, :, 0] = 0.0
        passed = np.zeros(len(self._rest))
        for left in range(stages, 0, -1):
            if time.perf_counter() > self.deadline:
                return False
            # Fact 2 of ``bounds``, for the stages that are left.
            devices_left = devices - stages + self._capacity[left]
            before = passed + self._fast
            reachable = np.isfinite(sums).any(axis=(0, 1)) & (passed + m * self._fast <= core)
            blocks = np.flatnonzero(reachable & (m * self._rest <= (core - before) * devices_left))
            most_seconds = (core - passed[blocks] - [self._slow[blocks], self._fast[blocks]]) / m
            if not blocks.size:
                return True
            most_hidden = self._backward_share * (core - m * self._rest[blocks] / devices_left)
            most_reduce = tail + np.maximum(most_hidden, 0.0)
            last = slice(-1, None) if left == 1 else slice(None)
            passes = counts * (m if left == 1 else 1)
            sums = self._with_stage(
                last, blocks, sums[:, :, blocks], counts, passes, prices, most_seconds, most_reduce
            )
            if left == 1:
                break
            lowest = sums.min(axis=0)
            passed, left = np.zeros(len(self._rest)), left - 1
            for _ in range(3):
                with np.errstate(divide="ignore", invalid="ignore"):
                    rest = m * self._rest / (core - passed) + left - self._capacity[left]
                rest = np.where(passed < core, np.maximum(rest, left), np.inf)
                free = devices - rest
                finite = np.isfinite(free)
                bounds = lowest[:-1] - prices[:-1, None] * np.where(finite, free, 0.0)
                passed = np.where(finite, np.maximum(bounds.max(axis=0), passed), np.inf)
            sums[:, :, (lowest[-1] > free * (1 + _ROUNDING)) | ~np.isfinite(passed)] = np.inf
        # Weak duality: a plan within both limits would cost no more than this at any price.
        return bool((sums.min(axis=0)[:, -1] > counts * core + prices * devices).any())

    def _with_stage(
        self,
        ends: slice,
        at: np.ndarray,
        sums: np.ndarray,
        counts: np.ndarray,
        passes: np.ndarray,
        prices: np.ndarray,
        most_seconds: np.ndarray,
        most_reduce: np.ndarray,
    ) -> np.ndarray:
        """Sums with one more stage, (SLOTS + 1, prices, m).

        Args:
            ends: blocks where the stages may end.
            at: (a,) int64, blocks where they start.
            sums: (SLOTS + 1, prices, a) in front of the transfers there.
            counts: (prices,) of a transfer's seconds.
            passes: (prices,) of a stage's seconds.
            prices: (prices,) of a device.
            most_seconds: (2, a) seconds of a stage behind a slow transfer, and behind a fast one.
            most_reduce: (a,) seconds of its all-reduce.
        """
        m, cluster = self.pipeline.micro_batches, self.pipeline.cluster
        server = cluster.devices_per_server
        top = cluster.devices - self.pipeline.stages + 1
        work, weights = self._work[ends][:, at], self._weights[ends][:, at]
        after_slow, after_fast = most_seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            fewest = np.maximum(np.ceil(work / after_slow), 1.0)
        fastest = max(cluster.intra_bw, cluster.inter_bw)
        near, far = (
            np.floor(np.minimum(_largest_group(weights * 2 / bandwidth, most_reduce), top))
            for bandwidth in (fastest, cluster.inter_bw)
        )
        largest_group = np.maximum(far, np.minimum(near, server))
        legal = self._legal[ends][:, at] & (fewest <= largest_group)
        passable = after_slow + self._slow[at] / m >= self._slow[at]
        slow = np.where(passable, sums.min(axis=0) + counts[:, None] * self._slow[at], np.inf)
        cheapest = np.sqrt(work)
        longer = np.full((SLOTS + 1, len(prices), len(self._rest)), np.inf)
        for i, price in enumerate(prices):
            group = cheapest * np.sqrt(passes[i] / price) if price else largest_group
            group = np.minimum(np.maximum(group, fewest), largest_group)
            cost = passes[i] * work / group + price * group + slow[i]
            longer[SLOTS, i, ends] = np.where(legal, cost, np.inf).min(axis=1)
        if server == 1 or cluster.intra_bw <= cluster.inter_bw:
            return longer
        fewest = np.maximum(np.ceil(work / after_fast), 1.0)
        legal = self._legal[ends][:, at] & (fewest <= near)
        row, column = np.nonzero(legal & (fewest < server))
        if not row.size:
            return longer
        fast = sums + counts[:, None] * self._fast[at]
        work, fewest, near = work[row, column], fewest[row, column], near[row, column]
        slots = min(SLOTS, server)
        for filled in range(slots):
            low = max(-(-filled * server // slots), 1)
            high = min(-(-(filled + 1) * server // slots) - 1, server - 1)
            chosen = np.flatnonzero((fewest <= high) & (near >= low) & (low <= high))
            if not chosen.size:
                continue
            end, start, stage_work = row[chosen], column[chosen], work[chosen]
            smallest, largest = np.maximum(fewest[chosen], low), np.minimum(near[chosen], high)
            # passes work / group + price group is least there; at no price, with all devices.
            with np.errstate(divide="ignore", invalid="ignore"):
                cheapest = np.sqrt(stage_work * passes[:, None] / prices[:, None])
            cheapest = np.where(prices[:, None] > 0, cheapest, np.inf)
            group = np.clip(cheapest, smallest, largest)
            cost = passes[:, None] * stage_work / group + prices[:, None] * group
            starts = np.flatnonzero(np.append(True, end[1:] != end[:-1]))
            block = np.arange(len(self._rest))[ends][end[starts]]
            for used in range(slots - filled + 1):
                entered = fast[used][:, start] if used else np.minimum(slow, fast[0])[:, start]
                best = np.minimum.reduceat(cost + entered, starts, axis=1)
                target = longer[min(used + filled, SLOTS)]
                target[:, block] = np.minimum(target[:, block], best)
        return longer


def _largest_group(alone: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Devices r at which ``alone (r - 1) / r`` seconds, a ring's at least, are ``most`` still."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - limit / alone
        return np.where(share > 0, 1.0 / share, np.inf)
