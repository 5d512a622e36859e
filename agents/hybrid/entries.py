"""Hybrid plans: tasks ``hybrid``, ordered equal servers, and ``hetero``, servers that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from parenvs.agents import planners
from parenvs.agents.hybrid.exact import exact
from parenvs.agents.hybrid.orders import Orders, swap_search
from parenvs.agents.hybrid.search import EVALUATIONS, local_search
from parenvs.agents.hybrid.subset_dp import subset_search
from parenvs.cluster import Cluster
from parenvs.core import leaderboard as board
from parenvs.core.leaderboard import Reference
from parenvs.core.plan import Answer, Plan
from parenvs.datasets.hybrid.problems import FAMILIES, INSIDE, TIERS, make, problem_sets
from parenvs.datasets.references import HYBRID, SAME, Row, references
from parenvs.errors import NO_PLAN, InfeasibleError
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, software_of
from parenvs.tasks.hybrid.uniform import Uniform
from parenvs.view.words import duration

MAX_MICRO_BATCH = 16
"""Samples of a micro-batch in one replica of a plan of task ``hetero``, at most."""
TIERS_OF_HYBRID = {"inside": "hybrid-test", "outside": "hybrid-outside"}
"""Tier of task ``hybrid`` -> the set that its problems are the first of."""
OF_FAMILY = 4
"""Problems of each family in a tier of task ``hybrid``."""
LIMITS = Constraints(context=1, shard=0)
"""Of ``exact``: tokens of a sample are not shared, and states by all replicas."""
SEARCHES = 7
"""Local searches at most; all but the first end when one of them finds nothing better."""
HETERO_FIRST = 3
"""Problems of each test set of unequal servers whose references are made by default."""
MAX_EXACT = 16
"""Servers up to which the subset program runs."""
HEAD = ("schema", "task", "instance", "fingerprint", "cluster", "stack", "precision", "batch")
"""Fields of a plan file that a problem settles; references leave them out."""


def plan_of_row(problem: Hybrid, row: Row) -> HybridPlan:
    """Return the plan of a reference (``PlanError``: the row holds none)."""
    content = problem.plan(()).to_json()
    head = {name: content[name] for name in HEAD}
    return HybridPlan.from_json({**head, **row["plan"]}, problem.instance)


def best_known(problem: Hybrid, seconds: float, evaluations: int = EVALUATIONS) -> Answer:
    """Return the best plan of ``exact``, of a local search, and of others from the best so far.

    The exact search has ``seconds``. The first local search judges ``evaluations`` plans, each
    other one half as many.

    Raises:
        InfeasibleError: no plan fits.
    """
    best: Answer | None = None
    with suppress(*NO_PLAN):  # plans that share the tokens of a sample may still fit
        best = exact(problem, LIMITS, time_limit=seconds, simulate=False)
    with suppress(*NO_PLAN):  # no uniform plan may fit
        space = UniformSpace.build(problem, Constraints(uneven=True, expert_tp=0))
        for seed in range(SEARCHES):
            count = evaluations if seed == 0 else evaluations // 2
            # The first search is independent of the exact one; others go on from the best plan.
            starts = () if best is None or seed == 0 else (best.plan,)
            options: dict[str, Any] = {"seed": seed, "evaluations": count}
            searched = local_search(problem, space=space, starts=starts, **options)
            if best is None or searched.cost < best.cost * (1 - SAME):
                best = replace(searched, method=f"local search, {count:,} plans, seed {seed}")
            elif seed > 0:
                break
    if best is None:
        raise InfeasibleError(f"{problem.instance}: no plan was found that fits")
    return best


class HybridProblem(board.TaskProblem):
    """A model to be trained on a cluster; settings: tier, and what people want to know of it."""

    plan_class = HybridPlan
    decisions = (
        "micro_batch", "schedule", "chunks", "sequence_parallel", "context", "expert", "shard",
        "servers", "stages",
    )  # fmt: skip
    optional: ClassVar[Mapping[str, Any]] = {
        "p2p": SENDS[0],
        "gradient_bytes": 4,
        "gradient_overlap": False,
    }
    bounded_by = "its kernels, dealt out evenly (Hybrid.kernel_bound_seconds)"
    """What proves the bound of its reference."""

    @property
    def cluster(self) -> Cluster:
        """The cluster that plans are for."""
        return self.target.cluster

    @property
    def has_cluster(self) -> bool:
        """Whether its devices are known as a cluster: that of the set's problem."""
        return True

    def fingerprint_of(self, target: Hybrid) -> str:
        return target.model.fingerprint

    def empty_plan(self) -> HybridPlan:
        """See ``TaskProblem.empty_plan``: how the stack sends and sums is settled, too."""
        return self.target.plan((), **software_of(self.target).of_plan)

    def cost(self, report: HybridReport) -> float:
        return report.length_seconds

    def words(self, cost: float) -> str:
        return duration(cost)

    def trivial_cost(self) -> float:
        problem: Hybrid = self.target
        gradient_bytes = software_of(problem).of_arrays["gradient_bytes"]
        alone = Uniform(1, 1, 1, 1, problem.batch, gradient_bytes=gradient_bytes)
        seconds = alone.judged(problem.model, problem.cluster, problem.machine)[0]
        return float(seconds["length"][0])

    def solved(self, seconds: float) -> Reference:
        row = references(HYBRID)[self.instance]
        return board.reference_of(
            row["length"], row["bound"], row["method"], str(row.get("among", "")), self.bounded_by,
            "python benchmarks/references.py hybrids",
        )  # fmt: skip


class HeteroProblem(HybridProblem):
    """A model to be trained on servers that differ, a server for each stage."""

    bounded_by = "speeds rounded up to few types (sandwich)"

    def faults(self, plan: Plan) -> list[str]:
        """See ``TaskProblem.faults``: the rules of docs/hybrid.md beside those of the judge."""
        assert isinstance(plan, HybridPlan)
        inside = self.target.cluster.devices_per_server
        wanted = {"schedule": SCHEDULES[0], "chunks": 1, "context": 1, "expert": 1}
        faults = [
            f"field {name!r} must be {value!r}"
            for name, value in wanted.items()
            if getattr(plan, name) != value
        ]
        if plan.shard:
            faults.append("field 'shard' must be left out")
        if plan.micro_batch > MAX_MICRO_BATCH:
            size = f"{plan.micro_batch:,}, at most {MAX_MICRO_BATCH}"
            faults.append(f"field 'micro_batch' is {size}")
        if any(stage.devices != inside for stage in plan.stages):
            faults.append(f"field 'stages': a stage has exactly one server, 'devices' {inside}")
        return faults


def problems(task: str, instances: board.Instances = None) -> Iterator[HybridProblem]:
    """Yield the problems of a task, without references."""
    kind: type[HybridProblem] = HybridProblem
    sets, first = TIERS_OF_HYBRID, len(FAMILIES) * OF_FAMILY  # families take turns in a set
    if task == "hetero":
        kind, sets, first = HeteroProblem, {tier: f"{tier}-test" for tier in TIERS}, HETERO_FIRST
    for tier, set_name in sets.items():
        for hybrid in problem_sets()[set_name][:first]:
            name, fingerprint = hybrid.instance, hybrid.model.fingerprint
            settings: dict[str, Any] = {"tier": tier, "servers": hybrid.cluster.servers}
            settings |= {"layers": len(hybrid.model), "batch": hybrid.batch}
            settings["stack"] = hybrid.stack.name
            if instances is None or name in instances:
                yield kind(name, HybridPlan.task, "", name, fingerprint, settings)


EVALUATIONS_OF_DRAWN = 5_000
"""Plans that the first local search for a drawn problem's reference judges."""
SWAPS = 200
"""Plans that searches over orders of servers judge."""
_HYBRID_AGENTS = {
    "rule-of-thumb": board.Description(
        "A published run of the nearest model on such devices, else the least tp x pp that fits.",
        "https://arxiv.org/abs/2104.04473",
        board.ONE,
    ),
    "uniform": board.Description(
        "All plans of equal stages, judged together; the shortest.", "", "all uniform plans"
    ),
    "random": board.Description(
        "One of the uniform plans that fit, each as likely as any other.", "", board.ONE, True
    ),
    "search": board.Description(
        "The fastest neighbor, again and again, from the best uniform plans; by chance where none "
        "is faster.",
        "",
        f"{EVALUATIONS:,} judged plans a problem",
        True,
    ),
    "exact": board.Description(
        "The best uniform plan, then label search over 1F1B plans whose stages differ.",
        "",
        f"at most {board.SECONDS:.0f} s a problem",
    ),
    "best-known": board.BEST_KNOWN,
}
_HETERO_AGENTS = {
    "swap-search": board.Description(
        "Swaps of two servers from the better order by speed, kept if no worse.",
        "",
        f"{SWAPS} judged plans a problem",
        True,
    ),
    "subset-dp": board.Description(
        f"Dynamic programming over sets of servers, from some swaps on; up to {MAX_EXACT} servers.",
        "",
        board.PROVEN,
    ),
    "best-known": board.BEST_KNOWN,
}


def _subset(problem: Hybrid, seed: int) -> Answer:
    if problem.cluster.servers > MAX_EXACT:
        raise InfeasibleError(
            f"{problem.cluster.servers} servers are too many; at most {MAX_EXACT}"
        )
    orders = Orders(problem)
    orders.start()
    swapped = swap_search(problem, np.random.default_rng(seed), None, SWAPS)
    if orders.setting is not None:
        orders.keep(swapped.plan, orders.setting, swapped.cost)
    return subset_search(problem, orders=orders)


def planner(agent: str, seed: int, steps: int) -> board.Planner:
    """Return an agent as a planner of problems; see ``TaskKind.planner``."""

    def plan(problem: HybridProblem) -> HybridPlan:
        target: Hybrid = problem.target
        if agent == "best-known":
            return plan_of_row(target, references(HYBRID)[problem.instance])
        searches: dict[str, Callable[[], Answer]] = {
            "exact": lambda: exact(target, LIMITS, time_limit=board.SECONDS, simulate=False),
            # Not by time: its answer is the same on every machine.
            "search": lambda: local_search(target, seed=seed),
            "subset-dp": lambda: _subset(target, seed),
            "swap-search": lambda: swap_search(target, np.random.default_rng(seed), None, SWAPS),
        }
        if agent in searches:
            return searches[agent]().plan
        return planners.plan(target, agent, time_limit=board.SECONDS, seed=seed).plan

    return plan


class DrawnHybrid(board.DrawnProblem, HybridProblem):
    """A model, cluster and batch that were drawn."""

    def load(self) -> Hybrid:
        family = list(FAMILIES)[sum(self.number) % len(FAMILIES)]
        return make(INSIDE, family, self.rng, self.instance)

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``: as that of the sets; its bound holds for all plans."""
        target: Hybrid = self.target
        answer = best_known(target, seconds, EVALUATIONS_OF_DRAWN)
        bound = min(target.kernel_bound_seconds, answer.cost)
        among = answer.among if answer.proven else ""
        return board.reference_of(answer.cost, bound, answer.method, among, self.bounded_by)


_KIND = partial(
    board.TaskKind,
    kind=HybridPlan.task,
    cost="seconds of a training step (closed form)",
    planner=planner,
    docs="hybrid",
    figures=(board.CERTIFIED,),
)
TASKS = {
    "hybrid": _KIND(
        title="Plan all axes of a training run together: stages, their devices, tensor and data "
        "parallelism, ZeRO, recomputation, micro-batches.",
        trivial="no parallelism: one device does everything, whatever its memory",
        problem=HybridProblem,
        problems=partial(problems, "hybrid"),
        agents=_HYBRID_AGENTS,
    ),
    "hetero": _KIND(
        title="Plan pipelines on servers of different speed, one a stage, in an order to be chosen "
        "(docs/hybrid.md).",
        trivial="no parallelism: one device of the first server does everything, whatever its "
        "memory",
        problem=HeteroProblem,
        problems=partial(problems, "hetero"),
        agents=_HETERO_AGENTS,
    ),
    "hybrid-drawn": board.drawn_kind(
        DrawnHybrid,
        4,
        "Plan all axes of a training run together, for drawn models and clusters.",
        "seconds of a step",
        "no parallelism: one device does everything, whatever its memory",
    ),
}
"""Tasks of this kind."""
