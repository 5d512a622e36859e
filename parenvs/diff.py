"""What two plans of one problem decide differently, and what every difference costs.

Plan ``a`` is the old one and plan ``b`` the new one: a difference is always ``b - a``, so that what
is negative makes ``b`` faster or smaller. Seconds are attributed in ways that add up:

* The length of a pipeline by the parts of its formula, and by the cuts that stand elsewhere. Cuts
  act together, so what one of them costs depends on which others have been moved before. Every
  order in which the cuts can be moved one at a time, from ``a`` to ``b`` with every stage in
  between non-empty, is taken; a cut is charged with the mean over all orders of what its move adds
  (its Shapley value, of the orders that are possible). No order is preferred, and exchanging the
  plans changes nothing but the signs.
* The step time of a partition by dimension classes: it is linear in them.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

from parenvs.core.judge import ROUNDING
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.step import SETTINGS
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.sharding.plan import ShardingPlan

MOST_MOVES = 14
"""Cuts that stand elsewhere, at most, for their seconds to be attributed (2**14 mixed plans)."""
_PIPELINE_FIELDS = (
    "fingerprint", "cluster", "micro_batch", "micro_batches", "recompute", "sync", "tied", "copies",
)  # fmt: skip
_PARTITION_FIELDS = ("fingerprint", "cluster", "rules", "uneven", *SETTINGS)


@dataclass(frozen=True)
class Part:
    """One addend of a cost in both plans.

    Attributes:
        name: what it is.
        a: in the old plan, seconds or bytes.
        b: in the new plan.
    """

    name: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        """``b - a``."""
        return self.b - self.a

    def to_json(self) -> dict[str, Any]:
        """The part as an object of JSON types."""
        return {"name": self.name, "a": self.a, "b": self.b, "difference": self.difference}


@dataclass(frozen=True)
class Move:
    """A cut that stands elsewhere in the other plan, or that only one plan has.

    Attributes:
        kind: ``"cut"`` of the chain or ``"device_cut"``.
        stage: the stage that ends at the cut, in ``b`` if ``a`` has no such cut.
        a: first pivot or device after the cut in ``a``; None if ``a`` has no such cut.
        b: the same in ``b``.
        after_a: name of the last pivot before the cut in ``a``; empty for devices.
        after_b: the same in ``b``.
        seconds: its share of ``L_b - L_a``; None where shares cannot be told.
    """

    kind: str
    stage: int
    a: int | None
    b: int | None
    after_a: str
    after_b: str
    seconds: float | None

    def to_json(self) -> dict[str, Any]:
        """The move as an object of JSON types."""
        return dict(vars(self))


@dataclass(frozen=True)
class PipelineDiff:
    """The difference of two pipeline plans.

    Attributes:
        a: what the judge says of the old plan.
        b: what the judge says of the new plan.
        parts: addends of L by its formula; empty if a plan is malformed and has no length.
        moves: the cuts that differ, in the order of the chain, cuts of the chain first. Their
            seconds add up to ``L_b - L_a``, unless the plans have different numbers of stages,
            more than ``MOST_MOVES`` cuts differ, or a plan is malformed: then they are None.
    """

    a: Report
    b: Report
    parts: tuple[Part, ...]
    moves: tuple[Move, ...]

    @property
    def seconds(self) -> float | None:
        """``L_b - L_a``; None if a plan is malformed."""
        return self.b.length_seconds - self.a.length_seconds if self.parts else None

    @property
    def attributed(self) -> bool:
        """Whether every move has its share of the seconds."""
        return bool(self.parts) and all(move.seconds is not None for move in self.moves)

    def to_json(self) -> dict[str, Any]:
        """The difference as an object of JSON types, with both reports (seconds and bytes)."""
        return {
            "task": self.a.plan.task,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "seconds": self.seconds,
            "pivot_stage": {"a": pivot_stage(self.a), "b": pivot_stage(self.b)},
            "parts": [part.to_json() for part in self.parts],
            "moves": [move.to_json() for move in self.moves],
        }


@dataclass(frozen=True)
class ClassChange:
    """A dimension class that one plan partitions and the other does not.

    Attributes:
        label: the class.
        only: ``"a"`` or ``"b"``, the plan that partitions it.
        partition: partitioned dimension of each variable and batch input of the class, by path.
        compute_seconds: of a step, ``b - a``.
        communication_seconds: of a step, ``b - a``.
    """

    label: int
    only: str
    partition: dict[str, int]
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        """Of a step, ``b - a``."""
        return self.compute_seconds + self.communication_seconds

    def to_json(self) -> dict[str, Any]:
        """The class as an object of JSON types."""
        return {**vars(self), "seconds": self.seconds}


@dataclass(frozen=True)
class PartitionDiff:
    """The difference of two partition plans.

    Attributes:
        a: what the judge says of the old plan.
        b: what the judge says of the new plan.
        parts: compute and communication, seconds of a step.
        memory: bytes on each device when most is in use, part by part; the moments may differ.
        classes: the classes that only one plan partitions, in ascending order; their seconds add
            up to the difference of the step times.
    """

    a: PartitionReport
    b: PartitionReport
    parts: tuple[Part, ...]
    memory: tuple[Part, ...]
    classes: tuple[ClassChange, ...]

    @property
    def seconds(self) -> float:
        """Step time of ``b`` less that of ``a``."""
        return self.b.step_seconds - self.a.step_seconds

    def to_json(self) -> dict[str, Any]:
        """The difference as an object of JSON types, with both reports (seconds and bytes)."""
        return {
            "task": self.a.plan.task,
            "scope": {"a": self.a.plan.scope, "b": self.b.plan.scope},
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "seconds": self.seconds,
            "parts": [part.to_json() for part in self.parts],
            "memory_bytes": [part.to_json() for part in self.memory],
            "classes": [change.to_json() for change in self.classes],
        }


def difference(a: Any, b: Any) -> Any:
    """Compare what the judge says of two plans of one problem.

    Plans that break rules are compared, too.

    Args:
        a: ``Report`` or ``PartitionReport`` of the old plan.
        b: the report of the new plan, of the same kind.

    Returns:
        ``PipelineDiff`` or ``PartitionDiff``.

    Raises:
        ParenvsError: the plans are of different problems; the message names the field.
    """
    require_same_problem(a.plan, b.plan)
    if isinstance(a, Report):
        settings = _pipeline_settings(a.pipeline), _pipeline_settings(b.pipeline)
        _require_equal(_PIPELINE_FIELDS, *settings)
        return _pipeline_difference(a, b)
    settings = _partition_settings(a.problem), _partition_settings(b.problem)
    _require_equal(_PARTITION_FIELDS, *settings)
    return _partition_difference(a, b)


def require_same_problem(a: Plan, b: Plan, names: tuple[str, str] = ("a", "b")) -> None:
    """Check that two plans are for one problem: instance, cluster, and what else changes costs.

    Args:
        a: the old plan.
        b: the new plan.
        names: what the message calls them.

    Raises:
        ParenvsError: they are not; the message names the field.
    """
    for plan, name in zip((a, b), names, strict=True):
        if isinstance(plan, (HybridPlan, ShardingPlan, OrderPlan)):
            raise ParenvsError(f"{name}: plans of task {plan.task} are not compared yet")
    of_pipelines = isinstance(a, PipelinePlan)
    if of_pipelines != isinstance(b, PipelinePlan):
        _require_equal(("task",), {"task": a.task}, {"task": b.task}, names)
    fields = _PIPELINE_FIELDS if of_pipelines else _PARTITION_FIELDS
    settings = [{field: getattr(plan, field, None) for field in fields} for plan in (a, b)]
    _require_equal(fields, settings[0], settings[1], names)


def pivot_stage(report: Report) -> str | None:
    """The pivot stage, which decides the core of L: ``"stage 2"``, or ``"link 1-2"``.

    The first micro-batch's way to its end and the other micro-batches through it take longest. A
    link is the transfer between two stages. None if the plan is malformed.
    """
    if not report.stages:
        return None
    stage, link = divmod(_pivot(report), 2)
    return f"link {stage}-{stage + 1}" if link else f"stage {stage}"


def _pipeline_settings(pipeline: Pipeline) -> dict[str, Any]:
    """What a plan has to be for, by the names of plan fields."""
    profile = pipeline.profile
    own = {field: getattr(pipeline, field, None) for field in _PIPELINE_FIELDS}
    return {**own, "fingerprint": profile.fingerprint, "micro_batch": profile.micro_batch}


def _partition_settings(problem: Partitioning) -> dict[str, Any]:
    own = {field: getattr(problem, field, None) for field in _PARTITION_FIELDS}
    step = {name: getattr(problem.step, name) for name in SETTINGS}
    return {**own, **step, "fingerprint": problem.graph.fingerprint}


def _require_equal(
    fields: tuple[str, ...],
    a: dict[str, Any],
    b: dict[str, Any],
    names: tuple[str, str] = ("a", "b"),
) -> None:
    for field in fields:
        if a[field] == b[field]:
            continue
        shown = [f"{x[:19]}..." if field == "fingerprint" else str(x) for x in (a[field], b[field])]
        more = ""
        if shown[0] == shown[1] and is_dataclass(a[field]):  # clusters with the same shape
            first, second = vars(a[field]), vars(b[field])
            more = f" with other {', '.join(key for key in first if first[key] != second[key])}"
        raise ParenvsError(
            f"field {field!r}: {names[0]} is for {shown[0]}, {names[1]} for {shown[1]}{more}; only "
            "plans of one problem can be compared"
        )


# Pipelines.


def _pipeline_difference(a: Report, b: Report) -> PipelineDiff:
    parts: tuple[Part, ...] = ()
    if a.stages and b.stages:
        both = zip(_addends(a).items(), _addends(b).values(), strict=True)
        parts = tuple(Part(name, first, second) for (name, first), second in both)
    return PipelineDiff(a, b, parts, tuple(_moves(a, b)))


def _resource_seconds(report: Report) -> np.ndarray:
    """(2S-1,) forward plus backward seconds of every stage and transfer for one micro-batch."""
    stages = report.stages
    seconds = np.zeros(2 * len(stages) - 1)
    seconds[::2] = [stage.forward_seconds + stage.backward_seconds for stage in stages]
    seconds[1::2] = [2 * stage.transfer_seconds for stage in stages[:-1]]
    return seconds


def _pivot(report: Report) -> int:
    """Place of the pivot stage among the stages (even) and transfers (odd)."""
    seconds = _resource_seconds(report)
    passed = np.cumsum(seconds)
    return int(formulas.through(passed, seconds, report.pipeline.micro_batches).argmax())


def _addends(report: Report) -> dict[str, float]:
    """The addends of L: it is the core, attained in the pivot stage, plus the tail."""
    pivot, seconds = _pivot(report), _resource_seconds(report)
    compute = float(seconds[: pivot + 1 : 2].sum())
    transfer = float(seconds[1 : pivot + 1 : 2].sum())
    others = float((report.pipeline.micro_batches - 1) * seconds[pivot])
    tail = report.length_seconds - (compute + transfer + others)
    return {
        "first micro-batch, compute": compute,
        "first micro-batch, transfers": transfer,
        "other micro-batches": others,
        "all-reduce not hidden": tail if tail > ROUNDING * report.length_seconds else 0.0,
    }


def _moves(a: Report, b: Report) -> list[Move]:
    """The cuts that differ, with their seconds where these can be told."""
    plans = (a.plan, b.plan)
    names = a.pipeline.profile.names

    def after(cut: int | None, kind: str) -> str:
        known = kind == "cut" and cut is not None and 1 <= cut <= len(names)
        return str(names[cut - 1]) if known and cut is not None else ""

    pairs: list[tuple[str, int, int | None, int | None]] = []
    for kind, (first, second) in (
        ("cut", [plan.cuts for plan in plans]),
        ("device_cut", [plan.device_cuts for plan in plans]),
    ):
        if len(first) == len(second):
            both = enumerate(zip(first, second, strict=True))
            pairs += [(kind, stage, x, y) for stage, (x, y) in both if x != y]
        else:  # which cut of one plan became which of the other cannot be told
            pairs += [(kind, k, x, None) for k, x in enumerate(first) if x not in second]
            pairs += [(kind, k, None, y) for k, y in enumerate(second) if y not in first]
    shares: list[float] | list[None] = [None] * len(pairs)
    if a.stages and len(a.stages) == len(b.stages) and len(pairs) <= MOST_MOVES:
        shares = _shares(a.pipeline, plans, [(kind, stage) for kind, stage, _, _ in pairs])
    return [
        Move(kind, stage, x, y, after(x, kind), after(y, kind), share)
        for (kind, stage, x, y), share in zip(pairs, shares, strict=True)
    ]


def _shares(
    pipeline: Pipeline, plans: tuple[PipelinePlan, PipelinePlan], moved: list[tuple[str, int]]
) -> list[float]:
    """Seconds of each moved cut: the mean of what its move adds, over all possible orders.

    A set of moves that are done is a number whose bits are the moves. Orders are paths from the
    empty set to the full one through sets whose plans increase; there is one, as cuts that go right
    can be moved from the right to the left, and then those that go left from the left to the right.
    """
    count = len(moved)
    sets = np.arange(2**count)
    done = (sets[:, None] >> np.arange(count)) & 1 == 1
    cuts, device_cuts = (
        np.repeat([getattr(plans[0], key)], len(sets), axis=0) for key in ("cuts", "device_cuts")
    )
    for move, (kind, stage) in enumerate(moved):
        mixed, key = (cuts, "cuts") if kind == "cut" else (device_cuts, "device_cuts")
        mixed[done[:, move], stage] = getattr(plans[1], key)[stage]
    possible = (np.diff(cuts) > 0).all(axis=1) & (np.diff(device_cuts) > 0).all(axis=1)
    length = np.zeros(len(sets))
    length[possible] = pipeline.length(cuts[possible], device_cuts[possible])
    before, behind = np.zeros(len(sets)), np.zeros(len(sets))  # orders up to a set, from a set on
    before[0] = behind[-1] = 1.0
    size = done.sum(axis=1)
    for step in range(count):
        for move in range(count):
            smaller = sets[(size == step) & ~done[:, move] & possible]
            np.add.at(before, smaller | 1 << move, before[smaller])
            larger = sets[(size == count - step) & done[:, move] & possible]
            np.add.at(behind, larger & ~(1 << move), behind[larger])
    before[~possible] = behind[~possible] = 0.0
    shares = []
    for move in range(count):
        without = sets[~done[:, move]]
        with_it = without | 1 << move
        orders = before[without] * behind[with_it]
        shares.append(float(orders @ (length[with_it] - length[without]) / before[-1]))
    return shares


# Partitions.


def _partition_difference(a: PartitionReport, b: PartitionReport) -> PartitionDiff:
    problem = a.problem
    changes = []
    for label in np.flatnonzero(a.chosen != b.chosen).tolist():
        alone = np.zeros(len(problem.classes), dtype=bool)
        alone[label] = True
        sign = 1 if b.chosen[label] else -1
        changes.append(
            ClassChange(
                label=label,
                only="b" if b.chosen[label] else "a",
                partition=problem.partition(alone, "all"),
                compute_seconds=-sign * float(problem.saved_seconds[label]),
                communication_seconds=sign * float(problem.all_reduce_seconds[label]),
            )
        )
    return PartitionDiff(
        a=a,
        b=b,
        parts=(
            Part("compute", a.compute_seconds, b.compute_seconds),
            Part("communication", a.communication_seconds, b.communication_seconds),
        ),
        memory=tuple(
            Part(name, size, getattr(b.memory, name))
            for name, size in vars(a.memory).items()
            if name != "at"
        ),
        classes=tuple(changes),
    )
