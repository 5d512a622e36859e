"""Trains the networks that ship, and keeps for each environment the one best on validation.

What counts is the plan that is served: the best of several plays and the rule's, or of a beam.

    python benchmarks/ship.py                       # of both, five seeds each
    python benchmarks/ship.py HybridPlan-v2 --agents ppo --seeds 0 1 2

A run that is in ``--runs`` already is not trained again. The weights go to ``data/ENV_ID.npz``, and
beside them what was tried and chosen, ``data/ENV_ID.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.learning import trainer
from parenvs.agents.learning.config import RESULT, TrainConfig
from parenvs.agents.learning.network import WEIGHTS, Network, Rater, file_of, served
from parenvs.core.registry import TASKS
from parenvs.core.task import Task
from parenvs.files import write_text

CHOSEN_ON: dict[str, tuple[tuple[str, str | None], ...]] = {
    "HybridPlan-v2": (("hybrid-validation", None), ("hetero-32-validation", None)),
    "ElasticPlan-v2": (("elastic-validation", None),),
    "PipelinePlan-v0": (("plan-validation", None),),
    "PipelineImprove-v0": (("plan-s16-validation", None),),
}
"""Environment -> the sets, and their families, on the mean of which a network is chosen."""
TRAINED_ON: dict[str, dict[str, Any]] = {
    "HybridPlan-v2": {"instance": ["hybrid", "hetero-32"]},
    "PipelinePlan-v0": {"rows": "ahead", "repeat": 8},
}
"""Environment -> arguments of its trainings, where they are not its defaults."""
PLAYS: dict[str, dict[str, Any]] = {"PipelineImprove-v0": {"pairs": False}}
"""Environment -> arguments with which its network plays any problem."""
AGENTS, SEEDS, STEPS = ("group", "ppo"), range(5), 65_536
"""What is tried; who is taught, too, where a task teaches."""


def run_of(config: TrainConfig, runs: Path) -> Path:
    """Return the folder of a run, which is trained unless it is there."""
    runs = runs / "+".join(config.env_kwargs.get("instance", ()))  # of the banks, if there are any
    name = f"{config.env_id}-{config.agent}-{config.steps}-{config.seed}"
    if not (runs / name / RESULT).exists():
        trainer.train(config, runs / name, resume=True, say=trainer.progress)
    return runs / name


def network_of(folder: Path) -> Network:
    """Return the network of a run."""
    weights = trainer.load(folder).net.state_dict()
    return Network({name: weights[name].numpy() for name in WEIGHTS}, str(folder))


def ship(
    env_id: str, agents: Sequence[str], seeds: Sequence[int], steps: int, runs: Path
) -> dict[str, Any]:
    """Train agents in an environment, write the network that is best, and return what was tried.

    Args:
        env_id: id of the environment.
        agents: algorithms; none: ``AGENTS``, and ``imitate`` where the task has a teacher.
        seeds: of trainings.
        steps: turns of each.
        runs: folder of the runs.
    """
    env_kwargs, sets = TRAINED_ON.get(env_id, {}), CHOSEN_ON[env_id]
    task = next(task for task in TASKS.values() if env_id in task.envs)

    def validation(policy: Rater) -> float:
        shares = [served(policy, env_id, *set_and_family).mean() for set_and_family in sets]
        return round(float(np.mean(shares)), 6)

    def config_of(agent: str, seed: int) -> TrainConfig:
        return TrainConfig(
            env_id=env_id, env_kwargs=env_kwargs, agent=agent, steps=steps, seed=seed
        )

    tried = []
    for agent in agents or (*AGENTS, *(("imitate",) if task.supports(Task.teacher) else ())):
        for seed in seeds:
            folder = run_of(config_of(agent, seed), runs)
            result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            row: dict[str, Any] = {"agent": agent, "seed": seed, "steps": steps}
            row["seconds"] = round(result["seconds"], 1)
            tried.append({**row, "validation": validation(network_of(folder))})
    rule = validation(trainer.untrained(config_of(AGENTS[1], 0)))
    best = max(tried, key=lambda row: row["validation"])
    network_of(run_of(config_of(best["agent"], best["seed"]), runs)).save(file_of(env_id))
    chosen_on = ", ".join(" ".join(filter(None, set_and_family)) for set_and_family in sets)
    record = {
        "environment": env_id, **env_kwargs, "plays": PLAYS.get(env_id, {}), "chosen": best,
        "chosen_on": chosen_on, "rule": rule, "tried": tried,
    }  # fmt: skip
    write_text(file_of(env_id).with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    return record


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("envs", nargs="*", default=list(CHOSEN_ON), metavar="ENV_ID")
    parser.add_argument("--agents", nargs="+", default=())
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--runs", type=Path, default=Path("runs/learners"))
    options = parser.parse_args(None if arguments is None else list(arguments))
    for env_id in options.envs:
        record = ship(env_id, options.agents, options.seeds, options.steps, options.runs)
        sys.stdout.write(json.dumps({key: record[key] for key in ("chosen", "rule")}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
