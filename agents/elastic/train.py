"""Trains agents on chains of ``elastic-train``, and plays what they have learnt.

    python -m parenvs.agents.elastic.train --agent ppo --seed 0 --steps 200000 --out elastic-ppo.npz

The agents see courses of the training set only. MaskablePPO, Rainbow and RecurrentPPO of sb3-contrib
share the network that rates candidates (``parenvs.agents.elastic.network``) and what they are paid
(``PaidVecEnv``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule

from parenvs.agents.elastic.policies import (
    MASK,
    REMEMBERED,
    ElasticLstmPolicy,
    ElasticPolicy,
    ElasticQPolicy,
    PaidVecEnv,
)
from parenvs.agents.rainbow import Rainbow
from parenvs.agents.vec_env import one_thread
from parenvs.envs.elastic.batch import ElasticPlanVectorEnv
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.files import replacing
from parenvs.shipped import ELASTIC_SETS

Agent = MaskablePPO | Rainbow | RecurrentPPO
AGENTS = {"ppo": 256, "recurrent-ppo": 256, "rainbow": 64}
"""Agents, and the environments that each has side by side."""
STEPS = 200_000
"""Environment steps of a training by default."""
GAMMA = 0.95
"""Discount of an interval: payments already tell what hindsight loses later."""
RATES = LinearSchedule(3e-3, 3e-4, 1.0)
"""Learning rates of all agents."""


def train(
    agent: str = "ppo",
    seed: int = 0,
    steps: int = STEPS,
    envs: int | None = None,
    callback: BaseCallback | None = None,
    **problem: Any,
) -> Agent:
    """Train an agent on drawn courses.

    Args:
        agent: of ``AGENTS``.
        seed: of everything random.
        steps: environment steps.
        envs: environments side by side (default: of ``AGENTS``).
        callback: of SB3.
        **problem: arguments of ``ElasticPlanEnv`` (default: ``elastic-train``).

    Raises:
        ParenvsError: there is no such agent.
    """
    if agent not in AGENTS:
        raise ParenvsError(
            f"unknown agent {agent!r}{did_you_mean(agent, AGENTS)}; known: {', '.join(AGENTS)}"
        )
    count = envs or AGENTS[agent]
    batch = ElasticPlanVectorEnv(count, autoreset_mode=AutoresetMode.SAME_STEP, **problem)
    env = PaidVecEnv(batch, shows_mask=agent == "recurrent-ppo")
    env.seed(10_000 * seed)  # environments take the seeds behind it
    common: dict[str, Any] = {"gamma": GAMMA, "seed": seed, "device": "cpu"}
    with one_thread():
        learner = _rainbow(env, common) if agent == "rainbow" else _ppo(agent, env, common)
        learner.learn(steps, callback=callback)
    return learner


def _ppo(agent: str, env: PaidVecEnv, common: dict[str, Any]) -> MaskablePPO | RecurrentPPO:
    """Return PPO, or PPO with a memory."""
    options: dict[str, Any] = {
        **common, "learning_rate": RATES, "n_steps": 32, "batch_size": 512, "n_epochs": 3,
        "gae_lambda": 0.8, "ent_coef": 0.001,
    }  # fmt: skip
    if agent == "ppo":
        return MaskablePPO(ElasticPolicy, env, **options)
    return RecurrentPPO(ElasticLstmPolicy, env, **options)


def _rainbow(env: PaidVecEnv, common: dict[str, Any]) -> Rainbow:
    """Return Rainbow: double, dueling, prioritised, sums of five steps."""
    return Rainbow(
        ElasticQPolicy, env, **common, learning_rate=RATES, n_steps=5,
        buffer_size=50_000, batch_size=256, learning_starts=3_000, target_update_interval=2_000,
        exploration_initial_eps=0.2, exploration_final_eps=0.01, exploration_fraction=0.3,
    )  # fmt: skip


def returns(agent: Agent, seeds: Iterable[int], **problem: Any) -> dict[str, np.ndarray]:
    """Return what the agent's likeliest plans earn, an episode for each seed.

    Args:
        agent: the agent.
        seeds: of the environments; the courses are those of ``Elastic.drawn``.
        **problem: arguments of ``ElasticPlanEnv``.

    Returns:
        ``value``, the returns, and ``share``, those of each course's ideal, (n,) each.
    """
    return all_returns(agent, [(list(seeds), problem)])[0]


def all_returns(
    agent: Agent, jobs: Sequence[tuple[Sequence[int], dict[str, Any]]]
) -> list[dict[str, np.ndarray]]:
    """Return ``returns`` of several problems, played in step, which takes far less time.

    Args:
        agent: the agent.
        jobs: seeds, and arguments of ``ElasticPlanEnv``, of each.
    """
    games = [_Game(seeds, problem) for seeds, problem in jobs]
    with one_thread():
        while on := [game for game in games if not game.is_over]:
            parts = [game.seen for game in on]
            seen = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            masks = seen.pop(MASK)
            if isinstance(agent, RecurrentPPO):
                seen[MASK] = masks.astype(np.float32)
                plans, state = agent.predict(seen, _states(on), deterministic=True)
            else:
                plans, state = agent.predict(seen, action_masks=masks, deterministic=True)
            first = 0
            for game in on:
                own = slice(first, first + len(game.total))
                game.step(plans[own], None if state is None else [x[:, own] for x in state])
                first = own.stop
    return [{"value": game.total, "share": game.share} for game in games]


class _Game:
    """Episodes of one problem that are played.

    Attributes:
        seen: the observation, and the mask.
        total: (n,) returns so far.
        share: (n,) shares of the ideal, once it is over.
        state: what a recurrent agent remembers, (1, n, units) twice.
    """

    def __init__(self, seeds: Sequence[int], problem: dict[str, Any]) -> None:
        self.batch: Any = gym.make_vec(
            "ElasticPlan-v0", num_envs=len(seeds), autoreset_mode=AutoresetMode.DISABLED,
            vectorization_mode="vector_entry_point", **problem,
        )  # fmt: skip
        observation, _ = self.batch.reset(seed=list(seeds))
        self.seen = {**observation, MASK: self.batch.action_masks()}
        self.total, self.share = np.zeros((2, len(seeds)))
        self.state = [np.zeros((1, len(seeds), REMEMBERED), dtype=np.float32)] * 2
        self.is_over = False

    def step(self, plans: np.ndarray, state: list[np.ndarray] | None) -> None:
        """Play an interval."""
        observation, rewards, ended, _, info = self.batch.step(plans)
        self.seen = {**observation, MASK: self.batch.action_masks()}
        self.total += rewards
        self.state = state or self.state
        self.is_over = bool(ended.all())
        if self.is_over:
            self.share = info["share"]


def _states(games: list[_Game]) -> tuple[np.ndarray, ...]:
    """Return what is remembered of all games."""
    return tuple(np.concatenate([game.state[i] for game in games], axis=1) for i in range(2))


def weights(agent: MaskablePPO) -> dict[str, np.ndarray]:
    """Return the weights of PPO's ratings, for ``parenvs.agents.elastic.network.rate``."""
    heads: Any = agent.policy.mlp_extractor
    return cast(dict[str, np.ndarray], heads.actor.arrays())


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agent", choices=list(AGENTS), default="ppo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--instance", default=ELASTIC_SETS[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--out", type=Path, default=None, help="the agent, a .zip")
    options = parser.parse_args(None if arguments is None else list(arguments))
    problem = {"instance": options.instance, "model": options.model}
    agent = train(options.agent, options.seed, options.steps, **problem)
    found = returns(agent, range(64), instance=ELASTIC_SETS[1], model=options.model)
    sys.stdout.write(f"{ELASTIC_SETS[1]}: mean return {found['value'].mean():.4f}\n")
    if options.out is not None:
        with replacing(options.out) as stream:
            agent.save(cast(BufferedIOBase, stream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
