"""``PipelinePlan-v0`` on a device: many episodes at once, their whole state in tensors."""

from __future__ import annotations

import torch

from parenvs.agents.fused.pool import PlanPool
from parenvs.pipeline.points import POINTS, STAGES, UNITS
from parenvs.plan import ILLEGAL

ACTIONS = POINTS + UNITS
POINT, UNIT = 0, 1
"""Whose turn it is."""


class FusedEnv:
    """n episodes; each is what ``PipelinePlan-v0`` plays, of a problem drawn from a pool.

    An episode that ends starts anew in the same step, with another problem. Problems are drawn on
    the device. No method waits for the device or brings anything back from it.

    Args:
        pool: the problems.
        count: n.
        seed: of the problems' draws.

    Attributes:
        problem: (n,) int64, place in the pool of each one's problem.
        made: (n,) int64, choices made.
        cuts: (n, 7) int64, points chosen; what lies beyond the choices made means nothing.
        units: (n, 7) int64.
        turn: whose turn it is in all episodes, or None where that may differ.
    """

    def __init__(self, pool: PlanPool, count: int, seed: int = 0) -> None:
        self.pool, self.count, self.device = pool, count, pool.device
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._slot = torch.arange(STAGES - 1, device=self.device)
        self.reset()

    def reset(self, problem: torch.Tensor | None = None) -> None:
        """Start all episodes anew.

        Args:
            problem: (n,) int64, their problems; drawn by default.
        """
        self.problem = self.draw() if problem is None else problem
        self.made = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        self.cuts = self.made[:, None].repeat(1, STAGES - 1)
        self.units = self.cuts.clone()
        self.turn: int | None = POINT

    def draw(self) -> torch.Tensor:
        """(n,) int64, a problem for each episode."""
        return torch.randint(
            len(self.pool), (self.count,), generator=self._generator, device=self.device
        )

    def step(self, actions: torch.Tensor, check: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Act in every episode: rewards, (n,) float64, and who ended, (n,) bool.

        Args:
            actions: (n,) int64, as in the single environment: points, or 128 + units.
            check: whether actions may be illegal: they end the episode with -1. Then turns may
                differ, until the next reset. Those drawn from the mask need no check, and as
                every episode has an even number of steps, it is the same turn in all of them.
        """
        legal = None
        if check:
            asked = actions.clamp(0, ACTIONS - 1)
            legal = self.masks().gather(1, asked[:, None])[:, 0] & (actions == asked)
        at = self._slot == self._stage[:, None]
        odd = (self.made % 2 == UNIT)[:, None]
        points = actions.clamp(0, POINTS - 1)[:, None]
        units = (actions - POINTS).clamp(0, UNITS - 1)[:, None]
        self.cuts = torch.where(at & ~odd, points, self.cuts)
        self.units = torch.where(at & odd, units, self.units)
        self.made = self.made + 1
        turn = None if check else self.turn
        self.turn = None if turn is None else 1 - turn
        if turn == POINT:  # nothing ends here
            rewards = torch.zeros(self.count, dtype=torch.float64, device=self.device)
            return rewards, torch.zeros_like(rewards, dtype=torch.bool)
        tensors = self.pool.tensors
        ended = self.made == 2 * (tensors.stages[self.problem] - 1)
        rewards = torch.where(ended, tensors.values(self.cuts, self.units, self.problem), 0.0)
        if legal is not None:
            rewards = torch.where(legal, rewards, ILLEGAL)
            ended = ended | ~legal
        self.problem = torch.where(ended, self.draw(), self.problem)
        self.made = torch.where(ended, 0, self.made)
        return rewards, ended

    def legal_points(self) -> torch.Tensor:
        """(n, 128) bool, legal points; of meaning where it is the points' turn."""
        return self.pool.tensors.legal_points(self._stage, *self._start(), self.problem)

    def legal_units(self) -> torch.Tensor:
        """(n, 64) bool, legal units; of meaning where it is the units' turn."""
        end = self.cuts.gather(1, self._stage[:, None])[:, 0]
        return self.pool.tensors.legal_units(self._stage, *self._start(), end, self.problem)

    def masks(self) -> torch.Tensor:
        """(n, 192) bool, legal actions."""
        points, units = self.legal_points(), self.legal_units()
        odd = (self.made % 2 == UNIT)[:, None]
        return torch.cat([points & ~odd, units & odd], dim=1)

    def observation(self) -> dict[str, torch.Tensor]:
        """What ``PipelinePlanVectorEnv`` gives to see, float32 and ``step`` int64."""
        constant = {k: v.index_select(0, self.problem) for k, v in self.pool.constant.items()}
        chosen = [
            torch.where(self._slot < count[:, None], places * (1 / most), -1.0)
            for count, places, most in (
                ((self.made + 1) // 2, self.cuts, POINTS),
                (self.made // 2, self.units, UNITS),
            )
        ]
        return {**constant, "plan": torch.stack(chosen, dim=1).float(), "step": self.made}

    def outlook(self) -> torch.Tensor:
        """(n, 129, 65) int8, ``plan_outlook`` of the stages behind the present one."""
        behind = self.pool.tensors.stages[self.problem] - 1 - self._stage
        return self.pool.outlooks.index_select(0, STAGES * self.problem + behind)

    @property
    def _stage(self) -> torch.Tensor:
        """(n,) int64, the stage that is being chosen."""
        return self.made // 2

    def _start(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(n,) int64 point and unit on which that stage starts."""
        before = (self._stage - 1).clamp(min=0)[:, None]
        inner = self._stage > 0
        cuts, units = self.cuts.gather(1, before)[:, 0], self.units.gather(1, before)[:, 0]
        return torch.where(inner, cuts, 0), torch.where(inner, units, 0)
