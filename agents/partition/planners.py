"""Planners of partitions by name, and the request that they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from parenvs.agents.names import TRAINED
from parenvs.agents.partition import heuristics
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.planners import target
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.errors import TimeLimitError
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.task import PartitionSearch

ENVIRONMENTS = {"variables": "OperatorPartition-v0", "inputs": "DataParallel-v0"}
"""Scope of partitions -> id of the environment in which agents train for it."""


@dataclass(frozen=True)
class PartitionRequest(PartitionSearch, Request):
    """Variables or batch inputs to be partitioned.

    Attributes:
        problem: the graph on its devices, with scope and reward.
        memory_limit: bytes that a device may use, for the planner ``exact`` (None: the problem's
            own limit, to which plans of all planners must keep, if it has one).
    """

    problem: Partitioning
    memory_limit: float | None = None

    @property
    def env_id(self) -> str:
        """Id of the scope's environment."""
        return ENVIRONMENTS[self.problem.scope]

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The problem as arguments of the environment."""
        problem = self.problem
        return {
            "instance": problem.instance,
            "cluster": problem.cluster.to_json(),
            "rules": problem.rules,
            "uneven": problem.uneven,
            "reward": problem.reward,
            **problem.step.settings,
        }

    @cached_property
    def space(self) -> PartitionSpace:
        """The decisions of the environment."""
        return PartitionSpace.of(self.problem, linkage=self.problem.scope == "variables")

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs: those whose plans the scope contains."""
        experts_by_scope = {"variables": ("expert",), "inputs": ("data-parallel",)}
        experts = experts_by_scope.get(self.problem.full_scope, ("data-parallel", "expert"))
        return ("ppo", *experts, "greedy", "random", "exact")

    def target(self, best: float) -> float:
        """See ``Request.target``."""
        return target(self.problem.reward, best)

    @property
    def label(self) -> str:
        """The scope, the reward and the devices."""
        problem = self.problem
        cluster_label = problem.cluster.name or f"{problem.cluster.devices}-devices"
        return f"{problem.scope}-{problem.reward}-{cluster_label}"


def reference(space: PartitionSpace) -> Answer:
    """Find the best plan that an episode can build, and prove it.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    return exact_partition(space.problem)


def _random_partition(request: PartitionRequest) -> Answer:
    episodes = max(request.steps // len(request.space.questions), 1)
    rng = np.random.default_rng(request.seed)
    return heuristics.random_search(request.space, episodes, rng)


def _trained_partition(agent: str, request: PartitionRequest) -> Answer:
    result = request.train(agent)
    from parenvs.agents.learning.play import replayed

    env = replayed(request.env_id, request.object_kwargs, result.actions, request.seed)
    chosen = request.problem.chosen(env.get_wrapper_attr("plan")().partition)
    if request.problem.step.limit is not None and not request.problem.fits(chosen):
        raise TimeLimitError(f"{agent} found no plan within memory; give it more --steps")
    return Answer(
        problem=request.problem,
        plan=request.problem.plan(chosen),
        cost=request.problem.cost(chosen),
        method=agent,
        evaluations=result.episodes,
    )


PARTITION_PLANNERS: dict[str, Callable[[PartitionRequest], Answer]] = {
    "exact": lambda r: exact_partition(r.problem, r.memory_limit, time_limit=r.time_limit),
    "greedy": lambda r: heuristics.greedy(r.space),
    "expert": lambda r: heuristics.expert(r.space),
    "data-parallel": lambda r: heuristics.data_parallel(r.space),
    "random": _random_partition,
    **{agent: partial(_trained_partition, agent) for agent in TRAINED},
}
"""Planners by name; ``expert`` is Megatron's plan, or splits a chain of dense layers."""
PartitionRequest.planners = PARTITION_PLANNERS
