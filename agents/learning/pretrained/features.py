"""Features of each choice in ``PipelinePlan-v0``, computed from its observation.

Each legal point, or unit, gets a row of numbers that say what follows from choosing it: how long
the stage and the rest would compute, what would cross the cut, what would have to be reduced. A
network that rates the rows one by one, together with the context that they share, can be used for
any length of chain and any size of cluster. ``lookahead`` estimates the length that a plan will
have if the rest is planned well, by ``parenvs.tasks.pipeline.formulas``.

All functions work on NumPy arrays and on torch tensors alike. In shapes, b is the number of
situations, r the number of rows, u the number of units of the largest cluster.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import device

from parenvs.agents.learning.pretrained.outlook import LEVELS
from parenvs.agents.learning.pretrained.situation import TINY, Situation
from parenvs.arrays import running_max
from parenvs.cluster import sync_bytes
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.points import POINTS, UNITS

POINT_FEATURES, UNIT_FEATURES = 22, 20
"""Number of features of each point and of each unit."""
LARGE = 1e6
"""Stands for the length of a plan that is illegal."""


def point_features(s: Situation, owner: Any, points: Any) -> Any:
    """(r, POINT_FEATURES) features of cutting before each point.

    Args:
        s: b situations.
        owner: (r,) int64, the situation of each row, ascending.
        points: (r,) int64, the point of each row.
    """
    xp, log = s.xp, s.xp.log1p
    first = s.index(s.point)

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    def at(values: Any) -> Any:
        return s.pick(values, owner, points)

    zero = row(s.point) * 0.0
    work = xp.maximum(at(s.work) - row(s.at(s.work, first)), zero)
    rest = xp.maximum(row(s.units) - at(s.work), zero)
    left, slow, server = row(s.left), row(s.slow), row(s.server)
    free = xp.maximum(row(s.units - s.unit), left)
    share = work / xp.maximum(work + rest, zero + TINY)
    ideal = share * free
    most_units = xp.maximum(free - left + 1.0, zero + 1.0)
    fewer = xp.minimum(xp.maximum(xp.floor(ideal), zero + 1.0), most_units)
    more = xp.minimum(fewer + 1.0, most_units)
    loads = [
        xp.maximum(
            formulas.compute_seconds(work, group),
            formulas.compute_seconds(rest, xp.maximum(free - group, zero + 1.0)),
        )
        for group in (fewer, more)
    ]
    angle = 2 * 3.141592653589793 * (row(s.unit) + ideal) / server
    crossing = at(s.crossing)
    weight = xp.maximum(at(s.weight) - row(s.at(s.weight, first)), zero)
    columns = [
        share,
        share * left,
        ideal / UNITS,
        log(loads[0]),
        log(loads[1]),
        log(xp.minimum(*loads)),
        log(xp.maximum(row(s.worst), xp.minimum(*loads))),
        xp.sin(angle),
        xp.cos(angle),
        log(crossing) / 2,
        log(crossing * slow) / 2,
        log(weight) / 2,
        log(xp.maximum(row(s.all_weight) - at(s.weight), zero)) / 2,
        log(weight * slow) / 2,
        xp.minimum(at(s.bytes) - row(s.at(s.bytes, first)), zero + 8.0) / 4,
        work / row(s.units),
        *_prospects(s, owner, points),
    ]
    return xp.concat(columns, axis=1)


def _prospects(s: Situation, owner: Any, points: Any) -> list[Any]:
    """Estimates by ``lookahead`` for each point with its best unit: six columns of (r, 1).

    Of both estimates: the logarithm of the length, how far that is above the logarithm at the best
    point of the situation, and the number of units that the stage then takes, over ``UNITS``.
    """
    xp = s.xp
    columns = []
    for lengths in lookahead(s, owner, points):
        legal_lengths = _beyond(s, owner, lengths)
        best = xp.log(xp.min(legal_lengths, axis=1))
        best = xp.minimum(best, best * 0.0 + 9.0)
        by_point = s.work * 0.0 + 9.0  # of every point of the situations, legal or not
        by_point[owner, points] = best
        best_of_all = xp.take(xp.min(by_point, axis=1), owner)
        best_unit = xp.astype(xp.argmin(legal_lengths, axis=1), best.dtype)[:, None]
        worse = xp.minimum(best - best_of_all, best * 0.0 + 4.0)
        columns += [best[:, None], worse[:, None]]
        columns += [(best_unit - xp.take(s.unit, owner, axis=0)) / UNITS]
    return columns


def unit_features(s: Situation, owner: Any, units: Any) -> Any:
    """(r, UNIT_FEATURES) features of starting the next stage on each unit.

    Args:
        s: b situations.
        owner: (r,) int64, the situation of each row, ascending.
        units: (r,) int64, the unit of each row.
    """
    xp, log = s.xp, s.xp.log1p
    zero = s.topology[:, : s.most_units] * 0.0
    unit = xp.arange(s.most_units, dtype=zero.dtype, device=device(zero))[None, :] + zero
    first, end = s.index(s.point), s.index(s.pending)
    group = xp.maximum(unit - s.unit, zero + 1.0)
    free = xp.maximum(s.units - unit, zero + 1.0)
    work = xp.maximum(s.at(s.work, end) - s.at(s.work, first), zero)
    rest = xp.maximum(s.units - s.at(s.work, end), zero)
    start, end_of_units = s.index(s.unit + zero), s.index(s.units + zero)
    next_ends = next_end(s, unit)
    load, load_rest = (formulas.compute_seconds(*x) for x in ((work, group), (rest, free)))
    weight = xp.maximum(s.at(s.weight, end) - s.at(s.weight, first), zero)
    reduce = s.reduce(weight, group, start, s.index(unit))
    reduce_rest = s.reduce(s.all_weight - s.at(s.weight, end), free, s.index(unit), end_of_units)
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), zero[:, :1])
    arriving = s.transfer(arriving, s.index(s.unit_before + zero), s.index(unit))
    leaving = s.transfer(s.at(s.crossing, end), start, next_ends)
    links = xp.maximum(arriving, leaving)
    beside = s.link(s.index(unit - 1.0), s.index(xp.minimum(unit + 1.0, s.units)))
    balance = load / xp.maximum(load_rest, zero + TINY)
    columns = [
        log(load),
        log(load_rest),
        log(xp.maximum(load, load_rest)),
        log(xp.maximum(s.worst, xp.maximum(load, xp.maximum(load_rest, links)))),
        log(reduce),
        log(reduce_rest),
        log(xp.maximum(xp.maximum(reduce, reduce_rest), s.tail)),
        log(arriving) / 2,
        log(leaving) / 2,
        log(links) / 2,
        xp.astype(s.link(start, s.index(unit)) >= 1.0, zero.dtype),
        xp.astype(beside >= 1.0, zero.dtype),
        (unit / s.server) - xp.floor(unit / s.server),
        group / UNITS,
        free / xp.maximum(s.left - 1.0, s.left * 0.0 + 1.0) / UNITS,
        balance / (1.0 + balance),
    ]
    situations = xp.arange(s.batch, dtype=xp.int64, device=device(zero))
    for lengths in lookahead(s, situations, end[:, 0]):
        best = xp.log(_beyond(s, situations, lengths))
        columns += [
            xp.minimum(best, zero + 9.0),
            xp.minimum(best - xp.min(best, axis=1)[:, None], zero + 4.0),
        ]
    rows = xp.reshape(xp.stack(columns, axis=2), (-1, UNIT_FEATURES))
    return xp.take(rows, owner * s.most_units + units, axis=0)


def lookahead(s: Situation, owner: Any, points: Any) -> tuple[Any, Any]:
    """Estimates of the length if the stage ends at a point and the next one begins on a unit.

    Args:
        s: b situations.
        owner: (r,) int64, the situation of each row.
        points: (r,) int64, the point at which the stage of each row ends.

    Returns:
        Two estimates, (r, u) each, in units of the bubble-free time. The first takes the rest to be
        split evenly over its stages, with the bottleneck that ``outlook`` gives; the second takes
        it to be one last stage.
    """
    xp = s.xp
    zeros = s.topology[:, : s.most_units] * 0.0  # (b, u)
    ones = zeros + 1.0
    unit = xp.arange(s.most_units, dtype=zeros.dtype, device=device(zeros))[None, :] + zeros
    first, start = s.index(s.point), s.index(s.unit + zeros)
    end_of_units, next_ends = s.index(s.units + zeros), next_end(s, unit)
    group = xp.maximum(unit - s.unit, ones)
    free = xp.maximum(s.units - unit, ones)
    stages_behind = xp.maximum(s.left - 1.0, ones[:, :1])

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    def at(values: Any) -> Any:
        return s.pick(values, owner, points)

    def column(values: Any) -> Any:
        return xp.maximum(at(values) - row(s.at(values, first)), zero)

    # What depends on the unit alone is computed once for each situation, then taken by its rows.
    micro, zero = row(xp.maximum(s.micro, ones[:, :1])), row(zeros[:, :1])
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), zeros[:, :1])
    arriving = s.transfer(arriving, s.index(s.unit_before + zeros), s.index(unit))
    leaving = at(s.crossing) * row(s.transfer(ones, start, next_ends))
    load = column(s.work) * row(formulas.compute_seconds(1.0, group))
    rest = xp.maximum(row(s.units) - at(s.work), zero)
    alone = rest * row(formulas.compute_seconds(1.0, free))
    even = rest * row(formulas.compute_seconds(stages_behind, free))
    reduce = column(s.weight) * micro * row(s.reduce(ones, group, start, s.index(unit)))
    weight = xp.maximum(row(s.all_weight) - at(s.weight), zero) * micro
    reduce_alone = weight * row(s.reduce(ones, free, s.index(unit), end_of_units))
    chosen = formulas.Prefix(row(s.sum), row(s.before), row(s.core) * micro, row(s.tail) * micro)
    prefix = formulas.append(
        chosen, row(arriving / 2), load, row(s.back) * load, reduce, micro, xp.maximum
    )
    level_index = xp.take(s.outlook[:, : s.most_units], owner * (POINTS + 1) + points, axis=0)
    levels = xp.asarray(LEVELS, device=device(zeros))
    bottleneck = xp.take(levels, xp.astype(xp.reshape(level_index, (-1,)), xp.int64))
    # No bottleneck is below that of perfect balance, which is exact for a single stage behind.
    bottleneck = xp.maximum(
        xp.reshape(bottleneck, level_index.shape) * row(xp.astype(s.left > 2.5, zero.dtype)),
        alone,
    )
    passed, hidden = prefix.passed + leaving, prefix.hidden + leaving / 2
    core = xp.maximum(prefix.core, formulas.through(passed, leaving, micro))
    core_alone = xp.maximum(core, formulas.through(passed + alone, alone, micro))
    # The rest takes ``even`` seconds in all, its slowest stage or link ``bottleneck`` seconds.
    core = xp.maximum(core, formulas.through(passed + even, bottleneck, micro))
    group_behind = xp.maximum(free / stages_behind * s.per_unit, ones)
    factor = sync_bytes(ones / 2, group_behind) / stages_behind
    factor = factor * xp.where(group_behind / s.per_unit <= s.server, s.slow, ones)
    penalty = _overflow(s, owner, points, group * s.per_unit, free * s.per_unit) * LARGE
    tail, tail_alone = (
        formulas.append_tail(prefix.tail, hidden, seconds, xp.maximum)
        for seconds in (weight * row(factor), reduce_alone)
    )
    return (core + tail) / micro + penalty, (core_alone + tail_alone) / micro + penalty


def next_end(s: Situation, unit: Any) -> Any:
    """(b, u) int64, smallest end unit of a stage that starts on each unit of ``unit``, (b, u).

    That is one unit later, or the last unit if that stage is the last one.
    """
    end = s.xp.where(s.left < 2.5, s.units + unit * 0.0, unit + 1.0)
    return s.index(s.xp.minimum(end, s.units))


def _overflow(s: Situation, owner: Any, points: Any, group: Any, free: Any) -> Any:
    """(r, u) 1 where the stage, or the last one behind it, exceeds the memory, else 0.

    Args:
        s: b situations.
        owner: (r,) int64, the situation of each row.
        points: (r,) int64, the point at which the stage of each row ends.
        group: (b, u) devices of the stage, by the unit at which it ends.
        free: (b, u) devices behind it.
    """
    xp = s.xp

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    first = s.index(s.point)
    place = xp.arange(POINTS + 1, dtype=s.held.dtype, device=device(s.held))[None, :]
    # Entry p: the largest cut inside a stage that ends at p, the one at p included.
    largest_inside = running_max(xp.where(place > s.point, s.held, s.held * 0.0))
    weights = s.pick(s.bytes, owner, points)
    activations = formulas.recomputed_bytes(
        s.pick(largest_inside, owner, points),
        row(s.at(s.held, first)),
        row(formulas.in_flight(s.left, s.micro)),
    )
    stage = formulas.stage_bytes(weights - row(s.at(s.bytes, first)), activations, row(group))
    largest_behind = xp.flip(running_max(xp.flip(s.held, axis=1)), axis=1)
    activations = formulas.recomputed_bytes(
        s.pick(largest_behind, owner, points), s.pick(s.held, owner, points), 1
    )
    last_stage = formulas.stage_bytes(row(s.all_bytes) - weights, activations, row(free))
    overflows = (stage > 1.0) | ((last_stage > 1.0) & row(s.left < 2.5))
    return xp.astype(overflows, s.held.dtype)


def _beyond(s: Situation, owner: Any, values: Any) -> Any:
    """(r, u) ``values``, plus ``LARGE`` where a unit leaves too few units to the stages behind."""
    xp = s.xp
    unit = xp.arange(values.shape[1], dtype=values.dtype, device=device(values))[None, :]
    last_legal = xp.maximum(s.units - s.left + 1.0, s.unit + 1.0)
    penalty = xp.where((unit > s.unit) & (unit <= last_legal), unit * 0.0, unit * 0.0 + LARGE)
    return values + xp.take(penalty, owner, axis=0)
