"""What Rainbow keeps of its last rollouts: states, their legal choices, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from parenvs.agents.learning.fused.env import FusedEnv
from parenvs.agents.learning.fused.policy import Choices
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

LEAST_PRIORITY = 1e-3


class Memory:
    """States of the last rollouts in which one kind of choice comes next.

    A rollout takes the place of the oldest one. Rows of features are most of the work of an
    optimiser step if they are made anew, so they are kept beside the states.

    Args:
        rollouts: number of rollouts that are kept.
        states: number of states of this kind in a rollout.
        device: the device that holds them.

    Attributes:
        tensors: name -> (rollouts * states, ...) tensor. ``state`` is a row of ``state_of``,
            ``rank`` tells which legal choice was taken, ``gain`` is the reward up to the state
            some steps later, which is number ``after`` in the memory of its kind, or up to the
            end, if the episode ``ended`` before. Of ``priority`` 0 nothing is drawn.
        choices: of each rollout, of its states in their order; none where there is no rollout yet.
    """

    def __init__(self, rollouts: int, states: int, device: torch.device) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(rollouts * states, *shape, dtype=dtype, device=device)

        self.states = states
        self.tensors = {
            "state": empty(2 * STAGES), "rank": empty(dtype=torch.int64),
            "gain": empty(dtype=torch.float32), "after": empty(dtype=torch.int64),
            "ended": empty(dtype=torch.bool), "priority": empty(dtype=torch.float32),
        }  # fmt: skip
        self.choices: list[Sequence[Choices]] = [()] * rollouts

    def put(
        self, place: int, choices: Sequence[Choices], known: torch.Tensor, **columns: torch.Tensor
    ) -> None:
        """Keep a rollout.

        Args:
            place: number of the rollout whose place it takes.
            choices: of its states in their order.
            known: (states,) bool, whether it tells what came of each; they become as urgent as the
                most urgent state.
            columns: what ``tensors`` holds of its states.
        """
        rows = slice(place * self.states, (place + 1) * self.states)
        priority = self.tensors["priority"]
        top = priority.max().clamp(min=LEAST_PRIORITY)
        for name, column in columns.items():
            self.tensors[name][rows] = column.to(self.tensors[name].dtype)
        priority[rows] = torch.where(known, top, 0.0)
        self.choices[place] = choices

    def draw(
        self, count: int, alpha: float, beta: float, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw states by their priorities.

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
        """Draw no state of these problems any more: others have their numbers now."""
        problem = self.tensors["state"][:, 0]
        replaced = (problem >= first) & (problem < first + count)
        self.tensors["priority"].masked_fill_(replaced, 0.0)
        # Their choices may not exist in the new problems: what is made anew is of the first turn.
        self.tensors["state"].masked_fill_(replaced[:, None], 0)

    def known(self, rollouts: int) -> Choices:
        """The choices of all states of the first rollouts."""
        return Choices.joined([one for kept in self.choices[:rollouts] for one in kept])

    def remake(self, rollouts: int, env: FusedEnv, turn: int) -> None:
        """Make the choices of the first rollouts anew, when a training goes on.

        Args:
            rollouts: how many of them there are.
            env: has the problems; it is changed.
            turn: what is chosen next in all states.

        Raises:
            ParenvsError: a choice was taken that its state does not have.
        """
        for place in range(rollouts):
            rows = slice(place * self.states, (place + 1) * self.states)
            choices = choices_at(env, self.tensors["state"][rows], turn)
            known = self.tensors["priority"][rows] > 0
            if (known & (self.tensors["rank"][rows] >= choices.count)).any():
                raise ParenvsError(f"array 'memory/{choices.kind}/rank' has a choice too many")
            self.choices[place] = [choices]

    def limits(self, problems: int, others: int) -> dict[str, np.ndarray]:
        """Name -> what the entries of a tensor are below, in every column.

        Args:
            problems: number of problems of the pool.
            others: number of states that ``after`` may name.
        """
        chosen = [POINTS] * (STAGES - 1) + [UNITS] * (STAGES - 1)
        return {
            "state": np.array([problems, 2 * (STAGES - 1), *chosen]), "rank": np.array(POINTS),
            "after": np.array(others),
        }  # fmt: skip


def state_of(env: FusedEnv) -> torch.Tensor:
    """(n, 16) int64: each episode's problem, number of choices made, cuts and units."""
    head = torch.stack([env.problem, env.choices_made], dim=1)
    return torch.cat([head, env.cuts, env.units], dim=1)


def choices_at(env: FusedEnv, state: torch.Tensor, turn: int) -> Choices:
    """The legal choices in (b, 16) states, in all of which ``turn`` is chosen next."""
    env.problem, env.choices_made = state[:, 0].long(), state[:, 1].long()
    env.cuts, env.units = state[:, 2 : STAGES + 1].long(), state[:, STAGES + 1 :].long()
    env.turn = turn
    return Choices.of(env)
