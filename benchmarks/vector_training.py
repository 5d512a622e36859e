"""Training on native batches and on single environments: steps per second, time to optima."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.framework import Column, columns, main, measurement, progress
from parenvs.agents.learning.train import run as trainer
from parenvs.agents.learning.train.learners import learner_of
from parenvs.agents.learning.train.run import Config, train
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.bench.problems import solve_problems
from parenvs.bench.training import AGENTS, CASES, TimedTurn, training_turn, turn_rate

KINDS = {"single": False, "batch": True}
"""The argument ``native`` of ``make_env`` for each kind."""


def playing(env: VecEnv, steps: int) -> TimedTurn:
    """A turn of random legal steps in the environments alone, masks included."""
    rng = np.random.default_rng(0)
    env.reset()

    def turn() -> int:
        for _ in range(-(-steps // env.num_envs)):
            masks = get_action_masks(env)
            env.step(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1))
        return -(-steps // env.num_envs) * env.num_envs

    return turn


def steps_per_second(turns: dict[str, TimedTurn], repeats: int) -> dict[str, float]:
    """Median steps per second of each kind, and the median ratio of neighbouring turns.

    The kinds take turns, after one each that does not count.
    """
    speeds: dict[str, list[float]] = {kind: [] for kind in turns}
    for repeat in range(repeats + 1):
        for kind, turn in turns.items():
            found = turn_rate(turn)
            if repeat:
                speeds[kind].append(found)
    pairs = zip(speeds["single"], speeds["batch"], strict=True)
    ratio = median(after / before for before, after in pairs)
    return {**{kind: median(runs) for kind, runs in speeds.items()}, "ratio": ratio}


def speed_rows(steps: int, repeats: int) -> list[dict[str, Any]]:
    """Time every case: environments alone, and training."""
    rows = []
    for agent in AGENTS:
        for env_id, kwargs in CASES:
            progress(f"{agent} on {env_id}")
            count = learner_of(agent).envs[env_id]
            make = partial(make_env, env_id, kwargs, 0, count)
            for what in ("environments", "training"):
                turns = {}
                for kind, native in KINDS.items():
                    env = make(native=native)
                    if what == "training":
                        turns[kind] = training_turn(agent, env_id, env, steps)
                    else:
                        turns[kind] = playing(env, steps)
                found = steps_per_second(turns, repeats)
                row = {"env_id": env_id, "agent": agent, "envs": count, "what": what, **found}
                rows.append(row)
    return rows


def optimum_rows(seeds: int) -> list[dict[str, Any]]:
    """Wall seconds of MaskablePPO until the optimum of T5-3B on C is found, for each seed."""
    (problem,), _ = solve_problems(["PipelineCut-v0"], ["t5-3b"], ["C"])
    rows: list[dict[str, Any]] = []
    config = Config("PipelineCut-v0", problem.env_kwargs, "ppo", 0)
    train(replace(config, steps=1))  # reads the instance, and torch warms up
    for seed in range(seeds):
        progress(f"to the optimum, seed {seed}")
        row: dict[str, Any] = {"seed": seed}
        reached = {}
        for kind, native in KINDS.items():
            made = partial(make_env, native=native)
            with mock.patch.object(trainer, "make_env", made):
                begin = time.perf_counter()
                result, _ = train(
                    replace(config, seed=seed), target=problem.target, stop_at_target=True
                )
                row[kind] = time.perf_counter() - begin
            reached[kind] = (result.target_steps, result.value, result.actions)
        if reached["single"] != reached["batch"]:
            raise AssertionError(f"seed {seed}: {reached}")
        rows.append({**row, "target_steps": result.target_steps})
    return rows


@measurement(
    about={
        "steps": "environment steps of a turn",
        "repeats": "turns of each",
        "seeds": "runs to the optimum",
    }
)
def vector_training(steps: int = 6144, repeats: int = 5, seeds: int = 3) -> dict[str, Any]:
    with one_thread():
        speeds = speed_rows(steps, repeats)
    return {"speeds": speeds, "runs": optimum_rows(seeds)}


SPEEDS: list[Column] = [
    ("environment", "{env_id}"),
    ("agent", "{agent}"),
    ("envs", "{envs}"),
    ("steps/s of", "{what}"),
    ("single", "{single:,.0f}"),
    ("batch", "{batch:,.0f}"),
    ("ratio", "{ratio:.2f}"),
]
RUNS: list[Column] = [
    ("seed", "{seed}"),
    ("steps", lambda row: "not found" if row["target_steps"] is None else
     f"{row['target_steps']:,}"),
    ("single, s", "{single:.2f}"),
    ("batch, s", "{batch:.2f}"),
    ("ratio", lambda row: f"{row['single'] / row['batch']:.2f}"),
]  # fmt: skip


@vector_training.page
def page(data: dict[str, Any], steps: int, repeats: int) -> list[str]:
    return [
        "Environment steps a second as agents take them, with masks: of the environments alone "
        "(random legal actions) and in training, updates included. *Single*: environments one by "
        "one, each in its `Monitor`, in SB3's `DummyVecEnv`. *Batch*: all at once in "
        f"`NativeVecEnv`, the default. Median of {repeats} turns of {steps} steps "
        "or the whole updates that hold them, and of the ratios of neighbouring turns; processor "
        "time, one thread. Both give the same weights, bit for bit.",
        columns(data["speeds"], SPEEDS, left=2),
        "Wall seconds of `parenvs.agents.learning.train.run`, MaskablePPO on T5-3B, configuration "
        "C, to a cut within 0.1 % of the optimum. Both kinds take the same steps to the same plan, "
        "which the script checks.",
        columns(data["runs"], RUNS),
    ]


if __name__ == "__main__":
    main(vector_training)
