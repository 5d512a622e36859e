"""Trains MaskablePPO on any form of ``IntraOpSharding-v0``, and plans with what was learned.

``parenvs train --task sharding`` trains on the construct form; ``train`` here on both, with advice,
and from an agent that imitates.
"""

from __future__ import annotations

import time
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO

from parenvs.agents.learning.sharding.policy import ShardingPolicy
from parenvs.agents.learning.train import learners
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.core.answer import Answer
from parenvs.core.game import EVERY
from parenvs.tasks.sharding.game import IntraOpShardingVectorEnv
from parenvs.tasks.sharding.turns import construct
from parenvs.tasks.sharding.turns.board import Board

ENV = "IntraOpSharding-v0"
ENVS = learners.PPO_ENVS[ENV]
"""Environments side by side."""
POOL = 256
"""Different problems of a training."""


def ppo_settings(form: str = "construct", advice: str = "none") -> dict[str, Any]:
    """Keyword arguments of MaskablePPO for a form of the environment and its advice."""
    settings = learners.ppo_settings(ENV, 0)
    if form == "improve":
        return {**settings, "n_steps": 32}
    guide = construct.ROWS.index(construct.GUIDES[advice])
    return {**settings, "policy_kwargs": {"features_extractor_kwargs": {"guide": guide}}}


def train(
    env_kwargs: dict[str, Any], seed: int, steps: int, start: MaskablePPO | None = None,
    envs: int = ENVS, progress: bool = False, **overrides: Any,
) -> MaskablePPO:  # fmt: skip
    """Train an agent.

    Args:
        env_kwargs: arguments of the environment; problems that are drawn come from a pool of
            ``POOL`` unless they say otherwise.
        seed: of everything random but the pool.
        steps: environment steps.
        start: an agent of the same spaces, whose weights are taken at first.
        envs: environments side by side.
        progress: whether to show a progress bar.
        **overrides: settings of MaskablePPO that replace those of ``ppo_settings``.
    """
    fixed = "instance" in env_kwargs or "problem" in env_kwargs
    kwargs = {**({} if fixed else {"pool": POOL}), **env_kwargs}
    env = make_env(ENV, kwargs, 10_000 * seed, envs)
    with one_thread():
        settings = ppo_settings(**{k: env_kwargs[k] for k in ("form", "advice") if k in env_kwargs})
        agent = MaskablePPO(ShardingPolicy, env, seed=seed, **{**settings, **overrides})
        if start is not None:
            agent.policy.load_state_dict(start.policy.state_dict())
        agent.learn(steps, progress_bar=progress)
    return agent


def rated(agent: MaskablePPO, observation: dict[str, np.ndarray]) -> np.ndarray:
    """Return the ratings of all actions, (n, a), of which observations may have any number."""
    policy = cast(ShardingPolicy, agent.policy)
    tensors = {key: torch.tensor(value) for key, value in observation.items()}
    with torch.no_grad():
        return policy.features_extractor(tensors)[:, : tensors["actions"].shape[1]].numpy()


def plan(
    agent: MaskablePPO, board: Board, samples: int = 1, seed: int = 0, **env_kwargs: Any
) -> Answer:
    """Return the best of ``samples`` plans: the one of the highest ratings, and drawn ones.

    Args:
        agent: a trained agent.
        board: the problem; it may need another number of actions than those of the training.
        samples: number of plans.
        seed: of what is drawn.
        **env_kwargs: arguments of the environment but for the problem.
    """
    begin, rng = time.perf_counter(), np.random.default_rng(seed)
    batch = IntraOpShardingVectorEnv(
        samples, AutoresetMode.DISABLED, problem=board.problem, copy=False, **env_kwargs
    )
    observation, _ = batch.reset()
    best, open_ = None, np.ones(samples, dtype=np.bool_)
    with one_thread():
        while open_.any():
            ratings = rated(agent, observation)
            noise = rng.gumbel(size=ratings.shape)
            noise[0] = 0.0
            legal = batch.action_masks()
            actions = np.where(legal, ratings + noise, -np.inf).argmax(axis=1)
            observation, _, over, _, infos = batch.step(actions)
            for row in np.flatnonzero(over & open_).tolist():
                cost = int(infos["cost"][row])
                if best is None or cost < best[0]:
                    best = cost, batch.plan(row)
            open_ &= ~over
            if over.any() and open_.any():  # those that are done play on, and do not count
                observation, _ = batch.reset(options={"reset_mask": over})
    assert best is not None
    return Answer(
        problem=board.problem,
        plan=best[1],
        cost=best[0],
        method="ppo",
        evaluations=samples,
        seconds=time.perf_counter() - begin,
    )


def greedy(board: Board, **env_kwargs: Any) -> Answer:
    """Return the plan of the rule that takes what the observation rates best, with its advice."""
    begin = time.perf_counter()
    env = cast(Any, gym.make(ENV, problem=board.problem, **env_kwargs).unwrapped)
    env.reset()
    over = False
    while not over:
        _, _, over, _, info = env.step(env.game.greedy(EVERY)[0])
    return Answer(
        problem=board.problem,
        plan=env.plan(),
        cost=int(info["cost"]),
        method="greedy",
        evaluations=1,
        seconds=time.perf_counter() - begin,
    )
