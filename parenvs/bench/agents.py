"""Agents on every problem of the suite: the problems, the runs, and the lines that runs leave."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing import active_children, get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents.heuristics import partition as partition_heuristics
from parenvs.agents.heuristics import pipeline as heuristics
from parenvs.agents.optimum import optimum, target
from parenvs.agents.partition_planners import ENVIRONMENTS
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.files import write_text
from parenvs.judging import OPTIMAL
from parenvs.machine import cores, counted, processor
from parenvs.partitioning.space import PartitionSpace
from parenvs.pipeline.cuts import CutSpace
from parenvs.pipeline.judge import plan_values
from parenvs.plan import ILLEGAL

PIPELINES = "pipeline-cut"
TASKS = {PIPELINES: "PipelineCut-v0", **ENVIRONMENTS}
"""Ids of the environments."""
CLUSTERS = ("A", "B", "C")
DEVICES = 8
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "operator-partition": {
        "paper": {"reward": "paper", "rules": "shardy"},
        "paper/automap": {"reward": "paper", "rules": "automap"},
        "step_time": {"reward": "step_time", "rules": "shardy"},
        "step_time/automap": {"reward": "step_time", "rules": "automap"},
    },
    "data-parallel": {"paper": {"reward": "paper"}},
}
"""Arguments of the environments of partitions, one server of ``DEVICES`` V100 each."""


@dataclass(frozen=True)
class Problem:
    """An environment with its proven optimum.

    Attributes:
        task: a key of ``TASKS``.
        setting: the cluster of a pipeline, the variant of a partition.
        instance: name or path.
        env_kwargs: arguments of the environment.
        episode_steps: steps of its longest episode.
        fingerprint, cluster: hash of the graph or profile, every figure of the devices.
        reward: ``"1/L"``, ``"paper"`` or ``"step_time"``.
        optimum: return of the best episode.
        references: returns of heuristics that do not learn; of even cuts -1 if they break memory.
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
        """Task, setting and instance."""
        return f"{self.task} {self.setting} {self.instance}"

    @property
    def target(self) -> float:
        """The return from which an episode counts as optimal: a cost within 0.1 %."""
        return target(self.reward, self.optimum)

    def gap(self, value: float) -> float:
        """By how much of the optimum's a cost is worse: L or the step time; the paper's return."""
        if self.reward == "step_time":
            return (1 - value) / (1 - self.optimum) - 1
        if self.reward == "paper":
            return 1 - value / self.optimum
        return self.optimum / value - 1 if value > 0 else np.inf


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        problem: what is trained on.
        agent: name of the agent.
        seed: seed of everything random.
        budget: environment steps.
        full: go on after the optimum.
    """

    problem: Problem
    agent: str
    seed: int
    budget: int
    full: bool = False

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides the run beside its agent, problem and seed."""
        from parenvs.agents.train.learners import POLICY, learner

        problem, kind = self.problem, learner(self.agent)
        env_id = TASKS[problem.task]
        return {
            "algorithm": kind.algorithm.__name__,
            "agent": kind.settings(env_id, problem.episode_steps),
            "policy": POLICY,
            "envs": kind.envs.get(env_id),
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
        """Agent, problem, seed and a hash of the settings; equal keys, equal runs."""
        raw = json.dumps(self.settings, sort_keys=True, default=str)
        digest = hashlib.sha256(raw.encode()).hexdigest()[:16]
        return (self.agent, self.problem.name, self.seed, digest)


def problems(
    tasks: Iterable[str], instances: Sequence[str], clusters: Sequence[str]
) -> tuple[list[Problem], dict[str, str]]:
    """The problems, and the names of those without a legal plan; clusters are of pipelines.

    Raises:
        ParenvsError: an unknown instance or cluster.
    """
    found, skipped = [], {}
    for task in tasks:
        if task == PIPELINES:
            settings: dict[str, dict[str, Any]] = {name: {"cluster": name} for name in clusters}
        else:
            settings = {k: {"devices": DEVICES, **v} for k, v in VARIANTS[task].items()}
        for setting, kwargs in settings.items():
            for instance in instances:
                try:
                    found.append(_problem(task, setting, {"instance": instance, **kwargs}))
                except InfeasibleError as error:
                    skipped[f"{task} {setting} {instance}"] = str(error)
    return found, skipped


def perform(run: Run) -> dict[str, Any]:
    """Train, and search at random for as many episodes; the record of both, as JSON types."""
    from parenvs.agents.train.run import Config, train
    from parenvs.bench.curves import Curve

    problem, curve = run.problem, Curve(run.budget)
    config = Config(TASKS[problem.task], problem.env_kwargs, run.agent, run.seed, run.budget)
    result, _ = train(config, target=problem.target, stop_at_target=not run.full, callbacks=[curve])
    made = asdict(result)
    return {
        **dict(zip(_KEY, run.key, strict=True)),
        "settings": run.settings,
        "optimum": problem.optimum,
        "target": problem.target,
        "budget": run.budget,
        **{key: made[key] for key in made if key not in ("actions", "steps")},
        "value": result.value if result.episodes else ILLEGAL,  # JSON knows no infinity
        "steps_done": result.steps,
        "random_value": random_value(problem, result.episodes, run.seed),
        "references": problem.references,
        "machine": _machine(),
        "points": curve.points,
    }


def perform_all(
    runs: Sequence[Run],
    jobs: int = 1,
    performer: Callable[[Run], dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """The records of the runs as they are done, in so many processes.

    ``performer`` stands in for ``perform``.

    An interruption ends the processes at once.
    """
    do = performer or perform
    if jobs == 1:
        yield from map(do, runs)
        return
    others = set(active_children())
    # Spawned: torch's threads do not survive a fork. Ctrl-C is for the parent to see.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), signal, (SIGINT, SIG_IGN))
    waiting = iter(runs)
    pending = {pool.submit(do, run) for _, run in zip(range(jobs), waiting, strict=False)}
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
                pending |= {pool.submit(do, run) for run in [next(waiting, None)] if run}
    except BaseException:
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def random_value(problem: Problem, episodes: int, seed: int) -> float:
    """The best return of so many random episodes."""
    space = _space(problem.task, problem.env_kwargs)
    rng = np.random.default_rng(seed)
    if isinstance(space, PartitionSpace):
        return partition_heuristics.random_search(space, episodes, rng).value
    answer = heuristics.random_search(space, episodes, rng)
    return float(plan_values(space.pipeline, answer.cuts, answer.device_cuts))


def reached(record: Mapping[str, Any]) -> bool:
    """Whether the optimum was found within the budget; the last update may go beyond it."""
    return record["target_steps"] is not None and record["target_steps"] <= record["budget"]


def key_of(record: dict[str, Any]) -> tuple[str, str, int, str]:
    """The key of the run that left a record."""
    agent, problem, seed, digest = (record[name] for name in _KEY)
    return (agent, problem, seed, digest)


def read(path: Path) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """The records of a file by key, without a last line that was cut off.

    Raises:
        ParenvsError: another line is none of a run.
    """
    text, records = _text(path), {}
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
            records[key_of(record)] = record
        except (ValueError, TypeError, KeyError):
            raise ParenvsError(
                f"{path}, line {number}: no run of parenvs bench; delete the line"
            ) from None
    return records


def append(path: Path, record: dict[str, Any]) -> None:
    """Add a line, in place of one that was cut off."""
    text = _text(path)
    if not text.endswith("\n"):
        write_text(path, text[: text.rfind("\n") + 1])
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(record) + "\n")


_KEY = ("agent", "problem", "seed", "settings_hash")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _problem(task: str, setting: str, kwargs: dict[str, Any]) -> Problem:
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
    return Problem(task, setting, name, kwargs, steps, source, where, reward, best, references)


def _space(task: str, kwargs: dict[str, Any]) -> CutSpace | PartitionSpace:
    return gym.make(TASKS[task], **kwargs).get_wrapper_attr("space")


def _machine() -> str:
    return f"{processor()}, {counted(cores())}"
