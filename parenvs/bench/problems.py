"""The problems of ``parenvs bench agents``: every environment of the suite with its optimum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents.partition import heuristics as partition_heuristics
from parenvs.agents.pipeline import heuristics
from parenvs.agents.reference import optimum, target
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.space import PartitionSpace
from parenvs.tasks.pipeline.cuts import CutSpace

PIPELINES = "pipeline-cut"
"""The task whose problems are pipelines; those of the other tasks are partitions."""
TASKS = {
    PIPELINES: "PipelineCut-v0",
    "operator-partition": "OperatorPartition-v0",
    "data-parallel": "DataParallel-v0",
}
"""Ids of the environments, by the word that stored results have for them."""
CLUSTERS = ("A", "B", "C")
"""Preset clusters of the pipelines."""
DEVICES = 8
"""Number of V100 of the partitions, all in one server."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "operator-partition": {
        "paper": {"reward": "paper", "rules": "shardy"},
        "paper/automap": {"reward": "paper", "rules": "automap"},
        "step_time": {"reward": "step_time", "rules": "shardy"},
        "step_time/automap": {"reward": "step_time", "rules": "automap"},
    },
    "data-parallel": {"paper": {"reward": "paper"}},
}
"""Arguments of the environments of partitions, by task and variant."""


@dataclass(frozen=True)
class BenchProblem:
    """An environment of the suite with its proven optimum.

    Attributes:
        task: a key of ``TASKS``.
        setting: the cluster of a pipeline, or the variant of a partition.
        instance: name or path of the instance.
        env_kwargs: arguments of the environment.
        episode_steps: number of steps of its longest episode.
        fingerprint: hash of the graph or of the profile.
        cluster: every figure of the cluster.
        reward: ``"1/L"``, ``"paper"`` or ``"step_time"``.
        optimum: return of the best episode.
        references: returns of heuristics that do not learn, by name; -1 for a plan that does not
            fit the memory.
    """

    task: str
    setting: str
    instance: str
    env_kwargs: dict[str, Any]
    episode_steps: int
    fingerprint: str
    cluster: dict[str, Any]
    reward: str
    optimum: float
    references: dict[str, float]

    @property
    def name(self) -> str:
        """Task, setting and instance in one line, which tells problems apart."""
        return f"{self.task} {self.setting} {self.instance}"

    @property
    def target(self) -> float:
        """The return from which an episode counts as optimal: its cost is within 0.1 %."""
        return target(self.reward, self.optimum)

    def gap(self, value: float) -> float:
        """By how much an episode is worse than the optimum, as a share of the optimum.

        Args:
            value: return of the episode; its L, its step time or (``"paper"``) it is compared.
        """
        if self.reward == "step_time":
            return (1 - value) / (1 - self.optimum) - 1
        if self.reward == "paper":
            return 1 - value / self.optimum
        return self.optimum / value - 1 if value > 0 else np.inf


def solve_problems(
    tasks: Iterable[str], instances: Sequence[str], clusters: Sequence[str]
) -> tuple[list[BenchProblem], dict[str, str]]:
    """Solve the problems of some tasks.

    Args:
        tasks: keys of ``TASKS``.
        instances: names or paths of the instances.
        clusters: clusters of the pipelines.

    Returns:
        the problems, and the names of those without a legal plan, with the reason.

    Raises:
        ParenvsError: an instance or a cluster is unknown.
    """
    solved, skipped = [], {}
    for task in tasks:
        if task == PIPELINES:
            settings: dict[str, dict[str, Any]] = {name: {"cluster": name} for name in clusters}
        else:
            settings = {k: {"devices": DEVICES, **v} for k, v in VARIANTS[task].items()}
        for setting, kwargs in settings.items():
            for instance in instances:
                try:
                    solved.append(_problem(task, setting, {"instance": instance, **kwargs}))
                except InfeasibleError as error:
                    skipped[f"{task} {setting} {instance}"] = str(error)
    return solved, skipped


def random_value(problem: BenchProblem, episodes: int, seed: int) -> float:
    """The best return of ``episodes`` random episodes."""
    space = _space(problem.task, problem.env_kwargs)
    rng = np.random.default_rng(seed)
    if isinstance(space, PartitionSpace):
        return partition_heuristics.random_search(space, episodes, rng).value
    answer = heuristics.random_search(space, episodes, rng)
    return answer.value


def _problem(task: str, setting: str, kwargs: dict[str, Any]) -> BenchProblem:
    """Solve one problem; raises InfeasibleError if it has no legal plan."""
    space = _space(task, kwargs)
    best = optimum(space)
    if isinstance(space, PartitionSpace):
        source, reward = space.problem.graph.fingerprint, space.reward
        cluster, steps = space.problem.cluster, len(space.questions)
        references = {
            "greedy": partition_heuristics.greedy(space).value,
            "ones": partition_heuristics.partition_all(space).value,
        }
    else:
        source, reward = space.pipeline.profile.fingerprint, "1/L"
        cluster, steps = space.pipeline.cluster, space.stages - 1
        even = heuristics.even_cut(space.pipeline)
        references = {"even": even.value}
    name, where = kwargs["instance"], asdict(cluster)
    return BenchProblem(task, setting, name, kwargs, steps, source, where, reward, best, references)


def _space(task: str, kwargs: dict[str, Any]) -> CutSpace | PartitionSpace:
    """The search space of a task's environment."""
    with warnings.catch_warnings():
        # Solving a pipeline that fits nowhere raises an error; no reward of a partition depends on
        # memory.
        warnings.filterwarnings("ignore", message="no plan fits the memory")
        return gym.make(TASKS[task], **kwargs).get_wrapper_attr("game").space
