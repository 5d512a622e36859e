r"""Trains MaskablePPO on drawn problems of ``MicroBatchOrder-v0``, and samples orders from it.

    python -m parenvs.agents.learning.order.train --tier p8-m16 --seed 0 \
        --steps 300000 --out order.zip

The agent sees problems of the generator only. Its reward at the end of an episode is by how much
the step is shorter than that of the pyramid (``parenvs.agents.order.heuristics``), so that
problems of different bounds count alike.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from parenvs.agents.learning.order.policy import COMMON, DESCRIBED, OWN, OrderPolicy, describe
from parenvs.agents.learning.train.learners import ppo_settings
from parenvs.agents.learning.vec_env import NativeVecEnv, one_thread
from parenvs.agents.order.heuristics import by_rule, local_search
from parenvs.core.answer import Answer
from parenvs.datasets.order.drawing import tier_of
from parenvs.tasks.order.game import MicroBatchOrderVectorEnv
from parenvs.tasks.order.problem import Order
from parenvs.tasks.order.tables import MICRO_BATCHES

ENVS = 128
"""Environments side by side."""
POOL = 1024
"""Different problems of a training."""
SCALE = 20.0
"""Factor of the reward."""


class RelativeVecEnv(NativeVecEnv):
    """Pays ``20 (L_pyramid / L - 1)`` at the end of an episode in place of 1/L.

    Observations are described (``parenvs.agents.learning.order.policy.describe``).

    Args:
        batch: the environments, all of one tier.
    """

    def __init__(self, batch: MicroBatchOrderVectorEnv) -> None:
        super().__init__(batch)
        size = batch.episode_steps
        shapes = {"own": (size, OWN), "common": (COMMON,), "left": (size,)}
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-np.inf, np.inf, shape, np.float32) for key, shape in shapes.items()}
        )
        self._values: dict[str, float] = {}
        self._base = np.ones(batch.num_envs)

    def reset(self) -> Any:
        """See ``NativeVecEnv.reset``."""
        observation = described(super().reset())
        self._look(np.arange(self.num_envs))
        return observation

    def step_wait(self) -> VecEnvStepReturn:
        """See ``NativeVecEnv.step_wait``."""
        observation, rewards, dones, infos = super().step_wait()
        ended = np.flatnonzero(dones)
        if ended.size:
            rewards[ended] = SCALE * (rewards[ended] / self._base[ended] - 1)
            self._look(ended)
        for row in ended.tolist():  # agents ask for it where an episode is cut off, as none is
            del infos[row]["terminal_observation"]
        return described(observation), rewards, dones, infos

    def _look(self, rows: np.ndarray) -> None:
        """Look up the pyramid's value for the problems of environments."""
        for row in rows.tolist():
            problem = self.batch.game.problem(row)
            if problem.instance not in self._values:
                answer = by_rule(problem, "pyramid")
                self._values[problem.instance] = problem.bound_seconds / answer.cost
            self._base[row] = self._values[problem.instance]


def described(observation: Any) -> dict[str, np.ndarray]:
    """Return a batch of observations as ``DESCRIBED`` names the parts."""
    with torch.no_grad():
        parts = describe({key: tensor(value) for key, value in observation.items()})
    return {key: part.numpy() for key, part in zip(DESCRIBED, parts, strict=True)}


def tensor(values: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor, which may share its memory and is never written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)


def train(
    tier: str, seed: int, steps: int, pool: int = POOL, progress: bool = False
) -> MaskablePPO:
    """Train an agent.

    Args:
        tier: of the problems.
        seed: of everything random but the pool.
        steps: environment steps.
        pool: different problems, see ``MicroBatchOrderEnv``.
        progress: whether to show a progress bar.
    """
    batch = MicroBatchOrderVectorEnv(
        ENVS, AutoresetMode.SAME_STEP, tier=tier, pool=pool, copy=False
    )
    env = RelativeVecEnv(batch)
    env.seed(10_000 * seed)
    with one_thread():
        settings = ppo_settings("MicroBatchOrder-v0", tier_of(tier).micro_batches)
        agent = MaskablePPO(OrderPolicy, env, seed=seed, **settings)
        agent.learn(steps, progress_bar=progress)
    return agent


def sample(agent: MaskablePPO, problem: Order, judged: int, rng: np.random.Generator) -> Answer:
    """Return the best of ``judged`` orders: the one of the highest ratings, and drawn ones.

    Args:
        agent: a trained agent.
        problem: the problem.
        judged: number of orders.
        rng: draws the orders.
    """
    begin = time.perf_counter()
    batch = MicroBatchOrderVectorEnv(judged, AutoresetMode.DISABLED, problem=problem, copy=False)
    observation, _ = batch.reset()
    orders = np.empty((judged, problem.micro_batches), dtype=np.int64)
    policy = cast(OrderPolicy, agent.policy)
    with one_thread(), torch.no_grad():
        for position in range(problem.micro_batches):
            tensors = {key: tensor(value) for key, value in observation.items()}
            ratings = policy.features_extractor(tensors)[:, :MICRO_BATCHES].numpy()
            noise = rng.gumbel(size=ratings.shape)
            noise[0] = 0.0
            legal = batch.action_masks()
            orders[:, position] = np.where(legal, ratings + noise, -np.inf).argmax(axis=1)
            observation, *_ = batch.step(orders[:, position])
    found = problem.length(orders)
    best = int(np.argmin(found))
    return Answer(
        problem=problem,
        plan=problem.plan(orders[best]),
        cost=float(found[best]),
        method="ppo",
        bound=problem.bound_seconds,
        evaluations=judged,
        seconds=time.perf_counter() - begin,
    )


def sample_and_search(
    agent: MaskablePPO, problem: Order, judged: int, rng: np.random.Generator
) -> Answer:
    """Return the best of ``judged`` orders: a tenth sampled, the others by search from the best.

    The arguments are those of ``sample``; the search is that of the planner ``swap``.
    """
    begin = time.perf_counter()
    first = sample(agent, problem, max(judged // 10, 1), rng)
    left = judged - first.evaluations + 1  # the search counts its start, which is judged already
    answer = local_search(problem, left, rng, first.plan.order)
    seconds = time.perf_counter() - begin
    return replace(answer, method="ppo-swap", evaluations=judged, seconds=seconds)


def main(arguments: Iterable[str] | None = None) -> int:
    """Train an agent, write it, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tier", default="p8-m16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--out", type=Path, required=True, help="file of the agent (.zip)")
    options = parser.parse_args(None if arguments is None else list(arguments))
    agent = train(options.tier, options.seed, options.steps, progress=sys.stderr.isatty())
    agent.save(options.out)
    sys.stdout.write(f"{options.out}: trained for {options.steps:,} steps\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
