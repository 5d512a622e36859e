"""The pruned search space of pipeline cutting: which pivots may be cut, and which next.

A cut at pivot p (the first pivot of the next stage) comes with the device cut
``d(p) = clip(round(D C_p / C_n), 1, D-1)``, C the prefix sum of forward plus backward seconds.
The k-th device cut must lie within ``radius`` of the center solution, and only pivots at which few
bytes cross (local minima: layer boundaries) are candidates (arXiv 2007.04069, section 3.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from parenvs.compiled import Array
from parenvs.errors import InfeasibleError, refuse_unknown
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, check_stages

RADIUS = 3
"""Default distance of a device cut from the center solution."""
PRUNINGS = ("minima", "all")
"""Candidate pivots: those at which fewest bytes cross, or all."""
Cuts = tuple[Array, Array]
"""(S-1,) cuts and (S-1,) device cuts of a plan."""


def cuts_of(plan: PipelinePlan) -> Cuts:
    """(S-1,) int64 cuts and device cuts of a plan."""
    return np.array(plan.cuts, np.int64), np.array(plan.device_cuts, np.int64)


def device_of_pivot(pipeline: Pipeline) -> Array:
    """Return the device cut d(p) that belongs to a cut at each pivot, (n+1,) int64."""
    devices = pipeline.cluster.devices
    proportional_cut = devices * pipeline.seconds_sum / pipeline.seconds_sum[-1]
    return np.clip(np.rint(proportional_cut), 1, devices - 1).astype(np.int64)


def center_cuts(pipeline: Pipeline, stages: int) -> Array:
    """Return the device cuts of the center solution, (S-1,) int64.

    They divide the devices evenly, at boundaries of servers if there is a server for each stage.
    """
    cluster = pipeline.cluster
    even_cuts = np.arange(1, stages) * cluster.devices / stages
    # With a server for each stage, stages begin at servers, so that all-reduces stay inside one.
    unit_devices = cluster.devices_per_server if cluster.servers >= stages else 1
    return (np.rint(even_cuts / unit_devices) * unit_devices).astype(np.int64)


def local_minima(pipeline: Pipeline) -> Array:
    """Return the pivots before which fewer bytes cross than before their neighbors, (c,) int64.

    They are ascending. Of a plateau of equal cuts that is lower than both neighbors, the last
    pivot counts. Pivots with different device cuts are not neighbors, so that every device cut
    keeps at least one pivot.
    """
    crossing, device = pipeline.cut_before[1:-1], device_of_pivot(pipeline)[1:-1]
    new_device = device[1:] != device[:-1]
    plateau_end = np.flatnonzero(np.append((crossing[1:] != crossing[:-1]) | new_device, True))
    plateau_bytes, plateau_device = crossing[plateau_end], device[plateau_end]
    other_device = plateau_device[1:] != plateau_device[:-1]
    less_than_next = np.append(other_device | (plateau_bytes[1:] > plateau_bytes[:-1]), True)
    less_than_last = np.append(True, other_device | (plateau_bytes[1:] < plateau_bytes[:-1]))
    # Nothing is cut before pivot 0, which was left out.
    return plateau_end[less_than_next & less_than_last] + 1


@dataclass(frozen=True)
class CutSpace:
    """Candidates of one pipeline problem, and which of them may follow which.

    Attributes:
        pipeline: the problem.
        radius: the radius in force; it is larger than the argument of ``build`` if that radius
            admitted no plan.
        pivots: (c,) int64, candidate pivots, ascending.
        devices: (c,) int64, their device cuts.
        allowed: (S-1, c) bool, whether a candidate may be cut k so that the remaining cuts can
            still follow.
    """

    task: ClassVar[str] = "pipeline"
    pipeline: Pipeline
    radius: int
    pivots: Array
    devices: Array
    allowed: Array

    @classmethod
    def build(
        cls, pipeline: Pipeline, radius: int = RADIUS, candidates: str = "minima"
    ) -> CutSpace:
        """Find the candidates of a problem.

        Args:
            pipeline: the problem.
            radius: largest distance of a device cut from the center solution; it is widened until
                a plan exists.
            candidates: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.

        Raises:
            InfeasibleError: ``radius`` or ``candidates`` is invalid, or no plan exists even with
                every device cut allowed.
        """
        check_stages(pipeline, fewest=2)
        stages = pipeline.stages
        check_candidates(radius, candidates)
        inside = np.arange(1, len(pipeline.profile))
        pivots = local_minima(pipeline) if candidates == "minima" else inside
        devices = device_of_pivot(pipeline)[pivots]
        distance = np.abs(devices - center_cuts(pipeline, stages)[:, None])
        variables = pipeline.variable_sum[pivots]  # before each candidate
        last_stage_has_variable = pipeline.variable_sum[-1] > variables
        # A wider radius admits new candidates only at a distance that occurs.
        for width in [radius, *np.unique(distance[distance > radius]).tolist()]:
            allowed = (distance <= width) & last_stage_has_variable
            # A follower has more devices and more variables before it. Both grow along the chain,
            # so the last candidate of the next cut decides.
            for k in range(stages - 3, -1, -1):
                last = int(np.append(-1, np.flatnonzero(allowed[k + 1]))[-1])
                has_more = (devices[last] > devices) & (variables[last] > variables)
                allowed[k] &= has_more & (last >= 0)
            if (allowed[0] & (variables > 0)).any():
                break
        else:
            raise InfeasibleError(
                f"{pipeline.words}: the candidates allow no {stages} stages with a variable and "
                "a device each; try candidates='all' or fewer stages"
            )
        useful = allowed.any(axis=0)
        return cls(pipeline, width, pivots[useful], devices[useful], allowed[:, useful])

    @property
    def stages(self) -> int:
        """S; a plan has S-1 cuts."""
        return self.pipeline.stages

    def windows(self) -> list[tuple[int, int]]:
        """Return for each cut the range ``[first, end)`` of candidates that it may be.

        The candidates of a row of ``allowed`` are a range, as every rule behind it bounds the
        device cut or the variables before a candidate, and both grow along the chain.
        """
        indices_by_cut = [np.flatnonzero(row) for row in self.allowed]
        return [(int(indices[0]), int(indices[-1]) + 1) for indices in indices_by_cut]

    def followers(self) -> Array:
        """Return the first candidate that may follow each candidate, (c+1,) int64.

        It is the first with more devices and more variables before it; entry c is the first that
        may be the first cut. The legal candidates of a step are those of its window from there on.
        """
        variables = self.pipeline.variable_sum[self.pivots]
        first_with_more = [
            np.searchsorted(values, np.append(values, 0), side="right")
            for values in (self.devices, variables)
        ]
        return np.maximum(*first_with_more).astype(np.int64)

    def plan(self, chosen: Array | list[int]) -> tuple[Array, Array]:
        """Return ``(cuts, device_cuts)`` of candidate indices of shape (..., k)."""
        index = np.asarray(chosen, np.int64)
        return self.pivots[index], self.devices[index]


def check_candidates(radius: int, candidates: str) -> None:
    """Raise an error for an invalid radius or pruning.

    Raises:
        InfeasibleError: ``radius`` is negative, or ``candidates`` is not one of ``PRUNINGS``.
    """
    refuse_unknown("unknown candidates", candidates, PRUNINGS, InfeasibleError)
    if radius < 0:
        raise InfeasibleError(f"radius must be >= 0, not {radius}")


def fitting(pipeline: Pipeline) -> Cuts:
    """Return the shortest of the plans of ``graded`` that fit the memory.

    Raises:
        InfeasibleError: none fits, or no plan can have the number of stages.
    """
    check_stages(pipeline, fewest=2)
    plans = graded(pipeline)
    cuts, devices = (np.array(x) for x in zip(*plans, strict=True))
    fits = pipeline.excess_bytes(cuts, devices) <= 0
    if not fits.any():
        raise InfeasibleError(
            f"{pipeline.words}: no plan of {pipeline.stages} graded stages fits the memory; "
            "try more devices or a smaller micro-batch"
        )
    return plans[int(np.where(fits, pipeline.length(cuts, devices), np.inf).argmin())]


def graded(pipeline: Pipeline) -> list[Cuts]:
    """Plans of stages that grow or fall along the pipeline, by their work or by their weights.

    They have a variable and a device in each stage; they need not fit the memory.
    """
    stages, m = pipeline.stages, pipeline.micro_batches
    # The terms of the core, sum_{s<=j} x_s + (M-1) x_j, are equal for x_{j+1} = (1 - 1/M) x_j.
    fall = (1.0 - 1.0 / max(m, 2)) ** np.arange(stages)  # what stages take that limit a step alike
    even = np.ones(stages)
    # Of many more stages than micro-batches, the last ones get next to no work.
    used = np.where(np.arange(stages) < min(stages, max(2 * m, 2)), 1.0, 1e-6)
    weights = pipeline.parameter_sum
    rows = [
        (pipeline.seconds_sum, even, even),
        (pipeline.seconds_sum, fall, even),
        (pipeline.seconds_sum, even, 1 / fall),
        (pipeline.seconds_sum, fall**0.5, fall**-0.5),
        (weights if weights[-1] else pipeline.seconds_sum, even, None),
        (weights if weights[-1] else pipeline.seconds_sum, 1 / fall, None),
        (pipeline.seconds_sum, fall**2, even),
        (pipeline.seconds_sum, used, used),
        (pipeline.seconds_sum, used[::-1], used[::-1]),
    ]
    return [shaped(pipeline, *row) for row in rows]


def shaped(pipeline: Pipeline, shared: Array, work: Array, groups: Array | None) -> Cuts:
    """The plan whose stages come near given shares.

    Args:
        pipeline: the problem.
        shared: (n+1,) prefix sum of what is shared by the cuts.
        work: (S,) shares of it, in any unit.
        groups: (S,) shares of the devices; None: in proportion to the stages' work.
    """
    devices = pipeline.cluster.devices
    goal = shared[-1] * np.cumsum(work)[:-1] / work.sum()
    cuts = ascending(pipeline, np.searchsorted(shared[:-1], goal))  # sums may be rounded up
    if groups is None:
        ends = pipeline.seconds_sum[np.concatenate([[0], cuts, [len(pipeline.profile)]])]
        groups = np.maximum(np.diff(ends), 1e-9 * ends[-1])
    ideal = np.rint(devices * np.cumsum(groups)[:-1] / groups.sum())
    return cuts, spaced(ideal.astype(np.int64), devices)


def ascending(pipeline: Pipeline, cuts: Array) -> Array:
    """Cuts near given ones, (S-1,), so that each stage holds a variable."""
    variables, holders = pipeline.variable_sum, int(pipeline.variable_sum[-1])
    wanted = spaced(variables[np.asarray(cuts)], holders)
    # Cuts between the same two variables give stages the same variables.
    low, high = np.searchsorted(variables, wanted), np.searchsorted(variables, wanted, "right") - 1
    return np.clip(cuts, low, high)


def spaced(wanted: Array, end: int) -> Array:
    """Ascending whole numbers from 1 to ``end`` - 1 near the wanted ones, (k,), no two equal."""
    rank = np.arange(len(wanted))
    # Less its rank, an ascending sequence is one that does not fall.
    wanted = np.maximum.accumulate(np.maximum(wanted, 1) - rank) + rank
    rest = end - 1 - rank[::-1]
    return np.minimum(wanted, rest)


POINTS = 128
"""Largest number of points of a chain (arXiv 2007.04069, section 3.5)."""
UNITS = 64
"""Largest number of units of a cluster."""
FINER = 8
"""Bins of ``network_pivots`` for cheap cuts, over those of ``coarse_pivots``."""
STAGES = 8
"""Stages that arrays have room for at least; planners take more."""


@dataclass(frozen=True)
class PointSpace:
    """The points and device units of one pipeline problem, and which choices are legal when.

    Attributes:
        pipeline: the problem.
        pivots: (m+1,) int64, boundaries of the points: 0, the pivots to cut at, n.
        devices: (u+1,) int64, boundaries of the units: 0, the devices to cut at, D.
        latest: (S+1, m+1, m+1) int16; ``latest[k, i, j]`` is the last unit from which a stage of
            the points [i, j), the k-th from the end, can run so that it and all later stages fit
            the memory; -1 if no unit is early enough.
    """

    task: ClassVar[str] = "pipeline"
    pipeline: Pipeline
    pivots: Array
    devices: Array
    latest: Array

    @classmethod
    def build(
        cls, pipeline: Pipeline, max_points: int = POINTS, by_network: bool = False
    ) -> PointSpace:
        """Choose the points and units of a problem.

        Args:
            pipeline: the problem.
            max_points: largest number of points.
            by_network: whether the network's speed decides on the points of a long chain, too
                (``network_pivots``), as is best for planning; environments go by the chain alone.

        Raises:
            InfeasibleError: no plan can have the number of stages, or no plan fits the memory.
        """
        check_stages(pipeline, fewest=2)
        stages = pipeline.stages
        devices = units(pipeline)
        if stages > len(devices) - 1:
            raise InfeasibleError(
                f"{pipeline.words}: {stages} stages asked for; a plan has at most one for each of "
                f"{len(devices) - 1} units of devices"
            )
        pivots = points(pipeline, max_points, by_network)
        latest = _latest_starts(pipeline, pivots, devices)
        if latest[stages, 0].max() < 0:
            raise InfeasibleError(
                f"{pipeline.words}: no plan of {stages} stages over {len(pivots) - 1} points fits "
                f"the memory of {pipeline.memory_limit:,.0f} bytes; try more devices, another "
                "number of stages or a smaller micro-batch"
            )
        return cls(pipeline, pivots, devices, latest)

    @property
    def stages(self) -> int:
        """S; a plan has S-1 cuts."""
        return self.pipeline.stages

    @cached_property
    def starts(self) -> Array:
        """(S+1, m+1): the last unit from which k stages from each point on can run; -1 if none."""
        return self.latest.max(axis=2)

    def legal_points(self, stage: Any, point: Any, unit: Any) -> Array:
        """Return before which points stages may end, (..., m+1) bool.

        Args:
            stage: (...) number of the stage, from 0; not the last, which ends with the chain.
            point: (...) first point of the stage.
            unit: (...) first unit of the stage.
        """
        return self.latest[self.stages - stage, point] >= np.asarray(unit)[..., None]

    def legal_units(self, stage: Any, point: Any, unit: Any, end: Any) -> Array:
        """Return before which units stages of the points [point, end) may end, (..., u+1) bool.

        Other arguments are those of ``legal_points``, which allows ``end``.
        """
        left = self.stages - stage
        last = np.asarray(self.starts[left - 1, end], np.int64)
        # All units but the last are of one size: a stage that starts k units before its latest
        # start may end k units before the latest end.
        first = np.asarray(unit + last - self.latest[left, point, end])
        index = np.arange(len(self.devices))
        return (index >= first[..., None]) & (index <= last[..., None])

    def complete(
        self,
        points: Array,
        units: Array,
        choices: int,
        large: int | None = None,
        by_server: bool = False,
    ) -> None:
        """Complete k plans, as near as is legal to stages that take equally long.

        Args:
            points: (k, S) first point of each stage; those not chosen yet are written.
            units: (k, S) first unit of each stage, likewise.
            choices: points and units chosen so far, in turn.
            large: number of the stage that gets all devices but a server for each other stage; None
                or a stage that is complete: devices are shared in proportion to seconds, which are
                shared evenly.
            by_server: whether stages begin with servers where they can.
        """
        per_server = self.pipeline.cluster.devices_per_server
        inside = self.devices % per_server != 0
        seconds = self.pipeline.seconds_sum[self.pivots]
        for choice in range(choices, 2 * (self.stages - 1)):
            stage, is_unit = divmod(choice, 2)
            point, unit = points[:, stage], units[:, stage]
            stages_left, devices = self.stages - stage, self.devices[-1] - self.devices[unit]
            share = np.full(len(points), 1.0 / stages_left)
            if large is not None and large >= stage:
                small = np.minimum(per_server / devices, 0.5 * share)
                share = 1.0 - (stages_left - 1) * small if stage == large else small
            elif is_unit:
                work = seconds[points[:, stage + 1]] - seconds[point]
                remaining_work = seconds[-1] - seconds[point]
                np.divide(work, remaining_work, out=share, where=remaining_work > 0)
            if is_unit:
                measure, chosen = self.devices, units
                legal = self.legal_units(stage, point, unit, points[:, stage + 1])
            else:
                measure, chosen = seconds, points
                legal = self.legal_points(stage, point, unit)
            first = measure[chosen[:, stage]]
            ideal = first + (measure[-1] - first) * share
            distance = np.abs(measure - ideal[:, None])
            if is_unit and by_server:
                distance += inside * float(measure[-1])
            chosen[:, stage + 1] = np.where(legal, distance, np.inf).argmin(axis=1)

    def plan(self, cuts: Array, device_cuts: Array) -> tuple[Array, Array]:
        """Return the pivots and devices of cuts given as points and units, each (..., S-1)."""
        points, units = (np.asarray(positions, np.int64) for positions in (cuts, device_cuts))
        return self.pivots[points], self.devices[units]


def points(pipeline: Pipeline, max_points: int = POINTS, by_network: bool = False) -> Array:
    """Return the boundaries of m points, (m+1,) int64: 0, the pivots to cut at, n.

    In a chain of at most ``max_points`` pivots each pivot is a point; in a longer one
    ``coarse_pivots`` or, ``by_network``, ``network_pivots`` chooses. Points consist of whole
    pivots, so a plan of points is a plan of pivots, with the same times and the same memory.
    """
    n = len(pipeline.profile)
    pivots = np.arange(1, n)
    if n > max_points:
        pivots = distinct_pivots(pipeline)
    if len(pivots) > max_points - 1:
        choose = network_pivots if by_network else coarse_pivots
        pivots = choose(pipeline, pivots, max_points - 1)
    return np.concatenate([[0], pivots, [n]])


def distinct_pivots(pipeline: Pipeline) -> Array:
    """Return the last pivot of each run of equal pivots; a cut at another one gains nothing.

    Two neighbors are equal if all prefix sums and the bytes that cross are equal. A plan that cuts
    at the later of them has the same times, and no stage needs more memory: the earlier stage gains
    a cut as large as one that it already holds, the later stage loses one.
    """
    pivots = np.arange(1, len(pipeline.profile))
    equals_next = np.ones(len(pivots), bool)
    columns = [pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum]
    columns += [pipeline.variable_sum, pipeline.frozen_sum, pipeline.cut_before]
    if pipeline.tied_weights is not None:
        columns.append(pipeline.tied_weights.rank)
    if pipeline.recompute == "none":
        columns.append(pipeline.resident_sum)
    for column in columns:
        equals_next &= column[pivots] == column[pivots + 1]
    equals_next[-1] = False
    return pivots[~equals_next]


def network_pivots(pipeline: Pipeline, pivots: Array, max_points: int) -> Array:
    """Choose at most ``max_points`` pivots: the slower the network, the more are cheap to cut.

    Pivots without a variable on both sides are no legal cuts. Of the others, half and more are
    spread along the chain by ``coarse_pivots``. The rest are the cheapest that it gives for
    ``FINER`` times as many bins, so that several may lie close together, such as at the head of a
    model.

    Args:
        pipeline: the problem.
        pivots: (k,) int64, ascending.
        max_points: largest number of pivots.
    """
    variables = pipeline.variable_sum
    pivots = pivots[(variables[pivots] > 0) & (variables[pivots] < variables[-1])]
    if len(pivots) <= max_points:
        return pivots
    spread = coarse_pivots(pipeline, pivots, max_points)
    cluster = pipeline.cluster
    transfer = formulas.transfer_seconds(np.median(pipeline.cut_before[spread]), cluster.inter_bw)
    # A transfer there and back, over the work of one device.
    slowness = 2 * transfer / (pipeline.seconds_sum[-1] / cluster.devices)
    cheap = round(max_points / 2 * float(slowness / (1 + slowness)))
    spread = coarse_pivots(pipeline, pivots, max_points - cheap)
    fine = np.setdiff1d(coarse_pivots(pipeline, pivots, FINER * max_points), spread)
    order = np.argsort(pipeline.cut_before[fine], kind="stable")
    return np.sort(np.append(spread, fine[order[: max_points - len(spread)]]))


def coarse_pivots(pipeline: Pipeline, pivots: Array, max_points: int) -> Array:
    """Choose at most ``max_points`` of the pivots, spread evenly along the chain.

    The chain is divided into ``max_points`` bins by the mean of three shares that lie before a
    pivot: of the pivots, of the seconds and of the parameter bytes. The pivot of each bin before
    which fewest bytes cross is chosen.
    """
    shares = np.arange(len(pivots)) / len(pivots)  # sum of the three shares, from 0 to 3
    for prefix_sum in (pipeline.seconds_sum, pipeline.parameter_sum):
        total = prefix_sum[-1]
        shares = shares + prefix_sum[pivots] / (1.0 if total == 0 else total)
    bins = np.minimum((shares / 3 * max_points).astype(np.int64), max_points - 1)
    # Sorted by bin, then by bytes: the first of each bin is its smallest cut.
    order = np.lexsort((pipeline.cut_before[pivots], bins))
    first_of_bin = np.append(True, np.diff(bins[order]) > 0)
    return np.sort(pivots[order[first_of_bin]])


def units(pipeline: Pipeline, max_units: int = UNITS) -> Array:
    """Return the boundaries of at most ``max_units`` units of devices, (u+1,) int64.

    A unit is a device; with more than ``max_units`` devices it is a server or several servers; if
    these servers are fewer than ``STAGES``, or than the stages, it is the smallest part of a
    server of which ``max_units`` units suffice.
    """
    cluster = pipeline.cluster
    server_size, unit_size = cluster.devices_per_server, 1
    if cluster.devices > max_units:
        unit_size = server_size * -(-cluster.servers // max_units)
        # Each stage needs a unit of its own.
        if cluster.servers < min(max(STAGES, pipeline.stages), max_units + 1):
            sizes = range(1, server_size + 1)
            unit_size = next(size for size in sizes if -(-cluster.devices // size) <= max_units)
    return np.append(np.arange(0, cluster.devices, unit_size), cluster.devices)


def fewest_devices(pipeline: Pipeline, first: Array, end: Array, left: int) -> Array:
    """The fewest devices on which stages fit, (k,) float64, inf if there are too few.

    Args:
        pipeline: the problem.
        first: (k,) first pivot of each stage.
        end: (k,) one past its last pivot.
        left: stages from each one to the last, itself included.
    """
    weights, activations = pipeline.memory_parts(first, end, np.array(left))
    limit, max_devices = pipeline.memory_limit, pipeline.cluster.devices
    spare = limit - weights
    group = np.where((spare == 0) & (activations == 0), 1.0, np.inf)
    np.divide(activations, spare, out=group, where=spare > 0)
    group = np.clip(np.ceil(group), 1.0, max_devices + 1.0)
    # The quotient may be off by one, by rounding; the judge's formula decides, to the last bit.
    fewer = np.maximum(group - 1.0, 1.0)
    group = np.where(formulas.stage_bytes(weights, activations, fewer) <= limit, fewer, group)
    group += formulas.stage_bytes(weights, activations, group) > limit
    return np.where(group <= max_devices, group, np.inf)


def _latest_starts(pipeline: Pipeline, pivots: Array, devices: Array) -> Array:
    """Compute ``PointSpace.latest`` from the last stage to the first.

    More devices never hurt, so a stage of the points [i, j) may start on any unit up to the last
    one that leaves it enough devices before the latest start of the stages from point j on.
    """
    m, stages = len(pivots) - 1, pipeline.stages
    all_first, all_end = np.triu_indices(m + 1, 1)
    variables = pipeline.variable_sum[pivots]
    has_variable = variables[all_end] > variables[all_first]
    all_first, all_end = all_first[has_variable], all_end[has_variable]
    latest = np.full((stages + 1, m + 1, m + 1), -1, np.int16)
    # From which the k-1 stages from each point on can run.
    last_unit = np.full(m + 1, -1)
    last_unit[m] = len(devices) - 1
    latest[0, m, m] = len(devices) - 1
    # The last unit that starts at device d or before, for every d.
    unit_of = np.searchsorted(devices, np.arange(devices[-1] + 1), side="right") - 1
    for k in range(1, stages + 1):
        # Only a stage before a point from which the others can run is of use; the first stage of
        # all starts the chain.
        chosen = last_unit[all_end] >= 0
        if k == stages:
            chosen &= all_first == 0
        first, end = all_first[chosen], all_end[chosen]
        fewest = fewest_devices(pipeline, pivots[first], pivots[end], k)
        first_device = devices[last_unit[end]] - fewest
        valid = np.flatnonzero(first_device >= 0)
        first, end = first[valid], end[valid]
        latest[k, first, end] = unit_of[first_device[valid].astype(np.int64)]
        last_unit = latest[k].max(axis=1).astype(np.int64)
    return latest
