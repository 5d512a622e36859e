"""The training loop on one device beside MaskablePPO on the native batch: samples a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.logger import configure

from benchmarks.framework import Column, Row, columns, main, measurement
from parenvs.agents.learning.fused.env import POINT, FusedEnv
from parenvs.agents.learning.fused.policy import draw
from parenvs.agents.learning.fused.pool import ProblemPool, draw_part
from parenvs.agents.learning.fused.ppo import PPO, PPOSettings
from parenvs.agents.learning.fused.run import device_of
from parenvs.agents.learning.train.learners import POLICY
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.tasks.pipeline.points import POINTS

ENV = "PipelinePlan-v0"
REPEAT = 50
"""Episodes of each problem in the native batch, as in the paper; a pool's serve as many."""
LEAST, MOST = 4096, 1024
"""Fewest samples of a turn; most environments of MaskablePPO, because of its memory."""
Round = Callable[[], dict[str, float]]
"""Plays and learns, and returns samples per second of each part of the loop, by its name."""


class Clock:
    """Reads the seconds of one device: processor time, or wall time once the GPU is done."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self) -> float:
        """The seconds now."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()


def on_device(pool: ProblemPool, settings: PPOSettings, clock: Clock) -> Round:
    """A round of the loop on one device: environments alone, with the policy, with updates."""
    ppo = PPO(settings, FusedEnv(pool, settings.envs, settings.seed))
    alone = FusedEnv(pool, settings.envs)
    generator = torch.Generator(pool.device).manual_seed(0)
    rounds = rollouts(settings)

    def turn() -> dict[str, float]:
        begin = clock()
        for _ in range(2 * settings.choices * rounds):
            point = alone.turn == POINT
            mask = alone.legal_points() if point else alone.legal_units()
            alone.observation()
            action = draw(mask.float().log(), generator)
            alone.step(action if point else action + POINTS)
        found = {"environments": clock() - begin, "rollout": 0.0, "loop": 0.0}
        for _ in range(rounds):
            begin = clock()
            rollout = ppo.play()
            found["rollout"] += clock() - begin
            ppo.learn(rollout)
            found["loop"] += clock() - begin
        return {key: settings.samples * rounds / spent for key, spent in found.items()}

    return turn


def stable_baselines(settings: PPOSettings, clock: Clock) -> Round:
    """A round of MaskablePPO of sb3-contrib on ``NativeVecEnv``, with as many updates."""
    kwargs = {"repeat": REPEAT, "family": settings.family}
    env, alone = (make_env(ENV, kwargs, seed, settings.envs) for seed in (0, 10**6))
    steps, rounds = 2 * settings.choices, rollouts(settings)
    model = MaskablePPO(
        POLICY, env, n_steps=steps, batch_size=settings.samples // settings.choices,
        n_epochs=settings.epochs, learning_rate=settings.rate, gamma=1.0,
        gae_lambda=settings.trace, clip_range=settings.clip, ent_coef=settings.entropy,
        policy_kwargs={"net_arch": [settings.hidden, settings.hidden]}, seed=settings.seed,
        device=clock.device,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    collect, rng, spent = model.collect_rollouts, np.random.default_rng(0), [0.0]
    alone.reset()

    def timed(*arguments: Any, **options: Any) -> Any:
        begin = clock()
        result = collect(*arguments, **options)
        spent[0] += clock() - begin
        return result

    model.collect_rollouts = timed

    def turn() -> dict[str, float]:
        spent[0], begin = 0.0, clock()
        for _ in range(steps * rounds):
            masks = get_action_masks(alone)
            alone.step(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1))
        found = {"environments": clock() - begin}
        begin = clock()
        model.learn(settings.samples * rounds, reset_num_timesteps=False)
        found |= {"loop": clock() - begin, "rollout": spent[0]}
        return {key: settings.samples * rounds / seconds for key, seconds in found.items()}

    return turn


def rollouts(settings: PPOSettings) -> int:
    """Number of rollouts of a round."""
    return -(-LEAST // settings.samples)


def measure(
    settings: PPOSettings, repeats: int, pool: ProblemPool, clock: Clock
) -> dict[str, dict[str, float]]:
    """Median figures of each agent; they take turns, after a first round that does not count."""
    turns = {"fused": on_device(pool, settings, clock)}
    if settings.envs <= MOST:
        turns["MaskablePPO"] = stable_baselines(settings, clock)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    for repeat in range(repeats + 1):
        for name, turn in turns.items():
            figures = turn()
            if repeat:
                found[name].append(figures)
    return {
        name: {key: median(x[key] for x in runs) for key in runs[0]} for name, runs in found.items()
    }


@measurement(about={"device": "cpu or cuda", "choices": "pairs of choices in a rollout"})
def fused(
    repeats: int = 3,
    device: str = "cpu",
    envs: tuple[int, ...] = (64, 256, 1024, 4096),
    choices: int = 4,
) -> Iterator[Row]:
    place = device_of(device)
    settings = PPOSettings(choices=choices, iterations=10**6)
    pool = ProblemPool(draw_part(0, 0, settings.problems), place)
    with one_thread():
        for count in envs:
            some = replace(settings, envs=count)
            for name, figures in measure(some, repeats, pool, Clock(place)).items():
                yield {"envs": count, "agent": name, **figures}


@fused.page
def page(rows: list[Row], repeats: int, device: str, choices: int) -> dict[str, list[str]]:
    kind = device_of(device).type
    name = torch.cuda.get_device_name(device) if kind == "cuda" else "one thread"
    parts = ("environments", "rollout", "loop")
    words = (
        f"Samples (environment steps) of {ENV} a second, on {kind} ({name}), problems "
        "generated. *Environments*: random legal choices, with observations and masks. *Rollout*: "
        "the policy chooses. *Loop*: with the updates, "
        f"{PPOSettings().epochs} passes over rollouts of {2 * choices} steps, in as many "
        "batches. *Fused*: `parenvs.agents.learning.fused`, all of it on the device, and the "
        "network that rates each choice by its features; making the next problems is other "
        f"processes' work. *MaskablePPO*: sb3-contrib on `NativeVecEnv` with {REPEAT} episodes of "
        "each problem, which it makes itself, and SB3's network of the same width on the raw "
        "observation: a much smaller computation for each sample, and another policy. Median of "
        f"{repeats} turns; {'processor' if kind == 'cpu' else 'wall'} time."
    )
    told: list[Column] = [("envs", "{envs}"), ("agent", "{agent}")]
    told += [(part, f"{{{part}:,.0f}}") for part in parts]
    return {"fused" if kind == "cpu" else "fused_cuda": [words, columns(rows, told, left=2)]}


if __name__ == "__main__":
    main(fused)
