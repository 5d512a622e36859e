"""Which plans as arrays are legal: ``parenvs.tasks.hybrid.legality`` of many plans at once."""

from __future__ import annotations

import numpy as np

from parenvs.tasks.hybrid.moves.judged import MAX_STAGES, Table
from parenvs.tasks.hybrid.moves.plans import Plans
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.space.constraints import Constraints


def settled(table: Table, plans: Plans) -> Plans:
    """Return plans in which what another choice rules out is given up.

    No more layers are recomputed than there are, ZeRO shares among several replicas, and gradients
    without a pipeline only; sequence parallelism goes with tp, experts are dealt out among as many
    replicas as all stages have, and states by neighbours only where they can be.
    """
    size, used, replicas = plans.layers(), plans.used, plans.dp * plans.context
    full = np.clip(plans.full, 0, size)
    selective = np.clip(plans.selective, 0, size - full)
    levels = np.where(plans.count > 1, 1, 3)
    zero = np.where(used & (replicas > 1), np.minimum(plans.zero, levels), 0)
    shared = plans.shared * (plans.tp.max(axis=0) > 1)
    expert = plans.expert
    if (expert > 1).any():
        expert = np.gcd(expert, np.gcd.reduce(np.where(used, plans.dp, 0), axis=0))
    shard = plans.shard
    if shard.any():
        divides = (np.where(used, replicas % np.maximum(shard, 1), 0) == 0).all(axis=0)
        shard = np.where(divides & zero.any(axis=0), shard, 0)
    return plans._replace(
        full=full, selective=selective, zero=zero, shared=shared, expert=expert, shard=shard
    )


def legal(table: Table, plans: Plans, limits: Constraints | None = None) -> np.ndarray:
    """(N,) whether plans are well-formed, use all devices that they used, and can be judged.

    Args:
        table: the problems.
        plans: settled ones (``settled``).
        limits: what plans must keep to beside; its ``devices`` and ``pinned`` layers are not asked.
    """
    rows, used, count = plans.rows, plans.used, plans.count
    ranks = plans.tp * plans.context
    replicas = np.maximum(plans.devices // np.maximum(ranks, 1), 1)
    good = (count >= 1) & (count <= MAX_STAGES) & (plans.chunks >= 1) & (plans.samples >= 1)
    good &= plans.devices.sum(axis=0) <= table.total[rows]
    good &= _all(used, (plans.devices > 0) & (plans.devices % ranks == 0))
    good &= _all(used, table.place("tp", rows, plans.tp) >= 0)
    good &= _all(used, (plans.first % plans.tp == 0) | (plans.tp == 1))
    good &= table.inside % plans.tp.max(axis=0) == 0
    good &= _all(used, plans.samples % replicas == 0)
    good &= _all(used, table.place("samples", rows, plans.samples // replicas) >= 0)
    good &= table.place("context", rows, plans.context) >= 0
    good &= table.place("expert", rows, plans.expert) >= 0
    good &= _all(used, replicas % np.maximum(plans.expert, 1) == 0)
    batch, samples = table.batch[rows], np.maximum(plans.samples, 1)
    good &= batch % samples == 0
    several = plans.chunks > 1
    fits = (batch // samples) % np.maximum(count, 1) == 0
    good &= ~several | (table.interleaves & (count > 1) & fits)
    good &= _pieces(table, plans)
    shared = plans.shared.astype(bool)
    good &= ~shared | (table.may_share[rows] & table.has_shape[rows])
    widest = np.where(shared, plans.tp.max(axis=0), 1)
    twice = np.where(plans.context > 1, 2 * plans.context, 1)
    good &= (table.sequence[rows] % (widest * twice) == 0) | ~table.has_shape[rows]
    return good if limits is None else good & _keeps(limits, plans)


def _all(used: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """(N,) whether something holds of all stages."""
    return np.asarray((holds | ~used).all(axis=0))


def _pieces(table: Table, plans: Plans) -> np.ndarray:
    """(N,) whether every piece has a layer, but for those that hold embedding or head."""
    sizes, pieces = plans.sizes(), plans.count * plans.chunks
    number = np.arange(len(sizes))[:, None]
    empty = (number == 0) & table.has_front[plans.rows]
    empty |= (number == pieces - 1) & table.has_back[plans.rows]
    fine = (sizes > 0) | ((sizes == 0) & empty) | (number >= pieces)
    last = plans.ends[np.clip(pieces - 1, 0, len(sizes) - 1), np.arange(len(pieces))]
    return np.asarray(fine.all(axis=0) & (last == table.layers[plans.rows]))


def _keeps(limits: Constraints, plans: Plans) -> np.ndarray:
    """(N,) whether plans keep to constraints; what stages choose, every stage keeps to."""
    used, dp = plans.used, plans.dp
    good = np.ones(len(plans.count), dtype=bool)
    for asked, values in ((limits.tp, plans.tp), (limits.dp, dp)):
        if asked is not None:
            good &= _all(used, values == asked)
    if limits.stage_devices is not None:
        good &= _all(used, plans.devices == limits.stage_devices)
    micro_batch = plans.samples // dp[0]
    for wanted, figures in (
        (limits.pp, plans.count), (limits.chunks, plans.chunks), (limits.context, plans.context),
        (limits.expert, plans.expert), (limits.shard, plans.shard),
        (limits.micro_batch, micro_batch), (limits.sequence_parallel, plans.shared),
    ):  # fmt: skip
        if wanted is not None:
            good &= figures == int(wanted)
    good &= micro_batch <= limits.most_micro_batch
    if limits.schedule is not None:
        good &= (plans.chunks > 1) == (limits.schedule == "interleaved")
        good &= limits.schedule in ("1f1b", "interleaved")
    replicas = dp * plans.context
    allowed = np.isin(plans.zero, limits.zero) | (replicas == 1)
    good &= _all(used, allowed)
    none, selective, full = (mode in limits.recompute for mode in RECOMPUTE_MODES)
    plain = plans.layers() - plans.full - plans.selective
    for mode, values in ((none, plain), (selective, plans.selective), (full, plans.full)):
        if not mode:
            good &= (np.where(used, values, 0) == 0).all(axis=0)
    return good
