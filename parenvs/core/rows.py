"""Games that observe one row of features per action, and share one scale of returns."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium import spaces

from parenvs.core.game import EVERY, Game, Rows
from parenvs.errors import ParenvsError, shown

AHEAD, BARE = LOOKS = ("ahead", "bare")
"""Values of the argument ``rows``: with look-ahead features, or without them."""
WORST = math.log(0.2)
"""Minimum return: of an illegal action, or of a plan of at least five times the reference cost."""
RANGE = 100.0
"""Features are clipped to plus and minus this; most lie in [-1, 1]."""


class Rowed(Game):
    """Plays episodes whose actions are described by features.

    The observation has ``actions`` (A, F), ``context`` (C,) and ``action_mask`` (A,). Feature 0 of
    an action is a greedy heuristic's score, whose argmax plays the heuristic. Look-ahead features
    evaluate the plan after each action; ``rows="bare"`` leaves them out. Features are 0 for illegal
    actions and for ended episodes.

    Attributes:
        columns: name of each action feature -> its description, the heuristic's score first.
        ahead: names of the look-ahead features.
        contexts: name of each feature of the state -> its description.
    """

    columns: ClassVar[Mapping[str, str]]
    ahead: ClassVar[frozenset[str]]
    contexts: ClassVar[Mapping[str, str]]
    rule: ClassVar[str]
    looks = False
    shown: tuple[str, ...] = ()

    def show_rows(self, size: int, rows: str) -> None:
        """Set up the spaces for A actions and the features that ``rows`` selects.

        Raises:
            ParenvsError: ``rows`` is none of ``LOOKS``.
        """
        if rows not in LOOKS:
            raise ParenvsError(f"rows must be one of {', '.join(LOOKS)}, not {shown(rows)}")
        self.looks = rows == AHEAD
        self.shown = tuple(x for x in self.columns if self.looks or x not in self.ahead)
        self.action_space = spaces.Discrete(size)
        self.observation_space = spaces.Dict(
            {
                "actions": spaces.Box(-RANGE, RANGE, (size, len(self.shown)), np.float32),
                "context": spaces.Box(-RANGE, RANGE, (len(self.contexts),), np.float32),
                "action_mask": spaces.Box(0, 1, (size,), np.int8),
            }
        )

    def as_rows(
        self, rows: Mapping[str, np.ndarray], context: np.ndarray, legal: np.ndarray, over: Any
    ) -> dict[str, np.ndarray]:
        """Return the observation of k episodes; arguments are (k, A) or (k, C)."""
        over = np.asarray(over)
        actions = np.zeros((*legal.shape, len(self.shown)), dtype=np.float32)
        for index, name in enumerate(self.shown):
            actions[..., index] = rows[name]
        actions[~legal | over[:, None]] = 0.0
        context[over] = 0.0
        # After the end every action is legal, as an all-zero mask would break samplers.
        return {
            "actions": actions,
            "context": context,
            "action_mask": (legal | over[:, None]).astype(np.int8),
        }


class RowGame(Rowed):
    """Plays episodes whose return is ``log(reference / cost)``, observed as action features.

    The reference is the best known cost of the problem, or the cost of a start plan where none is
    known; the return is at least ``WORST``. The reward of a step is the change of the return so
    far, so rewards sum to it; steps before the first complete plan have reward 0.

    A subclass writes features into ``actions`` and ``context`` and legal actions into ``mask`` in
    ``look``, and costs into ``cost`` in ``move``; ``put`` passes known costs to ``know``. If
    ``keeps`` is false, it builds ``actions`` in ``rows_of``, which saves the observation a copy.

    Attributes:
        foreseen: whether the environment is deterministic, so the best of several plays counts.
        keeps: whether ``actions`` are kept between steps.
        actions: (n, A, F) float32.
        context: (n, C) float32.
        mask: (n, A) bool.
        cost: (n,) float64, cost of the best plan of each episode so far, NaN without one.
        reference: (n,) float64, the cost at which the return is 0.
    """

    foreseen: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    after_end: ClassVar[float] = 0.0

    def __init__(self, count: int, size: int, rows: str = AHEAD) -> None:
        super().__init__(count)
        self.show_rows(size, rows)
        kept = count if self.keeps else 0
        self.actions = np.zeros((kept, size, len(self.shown)), dtype=np.float32)
        self.context = np.zeros((count, len(self.contexts)), dtype=np.float32)
        self.mask = np.zeros((count, size), dtype=np.bool_)
        self.cost = np.full(count, np.nan)
        self.reference = np.ones(count)
        self._known = np.full((len(FIGURES), count), np.nan)
        self._worth = np.zeros(count)
        self._stale = np.ones(count, dtype=np.bool_)

    @abstractmethod
    def look(self, rows: np.ndarray, part: Rows) -> None:
        """Compute ``actions``, ``context`` and ``mask`` of running episodes.

        Features of illegal actions must be 0 afterwards.

        Args:
            rows: numbers of the episodes, (k,) int64.
            part: the same as an index of arrays: ``EVERY`` if they are all.
        """

    def rows_of(self, rows: Rows) -> np.ndarray:
        """Return ``actions`` of episodes, (k, A, F), as ``look`` computed them last."""
        return self.actions[rows]

    @abstractmethod
    def move(self, rows: np.ndarray, actions: np.ndarray, part: Rows) -> None:
        """Apply legal actions, (k,) int64; update ``cost`` and ``over``. Rows as in ``look``."""

    def know(
        self,
        rows: Rows,
        start: Any,
        bound: Any = np.nan,
        best: Any = np.nan,
        optimum: Any = np.nan,
    ) -> None:
        """Set the known costs of the problems of rows; NaN where a cost is unknown."""
        for row, value in enumerate((start, bound, best, optimum)):
            self._known[row, rows] = value
        # Without a known plan the return is relative to the start plan, and still comparable
        # between policies on the same problem.
        self.reference[rows] = np.where(np.isnan(best), start, best)

    @property
    def known(self) -> np.ndarray:
        """The best known cost of each problem, (n,); its lower bound where no plan is known."""
        _, bound, best, _ = self._known
        return np.where(np.isnan(best), bound, best)

    def restarts(self, problem: Any, count: int) -> list[Any]:
        """Return ``count`` arguments of ``put`` that start a problem differently, itself first."""
        return [problem]

    def fresh(self, rows: Rows) -> None:
        """Reset the state of episodes: return 0, not over, features out of date."""
        self._worth[rows] = 0.0
        self.over[rows] = False
        self._stale[rows] = True

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        self._refresh()
        return self.mask[:]

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``."""
        self._refresh()
        rows, chosen = self._rows[rows], np.asarray(actions, dtype=np.int64)
        rewards = np.zeros(len(rows))
        legal = chosen.view(np.uint64) < self.mask.shape[1]  # where negative numbers are large
        legal &= self.mask[rows, np.where(legal, chosen, 0)]
        moving, legally = rows, cast(Rows, EVERY)
        if not legal.all():
            moving, chosen, legally = rows[legal], chosen[legal], legal
            illegal = rows[~legal]
            # The return becomes WORST whatever the episode had reached before.
            rewards[~legal] = WORST - self._worth[illegal]
            self.over[illegal], self.cost[illegal] = True, np.nan
            self._worth[illegal] = WORST
        if moving.size:
            part = EVERY if moving.size == self.count else moving
            self.move(moving, chosen, part)
            cost, before = self.cost[part], self._worth[part]
            # cost may be inf: a plan that exceeds the memory has log 0, clipped to WORST.
            with np.errstate(divide="ignore"):
                worth = np.maximum(np.log(self.reference[part] / cost), WORST)
            # No complete plan yet: nothing is gained or lost.
            worth = np.where(np.isnan(cost), before, worth)
            rewards[legally] = worth - before
            self._worth[part], self._stale[part] = worth, True
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        self._refresh()
        return {
            "actions": self.rows_of(rows),
            "context": self.context[rows],
            "action_mask": self.mask[rows].view(np.int8),
        }

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: the cost, ``FIGURES``, and the regret to the best cost known.

        The regret is the share of the cost that the best plan known saves, 1 without a plan.
        """
        cost, known = self.cost[rows], self._known[:, rows]
        best = known[BEST]
        regret = np.where(np.isnan(cost), 1.0, 1.0 - best / cost)
        regret = np.where(np.isnan(best), np.nan, regret)
        return {"cost": cost, **dict(zip(FIGURES, known, strict=True)), "regret": regret}

    @property
    def largest_return(self) -> float:
        """See ``Game.largest_return``; a start plan may be several times the optimum."""
        return -WORST

    def _refresh(self) -> None:
        """Compute the features of the episodes that have stepped since the last time."""
        stale = self._stale
        if not np.count_nonzero(stale):  # faster than any()
            return
        rows = (stale & ~self.over).nonzero()[0]
        if rows.size:
            self.look(rows, EVERY if rows.size == self.count else rows)
        ended = (stale & self.over).nonzero()[0]
        if ended.size:
            self.context[ended], self.mask[ended] = 0.0, True
            if self.keeps:
                self.actions[ended] = 0.0
        stale[:] = False


FIGURES = ("start", "bound", "best_known", "optimum")
"""Costs of the problem in the info at the end of an episode, as far as they are known."""
BEST = FIGURES.index("best_known")
