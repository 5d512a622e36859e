"""Problems that a seed of the checker draws, for methods: nothing of them can be looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from parenvs.agents.hybrid.references import exact_or_uneven
from parenvs.agents.order import exact_order, heuristics
from parenvs.datasets.hybrid.drawing import FAMILIES as SHAPES
from parenvs.datasets.hybrid.drawing import INSIDE, make
from parenvs.datasets.order.drawing import TIERS, draw_ordering
from parenvs.datasets.pipeline.families import FAMILIES as CHAINS
from parenvs.datasets.pipeline.generators import draw
from parenvs.datasets.sharding.drawing import FAMILIES as SHARDINGS
from parenvs.datasets.sharding.drawing import drawn as drawn_sharding
from parenvs.errors import ParenvsError
from parenvs.leaderboard.kind import CERTIFIED, Instances, TaskKind
from parenvs.leaderboard.problem import BOUND, OPTIMAL, TOLERANCE, UNKNOWN, Reference, TaskProblem
from parenvs.tasks.hybrid.entries import HybridProblem
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.order.entries import OrderProblem
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order
from parenvs.tasks.pipeline.entries import PipelineProblem
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.sharding.entries import ShardingProblem
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding

SECONDS = 5.0
"""Time limit of the search for a reference."""
JUDGED = 4096
"""Orders that the reference's local search judges where branch and bound takes too long."""
_STREAM = 26  # keeps the drawn problems apart from those that other seeds draw


def _rng(seed: int, number: int) -> np.random.Generator:
    """Return the generator of a problem."""
    return np.random.default_rng([_STREAM, seed, number])


class _Drawn(TaskProblem):
    """What drawn problems have alike; settings hold their seed and number."""

    @property
    def place(self) -> str:
        """What was drawn, in words."""
        return f"{self.name}, drawn"

    @property
    def _number(self) -> tuple[int, int]:
        return int(self.settings["seed"]), int(self.settings["number"])


class DrawnPipeline(_Drawn, PipelineProblem):
    """A chain, cluster and stages that were drawn."""

    def load(self) -> Pipeline:
        """See ``TaskProblem.load``."""
        seed, number = self._number
        family = list(CHAINS)[(seed + number) % len(CHAINS)]
        return draw(_rng(seed, number), family, name=self.instance).pipeline


class DrawnHybrid(_Drawn, HybridProblem):
    """A model, cluster and batch that were drawn."""

    def load(self) -> Hybrid:
        """See ``TaskProblem.load``."""
        seed, number = self._number
        family = list(SHAPES)[(seed + number) % len(SHAPES)]
        return make(INSIDE, family, _rng(seed, number), self.instance)

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``: the exact search; its bound holds for all plans."""
        target: Hybrid = self.target
        answer = exact_or_uneven(target, seconds)
        bound = min(target.kernel_bound_seconds, answer.cost)
        among = answer.among if answer.proven else ""
        return _reference(answer.cost, bound, answer.method, among, self.bounded_by)


class DrawnOrder(_Drawn, OrderProblem):
    """Micro-batches that were drawn."""

    def load(self) -> Order:
        """See ``TaskProblem.load``."""
        return draw_ordering(_rng(*self._number), self.tier, name=self.instance)

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``: branch and bound where it ends, else a local search."""
        target: Order = self.target
        if target.micro_batches <= 8:
            answer = exact_order(target, seconds, 0)
            length = answer.cost
            if answer.proven:
                return Reference(length, length, OPTIMAL, "branch and bound")
            return _reference(length, target.bound_seconds, "branch and bound")
        found = heuristics.local_search(target, JUDGED, np.random.default_rng(0))
        length = found.cost
        return _reference(length, target.bound_seconds, f"local search of {JUDGED:,} orders")


class DrawnSharding(_Drawn, ShardingProblem):
    """Strategies for a part of a graph that was drawn, within a memory limit."""

    def load(self) -> Sharding:
        """See ``TaskProblem.load``."""
        seed, number = self._number
        family = SHARDINGS[(seed + number) % len(SHARDINGS)]
        word = int(np.random.SeedSequence([_STREAM, seed, number]).generate_state(1)[0])
        return drawn_sharding(family, 10**9 + word)

    @property
    def has_cluster(self) -> bool:
        """Whether its devices are known as a cluster: costs are all that is drawn."""
        return False


def _reference(
    cost: float, bound: float, method: str, among: str = "", bounded_by: str = ""
) -> Reference:
    """Return the reference of a search, which is proven if it reaches the bound."""
    proven = cost <= bound * (1 + TOLERANCE)
    return Reference(
        cost, cost if proven else bound, OPTIMAL if proven else BOUND, method,
        "" if proven else among, bounded_by,
    )  # fmt: skip


class _Of(NamedTuple):
    """A drawn task: its problems' class, their plans' task, how many, and which tier each has."""

    problem: type[TaskProblem]
    kind: str
    many: int
    tiers: tuple[str, ...]
    title: str
    trivial: str


_TASKS = {
    "pipeline-drawn": _Of(
        DrawnPipeline, PipelinePlan.task, 6, (),
        "Cut drawn chains into pipeline stages, anywhere and on any devices.",
        "no parallelism: one device does everything, whatever its memory",
    ),
    "hybrid-drawn": _Of(
        DrawnHybrid, HybridPlan.task, 4, (),
        "Plan all axes of a training run together, for drawn models and clusters.",
        "no parallelism: one device does everything, whatever its memory",
    ),
    "order-drawn": _Of(
        DrawnOrder, OrderPlan.task, 4, tuple(TIERS)[:2],
        "Order drawn micro-batches of a 1F1B step.",
        "no parallelism: one pass at a time",
    ),
    "sharding-drawn": _Of(
        DrawnSharding, ShardingPlan.task, 4, (),
        "Choose strategies for parts of programs that were drawn, within a memory limit.",
        "the dearest strategy of every node",
    ),
}  # fmt: skip


def drawn(task: str, seed: int, number: int) -> TaskProblem:
    """Return a problem of a drawn task, without reference.

    Args:
        task: its name.
        seed: of the checker.
        number: of the problem, from 0.

    Raises:
        ParenvsError: there is no such task.
    """
    if task not in _TASKS:
        raise ParenvsError(f"unknown task {task!r}; drawn tasks: {', '.join(_TASKS)}")
    row = _TASKS[task]
    name = f"drawn/{seed}-{number}"
    settings: dict[str, Any] = {"seed": seed, "number": number}
    if row.tiers:
        settings["tier"] = row.tiers[number % len(row.tiers)]
    bare = row.problem(name, row.kind, "", name, "", settings, UNKNOWN, 0.0)
    target = bare.load()
    if isinstance(target, Pipeline):
        settings |= {
            "cluster": target.cluster.to_json(),
            "stages": target.stages,
            "micro_batch": target.profile.micro_batch,
            "micro_batches": target.micro_batches,
        }
    instance = target.instance if isinstance(target, Sharding) else name
    made = row.problem(
        name, row.kind, "", instance, bare.fingerprint_of(target), settings, UNKNOWN, 0.0
    )
    made.__dict__["target"] = target  # it was made just now
    return made


def count(task: str) -> int:
    """Return the number of problems of a drawn task."""
    return _TASKS[task].many


def _problems(instances: Instances = None) -> Iterator[TaskProblem]:
    """Yield nothing: a seed draws the problems, see ``drawn``."""
    yield from ()


def planner(agent: str, seed: int, steps: int) -> Callable[[Any], Any]:
    """Raise an error: methods enter these tasks.

    Raises:
        ParenvsError: always.
    """
    raise ParenvsError("drawn tasks take methods; see leaderboard/README.md")


TASKS = {
    name: TaskKind(
        title=row.title,
        kind=row.kind,
        cost="sum of the costs of nodes and edges"
        if name == "sharding-drawn"
        else "seconds of a step",
        trivial=row.trivial,
        problem=row.problem,
        problems=_problems,
        agents={},
        planner=planner,
        figures=(CERTIFIED,),
    )
    for name, row in _TASKS.items()
}
"""Tasks of this kind, without problems."""
