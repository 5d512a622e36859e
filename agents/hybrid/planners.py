"""Planners of hybrid plans by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from parenvs.agents.hybrid import baseline
from parenvs.agents.hybrid.exact import exact, exact_uniform, robust
from parenvs.agents.hybrid.orders import one_server, swap_search
from parenvs.agents.hybrid.search import local_search
from parenvs.agents.hybrid.subset_dp import subset_dp
from parenvs.agents.learning.network import SAMPLES, learned
from parenvs.agents.names import LEARNED
from parenvs.core.plan import Answer
from parenvs.core.request import SECONDS, Request
from parenvs.errors import ParenvsError, refuse_unknown
from parenvs.tasks.hybrid.plan_arrays import Start
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, Objective, UniformSpace
from parenvs.tasks.hybrid.task import HybridSearch


@dataclass(frozen=True)
class HybridRequest(HybridSearch, Request):
    """A model to be planned along all axes.

    Attributes:
        problem: the model on its cluster.
        constraints: that plans must keep to; an object of them is taken, too.
    """

    problem: Hybrid
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        """Raise errors for unknown constraints and objectives."""
        if isinstance(self.constraints, Mapping):
            known = [item.name for item in fields(Constraints)]
            for name in self.constraints:
                refuse_unknown("unknown constraint", name, known)
            object.__setattr__(self, "constraints", Constraints(**self.constraints))
        self.goal  # noqa: B018  # raises errors for its name and price

    @property
    def goal(self) -> Objective:
        """What is minimized."""
        return Objective(self.objective, self.price)

    @property
    def env_id(self) -> str:
        """There is no environment in which agents train for the task."""
        raise ParenvsError(
            f"task {self.problem.task} trains on drawn problems: parenvs train --task hybrid"
        )

    @cached_property
    def space(self) -> UniformSpace:
        """All uniform plans that keep to the constraints."""
        return UniformSpace.build(self.problem, self.constraints)

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return ("random", "rule-of-thumb", "uniform", "exact")

    @property
    def label(self) -> str:
        """The cluster and the batch."""
        cluster = self.problem.cluster
        return f"{cluster.name or f'{cluster.devices}-devices'}-batch-{self.problem.batch}"


def _learned(request: HybridRequest) -> Answer:
    """Return the best plan of the network that ships, which knows step time alone."""
    if request.constraints != Constraints() or request.goal != Objective():
        raise ParenvsError(
            f"{LEARNED}: it was trained for the shortest step of any plan; take the planner "
            "search for constraints and other objectives"
        )
    answer = learned("HybridPlan-v1", Start(request.problem), seed=request.seed)
    return Answer(
        problem=request.problem, plan=answer.plan, cost=answer.cost, evaluations=SAMPLES + 1
    )


def _checked(
    name: str, planner: Callable[[HybridRequest], Answer]
) -> Callable[[HybridRequest], Answer]:
    """Refuse ``--for`` and ``--robust`` where a planner ignores them."""

    def run(request: HybridRequest) -> Answer:
        if request.constraints.framework is not None and name not in ROBUST:
            raise ParenvsError(
                f"--for {request.constraints.framework}: {name} does not ask what a framework "
                f"runs; take the planner {' or '.join(ROBUST)}"
            )
        if not request.robust:
            return planner(request)
        if name in ROBUST:
            return robust(request.space)
        raise ParenvsError(
            f"robust: {name} does not weigh regrets; take the planner {' or '.join(ROBUST)}, or "
            "leave --robust out"
        )

    return run


ROBUST = ("exact", "uniform")
"""Planners that take the plan of least worst regret where they are asked to."""
_PLANNERS: dict[str, Callable[[HybridRequest], Answer]] = {
    "exact": lambda r: exact(
        r.problem, r.constraints, r.goal, SECONDS if r.time_limit is None else r.time_limit
    ),
    "search": lambda r: local_search(
        r.problem, r.constraints, r.goal, r.seed, time_limit=r.time_limit
    ),
    "uniform": lambda r: exact_uniform(r.problem, r.constraints, r.goal, r.space),
    "rule-of-thumb": lambda r: baseline.rule_of_thumb(r.problem, r.constraints),
    LEARNED: _learned,
    "random": lambda r: baseline.random_plan(
        r.problem, np.random.default_rng(r.seed), r.constraints
    ),
    "subset-dp": lambda r: subset_dp(r.problem, one_server(r.constraints), r.time_limit),
    "swap-search": lambda r: swap_search(
        r.problem, np.random.default_rng(r.seed), r.constraints, time_limit=r.time_limit
    ),
}
HYBRID_PLANNERS = {name: _checked(name, planner) for name, planner in _PLANNERS.items()}
"""Planners of hybrid plans by name; docs/hybrid.md describes them."""
HybridRequest.planners = HYBRID_PLANNERS
