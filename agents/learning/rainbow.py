"""Rainbow over rows: returns' quantiles, dueling by the pool, double, several steps, priorities."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from parenvs.agents.learning.algorithm import Batch, Chance, Place, Settings, ValueAlgorithm, chosen
from parenvs.agents.learning.net import RowsNet, Seen
from parenvs.errors import ParenvsError
from parenvs.tensors import check_finite

BYTES = 1 << 30
"""Largest memory."""


PARTS = (*Seen._fields, "actions", "earned", "factor", "ahead", "priority")
"""What is kept of a turn."""


class Minibatch(NamedTuple):
    """A sample of steps.

    Attributes:
        slots: (k,) int64, positions in the memory of all learners; k of the sample are here.
        seen: (k), what was seen.
        earned: (k,) float32, rewards of the following turns, discounted.
        after: (k), what was seen behind them.
        factor: (k,) float32, factor of a value there: 0 if the episode has ended.
        weights: (k,) float32, which make up for the priorities, at most 1.
    """

    slots: Tensor
    seen: Seen
    actions: Tensor
    earned: Tensor
    after: Seen
    factor: Tensor
    weights: Tensor


class Memory:
    """Keeps whole batches, the last ones, and draws steps by priority (arXiv 1511.05952).

    Learners that learn together have the steps of their own environments each, and the priorities
    of all, so that all draw the same. What is seen behind a batch is kept as one more step of it,
    which is never drawn. At most ``turns`` steps are kept, fewer if they take more than ``BYTES``.
    Values are taken ``steps`` steps ahead, fewer at the end of an episode or of a batch.
    """

    def __init__(self, turns: int, steps: int, discount: float, power: float) -> None:
        self.turns, self.steps, self.discount, self.power = turns, steps, discount, power
        self.parts: dict[str, Tensor] = {}  # (batches, T + 1, n, ...) each
        self.next, self.count, self.largest, self.first = 0, 0, 1.0, 0

    def __len__(self) -> int:
        """Turns that can be drawn."""
        return self.count * self.parts["priority"][0].numel() if self.parts else 0

    def add(self, batch: Batch) -> None:
        """Keep a batch in place of the oldest, with the largest priority so far."""
        seen = [torch.cat([x, y[None]]) for x, y in zip(batch.seen, batch.after, strict=True)]
        earned, factor, ahead = self._earned(batch)
        figures = {"actions": batch.actions, "earned": earned, "factor": factor, "ahead": ahead}
        values = dict(zip(Seen._fields, seen, strict=True))
        # One row more, as what is seen has: it is never drawn.
        values.update({name: torch.cat([x, x[:1]]) for name, x in figures.items()})
        if not self.parts:
            turns, envs = earned.shape
            self.first, total, _ = batch.place
            taken = sum(x.numel() * x.element_size() for x in values.values()) // envs * total
            batches = max(1, min(self.turns // (turns * total), BYTES // taken))
            self.parts = {
                name: torch.zeros(batches, *x.shape, dtype=x.dtype) for name, x in values.items()
            }
            self.parts["priority"] = torch.zeros(batches, turns, total, dtype=torch.float64)
        if self.parts["rows"].shape[1:] != values["rows"].shape:
            raise ParenvsError("batches of a memory must have one shape")
        for name, value in values.items():
            self.parts[name][self.next] = value
        # New turns get the largest priority, so that each is likely drawn once.
        self.parts["priority"][self.next] = self.largest
        self.next = (self.next + 1) % len(self.parts["rows"])
        self.count = min(self.count + 1, len(self.parts["rows"]))

    def draw(self, count: int, correction: float, random: torch.Generator) -> Minibatch:
        """Draw ``count`` turns of all learners by priority, and return those that are here.

        ``correction``, from 0 to 1, is the power of the weights.
        """
        turns, envs = self.parts["priority"].shape[1:]
        priority = self.parts["priority"][: self.count].flatten().numpy()
        ends = np.cumsum(priority)
        # Stratified: one draw in each of ``count`` equal parts of the priorities' sum.
        points = (np.arange(count) + torch.rand(count, generator=random).numpy()) / count
        chosen = np.minimum(np.searchsorted(ends, points * ends[-1], "right"), len(ends) - 1)
        # w_i = (N P(i)) ** -beta, over the largest (arXiv 1511.05952).
        weights = (len(priority) * priority[chosen] / ends[-1]) ** -correction
        weights /= weights.max()
        batch, turn, env = np.unravel_index(chosen, (self.count, turns, envs))
        # All learners draw the same steps; each returns those of its own environments.
        is_local = (env >= self.first) & (env < self.first + self.parts["actions"].shape[2])
        chosen, weights, batch, turn = (x[is_local] for x in (chosen, weights, batch, turn))
        env = env[is_local] - self.first
        index = tuple(torch.from_numpy(x) for x in (batch, turn, env))
        later = (index[0], index[1] + self.parts["ahead"][index], index[2])
        return Minibatch(
            torch.from_numpy(chosen),
            Seen(*(self.parts[name][index] for name in Seen._fields)),
            self.parts["actions"][index],
            self.parts["earned"][index],
            Seen(*(self.parts[name][later] for name in Seen._fields)),
            self.parts["factor"][index],
            torch.from_numpy(weights.astype(np.float32)),
        )

    def prioritize(self, index: Tensor, errors: Tensor) -> None:
        """Set the priorities of turns that were drawn, by their errors, (k,)."""
        # p_i = (|error_i| + eps) ** alpha: eps keeps turns without error drawable.
        priority = (errors.double().abs() + 1e-6) ** self.power
        self.parts["priority"].view(-1)[index] = priority
        self.largest = max(self.largest, float(priority.max()))

    def state(self) -> dict[str, Any]:
        """Return all that it holds."""
        parts = {name: value[: self.count] for name, value in self.parts.items()}
        return {
            "parts": parts, "next": self.next, "count": self.count, "largest": self.largest,
            "room": len(self.parts["rows"]) if self.parts else 0, "first": self.first,
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        if not 0 <= state["count"] <= state["room"] <= self.turns:
            raise ValueError(f"a memory of {state['room']} batches")
        if bool(state["room"]) != (set(state["parts"]) == set(PARTS)):
            raise ValueError(f"a memory of {', '.join(state['parts'])}")
        self.next, self.count = state["next"], state["count"]
        self.largest, self.first = state["largest"], state["first"]
        self.parts = {}
        for name, value in state["parts"].items():
            self.parts[name] = torch.zeros(state["room"], *value.shape[1:], dtype=value.dtype)
            self.parts[name][: self.count] = value

    def _earned(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards of the next steps, the factor of a value behind them, and their number."""
        turns, envs = batch.rewards.shape
        earned, factor = torch.zeros(turns, envs), torch.ones(turns, envs)
        ahead = torch.zeros(turns, envs, dtype=torch.int64)
        for step in range(self.steps):
            # Turn t takes the reward of turn t + step, unless its episode or the batch has ended.
            last = turns - step
            if last <= 0:
                break
            earned[:last] += factor[:last] * batch.rewards[step:]
            ahead[:last] += factor[:last] > 0
            factor[:last] *= self.discount * (~batch.ended[step:]).float()
        return earned, factor, ahead


SHARPNESS = 0.1
"""Weight of the rule's score at the start: quality has the scale of returns, not of logits."""


@dataclass(frozen=True, kw_only=True)
class RainbowSettings(Settings):
    """Settings of Rainbow (arXiv 1710.02298), with quantiles (arXiv 1710.10044).

    Attributes:
        discount: of rewards; 0 stands for 1 in environments of this suite, else for 0.99.
        steps: of rewards in front of a value that is believed.
        quantiles: of an action's return.
        memory: turns that are kept.
        first: turns before it learns.
        minibatch: turns of a step of the optimizer.
        reuse: how often each turn is learned from, on average.
        sync: steps of the optimizer between two copies of the network that values are taken of.
        power: of errors in priorities.
        correction: power of the weights against them at the start; it rises to 1.
        chance: largest share of turns at random; environments have shares from it down to its
            eighth power (arXiv 1803.00933).
        wander: share of the training in which the turns at random fall from all of them to that,
            where there is no rule to start from.
    """

    envs: int = 32
    turns: int = 16
    rate: float = 5e-4
    gradient: float = 10.0
    discount: float = 0.0
    steps: int = 3
    quantiles: int = 8
    memory: int = 100_000
    first: int = 2_000
    minibatch: int = 128
    reuse: float = 8.0
    sync: int = 200
    power: float = 0.5
    correction: float = 0.4
    chance: float = 0.4
    wander: float = 0.3
    sharpness: float = SHARPNESS


class Rainbow(ValueAlgorithm):
    """Learns the quantiles of what each action returns, from a memory of turns.

    The qualities of actions are the pool's value and the rows' advantages over their mean, in units
    of returns' spread; when the spread changes, the last layers change with it, so that qualities
    stay (arXiv 1602.07714). Untrained, the rule's action is the best. In place of noisy layers each
    environment has its own share of turns at random.
    """

    name: ClassVar[str] = "rainbow"
    settings_class: ClassVar[type[Settings]] = RainbowSettings
    settings: RainbowSettings
    local = ("steps", "owed")
    horizon = 1000

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        settings = self.settings
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.memory = Memory(settings.memory, settings.steps, self.discount, settings.power)
        self.steps, self.owed = 0, 0.0
        middle = (torch.arange(settings.quantiles) + 0.5) / settings.quantiles
        self._levels = middle.to(self.device)

    def network(self) -> RowsNet:
        count = self.settings.quantiles
        return RowsNet(self.lens, count, count, **self.shape)

    def quantiles(self, net: RowsNet, seen: Seen) -> Tensor:
        """Return the quantiles of actions' returns, (k, A, q), in units of the spread."""
        advantages, values = net(seen)
        legal = seen.mask[..., None]
        count = legal.sum(dim=1, keepdim=True).clamp(min=1)
        mean = torch.where(legal, advantages, 0.0).sum(dim=1, keepdim=True) / count
        # Dueling: Q = V + A - mean A over legal actions (arXiv 1511.06581).
        return values[:, None] + advantages - mean

    def logs(self, seen: Seen) -> Tensor:
        """See ``Algorithm.logs``: by qualities, in units of the spread of the legal ones."""
        seen = seen.to(self.device)
        quality = self.quantiles(self.net, seen).mean(dim=2)
        legal = torch.where(seen.mask, quality, torch.nan)
        center = legal.nanmean(dim=1, keepdim=True)
        spread = (legal - center).square().nanmean(dim=1, keepdim=True).sqrt()
        scaled = torch.where(seen.mask, 3.0 * (quality - center) / spread.clamp(min=1e-6), -1e9)
        return scaled.log_softmax(dim=1)

    @torch.no_grad()
    def act(self, seen: Seen, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        actions, noise = self.best(seen), chance(1 + seen.mask.shape[1])
        shares = self.random_shares(chance)
        drawn = torch.where(seen.mask, noise[:, 1:], -1.0).argmax(dim=1)
        return torch.where(noise[:, 0] < shares, drawn, actions), {}

    def random_shares(self, chance: Chance) -> Tensor:
        """Return the share of turns at random of each environment, (n,)."""
        # Environment i of n explores with epsilon ** (1 + 7 i / (n - 1)) (arXiv 1803.00933).
        shares = self.settings.chance ** (1.0 + 7.0 * chance.share)
        if self.lens.scored:
            return shares
        return shares.clamp(min=1.0 - self.progress / self.settings.wander)

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        quality = self.quantiles(self.net, seen.to(self.device)).mean(dim=2).to(seen.mask.device)
        return torch.where(seen.mask, quality, -torch.inf).amax(dim=1) * self.spread

    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        settings = self.settings
        self.slow(progress)
        batch = batch.to("cpu")
        if not self.peers.joined:  # each has a memory of its own
            batch = batch._replace(place=Place(0, batch.actions.shape[1], batch.place.turn))
        self.memory.add(batch)
        if len(self.memory) < min(settings.first, settings.memory // 2):
            return {}
        turns = batch.place.total * len(batch.actions)
        # Fractions of an update are carried over, so that the reuse holds on average.
        self.owed += settings.reuse * turns / settings.minibatch
        correction = settings.correction + (1.0 - settings.correction) * progress
        losses = []
        while self.owed >= 1.0:
            self.owed -= 1.0
            minibatch = self.memory.draw(settings.minibatch, correction, self.random)
            losses.append(self._improve(minibatch))
            self.steps += 1
            if self.steps % settings.sync == 0:
                self.target.load_state_dict(self.net.state_dict())
        return {"loss": self.mean(torch.cat(losses)), "spread": self.spread} if losses else {}

    def loss(self, minibatch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return the loss of each turn of a minibatch, and the error of its mean, (k,) each."""
        seen, after = minibatch.seen.to(self.device), minibatch.after.to(self.device)
        with torch.no_grad():
            behind = self.quantiles(self.target, after)
            # Double: the online network chooses, the target network evaluates.
            quality = self.quantiles(self.net, after).mean(dim=2)
            best = chosen(quality, after.mask)
            behind = _of(behind, best) * self.spread
            factor = minibatch.factor.to(self.device)[:, None]
            # Behind the end of an episode there is no value.
            following = torch.where(factor > 0, factor * behind, 0.0)
            targets = minibatch.earned.to(self.device)[:, None] + following
            before = self.spread
            self.rescale(targets)
            self._scale(self.target, before / self.spread)
            targets = targets / self.spread
        predicted = _of(self.quantiles(self.net, seen), minibatch.actions.to(self.device))
        error = targets[:, None, :] - predicted[:, :, None]
        huber = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        # Quantile Huber loss: |tau - 1{error < 0}| times Huber (arXiv 1710.10044).
        share = (self._levels[None, :, None] - (error.detach() < 0).float()).abs()
        return (share * huber).mean(dim=2).sum(dim=1), (targets - predicted).mean(dim=1).detach()

    def state(self) -> dict[str, Any]:
        memory, target = self.memory.state(), self.target.state_dict()
        return {**super().state(), "memory": memory, "target": target}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        check_finite([state["target"]])
        self.memory.load(state["memory"])
        self.target.load_state_dict(state["target"])

    def measure(self, sums: Tensor) -> None:
        """See ``ValueAlgorithm.measure``; qualities in rewards stay the same."""
        # Outputs are in units of the spread: scaled by its change they mean the same rewards.
        before = self.spread
        super().measure(sums)
        self._scale(self.net, before / self.spread)

    @torch.no_grad()
    def _scale(self, net: RowsNet, factor: float) -> None:
        """Scale qualities; those of the first batch have no scale yet."""
        if self.batches > 1:
            for weights in (*net.last.parameters(), *net.last_value.parameters(), net.weight):
                weights.mul_(factor)

    def _improve(self, minibatch: Minibatch) -> Tensor:
        losses, errors = self.loss(minibatch)
        losses = losses * minibatch.weights.to(self.device)
        self.step(losses)
        # Each learner keeps the priorities of all, so that all draw the same steps.
        self.memory.prioritize(self.peers.gather(minibatch.slots), self.peers.gather(errors.cpu()))
        return losses.detach().cpu()


@dataclass(frozen=True, kw_only=True)
class PaperSettings(RainbowSettings):
    """Settings of arXiv 2007.04069, sections 2 and 5.1; it does not say how often it updates.

    Attributes:
        within: turns in which epsilon falls from 1 to ``chance``, in a line.
    """

    envs: int = 1
    turns: int = 1
    rate: float = 1e-3
    last_rate: float = 1.0
    discount: float = 0.6
    steps: int = 1
    quantiles: int = 1
    memory: int = 2_000
    first: int = 64
    minibatch: int = 64
    reuse: float = 64.0
    sync: int = 100
    power: float = 0.2
    correction: float = 0.6
    chance: float = 0.1
    within: int = 10_000


class RainbowPaper(Rainbow):
    """Rainbow as arXiv 2007.04069 has it: double, dueling and priorities, without quantiles."""

    name: ClassVar[str] = "rainbow-paper"
    settings_class: ClassVar[type[Settings]] = PaperSettings
    settings: PaperSettings

    def random_shares(self, chance: Chance) -> Tensor:
        """See ``Rainbow.random_shares``: epsilon of section 5.1."""
        share = (chance.turn / self.settings.within).clamp(max=1.0)
        return torch.ones_like(chance.share) - share * (1.0 - self.settings.chance)


def _of(quantiles: Tensor, actions: Tensor) -> Tensor:
    """Return the quantiles of one action of each turn, (k, q)."""
    index = actions[:, None, None].expand(-1, 1, quantiles.shape[2])
    return quantiles.gather(1, index)[:, 0]
