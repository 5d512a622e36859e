"""Trains MaskablePPO on chains of ``elastic-train``, and plays what it has learnt.

    python -m parenvs.agents.elastic.train --seed 0 --steps 1000000 --out elastic-ppo.zip

The agent sees courses of the training set only. The network sees each candidate beside the numbers
of the job and a summary of all candidates, and scores them one by one, so that the policy does not
depend on their order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from parenvs.agents.vec_env import NativeVecEnv, one_thread
from parenvs.envs.elastic.batch import ElasticPlanVectorEnv
from parenvs.envs.elastic.play import NUMBERS
from parenvs.envs.elastic.tables import CHANGE_COLUMNS, PLAN_COLUMNS
from parenvs.files import replacing
from parenvs.shipped import ELASTIC_SETS

ENVS = 128
"""Environments side by side."""
STEPS = 1_000_000
"""Environment steps of a training by default."""
_OWN = len(PLAN_COLUMNS) + len(CHANGE_COLUMNS) + 1
_WIDTH = 32
_REWARD = 240.0  # an interval of the ideal pays about 1


class Scores(BaseFeaturesExtractor):
    """Features of candidates (64 x 16), each beside the job's numbers, and a summary of all.

    Args:
        space: of the observations.
        own: features of a candidate.
        common: features of the job.
    """

    def __init__(self, space: spaces.Dict, own: int = 16, common: int = 32) -> None:
        count = space["plans"].shape[0]  # type: ignore[index]
        super().__init__(space, count * own + own + common)
        self.count, self.own, self.common = count, own, common
        self.each = nn.Sequential(
            nn.Linear(_OWN + len(NUMBERS), _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, own), nn.ReLU()
        )
        self.job = nn.Sequential(nn.Linear(len(NUMBERS), common), nn.Tanh())

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the features, (b, 64 * own + own + common)."""
        plans, change, numbers = (observation[key] for key in ("plans", "change", "numbers"))
        # Rates that differ little decide: the share of the fastest that fits is given, too.
        fits = plans[..., 3] + plans[..., 4] / 32.0 <= numbers[:, None, 0] + 1e-6
        rate = plans[..., 5:6]
        most = (rate * fits[..., None]).amax(dim=1, keepdim=True).clamp(min=1e-6)
        wide = numbers[:, None].expand(-1, self.count, -1)
        each = self.each(torch.cat([plans, change, 10.0 * (rate / most - 0.9), wide], dim=-1))
        summary = (each * fits[..., None]).sum(dim=1) / fits.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.cat([each.flatten(1), summary, self.job(numbers)], dim=1)


class Heads(nn.Module):
    """Scores of candidates from their own features and the summary; a value from the summary."""

    def __init__(self, count: int, own: int, common: int) -> None:
        super().__init__()
        self.count, self.own = count, own
        self.latent_dim_pi, self.latent_dim_vf = count, _WIDTH
        self.score = nn.Sequential(
            nn.Linear(2 * own + common, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
        )
        self.worth = nn.Sequential(nn.Linear(own + common, _WIDTH), nn.Tanh())

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores (b, 64), and what the value is read from."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        each = features[:, : self.count * self.own].unflatten(1, (self.count, self.own))
        rest = features[:, None, self.count * self.own :].expand(-1, self.count, -1)
        return self.score(torch.cat([each, rest], dim=-1))[..., 0]

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the value is read from."""
        return self.worth(features[:, self.count * self.own :])


class ElasticPolicy(MaskableActorCriticPolicy):
    """An actor whose logits are the scores of candidates, with a critic beside it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the networks; arguments as of the base."""
        super().__init__(*args, **{**kwargs, "features_extractor_class": Scores})

    def _build_mlp_extractor(self) -> None:
        extractor: Any = self.features_extractor
        self.mlp_extractor = Heads(extractor.count, extractor.own, extractor.common)  # type: ignore[assignment]

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # the scores are the logits
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )


class PaidVecEnv(NativeVecEnv):
    """Pays about 1 for an interval of the ideal, so that the critic learns from the first on."""

    def step_wait(self) -> Any:
        """See ``NativeVecEnv.step_wait``."""
        observation, rewards, dones, infos = super().step_wait()
        return observation, rewards * _REWARD, dones, infos


def train(
    seed: int = 0,
    steps: int = STEPS,
    envs: int = ENVS,
    callback: BaseCallback | None = None,
    **problem: Any,
) -> MaskablePPO:
    """Train an agent on drawn courses.

    Args:
        seed: of everything random.
        steps: environment steps.
        envs: environments side by side.
        callback: of SB3.
        **problem: arguments of ``ElasticPlanEnv`` (default: ``elastic-train``).
    """
    batch = ElasticPlanVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP, **problem)
    env = PaidVecEnv(batch)
    env.seed(seed)
    agent = MaskablePPO(
        ElasticPolicy, env, learning_rate=LinearSchedule(5e-4, 5e-5, 1.0), n_steps=32,
        batch_size=8 * envs, n_epochs=4, gamma=0.99, gae_lambda=0.95, ent_coef=0.003, seed=seed,
        device="cpu",
    )  # fmt: skip
    with one_thread():
        agent.learn(steps, callback=callback)
    return agent


def returns(agent: MaskablePPO, seeds: Iterable[int], **problem: Any) -> dict[str, np.ndarray]:
    """Return what the agent's likeliest plans earn, an episode for each seed.

    Args:
        agent: the agent.
        seeds: of the environments; the courses are those of ``Elastic.drawn``.
        **problem: arguments of ``ElasticPlanEnv``.

    Returns:
        ``value``, the returns, and ``share``, those of each course's ideal, (n,) each.
    """
    numbers = list(seeds)
    batch: Any = gym.make_vec(
        "ElasticPlan-v0", num_envs=len(numbers), autoreset_mode=AutoresetMode.DISABLED,
        vectorization_mode="vector_entry_point", **problem,
    )  # fmt: skip
    observation, info = batch.reset(seed=numbers)
    total, over = np.zeros(len(numbers)), False
    with one_thread():
        while not over:
            masks = batch.action_masks()
            plan, _ = agent.predict(observation, action_masks=masks, deterministic=True)
            observation, rewards, ended, _, info = batch.step(plan)
            total += rewards
            over = bool(ended.all())
    return {"value": total, "share": info["share"]}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--instance", default=ELASTIC_SETS[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--out", type=Path, default=None, help="the agent, a .zip")
    options = parser.parse_args(None if arguments is None else list(arguments))
    problem = {"instance": options.instance, "model": options.model}
    agent = train(options.seed, options.steps, **problem)
    found = returns(agent, range(64), instance=ELASTIC_SETS[1], model=options.model)
    sys.stdout.write(f"{ELASTIC_SETS[1]}: mean return {found['value'].mean():.4f}\n")
    if options.out is not None:
        with replacing(options.out) as stream:
            agent.save(cast(BufferedIOBase, stream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
