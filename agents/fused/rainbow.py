"""Rainbow whose rollouts, memory and updates stay on one device.

Of the parts of Rainbow (arXiv 1710.02298) it has those that ``parenvs.agents.rainbow`` has by
default: double and dueling networks, priorities and targets of several steps. An episode is
undiscounted and has one reward, in its last step, so a target is that reward, or the value of the
state some steps later. What is kept of a state are a problem's number and the choices made; rows
of features are made anew whenever it is learned from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from parenvs.agents.fused.env import FusedEnv
from parenvs.agents.fused.policy import FEATURES, Choices, FusedPolicy
from parenvs.agents.fused.settings import Settings
from parenvs.agents.pretrained.network import LOWEST
from parenvs.pipeline.points import STAGES

KINDS = tuple(FEATURES)
_LEAST_PRIORITY = 1e-3


@dataclass(frozen=True)
class RainbowSettings(Settings):
    """What decides a training.

    Attributes:
        updates: optimiser steps behind each rollout.
        batch: transitions of each kind in an optimiser step.
        steps: environment steps between a state and the one that its target looks at.
        capacity: transitions of each kind that are kept.
        copy: optimiser steps between two copies of the network for targets.
        alpha: exponent of the priorities.
        beta: exponent of the importance weights at first; it grows to 1.
        exploration: share of the training in which random choices become rare.
        least: share of random choices from then on.
    """

    updates: int = 32
    batch: int = 128
    steps: int = 4
    capacity: int = 65_536
    copy: int = 8
    alpha: float = 0.5
    beta: float = 0.4
    exploration: float = 0.3
    least: float = 0.05
    rate: float = 2e-3
    objective: str = "log"


class Memory:
    """Transitions of one kind of choice, the oldest of which are written over.

    Args:
        capacity: c, number of transitions.
        device: the device that holds them.

    Attributes:
        tensors: name -> (c, ...) tensor. ``before`` and ``after`` are rows of ``state_of``,
            ``action`` is what was chosen, ``gain`` the reward up to ``after``, ``ended`` whether
            the episode ended before. Of ``priority`` 0 nothing is drawn.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=device)

        self.tensors = {
            "before": empty(2 * STAGES), "after": empty(2 * STAGES), "action": empty(),
            "gain": empty(dtype=torch.float32), "ended": empty(dtype=torch.bool),
            "priority": empty(dtype=torch.float32),
            "written": torch.zeros((), dtype=torch.int64, device=device),
        }  # fmt: skip

    def put(self, **columns: torch.Tensor) -> None:
        """Add transitions, as urgent as the most urgent one."""
        kept, count = self.tensors, len(columns["action"])
        priority, written = kept["priority"], kept["written"]
        place = (written + torch.arange(count, device=priority.device)) % len(priority)
        top = priority.max().clamp(min=_LEAST_PRIORITY)
        for name, column in columns.items():
            kept[name][place] = column.to(kept[name].dtype)
        priority[place] = top
        written += count

    def draw(
        self, count: int, alpha: float, beta: float, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw transitions by their priorities.

        Returns:
            (count,) int64 places, and (count,) float32 importance weights, 1 at most.
        """
        priority = self.tensors["priority"]
        urgency = torch.where(priority > 0, priority**alpha, 0.0)
        place = urgency.multinomial(count, replacement=True, generator=generator)
        chance = urgency[place] / urgency.sum()
        weight = ((priority > 0).sum() * chance) ** -beta
        return place, weight / weight.max()

    def forget(self, first: int, count: int) -> None:
        """Draw no transition of these problems any more: others have their numbers now."""
        problem = self.tensors["before"][:, 0]
        replaced = (problem >= first) & (problem < first + count)
        self.tensors["priority"].masked_fill_(replaced, 0.0)


class Rainbow:
    """The network, its optimiser, its memory, and the episodes that it learns from.

    Args:
        settings: what decides the training.
        env: the environment that it plays.

    Attributes:
        policy: the network that is trained; its ratings are advantages, its critics values.
        target: the network that rates what comes later.
        memories: kind of choice -> transitions.
        iteration: number of rollouts learned from so far.
        generator: draws the choices and the transitions.
    """

    def __init__(self, settings: RainbowSettings, env: FusedEnv) -> None:
        self.settings, self.env, self.iteration = settings, env, 0
        self.policy, self.target = (
            FusedPolicy(env.device, settings.hidden, settings.seed) for _ in range(2)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), eps=1e-5)
        self.generator = torch.Generator(env.device).manual_seed(settings.seed + 1)
        self.memories = {kind: Memory(settings.capacity, env.device) for kind in KINDS}
        self.drawn = FusedEnv(env.pool, settings.batch)

    def memory(self) -> dict[str, torch.Tensor]:
        """Name -> the tensors that change in a training besides policy, optimiser and episodes."""
        found = {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        for kind, memory in self.memories.items():
            found |= {f"memory/{kind}/{name}": x for name, x in memory.tensors.items()}
        return found

    def restart(self) -> None:
        """Start all episodes anew, as is due after a refill of the pool."""
        for memory in self.memories.values():
            memory.forget(*self.env.pool.newest)
        self.env.reset()

    def advance(self) -> dict[str, torch.Tensor]:
        """Play a rollout and learn; returns the figures of the log, () tensors."""
        figures = self.play()
        figures |= self.learn()
        self.iteration += 1
        return figures

    @torch.no_grad()
    def play(self) -> dict[str, torch.Tensor]:
        """Play one rollout and keep its transitions; its last steps, without a target, are not."""
        env, settings = self.env, self.settings
        states, kinds, actions, rewards, ends = [], [], [], [], []
        for _ in range(2 * settings.choices):
            choices = Choices.of(env)
            states.append(state_of(env))
            kinds.append(choices.kind)
            actions.append(choices.action(self._explore(choices)))
            reward, ended = env.step(actions[-1])
            rewards.append(reward)
            ends.append(ended)
        states.append(state_of(env))
        reward, ended = torch.stack(rewards), torch.stack(ends)
        worth = reward.log() if settings.objective == "log" else reward
        worth = torch.where(ended, worth, 0.0)
        for t in range(len(actions) - settings.steps + 1):
            within = ended[t : t + settings.steps]
            first = within & (within.cumsum(dim=0) == 1)  # what comes later is another episode's
            gain = torch.where(first, worth[t : t + settings.steps], 0.0).sum(dim=0)
            self.memories[kinds[t]].put(
                before=states[t], after=states[t + settings.steps], action=actions[t], gain=gain,
                ended=within.any(dim=0),
            )  # fmt: skip
        count = ended.sum()
        divisor = count.clamp(min=1)
        length = torch.where(ended, 1.0 / reward, 0.0).sum() / divisor
        return {"episodes": count, "reward": reward.sum() / divisor, "length": length}

    def _explore(self, choices: Choices) -> torch.Tensor:
        """(n,) int64 ranks: mostly of the best choice, sometimes of any."""
        settings = self.settings
        done = self.iteration / (settings.exploration * settings.iterations)
        share = max(1.0 - done * (1.0 - settings.least), settings.least)
        draws = torch.rand(2, len(choices.count), generator=self.generator, device=self.env.device)
        drawn = (draws[0] * choices.count).long().clamp(max=choices.count - 1)
        return torch.where(draws[1] < share, drawn, quality(self.policy, choices).argmax(dim=1))

    def learn(self) -> dict[str, torch.Tensor]:
        """Make some optimiser steps.

        Returns:
            () tensors: mean ``loss`` and ``error``, by which targets are missed.
        """
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate * (1 - self.iteration / settings.iterations)
        parts: list[dict[str, torch.Tensor]] = []
        for k in range(settings.updates):
            if (self.iteration * settings.updates + k) % settings.copy == 0:
                self.target.load_state_dict(self.policy.state_dict())
            pair = [self.loss_parts(kind) for kind in KINDS]
            parts += pair
            self.optimizer.zero_grad()
            torch.stack([one["loss"] for one in pair]).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
            self.optimizer.step()
        return {key: torch.stack([one[key].detach() for one in parts]).mean() for key in parts[0]}

    def loss_parts(self, kind: str) -> dict[str, torch.Tensor]:
        """The loss on drawn transitions of a kind, whose priorities follow their errors."""
        settings, memory = self.settings, self.memories[kind]
        beta = settings.beta + (1 - settings.beta) * self.iteration / settings.iterations
        place, weight = memory.draw(settings.batch, settings.alpha, beta, self.generator)
        row = {name: x[place] for name, x in memory.tensors.items() if x.dim()}
        target = self.targets(kind, row)
        choices = self.choices_at(row["before"], kind)
        rank = choices.rank(row["action"].long())
        found = quality(self.policy, choices).gather(1, rank[:, None])[:, 0]
        error = (found - target).abs().detach()
        memory.tensors["priority"][place] = error + _LEAST_PRIORITY
        loss = (weight * functional.smooth_l1_loss(found, target, reduction="none")).mean()
        return {"loss": loss, "error": error.mean()}

    @torch.no_grad()
    def targets(self, kind: str, row: dict[str, torch.Tensor]) -> torch.Tensor:
        """(b,) returns that transitions of a kind are trained towards."""
        after = KINDS[(KINDS.index(kind) + self.settings.steps) % 2]
        choices = self.choices_at(row["after"], after)
        best = quality(self.policy, choices).argmax(dim=1, keepdim=True)
        later = quality(self.target, choices).gather(1, best)[:, 0]
        return row["gain"] + torch.where(row["ended"], 0.0, later)

    def choices_at(self, state: torch.Tensor, kind: str) -> Choices:
        """The legal choices in (b, 16) states, all of which choose the same kind next."""
        env = self.drawn
        env.problem, env.choices_made = state[:, 0].long(), state[:, 1].long()
        env.cuts, env.units = state[:, 2 : STAGES + 1].long(), state[:, STAGES + 1 :].long()
        env.turn = KINDS.index(kind)
        return Choices.of(env)


def state_of(env: FusedEnv) -> torch.Tensor:
    """(n, 16) int64: each episode's problem, number of choices made, cuts and units."""
    head = torch.stack([env.problem, env.choices_made], dim=1)
    return torch.cat([head, env.cuts, env.units], dim=1)


def quality(policy: FusedPolicy, choices: Choices) -> torch.Tensor:
    """Expected returns of the choices: the critic's value, and what a choice is better than others.

    Returns:
        (n, m), m being the greatest number of legal choices of an episode; ``LOWEST`` beyond.
    """
    ratings = policy.network.rate(choices.kind, choices.rows, choices.context, choices.count)
    width = torch.arange(ratings.shape[1], device=ratings.device)
    present = width < choices.count[:, None]
    mean = torch.where(present, ratings, 0.0).sum(dim=1) / choices.count
    level = policy.values(choices) - mean
    return torch.where(present, ratings + level[:, None], LOWEST)
