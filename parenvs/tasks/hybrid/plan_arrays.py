"""``Plans``: hybrid plans of 1F1B and interleaved schedules as arrays of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.core.sets import BOUND, BestValue
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Memory, Stages, Step
from parenvs.tasks.hybrid.layers import FIGURES, Chain, LookedUp, Split, figures_of
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible, software_of
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.uniform import Uniform


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

    def padded(self, pieces: int, stages: int, servers: int = 0) -> Plans:
        """Return the same plans, new arrays, with room for more pieces, stages and servers."""
        sizes = {"ends": pieces, "servers": servers, **dict.fromkeys(STAGES, stages)}
        fields = self._asdict()
        for name, values in fields.items():
            have = len(values)
            wide = np.empty((max(sizes.get(name, 0), have), *values.shape[1:]), values.dtype)
            wide[:have] = values
            if name == "servers":  # those that a cluster does not have stand in order
                wide[have:] = np.arange(have, len(wide))[:, None]
            elif len(wide) > have:
                wide[have:] = values[-1] if name == "ends" else STAGES[name]
            fields[name] = wide
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
        sizes, count = self.sizes(), len(self.count)
        # Piece c S + s is chunk c of stage s.
        stage = np.arange(len(sizes))[:, None] % np.maximum(self.count, 1)
        at = stage * count + np.arange(count)
        total = np.bincount(at.ravel(), sizes.ravel(), self.devices.size).astype(np.int64)
        return np.where(self.used, total.reshape(self.devices.shape), 0)


STAGES = {"devices": 0, "tp": 1, "zero": 0, "full": 0, "selective": 0}
"""Fields with a stage axis, and what they are behind the last stage."""
SIZED = ("ends", "devices", "servers")
"""Fields by which arrays of plans differ in size: pieces, stages, servers."""
ORDERS = SCHEDULES[:2]
"""Schedules of plans as arrays: of one chunk a stage, and of several."""


def plans_of(problem: Hybrid, plans: Sequence[HybridPlan], row: int = 0) -> Plans | None:
    """Return plans of one problem as arrays; None if one of them is no such plan.

    Such plans are 1F1B or interleaved, send and sum as the problem's software does, share experts'
    matrices by tp, keep activations on the device, and recompute the first layers of a stage.
    """
    sends = software_of(problem).of_plan
    if any(
        plan.schedule != ORDERS[plan.chunks > 1]
        or plan.expert_tp
        or plan.offload
        or any(getattr(plan, name) != value for name, value in sends.items())
        or not all(isinstance(x.recompute, dict) or not x.recompute for x in plan.stages)
        for plan in plans
    ):
        return None
    count, servers = len(plans), problem.cluster.servers
    size = max(len(plan.stages) for plan in plans)
    pieces = max(len(plan.stages) * plan.chunks for plan in plans)
    ends = np.full((pieces, count), len(problem.model))
    order = np.repeat(np.arange(servers)[:, None], count, axis=1)
    fields = {name: np.full((size, count), empty) for name, empty in STAGES.items()}
    samples = []
    for k, plan in enumerate(plans):
        for s, stage in enumerate(plan.stages):
            for name in ("devices", "tp", "zero"):
                fields[name][s, k] = getattr(stage, name)
            for mode, layers in dict(stage.recompute).items():  # type: ignore[arg-type]
                fields[mode][s, k] = layers
        bounds = np.array([stage.layers for stage in plan.stages])  # (S, v, 2)
        ends[: len(plan.stages) * plan.chunks, k] = bounds[:, :, 1].T.ravel()
        first = plan.stages[0]
        samples.append(plan.micro_batch * (first.devices // (first.tp * plan.context)))
        if plan.servers:
            order[:, k] = plan.servers

    def column(name: str) -> np.ndarray:
        return np.array([int(getattr(plan, name)) for plan in plans])

    return Plans(
        rows=np.full(count, row),
        count=np.array([len(plan.stages) for plan in plans]),
        samples=np.array(samples, dtype=np.int64),
        shared=column("sequence_parallel"),
        **{name: column(name) for name in ("chunks", "context", "expert", "shard")},
        ends=ends,
        servers=order,
        **fields,
    )


def plan_of(problem: Hybrid, plans: Plans, k: int) -> HybridPlan:
    """Return one of several plans as an object."""
    names = ("count", "samples", "chunks", "context", "expert", "shard")
    count, samples, chunks, context, expert, shard = (int(getattr(plans, x)[k]) for x in names)
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
    order = plans.servers[: problem.cluster.servers, k].tolist()
    return problem.plan(
        stages,
        samples // (stages[0].devices // (stages[0].tp * context)),
        schedule=ORDERS[chunks > 1],
        sequence_parallel=bool(plans.shared[k]),
        **{"chunks": chunks, "context": context, "expert": expert, "shard": shard},
        **software_of(problem).of_plan,
        servers=() if order == sorted(order) else tuple(order),
    )


def joined(parts: Sequence[Plans]) -> Plans:
    """Return several plans' arrays as one."""
    sizes = [max(len(getattr(part, name)) for part in parts) for name in SIZED]
    wide = [part.padded(*sizes) for part in parts]
    return Plans(*(np.concatenate(values, axis=-1) for values in zip(*wide, strict=True)))


def replaced(plans: Plans, which: np.ndarray, by: Plans) -> Plans:
    """Return N plans in which those numbered by ``which``, (k,), are the k others.

    The arrays are written to, unless there is no room in them.
    """
    sizes = [max(len(getattr(part, name)) for part in (plans, by)) for name in SIZED]
    plans, by = (
        part if [len(getattr(part, name)) for name in SIZED] == sizes else part.padded(*sizes)
        for part in (plans, by)
    )
    for values, others in zip(plans, by, strict=True):
        values[..., which] = others
    return plans


SAMPLES = 256
"""Most samples of a micro-batch in one replica of a stage."""
MAX_STAGES = 64
"""Most stages of a plan."""
_FIGURES = FIGURES - 1  # such plans split no backward passes, so gradients of weights are left out
_RATES = ("flops", "attention_flops", "memory_bw", "launch", "multiprocessors")
_LINKS = ("intra_bw", "nic_bw", "hop_in", "hop_out", "share", "send_share")
_AXES = ("samples", "tp", "context", "expert")


class Prepared(NamedTuple):
    """What is looked up of one problem.

    Attributes:
        values: for each of samples, tp, context and expert those that plans can have, rising.
        figures: (2 + K, 12, n) of embedding, head and K kinds of layers by split: the fields of
            ``LayerSeconds``, bytes kept by ``RECOMPUTE_MODES``, working bytes, parameters of all
            replicas and of experts. Splits are numbered samples first, sequence parallelism last.
    """

    problem: Hybrid
    values: tuple[tuple[int, ...], ...]
    figures: np.ndarray

    @property
    def kind(self) -> tuple[Any, ...]:
        """What problems that are judged in one call have in common."""
        problem = self.problem
        inside, device = problem.cluster.devices_per_server, problem.cluster.device
        switch = device.near, device.far_bw
        return problem.stack, problem.precision, inside, switch, software_of(problem)


def prepared(problem: Hybrid, limits: Constraints | None = None) -> Prepared:
    """Ask the layers of a problem for their figures.

    Raises:
        InfeasibleError: its plans do not go into arrays: the schedules of its stack are others.
    """
    if ORDERS[0] not in problem.stack.schedules:
        raise InfeasibleError(f"stack {problem.stack.name} has no schedule {ORDERS[0]}")
    limits, model, machine = limits or Constraints(), problem.model, problem.machine
    counts = [x for x in range(1, min(problem.batch, SAMPLES) + 1) if problem.batch % x == 0]
    choices = (limits.tensor_ranks(problem), limits.contexts(problem), limits.experts(problem))
    values = tuple(map(tuple, (counts, *choices)))
    axes = np.meshgrid(*(np.array(x) for x in values), [False, True], indexing="ij")
    samples, tp, context, expert, shared = (axis.ravel() for axis in axes)
    split = Split(tp, samples * 1.0, context, shared, expert)
    layers = (model.embedding, model.head, *model.kinds)
    figures = np.zeros((len(layers), _FIGURES, len(samples)))
    for layer, table in zip(layers, figures, strict=True):
        if layer is not None:
            table[:] = figures_of(layer, machine, split, len(samples))[:_FIGURES]
    return Prepared(problem, values, figures)


class Judged(NamedTuple):
    """What N plans take and hold; ``length`` and ``busy`` are NaN if memory alone was asked for.

    Attributes:
        length: (N,) seconds of a step.
        fullness: (N,) bytes on the fullest device over the limit; at most 1 fits.
        busy: (S, N) seconds of a micro-batch on each stage.
        held: (S, N) bytes on a device of each stage over the limit.
    """

    length: np.ndarray
    fullness: np.ndarray
    busy: np.ndarray
    held: np.ndarray


class Table:
    """Some problems of one kind in numbered rows, each of which can be replaced.

    Args:
        count: P, number of rows.

    Attributes:
        kind: see ``Prepared.kind``.
        problems: (P,) prepared problems, or None.
        layers: (P,) n of each.
        batch: (P,) samples of a step.
        total: (P,) devices of the cluster.
        sequence: (P,) tokens of a sample, 0 of a model without a shape.
        kinds_before: (P, n + 1, K) layers of each kind before each boundary.
        crossing: (P, n + 1) elements per sample that cross each boundary.
        speeds: (P, V) of servers, 1 beyond the cluster.
        limit: (P,) bytes of a device that plans may use.
    """

    def __init__(self, first: Prepared, count: int) -> None:
        problem = first.problem
        self.kind, self.inside = first.kind, problem.cluster.devices_per_server
        self.cluster, self.software = problem.cluster, software_of(problem)
        self.machine_of_all = problem.machine
        self.interleaves = ORDERS[1] in problem.stack.schedules
        self.problems: list[Prepared | None] = [None] * count
        whole, flags = np.ones((5, count), dtype=np.int64), np.zeros((4, count), dtype=bool)
        self.layers, self.batch, self.total, self.experts, self.servers = whole
        self.sequence = np.zeros(count, dtype=np.int64)
        self.has_front, self.has_back, self.may_share, self.differs = flags
        self.tied, self.limit = np.zeros((2, count))
        self.rates = np.zeros((len(_RATES) + len(_LINKS), count))
        self.kinds_before = np.zeros((count, 1, 1))
        self.crossing = np.zeros((count, 1))
        self.speeds = np.ones((count, 1))
        self.places = {name: np.full((count, 2), -1, dtype=np.int16) for name in _AXES}
        self.sizes = np.ones((len(_AXES), count), dtype=np.int64)
        self._figures = np.zeros((3, _FIGURES, count, 0))

    def put(self, row: int, prepared: Prepared) -> None:
        """Write a problem into a row, in place of the one that was there."""
        problem, model = prepared.problem, prepared.problem.model
        machine, shape, cluster = problem.machine, model.shape, problem.cluster
        n, servers = len(model), cluster.servers
        self.problems[row] = prepared
        self.layers[row], self.batch[row] = n, problem.batch
        self.total[row], self.servers[row] = cluster.devices, servers
        self.sequence[row] = 0 if shape is None else shape.sequence
        self.experts[row] = 1 if shape is None else shape.experts
        self.has_front[row] = model.embedding is not None
        self.has_back[row] = model.head is not None
        shares = shape is not None and model.reasons_against_sequence_parallel() is None
        self.may_share[row], self.differs[row] = shares, bool(cluster.speeds)
        self.tied[row], self.limit[row] = model.tied_parameters, problem.memory_limit
        # 0 of attention_flops is never read: all problems of a kind fuse attention, or none.
        rates = [getattr(machine, name) or 0.0 for name in _RATES]
        self.rates[:, row] = rates + [getattr(machine.links, name) for name in _LINKS]
        self.kinds_before = _put(self.kinds_before, row, model.kinds_before)
        self.crossing = _put(self.crossing, row, model.crossing_after)
        self.speeds = _put(self.speeds, row, np.array(cluster.speeds or (1.0,) * servers), 1.0)
        for axis, (name, values) in enumerate(zip(_AXES, prepared.values, strict=True)):
            places = np.full(max(values, default=0) + 1, -1)
            places[list(values)] = np.arange(len(values))
            self.places[name] = _put(self.places[name], row, places, -1)
            self.sizes[axis, row] = len(values)
        by_row = np.moveaxis(self._figures, 2, 0)
        self._figures = np.ascontiguousarray(np.moveaxis(_put(by_row, row, prepared.figures), 0, 2))

    def place(self, name: str, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the places of (..., N) values on an axis of the splits; -1: not on it."""
        places = self.places[name]
        # Values beyond the table are on no axis: they differ from what they are clipped to.
        inside = np.minimum(np.maximum(values, 0), places.shape[1] - 1)
        return np.where(inside == values, places[rows, inside], -1)

    def machine(self, rows: np.ndarray) -> Machine:
        """Return the machines of problems as one of arrays, (N,) each."""
        first, figures = self.machine_of_all, self.rates[:, rows]
        links = replace(first.links, **dict(zip(_LINKS, figures[len(_RATES) :], strict=True)))
        rates: dict[str, Any] = dict(zip(_RATES, figures, strict=False))
        if first.attention_flops is None:
            rates["attention_flops"] = None
        return first._replace(links=links, **rates)

    def judge(self, plans: Plans, seconds: bool = True) -> Judged:
        """Return what legal plans take and hold, as ``Hybrid.report`` judges each.

        Without ``seconds`` only memory is computed, which is quicker.
        """
        rows, used = plans.rows, plans.used
        stages, machine = self.stages(plans), self.machine(rows)
        front, back, *kinds = map(LookedUp, self._look_up(plans))
        model = Chain(kinds, front, back, self.tied[rows])
        parameters = formulas.parameters(model, stages)
        memory: Memory = formulas.memory(model, machine, stages, parameters)
        held = np.where(used, memory.total, 0.0) / self.limit[rows]
        length, busy = np.full(len(rows), np.nan), np.full(used.shape, np.nan)
        if seconds:
            step: Step = formulas.step(model, self.cluster, machine, stages, parameters)
            length, busy = step.length, np.where(used, step.busy, 0.0)
        return Judged(length, held.max(axis=0), busy, held)

    def _look_up(self, plans: Plans) -> np.ndarray:
        """(2 + K, 12, S, N) figures of embedding, head and a layer of each kind by split."""
        rows = plans.rows
        samples = np.where(plans.used, plans.samples // plans.dp, 1)
        at = self.place("samples", rows, samples).astype(np.int64)
        for axis, name in enumerate(_AXES[1:], start=1):
            places = self.place(name, rows, getattr(plans, name))
            # Mixed radix: the split's number among all that the problem's plans can have.
            at = at * self.sizes[axis, rows] + np.maximum(places, 0)
        # Illegal splits have place -1: any row will do, as what they cost is never read.
        at = (np.maximum(at, 0) * 2 + plans.shared) + rows * self._figures.shape[3]
        return self._figures.reshape(*self._figures.shape[:2], -1).take(at, axis=2)

    def stages(self, plans: Plans) -> Stages:
        """Return plans as the arrays of ``formulas``, (S, N) or (K, S, N) each."""
        alike = ("tp", "dp", "zero", "samples", "chunks", "expert", "count")
        return Stages(
            **self._layout(plans),
            **{name: getattr(plans, name) for name in alike},
            device=plans.first,
            speed=self.slowest(plans),
            micro_batches=self.batch[plans.rows] / plans.samples,
            # A plain number says that no plan has any, which saves arrays.
            context=plans.context if (plans.context > 1).any() else 1,
            sequence_parallel=plans.shared.astype(bool),
            **self.software.of_arrays,
            shard=np.where(plans.count > 0, plans.shard, 0) if plans.shard.any() else 0,
            schedule=ORDERS[0],
        )

    def slowest(self, plans: Plans) -> np.ndarray:
        """(S, N) speed of the slowest server of each stage; 1 behind the last stage."""
        result = np.ones(plans.devices.shape)
        if not self.differs[plans.rows].any():
            return result
        speeds = self.speeds[plans.rows, plans.servers]  # (V, N) in the plans' order
        begin = plans.first // self.inside
        # Rounded up: a stage may begin or end inside a server.
        end = -(-(plans.first + plans.devices) // self.inside)
        for server, speed in enumerate(speeds):
            within = (begin <= server) & (server < end) & plans.used
            result = np.where(within, np.minimum(result, speed), result)
        return result

    def _layout(self, plans: Plans) -> dict[str, Any]:
        """What depends on the layers: figures of ``Stages`` by name.

        All pieces stand one after the other, by plan, stage and chunk, and are added up by stage.
        """
        rows, used, count = plans.rows, plans.used, plans.count
        pieces = count * plans.chunks
        behind_all = pieces.cumsum()
        plan = np.repeat(np.arange(len(count)), pieces)
        number = np.arange(len(plan)) - (behind_all - pieces)[plan]
        stage, chunk = np.divmod(number, plans.chunks[plan])
        piece, row, place = chunk * count[plan] + stage, rows[plan], stage * len(count) + plan
        end = plans.ends[piece, plan]
        begin = np.where(piece > 0, plans.ends[piece - 1, plan], 0)
        size, is_first = end - begin, chunk == 0
        before = size.cumsum() - size
        passed = before - before[np.arange(len(plan)) - chunk]  # by the chunks in front
        ahead, behind = self.crossing[row, end], self.crossing[row, begin]

        def by_stage(values: np.ndarray, which: Any = slice(None)) -> np.ndarray:
            return np.bincount(place[which], values, used.size).reshape(used.shape)

        def kinds(until: np.ndarray, which: Any = slice(None)) -> np.ndarray:
            """(K, S, N) layers of each kind from where pieces begin on."""
            counts = self.kinds_before[row[which], until]
            counts -= self.kinds_before[row[which], begin[which]]
            return np.array([by_stage(values, which) for values in counts.T])

        def again(until: np.ndarray) -> np.ndarray:
            until = until[stage, plan]
            which = until.nonzero()[0]
            layers = np.clip(until[which] - passed[which], 0, size[which])
            return kinds(begin[which] + layers, which)

        layers, full = kinds(end), again(plans.full)
        selective = np.zeros_like(full)
        if plans.selective.any():
            selective = again(plans.full + plans.selective) - full
        on, back, total = by_stage(ahead), by_stage(behind), by_stage(size)
        links = np.where(used[1:], on[:-1], 0.0)
        # The chain's ends pass to one neighbor only, which counts twice (``Stages.back``).
        on[0] += ahead[behind_all - pieces]
        back[count - 1, np.arange(len(count))] += behind[behind_all - 1]
        share = by_stage(size[is_first], is_first) / np.maximum(total, 1)
        return {
            "layers": layers, "first_chunk": kinds(end[is_first], is_first), "full": full,
            "selective": selective, "on": on, "back": back, "first": share, "links": links,
        }  # fmt: skip


def _put(table: np.ndarray, row: int, values: np.ndarray, empty: float = 0.0) -> np.ndarray:
    """Write values into a row of a table, which is made wider where they need it."""
    missing = np.maximum(np.subtract(values.shape, table.shape[1:]), 0)
    if missing.any():
        table = np.pad(table, [(0, x) for x in (0, *missing)], constant_values=empty)
    table[row] = empty
    table[row][tuple(slice(size) for size in values.shape)] = values
    return table


def table_of(problems: Sequence[Prepared]) -> Table:
    """Return a table of problems of one kind, one in each row."""
    table = Table(problems[0], len(problems))
    for row, each in enumerate(problems):
        table.put(row, each)
    return table


def settled(plans: Plans) -> Plans:
    """Return plans in which what another choice rules out is given up.

    No more layers are recomputed than there are, ZeRO shares among several replicas, and gradients
    without a pipeline only; sequence parallelism goes with tp, experts are dealt out among as many
    replicas as all stages have, and states by neighbors only where they can be.
    """
    size, used, replicas = plans.layers(), plans.used, plans.dp * plans.context
    full = np.clip(plans.full, 0, size)
    levels = np.where(plans.count > 1, 1, 3)
    zero = np.where(used & (replicas > 1), np.minimum(plans.zero, levels), 0)
    expert = np.gcd(plans.expert, np.gcd.reduce(np.where(used, plans.dp, 0), axis=0))
    divides = (np.where(used, replicas % np.maximum(plans.shard, 1), 0) == 0).all(axis=0)
    shard = np.where(divides & zero.any(axis=0), plans.shard, 0)
    selective = np.clip(plans.selective, 0, size - full)
    shared = plans.shared * (plans.tp.max(axis=0) > 1)
    changed = {"full": full, "selective": selective, "zero": zero, "shared": shared}
    return plans._replace(**changed, expert=expert, shard=shard)


def legal(table: Table, plans: Plans, limits: Constraints | None = None) -> np.ndarray:
    """(N,) whether settled plans are well-formed, use all their devices, and can be judged.

    ``devices`` and ``pinned`` layers of the limits are not asked.
    """
    rows, count, widest = plans.rows, plans.count, plans.tp.max(axis=0)
    ranks = plans.tp * plans.context
    replicas = np.maximum(plans.devices // np.maximum(ranks, 1), 1)
    batch, samples = table.batch[rows], np.maximum(plans.samples, 1)
    # What each stage must have; what stands behind the last one is not asked.
    whole = (plans.devices > 0) & (plans.devices % ranks == 0)
    whole &= table.place("tp", rows, plans.tp) >= 0
    whole &= (plans.first % plans.tp == 0) | (plans.tp == 1)
    whole &= plans.samples % replicas == 0
    whole &= table.place("samples", rows, plans.samples // replicas) >= 0
    whole &= replicas % np.maximum(plans.expert, 1) == 0
    good = (whole | ~plans.used).all(axis=0)
    good &= (count >= 1) & (count <= MAX_STAGES) & (plans.chunks >= 1) & (plans.samples >= 1)
    good &= plans.devices.sum(axis=0) <= table.total[rows]
    good &= table.inside % widest == 0
    good &= table.place("context", rows, plans.context) >= 0
    good &= table.place("expert", rows, plans.expert) >= 0
    good &= batch % samples == 0
    # Interleaving takes micro-batches in multiples of the stages.
    fits = (batch // samples) % np.maximum(count, 1) == 0
    good &= (plans.chunks == 1) | (table.interleaves & (count > 1) & fits)
    # Every piece has a layer, but for those that hold embedding or head.
    sizes, pieces = plans.sizes(), count * plans.chunks
    number = np.arange(len(sizes))[:, None]
    ends = (number == 0) & table.has_front[rows] | (number == pieces - 1) & table.has_back[rows]
    good &= ((sizes > 0) | ((sizes == 0) & ends) | (number >= pieces)).all(axis=0)
    last = np.clip(pieces - 1, 0, len(sizes) - 1)
    good &= plans.ends[last, np.arange(len(pieces))] == table.layers[rows]
    shared = plans.shared.astype(bool)
    good &= ~shared | table.may_share[rows]
    parts = np.where(shared, widest, 1) * np.where(plans.context > 1, 2 * plans.context, 1)
    good &= table.sequence[rows] % parts == 0
    return good if limits is None else good & _keeps(limits, plans)


def _keeps(limits: Constraints, plans: Plans) -> np.ndarray:
    """(N,) whether plans keep to constraints; what stages choose, every stage keeps to."""
    dp, full, selective = plans.dp, plans.full, plans.selective
    micro_batch = plans.samples // np.maximum(dp, 1)
    # Of the whole plan, and of every stage: a choice that is pinned, and what plans have.
    of_plan = (
        (limits.pp, plans.count), (limits.chunks, plans.chunks), (limits.context, plans.context),
        (limits.expert, plans.expert), (limits.shard, plans.shard),
        (limits.sequence_parallel, plans.shared),
    )  # fmt: skip
    of_stage = (
        (limits.tp, plans.tp), (limits.dp, dp), (limits.stage_devices, plans.devices),
        (limits.micro_batch, micro_batch),
    )  # fmt: skip
    good = np.ones(plans.count.shape, dtype=bool)
    for pinned, values in of_plan:
        if pinned is not None:
            good &= values == int(pinned)
    if limits.schedule is not None:
        good &= (plans.chunks > 1) == (limits.schedule == ORDERS[1])
        good &= limits.schedule in ORDERS
    each = np.isin(plans.zero, limits.zero) & (micro_batch <= limits.most_micro_batch)
    each &= (plans.zero > 0) if limits.shard else True
    each &= (plans.tp > 1) if limits.sequence_parallel else True
    for pinned, values in of_stage:
        if pinned is not None:
            each &= values == pinned
    by_mode = (plans.layers() - full - selective, selective, full)
    for mode, layers in zip(RECOMPUTE_MODES, by_mode, strict=True):
        if mode not in limits.recompute:
            each &= layers == 0
    return np.asarray(good & (each | ~plans.used).all(axis=0))


AXES = (
    "tp", "pp", "dp", "micro_batch", "chunks", "context", "expert", "sequence_parallel", "zero",
    "recompute", "shard",
)  # fmt: skip
"""What decides a uniform plan of 1F1B or interleaved schedule; fields of ``Uniform``."""


STARTS = 64
"""Most plans of a problem that improving may begin with."""


class Start:
    """A problem, its best uniform plan, and what is known of its costs.

    Attributes:
        choices: (11,) the plan, see below.
        best: seconds of the best plan known, NaN without one.

    Args:
        choices: the plan, a whole number for each of ``AXES``; recomputation by its place among
            ``RECOMPUTE_MODES`` (default: it is searched).
        known: of a problem of a set, what is known of costs.

    Raises:
        InfeasibleError: no uniform plan fits the memory.
    """

    def __init__(
        self, problem: Hybrid, choices: np.ndarray | None = None, known: BestValue | None = None
    ) -> None:
        self.problem = problem
        self.choices = self._fastest[0] if choices is None else choices
        self.best = np.nan if known is None or known.kind == BOUND else known.value

    @cached_property
    def _fastest(self) -> np.ndarray:
        return fastest(self.problem)

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.problem.instance

    @property
    def bound(self) -> float:
        """What no plan costs less than."""
        return self.problem.kernel_bound_seconds

    @cached_property
    def prepared(self) -> Prepared:
        """What is looked up of the problem."""
        return prepared(self.problem)

    def restarts(self, count: int) -> list[Start]:
        """Return this start and the next fastest uniform plans that are not much alike.

        There are ``count`` of them, and ``STARTS`` at most.
        """
        starts = [self]
        if count > 1:
            _ = self.prepared  # looked up once for all
            for choices in self._fastest[1:count]:
                other = copy(self)
                other.__dict__.pop("plans", None)
                other.choices = choices
                starts.append(other)
        return starts

    @cached_property
    def plans(self) -> Plans:
        """The plan, as arrays of one."""
        columns: dict[str, Any] = dict(zip(AXES, self.choices.tolist(), strict=True))
        columns["recompute"] = RECOMPUTE_MODES[columns["recompute"]]
        software = software_of(self.problem).of_arrays
        plan = Uniform(batch=self.problem.batch, **software, **columns)
        plans = plans_of(self.problem, [self.problem.uniform_plan(plan, 0)])
        assert plans is not None
        return plans


def fastest(problem: Hybrid) -> np.ndarray:
    """Return the fastest uniform plans that are not much alike, (k, 11) by ``AXES``."""
    space = UniformSpace.build(problem, Constraints(uneven=True, expert_tp=0))
    good = np.asarray(space.fits & (space.plans.schedule == "") & (space.plans.pp <= MAX_STAGES))
    if not space.fits.any():
        raise infeasible(space)
    if not good.any():
        raise InfeasibleError(
            f"{problem.instance}: no uniform plan within memory has at most {MAX_STAGES} stages of "
            f"schedule {ORDERS[0]} or {ORDERS[1]}, whose neighbors are known"
        )
    chosen = distinct(space.plans, np.where(good, space.length, np.inf), STARTS)
    columns = {name: getattr(space.plans, name)[chosen] for name in AXES}
    modes = columns["recompute"]
    columns["recompute"] = sum(k * (modes == mode) for k, mode in enumerate(RECOMPUTE_MODES))
    return np.stack([column.astype(np.int64) for column in columns.values()], axis=-1)


def distinct(plans: Uniform, values: np.ndarray, count: int) -> np.ndarray:
    """Return the plans of least finite values, no two alike in tp, stages and micro-batch."""
    # Infinite values, of plans that do not fit, come last.
    order = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
    axes = plans.tp[order], plans.pp[order], plans.micro_batch[order]
    # One whole number for tp, stages and micro-batch together.
    alike = np.ravel_multi_index(axes, [1 + int(x.max(initial=0)) for x in axes])
    _, first = np.unique(alike, return_index=True)
    return np.asarray(order[np.sort(first)[:count]])
