"""``Imitate``: a policy learns from what a teacher says of the turns that the policy comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from parenvs.agents.learning.algorithm import Batch
from parenvs.agents.learning.net import entropy, log_policy
from parenvs.agents.learning.ppo import PPO, PPOSettings
from parenvs.agents.learning.seen import Seen


@dataclass(frozen=True, kw_only=True)
class ImitateSettings(PPOSettings):
    """Settings of ``Imitate``.

    Attributes:
        worst: largest regret that counts.
        scale: of regrets, in rewards: such a regret costs 1.
    """

    turns: int = 16
    rate: float = 1e-3
    passes: int = 2
    entropy: float = 0.0003
    critic: float = 0.0
    worst: float = 3.0
    scale: float = 1.0


class Imitate(PPO):
    """Plays by its own policy and learns from a teacher of the turns (DAgger, arXiv 1011.0686).

    Where the teacher knows what every legal action is worth, the loss is the expected regret, so
    that actions that are nearly as good cost nearly nothing. Where it knows its own choice alone,
    the loss is the cross-entropy; turns of which it knows nothing teach nothing. See ``Play`` for
    who teaches.
    """

    name: ClassVar[str] = "imitate"
    settings_class: ClassVar[type[PPOSettings]] = ImitateSettings
    settings: ImitateSettings
    taught = True

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        """See ``Algorithm.learn``."""
        self.slow(progress)
        batch = batch.to("cpu")
        worth = batch.kept["worth"].flatten(0, 1)
        seen = Seen(*(value.flatten(0, 1) for value in batch.seen))
        known = (worth.isfinite() & seen.mask).any(dim=1)
        if not self.mean(known.float()):
            return {}
        flat = {"actions": batch.actions, "keys": batch.keys()}
        data = {"worth": worth[known], **{k: x.flatten()[known] for k, x in flat.items()}}
        return self.improve(seen.at(known), data)

    def losses(self, seen: Seen, part: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``PPO.losses``."""
        settings, worth = self.settings, part["worth"]
        logs, _ = log_policy(self.net, seen)
        known = worth.isfinite() & seen.mask
        best = torch.where(known, worth, -torch.inf).amax(dim=1, keepdim=True)
        regret = torch.where(known, (best - worth) / settings.scale, 0.0).clamp(max=settings.worst)
        expected = (logs.exp() * regret).sum(dim=1)
        chosen = known & (worth == best)
        cross = -torch.where(chosen, logs, -torch.inf).logsumexp(dim=1)
        is_whole = (known == seen.mask).all(dim=1)
        loss = torch.where(is_whole, expected, cross)
        spread = entropy(logs)
        told = {"loss": loss.detach(), "entropy": spread.detach()}
        return loss - settings.entropy * spread, told
