"""What the partition environments ask, in which order, and what an answer settles and pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.partitioning.problem import PARTITIONED, REPLICATED, Partitioning, scope_of

STAKES = 5
"""Numbers on the class at stake."""
OPEN, REPLICATE, PARTITION = -1, 0, 1
"""What is known of a dimension or a class."""


@dataclass(frozen=True, eq=False)
class PartitionSpace:
    """The decisions of a task. V dimensions, K classes that can be decided, n questions.

    The more a class can earn, the earlier it is asked for: by the number of its dimensions under
    the paper's reward (arXiv 2007.04069), by the seconds that it saves under the step time; ties by
    path and dimension.

    Attributes:
        problem: the graph on its devices.
        task: ``"operator-partition"`` or ``"data-parallel"``.
        reward: ``"paper"`` or ``"step_time"``.
        linkage: whether a question is for a whole class; else each is for one dimension.
        dimensions: (V,) int64, positions in ``graph.dims`` of what is decided.
        classes: (K,) their classes that can be partitioned, in the order of the questions.
        fixed: (V,) bool, dimensions that can never be partitioned.
        questions: (n,) int64, index of the dimension that each question is for.
        question_class: per question, an index of ``classes``; -1 where nothing can be partitioned.
        members: per class, the indices of its dimensions.
        rivals: per class, the classes that partitioning it excludes.
        rival_members: per class, the indices of their dimensions.
        paid: per class, reward of all its dimensions replicated, and partitioned.
        initial: reward of the ``fixed`` dimensions, which the first step pays with linkage.
        stakes: (n+1, 5) float32 in [-1, 1], for each question: dimensions in the class and bytes of
            its entry parameters, each over all; seconds that it saves, over the replicated step's;
            dimensions, and seconds saved, of its rivals. The last row is zeros.
    """

    problem: Partitioning
    task: str
    reward: str
    linkage: bool
    dimensions: np.ndarray
    classes: np.ndarray
    fixed: np.ndarray
    questions: np.ndarray
    question_class: Sequence[int]
    members: Sequence[np.ndarray]
    rivals: Sequence[Sequence[int]]
    rival_members: Sequence[np.ndarray]
    paid: Sequence[tuple[float, float]]
    initial: float
    stakes: np.ndarray

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionSpace:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    @property
    def scope(self) -> str:
        """``"variables"``, ``"inputs"`` or ``"all"``."""
        return scope_of(self.task, self.reward)

    def chosen(self, known: np.ndarray | Sequence[int]) -> np.ndarray:
        """(..., C) bool, classes of the graph, from (..., K) decisions, 1 for partitioned."""
        split = np.asarray(known) == 1
        chosen = np.zeros((*split.shape[:-1], len(self.problem.classes)), dtype=bool)
        chosen[..., self.classes] = split
        return chosen

    @staticmethod
    @lru_cache(maxsize=32)
    def of(problem: Partitioning, task: str, reward: str, linkage: bool) -> PartitionSpace:
        """The space of a task; the same arguments give the same object.

        Raises:
            ParenvsError: unknown reward.
            InfeasibleError: no dimension can be partitioned.
        """
        return _build(problem, task, reward, linkage)


def _build(problem: Partitioning, task: str, reward: str, linkage: bool) -> PartitionSpace:
    graph, scope = problem.graph, scope_of(task, reward)
    _, weights = problem.weights(reward, scope)
    parameters = problem.parameters(scope)
    parameters = parameters[np.argsort([graph.paths[i] for i in parameters], kind="stable")]
    dims = problem.classes.dimensions_of(parameters)
    label = problem.classes.label[dims]
    wide = graph.dims[dims] > 1
    fixed = ~wide | problem.classes.blocked[label]
    if fixed.all():
        what = {"inputs": "batch input"}.get(scope, "variable")
        raise InfeasibleError(
            f"{graph.name}: no dimension of any {what} can be partitioned (rules="
            f"{problem.rules}, uneven={problem.uneven}); parenvs explain tells why"
        )
    order = np.argsort(-np.where(wide, weights[label], -np.inf), kind="stable")
    # Stable: dimensions of one class, and classes of one worth, stay in the order of their paths.
    first: dict[int, int] = {}
    for index in order[~fixed[order]].tolist():
        first.setdefault(int(label[index]), index)
    classes = np.array(list(first), dtype=np.int64)
    place = {c: k for k, c in enumerate(first)}
    own = np.array([-1 if f else place[int(c)] for c, f in zip(label, fixed, strict=True)])
    members = [np.flatnonzero(own == k) for k in range(len(classes))]
    rivals = [
        [place[c] for c in problem.classes.rivals(label).tolist() if c in place] for label in first
    ]
    nothing = np.zeros(0, dtype=np.int64)
    questions = np.array(list(first.values())) if linkage else order
    if reward == "paper":
        paid = [(REPLICATED * len(m), PARTITIONED * len(m)) for m in members]
    else:
        paid = [(0.0, float(weights[c])) for c in first]
    stakes = _stakes(problem, scope, classes, rivals)
    asked = own[questions]
    return PartitionSpace(
        problem=problem,
        task=task,
        reward=reward,
        linkage=linkage,
        dimensions=dims,
        classes=classes,
        fixed=fixed,
        questions=questions,
        question_class=asked.tolist(),
        members=members,
        rivals=rivals,
        rival_members=[np.concatenate([nothing, *(members[r] for r in one)]) for one in rivals],
        paid=paid,
        initial=REPLICATED * int(fixed.sum()) if reward == "paper" else 0.0,
        stakes=np.concatenate([stakes, np.zeros((1, STAKES), np.float32)])[[*asked, -1]],
    )


def _stakes(
    problem: Partitioning, scope: str, classes: np.ndarray, rivals: Sequence[Sequence[int]]
) -> np.ndarray:
    graph = problem.graph
    counts = problem.counts(scope)[classes] / len(problem.dimensions(scope))
    tensors = graph.parameter_tensor
    owner = np.repeat(np.arange(len(tensors)), np.diff(graph.dim_offset)[tensors])
    dims = problem.classes.dimensions_of(np.arange(len(tensors)))
    size = graph.tensor_bytes[tensors]
    held = np.bincount(problem.classes.label[dims], size[owner], len(problem.classes))
    gains = np.clip(problem.gain_seconds[classes] / problem.replicate_seconds, -1.0, 1.0)
    excluded = [counts[one].sum() for one in rivals]
    lost = [min(np.maximum(gains[one], 0.0).sum(), 1.0) for one in rivals]
    columns = [counts, np.minimum(held[classes] / size.sum(), 1.0), gains, excluded, lost]
    return np.stack(columns, axis=1).astype(np.float32)
