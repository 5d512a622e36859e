"""Planners of partitions by name, and the request that they answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np

from parenvs.agents.learning.options import TRAINED
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.planners import target
from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.megatron import megatron_classes
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.task import PartitionSearch
from parenvs.tasks.partition.words import Explainer

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
    actions = np.zeros(len(weights), int)
    while open_.any():
        ruled_out = np.array([1 + open_[rivals].sum() for rivals in space.rivals])
        best = int(np.where(open_, weights / ruled_out, -np.inf).argmax())
        actions[best] = 1
        open_[[best, *space.rivals[best]]] = False
    return _answer(space, space.chosen(actions), "greedy", begin=begin)


def random_episodes(space: PartitionSpace, episodes: int, rng: np.random.Generator) -> Array:
    """(episodes, K) bool: which classes episodes of uniformly random legal actions partition."""
    draws = rng.random((episodes, len(space.classes))) < 0.5
    actions = np.full(draws.shape, -1, np.int8)  # -1: not asked for yet
    for k, rivals in enumerate(space.rivals):
        asks = actions[:, k] < 0
        actions[asks, k] = draws[asks, k]
        splits = np.flatnonzero(asks & draws[:, k])
        actions[np.ix_(splits, np.array(rivals, int))] = 0
    return actions == 1


def random_search(space: PartitionSpace, evaluations: int, rng: np.random.Generator) -> Answer:
    """The best of ``evaluations`` random episodes; ``TimeLimitError`` if none fits the limit."""
    begin = time.perf_counter()
    best: tuple[float, Array] | None = None
    evaluations = max(evaluations, 1)
    for start in range(0, evaluations, _BATCH):
        chosen = space.chosen(random_episodes(space, min(_BATCH, evaluations - start), rng))
        fitting = best_fitting(space.problem, chosen)
        best = max(filter(None, (best, fitting)), key=itemgetter(0), default=None)
    if best is None:
        raise TimeLimitError(
            f"random: none of {evaluations:,} plans of {space.problem.graph.name} keeps to "
            f"{space.problem.memory_limit:,.0f} bytes on a device; give it more --steps"
        )
    _, chosen = best
    return _answer(space, chosen, "random", evaluations, begin)


def best_fitting(problem: Partitioning, chosen: Array) -> tuple[float, Array] | None:
    """Return and classes of the best of the legal choices ``chosen``, (k, C), that fits; or None.

    The bytes at one moment are linear in the classes: the fullest moment of a plan that exceeds the
    limit tells at once which others exceed it there.
    """
    returns, limit = problem.returns.value(chosen), problem.step.limit
    candidates = np.ones(len(chosen), bool)
    while candidates.any():
        best = int(np.where(candidates, returns, -np.inf).argmax())
        memory = problem.footprint.memory(chosen[best])
        if limit is None or memory.peak <= limit:
            return float(returns[best]), chosen[best]
        whole_bytes, saved_bytes = problem.footprint.saved_at(memory.at)
        candidates &= whole_bytes - chosen @ saved_bytes <= limit
        candidates[best] = False
    return None


def data_parallel(space: PartitionSpace) -> Answer:
    """The plan that splits the first dimension of every batch input, and nothing else.

    Raises:
        InfeasibleError: a batch dimension cannot be partitioned, or the inputs do not share one.
    """
    problem, graph = space.problem, space.problem.graph
    chosen = np.zeros(len(problem.classes), bool)
    for index in problem.inputs.tolist():
        tensor = graph.parameter_tensor[index]
        if graph.shape(tensor):
            chosen[problem.classes.label[graph.dim_offset[tensor]]] = True
    if not chosen.any() or not problem.legal(chosen):
        raise InfeasibleError(f"{graph.name}: no batch dimension can be partitioned")
    return _answer(space, chosen, "data-parallel")


def expert(space: PartitionSpace) -> Answer:
    """The plan of Megatron for a transformer; for other networks, a chain of dense layers split.

    The hidden dimension of each block (``find_blocks``) is partitioned, together with its class,
    unless that conflicts with one before, or is out of scope. The answer's notes list the blocks
    that stay whole, and why.

    Raises:
        InfeasibleError: no block was found, or none can be partitioned.
    """
    problem, explainer = space.problem, Explainer(space.problem.classes)
    chosen, blocked = megatron_classes(problem.classes)
    notes: tuple[str, ...] = ()
    for kind, labels in blocked.items():
        stay = f"{len(labels)} {kind} class{'es stay' if len(labels) > 1 else ' stays'} whole"
        notes += (f"{stay}: {explainer.blocked(labels[0])}",)
    # Megatron's blocks may be of tensors that the scope does not decide.
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
    chosen: Array,
    method: str,
    evaluations: int = 1,
    begin: float | None = None,
) -> Answer:
    return Answer(
        problem=space.problem,
        plan=space.problem.plan(chosen),
        cost=space.problem.cost(chosen),
        method=method,
        evaluations=evaluations,
        seconds=0.0 if begin is None else time.perf_counter() - begin,
    )


ENVIRONMENTS = {"variables": "OperatorPartition-v0", "inputs": "DataParallel-v0"}
"""Scope of partitions -> id of the environment in which agents train for it."""


@dataclass(frozen=True)
class PartitionRequest(PartitionSearch, Request):
    """Variables or batch inputs to be partitioned.

    Attributes:
        problem: the graph on its devices, with scope and reward.
        memory_limit: bytes that a device may use, for the planner ``exact`` (None: the problem's
            own limit, to which plans of all planners must keep, if it has one).
    """

    problem: Partitioning
    memory_limit: float | None = None

    @property
    def env_id(self) -> str:
        """Id of the scope's environment."""
        return ENVIRONMENTS[self.problem.scope]

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The problem as arguments of the environment."""
        problem = self.problem
        return {
            "instance": problem.instance,
            "cluster": problem.cluster.to_json(),
            "rules": problem.rules,
            "uneven": problem.uneven,
            "reward": problem.reward,
            **problem.step.settings,
        }

    @cached_property
    def space(self) -> PartitionSpace:
        """The decisions of the environment."""
        return PartitionSpace.of(self.problem, linkage=self.problem.scope == "variables")

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs: those whose plans the scope contains."""
        experts_by_scope = {"variables": ("expert",), "inputs": ("data-parallel",)}
        experts = experts_by_scope.get(self.problem.full_scope, ("data-parallel", "expert"))
        return ("ppo", *experts, "greedy", "random", "exact")

    def target(self, best: float) -> float:
        return target(self.problem.reward, best)

    @property
    def label(self) -> str:
        """The scope, the reward and the devices."""
        problem = self.problem
        cluster_label = problem.cluster.name or f"{problem.cluster.devices}-devices"
        return f"{problem.scope}-{problem.reward}-{cluster_label}"


def _trained_partition(agent: str, request: PartitionRequest) -> Answer:
    result = request.train(agent)
    from parenvs.agents.learning.play import replayed

    env = replayed(request.env_id, request.object_kwargs, result.actions, request.seed)
    chosen = request.problem.chosen(env.get_wrapper_attr("plan")().partition)
    if request.problem.step.limit is not None and not request.problem.fits(chosen):
        raise TimeLimitError(f"{agent} found no plan within memory; give it more --steps")
    return _answer(request.space, chosen, agent, result.episodes)


PARTITION_PLANNERS: dict[str, Callable[[PartitionRequest], Answer]] = {
    "exact": lambda r: exact_partition(r.problem, r.memory_limit, time_limit=r.time_limit),
    "greedy": lambda r: greedy(r.space),
    "expert": lambda r: expert(r.space),
    "data-parallel": lambda r: data_parallel(r.space),
    "random": lambda r: random_search(
        r.space, r.steps // len(r.space.questions), np.random.default_rng(r.seed)
    ),
    **{agent: partial(_trained_partition, agent) for agent in TRAINED},
}
"""Planners by name; ``expert`` is Megatron's plan, or splits a chain of dense layers."""
PartitionRequest.planners = PARTITION_PLANNERS
_DRAWING = ("random", *TRAINED)
PartitionRequest.users = {"seed": _DRAWING, "steps": _DRAWING, "seconds": ("exact",)}
