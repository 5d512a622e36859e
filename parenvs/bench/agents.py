"""Trains agents on the problems of ``parenvs bench agents``, and records what they find."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from parenvs.bench.measurement import Case
from parenvs.bench.page import Row
from parenvs.bench.problems import BenchProblem, random_value
from parenvs.core.plan import ILLEGAL, OPTIMAL
from parenvs.machine import cores, counted, processor

_KEY = ("agent", "problem", "seed", "settings_hash")


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
        problem = self.problem
        return {
            "settings": asdict(self.config.agent_settings()),
            "env_id": problem.env_id,
            "episode_steps": problem.episode_steps,
            "env_kwargs": problem.env_kwargs,
            "cluster": problem.cluster,
            "fingerprint": problem.fingerprint,
            "optimum": f"{problem.optimum:.6g}",
            "tolerance": OPTIMAL,
            "budget": self.budget,
            "full": self.full,
        }

    @cached_property
    def config(self) -> Any:
        """What decides the training."""
        from parenvs.agents.learning.config import TrainConfig

        return TrainConfig(
            env_id=self.problem.env_id, env_kwargs=self.problem.env_kwargs, agent=self.agent,
            steps=self.budget, seed=self.seed,
        )  # fmt: skip

    @cached_property
    def key(self) -> tuple[str, str, int, str]:
        """Agent, problem, seed and a hash of the settings; equal keys mean equal runs."""
        raw = json.dumps(self.settings, sort_keys=True, default=str)
        digest = hashlib.sha256(raw.encode()).hexdigest()[:16]
        return (self.agent, self.problem.name, self.seed, digest)


def case(run: TrainingRun, perform: Callable[[TrainingRun], Row]) -> Case:
    """The run as a case of a measurement, performed by ``perform``."""
    return dict(zip(_KEY, run.key, strict=True)), partial(perform, run)


def perform(run: TrainingRun) -> Row:
    """Train, then search at random for as many episodes; returns the record, as JSON types."""
    from parenvs.agents.learning.trainer import train
    from parenvs.bench.curves import thinned

    problem = run.problem
    trained = train(run.config, target=problem.target, stop_at_target=not run.full)
    result = trained.result
    result_fields = asdict(result)
    return {
        **dict(zip(_KEY, run.key, strict=True)),
        "settings": run.settings,
        "optimum": problem.optimum,
        "target": problem.target,
        "budget": run.budget,
        **{k: v for k, v in result_fields.items() if k not in ("actions", "steps")},
        "value": ILLEGAL if result.value is None else result.value,
        "steps_done": result.steps,
        "random_value": random_value(problem, result.episodes, run.seed),
        "references": problem.references,
        "machine": _machine(),
        "points": thinned(trained.curve),
    }


def key_of(record: dict[str, Any]) -> tuple[str, str, int, str]:
    """The key of the run that left a record."""
    agent, problem, seed, digest = (record[name] for name in _KEY)
    return (agent, problem, seed, digest)


def _machine() -> str:
    """The processor and its cores, in words."""
    return f"{processor()}, {counted(cores())}"
