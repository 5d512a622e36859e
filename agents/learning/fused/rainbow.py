"""Rainbow whose rollouts, memory and updates stay on one device.

Of the parts of Rainbow (arXiv 1710.02298) it has those that ``parenvs.agents.learning.rainbow`` has
by default: double and dueling networks, priorities and targets of several steps. An episode is
undiscounted and has one reward, in its last step, so a target is that reward, or the value of the
state some steps later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from parenvs.agents.learning.fused.env import FusedEnv
from parenvs.agents.learning.fused.memory import LEAST_PRIORITY, Memory, state_of
from parenvs.agents.learning.fused.policy import FEATURES, Choices, FusedPolicy
from parenvs.agents.learning.fused.settings import Settings
from parenvs.agents.learning.pretrained.network import LOWEST

KINDS = tuple(FEATURES)
"""What is chosen next, by the parity of the choices made."""


@dataclass(frozen=True)
class RainbowSettings(Settings):
    """What decides a training.

    Attributes:
        updates: optimiser steps behind each rollout.
        batch: transitions of each kind in an optimiser step.
        steps: environment steps between a state and the one that its target looks at.
        kept: rollouts whose states are kept.
        copy: optimiser steps between two copies of the network for targets.
        alpha: exponent of the priorities.
        beta: exponent of the importance weights at first; it grows to 1.
        exploration: share of the training in which random choices become rare.
        least: share of random choices from then on.
    """

    updates: int = 32
    batch: int = 128
    steps: int = 4
    kept: int = 16
    copy: int = 32
    alpha: float = 0.2
    beta: float = 0.4
    exploration: float = 0.3
    least: float = 0.05
    rate: float = 2e-3
    objective: str = "log"


class Rainbow:
    """The network, its optimiser, its memory, and the episodes that it learns from.

    Args:
        settings: what decides the training.
        env: the environment that it plays.

    Attributes:
        policy: the network that is trained; its ratings are advantages, its critics values.
        target: the network that rates what comes later.
        memories: kind of choice -> states in which it comes next.
        iteration: number of rollouts learned from so far.
        generator: draws the choices and the states.
    """

    def __init__(self, settings: RainbowSettings, env: FusedEnv) -> None:
        self.settings, self.env, self.iteration = settings, env, 0
        self.policy, self.target = (
            FusedPolicy(env.device, settings.hidden, settings.seed) for _ in range(2)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), eps=1e-5)
        self.generator = torch.Generator(env.device).manual_seed(settings.seed + 1)
        self.memories = {
            kind: Memory(settings.kept, count * settings.envs, env.device)
            for kind, count in zip(KINDS, (settings.choices + 1, settings.choices), strict=True)
        }
        self._next_choices: Choices | None = None

    def memory(self) -> dict[str, torch.Tensor]:
        """Name -> the tensors that change in a training besides policy, optimiser and episodes."""
        found = {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        for kind, memory in self.memories.items():
            found |= {f"memory/{kind}/{name}": x for name, x in memory.tensors.items()}
        return found

    def limits(self) -> dict[str, np.ndarray]:
        """Name -> what the entries of some of these tensors are below, in every column."""
        found: dict[str, np.ndarray] = {}
        for number, (kind, memory) in enumerate(self.memories.items()):
            after = self.memories[KINDS[(number + self.settings.steps) % 2]]
            limits = memory.limits(len(self.env.pool), after.states * self.settings.kept)
            found |= {f"memory/{kind}/{name}": most for name, most in limits.items()}
        return found

    def resume(self) -> None:
        """Make anew what no checkpoint keeps, when a training goes on.

        Raises:
            ParenvsError: what the memory holds cannot be.
        """
        rollouts = min(self.iteration, self.settings.kept)
        for turn, memory in enumerate(self.memories.values()):
            memory.remake(rollouts, FusedEnv(self.env.pool, 1), turn)

    def restart(self) -> None:
        """Start all episodes anew, as is due after a refill of the pool."""
        for memory in self.memories.values():
            memory.forget(*self.env.pool.newest)
        self.env.reset()
        self._next_choices = None

    def advance(self) -> dict[str, torch.Tensor]:
        """Play a rollout and learn; returns the figures of the log, () tensors."""
        figures = self.play()
        figures |= self.learn()
        self.iteration += 1
        return figures

    @torch.no_grad()
    def play(self) -> dict[str, torch.Tensor]:
        """Play one rollout and keep its states; what comes of some of the last is not known."""
        env, settings = self.env, self.settings
        seen = [Choices.of(env) if self._next_choices is None else self._next_choices]
        states, ranks, rewards, ends = [state_of(env)], [], [], []
        for _ in range(2 * settings.choices):
            ranks.append(self._explore(seen[-1]))
            reward, ended = env.step(seen[-1].action(ranks[-1]))
            rewards.append(reward)
            ends.append(ended)
            states.append(state_of(env))
            seen.append(Choices.of(env))
        self._next_choices = seen[-1]
        reward, ended = torch.stack(rewards), torch.stack(ends)
        worth = reward.log() if settings.objective == "log" else reward
        self._keep(seen, torch.stack(states), torch.stack(ranks), torch.where(ended, worth, 0.0),
                   ended)  # fmt: skip
        count = ended.sum()
        divisor = count.clamp(min=1)
        length = torch.where(ended, 1.0 / reward, 0.0).sum() / divisor
        return {"episodes": count, "reward": reward.sum() / divisor, "length": length}

    def _keep(
        self,
        seen: list[Choices],
        states: torch.Tensor,
        ranks: torch.Tensor,
        worth: torch.Tensor,
        ended: torch.Tensor,
    ) -> None:
        """Keep a rollout of t steps: t + 1 choices and states, and (t, n) of what was done."""
        steps, (length, n) = self.settings.steps, ended.shape
        gains, over = torch.zeros_like(worth), torch.zeros_like(ended)
        for t in range(length):
            within = ended[t : t + steps]
            first = within & (within.cumsum(dim=0) == 1)  # what comes later is another episode's
            gains[t] = torch.where(first, worth[t : t + steps], 0.0).sum(dim=0)
            over[t] = within.any(dim=0)
        place, time = self.iteration % self.settings.kept, torch.arange(length + 1)
        later = time + steps
        start = torch.tensor([place * self.memories[kind].states for kind in KINDS])
        first_after = (start[later % 2] + later // 2 * n).to(ended.device)
        within_rollout = (later <= length).to(ended.device)[:, None]
        after = first_after[:, None] + torch.arange(n, device=ended.device)
        after = torch.where(within_rollout, after, 0)
        nothing = torch.zeros_like(ended[:1])  # has come of the last states yet
        ranks, gains, over = (torch.cat([x, nothing.to(x.dtype)]) for x in (ranks, gains, over))
        known = over | within_rollout
        for parity, kind in enumerate(KINDS):
            columns = {"rank": ranks, "gain": gains, "ended": over, "after": after}
            self.memories[kind].put(
                place, seen[parity::2], known[parity::2].flatten(),
                state=states[parity::2].flatten(0, 1),
                **{name: column[parity::2].flatten() for name, column in columns.items()},
            )  # fmt: skip

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
        rollouts = min(self.iteration + 1, settings.kept)
        choices = {kind: memory.known(rollouts) for kind, memory in self.memories.items()}
        parts: list[dict[str, torch.Tensor]] = []
        for k in range(settings.updates):
            if (self.iteration * settings.updates + k) % settings.copy == 0:
                self.target.load_state_dict(self.policy.state_dict())
            pair = [self.loss_parts(kind, choices) for kind in KINDS]
            parts += pair
            self.optimizer.zero_grad()
            torch.stack([one["loss"] for one in pair]).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
            self.optimizer.step()
        return {key: torch.stack([one[key].detach() for one in parts]).mean() for key in parts[0]}

    def loss_parts(self, kind: str, choices: dict[str, Choices]) -> dict[str, torch.Tensor]:
        """The loss on drawn states of a kind, whose priorities follow their errors.

        Args:
            kind: which states.
            choices: kind -> the choices of all states in its memory.
        """
        settings, memory = self.settings, self.memories[kind]
        beta = settings.beta + (1 - settings.beta) * self.iteration / settings.iterations
        place, weight = memory.draw(settings.batch, settings.alpha, beta, self.generator)
        row = {name: x[place] for name, x in memory.tensors.items()}
        target = self.targets(kind, row, choices)
        found = quality(self.policy, choices[kind].at(place)).gather(1, row["rank"][:, None])[:, 0]
        error = (found - target).abs().detach()
        memory.tensors["priority"][place] = error + LEAST_PRIORITY
        loss = (weight * functional.smooth_l1_loss(found, target, reduction="none")).mean()
        return {"loss": loss, "error": error.mean()}

    @torch.no_grad()
    def targets(
        self, kind: str, row: dict[str, torch.Tensor], choices: dict[str, Choices]
    ) -> torch.Tensor:
        """(b,) returns that states of a kind are trained towards; see ``loss_parts``."""
        target = row["gain"].clone()
        goes_on = (~row["ended"]).nonzero()[:, 0]
        if len(goes_on):
            after = KINDS[(KINDS.index(kind) + self.settings.steps) % 2]
            later = choices[after].at(row["after"][goes_on])
            best = quality(self.policy, later).argmax(dim=1, keepdim=True)
            target[goes_on] += quality(self.target, later).gather(1, best)[:, 0]
        return target


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
