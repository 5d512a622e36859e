"""A lower bound of the length of all plans, by a programme over the cuts with a price of devices.

For limits C on the core and T on the tail, a plan within both keeps, stage by stage from the front,
with P the seconds passed and H the backward seconds passed: ``P + M x <= C`` for each stage and
transfer of x seconds, and ``AR <= T + H``. ``Relaxation.excludes`` relaxes that:

1. Devices have no places, only numbers. With a price l, stages of W seconds of work on one device
   and r devices add ``W / r + l r`` each, transfers their seconds. A programme over (stages, cut)
   finds the least sum; where it exceeds ``C + l D`` at the end (of the last stage M W / r counts),
   no plan keeps C. The prices are a few multiples of C / D, and one at which devices alone count.
2. A sum in front of a cut bounds the seconds passed there from below, as the prefix pays for
   at most D devices less those that the rest needs (fact 2 of ``bounds``). Groups behind the cut
   are of at least ``M W / (C - P)`` devices.
3. The same fact bounds H from above, and so the devices of a stage by its all-reduce.
4. A transfer is fast only between stages that lie in one server. The programme knows the share of
   a server that the stages since the last slow transfer fill, in ``SLOTS`` parts.
5. Where there are many pivots, they are merged into blocks. Work and weights between blocks count,
   and the fewest bytes that cross a cut of a block.

A length U is impossible if every pair ``(U - T0, T1)`` is for intervals [T0, T1] that cover all
tails that are left beside the least core; intervals are halved until they are ``WIDTH`` of U.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, capacity, least_length, least_shares
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import distinct_pivots

BLOCKS = 128
"""Most blocks of pivots."""
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
    least = min(least_length(pipeline) * (1 - SLACK), upper)
    if pipeline.stages == 1:
        return least
    relaxation = Relaxation(pipeline, deadline)
    core = relaxation.greatest(least, upper, lambda core: relaxation.excludes(core, np.inf))
    return relaxation.greatest(core, upper, lambda length: relaxation.impossible(length, core))


class Relaxation:
    """The programmes of one problem, of two stages or more."""

    def __init__(self, pipeline: Pipeline, deadline: float = np.inf, blocks: int = BLOCKS) -> None:
        """Prepare what does not depend on limits; m blocks, both ends of the chain included."""
        self.pipeline, self.deadline, self._tests = pipeline, deadline, 0
        cluster, variables = pipeline.cluster, pipeline.variable_sum
        pivots = distinct_pivots(pipeline)
        pivots = pivots[(variables[pivots] > 0) & (variables[pivots] < variables[-1])]
        edges = np.linspace(0, len(pivots), min(blocks, len(pivots)), endpoint=False)
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
        while high > low * (1 + STEP) and self._goes_on():
            middle = (low * high) ** 0.5
            low, high = (middle, high) if excluded(middle) else (low, middle)
        return low

    def impossible(self, length: float, least_core: float) -> bool:
        """Whether it is known that no plan is as short as ``length``, and none has less core."""
        tails = [(0.0, length - least_core)]
        while tails:
            least, most = tails.pop()
            if self.excludes(length - least, most):
                continue
            if most - least <= WIDTH * length or not self._goes_on():
                return False
            middle = (least + most) / 2
            tails += [(least, middle), (middle, most)]
        return True

    def _goes_on(self) -> bool:
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
            # Fact 2 of ``bounds``, for the stages that are left.
            room = devices - stages + self._capacity[left]
            before = passed + self._fast
            here = np.isfinite(sums).any(axis=(0, 1)) & (passed + m * self._fast <= core)
            at = np.flatnonzero(here & (m * self._rest <= (core - before) * room))
            most_seconds = (core - passed[at] - [self._slow[at], self._fast[at]]) / m
            if not at.size:
                return True
            most_hidden = self._backward_share * (core - m * self._rest[at] / room)
            most_reduce = tail + np.maximum(most_hidden, 0.0)
            last = slice(-1, None) if left == 1 else slice(None)
            own = counts * (m if left == 1 else 1)
            sums = self._extended(
                last, at, sums[:, :, at], counts, own, prices, most_seconds, most_reduce
            )
            if left == 1:
                break
            least = sums.min(axis=0)
            passed, left = np.zeros(len(self._rest)), left - 1
            for _ in range(3):
                with np.errstate(divide="ignore", invalid="ignore"):
                    rest = m * self._rest / (core - passed) + left - self._capacity[left]
                rest = np.where(passed < core, np.maximum(rest, left), np.inf)
                free = devices - rest
                known = np.isfinite(free)
                bounds = least[:-1] - prices[:-1, None] * np.where(known, free, 0.0)
                passed = np.where(known, np.maximum(bounds.max(axis=0), passed), np.inf)
            sums[:, :, (least[-1] > free * (1 + _ROUNDING)) | ~np.isfinite(passed)] = np.inf
        return bool((sums.min(axis=0)[:, -1] > counts * core + prices * devices).any())

    def _extended(
        self,
        ends: slice,
        at: np.ndarray,
        sums: np.ndarray,
        counts: np.ndarray,
        own: np.ndarray,
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
            own: (prices,) of a stage's seconds.
            prices: (prices,) of a device.
            most_seconds: (2, a) seconds of a stage behind a slow transfer, and behind a fast one.
            most_reduce: (a,) seconds of its all-reduce.
        """
        m, cluster = self.pipeline.micro_batches, self.pipeline.cluster
        server = cluster.devices_per_server
        top = cluster.devices - self.pipeline.stages + 1
        work, weights = self._work[ends][:, at], self._weights[ends][:, at]
        with np.errstate(divide="ignore", invalid="ignore"):
            fewest = np.maximum(np.ceil(work / most_seconds[0]), 1.0)
        fastest = max(cluster.intra_bw, cluster.inter_bw)
        near, far = (
            np.floor(np.minimum(_most_devices(weights * 2 / bandwidth, most_reduce), top))
            for bandwidth in (fastest, cluster.inter_bw)
        )
        most = np.maximum(far, np.minimum(near, server))
        legal = self._legal[ends][:, at] & (fewest <= most)
        passable = most_seconds[0] + self._slow[at] / m >= self._slow[at]
        slow = np.where(passable, sums.min(axis=0) + counts[:, None] * self._slow[at], np.inf)
        cheapest = np.sqrt(work)
        longer = np.full((SLOTS + 1, len(prices), len(self._rest)), np.inf)
        for i, price in enumerate(prices):
            group = cheapest * np.sqrt(own[i] / price) if price else most
            group = np.minimum(np.maximum(group, fewest), most)
            cost = own[i] * work / group + price * group + slow[i]
            longer[SLOTS, i, ends] = np.where(legal, cost, np.inf).min(axis=1)
        if server == 1 or cluster.intra_bw <= cluster.inter_bw:
            return longer
        fewest = np.maximum(np.ceil(work / most_seconds[1]), 1.0)
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
            r, c, w = row[chosen], column[chosen], work[chosen]
            least, greatest = np.maximum(fewest[chosen], low), np.minimum(near[chosen], high)
            group = np.clip(_cheapest(w, own[:, None], prices[:, None]), least, greatest)
            cost = own[:, None] * w / group + prices[:, None] * group
            starts = np.flatnonzero(np.append(True, r[1:] != r[:-1]))
            block = np.arange(len(self._rest))[ends][r[starts]]
            for used in range(slots - filled + 1):
                entered = fast[used][:, c] if used else np.minimum(slow, fast[0])[:, c]
                best = np.minimum.reduceat(cost + entered, starts, axis=1)
                target = longer[min(used + filled, SLOTS)]
                target[:, block] = np.minimum(target[:, block], best)
        return longer


def _cheapest(work: np.ndarray, count: float | np.ndarray, price: float | np.ndarray) -> np.ndarray:
    """Devices at which ``count work / devices + price devices`` is least; infinite at no price."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(price > 0, np.sqrt(work * count / price), np.inf)


def _most_devices(alone: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Devices r at which ``alone (r - 1) / r`` seconds, a ring's at least, are ``most`` still."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1.0 - most / alone
        return np.where(share > 0, 1.0 / share, np.inf)
