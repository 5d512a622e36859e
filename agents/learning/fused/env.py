"""``PipelinePlan-v0`` on a device: many episodes at once, their whole state in tensors."""

from __future__ import annotations

import torch

from parenvs.agents.learning.fused.pool import ProblemPool
from parenvs.core.plan import ILLEGAL
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS

ACTIONS = POINTS + UNITS
POINT, UNIT = 0, 1
"""What an episode chooses next, by the parity of the choices that it has made."""


class FusedEnv:
    """A batch of n episodes with the dynamics of ``PipelinePlan-v0``, on problems of a pool.

    An episode that ends starts anew in the same step, with another problem. Problems are drawn on
    the device. No method waits for the device or brings anything back from it.

    Args:
        pool: the problems.
        count: n, the number of episodes.
        seed: seed of the generator that draws problems.

    Attributes:
        problem: (n,) int64, index in the pool of each episode's problem.
        choices_made: (n,) int64, how many choices each episode has made.
        cuts: (n, 7) int64, chosen points; entries beyond the choices made are undefined.
        units: (n, 7) int64, chosen units; entries beyond the choices made are undefined.
        generator: draws problems.
        turn: ``POINT`` or ``UNIT`` if all episodes choose that next, None if they may differ.
    """

    def __init__(self, pool: ProblemPool, count: int, seed: int = 0) -> None:
        self.pool, self.count, self.device = pool, count, pool.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._slot = torch.arange(STAGES - 1, device=self.device)
        self.reset()

    def reset(self, problem: torch.Tensor | None = None) -> None:
        """Start all episodes anew.

        Args:
            problem: (n,) int64, indices in the pool (default: drawn).
        """
        self.problem = self.draw() if problem is None else problem
        self.choices_made = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        self.cuts = self.choices_made[:, None].repeat(1, STAGES - 1)
        self.units = self.cuts.clone()
        self.turn: int | None = POINT

    def draw(self) -> torch.Tensor:
        """Draw a problem for each episode: (n,) int64 indices in the pool, uniform."""
        return torch.randint(
            len(self.pool), (self.count,), generator=self.generator, device=self.device
        )

    def step(self, actions: torch.Tensor, check: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Act in every episode.

        Args:
            actions: (n,) int64, as in the single environment: points, or 128 + units.
            check: whether actions may be illegal; an illegal one ends its episode with -1, after
                which ``turn`` is None until the next reset. Actions drawn from the mask need no
                check, and as every episode has an even number of steps, all of them are then at
                the same turn.

        Returns:
            rewards (n,) float64, and which episodes ended, (n,) bool.
        """
        legal = None
        if check:
            in_range = actions.clamp(0, ACTIONS - 1)
            legal = self.masks().gather(1, in_range[:, None])[:, 0] & (actions == in_range)
        chosen_now = self._slot == self._stage[:, None]
        odd = (self.choices_made % 2 == UNIT)[:, None]
        points = actions.clamp(0, POINTS - 1)[:, None]
        units = (actions - POINTS).clamp(0, UNITS - 1)[:, None]
        self.cuts = torch.where(chosen_now & ~odd, points, self.cuts)
        self.units = torch.where(chosen_now & odd, units, self.units)
        self.choices_made = self.choices_made + 1
        turn = None if check else self.turn
        self.turn = None if turn is None else 1 - turn
        if turn == POINT:  # an episode ends with the choice of a unit
            rewards = torch.zeros(self.count, dtype=torch.float64, device=self.device)
            return rewards, torch.zeros_like(rewards, dtype=torch.bool)
        tensors = self.pool.tensors
        ended = self.choices_made == 2 * (tensors.stages[self.problem] - 1)
        rewards = torch.where(ended, tensors.values(self.cuts, self.units, self.problem), 0.0)
        if legal is not None:
            rewards = torch.where(legal, rewards, ILLEGAL)
            ended = ended | ~legal
        self.problem = torch.where(ended, self.draw(), self.problem)
        self.choices_made = torch.where(ended, 0, self.choices_made)
        return rewards, ended

    def legal_points(self) -> torch.Tensor:
        """(n, 128) bool, legal points; valid only for episodes that choose a point next."""
        return self.pool.tensors.legal_points(self._stage, *self._start(), self.problem)

    def legal_units(self) -> torch.Tensor:
        """(n, 64) bool, legal units; valid only for episodes that choose a unit next."""
        end = self.cuts.gather(1, self._stage[:, None])[:, 0]
        return self.pool.tensors.legal_units(self._stage, *self._start(), end, self.problem)

    def masks(self) -> torch.Tensor:
        """(n, 192) bool, the legal actions: points first, then units."""
        points, units = self.legal_points(), self.legal_units()
        odd = (self.choices_made % 2 == UNIT)[:, None]
        return torch.cat([points & ~odd, units & odd], dim=1)

    def observation(self) -> dict[str, torch.Tensor]:
        """The observation of ``PipelinePlanVectorEnv``: float32 arrays, and ``step`` int64."""
        constant = {k: v.index_select(0, self.problem) for k, v in self.pool.constant.items()}
        plan = [
            torch.where(self._slot < count[:, None], chosen * (1 / size), -1.0)
            for count, chosen, size in (
                ((self.choices_made + 1) // 2, self.cuts, POINTS),
                (self.choices_made // 2, self.units, UNITS),
            )
        ]
        return {**constant, "plan": torch.stack(plan, dim=1).float(), "step": self.choices_made}

    def outlook(self) -> torch.Tensor:
        """(n, 129, 65) int8, the bottleneck table (``outlook``) of the stages not yet chosen."""
        behind = self.pool.tensors.stages[self.problem] - 1 - self._stage
        return self.pool.outlooks.index_select(0, STAGES * self.problem + behind)

    @property
    def _stage(self) -> torch.Tensor:
        """(n,) int64, the number of the stage that is being chosen."""
        return self.choices_made // 2

    def _start(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The point and the unit at which that stage starts, (n,) int64 each."""
        before = (self._stage - 1).clamp(min=0)[:, None]
        inner = self._stage > 0
        cuts, units = self.cuts.gather(1, before)[:, 0], self.units.gather(1, before)[:, 0]
        return torch.where(inner, cuts, 0), torch.where(inner, units, 0)
