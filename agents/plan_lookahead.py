"""The length that a plan will have if the rest is planned well: a look past the next stage.

Works on NumPy arrays and on torch tensors alike.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import device

from parenvs.agents.plan_outlook import LEVELS
from parenvs.agents.plan_situation import Situation
from parenvs.points import POINTS

LARGE = 1e6
"""Length of what breaks a rule."""


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
