"""Every planner of partitions by name: what ``parenvs plan --task ... --agent`` offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from parenvs.agents.answer import PartitionAnswer
from parenvs.agents.exact.partition import exact_partition
from parenvs.agents.heuristics.partition import (
    data_parallel,
    expert,
    greedy,
    partition_all,
    random_search,
    replicate,
)
from parenvs.agents.optimum import optimum
from parenvs.agents.request import Request
from parenvs.agents.trained import TRAINED
from parenvs.partitioning.judge import PartitionReport, judge_partition, make_partition_plan
from parenvs.partitioning.space import PartitionSpace


@dataclass(frozen=True)
class PartitionRequest(Request):
    """Variables or batch inputs to be partitioned.

    Attributes:
        space: the decisions; its task, rules and reward say what is asked for.
        memory_limit: bytes that a device may use, for the exact planner (None: no limit).
    """

    space: PartitionSpace = field(kw_only=True)
    memory_limit: float | None = None

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs: those whose plan the task can name."""
        named = {"variables": ("expert",), "inputs": ("data-parallel",)}
        both = named.get(self.space.scope, ("data-parallel", "expert"))
        return ("ppo", "replicate", *both, "ones", "greedy", "random", "exact")

    @property
    def env_id(self) -> str:
        """Id of the task's environment."""
        return ENVIRONMENTS[self.space.task]

    @property
    def label(self) -> str:
        """The task, the reward and the devices."""
        cluster = self.space.problem.cluster
        where = cluster.name or f"{cluster.devices}-devices"
        return f"{self.space.task}-{self.space.reward}-{where}"

    def report(self, answer: PartitionAnswer) -> PartitionReport:
        """What the judge says of an answer, with the bound that it proved."""
        space = self.space
        plan = make_partition_plan(
            space.problem, answer.chosen, space.task, space.reward, self.instance
        )
        return judge_partition(plan, space.problem).certified(answer)

    def optimum(self) -> float:
        """Return of the best episode."""
        return optimum(self.space)


def _exact(request: PartitionRequest) -> PartitionAnswer:
    space = request.space
    return exact_partition(space.problem, space.reward, space.scope, request.memory_limit)


def _random(request: PartitionRequest) -> PartitionAnswer:
    episodes = max(request.steps // len(request.space.questions), 1)
    return random_search(request.space, episodes, np.random.default_rng(request.seed))


def _trained(agent: str, request: PartitionRequest) -> PartitionAnswer:
    result = request.train(agent)
    from parenvs.agents.train.run import play

    env = play(request.env_id, request.env_kwargs, result.actions, request.seed)
    chosen = request.space.problem.chosen(env.get_wrapper_attr("plan")().partition)
    return PartitionAnswer(
        chosen, result.value, request.space.reward, agent, evaluations=result.episodes
    )


ENVIRONMENTS = {
    "operator-partition": "OperatorPartition-v0",
    "data-parallel": "DataParallel-v0",
}
PLANNERS: dict[str, Callable[[PartitionRequest], PartitionAnswer]] = {
    "exact": _exact,
    "greedy": lambda r: greedy(r.space),
    "ones": lambda r: partition_all(r.space),
    "expert": lambda r: expert(r.space),
    "data-parallel": lambda r: data_parallel(r.space),
    "replicate": lambda r: replicate(r.space),
    "random": _random,
    **{agent: partial(_trained, agent) for agent in TRAINED},
}
"""``ones`` is the constant action 1; ``expert`` is Megatron's plan, or a CNN's dense layers."""
PartitionRequest.planners = PLANNERS
