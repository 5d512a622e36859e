"""Partitions without proof: fixed plans, greedy choices, random search, and what experts do."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import numpy as np

from parenvs.agents.answer import PartitionAnswer
from parenvs.errors import InfeasibleError
from parenvs.graph.graph import Graph
from parenvs.partitioning.space import PartitionSpace

MEGATRON: tuple[tuple[str, int], ...] = (
    (r"(^|/)(q|k|v|query|key|value|qkv)(/kernel|/weight)?$", -1),
    (r"(^|/)(q|k|v|query|key|value|qkv)/bias$", 0),
    (r"(^|/)(o|out|output|proj)(/kernel|/weight)?$", 0),
    (r"(^|/)(conv1|wi|wi_0|wi_1|up|gate|intermediate)(/kernel|/weight)?$", -1),
    (r"(^|/)(conv1|wi|up|gate|intermediate)/bias$", 0),
    (r"(^|/)(conv2|wo|down)(/kernel|/weight)?$", 0),
)
"""Path pattern -> dimension, of a transformer's layers (arXiv 1909.08053, section 3; the same
splits are Table 3 of arXiv 2007.04069): attention by heads, the feed-forward network by its hidden
width, so that each of the two needs one all-reduce."""
DENSE: tuple[tuple[str, int], ...] = (
    (r"(^|/)fc1/kernel$", 1),
    (r"(^|/)fc1/bias$", 0),
    (r"(^|/)fc2/kernel$", 0),
    (r"(^|/)predictions/kernel$", 1),
    (r"(^|/)predictions/bias$", 0),
)
"""The dense layers of a convolutional network (arXiv 2007.04069, Table 4)."""


def replicate(space: PartitionSpace) -> PartitionAnswer:
    """The plan in which every device does everything."""
    return _answer(space, np.zeros(len(space.problem.classes), dtype=bool), "replicate")


def partition_all(space: PartitionSpace) -> PartitionAnswer:
    """The constant action 1: partition whatever is asked for, in the environment's order."""
    known = np.full(len(space.classes), -1)
    for k, rivals in enumerate(space.rivals):
        if known[k] < 0:
            known[k] = 1
            known[rivals] = 0
    return _answer(space, space.chosen(known), "ones")


def greedy(space: PartitionSpace) -> PartitionAnswer:
    """Partition the class of the highest return for each class that it costs, until none is left.

    The rule GWMIN for weighted independent sets (Sakai, Togasaki, Yamazaki, Discrete Applied
    Mathematics 126, 2003): the class of largest weight / (open rivals + 1); it finds at least
    1 / (rivals + 1) of each class's weight in all.
    """
    begin = time.perf_counter()
    worth = space.problem.returns.weights[space.classes]
    open_ = worth > 0
    known = np.zeros(len(worth), dtype=int)
    while open_.any():
        costs = np.array([1 + open_[rivals].sum() for rivals in space.rivals])
        best = int(np.where(open_, worth / costs, -np.inf).argmax())
        known[best] = 1
        open_[[best, *space.rivals[best]]] = False
    return _answer(space, space.chosen(known), "greedy", begin=begin)


def random_episodes(space: PartitionSpace, episodes: int, rng: np.random.Generator) -> np.ndarray:
    """(episodes, K) bool: classes partitioned by episodes of uniform legal actions with linkage."""
    draws = rng.random((episodes, len(space.classes))) < 0.5
    known = np.full(draws.shape, -1, dtype=np.int8)
    for k, rivals in enumerate(space.rivals):
        asked = known[:, k] < 0
        known[asked, k] = draws[asked, k]
        split = np.flatnonzero(asked & draws[:, k])
        known[np.ix_(split, np.array(rivals, dtype=int))] = 0
    return known == 1


def random_search(
    space: PartitionSpace, evaluations: int, rng: np.random.Generator
) -> PartitionAnswer:
    """The best of ``evaluations`` random episodes."""
    begin = time.perf_counter()
    problem = space.problem
    best: tuple[float, np.ndarray] | None = None
    evaluations = max(evaluations, 1)
    for start in range(0, evaluations, _BATCH):
        chosen = space.chosen(random_episodes(space, min(_BATCH, evaluations - start), rng))
        values = problem.value(chosen)
        i = int(values.argmax())
        if best is None or values[i] > best[0]:
            best = float(values[i]), chosen[i]
    assert best is not None
    return _answer(space, best[1], "random", evaluations, begin)


def data_parallel(space: PartitionSpace) -> PartitionAnswer:
    """The plan that splits the first dimension of every batch input, and nothing else.

    Raises:
        InfeasibleError: it cannot be partitioned, or the inputs do not share it.
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


def expert(space: PartitionSpace) -> PartitionAnswer:
    """Megatron's plan for a transformer, the dense layers of a convolutional network.

    Of what the patterns name, and of what belongs to it, everything that can be partitioned is.

    Raises:
        InfeasibleError: the patterns fit no variable.
    """
    problem = space.problem
    names = expert_dimensions(problem.graph)
    chosen = np.zeros(len(problem.classes), dtype=bool)
    for path, dimension in names.items():
        named = problem.chosen({path: dimension})
        if problem.legal(chosen | named):
            chosen |= named
    if not chosen.any():
        raise InfeasibleError(
            f"{problem.graph.name}: no expert plan is known for variables named like these; "
            "see MEGATRON and DENSE in parenvs.agents.heuristics.partition"
        )
    return _answer(space, chosen, "expert")


def expert_dimensions(graph: Graph) -> dict[str, int]:
    """Path -> dimension that an expert partitions, of the variables whose names are known."""
    for patterns in (MEGATRON, DENSE):
        matches = {
            graph.paths[i]: _matched(
                graph.paths[i], patterns, len(graph.shape(graph.parameter_tensor[i]))
            )
            for i in graph.variables
        }
        known = {path: d for path, d in matches.items() if d is not None}
        if known:
            return known
    return {}


_BATCH = 4096  # episodes drawn at once


def _matched(path: str, patterns: Sequence[tuple[str, int]], rank: int) -> int | None:
    for pattern, dimension in patterns:
        if re.search(pattern, path) and -rank <= dimension < rank:
            return dimension % rank
    return None


def _answer(
    space: PartitionSpace,
    chosen: np.ndarray,
    method: str,
    evaluations: int = 1,
    begin: float | None = None,
) -> PartitionAnswer:
    now = time.perf_counter()
    return PartitionAnswer(
        space.problem,
        chosen,
        float(space.problem.value(chosen)),
        method=method,
        evaluations=evaluations,
        seconds=0.0 if begin is None else now - begin,
    )
