"""Observations of ``PipelinePlan-v0``, decoded: what has been chosen, what it costs, what is left.

Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace, device

from parenvs.cluster import sync_bytes
from parenvs.envs.pipeline_plan import MOST_MICRO_BATCHES, OCTAVES
from parenvs.pipeline import formulas
from parenvs.pipeline.points import POINTS, STAGES, UNITS

CONTEXT = 14
"""Numbers that all choices of a situation have in common."""
TINY = 1e-6
"""Least divisor."""
Observation = Mapping[str, Any]


class Situation:
    """A batch of b observations, decoded; work in units' worth of a perfectly balanced plan.

    Costs are those of ``parenvs.pipeline.formulas``, in seconds of a micro-batch of that plan.

    Args:
        observation: ``chain``, ``topology``, ``numbers``, ``plan`` and ``step`` as the environment
            gives them, with a leading axis of b; ``step`` (b,).

    Attributes:
        most_units: units u of the largest cluster.
        core: (b, 1) core of the stages chosen so far, over the micro-batches.
        tail: (b, 1) their tail, over the micro-batches.
        sum: (b, 1) forward plus backward seconds of the stages and of the links in front of them.
        before: (b, 1) backward seconds of the same.
        worst: (b, 1) the largest of the seconds of the same.
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
        self.memory = numbers[:, 4] / xp.maximum(1.0 - numbers[:, 4], numbers[:, 4] * 0.0 + TINY)
        self.back = numbers[:, 5]
        self.slow = 2.0 ** (-numbers[:, 6] * OCTAVES)  # bandwidth between servers over inside
        self.most_units = int(xp.max(self.units))
        total = xp.max(work, axis=1)[:, None]
        second = total / self.units  # of a unit
        self.device_second = second / self.per_unit
        self.work = xp.maximum(work, work * 0.0) / second
        self.crossing = 2.0 * crossing * self.per_unit / second
        self.weight = weight * self.per_unit / second / xp.maximum(self.micro, self.micro * 0 + 1)
        memory = xp.maximum(self.memory, self.memory * 0.0 + TINY)
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
        work = self.at(self.work, end) - self.at(self.work, first)
        x = xp.where(known, formulas.compute_seconds(work, group), zero)
        # The link in front of a stage reaches over the stage before.
        before = xp.concat([low[:, :1], low[:, :-1]], axis=1)
        link = self.transfer(self.at(self.crossing, first), before, high)
        link = xp.where(known & (slot > 0), link, zero)
        reduce = self.at(self.weight, end) - self.at(self.weight, first)
        reduce = xp.where(known, self.reduce(reduce, group, low, high), zero)
        micro = xp.maximum(self.micro, zero + 1.0)
        back, link_back = self.back * x, link / 2  # a link takes as long either way
        core, tail = formulas.core_and_tail(
            formulas.interleaved(x.T, link.T[1:]),
            formulas.interleaved(back.T, link_back.T[1:]),
            (reduce * micro).T,
            micro[:, 0],
        )
        self.core, self.tail = core[:, None] / micro, tail[:, None] / micro
        self.worst = xp.max(xp.maximum(x, link), axis=1)[:, None]
        self.sum = xp.sum(x + link, axis=1)[:, None]
        self.before = xp.sum(back + link_back, axis=1)[:, None]
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
        return self.xp.maximum(self.at(self.topology, place), self.topology[:, :1] * 0.0 + TINY)

    def transfer(self, crossing: Any, first: Any, end: Any) -> Any:
        """Seconds of a transfer, both ways, inside the units [first, end).

        ``crossing`` is in seconds of the network between servers.
        """
        return formulas.transfer_seconds(crossing * self.slow, self.link(first, end))

    def reduce(self, weight: Any, group: Any, first: Any, end: Any) -> Any:
        """Seconds of an all-reduce over ``group`` units [first, end), per micro-batch.

        ``weight`` is in seconds that the bytes take twice between servers.
        """
        volume = sync_bytes(weight / 2, group * self.per_unit)
        return formulas.transfer_seconds(volume * self.slow, self.link(first, end))

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
