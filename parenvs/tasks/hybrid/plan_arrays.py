"""``Plans``: hybrid plans of 1F1B and interleaved schedules as arrays of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.arrays import running_sums
from parenvs.core.sets import BOUND, OPTIMUM, BestValue
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Memory, Stages, Step
from parenvs.tasks.hybrid.layers import Chain, Figure, Layer, LayerSeconds, Split
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
            pieces = sizes[:, several]
            # Piece c S + s is chunk c of stage s.
            stage = np.arange(len(pieces))[:, None] % np.maximum(self.count[several], 1)
            at = stage * several.size + np.arange(several.size)
            dealt = np.bincount(at.ravel(), pieces.ravel(), stages * several.size)
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
    """
    sends = software_of(problem).of_plan
    stages = max(len(plan.stages) for plan in plans)
    pieces = max(len(plan.stages) * plan.chunks for plan in plans)
    count, servers = len(plans), problem.cluster.servers
    arrays = Plans(
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
        if (
            plan.schedule != ORDERS[plan.chunks > 1]
            or plan.expert_tp
            or plan.offload
            or any(getattr(plan, name) != value for name, value in sends.items())
            or not all(isinstance(x.recompute, dict) or not x.recompute for x in plan.stages)
        ):
            return None
        of_chunk = [[pair[1] for pair in stage.layers] for stage in plan.stages]
        ends = [end for chunk in zip(*of_chunk, strict=True) for end in chunk]
        arrays.ends[: len(ends), k] = ends
        for s, stage in enumerate(plan.stages):
            again = dict(stage.recompute) if stage.recompute else {}  # type: ignore[arg-type]
            for name in ("devices", "tp", "zero"):
                getattr(arrays, name)[s, k] = getattr(stage, name)
            for name in ("full", "selective"):
                getattr(arrays, name)[s, k] = again.get(name, 0)
        first = plan.stages[0]
        arrays.samples[k] = plan.micro_batch * (first.devices // (first.tp * plan.context))
        if plan.servers:
            arrays.servers[:, k] = plan.servers
    return arrays


def plan_of(problem: Hybrid, plans: Plans, k: int) -> HybridPlan:
    """Return one of several plans as an object."""
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
    order = plans.servers[: problem.cluster.servers, k].tolist()
    return problem.plan(
        stages,
        int(plans.samples[k]) // (stages[0].devices // (stages[0].tp * context)),
        schedule=ORDERS[chunks > 1],
        chunks=chunks,
        sequence_parallel=bool(plans.shared[k]),
        context=context,
        expert=int(plans.expert[k]),
        shard=int(plans.shard[k]),
        **software_of(problem).of_plan,
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
    """Return N plans in which those numbered by ``which``, (k,), are the k others.

    The arrays are written to, unless there is no room in them.
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


SAMPLES = 256
"""Most samples of a micro-batch in one replica of a stage."""
MAX_STAGES = 64
"""Most stages of a plan."""
JUDGED = 2048
"""Plans that are judged together, so that their arrays stay in the cache."""
_SECONDS = len(LayerSeconds._fields)
_KEPT = _SECONDS + len(RECOMPUTE_MODES)
_FIGURES = _KEPT + 3  # working bytes, parameters of all replicas, of experts
_RATES = ("flops", "attention_flops", "memory_bw", "launch", "multiprocessors")
_LINKS = ("intra_bw", "nic_bw", "hop_in", "hop_out", "share", "send_share")
_AXES = ("samples", "tp", "context", "expert")
_OPEN = Constraints()


class Prepared(NamedTuple):
    """What is looked up of one problem.

    Attributes:
        values: for each of samples, tp, context and expert those that plans can have, rising.
        figures: (K + 2, 12, n) of K kinds of layers, embedding and head by split: the fields of
            ``LayerSeconds``, bytes kept by ``RECOMPUTE_MODES``, working bytes, parameters of all
            replicas and of experts. Splits are numbered samples first, sequence parallelism last.
    """

    problem: Hybrid
    values: tuple[tuple[int, ...], ...]
    figures: np.ndarray
    limits: Constraints = _OPEN

    @property
    def kind(self) -> tuple[Any, ...]:
        """What problems that are judged in one call have in common."""
        problem = self.problem
        inside = problem.cluster.devices_per_server
        return problem.stack, problem.precision, inside, software_of(problem)


def prepared(problem: Hybrid, limits: Constraints = _OPEN) -> Prepared:
    """Ask the layers of a problem for their figures.

    Raises:
        InfeasibleError: its plans do not go into arrays: the schedules of its stack are others.
    """
    if ORDERS[0] not in problem.stack.schedules:
        raise InfeasibleError(f"stack {problem.stack.label} has no schedule {ORDERS[0]}")
    values = (
        tuple(x for x in divisors_up_to(problem.batch, SAMPLES)),
        tuple(limits.tensor_ranks(problem)),
        tuple(limits.contexts(problem)),
        tuple(limits.experts(problem)),
    )
    model, machine = problem.model, problem.machine
    axes = np.meshgrid(*(np.array(x, dtype=float) for x in values), [False, True], indexing="ij")
    samples, tp, context, expert, shared = (axis.ravel() for axis in axes)
    tp, context, expert = (x.astype(np.int64) for x in (tp, context, expert))
    several = len(values[3]) > 1, len(values[2]) > 1
    split = Split(
        tp, samples, context if several[1] else values[2][0], shared.astype(bool),
        expert if several[0] else values[3][0],
    )  # fmt: skip
    layers = (*model.kinds, model.embedding, model.head)
    figures = np.zeros((len(layers), _FIGURES, len(samples)))
    for number, layer in enumerate(layers):
        if layer is None:
            continue
        kept = (layer.saved_bytes(machine, split, mode) for mode in RECOMPUTE_MODES)
        parts = (
            *layer.seconds(machine, split), *kept, layer.working_bytes(machine, split),
            *layer.parameters(split),
        )  # fmt: skip
        for part, figure in enumerate(parts):
            figures[number, part] = figure
    return Prepared(problem, values, figures, limits)


def divisors_up_to(number: int, most: int) -> list[int]:
    """Return the whole numbers up to one that divide a number."""
    return [x for x in range(1, min(number, most) + 1) if number % x == 0]


@dataclass(frozen=True, eq=False)
class _LookedUp(Layer):
    """One layer of every stage of several plans; ``figures`` is (12, S, N)."""

    figures: np.ndarray

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        return LayerSeconds(*self.figures[:_SECONDS])

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        return self.figures[-2], self.figures[-1]

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        return self.figures[_SECONDS + RECOMPUTE_MODES.index(mode)]

    def working_bytes(self, machine: Machine, split: Split) -> Figure:
        return self.figures[_KEPT]


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
        kinds_before: (P, n + 1, K) layers of each kind before each boundary.
        crossing: (P, n + 1) elements per sample that cross each boundary.
        speeds: (P, V) of servers, 1 beyond the cluster.
        limit: (P,) bytes of a device that plans may use.
    """

    def __init__(self, first: Prepared, count: int) -> None:
        problem = first.problem
        self.kind, self.inside = first.kind, problem.cluster.devices_per_server
        self.cluster, self.software = problem.cluster, software_of(problem)
        self.machine_of_all, self.precision = problem.machine, problem.precision
        self.interleaves = ORDERS[1] in problem.stack.schedules
        self.problems: list[Prepared | None] = [None] * count
        self.layers, self.batch, self.total = np.ones((3, count), dtype=np.int64)
        self.sequence, self.experts = np.ones((2, count), dtype=np.int64)
        self.has_front, self.has_back, self.has_shape = np.zeros((3, count), dtype=bool)
        self.may_share, self.differs = np.zeros((2, count), dtype=bool)
        self.tied, self.limit = np.zeros((2, count))
        self.rates = np.zeros((len(_RATES) + len(_LINKS), count))
        self.kinds_before = np.zeros((count, 1, 1))
        self.crossing = np.zeros((count, 1))
        self.speeds = np.ones((count, 1))
        self.servers = np.ones(count, dtype=np.int64)
        self.places = {name: np.full((count, 2), -1, dtype=np.int16) for name in _AXES}
        self.sizes = np.ones((len(_AXES), count), dtype=np.int64)
        self._figures = np.zeros((3, _FIGURES, 0))
        self._room = 0

    def put(self, row: int, prepared: Prepared) -> None:
        """Write a problem into a row, in place of the one that was there."""
        problem, model = prepared.problem, prepared.problem.model
        n, servers = len(model), problem.cluster.servers
        self._reserve(prepared, n, servers)
        self.problems[row] = prepared
        self.layers[row], self.batch[row] = n, problem.batch
        self.total[row], self.servers[row] = problem.cluster.devices, servers
        shape = model.shape
        self.sequence[row] = 1 if shape is None else shape.sequence
        self.has_shape[row] = shape is not None
        self.experts[row] = 1 if shape is None else shape.experts
        self.has_front[row] = model.embedding is not None
        self.has_back[row] = model.head is not None
        self.may_share[row] = model.reasons_against_sequence_parallel() is None
        self.tied[row], self.limit[row] = model.tied_parameters, problem.memory_limit
        machine = problem.machine
        rates = [getattr(machine, name) or 0.0 for name in _RATES]
        self.rates[:, row] = rates + [getattr(machine.links, name) for name in _LINKS]
        before = model.kinds_before
        self.kinds_before[row] = 0.0
        self.kinds_before[row, : n + 1, : before.shape[1]] = before
        self.crossing[row] = 0.0
        self.crossing[row, : n + 1] = model.crossing_after
        self.speeds[row] = 1.0
        self.speeds[row, :servers] = problem.cluster.speeds or 1.0
        self.differs[row] = bool(problem.cluster.speeds)
        for axis, (name, values) in enumerate(zip(_AXES, prepared.values, strict=True)):
            self.places[name][row] = -1
            self.places[name][row, list(values)] = np.arange(len(values))
            self.sizes[axis, row] = len(values)
        kinds, size = len(model.kinds), prepared.figures.shape[-1]
        begin = row * self._room
        mine = self._figures[..., begin : begin + size]
        mine[:] = 0.0
        mine[:kinds], mine[-2:] = prepared.figures[:-2], prepared.figures[-2:]

    def _reserve(self, prepared: Prepared, n: int, servers: int) -> None:
        kinds = len(prepared.problem.model.kinds)
        wide = self.kinds_before.shape
        if n + 1 > wide[1] or kinds > wide[2]:
            room = [(0, 0), (0, max(n + 1 - wide[1], 0)), (0, max(kinds - wide[2], 0))]
            self.kinds_before = np.pad(self.kinds_before, room)
            self.crossing = np.pad(self.crossing, room[:2])
        if servers > self.speeds.shape[1]:
            more = servers - self.speeds.shape[1]
            self.speeds = np.pad(self.speeds, [(0, 0), (0, more)], constant_values=1.0)
        for name, values in zip(_AXES, prepared.values, strict=True):
            more = max(values, default=0) + 1 - self.places[name].shape[1]
            if more > 0:
                places = np.pad(self.places[name], [(0, 0), (0, more)], constant_values=-1)
                self.places[name] = places
        have, size = len(self._figures) - 2, prepared.figures.shape[-1]
        if kinds > have or size > self._room:
            old, wider = self._figures, max(size, self._room)
            count = len(self.problems)
            self._figures = np.zeros((max(kinds, have) + 2, _FIGURES, count * wider))
            if self._room:
                # The last two kinds are embedding and head: they stay last.
                grown = self._figures.reshape(*self._figures.shape[:2], count, wider)
                before = old.reshape(*old.shape[:2], count, self._room)
                grown[:have, :, :, : self._room] = before[:-2]
                grown[-2:, :, :, : self._room] = before[-2:]
            self._room = wider

    def place(self, name: str, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the places of (..., N) values on an axis of the splits; -1: not on it."""
        places = self.places[name]
        most = places.shape[1] - 1
        inside = np.minimum(np.maximum(values, 0), most)
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
        parts = list(self._parts(plans, seconds))
        if len(parts) == 1:
            return parts[0]
        length, fullness = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        stages = len(plans.devices)
        busy, held = np.zeros((2, stages, len(plans.count)))
        begin = 0
        for part in parts:
            end = begin + len(part.length)
            busy[: len(part.busy), begin:end] = part.busy
            held[: len(part.held), begin:end] = part.held
            begin = end
        return Judged(length, fullness, busy, held)

    def _parts(self, plans: Plans, seconds: bool) -> Iterator[Judged]:
        for begin in range(0, max(len(plans.count), 1), JUDGED):
            part = plans.take(np.arange(begin, min(begin + JUDGED, len(plans.count)))).trimmed()
            stages = self.stages(part)
            figures = self._look_up(part, stages)
            machine = self.machine(part.rows)
            model = Chain(
                [_LookedUp(figure) for figure in figures[:-2]],
                _LookedUp(figures[-2]),
                _LookedUp(figures[-1]),
                self.tied[part.rows],
            )
            parameters = formulas.parameters(model, stages)
            memory: Memory = formulas.memory(model, machine, stages, held=parameters)
            held = np.where(part.used, memory.total, 0.0) / self.limit[part.rows]
            if seconds:
                step: Step = formulas.step(model, self.cluster, machine, stages, parameters)
                length, busy = step.length, np.where(part.used, step.busy, 0.0)
            else:
                length, busy = np.full(len(part.count), np.nan), np.full(held.shape, np.nan)
            yield Judged(length, held.max(axis=0), busy, held)

    def _look_up(self, plans: Plans, stages: Stages) -> np.ndarray:
        """(K + 2, 12, S, N) figures of a layer of each kind as plans split it."""
        rows = plans.rows
        samples = np.where(plans.used, plans.samples // plans.dp, 1)
        at = self.place("samples", rows, samples).astype(np.int64)
        for axis, (name, values) in enumerate(
            (("tp", plans.tp), ("context", plans.context), ("expert", plans.expert)), start=1
        ):
            places = self.place(name, rows, values)
            # Mixed radix: the split's number among all that the problem's plans can have.
            at = at * self.sizes[axis, rows] + np.maximum(places, 0)
        # Illegal splits have place -1: any row will do, as what they cost is never read.
        at = (np.maximum(at, 0) * 2 + plans.shared) + rows * self._room
        return self._figures.take(at, axis=2)

    def stages(self, plans: Plans) -> Stages:
        """Return plans as the arrays of ``formulas``, (S, N) or (K, S, N) each."""
        fields = self._layout(plans)
        rows, used = plans.rows, plans.used
        contexts = plans.context if (plans.context > 1).any() else 1
        return Stages(
            **fields,
            tp=plans.tp,
            dp=plans.dp,
            zero=plans.zero,
            device=plans.first,
            speed=self.slowest(plans),
            samples=plans.samples,
            micro_batches=self.batch[rows] / plans.samples,
            chunks=plans.chunks,
            context=contexts,
            sequence_parallel=plans.shared.astype(bool),
            expert=plans.expert,
            **self.software.of_arrays,
            shard=np.where(used.any(axis=0), plans.shard, 0) if plans.shard.any() else 0,
            count=plans.count,
            schedule=ORDERS[0],
        )

    def slowest(self, plans: Plans) -> np.ndarray:
        """(S, N) speed of the slowest server of each stage; 1 behind the last stage."""
        if not self.differs[plans.rows].any():
            return np.ones(plans.devices.shape)
        speeds = self.speeds[plans.rows, plans.servers]  # (V, N) in the plans' order
        begin = plans.first // self.inside
        # Rounded up: a stage may begin or end inside a server.
        end = -(-(plans.first + plans.devices) // self.inside)
        result = np.ones(plans.devices.shape)
        for server in range(len(speeds)):
            mine = (begin <= server) & (server < end) & plans.used
            result = np.where(mine, np.minimum(result, speeds[server]), result)
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
            some = until.nonzero()[0]
            layers = np.clip(until[some] - passed[some], 0, size[some])
            return kinds(begin[some] + layers, some)

        layers, full = kinds(end), again(plans.full)
        selective = np.zeros_like(full)
        if plans.selective.any():
            selective = again(plans.full + plans.selective) - full
        on, back, total = by_stage(ahead), by_stage(behind), by_stage(size)
        links = np.where(used[1:], on[:-1], 0.0)
        # The chain's ends pass to one neighbor only, which counts twice (``Stages.back``).
        on[0] += ahead[behind_all - pieces]
        back[count - 1, np.arange(len(count))] += behind[behind_all - 1]
        return {
            "layers": layers,
            "first_chunk": kinds(end[is_first], is_first),
            "full": full,
            "selective": selective,
            "on": on,
            "back": back,
            "first": by_stage(size[is_first], is_first) / np.maximum(total, 1),
            "links": links,
        }


def table_of(problems: Sequence[Prepared]) -> Table:
    """Return a table of problems of one kind, one in each row."""
    table = Table(problems[0], len(problems))
    for row, each in enumerate(problems):
        table.put(row, each)
    return table


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
    """(N,) whether settled plans are well-formed, use all their devices, and can be judged.

    ``devices`` and ``pinned`` layers of the limits are not asked.
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


AXES = (
    "tp", "pp", "dp", "micro_batch", "chunks", "context", "expert", "sequence_parallel", "zero",
    "recompute", "shard",
)  # fmt: skip
"""What decides a uniform plan of 1F1B or interleaved schedule; fields of ``Uniform``."""


STARTS = 64
"""Most plans of a problem that improving may begin with."""
VALUES = 97
"""Most values of an axis."""


class Uniforms:
    """Uniform plans that fit and go into arrays, in an order drawn once for all.

    Of each axis the ``VALUES`` least values count, more than any but very long chains have.

    Attributes:
        codes: (N, axes) place of each plan's value among those of the axis, in rising order; the
            axes are ``AXES`` but for ``"dp"``, which the others decide.
        shown: of each axis, log2(1 + x) / 8 of its values, as they are shown; of recomputation
            their numbers, / 2.
        length: (N,) seconds of a step.

    Raises:
        InfeasibleError: there is none.
    """

    def __init__(self, problem: Hybrid) -> None:
        self._space, good = space_of(problem)
        numbers = np.flatnonzero(good)
        # One fixed order: the first completions of a choice are a fair sample on every machine.
        numbers = np.random.default_rng(0).permutation(numbers)
        chosen, codes = choices_of(self._space.plans, numbers), []
        self.shown: list[np.ndarray] = []
        for column, axis in enumerate(AXES):
            if axis != "dp":
                values, code = np.unique(chosen[:, column], return_inverse=True)
                codes.append(code)
                is_mode = axis == "recompute"
                self.shown.append(values / 2 if is_mode else np.log2(1 + values) / 8)
        every = np.stack(codes, axis=1)
        few = (every < VALUES).all(axis=1)
        self.codes, self._numbers = every[few].astype(np.uint8), numbers[few]
        self.length = self._space.length[self._numbers]

    def plan(self, k: int) -> HybridPlan:
        """Return one of the plans."""
        return self._space.plan(int(self._numbers[k]))


class Start:
    """A problem, its best uniform plan, and what is known of its costs.

    Attributes:
        choices: (11,) the plan, see below.
        best: seconds of the best plan known, NaN without one.
        optimum: the same if it is proven.

    Args:
        choices: the plan, a whole number for each of ``AXES``; recomputation by its place among
            ``RECOMPUTE_MODES`` (default: it is searched).
        known: of a problem of a set, what is known of costs.

    Raises:
        InfeasibleError: no uniform plan fits the memory.
    """

    def __init__(
        self,
        problem: Hybrid,
        choices: np.ndarray | None = None,
        known: BestValue | None = None,
    ) -> None:
        self.problem = problem
        self._fastest: np.ndarray | None = None
        if choices is None:
            self._fastest = fastest(problem)
            choices = self._fastest[0]
        self.choices = choices
        self.best = np.nan if known is None or known.kind == BOUND else known.value
        self.optimum = self.best if known is not None and known.kind == OPTIMUM else np.nan

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
            if self._fastest is None:
                self._fastest = fastest(self.problem)
            _ = self.prepared  # looked up once for all
            for choices in self._fastest[1:count]:
                other = copy(self)
                other.__dict__.pop("plans", None)
                other.choices = choices
                starts.append(other)
        return starts

    @cached_property
    def uniform(self) -> Uniforms:
        """The uniform plans among which the start plan is the fastest."""
        return Uniforms(self.problem)

    @cached_property
    def plans(self) -> Plans:
        """The plan, as arrays of one."""
        columns: dict[str, Any] = dict(zip(AXES, self.choices.tolist(), strict=True))
        columns["recompute"] = RECOMPUTE_MODES[columns["recompute"]]
        plan = Uniform(
            batch=self.problem.batch,
            **software_of(self.problem).of_arrays,
            **columns,
        )
        plans = plans_of(self.problem, [self.problem.uniform_plan(plan, 0)])
        assert plans is not None
        return plans


def space_of(problem: Hybrid) -> tuple[UniformSpace, np.ndarray]:
    """Return the uniform plans of a problem, and which of them fit and go into arrays."""
    space = UniformSpace.build(problem, Constraints(uneven=True))
    good = np.asarray(space.fits & (space.plans.schedule == "") & (space.plans.pp <= MAX_STAGES))
    if not space.fits.any():
        raise infeasible(space)
    if not good.any():
        raise InfeasibleError(
            f"{problem.instance}: no uniform plan within memory has at most {MAX_STAGES} stages of "
            f"schedule {ORDERS[0]} or {ORDERS[1]}, whose neighbours are known"
        )
    return space, good


def fastest(problem: Hybrid) -> np.ndarray:
    """Return the fastest uniform plans that are not much alike, (k, 11) by ``AXES``."""
    space, good = space_of(problem)
    chosen = distinct(space.plans, np.where(good, space.length, np.inf), STARTS)
    return choices_of(space.plans, chosen)


def distinct(plans: Uniform, values: np.ndarray, count: int) -> np.ndarray:
    """Return the plans of least finite values, no two alike in tp, stages and micro-batch."""
    order = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
    axes = plans.tp[order], plans.pp[order], plans.micro_batch[order]
    alike = np.ravel_multi_index(axes, [1 + int(x.max(initial=0)) for x in axes])
    _, first = np.unique(alike, return_index=True)
    return np.asarray(order[np.sort(first)[:count]])


def choices_of(plans: Uniform, which: Any = slice(None)) -> np.ndarray:
    """Return uniform plans as whole numbers, (..., 11) by ``AXES``."""
    columns = [
        sum(k * (plans.recompute == mode) for k, mode in enumerate(RECOMPUTE_MODES))
        if name == "recompute"
        else np.asarray(getattr(plans, name), dtype=np.int64)
        for name in AXES
    ]
    return np.stack([column[which] for column in columns], axis=-1)
