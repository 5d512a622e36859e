"""The problems of ``parenvs bench agents``: every environment of the suite with its optimum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents.partition import suite as partition
from parenvs.agents.pipeline import suite as pipeline
from parenvs.agents.planners import optimum, target
from parenvs.errors import InfeasibleError


def suites() -> dict[str, Any]:
    """Return the id of each environment that is measured -> what its task says of it.

    Those of the default task come first.
    """
    both: list[Any] = [pipeline.Suite, partition.Suite]
    return {env_id: suite for suite in both for env_id in suite.settings}


def clusters_of(known: Mapping[str, Any]) -> list[str]:
    """Return the preset clusters that settings name."""
    settings = [kwargs for env_id in known for kwargs in known[env_id].settings[env_id].values()]
    return list(dict.fromkeys(kwargs["cluster"] for kwargs in settings if "cluster" in kwargs))


@dataclass(frozen=True)
class BenchProblem:
    """An environment of the suite with its proven optimum.

    Attributes:
        env_id: id of the environment.
        setting: which arguments it has, see ``suites``.
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

    env_id: str
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
        """Environment, setting and instance in one line, which tells problems apart."""
        return f"{self.env_id} {self.setting} {self.instance}"

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
    env_ids: Iterable[str], instances: Sequence[str], clusters: Sequence[str]
) -> tuple[list[BenchProblem], dict[str, str]]:
    """Solve the problems of some environments.

    Args:
        env_ids: keys of ``suites()``.
        instances: names or paths of the instances.
        clusters: preset clusters, of settings that name one.

    Returns:
        the problems, and the names of those without a legal plan, with the reason.

    Raises:
        ParenvsError: an instance or a cluster is unknown.
    """
    solved, skipped, known = [], {}, suites()
    for env_id in env_ids:
        for setting, kwargs in known[env_id].settings[env_id].items():
            if "cluster" in kwargs and kwargs["cluster"] not in clusters:
                continue
            for instance in instances:
                try:
                    solved.append(_problem(env_id, setting, {"instance": instance, **kwargs}))
                except InfeasibleError as error:
                    skipped[f"{env_id} {setting} {instance}"] = str(error)
    return solved, skipped


def random_value(problem: BenchProblem, episodes: int, seed: int) -> float:
    """The best return of ``episodes`` random episodes."""
    suite = suites()[problem.env_id](_space(problem.env_id, problem.env_kwargs))
    value: float = suite.random_value(episodes, np.random.default_rng(seed))
    return value


def _problem(env_id: str, setting: str, kwargs: dict[str, Any]) -> BenchProblem:
    """Solve one problem; raises InfeasibleError if it has no legal plan."""
    space = _space(env_id, kwargs)
    best, suite = optimum(space), suites()[env_id](space)
    return BenchProblem(
        env_id, setting, kwargs["instance"], kwargs, suite.episode_steps, suite.fingerprint,
        _compared(suite.problem.cluster), suite.reward, best, suite.references(),
    )  # fmt: skip


def _space(env_id: str, kwargs: dict[str, Any]) -> Any:
    """The search space of an environment."""
    with warnings.catch_warnings():
        # Solving a pipeline that fits nowhere raises an error; no reward of a partition depends on
        # memory.
        warnings.filterwarnings("ignore", message="no plan fits the memory")
        return gym.make(env_id, **kwargs).get_wrapper_attr("game").space


def _compared(value: Any) -> Any:
    """The fields that tell a cluster from others: results do not hang on what is said of them."""
    if is_dataclass(value):
        named = [(each.name, getattr(value, each.name)) for each in fields(value) if each.compare]
        return {name: _compared(own) for name, own in named}
    return value
