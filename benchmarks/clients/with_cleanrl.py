"""PPO in CleanRL's style, one file on a vector environment; its loop is its ``ppo.py``'s."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from measure import BATCH, ENVS, EPOCHS, MINIBATCH, TURNS, Tick, discount, main, masked
from torch import nn
from torch.distributions import Categorical

TRACE, CLIP = 0.95, 0.2


# glue
def vector(space: gym.Space, seen: Any) -> torch.Tensor:
    """Return batched observations as vectors."""
    if not isinstance(space, gym.spaces.Dict):
        return torch.as_tensor(seen)
    keys = [key for key in space if key != "action_mask"]
    return torch.cat([torch.as_tensor(seen[k]).float().reshape(ENVS, -1) for k in keys], dim=1)


def legal_ones(logits: torch.Tensor, mask: torch.Tensor) -> Categorical:
    """Return the distribution over legal actions."""
    return Categorical(logits=logits.masked_fill(~mask, -1e8))


def legal_of(infos: dict[str, Any], actions: int) -> torch.Tensor:
    """Return the legal actions, which are all where there are no masks."""
    mask = infos.get("action_mask")
    return torch.ones(ENVS, actions).bool() if mask is None else torch.as_tensor(mask).bool()


# end


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    torch.manual_seed(0)
    gamma, same = discount(env_id), {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = (
        gym.make_vec(env_id, ENVS, **same, **kwargs)
        if masked(env_id)
        else gym.make_vec(env_id, ENVS, "sync", vector_kwargs=same)
    )
    observation, infos = envs.reset(seed=0)
    # glue
    space = envs.single_observation_space
    count = int(envs.single_action_space.n)
    seen, mask = vector(space, observation), legal_of(infos, count)
    # end
    actor, critic = layers(seen.shape[1], mask.shape[1]), layers(seen.shape[1], 1)
    weights = [*actor.parameters(), *critic.parameters()]
    optimizer, done = torch.optim.Adam(weights, lr=2.5e-4, eps=1e-5), 0
    while True:
        kept: list[tuple[torch.Tensor, ...]] = []
        for _ in range(TURNS):
            with torch.no_grad():
                chosen = legal_ones(actor(seen), mask)
                action, value = chosen.sample(), critic(seen)[:, 0]
            observation, reward, ended, _, infos = envs.step(action.numpy())
            rewards, over = torch.as_tensor(reward).float(), torch.as_tensor(ended).float()
            kept.append((seen, mask, action, chosen.log_prob(action), value, rewards, over))
            # glue
            seen, mask = vector(space, observation), legal_of(infos, count)
            # end
        seen_of, mask_of, actions, before, values, rewards, over = map(
            torch.stack, zip(*kept, strict=True)
        )
        advantage, trace = torch.zeros_like(rewards), torch.zeros(ENVS)
        with torch.no_grad():
            later = critic(seen)[:, 0]
        for step in range(TURNS - 1, -1, -1):
            alive = 1 - over[step]
            trace = rewards[step] + gamma * later * alive - values[step] + (
                gamma * TRACE * alive * trace
            )  # fmt: skip
            advantage[step], later = trace, values[step]
        flat = [x.flatten(0, 1) for x in (seen_of, mask_of, actions, before, advantage)]
        target = (advantage + values).flatten()
        for _ in range(EPOCHS):
            for part in torch.randperm(BATCH).split(MINIBATCH):
                one, legal, taken, old, gain = (x[part] for x in flat)
                now = legal_ones(actor(one), legal)
                ratio = (now.log_prob(taken) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                error = 0.5 * (critic(one)[:, 0] - target[part]).square().mean()
                loss = clipped + 0.5 * error - 0.01 * now.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(weights, 0.5)
                optimizer.step()
        done += BATCH
        tick(done)


if __name__ == "__main__":
    main("torch", train, __file__)
