"""Planners of hybrid plans by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.agents.hybrid import baseline
from parenvs.agents.hybrid.exact import exact, exact_uniform, robust
from parenvs.agents.hybrid.orders import swap_search
from parenvs.agents.hybrid.search import local_search
from parenvs.agents.hybrid.subset_dp import subset_dp
from parenvs.agents.learning.network import SAMPLES, learned
from parenvs.agents.learning.options import LEARNED
from parenvs.core.plan import Answer
from parenvs.core.request import EXACT, SECONDS, Request
from parenvs.errors import ParenvsError
from parenvs.fields import read, settle
from parenvs.tasks.hybrid.plan_arrays import Start
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import OBJECTIVES, Constraints, Objective, UniformSpace
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.task import HybridSearch
from parenvs.tasks.hybrid.tune.prior import stacks_on
from parenvs.tasks.hybrid.tune.study import Study


@dataclass(frozen=True)
class HybridRequest(HybridSearch, Request):
    """A model to be planned along all axes.

    Attributes:
        problem: the model on its cluster.
        constraints: that plans must keep to; an object of them is taken, too.
        stacks: over whose mean ``exact`` takes the best plan that a framework runs.
    """

    problem: Hybrid
    constraints: Constraints = field(default_factory=Constraints)
    stacks: tuple[Stack, ...] = ()

    def __post_init__(self) -> None:
        """Raise errors for unknown constraints and objectives."""
        if isinstance(self.constraints, Mapping):
            given = {name: x for name, x in self.constraints.items() if x is not None}
            object.__setattr__(self, "constraints", read(Constraints, given, "constraints"))
        settle(self, "constraints")
        self.goal  # noqa: B018  # raises errors for its name and price
        self.constraints.check_pins(self.problem)
        if self.robust and self.objective != OBJECTIVES[0]:
            raise ParenvsError("--robust is of seconds; leave out --robust, or --objective")

    def run(self, agent: str) -> Answer:
        """See ``Request.run``; the plan is judged, and keeps to the constraints.

        Raises:
            ParenvsError: the planner does not know an option, or its plan breaks a constraint.
        """
        usual, asked = vars(Constraints()), vars(self.constraints)
        flags = [flag for name, flag in _FLAGS.items() if asked[name] != usual[name]]
        flags += ["objective"] * (self.objective != OBJECTIVES[0]) + ["robust"] * self.robust
        self.refuse_unused([agent], flags)
        return self._checked(super().run(agent))

    def _checked(self, answer: Answer) -> Answer:
        if self.trials:
            problem = replace(self.problem, trials=self.trials)
            by_stack: dict[str, Any] = {"cost": None, "bound": None}
            answer = replace(answer, problem=problem, proven=False, among="", **by_stack)
        for fault in (*answer.report.reasons, *self.constraints.faults(answer.plan)):
            who = f"{answer.method}: its plan"
            raise ParenvsError(f"{who} is refused, as {fault}; take another planner")
        return answer

    @cached_property
    def trials(self) -> Study | None:
        """What was tried; constraints of the request go before those of the journal."""
        if not (self.journal or self.site):
            return None
        study = Study(self.problem, journal=self.journal, site=self.site)
        if self.constraints != Constraints():
            study.limits = self.constraints
        return study

    def best(self) -> Answer:
        """The best by trials, else the best mean over stacks if none is named."""
        if self.trials and not self.robust:
            plan = self.trials.chosen(self.problem, self.goal)
            answer = Answer(problem=self.problem, plan=plan, method="tune")
            return self._checked(replace(answer, choice=f"best by {self.trials.sources}"))
        # What was measured on the devices themselves leaves stacks little to disagree on.
        if not (self.problem.is_named or self.robust or self.problem.cluster.measured):
            return replace(self, stacks=stacks_on(self.problem)).run(EXACT)
        return self.run(EXACT)

    @property
    def on_servers(self) -> Constraints:
        """The constraints together with those of one server for each stage."""
        return replace(self.constraints, chunks=1, context=1, expert=1)

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
    answer = learned("HybridPlan-v2", Start(request.problem), seed=request.seed)
    return Answer(
        problem=request.problem, plan=answer.plan, cost=answer.cost, evaluations=SAMPLES + 1
    )


HYBRID_PLANNERS: dict[str, Callable[[HybridRequest], Answer]] = {
    "exact": lambda r: (
        robust(r.space)
        if r.robust
        else exact(
            r.problem,
            r.constraints.on_frameworks,
            r.goal,
            SECONDS if r.time_limit is None else r.time_limit,
            stacks=r.stacks,
        )
    ),
    "search": lambda r: local_search(
        r.problem, r.constraints, r.goal, r.seed, time_limit=r.time_limit
    ),
    "uniform": lambda r: (
        robust(r.space) if r.robust else exact_uniform(r.problem, r.constraints, r.goal, r.space)
    ),
    "rule-of-thumb": lambda r: baseline.rule_of_thumb(r.problem, r.constraints),
    LEARNED: _learned,
    "random": lambda r: baseline.random_plan(
        r.problem, np.random.default_rng(r.seed), r.constraints
    ),
    "subset-dp": lambda r: subset_dp(r.problem, r.on_servers, r.time_limit),
    "swap-search": lambda r: swap_search(
        r.problem, np.random.default_rng(r.seed), r.on_servers, time_limit=r.time_limit
    ),
}
"""Planners of hybrid plans by name; docs/hybrid.md describes them."""
_ROBUST = ("exact", "uniform")
_FIXED = (*_ROBUST, "search", "rule-of-thumb", "random")
"""Planners on servers in their order."""
_FLAGS = {x.name: x.metadata.get("flag") or x.name.replace("_", "-") for x in fields(Constraints)}
"""Constraint -> its option of commands."""
HybridRequest.planners = HYBRID_PLANNERS
HybridRequest.users = {
    **dict.fromkeys(_FLAGS.values(), (*_FIXED, "subset-dp", "swap-search")),
    **dict.fromkeys(("stages", "devices-used", "idle", "stage-devices", "shard"), _FIXED),
    **dict.fromkeys(("chunks", "context", "expert", "expert-tp", "schedule"), _FIXED),
    "pin": ("exact",),
    **dict.fromkeys(("for", "robust"), _ROBUST),
    "objective": ("exact", "search", "uniform"),
    "seed": ("search", LEARNED, "random", "swap-search"),
    "steps": (),
    "seconds": ("exact", "search", "subset-dp", "swap-search"),
}
