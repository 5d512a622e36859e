"""What two pipeline plans decide differently, and what every difference costs.

The length is attributed in ways that add up: to the parts of its formula, and to the cuts that
stand elsewhere. Cuts act together, so what one of them costs depends on which others have been
moved before. Every order in which the cuts can be moved one at a time, from ``a`` to ``b`` with
every stage in between non-empty, is taken; a cut is charged with the mean over all orders of what
its move adds (its Shapley value, of the orders that are possible). No order is preferred, and
exchanging the plans changes nothing but the signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.core.plan import ROUNDING
from parenvs.diff import Part, require_equal
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report

MAX_MOVES = 14
"""Cuts that stand elsewhere, at most, for their seconds to be attributed (2**14 mixed plans)."""


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
            more than ``MAX_MOVES`` cuts differ, or a plan is malformed: then they are None.
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


def difference(a: Report, b: Report) -> PipelineDiff:
    """Compare what the judge says of two plans; see ``parenvs.diff.difference``."""
    require_equal(PipelinePlan.settings, _settings(a.pipeline), _settings(b.pipeline))
    parts: tuple[Part, ...] = ()
    if a.stages and b.stages:
        both = zip(_addends(a).items(), _addends(b).values(), strict=True)
        parts = tuple(Part(name, first, second) for (name, first), second in both)
    return PipelineDiff(a, b, parts, tuple(_moves(a, b)))


def pivot_stage(report: Report) -> str | None:
    """The pivot stage, which decides the core of L: ``"stage 2"``, or ``"link 1-2"``.

    The first micro-batch's way to its end and the other micro-batches through it take longest. A
    link is the transfer between two stages. None if the plan is malformed.
    """
    if not report.stages:
        return None
    stage, link = divmod(_pivot(report), 2)
    return f"link {stage}-{stage + 1}" if link else f"stage {stage}"


def _settings(pipeline: Pipeline) -> dict[str, Any]:
    """What a plan has to be for, by the names of plan fields."""
    profile = pipeline.profile
    own = {field: getattr(pipeline, field, None) for field in PipelinePlan.settings}
    return {**own, "fingerprint": profile.fingerprint, "micro_batch": profile.micro_batch}


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
    if a.stages and len(a.stages) == len(b.stages) and len(pairs) <= MAX_MOVES:
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
