"""Episodes of ``PartitionPlan-v0``, and their problems by name."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from parenvs.core.game import outcome_of
from parenvs.core.plan import ILLEGAL
from parenvs.core.sets import proven_optimum
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.partition import sets
from parenvs.tasks.partition.drawn.files import SetRow
from parenvs.tasks.partition.drawn.outlook import CLASS, Outlook, fill, logarithmic
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import OPEN, PARTITION, REPLICATE

AHEAD = 4
"""Classes after the one at stake that an observation describes."""
CHOICE = ("return", "least", "may_fit")
"""Names of the figures on each of the two choices."""
PLAN = (
    "decided", "earned", "advantage", "memory", "replicated_memory", "devices", "one_server",
    "micro_batches", "recompute", "classes",
)  # fmt: skip
"""Names of the figures on the plan so far and its problem."""
MAX_CLASSES = 1024
"""Most classes of a problem, and steps of an episode."""
KEPT = 256
"""Most problems of sets that a process keeps."""
DOUBLINGS = 10
"""Doublings of devices, micro-batches and classes at which their figures are 1."""


class Episode:
    """The decisions on one problem; the single environment plays one, a batch n.

    Attributes:
        outlook: the problem.
        known: (K,) int64 decisions, in the order of the questions: 1 partitioned, 0 replicated, -1
            open.
        position: the class at stake; K at the end.
        earned: return so far.
        over: whether the episode has ended.
        outcome: what infos say at the end.
    """

    def __init__(self, outlook: Outlook) -> None:
        self.outlook = outlook
        self._constant = _constant(outlook)
        self.start()

    def start(self) -> None:
        """Begin with nothing decided."""
        self.known = np.full(len(self.outlook.gain), OPEN, dtype=np.int64)
        self.position, self.earned, self.over = 0, 0.0, False
        self.outcome: dict[str, float] = {}
        self._look_ahead()

    def play(self, choice: int) -> float:
        """Replicate (0) or partition (1) the class at stake, and return the reward.

        Any other number ends the episode with a return of -1.
        """
        outlook = self.outlook
        if choice not in (REPLICATE, PARTITION):
            self.over = True
            self.outcome = outcome_of(ILLEGAL, outlook.optimum)
            reward = ILLEGAL - self.earned
        else:
            reward = float(outlook.gain[self.position]) if choice == PARTITION else 0.0
            self.known = self._look.after[choice]
            remaining = np.flatnonzero(self.known[self.position :] == OPEN)
            self.position = self.position + int(remaining[0]) if remaining.size else len(self.known)
            if not remaining.size:
                reward = self._end() - self.earned
        self.earned += reward
        if not self.over:
            self._look_ahead()
        return reward

    def observation(self) -> dict[str, np.ndarray]:
        """Return the observation as fresh arrays."""
        outlook, limit = self.outlook, self.outlook.limit
        classes = np.zeros((1 + AHEAD, len(CLASS)), dtype=np.float32)
        choices = np.zeros((2, len(CHOICE)), dtype=np.float32)
        plan = self._constant.copy()
        plan[0], plan[1] = 1.0, self.earned
        if not self.over:
            open_classes = self.known == OPEN
            shown = open_classes.nonzero()[0]
            plan[0] -= len(shown) / len(open_classes)
            shown = shown[: 1 + AHEAD]  # classes in front of the one at stake are decided
            classes[: len(shown)] = outlook.described(shown, open_classes)
            gain, least = self._look.gain, self._look.least
            returns = [self.earned + gain[0], self.earned + outlook.gain[shown[0]] + gain[1]]
            for choice in (REPLICATE, PARTITION):
                choices[choice] = (
                    min(max(returns[choice], -1.0), 1.0),
                    fill(float(least[choice]), limit),
                    outlook.fits(least[choice]),
                )
            plan[2] = logarithmic(float(returns[1] - returns[0]))
        plan[3] = fill(self._held, limit)
        return {"classes": classes, "choices": choices, "plan": plan.clip(-1.0, 1.0)}

    def chosen(self) -> np.ndarray:
        """Return the classes of the graph that are partitioned so far, (C,) bool."""
        return self.outlook.space.chosen(self.known)

    def _look_ahead(self) -> None:
        """Work out both choices at the class at stake, and what they can come to."""
        self._look = self.outlook.look(self.known, self.position)
        self._held = self._look.held

    def _end(self) -> float:
        """End the episode of a complete plan, and return what it is worth."""
        problem, chosen = self.outlook.problem, self.chosen()
        self.over = True
        value, peak = float(problem.value(chosen)), problem.peak(chosen)
        self._held = peak
        self.outcome = {
            "length_seconds": float(problem.step_seconds(chosen)),
            "excess_bytes": peak - problem.memory_limit,
            **outcome_of(value, self.outlook.optimum),
        }
        return value


def _constant(outlook: Outlook) -> np.ndarray:
    """Return the figures of ``PLAN`` that do not change in an episode; the others are 0."""
    cluster, step = outlook.problem.cluster, outlook.problem.step
    own = {
        "replicated_memory": fill(float(outlook.whole.max()), outlook.limit),
        "devices": np.log2(cluster.devices) / DOUBLINGS,
        "one_server": cluster.servers == 1,
        "micro_batches": np.log2(step.micro_batches) / DOUBLINGS,
        "recompute": step.recomputes,
        "classes": np.log2(len(outlook.gain)) / DOUBLINGS,
    }
    return np.array([min(float(own.get(name, 0.0)), 1.0) for name in PLAN], dtype=np.float32)


def named(name: object) -> Outlook:
    """Return a problem of a shipped set, or of a file of one, whose settings are read anew.

    Raises:
        ParenvsError: there is no such problem, or it is of too many classes.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if sets.is_set(name):
        example = sets.members(name)[0]
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {example}")
    return _kept(name, sets.row_of(name))


def looked(problem: Partitioning, name: str = "", optimum: float = np.nan) -> Outlook:
    """Return the outlook of a problem.

    Raises:
        InfeasibleError: it has too many classes, or none.
        ParenvsError: it has no limit of memory, or pays another reward.
    """
    if problem.scope != "variables" or problem.reward != sets.REWARD:
        raise ParenvsError(
            "problem: PartitionPlan-v0 plays the scope variables with the reward "
            f"{sets.REWARD}, not {problem.scope} with {problem.reward}"
        )
    if problem.step.limit is None:
        raise ParenvsError(f"problem: {problem.instance} has no limit; give memory_limit='device'")
    outlook = Outlook.of(problem, name, optimum)
    if len(outlook.gain) > MAX_CLASSES:
        raise InfeasibleError(
            f"{outlook.name}: {len(outlook.gain):,} classes; PartitionPlan-v0 has at most "
            f"{MAX_CLASSES:,}"
        )
    return outlook


def _kept(name: str, row: SetRow) -> Outlook:
    """Return a problem of a set, which is built once, unless the file of its graph changes."""
    path = Path(row.instance)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _built(name, json.dumps(row.to_json(), sort_keys=True, default=str), stamp)


@lru_cache(maxsize=KEPT)
def _built(name: str, row: str, stamp: int) -> Outlook:
    """Build a problem; ``stamp``, the time of its graph's last change, is part of the key."""
    optimum = proven_optimum(name)
    problem = sets.build(SetRow(**json.loads(row)), name)
    return looked(problem, name, np.nan if optimum is None else optimum)
