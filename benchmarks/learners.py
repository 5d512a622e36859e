"""Agents on held-out problems, all trained for as many steps: those of ours, and sb3-contrib's.

    python benchmarks/learners.py
    python benchmarks/learners.py --envs ElasticPlan-v2 --agents ppo --seeds 0

An agent is trained by ``parenvs train`` with its defaults, kept in ``--runs``, and not trained
again; it plays each problem of a set once by its best actions. ``learned`` is the network that
ships, ``rule`` an untrained agent, which plays the heuristic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import PLACES, Place
from benchmarks.framework import Case, Row, forked, main, measurement, table
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.evaluation.statistics import bootstrap_interval
from parenvs.agents.learning.network import file_of, shipped
from parenvs.agents.learning.options import LEARNED

UNTRAINED = "rule"


def policy_of(env: str, agent: str, seed: int, steps: int, runs: Path) -> tuple[Any, float]:
    """Return an agent as a policy, and the processor seconds of its training."""
    if agent == LEARNED:
        about = json.loads(file_of(env).with_suffix(".json").read_text(encoding="utf-8"))
        return shipped(env), about["chosen"]["seconds"]
    import torch

    from benchmarks.ship import run_of
    from parenvs.agents.learning import trainer
    from parenvs.agents.learning.config import RESULT, TrainConfig

    torch.set_num_threads(1)  # small products are slower on more
    if agent == UNTRAINED:
        return trainer.untrained(TrainConfig(env_id=env, agent="ppo", steps=1)), 0.0
    folder = run_of(TrainConfig(env_id=env, agent=agent, steps=steps, seed=seed), runs)
    seconds = json.loads((folder / RESULT).read_text(encoding="utf-8"))["seconds"]
    return trainer.player(folder), seconds


def by_agent(place: Place, agent: str, seed: int, steps: int, first: int | None, runs: Path) -> Row:
    """Play a set by an agent, which is trained if need be; a problem without a plan counts as 0."""
    policy, training = policy_of(place.env, agent, seed, steps, runs)
    scores = evaluate_set(policy, place.name, place.family or None, first=first).scores[0]
    return {"shares": np.nan_to_num(scores).round(5), "training": training, "steps": steps}


@measurement(
    key="env method seed set family",
    title="What learning adds",
    about={"envs": "environments (default: all)", "first": "problems of each set"},
)
def learners(
    envs: tuple[str, ...] = (),
    agents: tuple[str, ...] = (UNTRAINED, LEARNED, "ppo", "maskable-ppo", "group", "imitate"),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 65_536,
    first: int | None = None,
    runs: Path = Path("runs/learners"),
) -> Iterator[Case]:
    for seed in seeds:  # all agents once, before the next seed
        for place in PLACES:
            for agent in agents if not envs or place.env in envs else ():
                if agent in (UNTRAINED, LEARNED) and seed != seeds[0]:
                    continue
                if agent == LEARNED and not file_of(place.env).exists():
                    continue
                key = {"env": place.env, "method": agent, "seed": seed, "set": place.name}
                work = partial(by_agent, place, agent, seed, steps, first, runs)
                yield {**key, "family": place.family}, partial(forked, work)


@learners.page
def page(rows: list[Row]) -> list[str]:
    lines = []
    for env, name in dict.fromkeys((row["env"], row["set"]) for row in rows):
        mine = [row for row in rows if (row["env"], row["set"]) == (env, name)]
        rule = shares_of(mine, UNTRAINED)
        for method in dict.fromkeys(row["method"] for row in mine):
            shares, some = shares_of(mine, method), [x for x in mine if x["method"] == method]
            lead = (shares - rule.mean(axis=0)).mean(axis=0)
            low, high = bootstrap_interval(np.mean, lead[None])
            means = shares.mean(axis=1)
            spread = f"{len(means)}: {min(means):.4f} to {max(means):.4f}"
            seconds = np.mean([row["training"] for row in some])
            lines.append([
                env, name, method, f"{means.mean():.4f}", spread,
                "" if method == UNTRAINED else f"{lead.mean():+.4f} ({low:+.4f} to {high:+.4f})",
                f"{seconds:.0f}",
            ])  # fmt: skip
    steps = max(row["steps"] for row in rows)
    heads = ["environment", "set", "agent", "share", "seeds", "lead over the rule", "seconds"]
    return [
        "Mean share of the best known cost by the best actions of one play; a problem without a "
        f"plan counts as 0. Agents have their defaults and {steps:,} steps, but those that ship. "
        "The lead has its 95 % interval, paired by problem; seconds are the processor's, of one "
        "training.",
        table(heads, lines, 3),
    ]


def shares_of(rows: list[Row], method: str) -> np.ndarray:
    """Return the shares of a method, (seeds, problems)."""
    mine = [row for row in rows if row["method"] == method]
    seeds = dict.fromkeys(row["seed"] for row in mine)
    return np.array(
        [np.concatenate([x["shares"] for x in mine if x["seed"] == seed]) for seed in seeds]
    )


if __name__ == "__main__":
    main(learners)
