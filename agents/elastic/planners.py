"""Planners of elastic jobs by name, policies on the course of a seed, and their request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.elastic.policies import POLICIES, RULES, KeepDegrees, optimal, play
from parenvs.agents.learning.network import Network, shipped
from parenvs.agents.learning.options import LEARNED
from parenvs.core.game import EVERY, Stream
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.elastic.game import ElasticChoice, Job
from parenvs.tasks.elastic.library import CHECKPOINT, Array
from parenvs.tasks.elastic.problem import Elastic, Foresight, Moment, Policy, Run, hindsight

ENV_ID = "ElasticPlan-v2"
Best = Callable[[Any, Array], int]
"""Gives the best action of an observation and a mask, (65,) bool."""


class AgentPolicy:
    """Chooses the action that an agent rates highest on observations of ``ElasticPlan-v2``."""

    saves = True
    """Whether it may choose ``CHECKPOINT``."""

    def __init__(self, name: str, best: Best, **settings: Any) -> None:
        self.name, self.best, self.settings = name, best, settings

    def start(self, problem: Elastic) -> None:
        self.may_save = problem.checkpoints  # in the environment it always may
        self.game = ElasticChoice(problem=replace(problem, checkpoints=True), **self.settings)
        # The generated episode does not matter: ``meet`` replaces what happens in it.
        stream = Stream()
        stream.reseed(0)
        self.game.deal(EVERY, [stream])

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        self.game.meet(0, moment, joined, left)
        seen = {key: values[0] for key, values in self.game.observation(EVERY).items()}
        legal = self.game.legal[0].copy()
        legal[CHECKPOINT] &= self.may_save
        return self.best(seen, legal)


def of_network(network: Network, name: str = LEARNED) -> AgentPolicy:
    """Return a network as a policy."""

    def best(seen: Any, mask: Array) -> int:
        batch = {**{key: seen[key][None] for key in seen}, "action_mask": mask[None]}
        return int(network.rate(batch)[0].argmax())

    return AgentPolicy(name, best)


def policy_of(source: str) -> Callable[[], Policy]:
    """Return what makes the policy of a name.

    Args:
        source: a rule or a system (``POLICIES``), the network that ships (``learned``), an ``.npz``
            file of another one, or the folder of a training of ``ElasticPlan-v2`` by ``parenvs
            train``.

    Raises:
        ParenvsError: it is none of these, or damaged; the line says which.
    """
    if source in POLICIES:
        return POLICIES[source]
    if source == LEARNED:
        return partial(of_network, shipped(ENV_ID))
    if source.endswith(".npz"):
        return partial(of_network, Network.load(Path(source)), Path(source).stem)
    if not Path(source).is_dir():
        known = [*POLICIES, LEARNED]
        raise ParenvsError(
            f"--policy {shown(source)} is unknown{did_you_mean(source, known)}; known: "
            f"{', '.join(known)}, an .npz file of a network, a folder of parenvs "
            f"train {ENV_ID}"
        )
    from parenvs.agents.learning.config import load_config
    from parenvs.agents.learning.trainer import player, rules_of

    config = load_config(source)
    if config.env_id.removeprefix("parenvs/") != ENV_ID:
        raise ParenvsError(
            f"--policy {shown(source)}: was trained in {config.env_id}; policies are of {ENV_ID}"
        )
    agent = player(source)

    def best(seen: Any, mask: Array) -> int:
        return int(agent.predict(seen, mask)[0])

    return lambda: AgentPolicy(Path(source).name, best, **rules_of(config))


@dataclass(frozen=True)
class ElasticRequest(Request):
    """A job whose plans are chosen on the course of ``seed``."""

    problem: Elastic

    @property
    def label(self) -> str:
        """Model and intervals."""
        return f"{self.problem.library.name}-{self.problem.intervals}-intervals"


def _exact(request: ElasticRequest) -> Answer:
    problem = request.problem
    run = hindsight(problem, problem.drawn(request.seed))
    note = "hindsight: it knows when nodes leave and come; no policy earns more on this course"
    return _answer(request, run, proven=True, bound=run.cost, notes=(note,))


def _optimal(request: ElasticRequest) -> Answer:
    policy = optimal(request.problem)
    note = f"the policy earns {policy.value:.4f} of the ideal in expectation, which is proven"
    return _played(lambda: policy, request, (note,))


def _played(
    make: Callable[[], Policy], request: ElasticRequest, notes: tuple[str, ...] = ()
) -> Answer:
    problem = request.problem
    return _answer(request, play(problem, problem.drawn(request.seed), make()), notes=notes)


def _answer(request: ElasticRequest, run: Run, **proof: Any) -> Answer:
    plan = request.problem.plan(run.chosen, request.seed, run.policy)
    return Answer(
        problem=request.problem, plan=plan, cost=run.cost, evaluations=len(run.plans), **proof
    )


ELASTIC_PLANNERS: dict[str, Callable[[ElasticRequest], Answer]] = {
    "exact": _exact,
    **{name: partial(_played, rule) for name, rule in RULES.items()},
    "optimal": _optimal,
    LEARNED: lambda request: _played(policy_of(LEARNED), request),
}
"""Planners of elastic jobs by name.

``exact`` is the hindsight optimum of the course, which no policy exceeds; ``optimal`` the policy
that is optimal on a Markov chain; ``learned`` is the network of ``ElasticPlan-v2``; the others are
rules.
"""
ElasticRequest.planners, ElasticRequest.usual = ELASTIC_PLANNERS, KeepDegrees.name
ElasticRequest.users = {"steps": ()}


def teach(game: Any) -> Callable[[], Array] | None:
    """Return a function of what actions are worth, (n, 65); None if nothing is known of the game.

    The unit is what hindsight earns in a mean interval of the course.
    """
    if not isinstance(game, ElasticChoice):
        return None
    seen: dict[int, tuple[Job, Foresight]] = {}

    def worth() -> Array:
        nonlocal seen
        rows = np.flatnonzero(~game.over).tolist()
        played = {id(game.jobs[row]) for row in rows}
        # Foresight of a course is computed once and dropped when no episode plays it.
        seen = {key: entry for key, entry in seen.items() if key in played}
        result = np.full(game.mask.shape, np.nan, np.float32)
        for row in rows:
            job = game.jobs[row]
            if id(job) not in seen:
                seen[id(job)] = job, Foresight(job.problem, job.course)
            figures = (game.interval, game.nodes, game.plans, game.event, game.since)
            values = seen[id(job)][1].worth(Moment(*(int(figure[row]) for figure in figures)))
            values *= len(job.course) / job.known.best
            result[row, : len(values) - 1], result[row, -1] = values[:-1], values[-1]
        return np.where(game.legal & np.isfinite(result), result, np.nan)

    return worth
