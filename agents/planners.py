"""Every planner of pipelines by name: what ``parenvs plan --agent`` offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from parenvs.agents.answer import Answer
from parenvs.agents.exact.pipeline import exact_full, exact_pruned
from parenvs.agents.heuristics.beam import beam
from parenvs.agents.heuristics.pipedream import pipedream
from parenvs.agents.heuristics.pipeline import even_cut, random_search
from parenvs.agents.optimum import optimum
from parenvs.agents.pretrained.planner import pretrained
from parenvs.agents.request import Request
from parenvs.agents.trained import TRAINED
from parenvs.errors import ParenvsError
from parenvs.judging import judge
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.judge import Report, make_plan
from parenvs.pipeline.points import PlanSpace

REFINED = "pretrained-refined"


@dataclass(frozen=True)
class PipelineRequest(Request):
    """A pipeline to be planned.

    Attributes:
        space: the problem with its pruned candidates.
    """

    space: CutSpace = field(kw_only=True)

    env_id: ClassVar[str] = "PipelineCut-v0"

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return ("ppo", "even", "pipedream", "random", "pretrained", "exact", "exact-full")

    @property
    def label(self) -> str:
        """The cluster."""
        cluster = self.space.pipeline.cluster
        return cluster.name or f"{cluster.devices}-devices"

    @cached_property
    def points(self) -> PlanSpace:
        """The problem over 128 points and 64 units, at most."""
        return PlanSpace.build(self.space.pipeline, self.space.stages)

    def report(self, answer: Answer) -> Report:
        """What the judge says of an answer."""
        pipeline = self.space.pipeline
        return judge(make_plan(pipeline, answer.cuts, answer.device_cuts, self.instance), pipeline)

    def optimum(self) -> float:
        """1/L of the best plan among the candidates."""
        return optimum(self.space)


def _random(request: PipelineRequest) -> Answer:
    episodes = request.steps // (request.space.stages - 1)
    return random_search(request.space, episodes, np.random.default_rng(request.seed))


def _trained(agent: str, request: PipelineRequest) -> Answer:
    result = request.train(agent)
    if result.value < 0:
        exact_pruned(request.space)  # raises, and says by how much the best plan misses
        raise ParenvsError(f"{agent} found no plan within memory; give it more --steps")
    cuts, device_cuts = request.space.plan(result.actions)
    length = float(request.space.pipeline.length(cuts, device_cuts))
    return Answer(cuts, device_cuts, length, agent, evaluations=result.episodes)


PLANNERS: dict[str, Callable[[PipelineRequest], Answer]] = {
    "exact": lambda r: exact_pruned(r.space),
    "exact-full": lambda r: exact_full(r.space.pipeline, r.space.stages),
    "even": lambda r: even_cut(r.space.pipeline, r.space.stages),
    "pipedream": lambda r: pipedream(r.space.pipeline, r.space.stages),
    "beam": lambda r: beam(r.points),
    "pretrained": lambda r: pretrained(r.points, seed=r.seed),
    REFINED: lambda r: pretrained(r.points, refine=True, seed=r.seed),
    "random": _random,
    **{agent: partial(_trained, agent) for agent in TRAINED},
}
"""``exact`` searches the environment's candidates, ``exact-full`` all pivots and device cuts."""
GENERAL = ("pretrained", REFINED)
"""Planners that were trained on other problems, so that one wants to know what they missed."""
PipelineRequest.planners = PLANNERS
