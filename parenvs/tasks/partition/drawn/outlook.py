"""What an episode on any graph sees of its problem, in numbers of one size.

A problem's limit of memory holds at every moment of its step, and there are tens of thousands. An
``Outlook`` watches a few of them: those at which some plans need most. Tensors whose dimensions are
in the same classes form a group, and so do instructions whose factors are. As a plan splits a
tensor at most once, and an instruction too, the best that can still happen to each group alone is a
bound of what can happen to all: of the bytes at a watched moment from below, and of the return from
above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import OPEN, PARTITION, REPLICATE, PartitionSpace
from parenvs.tasks.partition.step import batch_classes

WATCHED = 32
"""Most moments that are watched."""
SAMPLES = 24
"""Random plans whose fullest moments are watched."""
ROUNDS = 12
"""Plans of little memory whose fullest moments are watched."""
MARGIN = 1e-9
"""Share of the limit by which rounding may raise a bound."""
CLASS = (
    "dimensions", "bytes", "seconds", "seconds_log", "all_reduce", "memory", "share", "batch",
    "parameters", "excluded_dimensions", "excluded_seconds", "excluded_memory", "there",
)  # fmt: skip
"""Names of the figures on a class."""
_OWN = CLASS.index("excluded_dimensions")  # figures in front of it do not change in an episode
DECADES = 6
"""Decades of a logarithmic figure, below which it is 0."""
DOUBLINGS = 4
"""Doublings over the limit of memory at which a figure on memory is 1."""


class Groups(NamedTuple):
    """Tensors or instructions by the classes that can split them. G groups, P pairs.

    Attributes:
        of: (P,) the class of each pair of a group and a class of it, group by group.
        starts: (G,) where each group begins in ``of``.
        weights: (G, m) what splitting a group wholly would save, in bytes at each watched moment
            or as a share of the replicated step's seconds.
    """

    of: np.ndarray
    starts: np.ndarray
    weights: np.ndarray

    def saved(self, share: np.ndarray) -> np.ndarray:
        """Return the most that can be saved, (k, m).

        Args:
            share: (k, K) the share that each class saves where it splits; 0 if it may not.
        """
        if not len(self.starts):
            return np.zeros((len(share), self.weights.shape[1]))
        best = np.maximum.reduceat(share[:, self.of], self.starts, axis=1)
        return best @ self.weights


class Look(NamedTuple):
    """What replicating (0) and partitioning (1) the class at stake can come to.

    Attributes:
        after: (2, K) decisions then.
        gain: (2,) the most that the classes then open can add to the return.
        least: (2,) bytes that a device needs at least, however the rest is decided.
        held: bytes of the decisions before, at the fullest watched moment.
    """

    after: np.ndarray
    gain: np.ndarray
    least: np.ndarray
    held: float


@dataclass(frozen=True, eq=False)
class Outlook:
    """A problem as the environment of many graphs plays it. K classes, M watched moments.

    Attributes:
        problem: the problem, with a limit of memory.
        space: its questions, with linkage.
        name: what infos call it.
        gain: (K,) share of the replicated step's seconds that each class saves.
        rivals: (K, K) float64, 1 where classes exclude each other, else 0.
        excluded: per class, the classes that it excludes.
        moments: (M,) the watched moments.
        whole: (M,) bytes of the replicated plan at each.
        tensors: groups of the tensors that are in memory at the watched moments.
        instructions: groups of the instructions that take time.
        spared: (K,) share of a tensor's bytes that a class saves where it splits it.
        paid: (K,) share of an instruction's seconds that a class saves, less its all-reduces, which
            are spread over the instructions that it splits; 0 where it saves nothing.
        figures: (K, 13) float32, the figures on each class; those on what it excludes, and the
            last, are 0.
        weights: (K, 3) dimensions, seconds and bytes, of which ``figures`` has the shares.
        optimum: the return of the best plan, NaN if it is not known.
    """

    problem: Partitioning
    space: PartitionSpace
    name: str
    gain: np.ndarray
    rivals: np.ndarray
    excluded: tuple[np.ndarray, ...]
    moments: np.ndarray
    whole: np.ndarray
    tensors: Groups
    instructions: Groups
    spared: np.ndarray
    paid: np.ndarray
    figures: np.ndarray
    weights: np.ndarray
    optimum: float = np.nan

    def __deepcopy__(self, memo: dict[int, Any]) -> Outlook:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    @property
    def limit(self) -> float:
        """Bytes that plans may use on a device."""
        return self.problem.memory_limit

    @classmethod
    def of(cls, problem: Partitioning, name: str = "", optimum: float = np.nan) -> Outlook:
        """Look at a problem; this takes some thirty times as long as judging a plan.

        Args:
            problem: the problem.
            name: what infos call it (default: the instance).
            optimum: the return of the best plan, if it is known.

        Raises:
            InfeasibleError: no dimension can be partitioned.
        """
        space = PartitionSpace.of(problem, True)
        classes = space.classes
        excluded = tuple(np.array(row, dtype=np.int64) for row in space.rivals)
        rivals = np.zeros((len(classes), len(classes)))
        for k, row in enumerate(excluded):
            rivals[k, row] = 1.0
        seconds = problem.replicate_seconds or 1.0
        saved, gain = problem.saved_seconds[classes], problem.gain_seconds[classes]
        share = np.divide(gain, saved, out=np.zeros(len(classes)), where=saved > 0)
        spared = 1.0 - problem.device_share[classes]
        moments = _fullest(problem, space, excluded)
        linear = problem.footprint.saved_at(moments[0])
        memory = linear.saved[classes] / max(linear.whole, 1.0)
        figures, weights = _figures(problem, space, gain / seconds, memory)
        return cls(
            problem=problem,
            space=space,
            name=name or problem.instance,
            gain=gain / seconds,
            rivals=rivals,
            excluded=excluded,
            moments=np.array(moments),
            whole=np.array([problem.footprint.saved_at(at).whole for at in moments]),
            tensors=_tensors(problem, space, moments),
            instructions=_instructions(problem, space, seconds),
            spared=spared,
            paid=spared * np.maximum(share, 0.0),
            figures=figures,
            weights=weights,
            optimum=optimum,
        )

    def look(self, known: np.ndarray, stake: int) -> Look:
        """Return what both choices at a class can come to.

        Args:
            known: (K,) decisions: 1 partitioned, 0 replicated, -1 open.
            stake: the class, which is open.
        """
        after = np.empty((2, len(known)), dtype=known.dtype)
        after[:] = known
        after[0, stake], after[1, stake] = REPLICATE, PARTITION
        after[1, self.excluded[stake]] = REPLICATE
        share = np.empty((3, len(known)))
        share[:2], share[2] = after != REPLICATE, known == PARTITION
        share *= self.spared
        bytes_at = self.whole - self.tensors.saved(share)
        peak = bytes_at.max(axis=1)
        gain = self.instructions.saved((after == OPEN) * self.paid)[:, 0]
        return Look(after, gain, peak[:2], float(peak[2]))

    def fits(self, needed: np.ndarray) -> np.ndarray:
        """Return whether bytes of ``bounds`` may keep to the limit, elementwise."""
        return needed <= self.limit * (1.0 + MARGIN)

    def described(self, classes: np.ndarray, open_classes: np.ndarray) -> np.ndarray:
        """Return the figures on classes as they are now, (k, 13) float32.

        Args:
            classes: (k,) indices of classes.
            open_classes: (K,) bool, the classes that are not decided.
        """
        rows = self.figures[classes]
        excluded = self.rivals[classes] @ (self.weights * open_classes[:, None])
        rows[:, _OWN:-1] = np.minimum(excluded, 1.0)
        rows[:, -1] = 1.0
        return rows


def fill(needed: float, limit: float) -> float:
    """Return bytes over the limit as a figure in [-1, 1]: 0 is the limit, 1 is 16 times it."""
    return min(max(math.log2(max(needed, 1.0) / limit) / DOUBLINGS, -1.0), 1.0)


def logarithmic(share: float) -> float:
    """Return a share as a figure in [-1, 1] by size: 1 is all, 0.5 a thousandth, 0 a millionth."""
    size = math.log10(max(abs(share), 10.0**-DECADES)) / DECADES + 1.0
    return math.copysign(min(size, 1.0), share)


def _figures(
    problem: Partitioning, space: PartitionSpace, gain: np.ndarray, memory: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the constant figures on each class, and ``Outlook.weights``."""
    classes = space.classes
    stakes = np.zeros((len(classes), 5), dtype=np.float32)
    stakes[np.asarray(space.question_class)] = space.stakes[:-1]
    seconds = problem.replicate_seconds or 1.0
    columns = {
        "dimensions": stakes[:, 0],
        "bytes": stakes[:, 1],
        "seconds": np.clip(gain, -1.0, 1.0),
        "seconds_log": np.array([logarithmic(share) for share in gain.tolist()]),
        "all_reduce": np.minimum(problem.all_reduce_seconds[classes] / seconds, 1.0),
        "memory": np.clip(memory, 0.0, 1.0),
        "share": problem.device_share[classes],
        "batch": batch_classes(problem.classes)[classes],
        "parameters": problem.counts("variables")[classes] > 0,
    }
    figures = np.zeros((len(classes), len(CLASS)), dtype=np.float32)
    for name, values in columns.items():
        figures[:, CLASS.index(name)] = values
    weights = np.stack([stakes[:, 0], np.maximum(gain, 0.0), np.clip(memory, 0.0, 1.0)], axis=1)
    return figures, weights.astype(np.float64)


def _fullest(
    problem: Partitioning, space: PartitionSpace, excluded: tuple[np.ndarray, ...]
) -> list[int]:
    """Return the fullest moments of some plans, that of the replicated one first.

    The plans are random ones, and plans of little memory: each takes the classes that save most at
    the fullest moment of the one before.
    """
    rng = np.random.default_rng(0)
    known = np.full(len(space.classes), REPLICATE)
    at = problem.footprint.memory(space.chosen(known)).at
    fullest = {at: None}
    for _ in range(ROUNDS):
        saved = problem.footprint.saved_at(at).saved[space.classes]
        order = np.argsort(-saved, kind="stable")
        chosen = space.chosen(_taken(order[saved[order] > 0], excluded))
        at = problem.footprint.memory(chosen).at
        if at in fullest:
            break
        fullest[at] = None
    for number in range(SAMPLES):
        sampled = np.flatnonzero(rng.random(len(known)) < (0.9, 0.6, 0.3)[number % 3])
        chosen = space.chosen(_taken(sampled, excluded))
        fullest[problem.footprint.memory(chosen).at] = None
    return list(fullest)[:WATCHED]


def _taken(order: np.ndarray, excluded: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the decisions, (K,), that partition classes in an order unless one excludes them."""
    known = np.full(len(excluded), OPEN)
    for k in order.tolist():
        if known[k] == OPEN:
            known[k] = PARTITION
            known[excluded[k]] = REPLICATE
    return known


def _tensors(problem: Partitioning, space: PartitionSpace, moments: list[int]) -> Groups:
    """Return the groups of the tensors in memory at some moments, with their bytes at each."""
    graph, footprint = problem.graph, problem.footprint
    labels, owner = (
        problem.classes.label,
        np.repeat(np.arange(len(graph.element_type)), np.diff(graph.dim_offset)),
    )
    own = _places(problem, space)[labels]
    bytes_at = np.stack([footprint.bytes_at(at) for at in moments], axis=1)
    counts = (own >= 0) & (graph.dims > 1) & (bytes_at.sum(axis=1) > 0)[owner]
    return _grouped(owner[counts], own[counts], bytes_at)


def _instructions(problem: Partitioning, space: PartitionSpace, seconds: float) -> Groups:
    """Return the groups of the instructions that take time, with their shares of it."""
    factors = problem.classes.factors
    own = _places(problem, space)[problem.classes.factor_class]
    share = problem.seconds[:, None] / seconds
    counts = (own >= 0) & (problem.seconds[factors.instruction] > 0)
    return _grouped(factors.instruction[counts], own[counts], share)


def _places(problem: Partitioning, space: PartitionSpace) -> np.ndarray:
    """Return the index in the space of each class of the graph, (C,), -1 if it is none."""
    position = np.full(len(problem.classes), -1)
    position[space.classes] = np.arange(len(space.classes))
    return position


def _grouped(owner: np.ndarray, own: np.ndarray, values: np.ndarray) -> Groups:
    """Group things by the set of their classes.

    Args:
        owner: (p,) the thing of each pair of a thing and a class.
        own: (p,) its class.
        values: (things, m) what is added up in a group.
    """
    pairs = np.unique(np.stack([owner, own], axis=1), axis=0)
    things, first, sizes = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    sets: dict[bytes, int] = {}
    of: list[np.ndarray] = []
    group = np.zeros(len(things), dtype=np.int64)
    for row, (begin, size) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True)):
        members = pairs[begin : begin + size, 1]
        group[row] = sets.setdefault(members.tobytes(), len(sets))
        if len(sets) > len(of):
            of.append(members)
    weights = np.zeros((len(sets), values.shape[1]))
    np.add.at(weights, group, values[things])
    starts = np.cumsum([0, *map(len, of)])[:-1] if of else np.zeros(0, dtype=np.int64)
    return Groups(np.concatenate([np.zeros(0, dtype=np.int64), *of]), starts, weights)
