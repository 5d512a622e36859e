"""``Table``: hybrid problems as arrays, for judging plans of all of them in one call.

Layers are asked once for every split that a plan can have; afterwards their figures are looked up.
Everything else is what ``parenvs.tasks.hybrid.formulas`` makes of arrays whose last axis is plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Chain, Figure, Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.moves.plans import ORDERS, Plans
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space.constraints import Constraints, software_of
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.stages import Memory, Stages, Step

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
        problem: the problem.
        values: for each of samples, tp, context and expert those that plans can have, rising.
        figures: (K + 2, 12, n) of K kinds of layers, embedding and head by split: the fields of
            ``LayerSeconds``, bytes kept by ``RECOMPUTE_MODES``, working bytes, parameters of all
            replicas and of experts. Splits are numbered samples first, sequence parallelism last.
        limits: what plans must keep to.
    """

    problem: Hybrid
    values: tuple[tuple[int, ...], ...]
    figures: np.ndarray
    limits: Constraints = _OPEN

    @property
    def kind(self) -> tuple[Any, ...]:
        """What problems that are judged in one call have in common."""
        problem = self.problem
        own = software_of(problem)
        return (
            problem.stack, problem.precision, problem.cluster.devices_per_server, own.blocking,
            own.gradient_bytes, own.gradient_overlap,
        )  # fmt: skip


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
    """What N plans take and hold.

    Attributes:
        length: (N,) seconds of a step; NaN where only memory was asked for.
        fullness: (N,) bytes on the fullest device over the limit; at most 1 fits.
        busy: (S, N) seconds of a micro-batch on each stage; NaN as above.
        held: (S, N) bytes on a device of each stage over the limit.
    """

    length: np.ndarray
    fullness: np.ndarray
    busy: np.ndarray
    held: np.ndarray


class Table:
    """Some problems of one kind in numbered rows, each of which can be replaced.

    Args:
        first: a problem of the kind.
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
        """Make room for a problem that is larger than those before."""
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
                grown = self._figures.reshape(*self._figures.shape[:2], count, wider)
                kept = old.reshape(*old.shape[:2], count, self._room)
                grown[:have, :, :, : self._room] = kept[:-2]
                grown[-2:, :, :, : self._room] = kept[-2:]
            self._room = wider

    def place(self, name: str, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the place of values on an axis of the splits, -1 where a plan cannot have them.

        Args:
            name: one of the axes, ``"samples"``, ``"tp"``, ``"context"``, ``"expert"``.
            rows: (N,) problems.
            values: (..., N) whole numbers.
        """
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
        """Return what plans take and hold, as ``Hybrid.report`` judges each.

        Args:
            plans: legal ones (``rules.legal``).
            seconds: whether seconds are asked for; memory alone is quicker.
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
        """Judge plans a cache at a time."""
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
            own = self.place(name, rows, values)
            at = at * self.sizes[axis, rows] + np.maximum(own, 0)
        at = (np.maximum(at, 0) * 2 + plans.shared) + rows * self._room
        return self._figures.take(at, axis=2)

    def stages(self, plans: Plans) -> Stages:
        """Return plans as the arrays of ``formulas``, (S, N) or (K, S, N) each."""
        fields = self._layout(plans)
        rows, used, software = plans.rows, plans.used, self.software
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
            blocking=software.blocking,
            gradient_bytes=float(software.gradient_bytes),
            gradient_overlap=software.gradient_overlap,
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
        end = -(-(plans.first + plans.devices) // self.inside)
        result = np.ones(plans.devices.shape)
        for server in range(len(speeds)):
            mine = (begin <= server) & (server < end) & plans.used
            result = np.where(mine, np.minimum(result, speeds[server]), result)
        return result

    def _layout(self, plans: Plans) -> dict[str, Any]:
        """What depends on the layers: figures of ``Stages`` by name.

        Plans have different numbers of pieces, so all pieces stand one after the other, by plan,
        stage and chunk, and are added up by stage.
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
            found = self.kinds_before[row[which], until]
            found -= self.kinds_before[row[which], begin[which]]
            return np.array([by_stage(values, which) for values in found.T])

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
