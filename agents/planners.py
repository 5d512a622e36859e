"""``solve``: every planner by its name, and the requests that planners answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from parenvs.agents.answer import (
    Answer,
    HybridAnswer,
    PartitionAnswer,
    PipelineAnswer,
)
from parenvs.agents.hybrid import exact, exact_hybrid, exact_uniform
from parenvs.agents.hybrid import heuristics as hybrid_heuristics
from parenvs.agents.hybrid.servers.planners import SERVER_PLANNERS
from parenvs.agents.learning.pretrained.planner import pretrained
from parenvs.agents.names import ANY_STAGES, ENVIRONMENTS, REFINED, TRAINED
from parenvs.agents.order.planners import OrderRequest
from parenvs.agents.partition import heuristics as partition_heuristics
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.beam import beam
from parenvs.agents.pipeline.exact import exact_full, exact_pruned
from parenvs.agents.pipeline.heuristics import even_cut, random_search
from parenvs.agents.pipeline.pipedream import pipedream
from parenvs.agents.pipeline.points import exact_points
from parenvs.agents.pipeline.shapes import Choice, exact_shape
from parenvs.agents.request import SECONDS, Request
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace
from parenvs.tasks.hybrid.space.objectives import Objective
from parenvs.tasks.order.problem import Order
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import PartitionSpace
from parenvs.tasks.pipeline.cuts import RADIUS, CutSpace, check_candidates
from parenvs.tasks.pipeline.points import PointSpace
from parenvs.tasks.pipeline.problem import Pipeline


@dataclass(frozen=True)
class PipelineRequest(Request):
    """A pipeline to be planned.

    Attributes:
        problem: the pipeline.
        radius, candidates: the candidates of the environment, see ``CutSpace.build``; planners of
            other search spaces ignore them.
        time_limit: seconds for each search of the exact planners (None: ``SECONDS`` for ``exact``,
            no limit for the others).
        clusters: parts of the cluster from which ``settled`` chooses one, and the number of stages
            with it (empty: both are those of the problem).
    """

    problem: Pipeline
    radius: int = RADIUS
    candidates: str = "minima"
    time_limit: float | None = None
    clusters: tuple[Cluster, ...] = ()

    def __post_init__(self) -> None:
        """Raise an error for invalid candidates, even if the planner ignores them."""
        check_candidates(self.radius, self.candidates)

    def settled(self, agents: Sequence[str]) -> tuple[Request, Choice | None]:
        """Return the request of the shape that ``exact_shape`` chooses, if the shape is open.

        It has one stage at least if all planners can plan one, else two.
        """
        if not self.clusters:
            return self, None
        fewest = 1 if set(agents) <= set(ANY_STAGES) else 2
        limit = SECONDS if self.time_limit is None else self.time_limit
        choice = exact_shape(self.problem, self.clusters, fewest, limit)
        return replace(self, problem=choice.answer.problem, clusters=()), choice

    @property
    def env_id(self) -> str:
        """Id of the environment in which agents train for the task."""
        return "PipelineCut-v0"

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The problem as arguments of the environment."""
        problem = self.problem
        return {
            "instance": problem.instance,
            "cluster": problem.cluster.to_json(),
            "stages": problem.stages,
            "micro_batch": problem.profile.micro_batch,
            "micro_batches": problem.micro_batches,
            **problem.options,
            "radius": self.radius,
            "candidates": self.candidates,
        }

    @property
    def object_kwargs(self) -> dict[str, Any]:
        """The problem as arguments of the environment: the object itself, whatever its name."""
        choices = {"radius": self.radius, "candidates": self.candidates}
        return {"problem": self.problem, **choices}

    @cached_property
    def space(self) -> CutSpace:
        """The candidates of the environment."""
        return CutSpace.build(self.problem, self.radius, self.candidates)

    @cached_property
    def points(self) -> PointSpace:
        """The problem over at most 128 points and 64 units."""
        return PointSpace.build(self.problem, by_network=True)

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return ("ppo", "even", "pipedream", "random", "pretrained", "exact-pruned", "exact")

    @property
    def label(self) -> str:
        """The cluster."""
        cluster = self.problem.cluster
        return cluster.name or f"{cluster.devices}-devices"


@dataclass(frozen=True)
class PartitionRequest(Request):
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
        """Planners that ``parenvs compare`` runs: those whose plans the problem's scope contains."""
        experts_by_scope = {"variables": ("expert",), "inputs": ("data-parallel",)}
        experts = experts_by_scope.get(self.problem.full_scope, ("data-parallel", "expert"))
        return ("ppo", "replicate", *experts, "ones", "greedy", "random", "exact")

    @property
    def label(self) -> str:
        """The scope, the reward and the devices."""
        problem = self.problem
        cluster_label = problem.cluster.name or f"{problem.cluster.devices}-devices"
        return f"{problem.scope}-{problem.reward}-{cluster_label}"


@dataclass(frozen=True)
class HybridRequest(Request):
    """A model to be planned along all axes.

    Attributes:
        problem: the model on its cluster.
        constraints: that plans must keep to; an object of them is taken, too.
        objective: what planners that prove something minimise, one of
            ``parenvs.tasks.hybrid.space.objectives.OBJECTIVES``.
        price: of a device-hour, for the objective ``"money"``.
        time_limit: seconds of the search over free stages (None: ``SECONDS`` for ``exact``, no
            limit for ``exact-hybrid``).
    """

    problem: Hybrid
    constraints: Constraints = field(default_factory=Constraints)
    objective: str = "seconds"
    price: float = 1.0
    time_limit: float | None = None

    def __post_init__(self) -> None:
        """Raise errors for unknown constraints and objectives."""
        if isinstance(self.constraints, Mapping):
            known = [item.name for item in fields(Constraints)]
            for name in self.constraints:
                if name not in known:
                    raise ParenvsError(
                        f"unknown constraint {shown(name)}{did_you_mean(str(name), known)}; "
                        f"known: {', '.join(known)}"
                    )
            object.__setattr__(self, "constraints", Constraints(**self.constraints))
        self.goal  # noqa: B018  # raises errors for its name and price

    @property
    def goal(self) -> Objective:
        """What is minimised."""
        return Objective(self.objective, self.price)

    @property
    def env_id(self) -> str:
        """There is no environment in which agents train for the task."""
        raise ParenvsError(
            f"task {HybridPlan.task} trains on drawn problems: parenvs train --task hybrid"
        )

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """See ``env_id``."""
        return {"instance": self.problem.instance, "cluster": self.problem.cluster.to_json()}

    @cached_property
    def space(self) -> UniformSpace:
        """All uniform plans that keep to the constraints."""
        return UniformSpace.build(self.problem, self.constraints)

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return (*hybrid_heuristics.PURE, "random", "megatron", "uniform", "exact")

    @property
    def label(self) -> str:
        """The cluster and the batch."""
        cluster = self.problem.cluster
        return f"{cluster.name or f'{cluster.devices}-devices'}-batch-{self.problem.batch}"


def request_of(problem: Pipeline | Partitioning | Hybrid | Order, **options: Any) -> Request:
    """Make the request of a problem.

    Args:
        problem: the problem to plan.
        **options: ``seed``, ``steps``, ``progress``; for pipelines ``radius``, ``candidates`` and
            ``time_limit`` (and ``clusters``, for commands); for partitions ``memory_limit``; for
            hybrid plans ``constraints``, ``objective``, ``price`` and ``time_limit``; for orders
            ``time_limit``.

    Raises:
        ParenvsError: ``problem`` is no problem, or the task does not have an option.
    """
    kind: Any
    if isinstance(problem, Pipeline):
        kind = PipelineRequest
    elif isinstance(problem, Partitioning):
        kind = PartitionRequest
    elif isinstance(problem, Hybrid):
        kind = HybridRequest
    elif isinstance(problem, Order):
        kind = OrderRequest
    else:
        raise ParenvsError(
            f"solve takes a problem, not {shown(problem)}; make one with "
            "parenvs.problem(graph or name, cluster)"
        )
    known = [field.name for field in fields(kind) if field.name != "problem"]
    for name in options:
        if name not in known:
            raise ParenvsError(
                f"{name!r} is not an option of solve for this problem"
                f"{did_you_mean(name, known)}; known: {', '.join(known)}"
            )
    return kind(problem, **options)


def solve(
    problem: Pipeline | Partitioning | Hybrid | Order, agent: str = "exact", **options: Any
) -> Answer:
    """Plan a problem of any task with any planner.

    Args:
        problem: made by ``parenvs.problem``.
        agent: name of the planner; ``parenvs list`` shows all.
        **options: see ``request_of``.

    Returns:
        The answer: ``plan``, ``report``, ``bound``, ``proven``.

    Raises:
        InfeasibleError: no plan fits the memory.
        ParenvsError: the planner or an option is unknown.

    >>> import parenvs
    >>> answer = parenvs.solve(parenvs.problem("vgg-19", cluster="A"))
    >>> answer.proven, answer.report.legal
    (True, True)
    """
    return request_of(problem, **options).run(agent)


def _exact_pipeline(request: PipelineRequest) -> PipelineAnswer:
    """Search all pivots; after the time limit, search the points and return the better answer.

    The bound is that of the search over all pivots.
    """
    limit = SECONDS if request.time_limit is None else request.time_limit
    full_answer = exact_full(request.problem, time_limit=limit)
    if full_answer.proven:
        return full_answer
    try:
        points_answer = exact_points(request.points, full_answer, limit)
    except InfeasibleError:  # the problem has more stages than a ``PointSpace`` can have
        return full_answer
    shorter = min(full_answer, points_answer, key=lambda answer: answer.length)
    return replace(shorter, proven=False, bound=full_answer.bound)


def _random_pipeline(request: PipelineRequest) -> PipelineAnswer:
    episodes = request.steps // (request.space.stages - 1)
    return random_search(request.space, episodes, np.random.default_rng(request.seed))


def _trained_pipeline(agent: str, request: PipelineRequest) -> PipelineAnswer:
    with warnings.catch_warnings():  # what the environment warns of is said by the error below
        warnings.filterwarnings("ignore", "no plan fits the memory")
        result = request.train(agent)
    if result.value < 0:
        exact_pruned(request.space)  # raises if no plan fits, with the bytes that are missing
        raise ParenvsError(f"{agent} found no plan within memory; give it more --steps")
    cuts, device_cuts = request.space.plan(result.actions)
    length = float(request.problem.length(cuts, device_cuts))
    return PipelineAnswer(
        request.problem, cuts, device_cuts, length, method=agent, evaluations=result.episodes
    )


def _random_partition(request: PartitionRequest) -> PartitionAnswer:
    episodes = max(request.steps // len(request.space.questions), 1)
    rng = np.random.default_rng(request.seed)
    return partition_heuristics.random_search(request.space, episodes, rng)


def _trained_partition(agent: str, request: PartitionRequest) -> PartitionAnswer:
    result = request.train(agent)
    from parenvs.agents.learning.train.run import play

    env = play(request.env_id, request.object_kwargs, result.actions, request.seed)
    chosen = request.problem.chosen(env.get_wrapper_attr("plan")().partition)
    if request.problem.step.limit is not None and not request.problem.fits(chosen):
        raise InfeasibleError(f"{agent} found no plan within memory; give it more --steps")
    return PartitionAnswer(
        request.problem, chosen, result.value, method=agent, evaluations=result.episodes
    )


def _servers(name: str, request: HybridRequest) -> HybridAnswer:
    return SERVER_PLANNERS[name](
        request.problem, request.constraints, request.seed, request.time_limit
    )


PIPELINE_PLANNERS: dict[str, Callable[[PipelineRequest], PipelineAnswer]] = {
    "exact": _exact_pipeline,
    "exact-full": lambda r: exact_full(r.problem, time_limit=r.time_limit),
    "exact-points": lambda r: exact_points(r.points, time_limit=r.time_limit),
    "exact-pruned": lambda r: exact_pruned(r.space),
    "even": lambda r: even_cut(r.problem),
    "pipedream": lambda r: pipedream(r.problem),
    "beam": lambda r: beam(r.points),
    "pretrained": lambda r: pretrained(r.points, seed=r.seed),
    REFINED: lambda r: pretrained(r.points, refine=True, seed=r.seed),
    "random": _random_pipeline,
    **{agent: partial(_trained_pipeline, agent) for agent in TRAINED},
}
"""Planners of pipelines by name.

``exact-full`` searches all pivots and device cuts, ``exact-points`` 128 points and 64 units,
``exact-pruned`` the candidates of ``PipelineCut-v0``. ``exact`` is ``exact-full`` within a time
limit, then ``exact-points``.
"""
PARTITION_PLANNERS: dict[str, Callable[[PartitionRequest], PartitionAnswer]] = {
    "exact": lambda r: exact_partition(r.problem, r.memory_limit),
    "greedy": lambda r: partition_heuristics.greedy(r.space),
    "ones": lambda r: partition_heuristics.partition_all(r.space),
    "expert": lambda r: partition_heuristics.expert(r.space),
    "data-parallel": lambda r: partition_heuristics.data_parallel(r.space),
    "replicate": lambda r: partition_heuristics.replicate(r.space),
    "random": _random_partition,
    **{agent: partial(_trained_partition, agent) for agent in TRAINED},
}
"""Planners of partitions by name.

``ones`` always takes action 1; ``expert`` is Megatron's plan, or splits a chain of dense layers.
"""
HYBRID_PLANNERS: dict[str, Callable[[HybridRequest], HybridAnswer]] = {
    "exact": lambda r: exact(
        r.problem, r.constraints, r.goal, SECONDS if r.time_limit is None else r.time_limit
    ),
    "exact-hybrid": lambda r: exact_hybrid(
        r.problem, r.constraints, r.goal, time_limit=r.time_limit
    ),
    "uniform": lambda r: exact_uniform(r.problem, r.constraints, r.goal, r.space),
    "megatron": lambda r: hybrid_heuristics.megatron(r.problem, r.constraints),
    **{
        kind: partial(lambda kind, r: hybrid_heuristics.pure(r.problem, kind, r.constraints), kind)
        for kind in hybrid_heuristics.PURE
    },
    "random": lambda r: hybrid_heuristics.random_plan(
        r.problem, np.random.default_rng(r.seed), r.constraints
    ),
    **{name: partial(_servers, name) for name in SERVER_PLANNERS},
}
"""Planners of hybrid plans by name.

``uniform`` judges all uniform plans, ``exact-hybrid`` searches plans of one chunk whose stages
differ, ``exact`` both. ``megatron`` is a rule of thumb; four have one kind of parallelism only.
Those of ``SERVER_PLANNERS`` choose the order of the servers, too, one for each stage.
"""
PipelineRequest.planners = PIPELINE_PLANNERS
HybridRequest.planners = HYBRID_PLANNERS
PartitionRequest.planners = PARTITION_PLANNERS
