"""The decisions of the partition environments: their order, what each settles and pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

import parenvs.tasks.partition.formulas as formulas
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.problem import Partitioning

STAKES = 5
"""Number of figures on the class at stake in an observation."""
OPEN, REPLICATE, PARTITION = -1, 0, 1
"""Decision on a dimension or class: none yet, 0 replicates it, 1 partitions it."""


@dataclass(frozen=True, eq=False)
class PartitionSpace:
    """The decisions of a problem. V dimensions, K classes that can be decided, n questions.

    With linkage a question is for a whole class, and the answer settles its rivals too; without, it
    is for one dimension. The more a class can earn, the earlier it is asked for: by the number of
    its dimensions under the paper's reward (arXiv 2007.04069), by the seconds that it saves under
    the step time; ties by path and dimension.

    Attributes:
        problem: the graph on its devices, with its scope and reward.
        linkage: whether a question is for a whole class.
        dimensions: (V,) int64, positions in ``graph.dims`` of the dimensions that are decided.
        classes: (K,) their classes that can be partitioned, in the order of the questions.
        fixed: (V,) bool, dimensions that can never be partitioned.
        questions: (n,) int64, index of the dimension that each question is for.
        question_class: per question, an index of ``classes``; -1 where nothing can be partitioned.
        question_paid: per question, reward of replicating and of partitioning what it is for; the
            rivals that an answer excludes are paid on top.
        members: per class, the indices of its dimensions.
        rivals: per class, the classes that partitioning it excludes.
        rival_members: per class, the indices of their dimensions.
        paid: per class, reward of all its dimensions replicated, and partitioned.
        initial: reward of the ``fixed`` dimensions, which the first question pays with linkage.
        pays_once: whether a class pays only when it becomes known: the step time without linkage.
        stakes: (n+1, 5) float32 in [-1, 1], for each question: dimensions in the class and bytes of
            its entry parameters, each over all; seconds that it saves, over the replicated step's;
            dimensions, and seconds saved, of its rivals. The last row is zeros.
    """

    task: ClassVar[str] = "partition"
    problem: Partitioning
    linkage: bool
    dimensions: np.ndarray
    classes: np.ndarray
    fixed: np.ndarray
    questions: np.ndarray
    question_class: Sequence[int]
    question_paid: Sequence[tuple[float, float]]
    members: Sequence[np.ndarray]
    rivals: Sequence[Sequence[int]]
    rival_members: Sequence[np.ndarray]
    paid: Sequence[tuple[float, float]]
    initial: float
    pays_once: bool
    stakes: np.ndarray

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionSpace:
        """Itself: nothing in it changes, and environments that are forked share it."""
        return self

    @property
    def scope(self) -> str:
        """``"variables"`` or ``"inputs"``."""
        return self.problem.scope

    @property
    def reward(self) -> str:
        """``"paper"`` or ``"step_time"``."""
        return self.problem.reward

    def chosen(self, known: np.ndarray | Sequence[int]) -> np.ndarray:
        """(..., C) bool, classes of the graph, from (..., K) decisions, 1 for partitioned."""
        split = np.asarray(known) == PARTITION
        chosen = np.zeros((*split.shape[:-1], len(self.problem.classes)), dtype=bool)
        chosen[..., self.classes] = split
        return chosen

    @staticmethod
    @lru_cache(maxsize=32)
    def of(problem: Partitioning, linkage: bool = True) -> PartitionSpace:
        """The space of a problem; the same problem object gives the same space.

        Raises:
            InfeasibleError: no dimension can be partitioned.
        """
        return _build(problem, linkage)


def _build(problem: Partitioning, linkage: bool) -> PartitionSpace:
    graph, paper = problem.graph, problem.reward == "paper"
    weights = problem.returns.weights
    parameters = problem.parameters()
    parameters = parameters[np.argsort([graph.paths[i] for i in parameters], kind="stable")]
    dims = problem.classes.dimensions_of(parameters)
    label = problem.classes.label[dims]
    splittable = graph.dims[dims] > 1
    fixed = ~splittable | problem.classes.blocked[label]
    if fixed.all():
        what = {"inputs": "batch input"}.get(problem.scope, "variable")
        why = ""
        if problem.rules == "automap":
            why = (
                ": automap forbids to partition a dimension that an instruction reduces, as the "
                "loss and the gradients reduce that of the batch; rules='shardy' allows it"
            )
        raise InfeasibleError(
            f"{graph.name}: no dimension of any {what} can be partitioned (rules="
            f"{problem.rules}, uneven={problem.uneven}){why}; parenvs explain tells more"
        )
    order = np.argsort(-np.where(splittable, weights[label], -np.inf), kind="stable")
    # Stable: dimensions of one class, and classes of one worth, stay in the order of their paths.
    first: dict[int, int] = {}  # class of the graph -> the dimension that is asked for first
    for index in order[~fixed[order]].tolist():
        first.setdefault(int(label[index]), index)
    classes = np.array(list(first), dtype=np.int64)
    place = {c: k for k, c in enumerate(first)}
    own = np.array([-1 if f else place[int(c)] for c, f in zip(label, fixed, strict=True)])
    members = [np.flatnonzero(own == k) for k in range(len(classes))]
    rivals = [
        [place[c] for c in problem.classes.rivals(label).tolist() if c in place] for label in first
    ]
    questions = np.array(list(first.values())) if linkage else order
    question_class = own[questions].tolist()
    if paper:
        paid = [
            (formulas.paper_reward(0, len(held)), formulas.paper_reward(1, len(held)))
            for held in members
        ]
        initial = formulas.paper_reward(0, int(fixed.sum()))
    else:
        paid, initial = [(0.0, float(weights[c])) for c in first], 0.0
    if linkage:
        question_paid = [paid[k] for k in question_class]
        replicated, partitioned = question_paid[0]
        question_paid[0] = (replicated + initial, partitioned + initial)
    elif paper:
        single = (formulas.paper_reward(0), formulas.paper_reward(1))
        question_paid = [single] * len(questions)
    else:
        question_paid = [paid[k] if k >= 0 else (0.0, 0.0) for k in question_class]
    nobody = np.zeros(0, dtype=np.int64)
    stakes = np.concatenate([_stakes(problem, classes, rivals), np.zeros((1, STAKES), np.float32)])
    return PartitionSpace(
        problem=problem,
        linkage=linkage,
        dimensions=dims,
        classes=classes,
        fixed=fixed,
        questions=questions,
        question_class=question_class,
        question_paid=question_paid,
        members=members,
        rivals=rivals,
        rival_members=[np.concatenate([nobody, *(members[r] for r in row)]) for row in rivals],
        paid=paid,
        initial=initial,
        pays_once=not linkage and not paper,
        stakes=stakes[[*question_class, -1]],
    )


def _stakes(
    problem: Partitioning, classes: np.ndarray, rivals: Sequence[Sequence[int]]
) -> np.ndarray:
    """(K, 5) float32, the figures on each class; see ``PartitionSpace.stakes``."""
    graph = problem.graph
    counts = problem.counts()[classes] / len(problem.dimensions())
    tensors = graph.parameter_tensor
    owner = np.repeat(np.arange(len(tensors)), np.diff(graph.dim_offset)[tensors])
    dims = problem.classes.dimensions_of(np.arange(len(tensors)))
    size = graph.tensor_bytes[tensors]
    parameter_bytes = np.bincount(problem.classes.label[dims], size[owner], len(problem.classes))
    gains = np.clip(problem.gain_seconds[classes] / problem.replicate_seconds, -1.0, 1.0)
    excluded = [counts[row].sum() for row in rivals]
    lost = [min(np.maximum(gains[row], 0.0).sum(), 1.0) for row in rivals]
    columns = [
        counts,
        np.minimum(parameter_bytes[classes] / size.sum(), 1.0),
        gains,
        excluded,
        lost,
    ]
    return np.stack(columns, axis=1).astype(np.float32)
