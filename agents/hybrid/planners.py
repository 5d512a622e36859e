"""Planners of hybrid plans by name, and the request that they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np

from parenvs.agents.hybrid import exact_hybrid, exact_uniform, heuristics, ranked, robust
from parenvs.agents.hybrid.local_search import local_search
from parenvs.agents.hybrid.servers.planners import SERVER_PLANNERS
from parenvs.agents.learning.learned import SAMPLES, learned
from parenvs.agents.names import LEARNED, LEARNED_SEARCH
from parenvs.core.plan import Answer
from parenvs.core.request import SECONDS, Request
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace
from parenvs.tasks.hybrid.space.objectives import Objective
from parenvs.tasks.hybrid.starts import Start, space_of
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
                if name not in known:
                    raise ParenvsError(
                        f"unknown constraint {shown(name)}{did_you_mean(str(name), known)}; "
                        f"known: {', '.join(known)}"
                    )
            object.__setattr__(self, "constraints", Constraints(**self.constraints))
        self.goal  # noqa: B018  # raises errors for its name and price

    @property
    def goal(self) -> Objective:
        """What is minimised."""
        return Objective(self.objective, self.price)

    @property
    def env_id(self) -> str:
        """There is no environment in which agents train for the task."""
        raise ParenvsError(
            f"task {self.problem.task} trains on drawn problems: parenvs train --task hybrid"
        )

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """See ``env_id``."""
        return {"instance": self.problem.instance, "cluster": self.problem.cluster.to_json()}

    @cached_property
    def space(self) -> UniformSpace:
        """All uniform plans that keep to the constraints."""
        return UniformSpace.build(self.problem, self.constraints)

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return (*heuristics.PURE, "random", "megatron", "uniform", "exact")

    @property
    def label(self) -> str:
        """The cluster and the batch."""
        cluster = self.problem.cluster
        return f"{cluster.name or f'{cluster.devices}-devices'}-batch-{self.problem.batch}"


def _learned(
    request: HybridRequest,
    judged: tuple[UniformSpace, np.ndarray] | None = None,
    deadline: float = np.inf,
) -> Answer:
    """Return the best plan of the network that ships.

    Args:
        request: the request.
        judged: what ``space_of`` returns, if it was asked before.
        deadline: ``time.perf_counter()`` at which episodes end.

    Raises:
        ParenvsError: something else than the seconds of a step is asked for, or constraints are.
    """
    if request.constraints != Constraints() or request.goal != Objective():
        raise ParenvsError(
            f"{LEARNED}: it was trained for the shortest step of any plan; take the planner "
            "local-search for constraints and other objectives"
        )
    problem = request.problem
    start = Start(problem, judged=judged)
    found = learned("HybridPlan-v1", start, seed=request.seed, deadline=deadline)
    return Answer(problem=problem, plan=found.plan, cost=found.cost, evaluations=SAMPLES + 1)


def _searched(request: HybridRequest) -> Answer:
    """Return the best plan of a local search from the network's."""
    limit = np.inf if request.time_limit is None else request.time_limit
    problem, deadline = request.problem, time.perf_counter() + limit
    judged = space_of(problem)
    plan = _learned(request, judged, deadline).plan
    left = deadline - time.perf_counter()
    return local_search(
        problem, seed=request.seed, time_limit=left, space=judged[0], starts=(plan,)
    )


def _servers(name: str, request: HybridRequest) -> Answer:
    return SERVER_PLANNERS[name](
        request.problem, request.constraints, request.seed, request.time_limit
    )


def _checked(
    name: str, planner: Callable[[HybridRequest], Answer]
) -> Callable[[HybridRequest], Answer]:
    """A planner that answers requests for the plan of least worst regret itself, or refuses."""

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
    "exact": lambda r: ranked(
        r.problem, r.constraints, r.goal, SECONDS if r.time_limit is None else r.time_limit
    ),
    "exact-hybrid": lambda r: exact_hybrid(
        r.problem, r.constraints, r.goal, time_limit=r.time_limit
    ),
    "uniform": lambda r: exact_uniform(r.problem, r.constraints, r.goal, r.space),
    "local-search": lambda r: local_search(
        r.problem, r.constraints, r.goal, r.seed, time_limit=r.time_limit
    ),
    LEARNED: _learned,
    LEARNED_SEARCH: _searched,
    "megatron": lambda r: heuristics.megatron(r.problem, r.constraints),
    **{
        kind: partial(lambda kind, r: heuristics.pure(r.problem, kind, r.constraints), kind)
        for kind in heuristics.PURE
    },
    "random": lambda r: heuristics.random_plan(
        r.problem, np.random.default_rng(r.seed), r.constraints
    ),
    **{name: partial(_servers, name) for name in SERVER_PLANNERS},
}
HYBRID_PLANNERS = {name: _checked(name, planner) for name, planner in _PLANNERS.items()}
"""Planners of hybrid plans by name.

``local-search`` goes from the best uniform plans to neighbouring ones, ``learned`` by the network
of ``HybridPlan-v1``, and ``learned+search`` is the search from its plan.
``uniform`` judges all uniform plans, ``exact-hybrid`` searches plans of one chunk whose stages
differ, ``exact`` both, and takes of them the plan whose simulated step is best. Where a request is
``robust``, the first and the last give the uniform plan that loses least if constants are not what
they seem, and others refuse. ``megatron`` is a rule of thumb; four have one kind of parallelism
only.
Those of ``SERVER_PLANNERS`` choose the order of the servers, too, one for each stage.
"""
HybridRequest.planners = HYBRID_PLANNERS
