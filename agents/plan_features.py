"""What is worth knowing of each choice in ``PipelinePlan-v0``, computed from its observation.

One row for each legal point, or unit, of what would follow from choosing it: how long the stage
and the rest would compute, what would cross the cut, what would have to be reduced. Networks that
rate the rows one by one, with what the rows have in common, know any length of chain and any size
of cluster. Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace, device

from parenvs.agents.plan_outlook import LEVELS
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
        self.outlook = xp.reshape(observation["outlook"], (-1, UNITS + 1))
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

    def pick(self, values: Any, owner: Any, index: Any) -> Any:
        """(r, 1) entries ``[owner, index]`` of (b, n) values."""
        flat = self.xp.reshape(values, (-1,))
        return self.xp.take(flat, owner * values.shape[1] + index)[:, None]

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
    last, next_ = s.index(s.units + wide), _next_end(s, unit)
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
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), wide[:, :1]) * s.slow
    arriving = arriving / s.link(s.index(s.unit_before + wide), s.index(unit))
    leaving = at(s.crossing) * row(s.slow / s.link(here, next_))
    load = column(s.work) * row(1.0 / group)
    rest = xp.maximum(row(s.units) - at(s.work), zero)
    alone, even = rest * row(1.0 / free), rest * row(stages / free)
    core, passed, arriving_row = row(s.core), row(s.sum), row(arriving)
    for seconds in (arriving_row, load, leaving):
        passed = passed + seconds
        core = xp.maximum(core, passed / micro + (1.0 - 1.0 / micro) * seconds)
    core_one = xp.maximum(core, passed / micro + alone)
    table = xp.take(s.outlook[:, : s.most_units], owner * (POINTS + 1) + points, axis=0)
    levels = xp.asarray(LEVELS, device=device(wide))
    least = xp.take(levels, xp.astype(xp.reshape(table, (-1,)), xp.int64))
    # One stage behind this one is no more than it is; the table is a little coarser.
    least = xp.maximum(
        xp.reshape(least, table.shape) * row(xp.astype(s.left > 2.5, zero.dtype)), alone
    )
    core = xp.maximum(core, (passed + even) / micro + (1.0 - 1.0 / micro) * least)
    back = s.before + arriving / 2
    reduce = column(s.weight) * row(s.reduce(one, group, here, s.index(unit)))
    back = row(back) / micro
    tail = xp.maximum(row(s.tail), reduce - back)
    back = back + (row(s.back) * load + leaving / 2) / micro
    weight = xp.maximum(row(s.all_weight) - at(s.weight), zero)
    reduce_one = weight * row(s.reduce(one, free, s.index(unit), last))
    each = xp.maximum(free / stages * s.per_unit, one)
    factor = (each - 1.0) / each / stages
    factor = factor * xp.where(each / s.per_unit <= s.server, s.slow, one)
    full = _overflow(s, owner, points, group * s.per_unit, free * s.per_unit) * LARGE
    return (
        core + xp.maximum(tail, weight * row(factor) - back) + full,
        core_one + xp.maximum(tail, reduce_one - back) + full,
    )


def _next_end(s: Situation, unit: Any) -> Any:
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
    inside = _running_most(xp, xp.where(place > s.point, s.held, s.held * 0.0))
    entering = xp.minimum(2.0 * s.left - 1.0, s.micro) * s.at(s.held, first)
    bytes_ = s.pick(s.bytes, owner, points)
    shared = s.pick(inside, owner, points) + row(entering)
    stage = bytes_ - row(s.at(s.bytes, first)) + shared * row(1.0 / group)
    after = xp.flip(_running_most(xp, xp.flip(s.held, axis=1)), axis=1)
    shared = s.pick(after, owner, points) + s.pick(s.held, owner, points)
    rest = row(s.all_bytes) - bytes_ + shared * row(1.0 / free)
    too_much = (stage > 1.0) | ((rest > 1.0) & row(s.left < 2.5))
    return xp.astype(too_much, s.held.dtype)


def _running_most(xp: Any, values: Any) -> Any:
    """The greatest so far along the last axis."""
    if hasattr(xp, "cummax"):
        return xp.cummax(values, 1)[0]
    return xp.maximum.accumulate(values, axis=1)


def _beyond(s: Situation, owner: Any, values: Any) -> Any:
    """(r, u) ``values`` where the units leave one for each stage behind, else large."""
    xp = s.xp
    unit = xp.arange(values.shape[1], dtype=values.dtype, device=device(values))[None, :]
    most = xp.maximum(s.units - s.left + 1.0, s.unit + 1.0)
    beyond = xp.where((unit > s.unit) & (unit <= most), unit * 0.0, unit * 0.0 + LARGE)
    return values + xp.take(beyond, owner, axis=0)


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
    share = work / xp.maximum(work + rest, zero + _TINY)
    ideal = share * free
    most = xp.maximum(free - left + 1.0, zero + 1.0)
    low = xp.minimum(xp.maximum(xp.floor(ideal), zero + 1.0), most)
    high = xp.minimum(low + 1.0, most)
    loads = [xp.maximum(work / r, rest / xp.maximum(free - r, zero + 1.0)) for r in (low, high)]
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
    balance = load / xp.maximum(load_rest, zero + _TINY)
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
