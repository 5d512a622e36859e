"""MaskablePPO on the partition environments, against the proven optimum and random search."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import INSTANCES, Case, Row, columns, main, measurement, percent
from parenvs.agents.partition.heuristics import greedy, partition_all, random_search
from parenvs.agents.reference import optimum, target
from parenvs.bench import runs as lines
from parenvs.core.judge import OPTIMAL
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.space import PartitionSpace

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("OperatorPartition-v0", {}),
    "paper, automap": ("OperatorPartition-v0", {"rules": "automap"}),
    "step_time": ("OperatorPartition-v0", {"reward": "step_time"}),
    "step_time, automap": ("OperatorPartition-v0", {"reward": "step_time", "rules": "automap"}),
    "paper, linkage=False": ("OperatorPartition-v0", {"linkage": False}),
    "paper, linkage=False, masked": ("OperatorPartition-v0", {"linkage": False, "masked": True}),
    "data-parallel, paper": ("DataParallel-v0", {}),
    "data-parallel, step_time": ("DataParallel-v0", {"reward": "step_time"}),
}


@dataclass(frozen=True)
class PartitionRun:
    """One training run; equal runs have equal keys."""

    variant: str
    instance: str
    seed: int
    steps: int

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {"instance": self.instance, **VARIANTS[self.variant][1]}


def reached(record: Row) -> bool:
    """Whether the run reached its target within its steps."""
    return lines.reached(record, "steps")


def space_of(run: PartitionRun) -> PartitionSpace:
    """The search space of the run's environment."""
    space = gym.make(VARIANTS[run.variant][0], **run.kwargs).get_wrapper_attr("game").space
    assert isinstance(space, PartitionSpace)
    return space


def target_of(space: PartitionSpace) -> tuple[float, float]:
    """Return of the optimum, and the return from which an episode counts as one."""
    best = optimum(space)
    return best, target(space.reward, best)


def perform(run: PartitionRun) -> Row:
    """Train, then search at random for as many episodes."""
    from parenvs.agents.learning.train.run import Config, train

    space = space_of(run)
    best, target = target_of(space)
    env_id = VARIANTS[run.variant][0]
    config = Config(env_id, run.kwargs, seed=run.seed, steps=run.steps)
    result, _ = train(config, target=target, stop_at_target=True)
    draws = random_returns(run, space, result.episodes)
    digest, content = settings(run)
    return {
        **asdict(run),
        "settings_hash": digest,
        "settings": content,
        "optimum": best,
        "target": target,
        "dimensions": len(space.dimensions),
        "questions": len(space.questions),
        **{k: v for k, v in asdict(result).items() if k not in ("steps", "actions")},
        "steps_done": result.steps,
        "random_value": draws,
        "ones_value": partition_all(space).value,
        "greedy_heuristic_value": greedy(space).value,
    }


def random_returns(run: PartitionRun, space: PartitionSpace, episodes: int) -> float:
    """The best return of ``episodes`` random episodes of the run's environment."""
    rng = np.random.default_rng(run.seed)
    if space.linkage:
        return random_search(space, episodes, rng).value
    env = gym.make(VARIANTS[run.variant][0], **run.kwargs)
    best = -np.inf
    for _ in range(episodes):
        _, info = env.reset()
        total, over = 0.0, False
        while not over:
            legal = np.flatnonzero(info["action_mask"])
            _, reward, over, _, info = env.step(legal[rng.integers(len(legal))])
            total += float(reward)
        best = max(best, total)
    return float(best)


def settings(run: PartitionRun) -> tuple[str, dict[str, Any]]:
    """Everything that decides a run besides its variant, instance and seed; its hash first."""
    from parenvs.agents.learning.train.learners import POLICY, PPO_ENVS, ppo_settings

    space = space_of(run)
    env_id = VARIANTS[run.variant][0]
    content = {
        "agent": ppo_settings(env_id, len(space.questions)),
        "policy": POLICY,
        "envs": PPO_ENVS[env_id],
        "env_kwargs": run.kwargs,
        "steps": run.steps,
        "tolerance": OPTIMAL,
        "fingerprint": space.problem.graph.fingerprint,
    }
    raw = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(raw.encode()).hexdigest()[:16], content


def told(records: list[Row]) -> Row:
    """Figures of a variant of an instance, of all its seeds."""
    one, done = records[0], [x for x in records if reached(x)]
    digits = 4 if "step_time" in one["variant"] else 1
    row: Row = {**one, "best": f"{one['optimum']:.{digits}f}"}
    for key in ("target_steps", "target_seconds", "episodes"):
        row[key] = median(x[key] for x in done) if done else None
    row["reached"] = f"{len(done)} of {len(records)}"
    row["value"] = f"{median(x['value'] for x in records):.{digits}f}"
    lucky = sum(x["random_value"] >= x["target"] for x in records)
    row["random"] = f"{lucky} of {len(records)}"
    for key in ("ones_value", "greedy_heuristic_value"):
        row[key] = "optimal" if one[key] >= one["target"] else f"{one[key]:.{digits}f}"
    return row


@measurement(
    key="variant instance seed settings_hash",
    among={"instances": INSTANCES, "variants": VARIANTS},
    about={"seeds": "seeds 0 to this less one", "steps": "environment steps"},
)
def partition_ppo(
    instances: tuple[str, ...] = INSTANCES,
    variants: tuple[str, ...] = tuple(VARIANTS),
    seeds: int = 5,
    steps: int = 150_000,
) -> list[Case]:
    runs = [
        PartitionRun(variant, instance, seed, steps)
        for seed in range(seeds)
        for variant in variants
        for instance in instances
        if possible(variant, instance)
    ]
    return [
        ({**asdict(run), "settings_hash": settings(run)[0]}, partial(perform, run)) for run in runs
    ]


@partition_ppo.page
def page(
    records: list[Row],
    instances: tuple[str, ...],
    variants: tuple[str, ...],
    seeds: int,
    steps: int,
) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for record in records:
        groups.setdefault((record["variant"], record["instance"]), []).append(record)
    order = [(v, i) for v in variants for i in instances if (v, i) in groups]
    jobs = sorted({x.get("jobs", 1) for x in records})
    return [
        "One server of 8 V100. Reached: the paper's return, or the step time, of a sampled "
        f"episode within {percent(OPTIMAL, 1)} of the proven optimum's, within {steps:,} "
        f"environment steps; seeds 0 to {seeds - 1}; a run ends there. Steps, seconds "
        "and episodes are those of the runs that reach it. Random search plays as many episodes as "
        "the agent did, uniform among the actions that the mask allows. Greedy heuristic: GWMIN. "
        f"{' or '.join(map(str, jobs))} run(s) at a time, each on one thread.",
        columns(
            [told(groups[pair]) for pair in order],
            [
                ("variant", "{variant}"),
                ("instance", "{instance}"),
                ("questions", "{questions}"),
                ("optimum", "{best}"),
                ("seeds that reach it", "{reached}"),
                ("steps, median", "{target_steps:,.0f}"),
                ("seconds, median", "{target_seconds:.2f}"),
                ("episodes, median", "{episodes:,.0f}"),
                ("best return, median", "{value}"),
                ("random search reaches it", "{random}"),
                ("constant action 1", "{ones_value}"),
                ("greedy heuristic", "{greedy_heuristic_value}"),
            ],
            left=2,
        ),
        f"{sum(map(reached, records))} of {len(records)} runs reached the optimum.",
    ]


def possible(variant: str, instance: str) -> bool:
    """Whether the variant's environment has anything to decide on the instance."""
    try:
        space_of(PartitionRun(variant, instance, 0, 1))
    except InfeasibleError:
        return False
    return True


if __name__ == "__main__":
    main(partition_ppo)
