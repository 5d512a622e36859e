"""The moves from a plan to its neighbors, of many plans at once.

Each move is of one of three axes. Moves of single stages go by how busy stages are, the busiest
first, so that what does not find room is about stages that decide little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.tasks.hybrid.plan_arrays import STAGES, Plans, Table, legal, settled
from parenvs.tasks.hybrid.space import Constraints

SLOTS = {"data": 32, "pipeline": 48, "operator": 16}
"""Axis -> neighbors that are kept of it; 96 in all."""
AXES = tuple(SLOTS)
KEPT = sum(SLOTS.values())
FEW = 12
"""Stages, or pieces of the chain, that any plan can get by a move; others can double theirs."""


class Move(NamedTuple):
    """A move, as the catalog lists it.

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
class _Change:
    """Plans of which some are changed, in place; a plan that cannot be gets no stages.

    Attributes:
        which: (k,) numbers of the plans that are changed.
        order: (S, N) stages of all plans, the busiest first.
        stage: (k,) the stage that is changed; empty for moves of the whole plan.
        value: (k,) how much, see ``Move``.
        towards: (k,)
    """

    table: Table
    plans: Plans
    order: np.ndarray
    which: np.ndarray
    stage: np.ndarray
    value: np.ndarray
    towards: np.ndarray

    @property
    def used(self) -> np.ndarray:
        """(S, k) whether a plan has a stage."""
        return np.asarray(self.plans.stage < self.plans.count[self.which])

    def reject(self, bad: np.ndarray) -> None:
        """Leave those of the plans, (k,) bool, without stages."""
        self.plans.count[self.which[bad]] = 0


def room_of(number: np.ndarray | int) -> np.ndarray:
    """Return how many stages, or pieces, a plan of so many can have after a move."""
    return np.maximum(2 * np.asarray(number), FEW)


def _scale(values: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole numbers ``factor`` times as large, else 1, and whether there are any."""
    scaled = values * factor
    whole = np.rint(scaled).astype(np.int64)
    good = (np.abs(scaled - whole) < 1e-9) & (whole >= 1)
    return np.where(good, whole, 1), good


def _deal_evenly(x: _Change) -> None:
    """Deal layers out evenly over the pieces, embedding and head as a layer each."""
    plans, n = x.plans, x.table.layers[x.plans.rows[x.which]]
    pieces = np.maximum(plans.count[x.which] * plans.chunks[x.which], 1)
    number = np.arange(1, len(plans.ends) + 1)[:, None]
    # n + 2 units with embedding and head; the first unit is the embedding, hence - 1.
    whole = np.round(number * (n + 2) / pieces).astype(np.int64) - 1
    ends = np.where(n % pieces == 0, number * (n // pieces), whole)
    plans.ends[:, x.which] = np.where(number >= pieces, n, np.clip(ends, 0, n))


_MODES = ("full", "selective")


def _recomputed_shares(x: _Change) -> list[np.ndarray]:
    """Shares of the layers that plans recompute in full and selectively."""
    total = np.maximum(x.plans.ends[-1, x.which], 1)
    return [getattr(x.plans, mode)[:, x.which].sum(axis=0) / total for mode in _MODES]


def _recompute_shares(x: _Change, shares: Sequence[np.ndarray]) -> None:
    """Recompute such shares of the layers of every stage, rounded up."""
    size = x.plans.take(x.which).layers()
    for mode, share in zip(_MODES, shares, strict=True):
        # 1e-9: a share that came of whole layers must not round up by an error of floats.
        getattr(x.plans, mode)[:, x.which] = np.ceil(size * share - 1e-9).astype(np.int64)


def _stages(x: _Change) -> None:
    """All stages anew: ``value`` times as many, each with as many devices; tp is the first's.

    With ``towards`` 1 the pieces of the chain stay about as many, else each stage has one.
    """
    plans, which = x.plans, x.which
    before, tp = plans.count[which], plans.tp[0, which]
    ranks = tp * plans.context[which]
    total = plans.devices[:, which].sum(axis=0)
    # A replica keeps its micro-batch, so memory changes little.
    per_replica = plans.samples[which] // np.maximum(plans.devices[0, which] // ranks, 1)
    count = np.rint(before * x.value).astype(np.int64)
    # Thirds are floats.
    good = (np.abs(before * x.value - count) < 1e-6) & (count >= 1) & (count <= room_of(before))
    # Devices must be dealt out evenly, in whole replicas.
    good &= total % (np.maximum(count, 1) * ranks) == 0
    # An impossible move is made with one stage first, so that arrays stay valid.
    count = np.where(good, count, 1)
    pieces = before * plans.chunks[which]
    plans.chunks[which] = np.where(x.towards == 1, np.maximum(pieces // count, 1), 1)
    shares, zero = _recomputed_shares(x), plans.zero[:, which].max(axis=0)
    plans.count[which] = count
    used, devices = x.used, total // count
    plans.devices[:, which] = np.where(used, devices, 0)
    plans.tp[:, which] = np.where(used, tp, 1)
    plans.zero[:, which] = np.where(used, zero, 0)
    plans.samples[which] = per_replica * np.maximum(devices // ranks, 1)
    _deal_evenly(x)
    _recompute_shares(x, shares)
    x.reject(~good)


def _chunks(x: _Change) -> None:
    """Another number of chunks: more or less by ``towards``, or ``value`` times as many; 0: one."""
    plans, which = x.plans, x.which
    shares, before, count = _recomputed_shares(x), plans.chunks[which], plans.count[which]
    scaled = np.rint(before * x.value).astype(np.int64)
    chunks = np.maximum(np.where(x.towards != 0, before + x.towards, scaled), 1)
    plans.chunks[which] = np.where(chunks * count <= room_of(before * count), chunks, 1)
    _deal_evenly(x)
    _recompute_shares(x, shares)


def _balance(x: _Change) -> None:
    """Deal layers out by the devices and speeds of the stages."""
    plans, changed, shares = x.plans, x.plans.take(x.which), _recomputed_shares(x)
    weight = running_sums(changed.devices * x.table.slowest(changed))
    n = x.table.layers[changed.rows]
    ends = np.rint(weight / np.maximum(weight[-1], 1) * (n + 2)).astype(np.int64) - 1
    # The last stage ends where the chain does, whatever was rounded.
    ends = np.where(changed.stage >= changed.count - 1, n, np.clip(ends, 0, n))
    size = min(len(ends), len(plans.ends))
    # Several chunks stay as they are.
    kept = plans.ends[:size, x.which]
    plans.ends[:size, x.which] = np.where(changed.chunks == 1, ends[:size], kept)
    _recompute_shares(x, shares)


def _sorted(x: _Change) -> None:
    """Servers by their speed, the fastest first (``towards`` 1) or last."""
    rows = x.plans.rows[x.which]
    number = np.arange(len(x.plans.servers))[:, None]
    # Places behind the cluster's servers sort last.
    inside = number < x.table.servers[rows]
    key = np.where(inside, -x.towards * x.table.speeds[rows, number], np.inf)
    x.plans.servers[:, x.which] = np.argsort(key, axis=0, kind="stable")


def _slowest_of(x: _Change, stage: np.ndarray, sign: int) -> np.ndarray:
    """Return the place of a stage's slowest (1) or fastest (-1) server in the order."""
    plans, which, inside = x.plans, x.which, x.table.inside
    first = plans.first[stage, which]
    end = -(-(first + plans.devices[stage, which]) // inside)
    number = np.arange(len(plans.servers))[:, None]
    speeds = x.table.speeds[plans.rows[which], plans.servers[:, which]]
    key = np.where((first // inside <= number) & (number < end), sign * speeds, np.inf)
    return np.asarray(key.argmin(axis=0))


def _swap(x: _Change) -> None:
    """The busiest stage's slowest server for the fastest one of a stage that is little busy.

    With ``towards`` 0 they change places, else the first one moves to the other's place.
    """
    rank = np.maximum(x.plans.count[x.which] - 1 - x.value.astype(np.int64), 0)
    slow = _slowest_of(x, x.order[0, x.which], 1)
    fast = _slowest_of(x, x.order[rank, x.which], -1)
    number = np.arange(len(x.plans.servers))[:, None]
    swapped = np.where(number == slow, fast, np.where(number == fast, slow, number))
    # Servers between the two places move up by one.
    step = np.sign(fast - slow)
    between = (np.minimum(slow, fast) <= number) & (number <= np.maximum(slow, fast))
    shifted = np.where(number == fast, slow, np.where(between, number + step, number))
    _rearrange(x, ("servers",), np.where(x.towards == 0, swapped, shifted))


def _cut(x: _Change) -> None:
    """A stage gives ``value`` layers away: from its last piece, or in front from its first."""
    plans, which, forward = x.plans, x.which, x.towards > 0
    count, chunks = plans.count[which], plans.chunks[which]
    border = np.where(forward, (chunks - 1) * count + x.stage, x.stage - 1)
    # Both ends of the chain are fixed; only borders between pieces move.
    bounded = (border >= 0) & (border < count * chunks - 1)
    at = np.clip(border, 0, len(plans.ends) - 1)
    change = np.where(bounded, -x.towards * x.value.astype(np.int64), 0)
    giving = np.where(forward, at, np.minimum(at + 1, len(plans.ends) - 1))
    plans.ends[at, which] += np.where(plans.sizes()[giving, which] >= np.abs(change), change, 0)


def _rearrange(x: _Change, names: Iterable[str], source: np.ndarray) -> None:
    """Move columns along the first axis: place s gets what is at ``source``, (S, k)."""
    for name in names:
        values = getattr(x.plans, name)
        values[:, x.which] = np.take_along_axis(values[:, x.which], source, axis=0)


def _merge(x: _Change) -> None:
    """A stage and the next become one, with the devices of both."""
    plans, which, stage = x.plans, x.which, x.stage
    bad = (stage >= plans.count[which] - 1) | (plans.chunks[which] > 1)
    behind = np.minimum(stage + 1, len(plans.devices) - 1)
    for values in (plans.devices, plans.full, plans.selective):
        values[stage, which] += values[behind, which]
    plans.zero[stage, which] = np.maximum(plans.zero[stage, which], plans.zero[behind, which])
    plans.ends[stage, which] = plans.ends[np.minimum(stage + 1, len(plans.ends) - 1), which]
    for names in (STAGES, ("ends",)):
        number = np.arange(len(getattr(plans, next(iter(names)))))[:, None]
        source = np.where(number > stage, np.minimum(number + 1, len(number) - 1), number)
        _rearrange(x, names, source)
    plans.count[which] -= 1
    x.reject(bad)


def _split(x: _Change) -> None:
    """A stage becomes ``value`` stages, each with as many of its devices."""
    plans, which, stage, parts = x.plans, x.which, x.stage, x.value.astype(np.int64)
    bad = (plans.chunks[which] > 1) | (plans.devices[stage, which] % parts != 0)
    # Only plans of one chunk are split, whose pieces are their stages.
    end = plans.ends[np.minimum(stage, len(plans.ends) - 1), which]
    begin = np.where(stage > 0, plans.ends[np.clip(stage - 1, 0, len(plans.ends) - 1), which], 0)
    # Devices divide; layers that are recomputed are rounded up.
    shares = {name: -(-getattr(plans, name)[stage, which] // parts) for name in _SHARED}
    for names in (STAGES, ("ends",)):
        number = np.arange(len(getattr(plans, next(iter(names)))))[:, None]
        source = np.where(number > stage, np.maximum(number - parts + 1, stage), number)
        _rearrange(x, names, source)
        inside = (number >= stage) & (number < stage + parts)
        dealt = begin + np.rint((end - begin) * (number - stage + 1) / parts).astype(np.int64)
        for name, new in ({"ends": dealt} if "ends" in names else shares).items():
            values = getattr(plans, name)
            values[:, which] = np.where(inside, new, values[:, which])
    plans.count[which] += parts - 1
    x.reject(bad)


_SHARED = ("devices", *_MODES)


def _devices(x: _Change) -> None:
    """A stage gives a share of its devices to a neighbor; ``value`` 0: those of one server."""
    plans, which, other = x.plans, x.which, x.stage + x.towards
    bad = (other < 0) | (other >= plans.count[which])
    given = (plans.devices[x.stage, which] * x.value).astype(np.int64)
    given = np.where(x.value == 0, x.table.inside, given)
    plans.devices[x.stage, which] -= given
    plans.devices[np.clip(other, 0, len(plans.devices) - 1), which] += given
    x.reject(bad)


def _tp(x: _Change) -> None:
    """``value`` times the tp of every stage; with ``towards`` 1 a replica keeps its samples."""
    plans, which, used = x.plans, x.which, x.used
    tp, good = _scale(plans.tp[:, which], x.value)
    plans.tp[:, which] = np.where(used, tp, 1)
    # ``samples`` is over all replicas, of which there are ``value`` times fewer.
    factor = np.where(x.towards == 1, 1 / x.value, 1.0)
    plans.samples[which], fits = _scale(plans.samples[which], factor)
    x.reject(~((good | ~used).all(axis=0) & fits))


def _scaled(name: str) -> Callable[[_Change], None]:
    """Return the move that makes a field of the whole plan ``value`` times what it is."""

    def move(x: _Change) -> None:
        values = getattr(x.plans, name)
        values[x.which], good = _scale(values[x.which], x.value)
        x.reject(~good)

    return move


def _shared(x: _Change) -> None:
    x.plans.shared[x.which] = 1 - x.plans.shared[x.which]


def _expert(x: _Change) -> None:
    most = x.table.experts[x.plans.rows[x.which]]
    x.plans.expert[x.which] = np.where(x.value == 0, 1, most)


def _zero(x: _Change) -> None:
    x.plans.zero[:, x.which] = np.where(x.used, x.value.astype(np.int64), 0)


def _recompute(x: _Change) -> None:
    """Recompute a share of the layers of every stage in full; -1: the attention of all."""
    _recompute_shares(x, (np.maximum(x.value, 0.0), np.where(x.value < 0, 1.0, 0.0)))


def _shard(x: _Change) -> None:
    plans, which = x.plans, x.which
    # The replicas of a stage that are in one server.
    near = x.table.inside // plans.tp[:, which].max(axis=0)
    plans.shard[which] = np.where((plans.shard[which] > 0) | (near <= 1), 0, near)


def _stage_tp(x: _Change) -> None:
    """``value`` times the tp of a stage."""
    tp = x.plans.tp
    tp[x.stage, x.which], good = _scale(tp[x.stage, x.which], x.value)
    x.reject(~good)


def _stage_zero(x: _Change) -> None:
    zero = x.plans.zero
    zero[x.stage, x.which] = (zero[x.stage, x.which] == 0).astype(np.int64)


def _stage_recompute(x: _Change) -> None:
    """``value`` more layers of a stage in full; with ``towards`` 1 the attention of all others."""
    plans, which = x.plans, x.which
    size = plans.take(which).layers()[x.stage, np.arange(len(which))]
    full = np.clip(plans.full[x.stage, which] + np.clip(x.value, -_MANY, _MANY), 0, size)
    plans.full[x.stage, which] = np.where(x.towards == 1, 0, full.astype(np.int64))
    plans.selective[x.stage, which] = np.where(x.towards == 1, size, 0)


WHOLE: dict[str, Callable[[_Change], None]] = {
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
SINGLE: dict[str, Callable[[_Change], None]] = {
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
CATALOG: tuple[Move, ...] = (
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
_AXIS = np.array([move.axis for move in CATALOG])
_KIND = np.array([KINDS.index(move.kind) for move in CATALOG])
RANK = np.array([move.rank for move in CATALOG])
"""Of each move, the rank of its stage by how busy it is; -1: it is of the whole plan."""
_VALUE = np.array([move.value for move in CATALOG])
_TOWARDS = np.array([move.towards for move in CATALOG])


def busiest_first(plans: Plans, busy: np.ndarray) -> np.ndarray:
    """(S, n) stages of plans, the busiest first; behind them what they do not have."""
    return np.argsort(np.where(plans.used, -busy, np.inf), axis=0, kind="stable")


def moved(table: Table, plans: Plans, order: np.ndarray, moves: np.ndarray) -> Plans:
    """Return N plans after a move of ``CATALOG`` each; without stages where it is impossible."""
    sizes = len(plans.ends), len(plans.devices)
    # Most moves need one more stage or piece at most; room for twice as many is slow to fill.
    grow = _GROWS[moves].any()
    wide = plans.padded(*(int(room_of(size)) if grow else size + 1 for size in sizes))
    for kind in np.unique(_KIND[moves]).tolist():
        which = np.flatnonzero(_KIND[moves] == kind)
        rank = RANK[moves[which]]
        if KINDS[kind] in SINGLE:
            absent = rank >= wide.count[which]
            wide.count[which[absent]] = 0
            which, rank = which[~absent], rank[~absent]
        stage, move = order[rank, which], moves[which]
        change = _Change(table, wide, order, which, stage, _VALUE[move], _TOWARDS[move])
        (WHOLE | SINGLE)[KINDS[kind]](change)
    return settled(wide.trimmed())


_GROWS = np.array([move.kind in ("stages", "chunks", "split") for move in CATALOG])
"""Whether a move may make more stages, or pieces of the chain."""


class Neighbors(NamedTuple):
    """The neighbors of n plans.

    Attributes:
        moves: (n, 96) numbers in ``CATALOG`` by slot; -1 where a slot is empty.
        plan: (M,) of each neighbor, the number of the plan that it is a neighbor of.
        slot: (M,) its slot.
        plans: the M neighbors.
    """

    moves: np.ndarray
    plan: np.ndarray
    slot: np.ndarray
    plans: Plans


def neighbors(
    table: Table, plans: Plans, busy: np.ndarray, limits: Constraints | None = None
) -> Neighbors:
    """Return the legal neighbors of n plans, at most ``SLOTS`` of each axis.

    ``busy`` is (S, n) seconds of a micro-batch on each of their stages.
    """
    count, size = len(plans.count), len(CATALOG)
    # Neighbors of busy stages get the slots first.
    order = busiest_first(plans, busy)
    plan, move = np.nonzero(_possible(table, plans))
    others = moved(table, plans.take(plan), order[:, plan], move)
    good = np.flatnonzero(legal(table, others, limits) & _differ(plans, plan, others))
    plan, move = plan[good], move[good]
    chosen = np.zeros((count, size), dtype=bool)
    chosen[plan, move] = True
    moves, slots = np.full((count, KEPT), -1), np.full((count, size), -1)
    begin = 0
    for axis, most in SLOTS.items():
        number = (chosen & (axis == _AXIS)).cumsum(axis=1) - 1
        # The first of each axis get a slot.
        row, column = np.nonzero(chosen & (axis == _AXIS) & (number < most))
        slots[row, column] = begin + number[row, column]
        moves[row, slots[row, column]] = column
        begin += most
    slot = slots[plan, move]
    kept = np.flatnonzero(slot >= 0)
    return Neighbors(moves, plan[kept], slot[kept], others.take(good[kept]).trimmed())


_OF_SERVERS, _OF_EXPERTS = (
    np.isin([move.kind for move in CATALOG], kinds)
    for kinds in (("sort servers", "swap servers"), ("experts", "scaled experts"))
)


def _possible(table: Table, plans: Plans) -> np.ndarray:
    """(n, moves) whether it is worth a try: there are such stages, servers, experts."""
    unequal = table.differs[plans.rows][:, None]
    mixture = table.experts[plans.rows][:, None] > 1
    ranked = plans.count[:, None] > RANK
    return np.asarray(ranked & (unequal | ~_OF_SERVERS) & (mixture | ~_OF_EXPERTS))


def _differ(plans: Plans, plan: np.ndarray, other: Plans) -> np.ndarray:
    """(M,) whether plans are others than those they were made of."""
    differ = np.zeros(len(plan), dtype=bool)
    for before, after in zip(plans, other, strict=True):
        if before.ndim == 1:
            differ |= before[plan] != after
        else:
            size = min(len(before), len(after))
            differ |= (before[:size, plan] != after[:size]).any(axis=0)
    return differ
