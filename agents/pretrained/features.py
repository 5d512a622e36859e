"""What a network is told of each choice in ``PipelinePlan-v0``, computed from its observation.

One row for each legal point, or unit, of what would follow from choosing it: how long the stage
and the rest would compute, what would cross the cut, what would have to be reduced. Networks that
rate the rows one by one, with what the rows have in common, know any length of chain and any size
of cluster. ``lookahead`` looks past the next stage: the length that a plan will have if the rest is
planned well, by ``parenvs.pipeline.formulas``. Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import device

from parenvs.agents.pretrained.outlook import LEVELS
from parenvs.agents.pretrained.situation import TINY, Situation
from parenvs.arrays import running_max
from parenvs.cluster import sync_bytes
from parenvs.pipeline import formulas
from parenvs.pipeline.points import POINTS, UNITS

POINT_FEATURES, UNIT_FEATURES = 22, 20
"""Numbers of each point and of each unit."""
LARGE = 1e6
"""Length of what breaks a rule."""


def point_features(s: Situation, owner: Any, points: Any) -> Any:
    """(r, POINT_FEATURES) of cutting before each point.

    Args:
        s: b situations.
        owner: (r,) int64, which of them each row is about, ascending.
        points: (r,) int64.
    """
    xp, log = s.xp, s.xp.log1p
    here = s.index(s.point)

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    def at(values: Any) -> Any:
        return s.pick(values, owner, points)

    zero = row(s.point) * 0.0
    work = xp.maximum(at(s.work) - row(s.at(s.work, here)), zero)
    rest = xp.maximum(row(s.units) - at(s.work), zero)
    left, slow, server = row(s.left), row(s.slow), row(s.server)
    free = xp.maximum(row(s.units - s.unit), left)
    share = work / xp.maximum(work + rest, zero + TINY)
    ideal = share * free
    most = xp.maximum(free - left + 1.0, zero + 1.0)
    low = xp.minimum(xp.maximum(xp.floor(ideal), zero + 1.0), most)
    high = xp.minimum(low + 1.0, most)
    loads = [
        xp.maximum(
            formulas.compute_seconds(work, r),
            formulas.compute_seconds(rest, xp.maximum(free - r, zero + 1.0)),
        )
        for r in (low, high)
    ]
    angle = 2 * 3.141592653589793 * (row(s.unit) + ideal) / server
    crossing = at(s.crossing)
    weight = xp.maximum(at(s.weight) - row(s.at(s.weight, here)), zero)
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
        xp.minimum(at(s.bytes) - row(s.at(s.bytes, here)), zero + 8.0) / 4,
        work / row(s.units),
        *_prospects(s, owner, points),
    ]
    return xp.concat(columns, axis=1)


def _prospects(s: Situation, owner: Any, points: Any) -> list[Any]:
    """What ``lookahead`` says of each point with the best unit for it: six columns of (r, 1)."""
    xp = s.xp
    columns = []
    for lengths in lookahead(s, owner, points):
        lengths = _beyond(s, owner, lengths)
        best = xp.log(xp.min(lengths, axis=1))
        best = xp.minimum(best, best * 0.0 + 9.0)
        all_points = s.work * 0.0 + 9.0
        all_points[owner, points] = best
        least = xp.take(xp.min(all_points, axis=1), owner)
        group = xp.astype(xp.argmin(lengths, axis=1), best.dtype)[:, None]
        worse = xp.minimum(best - least, best * 0.0 + 4.0)
        columns += [best[:, None], worse[:, None]]
        columns += [(group - xp.take(s.unit, owner, axis=0)) / UNITS]
    return columns


def unit_features(s: Situation, owner: Any, units: Any) -> Any:
    """(r, UNIT_FEATURES) of starting the next stage on each unit.

    Args:
        s: b situations.
        owner: (r,) int64, which of them each row is about, ascending.
        units: (r,) int64.
    """
    xp, log = s.xp, s.xp.log1p
    zero = s.topology[:, : s.most_units] * 0.0
    unit = xp.arange(s.most_units, dtype=zero.dtype, device=device(zero))[None, :] + zero
    first, end = s.index(s.point), s.index(s.pending)
    group = xp.maximum(unit - s.unit, zero + 1.0)
    free = xp.maximum(s.units - unit, zero + 1.0)
    work = xp.maximum(s.at(s.work, end) - s.at(s.work, first), zero)
    rest = xp.maximum(s.units - s.at(s.work, end), zero)
    here, last = s.index(s.unit + zero), s.index(s.units + zero)
    after = next_end(s, unit)
    load, load_rest = (formulas.compute_seconds(*x) for x in ((work, group), (rest, free)))
    weight = xp.maximum(s.at(s.weight, end) - s.at(s.weight, first), zero)
    reduce = s.reduce(weight, group, here, s.index(unit))
    reduce_rest = s.reduce(s.all_weight - s.at(s.weight, end), free, s.index(unit), last)
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), zero[:, :1])
    arriving = s.transfer(arriving, s.index(s.unit_before + zero), s.index(unit))
    leaving = s.transfer(s.at(s.crossing, end), here, after)
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
        xp.astype(s.link(here, s.index(unit)) >= 1.0, zero.dtype),
        xp.astype(beside >= 1.0, zero.dtype),
        (unit / s.server) - xp.floor(unit / s.server),
        group / UNITS,
        free / xp.maximum(s.left - 1.0, s.left * 0.0 + 1.0) / UNITS,
        balance / (1.0 + balance),
    ]
    every = xp.arange(s.batch, dtype=xp.int64, device=device(zero))
    for lengths in lookahead(s, every, end[:, 0]):
        best = xp.log(_beyond(s, every, lengths))
        columns += [
            xp.minimum(best, zero + 9.0),
            xp.minimum(best - xp.min(best, axis=1)[:, None], zero + 4.0),
        ]
    rows = xp.reshape(xp.stack(columns, axis=2), (-1, UNIT_FEATURES))
    return xp.take(rows, owner * s.most_units + units, axis=0)


def lookahead(s: Situation, owner: Any, points: Any) -> tuple[Any, Any]:
    """(r, u) lengths, if the stage ended before each point and the next began on each unit.

    In units of the bubble-free time, twice: as if the rest were balanced as well as ``outlook``
    says, split evenly otherwise; and as if it were one last stage.

    Args:
        s: b situations.
        owner: (r,) int64, which of them each row is about.
        points: (r,) int64, where the stage may end.
    """
    xp = s.xp
    wide = s.topology[:, : s.most_units] * 0.0  # (b, u)
    one = wide + 1.0
    unit = xp.arange(s.most_units, dtype=wide.dtype, device=device(wide))[None, :] + wide
    first, here = s.index(s.point), s.index(s.unit + wide)
    last, next_ = s.index(s.units + wide), next_end(s, unit)
    group = xp.maximum(unit - s.unit, one)
    free = xp.maximum(s.units - unit, one)
    stages = xp.maximum(s.left - 1.0, one[:, :1])

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    def at(values: Any) -> Any:
        return s.pick(values, owner, points)

    def column(values: Any) -> Any:
        return xp.maximum(at(values) - row(s.at(values, first)), zero)

    # What depends on the unit alone is computed once for each situation, then copied to its rows.
    micro, zero = row(xp.maximum(s.micro, one[:, :1])), row(wide[:, :1])
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), wide[:, :1])
    arriving = s.transfer(arriving, s.index(s.unit_before + wide), s.index(unit))
    leaving = at(s.crossing) * row(s.transfer(one, here, next_))
    load = column(s.work) * row(formulas.compute_seconds(1.0, group))
    rest = xp.maximum(row(s.units) - at(s.work), zero)
    alone = rest * row(formulas.compute_seconds(1.0, free))
    even = rest * row(formulas.compute_seconds(stages, free))
    reduce = column(s.weight) * micro * row(s.reduce(one, group, here, s.index(unit)))
    weight = xp.maximum(row(s.all_weight) - at(s.weight), zero) * micro
    reduce_alone = weight * row(s.reduce(one, free, s.index(unit), last))
    chosen = formulas.Prefix(row(s.sum), row(s.before), row(s.core) * micro, row(s.tail) * micro)
    prefix = formulas.append(
        chosen, row(arriving / 2), load, row(s.back) * load, reduce, micro, xp.maximum
    )
    table = xp.take(s.outlook[:, : s.most_units], owner * (POINTS + 1) + points, axis=0)
    levels = xp.asarray(LEVELS, device=device(wide))
    least = xp.take(levels, xp.astype(xp.reshape(table, (-1,)), xp.int64))
    # One stage behind this one is no more than it is; the table is a little coarser.
    least = xp.maximum(
        xp.reshape(least, table.shape) * row(xp.astype(s.left > 2.5, zero.dtype)), alone
    )
    passed, hidden = prefix.passed + leaving, prefix.hidden + leaving / 2
    core = xp.maximum(prefix.core, formulas.through(passed, leaving, micro))
    core_alone = xp.maximum(core, formulas.through(passed + alone, alone, micro))
    # The rest takes `even` seconds in all, and its slowest stage or link `least` seconds.
    core = xp.maximum(core, formulas.through(passed + even, least, micro))
    each = xp.maximum(free / stages * s.per_unit, one)
    factor = sync_bytes(one / 2, each) / stages
    factor = factor * xp.where(each / s.per_unit <= s.server, s.slow, one)
    full = _overflow(s, owner, points, group * s.per_unit, free * s.per_unit) * LARGE
    tail, tail_alone = (
        formulas.append_tail(prefix.tail, hidden, seconds, xp.maximum)
        for seconds in (weight * row(factor), reduce_alone)
    )
    return (core + tail) / micro + full, (core_alone + tail_alone) / micro + full


def next_end(s: Situation, unit: Any) -> Any:
    """(b, u) int64: the least unit up to which a stage that starts at each one runs."""
    end = s.xp.where(s.left < 2.5, s.units + unit * 0.0, unit + 1.0)
    return s.index(s.xp.minimum(end, s.units))


def _overflow(s: Situation, owner: Any, points: Any, group: Any, free: Any) -> Any:
    """(r, u) 1 where the stage, or the last one behind it, exceeds the memory, else 0."""
    xp = s.xp

    def row(x: Any) -> Any:
        return xp.take(x, owner, axis=0)

    first = s.index(s.point)
    place = xp.arange(POINTS + 1, dtype=s.held.dtype, device=device(s.held))[None, :]
    # The largest cut inside: at a boundary behind the first point, up to the end's own.
    inside = running_max(xp.where(place > s.point, s.held, s.held * 0.0))
    weights = s.pick(s.bytes, owner, points)
    activations = formulas.recomputed_bytes(
        s.pick(inside, owner, points),
        row(s.at(s.held, first)),
        row(formulas.in_flight(s.left, s.micro)),
    )
    stage = formulas.stage_bytes(weights - row(s.at(s.bytes, first)), activations, row(group))
    behind = xp.flip(running_max(xp.flip(s.held, axis=1)), axis=1)
    activations = formulas.recomputed_bytes(
        s.pick(behind, owner, points), s.pick(s.held, owner, points), 1
    )
    rest = formulas.stage_bytes(row(s.all_bytes) - weights, activations, row(free))
    too_much = (stage > 1.0) | ((rest > 1.0) & row(s.left < 2.5))
    return xp.astype(too_much, s.held.dtype)


def _beyond(s: Situation, owner: Any, values: Any) -> Any:
    """(r, u) ``values`` where the units leave one for each stage behind, else large."""
    xp = s.xp
    unit = xp.arange(values.shape[1], dtype=values.dtype, device=device(values))[None, :]
    most = xp.maximum(s.units - s.left + 1.0, s.unit + 1.0)
    beyond = xp.where((unit > s.unit) & (unit <= most), unit * 0.0, unit * 0.0 + LARGE)
    return values + xp.take(beyond, owner, axis=0)
