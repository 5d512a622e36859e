"""The moves from a plan to its neighbours, of many plans at once.

Each move is of one of three axes. Moves of single stages go by how busy stages are, the busiest
first, so that what does not find room is about stages that decide little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.tasks.hybrid.plan_arrays import Plans, Table, joined, legal, settled
from parenvs.tasks.hybrid.space import Constraints

SLOTS = {"data": 32, "pipeline": 48, "operator": 16}
"""Axis -> neighbours that are kept of it; 96 in all."""
AXES = tuple(SLOTS)
KEPT = sum(SLOTS.values())
APART = 16
"""Plans from which on moves that need more room are made apart; for fewer, calls cost more."""
FEW = 12
"""Stages, or pieces of the chain, that any plan can get by a move; others can double theirs."""


class Move(NamedTuple):
    """A move, as the catalogue lists it.

    Attributes:
        axis: one of ``AXES``.
        kind: what it changes, one of ``KINDS``.
        rank: of the stage by how busy it is, 0 for the busiest; -1: of the whole plan.
        value: how much, see the functions of ``KINDS``.
        towards: 1 to the next stage, -1 to the one in front, 0 where that means nothing.
    """

    axis: str
    kind: str
    rank: int
    value: float
    towards: int = 0


@dataclass
class _Work:
    """Plans that moves change, each by one; ``order`` is (S, N) stages, the busiest first."""

    table: Table
    plans: Plans
    order: np.ndarray


def room_of(number: np.ndarray | int) -> np.ndarray:
    """Return how many stages, or pieces, a plan of so many can have after a move."""
    return np.maximum(2 * np.asarray(number), FEW)


def _at(work: _Work, which: np.ndarray, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stage of each rank, and whether there is one."""
    inside = np.minimum(rank, len(work.order) - 1)
    return work.order[inside, which], rank < work.plans.count[which]


def _even(work: _Work, which: np.ndarray) -> None:
    """Deal layers out evenly over the pieces, embedding and head as a layer each."""
    plans, n = work.plans, work.table.layers[work.plans.rows[which]]
    pieces = np.maximum(plans.count[which] * plans.chunks[which], 1)
    number = np.arange(1, len(plans.ends) + 1)[:, None]
    # n + 2 units with embedding and head; the first unit is the embedding, hence - 1.
    whole = np.round(number * (n + 2) / pieces).astype(np.int64) - 1
    ends = np.where(n % pieces == 0, number * (n // pieces), whole)
    plans.ends[:, which] = np.where(number >= pieces, n, np.clip(ends, 0, n))


def _share_recomputed(plans: Plans, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the layers that plans recompute in full and selectively."""
    total = np.maximum(plans.ends[-1, which], 1)
    return tuple(
        getattr(plans, name)[:, which].sum(axis=0) / total for name in ("full", "selective")
    )


def _recompute_again(plans: Plans, which: np.ndarray, shares: tuple[np.ndarray, ...]) -> None:
    """Recompute such shares of the layers of every stage, rounded up."""
    size = plans.take(which).layers()
    for name, share in zip(("full", "selective"), shares, strict=True):
        # 1e-9: a share that came of whole layers must not round up by an error of floats.
        getattr(plans, name)[:, which] = np.ceil(size * share - 1e-9).astype(np.int64)


def _stages(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """All stages anew: ``value`` times as many, each with as many devices; tp is the first's.

    With ``towards`` 1 the pieces of the chain stay about as many, else each stage has one.
    """
    plans = work.plans
    before, tp = plans.count[which], plans.tp[0, which]
    ranks = tp * plans.context[which]
    total = plans.devices[:, which].sum(axis=0)
    # A replica keeps its micro-batch, so memory changes little.
    per_replica = plans.samples[which] // np.maximum(plans.devices[0, which] // ranks, 1)
    count = np.rint(before * value).astype(np.int64)
    possible = (np.abs(before * value - count) < 1e-6) & (count >= 1) & (count <= room_of(before))
    # Devices must be dealt out evenly, in whole replicas.
    possible &= total % (np.maximum(count, 1) * ranks) == 0
    count = np.where(possible, count, 1)
    pieces = before * plans.chunks[which]
    plans.chunks[which] = np.where(towards == 1, np.maximum(pieces // count, 1), 1)
    shares, zero = _share_recomputed(plans, which), plans.zero[:, which].max(axis=0)
    used = plans.stage < count
    devices = total // count
    plans.count[which] = np.where(possible, count, 0)
    plans.devices[:, which] = np.where(used, devices, 0)
    plans.tp[:, which] = np.where(used, tp, 1)
    plans.zero[:, which] = np.where(used, zero, 0)
    plans.samples[which] = per_replica * np.maximum(devices // ranks, 1)
    # An impossible move is made with one stage first, so that arrays stay valid.
    plans.count[which] = count
    _even(work, which)
    _recompute_again(plans, which, shares)
    plans.count[which] = np.where(possible, count, 0)


def _chunks(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """Another number of chunks: more or less by ``towards``, or ``value`` times as many; 0: one."""
    plans = work.plans
    shares, before = _share_recomputed(plans, which), plans.chunks[which]
    chunks = np.where(towards != 0, before + towards, np.rint(before * value).astype(np.int64))
    chunks = np.where((value == 0) & (towards == 0), 1, np.maximum(chunks, 1))
    count = plans.count[which]
    possible = chunks * count <= room_of(before * count)
    plans.chunks[which] = np.where(possible, chunks, 1)
    _even(work, which)
    _recompute_again(plans, which, shares)


def _balance(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """Deal layers out by the devices and speeds of the stages."""
    plans = work.plans
    mine = plans.take(which)
    shares = _share_recomputed(plans, which)
    weight = running_sums(mine.devices * work.table.slowest(mine))
    n = work.table.layers[mine.rows]
    ends = np.rint(weight / np.maximum(weight[-1], 1) * (n + 2)).astype(np.int64) - 1
    last = mine.stage >= mine.count - 1
    # The last stage ends where the chain does, whatever was rounded.
    dealt = np.where(last, n, np.clip(ends, 0, n))
    size = min(len(dealt), len(plans.ends))
    ends_of = plans.ends[:, which]
    ends_of[:size] = np.where(mine.chunks == 1, dealt[:size], ends_of[:size])
    plans.ends[:, which] = ends_of
    _recompute_again(plans, which, shares)


def _sorted(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """Servers by their speed, the fastest first (``towards`` 1) or last."""
    plans = work.plans
    rows, count = plans.rows[which], work.table.servers[plans.rows[which]]
    number = np.arange(len(plans.servers))[:, None]
    speeds = work.table.speeds[rows, number]
    # Places behind the cluster's servers sort last.
    key = np.where(number < count, -towards * speeds, np.inf)
    plans.servers[:, which] = np.argsort(key, axis=0, kind="stable")


def _slowest_of(work: _Work, which: np.ndarray, stage: np.ndarray, sign: int) -> np.ndarray:
    """Return the place of a stage's slowest (1) or fastest (-1) server in the order."""
    plans, inside = work.plans, work.table.inside
    begin = plans.first[stage, which] // inside
    end = -(-(plans.first[stage, which] + plans.devices[stage, which]) // inside)
    number = np.arange(len(plans.servers))[:, None]
    speeds = work.table.speeds[plans.rows[which], plans.servers[:, which]]
    key = np.where((begin <= number) & (number < end), sign * speeds, np.inf)
    return np.asarray(key.argmin(axis=0))


def _swap(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """The busiest stage's slowest server for the fastest one of a stage that is little busy.

    With ``towards`` 0 they change places, else the first one moves to the other's place.
    """
    plans = work.plans
    count = plans.count[which]
    other = work.order[np.maximum(count - 1 - value.astype(np.int64), 0), which]
    one = _slowest_of(work, which, work.order[0, which], 1)
    two = _slowest_of(work, which, other, -1)
    number = np.arange(len(plans.servers))[:, None]
    source = np.where(number == one, two, np.where(number == two, one, number))
    shifted = np.where(
        one < two,
        np.where((one <= number) & (number < two), number + 1, number),
        np.where((two < number) & (number <= one), number - 1, number),
    )
    shifted = np.where(number == two, one, shifted)
    source = np.where(towards == 0, source, shifted)
    plans.servers[:, which] = np.take_along_axis(plans.servers[:, which], source, axis=0)


def _cut(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """A stage gives ``value`` layers away: from its last piece, or in front from its first."""
    plans = work.plans
    count = plans.count[which]
    last = (plans.chunks[which] - 1) * count + stage
    border = np.where(towards > 0, last, stage - 1)
    # Both ends of the chain are fixed; only borders between pieces move.
    bounded = (border >= 0) & (border < count * plans.chunks[which] - 1)
    at = np.clip(border, 0, len(plans.ends) - 1)
    change = np.where(bounded, -towards * value.astype(np.int64), 0)
    sizes = plans.sizes()
    giving = np.where(towards > 0, at, np.minimum(at + 1, len(sizes) - 1))
    change = np.where(sizes[giving, which] >= np.abs(change), change, 0)
    plans.ends[at, which] += change


def _merge(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """A stage and the next become one, with the devices of both."""
    plans = work.plans
    bad = (stage >= plans.count[which] - 1) | (plans.chunks[which] > 1)
    behind = np.minimum(stage + 1, len(plans.devices) - 1)
    for values in (plans.devices, plans.full, plans.selective):
        values[stage, which] += values[behind, which]
    plans.zero[stage, which] = np.maximum(plans.zero[stage, which], plans.zero[behind, which])
    plans.ends[stage, which] = plans.ends[np.minimum(stage + 1, len(plans.ends) - 1), which]
    number = np.arange(len(plans.devices))[:, None]
    source = np.minimum(np.where(number > stage, number + 1, number), len(plans.devices) - 1)
    _rearranged(plans, which, source)
    number = np.arange(len(plans.ends))[:, None]
    source = np.minimum(np.where(number > stage, number + 1, number), len(plans.ends) - 1)
    plans.ends[:, which] = np.take_along_axis(plans.ends[:, which], source, axis=0)
    plans.count[which] = np.where(bad, 0, plans.count[which] - 1)


def _split(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """A stage becomes ``value`` stages, each with as many of its devices."""
    plans, parts = work.plans, value.astype(np.int64)
    count = plans.count[which]
    bad = (plans.chunks[which] > 1) | (plans.devices[stage, which] % parts != 0)
    end = plans.ends[np.minimum(stage, len(plans.ends) - 1), which]
    begin = np.where(stage > 0, plans.ends[np.clip(stage - 1, 0, len(plans.ends) - 1), which], 0)
    size = end - begin
    again = [-(-getattr(plans, name)[stage, which] // parts) for name in ("full", "selective")]
    devices = plans.devices[stage, which] // parts
    number = np.arange(len(plans.devices))[:, None]
    source = np.where(number > stage, np.maximum(number - parts + 1, stage), number)
    _rearranged(plans, which, source)
    inside = (number >= stage) & (number < stage + parts)
    for values, new in (
        (plans.devices, devices),
        (plans.full, again[0]),
        (plans.selective, again[1]),
    ):
        values[:, which] = np.where(inside, new, values[:, which])
    number = np.arange(len(plans.ends))[:, None]
    source = np.where(number > stage, np.maximum(number - parts + 1, stage), number)
    ends = np.take_along_axis(plans.ends[:, which], source, axis=0)
    inside = (number >= stage) & (number < stage + parts)
    dealt = begin + np.rint(size * (number - stage + 1) / parts).astype(np.int64)
    plans.ends[:, which] = np.where(inside, dealt, ends)
    plans.count[which] = np.where(bad, 0, count + parts - 1)


def _rearranged(plans: Plans, which: np.ndarray, source: np.ndarray) -> None:
    """Move what stages have: stage s gets what ``source`` (S, k) says."""
    for values in (plans.devices, plans.tp, plans.zero, plans.full, plans.selective):
        values[:, which] = np.take_along_axis(values[:, which], source, axis=0)


def _devices(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """A stage gives a share of its devices to a neighbour; ``value`` 0: those of one server."""
    plans = work.plans
    other = stage + towards
    bad = (other < 0) | (other >= plans.count[which])
    other = np.clip(other, 0, len(plans.devices) - 1)
    given = (plans.devices[stage, which] * value).astype(np.int64)
    given = np.where(value == 0, work.table.inside, given)
    plans.devices[stage, which] -= given
    plans.devices[other, which] += given
    plans.count[which] = np.where(bad, 0, plans.count[which])


def _tp(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """``value`` times the tp of every stage; with ``towards`` 1 a replica keeps its samples."""
    plans = work.plans
    tp = plans.tp[:, which] * value
    whole = np.rint(tp).astype(np.int64)
    used = plans.stage < plans.count[which]
    bad = (used & ((whole != tp) | (whole < 1))).any(axis=0)
    plans.tp[:, which] = np.where(used, np.maximum(whole, 1), 1)
    # ``samples`` is over all replicas, of which there are ``value`` times fewer.
    samples = plans.samples[which] / np.where(towards == 1, value, 1.0)
    fewer = np.floor(samples).astype(np.int64)
    plans.samples[which] = np.maximum(fewer, 1)
    plans.count[which] = np.where(bad | (samples != fewer), 0, plans.count[which])


def _scaled(name: str) -> Callable[..., None]:
    """Return the move that makes a field of the whole plan ``value`` times what it is."""

    def move(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
        values = getattr(work.plans, name)
        new = values[which] * value
        whole = np.rint(new).astype(np.int64)
        good = (np.abs(new - whole) < 1e-9) & (whole >= 1)
        values[which] = np.where(good, whole, 1)
        work.plans.count[which] = np.where(good, work.plans.count[which], 0)

    return move


def _shared(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    work.plans.shared[which] = 1 - work.plans.shared[which]


def _expert(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    plans = work.plans
    most = work.table.experts[plans.rows[which]]
    plans.expert[which] = np.where(value == 0, 1, most)


def _zero(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    used = work.plans.stage < work.plans.count[which]
    work.plans.zero[:, which] = np.where(used, value.astype(np.int64), 0)


def _recompute(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    """Recompute a share of the layers of every stage in full; -1: the attention of all."""
    none = np.zeros_like(value)
    shares = np.where(value < 0, none, value), np.where(value < 0, 1.0, none)
    _recompute_again(work.plans, which, shares)


def _shard(work: _Work, which: np.ndarray, value: np.ndarray, towards: np.ndarray) -> None:
    plans = work.plans
    # The replicas of a stage that are in one server.
    near = work.table.inside // plans.tp[:, which].max(axis=0)
    plans.shard[which] = np.where(plans.shard[which] > 0, 0, np.where(near > 1, near, 0))


def _stage_tp(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """``value`` times the tp of a stage."""
    plans = work.plans
    tp = plans.tp[stage, which] * value
    whole = np.rint(tp).astype(np.int64)
    bad = (whole != tp) | (whole < 1)
    plans.tp[stage, which] = np.maximum(whole, 1)
    plans.count[which] = np.where(bad, 0, plans.count[which])


def _stage_zero(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    plans = work.plans
    plans.zero[stage, which] = (plans.zero[stage, which] == 0).astype(np.int64)


def _stage_recompute(
    work: _Work, which: np.ndarray, stage: np.ndarray, value: np.ndarray, towards: np.ndarray
) -> None:
    """``value`` more layers of a stage in full; with ``towards`` 1 the attention of all others."""
    plans = work.plans
    size = plans.take(which).layers()[stage, np.arange(len(which))]
    full = np.clip(plans.full[stage, which] + np.clip(value, -1024, 1024), 0, size)
    plans.full[stage, which] = np.where(towards == 1, 0, full.astype(np.int64))
    plans.selective[stage, which] = np.where(towards == 1, size, 0)


WHOLE: dict[str, Callable[..., None]] = {
    "stages": _stages,
    "chunks": _chunks,
    "balance": _balance,
    "sort servers": _sorted,
    "swap servers": _swap,
    "tp": _tp,
    "sequence": _shared,
    "context": _scaled("context"),
    "samples": _scaled("samples"),
    "zero": _zero,
    "recompute": _recompute,
    "experts": _expert,
    "scaled experts": _scaled("expert"),
    "shard": _shard,
}
"""Moves of a whole plan."""
SINGLE: dict[str, Callable[..., None]] = {
    "cut": _cut,
    "merge": _merge,
    "split": _split,
    "devices": _devices,
    "stage tp": _stage_tp,
    "stage zero": _stage_zero,
    "stage recompute": _stage_recompute,
}
"""Moves of one stage."""
KINDS = (*WHOLE, *SINGLE)
"""Kinds of moves."""
_MANY = 1024.0  # layers: all of a stage
CATALOGUE: tuple[Move, ...] = (
    *(
        Move("pipeline", "stages", -1, x, to)
        for x in (2, 1 / 2, 3 / 2, 2 / 3, 3, 1 / 3)
        for to in (0, 1)
    ),
    *(Move("pipeline", "chunks", -1, 1.0, to) for to in (1, -1)),
    *(Move("pipeline", "chunks", -1, x) for x in (0.0, 2.0, 0.5)),
    Move("pipeline", "balance", -1, 1.0),
    *(Move("pipeline", "sort servers", -1, 1.0, to) for to in (1, -1)),
    *(Move("pipeline", "swap servers", -1, float(x), to) for x in range(6) for to in (0, 1)),
    *(
        move
        for rank in range(8)
        for move in (
            *(Move("pipeline", "cut", rank, x, to) for x in (1.0, 4.0) for to in (1, -1)),
            Move("pipeline", "merge", rank, 1.0, 1),
            *(Move("pipeline", "split", rank, x) for x in (2.0, 3.0)),
            *(Move("pipeline", "devices", rank, x, to) for x in (0.5, 0.0) for to in (1, -1)),
        )
    ),
    *(Move("operator", "tp", -1, x, to) for x in (2.0, 0.5) for to in (0, 1)),
    Move("operator", "sequence", -1, 1.0),
    *(Move("operator", "context", -1, x) for x in (2.0, 0.5)),
    *(Move("operator", "stage tp", rank, x) for rank in range(8) for x in (2.0, 0.5)),
    *(Move("data", "samples", -1, x) for x in (2.0, 0.5, 3.0, 1 / 3)),
    *(Move("data", "zero", -1, float(x)) for x in range(4)),
    *(Move("data", "recompute", -1, x) for x in (0.0, 0.25, 0.5, 0.75, 1.0, -1.0)),
    *(Move("data", "scaled experts", -1, x) for x in (2.0, 0.5)),
    *(Move("data", "experts", -1, x) for x in (0.0, np.inf)),
    Move("data", "shard", -1, 1.0),
    *(
        move
        for rank in range(6)
        for move in (
            *(Move("data", "stage recompute", rank, x) for x in (-1.0, -4.0, -_MANY, 1.0, _MANY)),
            Move("data", "stage recompute", rank, 0.0, 1),
            Move("data", "stage zero", rank, 1.0),
        )
    ),
)  # fmt: skip
"""All moves; of each axis those of the whole plan first."""
_OF_AXIS = {
    axis: np.array([i for i, move in enumerate(CATALOGUE) if move.axis == axis]) for axis in AXES
}
_OF_KIND = {
    kind: np.array([i for i, move in enumerate(CATALOGUE) if move.kind == kind]) for kind in KINDS
}
_RANK = np.array([move.rank for move in CATALOGUE])
_VALUE = np.array([move.value for move in CATALOGUE])
_TOWARDS = np.array([move.towards for move in CATALOGUE])


def busiest_first(plans: Plans, busy: np.ndarray) -> np.ndarray:
    """(S, n) stages of plans, the busiest first; behind them what they do not have."""
    return np.argsort(np.where(plans.used, -busy, np.inf), axis=0, kind="stable")


def moved(table: Table, plans: Plans, order: np.ndarray, moves: np.ndarray) -> Plans:
    """Return N plans after a move of ``CATALOGUE`` each; without stages where it is impossible."""
    stages, pieces = len(plans.devices), len(plans.ends)
    # Most moves need one more stage or piece at most; room for twice as many is slow to fill.
    grow = _GROWS[moves].any()
    wide = plans.padded(*(int(room_of(x)) if grow else x + 1 for x in (pieces, stages)))
    work = _Work(table, wide, order)
    for kind in np.unique(_KIND_OF[moves]).tolist():
        name = KINDS[kind]
        which = np.flatnonzero(_KIND_OF[moves] == kind)
        value, towards = _VALUE[moves[which]], _TOWARDS[moves[which]]
        if name in WHOLE:
            WHOLE[name](work, which, value, towards)
            continue
        stage, there = _at(work, which, _RANK[moves[which]])
        absent = which[~there]
        which, stage, value, towards = (x[there] for x in (which, stage, value, towards))
        SINGLE[name](work, which, stage, value, towards)
        wide.count[absent] = 0
    return settled(wide.trimmed())


_KIND_OF = np.array([KINDS.index(move.kind) for move in CATALOGUE])
_GROWS = np.array([move.kind in ("stages", "chunks", "split") for move in CATALOGUE])
"""Whether a move may make more stages, or pieces of the chain."""


class Neighbours(NamedTuple):
    """The neighbours of n plans.

    Attributes:
        moves: (n, 96) numbers in ``CATALOGUE`` by slot; -1 where a slot is empty.
        plan: (M,) of each neighbour, the number of the plan that it is a neighbour of.
        slot: (M,) its slot.
        plans: the M neighbours.
    """

    moves: np.ndarray
    plan: np.ndarray
    slot: np.ndarray
    plans: Plans


def neighbours(
    table: Table, plans: Plans, busy: np.ndarray, limits: Constraints | None = None
) -> Neighbours:
    """Return the legal neighbours of n plans, at most ``SLOTS`` of each axis.

    ``busy`` is (S, n) seconds of a micro-batch on each of their stages.
    """
    count, size = len(plans.count), len(CATALOGUE)
    order = busiest_first(plans, busy)
    tried, parts = _possible(table, plans), []
    apart = (tried & ~_GROWS, tried & _GROWS)  # the arrays of the first are narrow
    for some in apart if count >= APART else (tried,):
        plan, move = np.nonzero(some)
        other = moved(table, plans.take(plan), order[:, plan], move)
        good = np.flatnonzero(legal(table, other, limits) & _differ(plans, plan, other))
        parts.append((plan[good], move[good], other.take(good)))
    plan, move = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    chosen = np.zeros((count, size), dtype=bool)
    chosen[plan, move] = True
    moves, begin = np.full((count, KEPT), -1), 0
    at = np.full((count, size), -1)
    for axis, slots in SLOTS.items():
        mine = _OF_AXIS[axis]
        number = chosen[:, mine].cumsum(axis=1) - 1
        fits = chosen[:, mine] & (number < slots)
        row, column = np.nonzero(fits)
        moves[row, begin + number[row, column]] = mine[column]
        at[row, mine[column]] = begin + number[row, column]
        begin += slots
    slot = at[plan, move]
    kept = np.lexsort((move, plan))
    kept = kept[slot[kept] >= 0]
    others = joined([part[2] for part in parts]) if len(parts) > 1 else parts[0][2]
    others = others.take(kept).trimmed()
    return Neighbours(moves, plan[kept], slot[kept], others)


def _possible(table: Table, plans: Plans) -> np.ndarray:
    """(n, moves) whether it is worth a try: there are such stages, servers, experts."""
    ranked = _RANK[None] < plans.count[:, None]
    unequal = table.differs[plans.rows][:, None]
    mixture = table.experts[plans.rows][:, None] > 1
    for kind in ("sort servers", "swap servers"):
        ranked[:, _OF_KIND[kind]] &= unequal
    for kind in ("experts", "scaled experts"):
        ranked[:, _OF_KIND[kind]] &= mixture
    return np.asarray(ranked)


def _differ(plans: Plans, plan: np.ndarray, other: Plans) -> np.ndarray:
    """(M,) whether plans are others than those they were made of."""
    differ = np.zeros(len(plan), dtype=bool)
    for name in ("count", "samples", "chunks", "shared", "context", "expert", "shard"):
        differ |= getattr(plans, name)[plan] != getattr(other, name)
    for name in ("ends", "devices", "tp", "zero", "full", "selective", "servers"):
        before, after = getattr(plans, name), getattr(other, name)
        size = min(len(before), len(after))
        differ |= (before[:size, plan] != after[:size]).any(axis=0)
    return differ
