"""Planners of elastic jobs by name, policies on the course of a seed, and their request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from parenvs.agents.elastic.exact import optimal
from parenvs.agents.elastic.rules import RULES, KeepDegrees, play
from parenvs.agents.elastic.trained import policy_of
from parenvs.agents.names import LEARNED
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.references import hindsight
from parenvs.tasks.elastic.run import Policy, Run, follow


@dataclass(frozen=True)
class ElasticRequest(Request):
    """A job whose plans are chosen on the course of ``seed``.

    Attributes:
        problem: the job.
    """

    problem: Elastic

    @property
    def label(self) -> str:
        """Model and intervals."""
        return f"{self.problem.library.name}-{self.problem.intervals}-intervals"


def _exact(request: ElasticRequest) -> Answer:
    """Return the most that can be earned on the course, which is known beforehand."""
    problem = request.problem
    run = hindsight(problem, problem.drawn(request.seed))
    note = "hindsight: it knows when nodes leave and come; no policy earns more on this course"
    return _answer(request, run, proven=True, bound=run.cost, notes=(note,))


def _optimal(request: ElasticRequest) -> Answer:
    """Return what the policy earns that is optimal in expectation, on a Markov chain."""
    policy = optimal(request.problem)
    note = f"the policy earns {policy.value:.4f} of the ideal in expectation, which is proven"
    return _followed(request, policy, (note,))


def _learned(request: ElasticRequest) -> Answer:
    """Return what the network that ships earns, which may have checkpoints written."""
    problem = request.problem
    return _answer(request, play(problem, problem.drawn(request.seed), policy_of(LEARNED)()))


def _by_rule(rule: Callable[[], Policy], request: ElasticRequest) -> Answer:
    return _followed(request, rule())


def _followed(request: ElasticRequest, policy: Policy, notes: tuple[str, ...] = ()) -> Answer:
    problem = request.problem
    return _answer(request, follow(problem, problem.drawn(request.seed), policy), notes=notes)


def _answer(request: ElasticRequest, run: Run, **proof: Any) -> Answer:
    plan = request.problem.plan(run.chosen, request.seed, run.policy)
    return Answer(
        problem=request.problem, plan=plan, cost=run.cost, evaluations=len(run.plans), **proof
    )


ELASTIC_PLANNERS: dict[str, Callable[[ElasticRequest], Answer]] = {
    "exact": _exact,
    **{name: partial(_by_rule, rule) for name, rule in RULES.items()},
    "optimal": _optimal,
    LEARNED: _learned,
}
"""Planners of elastic jobs by name.

``exact`` is the hindsight optimum of the course, which no policy exceeds; ``optimal`` the policy
that is optimal on a Markov chain; ``learned`` is the network of ``ElasticPlan-v1``; the others are
rules.
"""
ElasticRequest.planners, ElasticRequest.usual = ELASTIC_PLANNERS, KeepDegrees.name
