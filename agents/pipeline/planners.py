"""Planners of pipelines by name, the request that they answer, and remarks on answers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.agents.learning.network import learned
from parenvs.agents.learning.options import LEARNED, TRAINED
from parenvs.agents.pipeline.exact import (
    by_search,
    exact_candidates,
    exact_full,
    exact_points,
    is_large,
    prepare,
    within_memory,
)
from parenvs.agents.pipeline.heuristics import (
    answer_of,
    even_cut,
    pipedream,
    random_search,
    to_whole_samples,
)
from parenvs.agents.pipeline.shapes import Choice, exact_shape
from parenvs.cluster import Cluster
from parenvs.core.plan import Answer
from parenvs.core.request import SECONDS, Request
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import (
    RADIUS,
    STAGES,
    CutSpace,
    PointSpace,
    check_candidates,
    cuts_of,
    distinct_pivots,
)
from parenvs.tasks.pipeline.task import PipelineSearch
from parenvs.view.tables import empty
from parenvs.view.words import duration

if TYPE_CHECKING:
    from rich.table import Table

# Of the time limit of ``exact``: when its search over points ends.
_POINT_SHARE = 0.25
TURNS = 64
"""Relocations of an episode that plans with a network."""
ANY_STAGES = ("exact",)
"""Planners of pipelines that can plan one stage; all others cut at least once."""


@dataclass(frozen=True)
class PipelineRequest(PipelineSearch, Request):
    """A pipeline to be planned.

    Attributes:
        problem: the pipeline.
        radius, candidates: the candidates of the environment, see ``CutSpace.build``; planners of
            other search spaces ignore them.
        clusters: parts of the cluster from which ``settled`` chooses one, and the number of stages
            with it (empty: both are those of the problem).
    """

    problem: Pipeline
    radius: int = RADIUS
    candidates: str = "minima"
    clusters: tuple[Cluster, ...] = ()

    def __post_init__(self) -> None:
        """Raise an error for invalid candidates, even if the planner ignores them."""
        check_candidates(self.radius, self.candidates)

    def shared(self, agents: Sequence[str]) -> Request:
        """See ``Request.shared``; the choice of an open shape is a search of ``exact``."""
        return super().shared((*agents, "exact") if self.clusters else agents)

    def settled(self, agents: Sequence[str]) -> tuple[Request, Choice | None]:
        """Return the request of the shape that ``exact_shape`` chooses, if the shape is open.

        It has one stage at least if all planners can plan one, else two.
        """
        if not self.clusters:
            return self, None
        fewest = 1 if set(agents) <= set(ANY_STAGES) else 2
        limit = SECONDS if self.time_limit is None else self.time_limit
        prepare()
        begin = time.perf_counter()
        choice = exact_shape(self.problem, self.clusters, fewest, limit)
        # By its planner's name, so that commands need not run ``exact`` a second time.
        answer = replace(choice.answer, method="exact", seconds=time.perf_counter() - begin)
        return replace(self, problem=answer.problem, clusters=()), replace(choice, answer=answer)

    def refuse_unused(self, agents: Sequence[str], flags: Collection[str]) -> None:
        """See ``Request.refuse_unused``; the choice of an open shape takes its time, too."""
        super().refuse_unused(agents, set(flags) - ({"seconds"} if self.clusters else set()))

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
        return {"problem": self.problem, "radius": self.radius, "candidates": self.candidates}

    @cached_property
    def space(self) -> CutSpace:
        """The candidates of the environment."""
        return CutSpace.build(self.problem, self.radius, self.candidates)

    @cached_property
    def points(self) -> PointSpace:
        """The problem over at most 128 points and 64 units."""
        return PointSpace.build(self.problem, by_network=True)

    def run(self, agent: str) -> Answer:
        """See ``Request.run``; where devices share no sample, no plan's devices do."""
        return _whole_answer(super().run(agent))

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return ("ppo", "even", "pipedream", "random", "search", "exact")

    @property
    def label(self) -> str:
        """The cluster."""
        cluster = self.problem.cluster
        return cluster.name or f"{cluster.devices}-devices"


def _whole_answer(answer: Answer) -> Answer:
    problem, (cuts, device_cuts) = answer.problem, cuts_of(answer.plan)
    moved = _, moved_device_cuts = to_whole_samples(problem, (cuts, device_cuts))
    if (moved_device_cuts == device_cuts).all():
        return answer
    notes = (*answer.notes, "device cuts moved to whole samples for each device (--fractions)")
    other = answer_of(problem, moved, answer.evaluations)
    other = replace(other, method=answer.method, seconds=answer.seconds, among=answer.among)
    return replace(other, notes=notes)


def reference(space: CutSpace | PointSpace) -> Answer:
    """Find the best plan that an episode can build, and prove it.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    return exact_candidates(space) if isinstance(space, CutSpace) else exact_points(space)


def best_of_game(game: Any, row: int) -> Answer:
    """Return the best plan that an episode of a game can build; see ``Game.exact``."""
    return reference(game.space_of(row))


def _exact_pipeline(request: PipelineRequest) -> Answer:
    """Search all pivots within a time limit; of large problems the points before, for a start."""
    prepare()
    problem, begin, start = request.problem, time.perf_counter(), None
    limit = SECONDS if request.time_limit is None else request.time_limit
    if is_large(problem, distinct_pivots(problem)):
        # More stages than a ``PointSpace`` can have, or no plan.
        with suppress(InfeasibleError):
            start = _whole_answer(exact_points(request.points, time_limit=_POINT_SHARE * limit))
    left = max(limit - (time.perf_counter() - begin), 0.0)
    answer = exact_full(problem, start, left)
    return replace(answer, evaluations=answer.evaluations + (start.evaluations if start else 0))


def _random_pipeline(request: PipelineRequest) -> Answer:
    episodes = request.steps // (request.space.stages - 1)
    return random_search(request.space, episodes, np.random.default_rng(request.seed))


def _trained_pipeline(agent: str, request: PipelineRequest) -> Answer:
    # What the environment warns of is said by the error below.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no plan fits the memory")
        result = request.train(agent)
    if result.value < 0:
        # Raises if no plan fits, with the bytes that are missing.
        within_memory(request.problem)
        raise TimeLimitError(f"{agent} found no plan within memory; give it more --steps")
    return answer_of(request.problem, request.space.plan(result.actions), result.episodes)


def _learned_pipeline(request: PipelineRequest) -> Answer:
    """Return the best plan of the network of ``PipelinePlan-v0``, or of ``PipelineImprove-v0``.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    if request.problem.stages > STAGES:
        found = learned("PipelineImprove-v0", request.problem, request.seed, turns=TURNS)
    else:
        found = learned("PipelinePlan-v0", request.points, seed=request.seed)
    return answer_of(request.problem, cuts_of(found.plan), len(found.costs))


PIPELINE_PLANNERS: dict[str, Callable[[PipelineRequest], Answer]] = {
    "exact": _exact_pipeline,
    "search": lambda r: by_search(r.problem, r.time_limit, r.seed),
    "even": lambda r: even_cut(r.problem),
    "pipedream": lambda r: pipedream(r.problem),
    LEARNED: _learned_pipeline,
    "random": _random_pipeline,
    **{agent: partial(_trained_pipeline, agent) for agent in TRAINED},
}
"""Planners of pipelines by name; ``exact`` proves its plan within a time limit, or has a bound."""
PipelineRequest.planners = PIPELINE_PLANNERS
PipelineRequest.users = {
    "seed": ("search", LEARNED, "random", *TRAINED),
    "seconds": ("exact", "search"),
    **dict.fromkeys(("steps", "radius", "candidates"), ("random", *TRAINED)),
}

_MAX_ROWS = 8
"""Rows of the table of shapes."""


class Remarks:
    """Remarks on an answer.

    Args:
        choice: how stages and devices were chosen; None if they were given.
    """

    def __init__(self, choice: Choice | None) -> None:
        self.choice = choice

    def to_json(self) -> dict[str, Any]:
        """Return the remarks as an object of JSON types."""
        if self.choice is None:
            return {}
        return {"tried": [tried.to_json() for tried in self.choice.tried]}

    def lines(self) -> Iterator[str | Table]:
        """Yield sentences and tables."""
        if self.choice is None:
            return
        used, widest = self.choice.answer.problem.cluster.devices, self.choice.tried[0]
        if used < self.choice.devices:
            words = f"uses {used} of {self.choice.devices} devices"
            if widest.devices == self.choice.devices and widest.stages is not None:
                slower = f"{duration(widest.length)} on {widest.devices}"
                is_proven = self.choice.answer.proven
                words += f": more are slower ({slower})" if is_proven else f" ({slower})"
            yield words
        if len(self.choice.tried) > 1:
            yield _shapes(self.choice)


def _shapes(choice: Choice) -> Table:
    table = empty(
        "devices and stages tried", "devices", "stages", "shortest found", "none is shorter than"
    )
    chosen = choice.answer.problem.cluster.devices
    nearest = sorted(choice.tried, key=lambda tried: tried.length)[:_MAX_ROWS]
    for tried in choice.tried:
        if tried not in nearest and tried.devices not in (chosen, choice.devices):
            continue
        table.add_row(
            f"{tried.devices}{' *' if tried.devices == chosen else ''}",
            "-" if tried.stages is None else str(tried.stages),
            "-" if tried.stages is None else duration(tried.length),
            duration(tried.bound) if np.isfinite(tried.bound) else "none fits",
        )
    hidden = len(choice.tried) - table.row_count
    table.caption = "*: chosen" + (f"; {hidden} more, found slower" if hidden else "")
    table.caption_justify = "left"
    return table
