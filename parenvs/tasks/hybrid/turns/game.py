"""A problem with everything that episodes on it look up, and one episode of it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.turns.actions import (
    ACTIONS,
    DATA,
    FEWEST,
    GLOBAL,
    GLOBAL_CHUNKS,
    GLOBAL_MICRO_BATCH,
    GLOBAL_SHARED,
    OFFSETS,
    SIZES,
    STAGE_LAYERS,
    TO_THE_END,
    data_choice,
)
from parenvs.tasks.hybrid.turns.board import Board
from parenvs.tasks.hybrid.turns.columns import Columns
from parenvs.tasks.hybrid.turns.completable import Completable
from parenvs.tasks.hybrid.turns.episode import Episode
from parenvs.tasks.hybrid.turns.observe import shown
from parenvs.tasks.hybrid.turns.outcome import Choices, Outcome, outcome
from parenvs.tasks.hybrid.turns.rules import Rules

MASKS = ("legal", "completable")
"""What masks leave: whatever some plan begins with, or whatever some plan that fits begins with."""


class Setting:
    """A problem with what episodes on it look up.

    Attributes:
        problem: the problem.
        columns: the problem as arrays.
        shown: what is shown of it.
    """

    def __init__(self, problem: Hybrid, rules: Rules) -> None:
        """Look up everything.

        Raises:
            InfeasibleError: the problem is too large for turns.
        """
        self.problem, self.rules = problem, rules
        self.columns = Columns([problem], rules)
        self.shown = shown(self.columns)
        self._completable: Completable | None = None

    @cached_property
    def longest(self) -> np.ndarray:
        """(40,) largest end of a first stage that is not the last, by choice of the global turn."""
        limits = self.columns.limits[0]
        found = np.zeros(len(limits.opening), dtype=np.int64)
        for choice in np.flatnonzero(limits.opening).tolist():
            settings = (GLOBAL_MICRO_BATCH[choice], GLOBAL_CHUNKS[choice], GLOBAL_SHARED[choice])
            found[choice] = limits.longest_first(*(x.item() for x in settings))
        return found

    @property
    def completable(self) -> Completable:
        """What still fits, made when it is first asked for."""
        if self._completable is None:
            self._completable = Completable(self.columns)
        return self._completable


class Game:
    """One episode: choices, what is shown, and what it ends in.

    Attributes:
        setting: the problem.
        episode: the choices.
        taken: the choices, one after the other.
        turns: the turn of each.
        is_over: whether the plan is complete, or a choice was illegal.
        result: what a complete episode ended in.
    """

    def __init__(self, setting: Setting, mask: str = MASKS[0]) -> None:
        """Start with nothing chosen."""
        self.setting, self.mask = setting, mask
        self.episode = Episode(setting.columns.limits[0])
        self.board = Board(setting.shown, self.episode)
        self.taken: list[int] = []
        self.turns: list[int] = []
        self.is_over = False
        self.result: Outcome | None = None
        self._look()

    def _look(self) -> None:
        """Compute which choices are legal."""
        self.legal = self.episode.legal()
        if self.mask == MASKS[1]:
            self.legal &= self.setting.completable.choices(self.episode)

    def act(self, choice: int) -> bool:
        """Take a choice of this turn; return whether it was legal."""
        turn = self.episode.turn
        if self.is_over or not (0 <= choice < SIZES[turn] and self.legal[choice]):
            self.is_over = True
            return False
        self.taken.append(choice)
        self.turns.append(turn)
        self.episode.act(choice)
        self.board.update(turn)
        if self.episode.is_over:
            self.is_over = True
            self.result = outcome(self.setting.columns, Choices.of(self.episode))
        else:
            self._look()
        return True

    @property
    def value(self) -> float:
        """What a complete plan earns: bound over seconds, in (0, 1], or -1 if it does not fit."""
        assert self.result is not None
        if self.result.excess[0] > 0:
            return -1.0
        return float(self.setting.columns.bound[0] / self.result.length[0])

    def action_mask(self) -> np.ndarray:
        """Return the legal actions of one agent that takes all turns, (261,) bool."""
        mask = np.zeros(ACTIONS, dtype=bool)
        if self.is_over:
            mask[:] = True
        else:
            turn = self.episode.turn
            mask[OFFSETS[turn] : OFFSETS[turn] + SIZES[turn]] = self.legal
        return mask

    def plan(self) -> HybridPlan | None:
        """Return the plan of a complete episode, else None."""
        if self.result is None:
            return None
        modes = list(zip(*(x[:, 0].tolist() for x in self.result[2:]), strict=True))
        return self.episode.plan(self.setting.problem, modes)

    def finished(self) -> Game:
        """Return a game with the same choices that goes on to the end, this one if it is there.

        What is open ends the chain as early as it can, on as many devices and with as large a tp as
        it can, with ZeRO 1 and as few recomputed layers as fit.
        """
        if self.result is not None:
            return self
        other = Game(self.setting)
        for choice in self.taken:
            other.act(choice)
        while not other.is_over:
            possible = np.flatnonzero(other.legal)
            turn, choice = other.episode.turn, int(possible[-1])
            if turn == GLOBAL or (turn == STAGE_LAYERS and choice != TO_THE_END):
                choice = int(possible[0])
            elif turn == DATA:
                choice = data_choice(1, FEWEST)
            other.act(choice)
        return other
