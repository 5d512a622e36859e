"""``Memory``: turns of n environments that are learnt from again, by their priority."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parenvs.agents.learning.algorithm import Batch
from parenvs.agents.learning.seen import Seen
from parenvs.errors import ParenvsError

BYTES = 1 << 30
"""Largest memory."""


PARTS = (*Seen._fields, "actions", "earned", "left", "ahead", "priority")
"""What is kept of a turn."""


class Minibatch(NamedTuple):
    """Turns that were drawn.

    Attributes:
        slots: (k,) int64, where the memory has them: of all learners, of whose turns k are here.
        seen: (k), what was seen.
        actions: (k,) int64.
        earned: (k,) float32, rewards of the following turns, discounted.
        after: (k), what was seen behind them.
        left: (k,) float32, what a value there counts: 0 if the episode has ended.
        weights: (k,) float32, which make up for the priorities, at most 1.
    """

    slots: Tensor
    seen: Seen
    actions: Tensor
    earned: Tensor
    after: Seen
    left: Tensor
    weights: Tensor


class Memory:
    """Keeps whole batches, the last ones, and draws turns by priority (arXiv 1511.05952).

    Learners that learn together have the turns of their own environments each, and the priorities
    of all, so that all draw the same. What is seen behind a batch is kept as one more turn of it,
    which is never drawn.

    Args:
        turns: turns of all environments that are kept, fewer if they take more than ``BYTES``.
        steps: turns between what is seen and the value that is believed; fewer at the end of an
            episode or of a batch.
        discount: of rewards.
        power: of a turn's error, which makes its priority.
    """

    def __init__(self, turns: int, steps: int, discount: float, power: float) -> None:
        self.turns, self.steps, self.discount, self.power = turns, steps, discount, power
        self.parts: dict[str, Tensor] = {}  # (batches, T + 1, n, ...) each
        self.next, self.count, self.largest, self.first = 0, 0, 1.0, 0

    def __len__(self) -> int:
        """Turns that can be drawn."""
        return self.count * self._size if self.parts else 0

    def add(self, batch: Batch) -> None:
        """Keep a batch in place of the oldest one, with the largest priority so far.

        Raises:
            ParenvsError: it is of another shape than those before.
        """
        seen = [torch.cat([x, y[None]]) for x, y in zip(batch.seen, batch.after, strict=True)]
        earned, left, ahead = self._earned(batch)
        values = {
            **dict(zip(Seen._fields, seen, strict=True)),
            **{
                name: torch.cat([value, value[:1]])
                for name, value in (
                    ("actions", batch.actions), ("earned", earned), ("left", left),
                    ("ahead", ahead),
                )
            },
        }  # fmt: skip
        if not self.parts:
            turns, envs = earned.shape
            self.first, total, _ = batch.place
            taken = sum(x.numel() * x.element_size() for x in values.values()) // envs * total
            room = max(1, min(self.turns // (turns * total), BYTES // taken))
            self.parts = {k: torch.zeros(room, *x.shape, dtype=x.dtype) for k, x in values.items()}
            self.parts["priority"] = torch.zeros(room, turns, total, dtype=torch.float64)
        if self.parts["rows"].shape[1:] != values["rows"].shape:
            raise ParenvsError("batches of a memory must have one shape")
        for name, value in values.items():
            self.parts[name][self.next] = value
        self.parts["priority"][self.next] = self.largest
        self.next = (self.next + 1) % len(self.parts["rows"])
        self.count = min(self.count + 1, len(self.parts["rows"]))

    def draw(self, count: int, correction: float, random: torch.Generator) -> Minibatch:
        """Draw turns, each by its priority, and return those that are here.

        Args:
            count: of all learners.
            correction: power of the weights, from 0 to 1.
            random: what is drawn from.
        """
        turns, envs = self.parts["priority"].shape[1:]
        priority = self.parts["priority"][: self.count].flatten().numpy()
        ends = np.cumsum(priority)
        points = (np.arange(count) + torch.rand(count, generator=random).numpy()) / count
        chosen = np.minimum(np.searchsorted(ends, points * ends[-1], "right"), len(ends) - 1)
        weights = (len(priority) * priority[chosen] / ends[-1]) ** -correction
        weights /= weights.max()
        batch, turn, env = np.unravel_index(chosen, (self.count, turns, envs))
        own = (env >= self.first) & (env < self.first + self.parts["actions"].shape[2])
        chosen, weights, batch, turn = (x[own] for x in (chosen, weights, batch, turn))
        env = env[own] - self.first
        at = (torch.from_numpy(batch), torch.from_numpy(turn), torch.from_numpy(env))
        later = (at[0], at[1] + self.parts["ahead"][at], at[2])
        return Minibatch(
            torch.from_numpy(chosen),
            Seen(*(self.parts[name][at] for name in Seen._fields)),
            self.parts["actions"][at],
            self.parts["earned"][at],
            Seen(*(self.parts[name][later] for name in Seen._fields)),
            self.parts["left"][at],
            torch.from_numpy(weights.astype(np.float32)),
        )

    def judge(self, index: Tensor, errors: Tensor) -> None:
        """Set the priorities of turns that were drawn, by their errors, (k,)."""
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
        """Go on from what ``state`` returned."""
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

    @property
    def _size(self) -> int:
        return self.parts["priority"][0].numel()

    def _earned(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is earned ahead, what a value behind it counts, and how far that is."""
        turns, envs = batch.rewards.shape
        earned, left = torch.zeros(turns, envs), torch.ones(turns, envs)
        ahead = torch.zeros(turns, envs, dtype=torch.int64)
        for step in range(self.steps):
            # Turn t takes the reward of turn t + step, unless its episode or the batch has ended.
            last = turns - step
            if last <= 0:
                break
            earned[:last] += left[:last] * batch.rewards[step:]
            ahead[:last] += left[:last] > 0
            left[:last] *= self.discount * (~batch.ended[step:]).float()
        return earned, left, ahead
