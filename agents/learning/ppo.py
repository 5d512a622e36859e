"""PPO with a critic, and ``Group``, PPO whose baseline is the mean of copies of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parenvs.agents.learning.algorithm import Batch, Settings, ValueAlgorithm
from parenvs.agents.learning.net import Lens, RowsNet, Seen, beside, entropy, layers_to, log_policy
from parenvs.errors import ParenvsError


@dataclass(frozen=True, kw_only=True)
class PPOSettings(Settings):
    """Settings of PPO (arXiv 1707.06347).

    Attributes:
        discount: of rewards; 0 stands for 1 in environments of this suite, else for 0.99.
        trace: lambda of generalized advantages (arXiv 1506.02438).
        clip: largest change of the probability ratio that is rewarded.
        passes: over a batch.
        turns_a_step: turns of a step of the optimizer; 0 stands for 512 in environments of this
            suite, else for 64.
        entropy: weight of the entropy.
        critic: weight of the values' loss.
    """

    turns: int = 16
    rate: float = 1e-3
    discount: float = 0.0
    trace: float = 0.95
    clip: float = 0.2
    passes: int = 4
    turns_a_step: int = 0
    entropy: float = 0.003
    critic: float = 0.5


def turns_a_step(settings: PPOSettings, lens: Lens) -> int:
    """Return the turns of a step of the optimizer."""
    return settings.turns_a_step or (512 if lens.discount == 1.0 else 64)


class PPO(ValueAlgorithm):
    """Proximal policy optimization with a critic."""

    name: ClassVar[str] = "ppo"
    settings_class: ClassVar[type[Settings]] = PPOSettings
    settings: PPOSettings

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        return super().values(seen) * self.spread

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        self.slow(progress)
        values = batch.kept["values"] * self.spread
        advantages = self.advantages(batch, values)
        returns = advantages + values
        self.rescale(returns)
        figures = {"advantages": advantages, "returns": returns / self.spread}
        return self.improve(*batch.flat(logs=batch.kept["logs"], **figures))

    def advantages(self, batch: Batch, values: Tensor) -> Tensor:
        """Return generalized advantages, (T, n), of values (T, n) in rewards."""
        result = torch.zeros_like(batch.rewards)
        following, coming = self.values(batch.after), torch.zeros_like(batch.rewards[0])
        for turn in range(len(result) - 1, -1, -1):
            goes_on = self.discount * (~batch.ended[turn]).float()
            # delta_t = r_t + gamma V(s_t+1) - V(s_t);  A_t = delta_t + gamma lambda A_t+1.
            error = batch.rewards[turn] + goes_on * following - values[turn]
            coming = error + goes_on * self.settings.trace * coming
            result[turn], following = coming, values[turn]
        return result

    def improve(self, seen: Seen, data: dict[str, Tensor]) -> dict[str, float]:
        """Go over turns, (k, ...) each, several times; return the means of the last pass."""
        settings, keys = self.settings, data.pop("keys")
        rows: list[dict[str, Tensor]] = []  # of the last pass, one for each minibatch
        for minibatches in self.parts(keys, turns_a_step(settings, self.lens), settings.passes):
            rows = []
            for index in minibatches:
                part = {name: value[index].to(self.device) for name, value in data.items()}
                losses, figures = self.losses(seen.at(index).to(self.device), part)
                self.step(losses)
                rows.append(figures)
        return {name: self.mean(torch.cat([row[name] for row in rows])) for name in rows[0]}

    def losses(self, seen: Seen, part: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each turn, (k,), and figures of them, (k,) each."""
        settings = self.settings
        logs, values = log_policy(self.net, seen)
        log_chances = logs.gather(1, part["actions"][:, None])[:, 0]
        # L = min(r A, clip(r, 1 - eps, 1 + eps) A), of the ratio r of chances (equation 7).
        ratio = (log_chances - part["logs"]).exp()
        advantages = self.scaled(part["advantages"])
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        nats = entropy(logs)
        loss = self.entropy_weight() * -nats - gain
        figures = {"entropy": nats.detach(), "gain": gain.detach()}
        if settings.critic:
            error = (values - part["returns"]).square()
            loss = loss + settings.critic * error
            figures["critic"] = error.detach()
        return loss, figures

    def scaled(self, advantages: Tensor) -> Tensor:
        """Return advantages of the turns of a step on the scale of the policy's loss."""
        mean, deviation, count = self.moments(advantages)
        return advantages if count < 2 else (advantages - mean) / (deviation + 1e-8)

    def entropy_weight(self) -> float:
        """Weight of the entropy in the loss."""
        return self.settings.entropy


@dataclass(frozen=True, kw_only=True)
class GroupSettings(PPOSettings):
    """Settings of ``Group``.

    Attributes:
        copies: K, of each problem.
        nats: entropy of an episode at the start.
        last_nats: the same at the end.
        tug: largest change of the entropy's weight in an update.
        pull: largest weight, of entropy that is lacking or, below 0, of too much.
    """

    envs: int = 128
    turns: int = 64
    copies: int = 16
    passes: int = 2
    turns_a_step: int = 1024
    critic: float = 0.0
    nats: float = 3.0
    last_nats: float = 0.5
    tug: float = 0.003
    pull: float = 0.05


class Group(PPO):
    """PPO whose baseline is the mean return of K copies of a problem: no critic, one scale.

    Environments next to each other, K at a time, have the same seed and so the same problems; the
    episodes of one number are a group. Turns wait until their group has ended. The entropy is held
    at a target for each episode, as a target for each turn lets long episodes wander off.
    """

    name: ClassVar[str] = "group"
    settings_class: ClassVar[type[Settings]] = GroupSettings
    settings: GroupSettings
    local = ("weight",)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.copies = self.settings.copies
        self.weight = self.settings.entropy
        self.waiting: tuple[Seen, dict[str, Tensor]] | None = None

    def forget(self) -> None:
        self.waiting = None

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        self.slow(progress)
        batch = batch.to("cpu")
        turns, envs = batch.actions.shape
        seen, data = batch.flat(
            logs=batch.kept["logs"], rewards=batch.rewards, ended=batch.ended,
            episodes=batch.episodes, envs=torch.arange(envs).expand(turns, envs),
        )  # fmt: skip
        # Steps of episodes whose group has not ended wait for the next batches.
        if self.waiting is not None:
            seen = beside([self.waiting[0], seen])
            data = {name: torch.cat([self.waiting[1][name], data[name]]) for name in data}
        advantages, complete, length = self._compared(data)
        self.waiting = seen.at(~complete), {name: x[~complete] for name, x in data.items()}
        if not length:
            return {}
        chosen = {name: data[name][complete] for name in ("actions", "logs", "keys")}
        chosen["advantages"] = advantages[complete]
        figures = self.improve(seen.at(complete), chosen)
        settings = self.settings
        nats = settings.nats + (settings.last_nats - settings.nats) * progress
        # Per episode: a target per step lets long episodes wander off.
        lacking = (nats - figures["entropy"] * length) / nats
        self.weight += settings.tug * min(max(lacking, -1.0), 1.0)
        self.weight = min(max(self.weight, -settings.pull), settings.pull)
        return {**figures, "entropy weight": self.weight, "turns": length}

    def scaled(self, advantages: Tensor) -> Tensor:
        """See ``PPO.scaled``: they are scaled already, over the whole batch."""
        return advantages

    def entropy_weight(self) -> float:
        return self.weight

    def state(self) -> dict[str, Any]:
        waiting = None if self.waiting is None else (tuple(self.waiting[0]), self.waiting[1])
        return {**super().state(), "held": waiting}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        waiting = state["held"]
        self.waiting = None if waiting is None else (Seen(*waiting[0]), waiting[1])

    def _compared(self, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, float]:
        """Return advantages of steps, whether their group has ended, and steps per episode."""
        envs, episodes = data["envs"], data["episodes"]
        count = int(episodes.max()) + 1
        # Codes of episodes, and of the groups of copies that they belong to.
        codes, episode_of_step = torch.unique(envs * count + episodes, return_inverse=True)
        groups, group_of_episode = torch.unique(
            (codes // count // self.copies) * count + codes % count, return_inverse=True
        )
        zeros = torch.zeros(len(codes))
        returns = zeros.index_add(0, episode_of_step, data["rewards"])
        ended = zeros.index_add(0, episode_of_step, data["ended"].float())
        zeros = torch.zeros(len(groups))
        done = zeros.index_add(0, group_of_episode, ended) == self.copies
        mean = zeros.index_add(0, group_of_episode, returns) / self.copies
        relative = returns - mean[group_of_episode]
        counted = done[group_of_episode]
        complete = counted[episode_of_step]
        sums = torch.stack([relative[counted].square().sum(), counted.sum(), complete.sum()])
        square, ends, turns = self.peers.sum(sums).tolist()
        spread = (square / max(ends, 1.0)) ** 0.5
        # Clipped: one outlier of a group would otherwise dominate the step.
        relative = (relative / (spread + 1e-8)).clamp(-4.0, 4.0)
        return relative[episode_of_step], complete, turns / max(ends, 1.0)


@dataclass(frozen=True, kw_only=True)
class ImitateSettings(PPOSettings):
    """Settings of ``Imitate``.

    Attributes:
        worst: largest regret that counts.
        scale: of regrets, in rewards: such a regret costs 1.
    """

    passes: int = 2
    entropy: float = 0.0003
    critic: float = 0.0
    worst: float = 3.0
    scale: float = 1.0


class Imitate(PPO):
    """Plays by its own policy and learns from a teacher of the turns (DAgger, arXiv 1011.0686).

    Where the teacher gives values of all legal actions, the loss is the expected regret. Where it
    gives its own choice alone, the loss is the cross-entropy; steps without either are left out.
    See ``Envs`` for teachers.
    """

    name: ClassVar[str] = "imitate"
    settings_class: ClassVar[type[PPOSettings]] = ImitateSettings
    settings: ImitateSettings
    taught = True

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        self.slow(progress)
        batch = batch.to("cpu")
        seen, data = batch.flat(worth=batch.kept["worth"])
        known = (data["worth"].isfinite() & seen.mask).any(dim=1)
        if not self.mean(known.float()):
            return {}
        return self.improve(seen.at(known), {name: x[known] for name, x in data.items()})

    def losses(self, seen: Seen, part: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        settings, worth = self.settings, part["worth"]
        logs, _ = log_policy(self.net, seen)
        known = worth.isfinite() & seen.mask
        best = torch.where(known, worth, -torch.inf).amax(dim=1, keepdim=True)
        regret = torch.where(known, (best - worth) / settings.scale, 0.0).clamp(max=settings.worst)
        expected = (logs.exp() * regret).sum(dim=1)
        chosen = known & (worth == best)
        cross = -torch.where(chosen, logs, -torch.inf).logsumexp(dim=1)
        is_whole = (known == seen.mask).all(dim=1)
        # Without the values of all actions a regret would favor those that nobody rated.
        loss = torch.where(is_whole, expected, cross)
        nats = entropy(logs)
        figures = {"loss": loss.detach(), "entropy": nats.detach()}
        return loss - settings.entropy * nats, figures


class CentralNet(RowsNet):
    """The network of agents that act by local observations, with a central critic."""

    def __init__(self, lens: Lens, width: int, **shape: Any) -> None:
        super().__init__(lens, width=width, **shape)
        self.value = nn.Sequential()  # the critic takes its place
        self.critic = layers_to(self.last_value, lens.contexts + lens.joint, width)

    def forward(self, seen: Seen) -> tuple[Tensor, Tensor]:
        return super().forward(seen)[0], self.critic(seen.context)


class MAPPO(PPO):
    """PPO with a central critic (arXiv 2103.01955); agents share one network."""

    name: ClassVar[str] = "mappo"

    def network(self) -> RowsNet:
        """See ``Algorithm.network``; one agent alone raises ``ParenvsError``."""
        if not self.lens.joint:
            raise ParenvsError(
                "mappo is for environments of several agents, such as hybrid_v1; --agent ppo is "
                "for this one"
            )
        return CentralNet(self.lens, **self.shape)
