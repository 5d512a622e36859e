"""PPO whose rollout, policy and updates stay on one device.

Clipped, with generalised advantages (Schulman et al., arXiv 1707.06347 and 1506.02438),
undiscounted: the one reward of an episode is 1/L, in its last step, or its logarithm, which counts
a per cent of a long plan for as much as one of a short plan. A step of the optimiser takes
two environment steps of the rollout, a point's and a unit's of every episode. Only legal choices
are rated, so that no probability is ever given to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parenvs.agents.fused.env import FusedEnv
from parenvs.agents.fused.policy import Choices, FusedPolicy, draw
from parenvs.agents.pretrained.network import HIDDEN

OBJECTIVES = ("value", "log")
_NOTHING = -1e4  # the log-probability of what is not there, where it is multiplied by zero


@dataclass(frozen=True)
class Settings:
    """What decides a training; equal settings give equal networks on one device.

    Attributes:
        seed: seed of everything random.
        envs: n, episodes at once.
        iterations: rollouts.
        choices: pairs of point and unit that each episode chooses in a rollout.
        epochs: times that each rollout is learned from.
        rate: learning rate at first; it falls to nothing, in a line.
        clip: of the ratio of probabilities.
        trace: lambda of the advantages.
        entropy: weight of the entropy.
        value: weight of the squared error of the values.
        problems: in the pool.
        part: problems that are replaced at once; they divide the pool.
        refill: iterations between; 0: the pool stays.
        family: problems of this family only.
        hidden: width of the network.
        objective: what is learned to be large, ``"value"``, 1/L, or ``"log"``, ln(1/L).
    """

    seed: int = 0
    envs: int = 256
    iterations: int = 200
    choices: int = 8
    epochs: int = 4
    rate: float = 1e-3
    clip: float = 0.2
    trace: float = 0.95
    entropy: float = 0.003
    value: float = 0.5
    problems: int = 512
    part: int = 64
    refill: int = 4
    family: str | None = None
    hidden: int = HIDDEN
    objective: str = "value"

    @property
    def samples(self) -> int:
        """Environment steps of a rollout."""
        return 2 * self.choices * self.envs


@dataclass(frozen=True)
class Sample:
    """One step of n episodes, and what has become of it.

    Attributes:
        choices: what there was to choose.
        rank: (n,) int64, the row chosen.
        chance: (n,) float32, log-probability of it.
        advantage: (n,) float32.
        target: (n,) float32, what the value should have been.
    """

    choices: Choices
    rank: torch.Tensor
    chance: torch.Tensor
    advantage: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True)
class Rollout:
    """Steps of n episodes and, as numbers on the device, what has ended.

    Attributes:
        samples: as many points' as units', in turn.
        ended: () episodes.
        reward: () mean of their rewards.
        length: () mean of their lengths, in units of the bubble-free time.
    """

    samples: Sequence[Sample]
    ended: torch.Tensor
    reward: torch.Tensor
    length: torch.Tensor


class Learner:
    """The policy, its optimiser, and the episodes that it learns from.

    Args:
        settings: what decides the training.
        env: the episodes.

    Attributes:
        policy: what is trained.
        iteration: iterations done.
    """

    def __init__(self, settings: Settings, env: FusedEnv) -> None:
        self.settings, self.env, self.iteration = settings, env, 0
        self.policy = FusedPolicy(env.device, settings.hidden, settings.seed)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), eps=1e-5)
        self._generator = torch.Generator(env.device).manual_seed(settings.seed + 1)
        self._now: Choices | None = None

    def restart(self) -> None:
        """Start all episodes anew, as after a refill of the pool."""
        self.env.reset()
        self._now = None

    @torch.no_grad()
    def play(self) -> Rollout:
        """Let the policy choose, and see what it comes to."""
        taken, values, rewards, ends = [], [], [], []
        now = Choices.of(self.env) if self._now is None else self._now
        for _ in range(2 * self.settings.choices):
            logits = self.policy.logits(now)
            rank = draw(logits, self._generator)
            taken.append((now, rank, logits.gather(1, rank[:, None])[:, 0]))
            values.append(self.policy.values(now))
            reward, ended = self.env.step(now.action(rank))
            rewards.append(reward)
            ends.append(ended)
            now = Choices.of(self.env)
        self._now = now
        values.append(self.policy.values(now))
        reward, ended = torch.stack(rewards), torch.stack(ends)
        gained = reward
        if self.settings.objective == "log":
            gained = torch.where(ended, reward.log(), 0.0)
        worth = advantages(gained.float(), ended, torch.stack(values), self.settings.trace)
        target = worth + torch.stack(values[:-1])
        worth = (worth - worth.mean()) / (worth.std() + 1e-8)
        samples = [Sample(*x, *y) for x, *y in zip(taken, worth, target, strict=True)]
        count = ended.sum()
        some = count.clamp(min=1)
        length = torch.where(ended, 1.0 / reward, 0.0).sum() / some
        return Rollout(samples, count, reward.sum() / some, length)

    def learn(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Update the policy; means of the last epoch's figures, numbers on the device."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate * (1 - self.iteration / settings.iterations)
        order = torch.Generator("cpu").manual_seed(settings.seed + 2 + self.iteration)
        figures: list[dict[str, torch.Tensor]] = []
        for _ in range(settings.epochs):
            figures = []
            for k in torch.randperm(settings.choices, generator=order, device="cpu").tolist():
                pair = rollout.samples[2 * k : 2 * k + 2]
                made = [self.figures(sample) for sample in pair]
                figures += made
                loss = torch.stack([self.loss(x) for x in made]).mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
        self.iteration += 1
        return {key: torch.stack([x[key].detach() for x in figures]).mean() for key in figures[0]}

    def figures(self, sample: Sample) -> dict[str, torch.Tensor]:
        """The parts of the loss, and how far the policy has moved, of one step's choices."""
        logits = self.policy.logits(sample.choices)
        moved = logits.gather(1, sample.rank[:, None])[:, 0] - sample.chance
        ratio, clip = moved.exp(), self.settings.clip
        gain = torch.minimum(
            ratio * sample.advantage, ratio.clamp(1 - clip, 1 + clip) * sample.advantage
        )
        spread = (logits.exp() * logits.clamp(min=_NOTHING)).sum(dim=1)
        error = self.policy.values(sample.choices) - sample.target
        return {
            "policy": -gain.mean(),
            "value": error.square().mean(),
            "entropy": -spread.mean(),
            "divergence": (ratio - 1 - moved).mean(),
        }

    def loss(self, figures: dict[str, torch.Tensor]) -> torch.Tensor:
        """What is made small."""
        value, entropy = self.settings.value, self.settings.entropy
        return figures["policy"] + value * figures["value"] - entropy * figures["entropy"]


def advantages(
    rewards: torch.Tensor, ends: torch.Tensor, values: torch.Tensor, trace: float
) -> torch.Tensor:
    """(t, n) generalised advantages, undiscounted.

    Args:
        rewards: (t, n).
        ends: (t, n) bool, whether an episode ended with the step.
        values: (t+1, n), foreseen before each step, and after the last.
        trace: lambda.
    """
    found, after = torch.empty_like(rewards), torch.zeros_like(values[0])
    for t in range(len(rewards) - 1, -1, -1):
        goes_on = (~ends[t]).to(values.dtype)
        after = rewards[t] + goes_on * (values[t + 1] + trace * after) - values[t]
        found[t] = after
    return found
