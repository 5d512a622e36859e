"""Decodes observations of ``PipelinePlan-v0``: what has been chosen, what it costs, what is left.

Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from array_api_compat import array_namespace, device

from parenvs.cluster import sync_bytes
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.game.tables import MICRO_BATCHES, OCTAVES
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

CONTEXT = 14
"""Number of features that all choices of a situation share."""
TINY = 1e-6
"""Smallest divisor; beyond the chain and the cluster observations hold zeros."""
Observation = Mapping[str, Any]
"""Arrays of a batch of observations by name."""


class Situation:
    """A batch of b decoded observations.

    The unit of time is a micro-batch of the bubble-free plan, so that all the work takes as many
    of them on one unit as there are units. Costs are those of ``parenvs.tasks.pipeline.formulas``.
    Boundaries of points are numbered from 0 to 128.

    Args:
        observation: ``chain``, ``topology``, ``numbers``, ``plan``, ``step`` and ``outlook``, as
            the environment and ``outlook`` give them, with a leading axis of b; ``step`` (b,).

    Attributes:
        batch: b.
        stages: (b, 1) S.
        micro: (b, 1) M.
        units: (b, 1) number of units.
        per_unit: (b, 1) devices of a unit.
        back: (b, 1) share of the backward seconds in the work.
        slow: (b, 1) bandwidth between servers over that inside one.
        most_units: u, the number of units of the largest cluster.
        work: (b, 129) forward plus backward seconds on one unit before each boundary.
        crossing: (b, 129) seconds of the transfer at each boundary, both ways, between servers.
        weight: (b, 129) seconds in which the parameters before each boundary pass twice between
            servers, over the micro-batches.
        bytes, held: (b, 129) bytes of the weights before each boundary, and of the activations that
            cross it, over the memory limit of a device (with the default number of copies).
        all_weight, all_bytes: (b, 1) ``weight`` and ``bytes`` of the whole chain.
        topology: (b, 64 * 64) bandwidth from unit to unit, over that inside a server.
        outlook: (b * 129, 65) the table of ``outlook`` for the stages behind the next one.
        done, left: (b, 1) stages that are chosen, and stages that are left.
        point, unit: (b, 1) where the next stage starts.
        pending: (b, 1) the point at which it ends, if that is chosen.
        unit_before: (b, 1) the unit on which the stage before it starts.
        server: (b, 1) units of a server.
        core: (b, 1) core of the stages chosen so far, over the micro-batches.
        tail: (b, 1) their tail, over the micro-batches.
        sum: (b, 1) forward plus backward seconds of the stages and of the links between them.
        before: (b, 1) backward seconds of these.
        worst: (b, 1) the largest of the seconds of these.
    """

    def __init__(self, observation: Observation) -> None:
        chain, numbers = observation["chain"], observation["numbers"]
        self.xp = xp = array_namespace(chain)
        self.batch = chain.shape[0]
        zero = chain[:, :3, :1] * 0.0
        at_boundary = xp.concat([zero, chain[:, :3, :]], axis=2)
        work, crossing, weight = at_boundary[:, 0], at_boundary[:, 1], at_boundary[:, 2]
        numbers = numbers[:, :, None]
        self.stages = xp.round(numbers[:, 0] * STAGES)
        self.micro = numbers[:, 1] * MICRO_BATCHES
        self.units = xp.round(numbers[:, 2] * UNITS)
        self.per_unit = 2.0 ** (numbers[:, 3] * OCTAVES)
        self.memory = numbers[:, 4] / xp.maximum(1.0 - numbers[:, 4], numbers[:, 4] * 0.0 + TINY)
        self.back = numbers[:, 5]
        self.slow = 2.0 ** (-numbers[:, 6] * OCTAVES)
        self.most_units = int(xp.max(self.units))
        total = xp.max(work, axis=1)[:, None]
        second = total / self.units  # the unit of time, in the unit of the observed work
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
        """Set the attributes that depend on ``plan``, ``step`` and ``outlook``."""
        xp, plan = self.xp, observation["plan"]
        step = xp.astype(observation["step"], plan.dtype)[:, None]
        self.done = xp.floor(step / 2)
        zero = plan[:, 0, :1] * 0.0
        points = xp.concat([zero, xp.round(plan[:, 0] * POINTS)], axis=1)
        units = xp.concat([zero, xp.round(plan[:, 1] * UNITS)], axis=1)
        self.topology = xp.reshape(observation["topology"], (self.batch, UNITS * UNITS))
        self.outlook = xp.reshape(observation["outlook"], (-1, UNITS + 1))
        slot = xp.arange(plan.shape[2], dtype=plan.dtype, device=device(plan))[None, :]
        known = slot < self.done
        first, end = self.index(points[:, :-1]), self.index(points[:, 1:])
        low, high = self.index(units[:, :-1]), self.index(units[:, 1:])
        group = xp.maximum(units[:, 1:] - units[:, :-1], zero + 1.0)
        work = self.at(self.work, end) - self.at(self.work, first)
        x = xp.where(known, formulas.compute_seconds(work, group), zero)
        # The link in front of a stage reaches over the devices of the stage before, too.
        low_before = xp.concat([low[:, :1], low[:, :-1]], axis=1)
        link = self.transfer(self.at(self.crossing, first), low_before, high)
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
        done = self.index(self.done)
        self.point, self.unit = self.at(points, done), self.at(units, done)
        self.pending = self.at(points, self.index(xp.minimum(self.done + 1, zero + plan.shape[2])))
        self.unit_before = self.at(units, self.index(xp.maximum(self.done - 1, zero)))
        self.left = self.stages - self.done
        one_server = self.topology[:, :UNITS] >= 1.0
        count = xp.sum(xp.astype(one_server, plan.dtype), axis=1)[:, None]
        self.server = xp.maximum(count, zero + 1.0)

    def index(self, values: Any) -> Any:
        """The values as int64 indices; negative ones become 0."""
        return self.xp.astype(self.xp.maximum(values, values * 0.0), self.xp.int64)

    def at(self, values: Any, index: Any) -> Any:
        """(b, k) entries of (b, n) values at (b, k) indices, row by row."""
        return self.xp.take_along_axis(values, index, axis=1)

    def pick(self, values: Any, owner: Any, index: Any) -> Any:
        """(r, 1) entries ``[owner, index]`` of (b, n) values; ``owner`` and ``index`` are (r,)."""
        flat = self.xp.reshape(values, (-1,))
        return self.xp.take(flat, owner * values.shape[1] + index)[:, None]

    def link(self, first: Any, end: Any) -> Any:
        """Bandwidth among the units [first, end), over that inside a server."""
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
        """(b, CONTEXT) features that all choices of a situation share."""
        xp, log = self.xp, self.xp.log1p
        rest = self.units - self.at(self.work, self.index(self.point))
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
