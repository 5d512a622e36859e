"""PPO in CleanRL's style, one file on a vector environment; its loop is its ``ppo.py``'s."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measure import main
from torch import nn
from torch.distributions import Categorical

ENVS, LENGTH, EPOCHS, PARTS, GAMMA, TRACE, CLIP = 64, 16, 4, 4, 1.0, 0.95, 0.2


# glue
def vector(space: gym.spaces.Dict, seen: dict[str, np.ndarray]) -> torch.Tensor:
    """Return batched observations as vectors."""
    keys = [key for key in space if key != "action_mask"]
    return torch.cat([torch.as_tensor(seen[k]).float().reshape(ENVS, -1) for k in keys], dim=1)


def masked(logits: torch.Tensor, mask: torch.Tensor) -> Categorical:
    """Return the distribution over legal actions."""
    return Categorical(logits=logits.masked_fill(~mask, -1e8))


# end


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train."""
    torch.manual_seed(0)
    envs = gym.make_vec(
        env_id, num_envs=ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP, **kwargs
    )
    observation, infos = envs.reset(seed=0)
    # glue
    space = envs.single_observation_space
    seen, mask = vector(space, observation), torch.as_tensor(infos["action_mask"]).bool()
    # end
    actor, critic = layers(seen.shape[1], mask.shape[1]), layers(seen.shape[1], 1)
    weights = [*actor.parameters(), *critic.parameters()]
    optimiser, done_steps = torch.optim.Adam(weights, lr=2.5e-4, eps=1e-5), 0
    while done_steps < steps:
        kept: list[tuple[torch.Tensor, ...]] = []
        for _ in range(LENGTH):
            with torch.no_grad():
                chosen = masked(actor(seen), mask)
                action, value = chosen.sample(), critic(seen)[:, 0]
            observation, reward, ended, _, infos = envs.step(action.numpy())
            rewards, over = torch.as_tensor(reward).float(), torch.as_tensor(ended).float()
            kept.append((seen, mask, action, chosen.log_prob(action), value, rewards, over))
            # glue
            seen, mask = vector(space, observation), torch.as_tensor(infos["action_mask"]).bool()
            # end
        done_steps += ENVS * LENGTH
        seen_of, mask_of, actions, before, values, rewards, over = map(
            torch.stack, zip(*kept, strict=True)
        )
        advantage, trace = torch.zeros_like(rewards), torch.zeros(ENVS)
        with torch.no_grad():
            later = critic(seen)[:, 0]
        for step in range(LENGTH - 1, -1, -1):
            alive = 1 - over[step]
            trace = rewards[step] + GAMMA * later * alive - values[step] + (
                GAMMA * TRACE * alive * trace
            )  # fmt: skip
            advantage[step], later = trace, values[step]
        flat = [x.flatten(0, 1) for x in (seen_of, mask_of, actions, before, advantage)]
        target = (advantage + values).flatten()
        for _ in range(EPOCHS):
            for part in torch.randperm(ENVS * LENGTH).chunk(PARTS):
                one, legal, taken, old, gain = (x[part] for x in flat)
                now = masked(actor(one), legal)
                ratio = (now.log_prob(taken) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                error = 0.5 * (critic(one)[:, 0] - target[part]).square().mean()
                loss = clipped + 0.5 * error - 0.01 * now.entropy().mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(weights, 0.5)
                optimiser.step()
    envs.close()
    return done_steps


if __name__ == "__main__":
    main("torch", train, __file__)
