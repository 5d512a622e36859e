"""What is worth knowing of each choice in ``PipelinePlan-v0``, computed from its observation.

One row for each point, or each unit, of what would follow from choosing it: how long the stage
and the rest would compute, what would cross the cut, what would have to be reduced. Networks that
rate the rows one by one, with what the rows have in common, know any length of chain and any size
of cluster. Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace, device

from parenvs.plan_observation import MOST_MICRO_BATCHES, OCTAVES
from parenvs.plan_space import STAGES, UNITS
from parenvs.points import POINTS

POINT_FEATURES, UNIT_FEATURES, CONTEXT = 22, 20, 14
"""Numbers of each point, of each unit, and of the whole."""
Observation = Mapping[str, Any]
_TINY = 1e-6
LARGE = 1e6
"""Length of what breaks a rule."""


class Situation:
    """A batch of b observations, decoded; work in units' worth of a perfectly balanced plan.

    Args:
        observation: ``chain``, ``topology``, ``numbers``, ``plan`` and ``step`` as the environment
            gives them, with a leading axis of b; ``step`` (b,).

    Attributes:
        most_points: points p of the longest chain; no rows are made for more.
        most_units: units u of the largest cluster.
    """

    def __init__(self, observation: Observation) -> None:
        chain, numbers = observation["chain"], observation["numbers"]
        self.xp = xp = array_namespace(chain)
        self.batch = chain.shape[0]
        zero = chain[:, :3, :1] * 0.0
        before = xp.concat([zero, chain[:, :3, :]], axis=2)  # up to each boundary
        work, crossing, weight = before[:, 0], before[:, 1], before[:, 2]
        numbers = numbers[:, :, None]
        self.stages = xp.round(numbers[:, 0] * STAGES)
        self.micro = numbers[:, 1] * MOST_MICRO_BATCHES
        self.units = xp.round(numbers[:, 2] * UNITS)
        self.per_unit = 2.0 ** (numbers[:, 3] * OCTAVES)
        self.memory = numbers[:, 4] / xp.maximum(1.0 - numbers[:, 4], numbers[:, 4] * 0.0 + _TINY)
        self.back = numbers[:, 5]
        self.slow = 2.0 ** (-numbers[:, 6] * OCTAVES)  # bandwidth between servers over inside
        self.most_points = int(xp.max(xp.sum(chain[:, 3], axis=1)))
        self.most_units = int(xp.max(self.units))
        total = xp.max(work, axis=1)[:, None]
        second = total / self.units  # of a unit
        self.device_second = second / self.per_unit
        self.work = xp.maximum(work, work * 0.0) / second
        self.crossing = 2.0 * crossing * self.per_unit / second
        self.weight = weight * self.per_unit / second / xp.maximum(self.micro, self.micro * 0 + 1)
        memory = xp.maximum(self.memory, self.memory * 0.0 + _TINY)
        self.bytes, self.held = weight / memory, crossing / memory
        self.all_weight = xp.max(self.weight, axis=1)[:, None]
        self.all_bytes = xp.max(self.bytes, axis=1)[:, None]
        self._decode(observation)

    def _decode(self, observation: Observation) -> None:
        """What has been chosen so far, and what it costs."""
        xp, plan = self.xp, observation["plan"]
        step = xp.astype(observation["step"], plan.dtype)[:, None]
        self.done = xp.floor(step / 2)
        zero = plan[:, 0, :1] * 0.0
        points = xp.concat([zero, xp.round(plan[:, 0] * POINTS)], axis=1)
        units = xp.concat([zero, xp.round(plan[:, 1] * UNITS)], axis=1)
        self.topology = xp.reshape(observation["topology"], (self.batch, UNITS * UNITS))
        slot = xp.arange(STAGES - 1, dtype=plan.dtype, device=device(plan))[None, :]
        known = slot < self.done
        first, end = self.index(points[:, :-1]), self.index(points[:, 1:])
        low, high = self.index(units[:, :-1]), self.index(units[:, 1:])
        group = xp.maximum(units[:, 1:] - units[:, :-1], zero + 1.0)
        x = xp.where(known, (self.at(self.work, end) - self.at(self.work, first)) / group, zero)
        # The link in front of a stage reaches over the stage before.
        before = xp.concat([low[:, :1], low[:, :-1]], axis=1)
        link = self.at(self.crossing, first) * self.slow / self.link(before, high)
        link = xp.where(known & (slot > 0), link, zero)
        reduce = self.at(self.weight, end) - self.at(self.weight, first)
        reduce = xp.where(known, self.reduce(reduce, group, low, high), zero)
        micro = xp.maximum(self.micro, zero + 1.0)
        passed = xp.cumulative_sum(x + link, axis=1)
        core = xp.maximum(passed - x + (micro - 1.0) * link, passed + (micro - 1.0) * x)
        self.core = xp.max(xp.where(known, core, zero), axis=1)[:, None] / micro
        self.worst = xp.max(xp.maximum(x, link), axis=1)[:, None]
        self.sum = xp.sum(x + link, axis=1)[:, None]
        back = self.back * x + link / 2  # a link takes as long either way
        before = xp.cumulative_sum(back, axis=1) - self.back * x
        self.before = xp.sum(back, axis=1)[:, None]
        self.tail = xp.maximum(xp.max(reduce - before / micro, axis=1)[:, None], zero)
        at = self.index(self.done)
        self.point, self.unit = self.at(points, at), self.at(units, at)
        self.pending = self.at(points, self.index(xp.minimum(self.done + 1, zero + STAGES - 1)))
        self.unit_before = self.at(units, self.index(xp.maximum(self.done - 1, zero)))
        self.left = self.stages - self.done
        one_server = self.topology[:, :UNITS] >= 1.0
        count = xp.sum(xp.astype(one_server, plan.dtype), axis=1)[:, None]
        self.server = xp.maximum(count, zero + 1.0)

    def index(self, values: Any) -> Any:
        """As whole numbers, at least 0."""
        return self.xp.astype(self.xp.maximum(values, values * 0.0), self.xp.int64)

    def at(self, values: Any, index: Any) -> Any:
        """(b, k) entries of (b, n) values."""
        return self.xp.take_along_axis(values, index, axis=1)

    def link(self, first: Any, end: Any) -> Any:
        """Bandwidth of the units [first, end), over that inside a server."""
        last = self.index(self.xp.astype(end, self.topology.dtype) - 1.0)
        place = self.index(self.xp.astype(first, self.topology.dtype)) * UNITS + last
        return self.xp.maximum(self.at(self.topology, place), self.topology[:, :1] * 0.0 + _TINY)

    def reduce(self, weight: Any, group: Any, first: Any, end: Any) -> Any:
        """Seconds of an all-reduce over ``group`` units [first, end), per micro-batch."""
        devices = group * self.per_unit
        return weight * (devices - 1.0) / devices * self.slow / self.link(first, end)

    def context(self) -> Any:
        """(b, CONTEXT) what all choices have in common."""
        xp, log = self.xp, self.xp.log1p
        here = self.index(self.point)
        rest = self.units - self.at(self.work, here)
        free = xp.maximum(self.units - self.unit, self.left)
        columns = [
            self.stages / STAGES,
            self.left / STAGES,
            log(self.worst),
            log(self.sum) / 2,
            log(self.tail),
            self.back,
            log(self.micro) / 4,
            self.units / UNITS,
            xp.log2(self.per_unit) / 4,
            -xp.log2(self.slow) / 8,
            self.unit / self.units,
            log(rest / free),
            log(self.all_weight) / 2,
            xp.minimum(self.all_bytes, self.units * 0.0 + 8.0) / 4,
        ]
        return xp.concat(columns, axis=1)


def lookahead(s: Situation, points: Any) -> tuple[Any, Any]:
    """(b, k, u) lengths, if the stage ended before each point and the next began on each unit.

    In units of the bubble-free time, twice: as if the rest were one last stage, and as if it were
    split evenly into as many stages as are left, with nothing to pay for its cuts.

    Args:
        s: b situations.
        points: (b, k) int64, where the stage may end.
    """
    xp = s.xp
    wide = s.topology[:, None, : s.most_units] * 0.0  # (b, 1, u)
    one = wide + 1.0
    unit = xp.arange(s.most_units, dtype=wide.dtype, device=device(wide))[None, :] + wide[:, 0]
    first, here = s.index(s.point), s.index(s.unit + wide[:, 0])
    last, next_ = s.index(s.units + wide[:, 0]), _next_end(s, unit)
    group = xp.maximum(unit - s.unit, one[:, 0])
    free = xp.maximum(s.units - unit, one[:, 0])
    micro = xp.maximum(s.micro, one[:, 0, :1])[:, :, None]

    def row(x: Any) -> Any:
        return x[:, None, :]

    def column(values: Any) -> Any:
        return (s.at(values, points) - s.at(values, first))[:, :, None]

    # What depends on the unit alone is (b, 1, u), what depends on the point alone (b, k, 1).
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), wide[:, 0, :1]) * s.slow
    arriving = row(arriving / s.link(s.index(s.unit_before + wide[:, 0]), s.index(unit)))
    leaving = s.at(s.crossing, points)[:, :, None] * row(s.slow / s.link(here, next_))
    load = xp.maximum(column(s.work), wide[:, :, :1]) / row(group)
    load_rest = xp.maximum((s.units - s.at(s.work, points)), wide[:, 0, :1])[:, :, None] / row(free)
    stages = xp.maximum(s.left - 1.0, one[:, 0, :1])
    core, passed = s.core[:, :, None], s.sum[:, :, None]
    for seconds in (arriving, load, leaving):
        passed = passed + seconds
        core = xp.maximum(core, (passed + (micro - 1.0) * seconds) / micro)
    core_one = xp.maximum(core, (passed + micro * load_rest) / micro)
    split = stages[:, :, None] - 1.0
    core_split = xp.maximum(core, (passed + (micro + split) * load_rest) / micro)
    back = s.before[:, :, None] + arriving / 2
    reduce = xp.maximum(column(s.weight), wide[:, :, :1]) * row(
        s.reduce(one[:, 0], group, here, s.index(unit))
    )
    tail = xp.maximum(s.tail[:, :, None], reduce - back / micro)
    back = (back + s.back[:, :, None] * load + leaving / 2) / micro
    weight = xp.maximum(s.all_weight - s.at(s.weight, points), wide[:, 0, :1])[:, :, None]
    reduce_one = weight * row(s.reduce(one[:, 0], free, s.index(unit), last))
    each = xp.maximum(free / stages * s.per_unit, one[:, 0])
    factor = (each - 1.0) / each / stages
    factor = factor * xp.where(each / s.per_unit <= s.server, s.slow, one[:, 0])
    full = _overflow(s, points, group * s.per_unit, free * s.per_unit) * LARGE
    return (
        core_one + xp.maximum(tail, reduce_one - back) + full,
        core_split + xp.maximum(tail, weight * row(factor) - back) + full,
    )


def _next_end(s: Situation, unit: Any) -> Any:
    """(b, u) int64: the least unit up to which a stage that starts at each one runs."""
    end = s.xp.where(s.left < 2.5, s.units + unit * 0.0, unit + 1.0)
    return s.index(s.xp.minimum(end, s.units))


def _overflow(s: Situation, points: Any, group: Any, free: Any) -> Any:
    """(b, k, u) 1 where the stage, or the last one behind it, exceeds the memory, else 0."""
    xp = s.xp
    first = s.index(s.point)
    place = xp.arange(POINTS + 1, dtype=s.held.dtype, device=device(s.held))[None, :]
    # The largest cut inside: at a boundary behind the first point, up to the end's own.
    inside = xp.where(place > s.point, s.held, s.held * 0.0)
    largest = s.at(_running_most(xp, inside), points)
    entering = xp.minimum(2.0 * s.left - 1.0, s.micro) * s.at(s.held, first)
    stage = (s.at(s.bytes, points) - s.at(s.bytes, first))[:, :, None]
    stage = stage + ((largest + entering)[:, :, None]) / group[:, None, :]
    after = s.at(xp.flip(_running_most(xp, xp.flip(s.held, axis=1)), axis=1), points)
    rest = (s.all_bytes - s.at(s.bytes, points))[:, :, None]
    rest = rest + (after + s.at(s.held, points))[:, :, None] / free[:, None, :]
    too_much = (stage > 1.0) | ((rest > 1.0) & (s.left[:, :, None] < 2.5))
    return xp.astype(too_much, s.held.dtype)


def _running_most(xp: Any, values: Any) -> Any:
    """The greatest so far along the last axis."""
    if hasattr(xp, "cummax"):
        return xp.cummax(values, 1)[0]
    return xp.maximum.accumulate(values, axis=1)


def _beyond(s: Situation, values: Any, most: Any) -> Any:
    """``values`` where the units (last axis) leave one for each stage behind, else large."""
    xp = s.xp
    unit = xp.arange(values.shape[2], dtype=values.dtype, device=device(values))
    legal = (unit > s.unit[:, :, None]) & (unit <= most[:, :, None])
    return xp.where(legal, values, values * 0.0 + LARGE)


def point_features(s: Situation) -> Any:
    """(b, p, POINT_FEATURES) of cutting before each point."""
    xp, log = s.xp, s.xp.log1p
    here = s.index(s.point)
    zero = s.work[:, : s.most_points] * 0.0
    work = xp.maximum(s.work[:, : s.most_points] - s.at(s.work, here), zero)
    rest = xp.maximum(s.units - s.work[:, : s.most_points], zero)
    free = xp.maximum(s.units - s.unit, s.left)
    share = work / xp.maximum(work + rest, zero + _TINY)
    ideal = share * free
    most = xp.maximum(free - s.left + 1.0, zero + 1.0)
    low = xp.minimum(xp.maximum(xp.floor(ideal), zero + 1.0), most)
    high = xp.minimum(low + 1.0, most)
    loads = [xp.maximum(work / r, rest / xp.maximum(free - r, zero + 1.0)) for r in (low, high)]
    place = (s.unit + ideal) / s.server
    angle = 2 * 3.141592653589793 * place
    crossing = s.crossing[:, : s.most_points]
    weight = xp.maximum(s.weight[:, : s.most_points] - s.at(s.weight, here), zero)
    columns = [
        share,
        share * s.left,
        ideal / UNITS,
        log(loads[0]),
        log(loads[1]),
        log(xp.minimum(*loads)),
        log(xp.maximum(s.worst, xp.minimum(*loads))),
        xp.sin(angle),
        xp.cos(angle),
        log(crossing) / 2,
        log(crossing * s.slow) / 2,
        log(weight) / 2,
        log(xp.maximum(s.all_weight - s.weight[:, : s.most_points], zero)) / 2,
        log(weight * s.slow) / 2,
        xp.minimum(s.bytes[:, : s.most_points] - s.at(s.bytes, here), zero + 8.0) / 4,
        work / s.units,
        *_outlook(s),
    ]
    return xp.stack(columns, axis=2)


def _outlook(s: Situation) -> list[Any]:
    """What ``lookahead`` says of each point with the best unit for it: six columns."""
    xp = s.xp
    work = s.work[:, : s.most_points]
    zero = work * 0.0
    index = s.index(zero + xp.arange(s.most_points, dtype=work.dtype, device=device(work)))
    most = xp.maximum(s.units - s.left + 1.0, s.unit + 1.0)
    inside = (work > s.at(s.work, s.index(s.point))) & (work < s.units * (1 - _TINY))
    columns = []
    for lengths in lookahead(s, index):
        lengths = _beyond(s, lengths, most)
        best = xp.minimum(xp.log(xp.min(lengths, axis=2)), zero + 9.0)
        least = xp.min(xp.where(inside, best, zero + 9.0), axis=1)[:, None]
        group = xp.astype(xp.argmin(lengths, axis=2), best.dtype) - s.unit
        columns += [best, xp.maximum(xp.minimum(best - least, zero + 4.0), -zero - 4.0)]
        columns += [group / UNITS]
    return columns


def unit_features(s: Situation) -> Any:
    """(b, u, UNIT_FEATURES) of starting the next stage on each unit."""
    xp, log = s.xp, s.xp.log1p
    zero = s.topology[:, : s.most_units] * 0.0
    unit = xp.arange(s.most_units, dtype=zero.dtype, device=device(zero))[None, :] + zero
    first, end = s.index(s.point), s.index(s.pending)
    group = xp.maximum(unit - s.unit, zero + 1.0)
    free = xp.maximum(s.units - unit, zero + 1.0)
    # No point is pending on a point's turn: of that no use is made, but it shall be a number.
    work = xp.maximum(s.at(s.work, end) - s.at(s.work, first), zero)
    rest = xp.maximum(s.units - s.at(s.work, end), zero)
    here, last = s.index(s.unit + zero), s.index(s.units + zero)
    after = _next_end(s, unit)
    load, load_rest = work / group, rest / free
    weight = xp.maximum(s.at(s.weight, end) - s.at(s.weight, first), zero)
    reduce = s.reduce(weight, group, here, s.index(unit))
    reduce_rest = s.reduce(s.all_weight - s.at(s.weight, end), free, s.index(unit), last)
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), zero[:, :1])
    arriving = arriving * s.slow / s.link(s.index(s.unit_before + zero), s.index(unit))
    leaving = s.at(s.crossing, end) * s.slow / s.link(here, after)
    links = xp.maximum(arriving, leaving)
    beside = s.link(s.index(unit - 1.0), s.index(xp.minimum(unit + 1.0, s.units)))
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
        load
        / xp.maximum(load_rest, zero + _TINY)
        / (1.0 + load / xp.maximum(load_rest, zero + _TINY)),
    ]
    most = xp.maximum(s.units - s.left + 1.0, s.unit + 1.0)
    for lengths in lookahead(s, end):
        best = xp.log(_beyond(s, lengths, most)[:, 0])
        columns += [
            xp.minimum(best, zero + 9.0),
            xp.minimum(best - xp.min(best, axis=1)[:, None], zero + 4.0),
        ]
    return xp.stack(columns, axis=2)
