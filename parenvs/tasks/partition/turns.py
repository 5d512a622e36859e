"""The turns of the partition environments for n episodes at once, on one space."""

from __future__ import annotations

import numpy as np

from parenvs.arrays import running_sums
from parenvs.core.game import EVERY, Rows
from parenvs.core.plan import ILLEGAL
from parenvs.tasks.partition.space import OPEN, PARTITION, PartitionSpace
from parenvs.tasks.partition.transitions import transitions_of

MASKS = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.bool_)
"""Legal actions if the class at stake is replicated (row 0), partitioned (1), or open (-1)."""
FORBIDDEN = np.array([1, 0, 2])
"""The illegal action in these cases; 2, which is no action, if the class is open."""


class Turns:
    """The decisions of n episodes; see ``Transitions``.

    Args:
        count: n.
        space: the questions, and the consequences and rewards of the answers.
        memory: whether ``figures`` have ``excess_bytes``; with a limit of memory they always do.

    Attributes:
        decisions: (n, V) int8, as in the observation.
        known: (n, K+2) int8.
        position: (n,) int64, index of the question at stake.
        stake: (n,) int64, decision known of the class at stake, or ``OPEN``.
        earned: (n,) float64, returns so far, with a limit of memory.
    """

    def __init__(self, count: int, space: PartitionSpace, memory: bool) -> None:
        self.space, self.memory = space, memory
        self.transitions = transitions = transitions_of(space)
        # With linkage no action contradicts a decision, as only open classes are asked about.
        self.strict = not space.linkage
        self.limited = space.problem.step.limit is not None
        self.decisions = np.tile(transitions.first_decisions, (count, 1))
        self.known = np.tile(transitions.first_known, (count, 1))
        self._row = np.arange(count) * self.known.shape[1]
        self.position = np.zeros(count, dtype=np.int64)
        self.stake = np.zeros(count, dtype=np.int64)
        self.earned = np.zeros(count)
        # Constant arrays: making them in every step, or using numbers instead, takes longer.
        self._one = np.ones(count, dtype=np.int64)
        self._other_bits = ~self._one  # bits that are 0 in every legal action
        self.start(EVERY)

    def start(self, rows: Rows) -> None:
        """Start episodes with nothing decided but what can never be partitioned."""
        transitions = self.transitions
        self.decisions[rows] = transitions.first_decisions
        self.known[rows] = transitions.first_known
        self.position[rows] = 0
        self.earned[rows] = 0.0
        if self.strict:
            self.stake[rows] = transitions.first_known[transitions.column[0]]

    def play(self, rows: Rows, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decide what is at stake in some episodes.

        Args:
            rows: the episodes; all others stay as they are.
            actions: (k,) int64 of any size.

        Returns:
            Rewards (k,) float64, and which episodes are over, (k,) bool.
        """
        transitions, position = self.transitions, self.position
        nothing = len(transitions.paid) - 1
        idle = None
        if rows is not EVERY:
            idle = np.ones(len(position), dtype=np.bool_)
            idle[rows] = False
            given, actions = actions, np.zeros(len(position), dtype=np.int64)
            actions[rows] = given
        wrong = self._wrong(actions, idle)
        codes = position + position
        codes += actions
        position += self._one
        for still in (wrong, idle):
            if still is not None and len(still):
                codes[still] = nothing
                position[still] -= 1
        rewards = transitions.paid.take(codes)
        if self.space.pays_once:
            rewards = np.where(self.stake == OPEN, rewards, 0.0)
        elif transitions.varies is not None:
            varying = transitions.varies.take(codes).nonzero()[0]
            if varying.size:
                rewards[varying] = transitions.varying(self.known[varying], codes[varying])
        transitions.decisions.write(self.decisions, codes)
        transitions.known.write(self.known, codes)
        self._look()
        over = transitions.last.take(position)
        if wrong.size:
            rewards[wrong], over[wrong] = ILLEGAL, True
        if self.limited:
            complete = self.is_complete() if idle is None else self.is_complete() & ~idle
            ended = complete.nonzero()[0]
            if ended.size:
                above = ended[self.figures(ended)["excess_bytes"] > 0]
                rewards[above] = ILLEGAL - self.earned[above]
            self.earned += rewards if idle is None else np.where(idle, 0.0, rewards)
        return rewards[rows], over[rows]

    def legal(self, masked: bool) -> np.ndarray:
        """Return the legal actions, (n, 2) bool; without ``masked`` all are."""
        if self.strict and masked:
            return MASKS.take(self.stake, axis=0)
        return np.ones((len(self.position), 2), dtype=np.bool_)

    def is_complete(self) -> np.ndarray:
        """Return which plans are complete, (n,) bool."""
        return self.position == len(self.space.questions)

    def chosen(self, rows: Rows) -> np.ndarray:
        """Return the classes of the graph that are partitioned so far, (k, C) bool."""
        return self.space.chosen(self.known[rows, : len(self.space.classes)])

    def figures(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return what infos say of complete plans, (k,) float64 each."""
        problem, classes = self.space.problem, self.space.classes
        split = np.ascontiguousarray(self.known[rows, : len(classes)].T) == PARTITION
        saved = np.where(split, problem.gain_seconds[classes, None], 0.0)
        figures = {"length_seconds": problem.replicate_seconds - running_sums(saved)[-1]}
        if self.memory or self.limited:
            peaks = np.array([problem.peak(one) for one in self.chosen(rows)])
            figures["excess_bytes"] = peaks - problem.memory_limit
        return figures

    def _wrong(self, actions: np.ndarray, idle: np.ndarray | None) -> np.ndarray:
        """Return the episodes whose action is illegal, (k,) int64."""
        wrong = (actions & self._other_bits).nonzero()[0]
        if self.strict:
            clash = actions == FORBIDDEN.take(self.stake)
            clash[wrong] = True
            if idle is not None:
                clash &= ~idle
            wrong = clash.nonzero()[0]
        return wrong

    def _look(self) -> None:
        """Look up the decision known of the class at stake; with linkage, skip decided classes."""
        if self.strict:
            column = self.transitions.column.take(self.position)
            self.stake = self.known.take(self._row + column).astype(np.int64)  # an index
            return
        stake = self.known.take(self._row + self.position)
        known = (~stake).nonzero()[0]  # ~OPEN == 0
        if known.size:  # all earlier classes are decided, so the next is the first open one
            self.position[known] = (self.known[known] == OPEN).argmax(axis=1)
