"""Partitions without proof: fixed plans, greedy choices, random search, and plans of experts."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.partition.explain import Explainer
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.megatron import megatron_classes
from parenvs.tasks.partition.problem import Partitioning

_BATCH = 4096  # episodes drawn at once


def greedy(space: PartitionSpace) -> Answer:
    """Partition the class of the highest return per class that this rules out, until none is left.

    This is the rule GWMIN for weighted independent sets (Sakai, Togasaki, Yamazaki, Discrete
    Applied Mathematics 126, 2003): it takes the class of largest weight / (open rivals + 1). The
    weight of all that it takes is at least the sum of weight / (rivals + 1) over the classes.
    """
    begin = time.perf_counter()
    weights = space.problem.returns.weights[space.classes]
    open_ = weights > 0
    actions = np.zeros(len(weights), dtype=int)
    while open_.any():
        ruled_out = np.array([1 + open_[rivals].sum() for rivals in space.rivals])
        best = int(np.where(open_, weights / ruled_out, -np.inf).argmax())
        actions[best] = 1
        open_[[best, *space.rivals[best]]] = False
    return _answer(space, space.chosen(actions), "greedy", begin=begin)


def random_episodes(space: PartitionSpace, episodes: int, rng: np.random.Generator) -> np.ndarray:
    """(episodes, K) bool: which classes episodes of uniformly random legal actions partition."""
    draws = rng.random((episodes, len(space.classes))) < 0.5
    actions = np.full(draws.shape, -1, dtype=np.int8)  # -1: not asked for yet
    for k, rivals in enumerate(space.rivals):
        asks = actions[:, k] < 0
        actions[asks, k] = draws[asks, k]
        splits = np.flatnonzero(asks & draws[:, k])
        actions[np.ix_(splits, np.array(rivals, dtype=int))] = 0
    return actions == 1


def random_search(space: PartitionSpace, evaluations: int, rng: np.random.Generator) -> Answer:
    """The best of ``evaluations`` random episodes.

    Raises:
        TimeLimitError: none of them keeps to the problem's limit of memory.
    """
    begin = time.perf_counter()
    best: tuple[float, np.ndarray] | None = None
    evaluations = max(evaluations, 1)
    for start in range(0, evaluations, _BATCH):
        chosen = space.chosen(random_episodes(space, min(_BATCH, evaluations - start), rng))
        found = best_fitting(space.problem, chosen)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        raise TimeLimitError(
            f"random: none of {evaluations:,} plans of {space.problem.graph.name} keeps to "
            f"{space.problem.memory_limit:,.0f} bytes on a device; give it more --steps"
        )
    return _answer(space, best[1], "random", evaluations, begin)


def best_fitting(problem: Partitioning, chosen: np.ndarray) -> tuple[float, np.ndarray] | None:
    """Return and classes of the best of some plans that keep to the limit of memory, or None.

    The bytes at one moment are linear in the classes: the fullest moment of a plan that exceeds the
    limit tells at once which others exceed it there.

    Args:
        problem: the problem.
        chosen: (k, C) bool, legal choices of classes.
    """
    returns, limit = problem.returns.value(chosen), problem.step.limit
    left = np.ones(len(chosen), dtype=bool)
    while left.any():
        best = int(np.where(left, returns, -np.inf).argmax())
        memory = problem.footprint.memory(chosen[best])
        if limit is None or memory.peak <= limit:
            return float(returns[best]), chosen[best]
        whole_bytes, saved_bytes = problem.footprint.saved_at(memory.at)
        left &= whole_bytes - chosen @ saved_bytes <= limit
        left[best] = False
    return None


def data_parallel(space: PartitionSpace) -> Answer:
    """The plan that splits the first dimension of every batch input, and nothing else.

    Raises:
        InfeasibleError: a batch dimension cannot be partitioned, or the inputs do not share one.
    """
    problem, graph = space.problem, space.problem.graph
    chosen = np.zeros(len(problem.classes), dtype=bool)
    for index in problem.inputs.tolist():
        tensor = graph.parameter_tensor[index]
        if graph.shape(tensor):
            chosen[problem.classes.label[graph.dim_offset[tensor]]] = True
    if not chosen.any() or not problem.legal(chosen):
        raise InfeasibleError(f"{graph.name}: no batch dimension can be partitioned")
    return _answer(space, chosen, "data-parallel")


def expert(space: PartitionSpace) -> Answer:
    """The plan of Megatron for a transformer; for other networks, a chain of dense layers split.

    Blocks are found in the data flow, see ``parenvs.tasks.partition.megatron``. The hidden
    dimension of each is partitioned, together with its class, unless that conflicts with one
    before, or is of no dimension that the problem's scope decides. The answer's notes tell which
    attentions and feed-forward networks stay whole, and why.

    Raises:
        InfeasibleError: no block was found, or none can be partitioned.
    """
    problem, words = space.problem, Explainer(space.problem.classes)
    chosen, whole = megatron_classes(problem.classes)
    notes = tuple(
        f"{len(labels)} {kind} class{'es stay' if len(labels) > 1 else ' stays'} whole: "
        f"{words.blocked(labels[0])}"
        for kind, labels in whole.items()
    )
    beyond = np.setdiff1d(np.flatnonzero(chosen), problem.decidable())
    if len(beyond):
        chosen[beyond] = False
        notes += (f"{len(beyond)} of its classes: scope {problem.full_scope} does not decide them",)
    if not chosen.any():
        why = "; ".join(notes) or "no attention, feed-forward network or dense layer was found"
        raise InfeasibleError(f"{problem.graph.name}: no expert plan is known: {why}")
    return replace(_answer(space, chosen, "expert"), notes=notes)


def _answer(
    space: PartitionSpace,
    chosen: np.ndarray,
    method: str,
    evaluations: int = 1,
    begin: float | None = None,
) -> Answer:
    """The plan as an answer; ``begin`` is the ``time.perf_counter()`` of the start, if measured."""
    now = time.perf_counter()
    return Answer(
        problem=space.problem,
        plan=space.problem.plan(chosen),
        cost=space.problem.cost(chosen),
        method=method,
        evaluations=evaluations,
        seconds=0.0 if begin is None else now - begin,
    )
