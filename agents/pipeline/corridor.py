"""Corridor search: the best of all plans near a plan, then near that one, ever closer.

Around each cut of a plan lie about 100 places: pairs of a pivot and a device. Pivots stand
``pivot_step`` apart, each the one of its bin before which fewest bytes cross; devices stand
``device_step`` apart, and both boundaries of servers next to the cut are among them. The labels of
``parenvs.agents.pipeline.labels`` over these places give the shortest of all plans that cut
at places: some 100^(S-1) plans at the price of S 100^2 pairs. The plan itself is among them, so
that plans get no longer. A *sweep* is one such search; ``Corridor.descend`` repeats it and halves
the steps, down to 1.

1. Labels of a place are many where core and tail may be traded; at most 12 stay, spread
   over the front. So a sweep is a heuristic; it is exact where no label was left out.
2. The seconds of the stages in front of a place are at least those of the fastest way there, a
   forward pass over the same pairs. Labels with which the plan would be no shorter than the one at
   hand are dropped, and tails are raised to the backward seconds that hide them in any case
   (facts 4 and 5 of ``labels``).
3. Work is counted in sweeps, and chance comes from a seed alone: the same budget finds the same
   plan on every machine. A deadline only cuts the search off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, least_shares
from parenvs.agents.pipeline.heuristics import even_plan, to_whole_samples
from parenvs.agents.pipeline.labels import insert_label, prepend_core, prepend_tail
from parenvs.cluster import same_server, server_of
from parenvs.compiled import compiled
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import RangeTable
from parenvs.tasks.pipeline.spaces import (
    Cuts,
    PointSpace,
    ascending,
    distinct_pivots,
    graded,
    spaced,
)

GAIN = 1e-3
"""Relative: a sweep that shortens a plan by more is repeated before the steps are halved."""
AGAIN = 3
"""Sweeps of the same steps at most."""
_FRONT = 512  # labels of a place before they are thinned out; those beyond are left out


class Width(NamedTuple):
    """How wide a corridor is.

    Attributes:
        places: places around each cut, about.
        labels: labels of a place that stay.
        reach: devices to either side of a cut; the fewer, the more pivots.
    """

    places: int = 100
    labels: int = 12
    reach: int = 4


NARROW = Width(40, 6)
"""Corridors in which starts are compared."""
PLACES, PAIRS = 250, 1_000_000
"""Places of wide corridors at most, and pairs of places of all stages together, about."""
ACROSS = 0
"""The reach of corridors along the chain, for plans whose devices are about right."""
REACHES = (0, 4, 4, 16)
"""Reaches from which restarts choose."""


class Labels(NamedTuple):
    """Labels of the suffixes that start at the places of one cut, the transfer in front included.

    Attributes:
        start: (2, places + 1) int64; the labels of a place are a range, in row 1 those for a stage
            in front that starts in the server of the place's device, in row 0 those for others.
        core: (l,) float64 seconds.
        tail: (l,) float64 seconds.
        parent: (l,) int64, the label of the next cut that was extended.
        place: (l,) int64, the place.
    """

    start: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    parent: np.ndarray
    place: np.ndarray


class Stages(NamedTuple):
    """Stages from a place of one cut to a place of the next, (r,) each, sorted by the former.

    Attributes:
        first: int64, place where the stage starts.
        end: int64, place where it ends.
        seconds: float64, forward plus backward seconds.
        backward: float64 seconds.
        reduce: float64 seconds of the all-reduce.
        near: int64, 1 if the stage lies in one server.
        row: int64, the row of ``Labels.start`` of the labels that it extends.
    """

    first: np.ndarray
    end: np.ndarray
    seconds: np.ndarray
    backward: np.ndarray
    reduce: np.ndarray
    near: np.ndarray
    row: np.ndarray


class Front(NamedTuple):
    """What is known of the places of one cut from the stages in front.

    Attributes:
        passed: (places,) least forward plus backward seconds, without the transfer there.
        forward: (places,) least forward seconds.
        hidden: (places,) least backward seconds.
        slow: (places,) seconds of the transfer there between servers, both directions.
        fast: (places,) seconds inside a server.
    """

    passed: np.ndarray
    forward: np.ndarray
    hidden: np.ndarray
    slow: np.ndarray
    fast: np.ndarray

    @property
    def least_transfer(self) -> np.ndarray:
        """Seconds that the transfers take at least, (places,)."""
        return np.minimum(self.slow, self.fast)


class Corridor:
    """Sweeps over the plans of one problem, of two stages or more.

    Attributes:
        pipeline: the problem.
        pivots: (m,) int64, where plans may cut, ascending.
        wide: a wide corridor.
        sweeps: number of sweeps so far.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        prepare()
        self.pipeline, self.sweeps = pipeline, 0
        variables, pivots = pipeline.variable_sum, distinct_pivots(pipeline)
        inside = (variables[pivots] > 0) & (variables[pivots] < variables[-1])
        self.pivots = pivots[inside]
        places = min(int((PAIRS / pipeline.stages) ** 0.5), PLACES)
        self.wide = Width(places)
        self._cheapest = RangeTable(pipeline.cut_before[self.pivots])
        # Of a transfer, half the seconds are forward.
        self._shares = tuple(min(share, 0.5) for share in least_shares(pipeline))

    def widest(self) -> tuple[int, int]:
        """Steps from which a descent starts: corridors of neighboring cuts overlap well."""
        stages = self.pipeline.stages
        return (
            max(len(self.pivots) // (2 * stages), 1),
            max(self.pipeline.cluster.devices // (2 * stages), 1),
        )

    def descend(
        self,
        plan: Cuts,
        steps: tuple[int, int] | None = None,
        width: Width | None = None,
        last: float = np.inf,
        deadline: float = np.inf,
    ) -> Cuts:
        """Sweep around a plan, with smaller and smaller steps.

        Args:
            plan: cuts and device cuts, (S-1,) int64 each, which ascend; it need not fit the memory.
            steps: pivots and devices that places stand apart at first (default: ``widest``).
            width: how wide the corridors are (default: ``wide``).
            last: the search ends after so many sweeps of this object, ``sweeps``.
            deadline: the search ends at this ``time.perf_counter()``.

        Returns:
            The shortest plan found that fits, or ``plan`` if no sweep found one.
        """
        pivot_step, device_step = self.widest() if steps is None else steps
        upper = self.length(plan)
        while True:
            for _ in range(AGAIN):
                if self.sweeps >= last or time.perf_counter() > deadline:
                    return plan
                shorter = self.sweep(plan, (pivot_step, device_step), width, upper, deadline)
                if shorter is None:
                    break
                before, upper, plan = upper, self.length(shorter), shorter
                if upper > before * (1 - GAIN):
                    break
            if pivot_step == device_step == 1:
                return plan
            pivot_step, device_step = max(pivot_step // 2, 1), max(device_step // 2, 1)

    def length(self, plan: Cuts) -> float:
        """Seconds of a step of a plan; infinite if it does not fit the memory."""
        fits = float(self.pipeline.excess_bytes(*plan)) <= 0
        _, device_cuts = plan
        groups = np.diff(np.concatenate([[0], device_cuts, [self.pipeline.cluster.devices]]))
        if not (fits and self.pipeline.is_group[groups].all()):
            return np.inf
        return float(self.pipeline.length(*plan))

    def sweep(
        self,
        plan: Cuts,
        steps: tuple[int, int],
        width: Width | None = None,
        upper: float = np.inf,
        deadline: float = np.inf,
    ) -> Cuts | None:
        """The shortest plan found at the places around ``plan``.

        Args:
            plan: cuts and device cuts, (S-1,) int64 each.
            steps: pivots and devices that places stand apart.
            width: how wide the corridor is (default: ``wide``).
            upper: seconds; only shorter plans are looked for.
            deadline: the sweep is given up at this ``time.perf_counter()``.

        Returns:
            Cuts and device cuts of a plan that fits the memory and is shorter than ``upper``, or
            None if none was found.
        """
        self.sweeps += 1
        width = self.wide if width is None else width
        places = list(self._places_around(plan, steps, width))
        budget = formulas.core_budget(upper) * (1.0 - SLACK)
        stages = self.pipeline.stages
        fronts = [self._front(places[0], np.zeros(1))]
        feasible_stages = []
        # Forward, the least seconds up to each place; then backward, the labels.
        for s in range(stages):
            if time.perf_counter() > deadline:
                return None
            feasible, passed = self._feasible_stages(places[s], places[s + 1], fronts[s], budget)
            feasible_stages.append(feasible)
            fronts.append(self._front(places[s + 1], passed))
            if not np.isfinite(passed).any():
                return None
        zero = np.zeros(1, dtype=np.int64)
        root = np.array([[0, 1], [0, 1]])
        layers = [Labels(root, np.zeros(1), np.zeros(1), zero - 1, zero)]
        for s in range(stages - 1, -1, -1):
            labels = layers[-1]
            if not labels.core.size or time.perf_counter() > deadline:
                return None
            extending = self._extending_stages(
                stages - s, places[s : s + 2], feasible_stages[s], labels, fronts[s], budget
            )
            if s:
                extended = _extend_labels(
                    *extending, labels.start, labels.core, labels.tail, *fronts[s],
                    len(places[s][0]), self.pipeline.micro_batches, budget, width.labels,
                )  # fmt: skip
                layers.append(Labels(*extended))
        return self._best_plan(extending, layers, places, budget)

    def _places_around(self, plan: Cuts, steps: tuple[int, int], width: Width) -> Iterator[Cuts]:
        """Yield the places around each cut of a plan, the ends of the chain included."""
        pivot_step, device_step = steps
        pipeline, devices = self.pipeline, self.pipeline.cluster.devices
        server, middle = pipeline.cluster.devices_per_server, len(self.pivots)
        yield np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        for cut, device in zip(*plan, strict=True):
            nearby = device + device_step * np.arange(-width.reach, width.reach + 1)
            # Both boundaries of the server: stages that cross neither have the fast network.
            floor = device // server * server
            group = np.unique(np.append(nearby, [floor, floor + server]))
            group = group[(group >= 1) & (group < devices)]
            half_width = max((width.places // len(group) - 1) // 2, 1)
            center = int(np.searchsorted(self.pivots, cut))
            bins = center - pivot_step // 2 + pivot_step * np.arange(-half_width, half_width + 2)
            edges = np.unique(np.clip(bins, 0, middle))
            chosen = self.pivots[self._cheapest.index(edges[:-1], edges[1:])]
            pivot = np.unique(np.append(chosen, cut))
            yield np.repeat(pivot, len(group)), np.tile(group, len(pivot))
        yield np.array([len(pipeline.profile)]), np.array([devices])

    def _front(self, places: Cuts, passed: np.ndarray) -> Front:
        cluster, (pivots, _) = self.pipeline.cluster, places
        slow, fast = (
            2 * formulas.transfer_seconds(self.pipeline.cut_before[pivots], bandwidth)
            for bandwidth in (cluster.inter_bw, cluster.intra_bw)
        )
        reached = np.isfinite(passed)
        forward, backward = (
            np.where(reached, share * np.where(reached, passed, 0.0), np.inf)
            for share in self._shares
        )
        return Front(passed, forward, backward, slow, fast)

    def _feasible_stages(
        self, places: Cuts, behind: Cuts, front: Front, budget: float
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
        """Return the stages that keep the budget, and the least seconds up to places behind them.

        Stages are the places of their ends, and their seconds, (r,) each.
        """
        pipeline, work = self.pipeline, self.pipeline.seconds_sum
        (p, e), (q, d) = places, behind
        group = d - e[:, None]
        variables = pipeline.variable_sum
        legal = (group > 0) & (variables[q] > variables[p][:, None])
        passed = front.passed + front.least_transfer
        legal &= np.isfinite(passed)[:, None]
        first, end = np.nonzero(legal)
        size = group[first, end]
        seconds = formulas.compute_seconds(work[q[end]] - work[p[first]], size)
        before = passed[first] + seconds
        # One micro-batch passes the stages in front, then all others pass this one.
        keep = formulas.through(before, seconds, pipeline.micro_batches) <= budget
        if not pipeline.fractions:
            keep &= pipeline.is_group[size]
        first, end = first[keep], end[keep]
        passed_by = np.full((len(p), len(q)), np.inf)
        passed_by[first, end] = before[keep]
        return (first, end, seconds[keep]), passed_by.min(axis=0)

    def _extending_stages(
        self,
        left: int,
        places: list[Cuts],
        pairs: tuple[np.ndarray, np.ndarray, np.ndarray],
        labels: Labels,
        front: Front,
        budget: float,
    ) -> Stages:
        """Return the stages that fit the memory and may be part of a shorter plan.

        ``left`` stages are these and later ones; ``places`` and ``front`` are of the cut before,
        ``labels`` of the cut behind; ``pairs`` are of ``_feasible_stages``.
        """
        pipeline, server = self.pipeline, self.pipeline.cluster.devices_per_server
        (p, e), (q, d) = places
        first, end, seconds = pairs
        row = (server_of(e[first], server) == server_of(d[end], server)).astype(np.int64)
        least = np.full((2, len(q)), np.inf)
        for side in (0, 1):
            part = slice(labels.start[side, 0], labels.start[side, -1])
            np.minimum.at(least[side], labels.place[part], labels.core[part])
        core = formulas.prepend_core(least[row, end], seconds, pipeline.micro_batches)
        passed = front.passed + front.least_transfer
        keep = np.flatnonzero(passed[first] + core <= budget)
        start, stop, size = p[first[keep]], q[end[keep]], d[end[keep]] - e[first[keep]]
        needed = pipeline.memory_of(start, stop, size, np.full_like(size, left))
        fits = needed <= pipeline.memory_limit
        keep, start, stop, size = keep[fits], start[fits], stop[fits], size[fits]
        first, end = first[keep], end[keep]
        work = pipeline.backward_sum
        return Stages(
            first,
            end,
            seconds[keep],
            formulas.compute_seconds(work[stop] - work[start], size),
            pipeline.reduce_seconds(start, stop, e[first], d[end]),
            same_server(e[first], d[end], server).astype(np.int64),
            row[keep],
        )

    def _best_plan(
        self, stages: Stages, layers: list[Labels], places: list[Cuts], budget: float
    ) -> Cuts | None:
        """Return the shortest plan of a first stage and a label, if it keeps the budget."""
        labels = layers[-1]
        # Every stage with every label that it extends, sorted by stage.
        begin = labels.start[stages.row, stages.end]
        count = labels.start[stages.row, stages.end + 1] - begin
        stage = np.repeat(np.arange(len(count)), count)
        label = begin[stage] + np.arange(len(stage)) - np.repeat(np.cumsum(count) - count, count)
        if not stage.size:
            return None
        core = formulas.prepend_core(
            labels.core[label], stages.seconds[stage], self.pipeline.micro_batches
        )
        tail = formulas.prepend_tail(
            labels.tail[label], stages.backward[stage], stages.reduce[stage]
        )
        both = core + np.maximum(tail, 0.0)
        best = int(both.argmin())
        if both[best] > budget:
            return None
        plan, at = [], int(label[best])
        for (pivots, devices), layer in zip(places[1:], layers[:0:-1], strict=False):
            plan.append((pivots[layer.place[at]], devices[layer.place[at]]))
            at = int(layer.parent[at])
        cuts, device_cuts = np.array(plan).T
        return cuts, device_cuts


@cache
def prepare() -> None:
    """Compile the loops, or load them, once a process: that is no part of a search."""
    index, number, one = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(1)
    start = np.zeros((2, 2), dtype=np.int64)
    costs = Stages(index, index, number, number, number, index, index)
    _extend_labels(*costs, start, number, number, *Front(one, one, one, one, one), 1, 1, np.inf, 1)


@compiled
def _extend_labels(
    first, end, seconds, backward, reduce, near, row, start, label_core, label_tail, passed,
    forward, hidden, slow, fast, places, micro_batches, budget, most,
):  # fmt: skip
    """Put stages, then the transfers in front of them, in front of labels.

    Arguments are the fields of ``Stages``, the first of ``Labels`` and ``Front``; then
    the number of places where the stages start, M, the seconds of core plus tail beyond which
    labels are dropped, and the labels that stay of each place and row, spread over the front.
    Returns the fields of ``Labels``.
    """
    cores, tails = np.empty((2, _FRONT)), np.empty((2, _FRONT))
    parents = np.empty((2, _FRONT), dtype=np.int64)
    sizes = np.zeros(2, dtype=np.int64)
    merged_core, merged_tail = np.empty(_FRONT), np.empty(_FRONT)
    merged_parent = np.empty(_FRONT, dtype=np.int64)
    core_out, tail_out = np.empty((2, places * most)), np.empty((2, places * most))
    parent_out = np.empty((2, places * most), dtype=np.int64)
    place_out = np.empty((2, places * most), dtype=np.int64)
    starts = np.zeros((2, places + 1), dtype=np.int64)
    pair = 0
    for place in range(places):
        sizes[:] = 0
        while pair < len(first) and first[pair] == place:
            x, side, q = seconds[pair], near[pair], end[pair]
            for label in range(start[row[pair], q], start[row[pair], q + 1]):
                core = prepend_core(label_core[label], x, micro_batches, max)
                if passed[place] + core > budget:
                    continue
                tail = prepend_tail(label_tail[label], backward[pair], reduce[pair], max)
                if forward[place] + core + max(tail, hidden[place]) > budget:
                    continue
                sizes[side] = insert_label(
                    cores[side], tails[side], parents[side], sizes[side], core, tail, label
                )
            pair += 1
        for same in range(2):
            merged = 0
            for side in range(2):
                transfer = fast[place] if same and side else slow[place]
                for i in range(sizes[side]):
                    core = prepend_core(cores[side, i], transfer, micro_batches, max)
                    tail = prepend_tail(tails[side, i], transfer / 2, hidden[place], max)
                    if passed[place] + core > budget or forward[place] + core + tail > budget:
                        continue
                    merged = insert_label(
                        merged_core, merged_tail, merged_parent, merged, core, tail,
                        parents[side, i],
                    )  # fmt: skip
            # Evenly over the front, its ends included: the least core and the least tail stay.
            size, begin = min(merged, most), starts[same, place]
            for rank in range(size):
                i = rank * (merged - 1) // max(size - 1, 1)
                core_out[same, begin + rank] = merged_core[i]
                tail_out[same, begin + rank] = merged_tail[i]
                parent_out[same, begin + rank] = merged_parent[i]
                place_out[same, begin + rank] = place
            starts[same, place + 1] = begin + size
    count, other = starts[0, places], starts[1, places]
    starts[1] += count
    return (
        starts,
        np.concatenate((core_out[0, :count], core_out[1, :other])),
        np.concatenate((tail_out[0, :count], tail_out[1, :other])),
        np.concatenate((parent_out[0, :count], parent_out[1, :other])),
        np.concatenate((place_out[0, :count], place_out[1, :other])),
    )


STARTS = 3
"""Starts that are descended from, the most promising ones."""
PATIENCE = 12
"""Restarts without a gain after which a search ends by default."""


def search(
    pipeline: Pipeline,
    start: Cuts | None = None,
    sweeps: int | None = None,
    seed: int = 0,
    deadline: float = np.inf,
    patience: float = PATIENCE,
) -> Cuts | None:
    """The shortest plan that descents from many starts find; None if no plan that fits is found.

    The starts are ``start``, the even plan and plans of graded stages; each is tried by one sweep
    of a narrow corridor, and the best are descended from. Then parts of the best plan are changed
    at random, again and again.

    Args:
        pipeline: the problem, of two stages or more.
        start: cuts and device cuts of a plan, (S-1,) int64 each, which need not fit the memory.
        sweeps: number of sweeps at most (default: as many as it takes until nothing is gained).
        seed: of the changes.
        deadline: the search ends at this ``time.perf_counter()``.
        patience: restarts without a gain after which the search ends.
    """
    corridor, rng = Corridor(pipeline), np.random.default_rng(seed)
    last = np.inf if sweeps is None else sweeps
    best: Cuts | None = None
    upper = np.inf

    def update_best(plan: Cuts) -> float:
        nonlocal best, upper
        length = corridor.length(plan)
        if length < upper:
            best, upper = plan, length
        return length

    def descend(plan: Cuts, width: Width, steps: tuple[int, int] | None = None) -> Cuts:
        plan = corridor.descend(plan, steps, width, last, deadline)
        update_best(plan)
        return plan

    def is_over() -> bool:
        return corridor.sweeps >= last or time.perf_counter() > deadline

    candidates: list[tuple[float, int, Cuts]] = []
    for number, plan in enumerate(([] if start is None else [start]) + _starts(pipeline)):
        length = update_best(plan)
        if not is_over():
            swept = corridor.sweep(plan, corridor.widest(), NARROW, length, deadline)
            plan = plan if swept is None else swept
        candidates.append((update_best(plan), number, plan))
    candidates.sort(key=itemgetter(0, 1))
    for length, _, plan in candidates[:STARTS]:
        if np.isfinite(length):
            descend(descend(plan, NARROW._replace(reach=ACROSS)), NARROW)
    if best is None:
        return None
    descend(best, corridor.wide)
    # Restarts differ in how far they go, so that both small and large changes are tried.
    failures = 0
    while not is_over() and failures < patience:
        before = upper
        scale = 2.0 ** -rng.integers(0, 6)
        pivot_step, device_step = (max(int(scale * x), 1) for x in corridor.widest())
        width = corridor.wide._replace(reach=int(rng.choice(REACHES)))
        start_plan = best if rng.random() < 0.3 else changed(pipeline, best, rng)
        descend(start_plan, width, (pivot_step, device_step))
        failures = 0 if upper < before * (1 - GAIN) else failures + 1
    return best


def _starts(pipeline: Pipeline) -> list[Cuts]:
    plans = graded(pipeline)
    with suppress(InfeasibleError):  # more stages than a ``PointSpace`` can have
        space = PointSpace.build(pipeline, by_network=True)
        plans.insert(0, space.plan(*even_plan(space)))
    return [to_whole_samples(pipeline, plan) for plan in plans]


def changed(pipeline: Pipeline, plan: Cuts, rng: np.random.Generator) -> Cuts:
    """A plan with some neighboring cuts moved, in the chain, over the devices or both."""
    cuts, devices = (np.array(x) for x in plan)
    size = len(cuts)
    first = int(rng.integers(size))
    end = int(rng.integers(first + 1, size + 1))
    reach = rng.choice([0.5, 1.0, 2.0])
    moves_cuts, moves_devices = ((True, False), (False, True), (True, True))[rng.integers(3)]
    if moves_devices:
        step = reach * pipeline.cluster.devices / (size + 1)
        devices[first:end] += np.rint(rng.normal(0.0, step)).astype(np.int64)
    if moves_cuts:
        step = reach * len(pipeline.profile) / (size + 1)
        cuts[first:end] += np.rint(rng.normal(0.0, step)).astype(np.int64)
    cuts = np.sort(np.clip(cuts, 1, len(pipeline.profile) - 1))
    return ascending(pipeline, cuts), spaced(np.sort(devices), pipeline.cluster.devices)
