"""Where improving a plan starts: a hybrid problem with its best uniform plan, and what is known."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from parenvs.core.sets import BOUND, OPTIMUM, Reference
from parenvs.tasks.hybrid.moves.judged import Prepared, prepared
from parenvs.tasks.hybrid.moves.plans import Plans, plans_of
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible, software_of
from parenvs.tasks.hybrid.uniform import Uniform

AXES = (
    "tp", "pp", "dp", "micro_batch", "chunks", "context", "expert", "sequence_parallel", "zero",
    "recompute", "shard",
)  # fmt: skip
"""What decides a uniform plan of 1F1B or interleaved schedule; fields of ``Uniform``."""


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

    Raises:
        InfeasibleError: no uniform plan fits the memory.
    """

    def __init__(
        self,
        problem: Hybrid,
        choices: np.ndarray | None = None,
        known: Reference | None = None,
    ) -> None:
        self.problem = problem
        self.choices = best_choices(problem) if choices is None else choices
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
    good = np.asarray(space.fits & (space.plans.schedule == ""))
    if not good.any():
        raise infeasible(space)
    return space, good


def best_choices(problem: Hybrid) -> np.ndarray:
    """Return the fastest uniform plan that fits, a whole number for each of ``AXES``.

    Raises:
        InfeasibleError: there is none.
    """
    space, good = space_of(problem)
    return choices_of(space.plans, int(np.where(good, space.length, np.inf).argmin()))


def choices_of(plans: Uniform, which: Any = slice(None)) -> np.ndarray:
    """Return uniform plans as whole numbers, (..., 11) by ``AXES``."""
    columns = [
        np.array([RECOMPUTE_MODES.index(x) for x in plans.recompute])
        if name == "recompute"
        else np.asarray(getattr(plans, name), dtype=np.int64)
        for name in AXES
    ]
    return np.stack([column[which] for column in columns], axis=-1)
