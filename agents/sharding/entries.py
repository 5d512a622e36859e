"""Intra-operator parallelism: task ``iopddl``, exports of our graphs and the contest's problems.

The contest's files are not shipped, so its tier does not count in scores: users who have added the
files see the contest's own points beside the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.core import leaderboard as board
from parenvs.datasets.sharding.problems import FAMILIES, drawn
from parenvs.errors import InfeasibleError, ParenvsError, UnknownInstanceError, one_line
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.sharding import files
from parenvs.tasks.sharding.files import Exchange
from parenvs.tasks.sharding.problem import Sharding, ShardingPlan, ShardingReport

EXPORTS, CONTEST = "exports", "contest"
"""Tiers."""
SOLVER_SECONDS = 60.0
"""Processor seconds of the solver's entry: the least of the contest's limits, there on 8 cores."""
# A missing plan of a problem of the contest counts as so many times the best known cost.
_WORST = 10


_EXPORTS = (
    ("vgg-19", "8x8:v100,10Gbps", "8x8", (2975, 2730, 2610)),
    ("vgg-19", "4x8:v100,25Gbps", "4x8", (2975, 2730)),
)
"""Graph, cluster, its label and limits of memory in MB of problems that are exports."""
_PREFIX = "asplos-2025-iopddl-"
# Letter of a problem of the contest -> its fingerprint; for others no file was at hand.
_FINGERPRINTS = {
    "B": "sha256:91fa5db5b6e37b6502a6bafa45437d6b4bb39594ffeaa58f41abd80657656f0a",
    "G": "sha256:548843729ef6942b0502ccfb2a233efc3214d6e8297af02ab7a89f7c7437ebc5",
    "K": "sha256:0ad5cd4da4090c5decfbe10e2d5c24f4ed40b8abc9caa57d6a91b76074cba036",
    "L": "sha256:36c9d6d63f12d6a88a3dac20701b5279b4eeed5482133646c40c49bc6f513579",
    "P": "sha256:1bee2f2d391e5e78d36792dff282c74fd9d39f43ed00c9d41c9cc900fbfdb2a7",
    "V": "sha256:d4eed472fa17fbf0773f28d6aa76280083e68b69164bc3bd777a8bd13a7cdf0d",
}


SOURCE = "python benchmarks/leaderboard_references.py --tasks iopddl"
"""Command that makes the references that are the solver's own."""
# Letter -> bound that `benchmarks/iopddl.py` proved where it is above the one known before.
_BOUNDS = {"G": 217_039, "L": 1_957_220_536, "P": 651_832_464_942}


class ShardingProblem(board.TaskProblem):
    """An IOPDDL problem; settings: tier, and graph, cluster, limit or model, seconds."""

    plan_class = ShardingPlan
    decisions = ("strategies",)

    @property
    def added(self) -> bool:
        """Whether it is a problem of the contest, whose file users add."""
        return self.settings.get("tier") == CONTEST

    @property
    def place(self) -> str:
        """What is planned, in words."""
        settings = self.settings
        if self.added:
            return f"{self.instance} ({settings['model']})"
        return f"{settings['graph']} on {self.cluster}, {settings['limit']:,} bytes a device"

    @property
    def letter(self) -> str:
        """The contest's name of the problem."""
        return self.instance.removeprefix(_PREFIX)

    def load(self) -> Sharding:
        if self.added:
            return replace(files.find(self.instance), instance=self.instance)
        settings = self.settings
        return _limited(settings["graph"], settings["cluster"], settings["limit"], self.instance)

    def missing(self) -> str:
        """See ``TaskProblem.missing``: the file of a problem of the contest."""
        if not self.added:
            return ""
        file = f"{self.instance}.json.gz"
        try:
            self.target  # noqa: B018  # kept, so that the file is read once
        except UnknownInstanceError:
            return f"the file {file} is not here; add it with parenvs iopddl add {file}"
        except ParenvsError as error:
            other = f"{files.folder()} holds another problem of its name or a damaged file"
            return f"{other} ({one_line(error)}); put {file} of the contest there"
        return ""

    def empty_plan(self) -> ShardingPlan:
        return ShardingPlan(self.instance, self.fingerprint, ())

    def cost(self, report: ShardingReport) -> float:
        assert report.cost is not None
        return report.cost

    def trivial_cost(self) -> float:
        """See ``TaskProblem.trivial_cost``: of an export the dearest strategy of every node.

        Nothing partitioned would be cheaper than what keeps the limit.
        """
        if self.added:
            return _WORST * files.CONTEST_RECORDS[self.letter].best
        target: Sharding = self.target
        return int(np.maximum.reduceat(target.costs, target.offset[:-1]).sum())

    def solved(self, seconds: float) -> board.Reference:
        """See ``TaskProblem.solved``: of the contest's problems, what was published."""
        if self.added:
            row = files.CONTEST_RECORDS[self.letter]
            bound = max(row.bound, _BOUNDS.get(self.letter, 0))
            by = "benchmarks/iopddl.py" if bound > row.bound else ""
            return board.reference_of(
                row.best, bound, "best known before this solver", "", by,
                "ASPLOS 2025 contest, arXiv 2501.10387; parenvs/tasks/sharding/files.py",
            )  # fmt: skip
        answer = solve_iopddl(self.target, seconds)
        assert answer.bound is not None
        return board.reference_of(answer.cost, answer.bound, "solver", "", "", SOURCE)

    def words(self, cost: float) -> str:
        return f"{cost:,}" if isinstance(cost, int) else f"{cost:,.0f}"


@lru_cache(maxsize=len(_EXPORTS))
def _export(graph: str, cluster: str) -> Exchange:
    partitioning = load_partitioning(graph, cluster, reward="step_time")
    return Exchange.of(partitioning, 2.0**62)


def _limited(graph: str, cluster: str, limit: int, name: str) -> Sharding:
    return replace(_export(graph, cluster).problem, limit=limit, name=name, instance=name)


def problems(instances: board.Instances = None) -> Iterator[ShardingProblem]:
    """Yield the problems without references; those of the contest need no file here."""
    for graph, cluster, label, limits in _EXPORTS:
        for limit in limits:
            name, size = f"{graph}-{label}-{limit}MB", limit * 10**6
            if instances is None or name in instances:
                fingerprint = _limited(graph, cluster, size, name).fingerprint
                settings = {"tier": EXPORTS, "graph": graph, "cluster": cluster, "limit": size}
                yield ShardingProblem(name, ShardingPlan.task, "", name, fingerprint, settings)
    for letter, fingerprint in _FINGERPRINTS.items():
        record, name = files.CONTEST_RECORDS[letter], f"{_PREFIX}{letter}"
        if instances is None or name in instances:
            settings = {"tier": CONTEST, "model": record.model, "seconds": record.seconds}
            yield ShardingProblem(name, ShardingPlan.task, "", name, fingerprint, settings)


_Pairs = list[tuple[Any, float | None]]


def _contest(pairs: _Pairs) -> list[tuple[files.ContestRecord, float | None]]:
    rows = [(files.CONTEST_RECORDS[x.letter], cost) for x, cost in pairs if x.added]
    return rows if any(cost is not None for _, cost in rows) else []


def _points(pairs: _Pairs) -> float | None:
    rows = _contest(pairs)
    return math.fsum(known.contest / cost for known, cost in rows if cost) if rows else None


def _geometric(pairs: _Pairs) -> float | None:
    shares = [
        math.log(known.best / cost) if cost else -math.log(_WORST)
        for known, cost in _contest(pairs)
    ]
    return math.exp(math.fsum(shares) / len(shares)) if shares else None


POINTS = board.Figure(
    "contest's points",
    "sum over the contest's problems that are judged here of best team's cost / cost",
    _points,
    added=True,
)
MEAN = board.Figure(
    "contest, mean",
    "geometric mean of best known cost / cost over the contest's problems that are judged here",
    _geometric,
    added=True,
)
_AGENTS = {
    "solver": board.Description(
        "solve_iopddl: reduction, TRW-S bound, tree moves, HiGHS (docs/iopddl.md); one thread.",
        "",
        f"at most {SOLVER_SECONDS:.0f} processor seconds a problem",
        True,
    ),
    "partition-milp": board.Description(
        "The partition problem behind an export as a MILP with its memory limit; no contest.",
        "",
        board.PROVEN,
    ),
}


def planner(agent: str, seed: int, steps: int) -> board.Planner:
    """Return an agent as a planner of the problems; see ``TaskKind.planner``."""

    def plan(problem: ShardingProblem) -> ShardingPlan:
        target: Sharding = problem.target
        if agent == "solver":
            return solve_iopddl(target, SOLVER_SECONDS, seed, processor=True).plan
        if problem.added:
            raise InfeasibleError("no graph stands behind a problem of the contest")
        settings = problem.settings
        exchange = _export(settings["graph"], settings["cluster"])
        answer = exact_partition(exchange.partitioning, settings["limit"])
        return target.plan(exchange.strategies(answer.report.chosen))

    return plan


class DrawnSharding(board.DrawnProblem, ShardingProblem):
    """Strategies for a part of a graph that was drawn, within a memory limit."""

    def load(self) -> Sharding:
        family = FAMILIES[sum(self.number) % len(FAMILIES)]
        word = int(self.rng.bit_generator.seed_seq.generate_state(1)[0])
        return drawn(family, 10**9 + word)

    @property
    def has_cluster(self) -> bool:
        """Whether its devices are known as a cluster: costs are all that is drawn."""
        return False

    @classmethod
    def instance_of(cls, target: Sharding, name: str) -> str:
        return target.instance


TASKS = {
    "iopddl": board.TaskKind(
        title="Choose a strategy for every node of a program within a memory limit "
        "(docs/iopddl.md).",
        kind=ShardingPlan.task,
        cost="sum of the costs of nodes and edges, exact (of exports, nanoseconds)",
        trivial="of exports the dearest strategy of every node; of the contest's problems ten "
        "times the best known cost",
        problem=ShardingProblem,
        problems=problems,
        agents=_AGENTS,
        planner=planner,
        figures=(board.CERTIFIED, POINTS, MEAN),
        docs="iopddl",
    ),
    "sharding-drawn": board.drawn_kind(
        DrawnSharding,
        4,
        "Choose strategies for parts of programs that were drawn, within a memory limit.",
        "sum of the costs of nodes and edges",
        "the dearest strategy of every node",
    ),
}
