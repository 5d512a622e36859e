"""Where improving a plan starts: a hybrid problem with its best uniform plan, and what is known."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.core.sets import BOUND, OPTIMUM, Reference
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.moves.judged import MAX_STAGES, Prepared, prepared
from parenvs.tasks.hybrid.moves.plans import ORDERS, Plans, plans_of
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible, software_of
from parenvs.tasks.hybrid.uniform import Uniform

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

    Args:
        problem: the problem.

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
        problem: the problem.
        choices: (11,) the plan, see below.
        best: seconds of the best plan known, NaN without one.
        optimum: the same if it is proven.

    Args:
        problem: the problem.
        choices: the plan, a whole number for each of ``AXES``; recomputation by its place among
            ``RECOMPUTE_MODES`` (default: it is searched).
        known: of a problem of a set, what is known of costs.
        judged: what ``space_of`` returns, if it was asked before.

    Raises:
        InfeasibleError: no uniform plan fits the memory.
    """

    def __init__(
        self,
        problem: Hybrid,
        choices: np.ndarray | None = None,
        known: Reference | None = None,
        judged: tuple[UniformSpace, np.ndarray] | None = None,
    ) -> None:
        self.problem = problem
        self._fastest: np.ndarray | None = None
        if choices is None:
            self._fastest = fastest(problem, judged)
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
        """Return this start, then the next fastest uniform plans that are not much alike.

        Args:
            count: most starts in all; there are at most ``STARTS``.
        """
        found = [self]
        if count > 1:
            if self._fastest is None:
                self._fastest = fastest(self.problem)
            _ = self.prepared  # looked up once for all
            for choices in self._fastest[1:count]:
                other = copy(self)
                other.__dict__.pop("plans", None)
                other.choices = choices
                found.append(other)
        return found

    @cached_property
    def uniform(self) -> Uniforms:
        """The uniform plans among which the start plan is the fastest."""
        return Uniforms(self.problem)

    @cached_property
    def plans(self) -> Plans:
        """The plan, as arrays of one."""
        software = software_of(self.problem)
        columns: dict[str, Any] = dict(zip(AXES, self.choices.tolist(), strict=True))
        columns["recompute"] = RECOMPUTE_MODES[columns["recompute"]]
        plan = Uniform(
            batch=self.problem.batch,
            blocking=software.blocking,
            gradient_bytes=float(software.gradient_bytes),
            gradient_overlap=software.gradient_overlap,
            **columns,
        )
        plans = plans_of(self.problem, [self.problem.uniform_plan(plan, 0)])
        assert plans is not None
        return plans


def space_of(problem: Hybrid) -> tuple[UniformSpace, np.ndarray]:
    """Return the uniform plans of a problem, and which of them fit and go into arrays.

    Raises:
        InfeasibleError: there is none of them.
    """
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


def fastest(problem: Hybrid, judged: tuple[UniformSpace, np.ndarray] | None = None) -> np.ndarray:
    """Return the fastest uniform plans that are not much alike, (k, 11) by ``AXES``.

    Args:
        problem: the problem.
        judged: what ``space_of`` returns, if it was asked before.

    Raises:
        InfeasibleError: there is none.
    """
    space, good = judged or space_of(problem)
    chosen = distinct(space.plans, np.where(good, space.length, np.inf), STARTS)
    return choices_of(space.plans, chosen)


def distinct(plans: Uniform, values: np.ndarray, count: int) -> np.ndarray:
    """Return the plans of the least values, no two alike in tp, stages and micro-batch.

    Args:
        plans: the plans.
        values: (N,); those of infinite ones are left out.
        count: most plans.
    """
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
