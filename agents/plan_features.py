"""What is worth knowing of each choice in ``PipelinePlan-v0``, computed from its observation.

One row for each point, or each unit, of what would follow from choosing it: how long the stage
and the rest would compute, what would cross the cut, what would have to be reduced. Networks that
rate the rows one by one, with what the rows have in common, know any length of chain and any size
of cluster. Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace

from parenvs.plan_observation import MOST_MICRO_BATCHES, OCTAVES
from parenvs.plan_space import STAGES, UNITS
from parenvs.points import POINTS

POINT_FEATURES, UNIT_FEATURES, CONTEXT = 16, 16, 14
"""Numbers of each point, of each unit, and of the whole."""
Observation = Mapping[str, Any]
_TINY = 1e-6


class Situation:
    """A batch of b observations, decoded; work in units' worth of a perfectly balanced plan.

    Args:
        observation: ``chain``, ``topology``, ``numbers``, ``plan`` and ``step`` as the environment
            gives them, with a leading axis of b; ``step`` (b,).
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
        self.memory = numbers[:, 4]
        self.back = numbers[:, 5]
        self.slow = 2.0 ** (-numbers[:, 6] * OCTAVES)  # bandwidth between servers over inside
        self.points = xp.sum(chain[:, 3], axis=1)[:, None]
        total = xp.max(work, axis=1)[:, None]
        second = total / self.units  # of a unit
        self.device_second = second / self.per_unit
        self.work = xp.maximum(work, work * 0.0) / second
        self.crossing = 2.0 * crossing * self.per_unit / second
        self.weight = weight * self.per_unit / second / xp.maximum(self.micro, self.micro * 0 + 1)
        self.bytes = weight / xp.maximum(self.memory, self.memory * 0.0 + _TINY)
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
        slot = xp.arange(STAGES - 1, dtype=plan.dtype, device=plan.device)[None, :]
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
        passed = xp.cumulative_sum(x + link, axis=1) - x
        self.worst = xp.max(xp.maximum(x, link), axis=1)[:, None]
        self.sum = xp.sum(x + link, axis=1)[:, None]
        back = self.back * passed / xp.maximum(self.micro, zero + 1.0)
        self.tail = xp.maximum(xp.max(reduce - back, axis=1)[:, None], zero)
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


def point_features(s: Situation) -> Any:
    """(b, 128, POINT_FEATURES) of cutting before each point."""
    xp, log = s.xp, s.xp.log1p
    here = s.index(s.point)
    zero = s.work[:, :POINTS] * 0.0
    work = xp.maximum(s.work[:, :POINTS] - s.at(s.work, here), zero)
    rest = xp.maximum(s.units - s.work[:, :POINTS], zero)
    free = xp.maximum(s.units - s.unit, s.left)
    share = work / xp.maximum(work + rest, zero + _TINY)
    ideal = share * free
    most = xp.maximum(free - s.left + 1.0, zero + 1.0)
    low = xp.minimum(xp.maximum(xp.floor(ideal), zero + 1.0), most)
    high = xp.minimum(low + 1.0, most)
    loads = [xp.maximum(work / r, rest / xp.maximum(free - r, zero + 1.0)) for r in (low, high)]
    place = (s.unit + ideal) / s.server
    angle = 2 * 3.141592653589793 * place
    crossing = s.crossing[:, :POINTS]
    weight = xp.maximum(s.weight[:, :POINTS] - s.at(s.weight, here), zero)
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
        log(xp.maximum(s.all_weight - s.weight[:, :POINTS], zero)) / 2,
        log(weight * s.slow) / 2,
        xp.minimum(s.bytes[:, :POINTS] - s.at(s.bytes, here), zero + 8.0) / 4,
        work / s.units,
    ]
    return xp.stack(columns, axis=2)


def unit_features(s: Situation) -> Any:
    """(b, 64, UNIT_FEATURES) of starting the next stage on each unit."""
    xp, log = s.xp, s.xp.log1p
    zero = s.topology[:, :UNITS] * 0.0
    unit = xp.arange(UNITS, dtype=zero.dtype, device=zero.device)[None, :] + zero
    first, end = s.index(s.point), s.index(s.pending)
    group = xp.maximum(unit - s.unit, zero + 1.0)
    free = xp.maximum(s.units - unit, zero + 1.0)
    # No point is pending on a point's turn: of that no use is made, but it shall be a number.
    work = xp.maximum(s.at(s.work, end) - s.at(s.work, first), zero)
    rest = xp.maximum(s.units - s.at(s.work, end), zero)
    here, last = s.index(s.unit + zero), s.index(s.units + zero)
    after = s.index(xp.minimum(unit + 1.0, s.units))
    load, load_rest = work / group, rest / free
    weight = xp.maximum(s.at(s.weight, end) - s.at(s.weight, first), zero)
    reduce = s.reduce(weight, group, here, s.index(unit))
    reduce_rest = s.reduce(s.all_weight - s.at(s.weight, end), free, s.index(unit), last)
    arriving = xp.where(s.done > 0, s.at(s.crossing, first), zero[:, :1])
    arriving = arriving * s.slow / s.link(s.index(s.unit_before + zero), s.index(unit))
    leaving = s.at(s.crossing, end) * s.slow / s.link(here, after)
    links = xp.maximum(arriving, leaving)
    beside = s.link(s.index(unit - 1.0), after)
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
    return xp.stack(columns, axis=2)
