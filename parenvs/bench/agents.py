"""What ``parenvs bench agents`` measures: agents on every problem of the suite.

``problems`` solves the problems, ``perform`` trains one agent on one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents.heuristics import partition as partition_heuristics
from parenvs.agents.heuristics import pipeline as heuristics
from parenvs.agents.optimum import optimum, target
from parenvs.agents.partition_planners import ENVIRONMENTS
from parenvs.errors import InfeasibleError
from parenvs.judging import OPTIMAL
from parenvs.machine import cores, counted, processor
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.judge import plan_values
from parenvs.plan import ILLEGAL

PIPELINES = "pipeline-cut"
"""The task whose problems are pipelines; those of the other tasks are partitions."""
TASKS = {PIPELINES: "PipelineCut-v0", **ENVIRONMENTS}
"""Ids of the environments, by task."""
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
_KEY = ("agent", "problem", "seed", "settings_hash")


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


@dataclass(frozen=True)
class TrainingRun:
    """One agent trained on one problem.

    Attributes:
        problem: the problem.
        agent: name of the agent.
        seed: seed of everything random.
        budget: number of environment steps.
        full: whether the training goes on after the optimum is reached.
    """

    problem: BenchProblem
    agent: str
    seed: int
    budget: int
    full: bool = False

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the run besides its agent, problem and seed, as JSON types."""
        from parenvs.agents.train.learners import POLICY, learner_of

        problem, learner = self.problem, learner_of(self.agent)
        env_id = TASKS[problem.task]
        return {
            "algorithm": learner.algorithm.__name__,
            "agent": learner.settings(env_id, problem.episode_steps),
            "policy": POLICY,
            "envs": learner.envs.get(env_id),
            "env_id": env_id,
            "env_kwargs": problem.env_kwargs,
            "cluster": problem.cluster,
            "fingerprint": problem.fingerprint,
            "optimum": f"{problem.optimum:.6g}",
            "tolerance": OPTIMAL,
            "budget": self.budget,
            "full": self.full,
        }

    @cached_property
    def key(self) -> tuple[str, str, int, str]:
        """Agent, problem, seed and a hash of the settings; equal keys mean equal runs."""
        raw = json.dumps(self.settings, sort_keys=True, default=str)
        digest = hashlib.sha256(raw.encode()).hexdigest()[:16]
        return (self.agent, self.problem.name, self.seed, digest)


def problems(
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


def perform(run: TrainingRun) -> dict[str, Any]:
    """Train, then search at random for as many episodes; returns the record, as JSON types."""
    from parenvs.agents.train.run import Config, train
    from parenvs.bench.curves import Curve

    problem, curve = run.problem, Curve(run.budget)
    config = Config(TASKS[problem.task], problem.env_kwargs, run.agent, run.seed, run.budget)
    result, _ = train(config, target=problem.target, stop_at_target=not run.full, callbacks=[curve])
    result_fields = asdict(result)
    return {
        **dict(zip(_KEY, run.key, strict=True)),
        "settings": run.settings,
        "optimum": problem.optimum,
        "target": problem.target,
        "budget": run.budget,
        **{k: v for k, v in result_fields.items() if k not in ("actions", "steps")},
        "value": result.value if result.episodes else ILLEGAL,  # JSON knows no infinity
        "steps_done": result.steps,
        "random_value": random_value(problem, result.episodes, run.seed),
        "references": problem.references,
        "machine": _machine(),
        "points": curve.points,
    }


def random_value(problem: BenchProblem, episodes: int, seed: int) -> float:
    """The best return of ``episodes`` random episodes."""
    space = _space(problem.task, problem.env_kwargs)
    rng = np.random.default_rng(seed)
    if isinstance(space, PartitionSpace):
        return partition_heuristics.random_search(space, episodes, rng).value
    answer = heuristics.random_search(space, episodes, rng)
    return float(plan_values(space.pipeline, answer.cuts, answer.device_cuts))


def key_of(record: dict[str, Any]) -> tuple[str, str, int, str]:
    """The key of the run that left a record."""
    agent, problem, seed, digest = (record[name] for name in _KEY)
    return (agent, problem, seed, digest)


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
        even = heuristics.even_cut(space.pipeline, space.stages)
        references = {"even": float(plan_values(space.pipeline, even.cuts, even.device_cuts))}
    name, where = kwargs["instance"], asdict(cluster)
    return BenchProblem(task, setting, name, kwargs, steps, source, where, reward, best, references)


def _space(task: str, kwargs: dict[str, Any]) -> CutSpace | PartitionSpace:
    """The search space of a task's environment."""
    return gym.make(TASKS[task], **kwargs).get_wrapper_attr("space")


def _machine() -> str:
    """The processor and its cores, in words."""
    return f"{processor()}, {counted(cores())}"
