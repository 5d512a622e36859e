"""``Plans``: hybrid plans of 1F1B and interleaved schedules as arrays of whole numbers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.core.sets import BOUND, BestValue
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.layers import FIGURES, Split, figures_of
from parenvs.tasks.hybrid.moves import columns as col
from parenvs.tasks.hybrid.moves import costs
from parenvs.tasks.hybrid.moves.catalog import CATALOG, MOVES, SLOTS
from parenvs.tasks.hybrid.moves.changes import Plan, Problems, neighbors_all
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible, software_of
from parenvs.tasks.hybrid.stack import Rates
from parenvs.tasks.hybrid.uniform import Uniform


class Plans(NamedTuple):
    """N plans, each of some problem.

    Pieces of the chain are numbered as data passes: chunk c of stage s is piece c S + s.

    Attributes:
        rows: (N,) number of the problem.
        numbers: these and the others are those of ``parenvs.tasks.hybrid.moves.changes.Plan``.
    """

    rows: Array
    numbers: Array
    stages: Array
    ends: Array
    servers: Array

    @property
    def arrays(self) -> Plan:
        """The plans as compiled loops take them."""
        return Plan(*self[1:])

    def take(self, which: Array) -> Plans:
        """Return some of the plans, by index or mask."""
        return Plans(*(values[which] for values in self))

    def wide(self, pieces: int, servers: int) -> Plans:
        """Return the same plans with room for more pieces and servers."""
        return self._replace(ends=_wide(self.ends, pieces), servers=_wide(self.servers, servers))

    def of_stages(self, column: int) -> Array:
        """(N, S) a number of each stage, by its column; 0 behind the last one."""
        return np.where(self.used, self.stages[:, :, column], 0)

    @property
    def used(self) -> Array:
        """(N, S) whether a plan has a stage."""
        return np.asarray(np.arange(col.MAX_STAGES) < self.numbers[:, col.COUNT][:, None])


def _wide(values: Array, size: int) -> Array:
    """Return rows with room for ``size`` values, at least."""
    missing = size - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing))) if missing > 0 else values


ORDERS = SCHEDULES[:2]
"""Schedules of plans as arrays: of one chunk a stage, and of several."""


def plans_of(problem: Hybrid, plans: Sequence[HybridPlan]) -> Plans | None:
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
    numbers = np.zeros((count, col.WHOLE), np.int64)
    stages = np.zeros((count, col.MAX_STAGES, col.OF_STAGE), np.int64)
    ends = np.zeros((count, len(problem.model) + 2), np.int64)
    order = np.repeat(np.arange(servers)[None], count, axis=0)
    for k, plan in enumerate(plans):
        size, first = len(plan.stages), plan.stages[0]
        for line, stage in zip(stages[k], plan.stages, strict=False):
            modes: Any = dict(stage.recompute)  # type: ignore[arg-type]
            again = (modes.get(mode, 0) for mode in ("full", "selective"))
            line[:] = (stage.devices, stage.tp, stage.zero, *again)
        samples = plan.micro_batch * (first.devices // (first.tp * plan.context))
        fields = ("chunks", "sequence_parallel", "context", "expert", "shard")
        numbers[k] = (size, samples, *(getattr(plan, name) for name in fields))
        bounds = np.array([stage.layers for stage in plan.stages])  # (S, v, 2)
        ends[k, : size * plan.chunks] = bounds[:, :, 1].T.ravel()
        if plan.servers:
            order[k] = plan.servers
    return Plans(np.zeros(count, np.int64), numbers, stages, ends, order)


def plan_of(problem: Hybrid, plans: Plans, k: int) -> HybridPlan:
    """Return one of several plans as an object."""
    count, samples, chunks, shared, context, expert, shard = plans.numbers[k].tolist()
    bounds = [0, *plans.ends[k, : count * chunks].tolist()]
    stages = []
    for s, line in enumerate(plans.stages[k, :count].tolist()):
        devices, tp, zero, full, selective = line
        pieces = range(s, count * chunks, count)
        layers = tuple((bounds[piece], bounds[piece + 1]) for piece in pieces)
        again = {"full": full, "selective": selective}
        stages.append(HybridStage(layers, devices, tp, zero, again))
    order = plans.servers[k, : problem.cluster.servers].tolist()
    return problem.plan(
        stages,
        samples // (stages[0].devices // (stages[0].tp * context)),
        schedule=ORDERS[chunks > 1],
        sequence_parallel=bool(shared),
        **{"chunks": chunks, "context": context, "expert": expert, "shard": shard},
        **software_of(problem).of_plan,
        servers=() if order == sorted(order) else tuple(order),
    )


def joined(parts: Sequence[Plans]) -> Plans:
    """Return several plans' arrays, of one width, as one."""
    return Plans(*map(np.concatenate, zip(*parts, strict=True)))


MOST_SAMPLES = 256
"""Most samples of a micro-batch in one replica of a stage."""
KNOWN = np.dtype(
    [(x, float) for x in (*Rates._fields[1:], "limit", "tied", "tied_learned", "gradient_bytes")]
    + [
        (name, np.int64)
        for name in (
            "devices_per_server", "layers", "kinds", "batch", "devices", "servers", "sequence",
            "experts", "tp_choices", "context_choices", "expert_choices", "has_front", "has_back",
            "may_share", "differs", "interleaves", "blocking", "gradient_overlap",
        )
    ]
)  # fmt: skip
"""What is known of a problem: its ``Rates``, bytes of a device, tied parameters, and whole numbers.

``tied_learned`` parameters are trained, ``kinds`` are those of layers, ``sequence`` is 0 without a
shape, and ``differs`` says whether servers do; flags are 0 or 1.
"""


_AXES = ("samples", "tp", "context", "expert")


Prepared = namedtuple("Prepared", ("problem", "values", "figures", "known"))
"""What is looked up of one problem.

Attributes:
    values: for each of samples, tp, context and expert those that plans can have, rising.
    figures: (n, 2 + K, 16) of embedding, head and K kinds of layers by split, those of
        ``figures_of``. Splits are numbered samples first, sequence parallelism last.
    known: a record of ``KNOWN``.
"""


def prepared(problem: Hybrid, limits: Constraints | None = None) -> Prepared:
    """Ask the layers of a problem for their figures.

    Raises:
        InfeasibleError: its plans do not go into arrays: the schedules of its stack are others.
    """
    if ORDERS[0] not in problem.stack.schedules:
        raise InfeasibleError(f"stack {problem.stack.name} has no schedule {ORDERS[0]}")
    limits, model, machine = limits or Constraints(), problem.model, problem.machine
    counts = [x for x in range(1, min(problem.batch, MOST_SAMPLES) + 1) if problem.batch % x == 0]
    choices = (limits.tensor_ranks(problem), limits.contexts(problem), limits.experts(problem))
    values = tuple(map(tuple, (counts, *choices)))
    axes = np.meshgrid(*(np.array(x) for x in values), [False, True], indexing="ij")
    samples, tp, context, expert, shared = (axis.ravel() for axis in axes)
    split = Split(tp, samples * 1.0, context, shared, expert)
    layers = (model.embedding, model.head, *model.kinds)
    figures = np.zeros((len(layers), FIGURES, len(samples)))
    for layer, table in zip(layers, figures, strict=True):
        if layer is not None:
            # Such plans split no backward passes.
            table[:] = figures_of(layer, machine, split, samples.shape, False)
    figures = np.ascontiguousarray(figures.transpose(2, 0, 1))
    return Prepared(problem, values, figures, _known(problem, [len(x) for x in values]))


def _known(problem: Hybrid, sizes: Sequence[int]) -> Array:
    """Return a record of ``KNOWN``; ``sizes`` are those of the axes of splits."""
    model, cluster, software = problem.model, problem.cluster, software_of(problem)
    shape, tied = model.shape, model.tied_parameters
    shares = shape is not None and model.reasons_against_sequence_parallel() is None
    known = {
        **problem.machine.rates._asdict(),
        "limit": problem.memory_limit,
        "tied": tied,
        "tied_learned": tied * model.tied_share,
        **software.of_arrays,
        "layers": len(model),
        "kinds": len(model.kinds),
        "batch": problem.batch,
        "devices": cluster.devices,
        "servers": cluster.servers,
        "sequence": 0 if shape is None else shape.sequence,
        "experts": 1 if shape is None else shape.experts,
        "tp_choices": sizes[1],
        "context_choices": sizes[2],
        "expert_choices": sizes[3],
        "has_front": model.embedding is not None,
        "has_back": model.head is not None,
        "may_share": shares,
        "differs": bool(cluster.speeds),
        "interleaves": ORDERS[1] in problem.stack.schedules,
    }
    return np.array(tuple(known[name] for name in KNOWN.names or ()), KNOWN)


Judged = namedtuple("Judged", ("length", "fullness", "busy", "held"))
"""What N plans take and hold.

Attributes:
    length: (N,) seconds of a step.
    fullness: (N,) bytes on the fullest device over the limit; at most 1 fits.
    busy: (N, S) seconds of a micro-batch on each stage, 0 behind the last one.
    held: (N, S) bytes on a device of each stage over the limit.
"""


class Table:
    """Some problems in numbered rows, each of which can be replaced.

    Args:
        count: P, number of rows.

    Attributes:
        arrays: the problems as compiled loops take them.
    """

    def __init__(self, count: int) -> None:
        places = np.full((count, len(_AXES), 1), -1, np.int16)
        self.arrays = Problems(
            np.zeros(count, KNOWN), np.zeros((count, 1, 1)), np.zeros((count, 1)),
            np.ones((count, 1)), places, np.zeros((count, 1, 3, FIGURES)),
        )  # fmt: skip

    def put(self, row: int, prepared: Prepared) -> bool:
        """Write a problem into a row, in place of another one; return whether arrays got wider."""
        problem, model, places = prepared.problem, prepared.problem.model, self.arrays.places
        longest = max(places.shape[2] - 1, *map(max, prepared.values))
        places = np.full((len(_AXES), longest + 1), -1)
        for line, values in zip(places, prepared.values, strict=True):
            line[list(values)] = np.arange(len(values))
        speeds = np.array(problem.cluster.speeds or (1.0,) * problem.cluster.servers)
        new = (model.kinds_before, model.crossing_after, speeds, places, prepared.figures)
        self.arrays.known[row] = prepared.known
        before, rest = self.arrays, zip(self.arrays[1:], new, strict=True)
        self.arrays = Problems(before.known, *(_put(old, row, each) for old, each in rest))
        return any(old is not each for old, each in zip(before, self.arrays, strict=True))

    @property
    def sizes(self) -> tuple[int, int]:
        """Most pieces, and servers, of plans."""
        return self.arrays.crossing.shape[1] + 1, self.arrays.speeds.shape[1]

    def judge(self, plans: Plans) -> Judged:
        """Return what legal plans take and hold, as ``Hybrid.report`` judges each."""
        count = len(plans.rows)
        judged = Judged(*np.zeros((2, count)), *np.zeros((2, count, col.MAX_STAGES)))
        plans = plans.wide(*self.sizes)
        costs.judge_all(
            self.arrays, plans.rows, plans.arrays, np.arange(count), costs.work_for(self.arrays),
            *judged,
        )  # fmt: skip
        return judged


def _put(table: Array, row: int, values: Array) -> Array:
    """Write values into a row of a table, which is made wider where they need it."""
    missing = np.maximum(np.subtract(values.shape, table.shape[1:]), 0)
    if missing.any():
        # -1: no place among the splits; of all else nothing that is not a problem's is read.
        table = np.pad(table, [(0, x) for x in (0, *missing)], constant_values=-1)
    table[row][tuple(slice(size) for size in values.shape)] = values
    return table


def table_of(problems: Sequence[Prepared]) -> Table:
    """Return a table of problems, one in each row."""
    table = Table(len(problems))
    for row, each in enumerate(problems):
        table.put(row, each)
    return table


def neighbors(
    table: Table, plans: Plans, busy: Array, limits: Constraints | None = None
) -> tuple[Plans, Array, Array]:
    """Return the legal neighbors of n plans, at most ``SLOTS`` of each axis.

    ``busy`` is (n, S) seconds of a micro-batch on each of their stages; neighbors of busy stages
    come first.

    Returns:
        M neighbors; of each the number of the plan that it is a neighbor of, and of the move.
    """
    plans, count = plans.wide(*table.sizes), len(plans.rows)
    plan = np.repeat(np.arange(count), len(CATALOG))
    others, move = plans.take(plan), plan.copy()
    order = np.zeros(col.MAX_STAGES, np.int64)
    size = neighbors_all(
        table.arrays, plans.rows, plans.arrays, busy, MOVES, order, others.arrays, plan, move
    )
    good = np.arange(size)
    if limits is not None:
        good = good[_keeps(limits, others.take(good))]
    fits = np.zeros(len(good), bool)
    for axis, room in enumerate(SLOTS.values()):
        mine = np.flatnonzero(MOVES.axis[move[good]] == axis)
        of_plan = plan[good[mine]]
        # The first of each plan.
        fits[mine] = np.arange(len(mine)) - np.searchsorted(of_plan, of_plan) < room
    good = good[fits]
    return others.take(good)._replace(rows=plans.rows[plan[good]]), plan[good], move[good]


def _keeps(limits: Constraints, plans: Plans) -> Array:
    """(N,) whether plans keep to constraints; what stages choose, every stage keeps to."""
    count, samples, chunks, shared, context, expert, shard = plans.numbers.T
    devices, tp, zero, full, selective = map(plans.of_stages, range(col.OF_STAGE))
    dp = devices // np.maximum(tp * context[:, None], 1)
    micro_batch = samples[:, None] // np.maximum(dp, 1)
    # Of the whole plan, and of every stage: a choice that is pinned, and what plans have.
    of_plan = (
        (limits.pp, count), (limits.chunks, chunks), (limits.context, context),
        (limits.expert, expert), (limits.shard, shard), (limits.sequence_parallel, shared),
    )  # fmt: skip
    of_stage = (
        (limits.tp, tp), (limits.dp, dp), (limits.stage_devices, devices),
        (limits.micro_batch, micro_batch),
    )  # fmt: skip
    good = np.ones(len(count), bool)
    for pinned, values in of_plan:
        if pinned is not None:
            good &= values == int(pinned)
    if limits.schedule is not None:
        good &= (chunks > 1) == (limits.schedule == ORDERS[1])
        good &= limits.schedule in ORDERS
    each = np.isin(zero, limits.zero) & (micro_batch <= limits.most_micro_batch)
    each &= (zero > 0) if limits.shard else True
    each &= (tp > 1) if limits.sequence_parallel else True
    for pinned, values in of_stage:
        if pinned is not None:
            each &= values == pinned
    recomputed = selective.sum(axis=1), full.sum(axis=1)
    last = plans.ends[np.arange(len(count)), count * chunks - 1]
    by_mode = (last - sum(recomputed), *recomputed)
    for mode, layers in zip(RECOMPUTE_MODES, by_mode, strict=True):
        if mode not in limits.recompute:
            good &= layers == 0
    return np.asarray(good & (each | ~plans.used).all(axis=1))


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
        self, problem: Hybrid, choices: Array | None = None, known: BestValue | None = None
    ) -> None:
        self.problem = problem
        self.choices = self._fastest[0] if choices is None else choices
        self.best = np.nan if known is None or known.kind == BOUND else known.value

    @cached_property
    def _fastest(self) -> Array:
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


def fastest(problem: Hybrid) -> Array:
    """Return the fastest uniform plans that are not much alike, (k, 11) by ``AXES``."""
    space = UniformSpace.build(problem, Constraints(uneven=True, expert_tp=0))
    good = np.asarray(
        space.fits & (space.plans.schedule == "") & (space.plans.pp <= col.MAX_STAGES)
    )
    if not space.fits.any():
        raise infeasible(space)
    if not good.any():
        raise InfeasibleError(
            f"{problem.instance}: no uniform plan within memory has at most {col.MAX_STAGES} "
            f"stages of schedule {ORDERS[0]} or {ORDERS[1]}, whose neighbors are known"
        )
    chosen = distinct(space.plans, np.where(good, space.length, np.inf), STARTS)
    columns = {name: getattr(space.plans, name)[chosen] for name in AXES}
    modes = columns["recompute"]
    columns["recompute"] = sum(k * (modes == mode) for k, mode in enumerate(RECOMPUTE_MODES))
    return np.stack([column.astype(np.int64) for column in columns.values()], axis=-1)


def distinct(plans: Uniform, values: Array, count: int) -> Array:
    """Return the plans of least finite values, no two alike in tp, stages and micro-batch."""
    # Infinite values, of plans that do not fit, come last.
    order = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
    axes = plans.tp[order], plans.pp[order], plans.micro_batch[order]
    # One whole number for tp, stages and micro-batch together.
    alike = np.ravel_multi_index(axes, [1 + int(x.max(initial=0)) for x in axes])
    _, first = np.unique(alike, return_index=True)
    return np.asarray(order[np.sort(first)[:count]])
