"""``Plans``: hybrid plans of 1F1B and interleaved schedules as arrays of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space.constraints import software_of


class Plans(NamedTuple):
    """N plans, each of some problem; the stage axis first, as in ``Stages``.

    Behind the last stage of a plan ``devices`` and recomputed layers are 0, ``tp`` is 1. Pieces of
    the chain are numbered as data passes: chunk c of stage s is piece c S + s; behind the last one
    ``ends`` repeats the number of layers.

    Attributes:
        rows: (N,) number of the problem.
        count: (N,) S, stages.
        samples: (N,) of a micro-batch over all replicas.
        chunks: (N,) v.
        shared: (N,) 0 or 1, sequence parallelism.
        context: (N,) ranks that share the tokens of a sample.
        expert: (N,) replicas among which experts are dealt out.
        shard: (N,) replicas among which ZeRO shares states; 0: all.
        ends: (G, N) layer behind each piece.
        devices: (S, N).
        tp: (S, N).
        zero: (S, N).
        full: (S, N) layers that are recomputed in full, the first of the stage.
        selective: (S, N) layers behind them of which the attention is recomputed.
        servers: (V, N) order of the servers.
    """

    rows: np.ndarray
    count: Any  # a tuple has a method of this name
    samples: np.ndarray
    chunks: np.ndarray
    shared: np.ndarray
    context: np.ndarray
    expert: np.ndarray
    shard: np.ndarray
    ends: np.ndarray
    devices: np.ndarray
    tp: np.ndarray
    zero: np.ndarray
    full: np.ndarray
    selective: np.ndarray
    servers: np.ndarray

    def take(self, which: np.ndarray) -> Plans:
        """Return some of the plans, by index or mask."""
        which = which.nonzero()[0] if which.dtype == np.bool_ else which
        return Plans(*(values.take(which, axis=-1) for values in self))

    def copy(self) -> Plans:
        """Return plans that can be changed."""
        return Plans(*(values.copy() for values in self))

    def padded(self, pieces: int, stages: int) -> Plans:
        """Return the same plans with room for more pieces and stages, new arrays."""
        fields = self._asdict()
        for name, values in fields.items():
            size = len(values)
            if name == "ends":
                size = max(size, pieces)
            elif name in STAGES:
                size = max(size, stages)
            fields[name] = wide = np.empty((size, *values.shape[1:]), dtype=values.dtype)
            wide[: len(values)] = values
            if size > len(values):
                wide[len(values) :] = values[-1] if name == "ends" else STAGES[name]
        return Plans(**fields)

    def trimmed(self) -> Plans:
        """Return the same plans without the room that none of them needs."""
        fields = self._asdict()
        stages = int(self.count.max(initial=1))
        for name in STAGES:
            fields[name] = fields[name][:stages]
        fields["ends"] = fields["ends"][: int((self.count * self.chunks).max(initial=1))]
        return Plans(**fields)

    @property
    def stage(self) -> np.ndarray:
        """(S, 1) numbers of the stages."""
        return np.arange(len(self.devices))[:, None]

    @property
    def used(self) -> np.ndarray:
        """(S, N) whether a plan has a stage."""
        return np.asarray(self.stage < self.count)

    @property
    def dp(self) -> np.ndarray:
        """(S, N) replicas, 1 behind the last stage."""
        return np.maximum(self.devices // (self.tp * self.context), 1)

    @property
    def first(self) -> np.ndarray:
        """(S, N) first device of each stage."""
        return np.asarray(running_sums(self.devices) - self.devices)

    def sizes(self) -> np.ndarray:
        """(G, N) layers of each piece."""
        sizes = self.ends.copy()
        sizes[1:] -= self.ends[:-1]
        return sizes

    def layers(self) -> np.ndarray:
        """(S, N) layers of each stage."""
        sizes, stages = self.sizes(), len(self.devices)
        total = np.zeros(self.devices.shape, dtype=np.int64)
        total[: len(sizes)] = sizes[:stages]
        several = np.flatnonzero(self.chunks > 1)
        if several.size:
            own = sizes[:, several]
            stage = np.arange(len(own))[:, None] % np.maximum(self.count[several], 1)
            at = stage * several.size + np.arange(several.size)
            dealt = np.bincount(at.ravel(), own.ravel(), stages * several.size)
            total[:, several] = dealt.reshape(stages, -1)
        return np.where(self.used, total, 0)


STAGES = {"devices": 0, "tp": 1, "zero": 0, "full": 0, "selective": 0}
"""Fields with a stage axis, and what they are behind the last stage."""
ORDERS = SCHEDULES[:2]
"""Schedules of plans as arrays: of one chunk a stage, and of several."""


def plans_of(problem: Hybrid, plans: Sequence[HybridPlan], row: int = 0) -> Plans | None:
    """Return plans of one problem as arrays; None if one of them is no such plan.

    Such plans are 1F1B or interleaved, send and sum as the problem's software does, share experts'
    matrices by tp, keep activations on the device, and recompute the first layers of a stage.

    Args:
        problem: the problem.
        plans: well-formed plans.
        row: its number.
    """
    software = software_of(problem)
    stages = max(len(plan.stages) for plan in plans)
    pieces = max(len(plan.stages) * plan.chunks for plan in plans)
    count, servers = len(plans), problem.cluster.servers
    made = Plans(
        rows=np.full(count, row),
        **{
            name: np.array([int(getattr(plan, key)) for plan in plans])
            for name, key in (
                ("chunks", "chunks"), ("shared", "sequence_parallel"), ("context", "context"),
                ("expert", "expert"), ("shard", "shard"),
            )
        },
        count=np.array([len(plan.stages) for plan in plans]),
        samples=np.zeros(count, dtype=np.int64),
        ends=np.full((pieces, count), len(problem.model)),
        **{name: np.full((stages, count), empty) for name, empty in STAGES.items()},
        servers=np.repeat(np.arange(servers)[:, None], count, axis=1),
    )  # fmt: skip
    for k, plan in enumerate(plans):
        sends = plan.p2p, plan.gradient_bytes, plan.gradient_overlap
        if (
            plan.schedule != ORDERS[plan.chunks > 1]
            or plan.expert_tp
            or plan.offload
            or sends
            != (SENDS[not software.blocking], software.gradient_bytes, software.gradient_overlap)
            or not all(isinstance(x.recompute, dict) or not x.recompute for x in plan.stages)
        ):
            return None
        of_chunk = [[pair[1] for pair in stage.layers] for stage in plan.stages]
        ends = [end for chunk in zip(*of_chunk, strict=True) for end in chunk]
        made.ends[: len(ends), k] = ends
        for s, stage in enumerate(plan.stages):
            again = dict(stage.recompute) if stage.recompute else {}  # type: ignore[arg-type]
            for name in ("devices", "tp", "zero"):
                getattr(made, name)[s, k] = getattr(stage, name)
            for name in ("full", "selective"):
                getattr(made, name)[s, k] = again.get(name, 0)
        first = plan.stages[0]
        made.samples[k] = plan.micro_batch * (first.devices // (first.tp * plan.context))
        if plan.servers:
            made.servers[:, k] = plan.servers
    return made


def plan_of(problem: Hybrid, plans: Plans, k: int) -> HybridPlan:
    """Return one of several plans as an object.

    Args:
        problem: its problem.
        plans: the plans.
        k: number of the one.
    """
    count, chunks = int(plans.count[k]), int(plans.chunks[k])
    context = int(plans.context[k])
    bounds = [0, *plans.ends[: count * chunks, k].tolist()]
    stages = [
        HybridStage(
            layers=tuple((bounds[c * count + s], bounds[c * count + s + 1]) for c in range(chunks)),
            devices=int(plans.devices[s, k]),
            tp=int(plans.tp[s, k]),
            zero=int(plans.zero[s, k]),
            recompute={mode: int(getattr(plans, mode)[s, k]) for mode in ("full", "selective")},
        )
        for s in range(count)
    ]
    software, order = software_of(problem), plans.servers[: problem.cluster.servers, k].tolist()
    return problem.plan(
        stages,
        int(plans.samples[k]) // (stages[0].devices // (stages[0].tp * context)),
        schedule=ORDERS[chunks > 1],
        chunks=chunks,
        sequence_parallel=bool(plans.shared[k]),
        context=context,
        expert=int(plans.expert[k]),
        shard=int(plans.shard[k]),
        p2p=SENDS[not software.blocking],
        gradient_bytes=software.gradient_bytes,
        gradient_overlap=software.gradient_overlap,
        servers=() if order == sorted(order) else tuple(order),
    )


def joined(parts: Sequence[Plans]) -> Plans:
    """Return several plans' arrays as one."""
    stages = max(len(part.devices) for part in parts)
    pieces = max(len(part.ends) for part in parts)
    servers = max(len(part.servers) for part in parts)
    wide = [_ordered(part.padded(pieces, stages), servers) for part in parts]
    return Plans(*(np.concatenate(values, axis=-1) for values in zip(*wide, strict=True)))


def _ordered(plans: Plans, servers: int) -> Plans:
    """Return plans with an order of so many servers, those beyond their own as they come."""
    have = len(plans.servers)
    rest = np.repeat(np.arange(have, servers)[:, None], len(plans.count), axis=1)
    return plans._replace(servers=np.concatenate([plans.servers, rest]))


def replaced(plans: Plans, which: np.ndarray, by: Plans) -> Plans:
    """Return plans in which those of some numbers are others.

    The arrays are written to, unless there is no room in them.

    Args:
        plans: N plans.
        which: (k,) numbers.
        by: the k others.
    """
    pieces, stages = max(len(plans.ends), len(by.ends)), max(len(plans.devices), len(by.devices))
    servers = max(len(plans.servers), len(by.servers))
    size = pieces, stages, servers
    plans, by = (
        part
        if (len(part.ends), len(part.devices), len(part.servers)) == size
        else _ordered(part.padded(pieces, stages), servers)
        for part in (plans, by)
    )
    for mine, its in zip(plans, by, strict=True):
        mine[..., which] = its
    return plans
