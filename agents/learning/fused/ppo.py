"""PPO whose rollout, policy and updates stay on one device.

Clipped PPO (Schulman et al., arXiv 1707.06347) with generalised advantages (arXiv 1506.02438),
undiscounted: an episode has one reward, in its last step. It is 1/L, or its logarithm, which counts
a per cent of a long plan for as much as one of a short plan. An optimiser step takes two
environment steps of the rollout: the choice of a point and the choice of a unit in every episode.
Only legal choices are rated, so that no illegal one ever gets a probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from parenvs.agents.learning.fused.env import FusedEnv
from parenvs.agents.learning.fused.policy import Choices, FusedPolicy, draw
from parenvs.agents.learning.fused.settings import Settings

_LEAST_LOG_PROBABILITY = -1e4
"""Stands in for the lowest float32 of missing choices, whose product with 0 must be 0, not NaN."""


@dataclass(frozen=True)
class PPOSettings(Settings):
    """What decides a training.

    Attributes:
        epochs: how often each rollout is learned from.
        clip: epsilon, by how much the ratio of probabilities may leave 1.
        trace: lambda of the generalised advantages.
        entropy: weight of the entropy bonus.
        value: weight of the squared error of the values.
    """

    epochs: int = 4
    clip: float = 0.2
    trace: float = 0.95
    entropy: float = 0.003
    value: float = 0.5


@dataclass(frozen=True)
class Sample:
    """One step of n episodes, as PPO learns from it.

    Attributes:
        choices: the legal choices of each episode.
        rank: (n,) int64, which of its legal choices each episode took.
        log_probability: (n,) float32, log-probability of that choice when it was taken.
        advantage: (n,) float32, generalised advantage, normalised over the rollout.
        target: (n,) float32, the value that the critic should have given.
    """

    choices: Choices
    rank: torch.Tensor
    log_probability: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True)
class Rollout:
    """Steps of n episodes, with statistics of those episodes that ended in it.

    Attributes:
        samples: the steps in their order; choices of points and of units alternate.
        ended: () int64, number of episodes that ended.
        reward: () float64, their mean reward.
        length: () float64, their mean length, in units of the bubble-free time.
    """

    samples: Sequence[Sample]
    ended: torch.Tensor
    reward: torch.Tensor
    length: torch.Tensor


class PPO:
    """The policy, its optimiser, and the episodes that it learns from.

    Args:
        settings: what decides the training.
        env: the environment that it plays.

    Attributes:
        policy: the network that is trained.
        iteration: number of rollouts learned from so far.
        generator: draws the choices.
    """

    def __init__(self, settings: PPOSettings, env: FusedEnv) -> None:
        self.settings, self.env, self.iteration = settings, env, 0
        self.policy = FusedPolicy(env.device, settings.hidden, settings.seed)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), eps=1e-5)
        self.generator = torch.Generator(env.device).manual_seed(settings.seed + 1)
        self._next_choices: Choices | None = None

    def memory(self) -> dict[str, torch.Tensor]:
        """Name -> the tensors that change in a training besides policy, optimiser and episodes."""
        return {}

    def limits(self) -> dict[str, np.ndarray]:
        """Name -> what the entries of some of these tensors are below, in every column."""
        return {}

    def resume(self) -> None:
        """Make anew what no checkpoint keeps, when a training goes on: nothing."""

    def restart(self) -> None:
        """Start all episodes anew, as is due after a refill of the pool."""
        self.env.reset()
        self._next_choices = None

    def advance(self) -> dict[str, torch.Tensor]:
        """Play a rollout and learn from it; returns the figures of the log, () tensors."""
        rollout = self.play()
        figures = {"episodes": rollout.ended, "reward": rollout.reward, "length": rollout.length}
        return figures | self.learn(rollout)

    @torch.no_grad()
    def play(self) -> Rollout:
        """Play one rollout with choices drawn from the policy."""
        taken, values, rewards, ends = [], [], [], []
        choices = Choices.of(self.env) if self._next_choices is None else self._next_choices
        for _ in range(2 * self.settings.choices):
            logits = self.policy.logits(choices)
            rank = draw(logits, self.generator)
            taken.append((choices, rank, logits.gather(1, rank[:, None])[:, 0]))
            values.append(self.policy.values(choices))
            reward, ended = self.env.step(choices.action(rank))
            rewards.append(reward)
            ends.append(ended)
            choices = Choices.of(self.env)
        self._next_choices = choices
        values.append(self.policy.values(choices))
        reward, ended = torch.stack(rewards), torch.stack(ends)
        objective = reward
        if self.settings.objective == "log":
            objective = torch.where(ended, reward.log(), 0.0)
        advantage = advantages(objective.float(), ended, torch.stack(values), self.settings.trace)
        target = advantage + torch.stack(values[:-1])
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        samples = [
            Sample(*step, *outcome) for step, *outcome in zip(taken, advantage, target, strict=True)
        ]
        count = ended.sum()
        divisor = count.clamp(min=1)
        length = torch.where(ended, 1.0 / reward, 0.0).sum() / divisor
        return Rollout(samples, count, reward.sum() / divisor, length)

    def learn(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Update the policy by a rollout.

        Returns:
            The means of ``loss_parts`` over the last epoch, as () tensors on the device.
        """
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate * (1 - self.iteration / settings.iterations)
        order = torch.Generator("cpu").manual_seed(settings.seed + 2 + self.iteration)
        epoch: list[dict[str, torch.Tensor]] = []
        for _ in range(settings.epochs):
            epoch = []
            for k in torch.randperm(settings.choices, generator=order, device="cpu").tolist():
                point_and_unit = rollout.samples[2 * k : 2 * k + 2]
                pair = [self.loss_parts(sample) for sample in point_and_unit]
                epoch += pair
                loss = torch.stack([self.loss(parts) for parts in pair]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
        self.iteration += 1
        return {
            key: torch.stack([parts[key].detach() for parts in epoch]).mean() for key in epoch[0]
        }

    def loss_parts(self, sample: Sample) -> dict[str, torch.Tensor]:
        """The parts of the loss on one step's choices, and how far the policy has moved.

        Returns:
            () tensors: ``policy`` (the clipped objective, negated), ``value`` (mean squared error
            of the critic), ``entropy`` (mean over the episodes), ``divergence`` (approximate
            Kullback-Leibler divergence from the policy that played).
        """
        logits = self.policy.logits(sample.choices)
        log_ratio = logits.gather(1, sample.rank[:, None])[:, 0] - sample.log_probability
        ratio, clip = log_ratio.exp(), self.settings.clip
        gain = torch.minimum(
            ratio * sample.advantage, ratio.clamp(1 - clip, 1 + clip) * sample.advantage
        )
        negative_entropy = (logits.exp() * logits.clamp(min=_LEAST_LOG_PROBABILITY)).sum(dim=1)
        error = self.policy.values(sample.choices) - sample.target
        return {
            "policy": -gain.mean(),
            "value": error.square().mean(),
            "entropy": -negative_entropy.mean(),
            "divergence": (ratio - 1 - log_ratio).mean(),
        }

    def loss(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """The PPO loss, a () tensor: policy + weight * value error - weight * entropy bonus."""
        value, entropy = self.settings.value, self.settings.entropy
        return parts["policy"] + value * parts["value"] - entropy * parts["entropy"]


def advantages(
    rewards: torch.Tensor, ends: torch.Tensor, values: torch.Tensor, trace: float
) -> torch.Tensor:
    """Generalised advantages (arXiv 1506.02438, equation 16) without a discount.

    Args:
        rewards: (t, n).
        ends: (t, n) bool, whether an episode ended with the step.
        values: (t+1, n), the critic's values before each step and after the last.
        trace: lambda.

    Returns:
        (t, n) advantages.
    """
    result, advantage = torch.empty_like(rewards), torch.zeros_like(values[0])
    for t in range(len(rewards) - 1, -1, -1):
        goes_on = (~ends[t]).to(values.dtype)
        advantage = rewards[t] + goes_on * (values[t + 1] + trace * advantage) - values[t]
        result[t] = advantage
    return result
