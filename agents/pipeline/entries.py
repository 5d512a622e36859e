"""Pipelines: tasks ``pipeline-cut`` and ``pipeline-plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from parenvs.agents import planners
from parenvs.agents.learning.options import LEARNED
from parenvs.agents.planners import TRAINED_AGENTS
from parenvs.cluster import Cluster
from parenvs.core import leaderboard as board
from parenvs.core.leaderboard import Reference
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.problems import draw
from parenvs.instances import PAPER, load_graph
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import load_profile
from parenvs.view.words import duration


class PipelineProblem(board.TaskProblem):
    """A chain to be cut into stages; settings: cluster, stages, micro_batch, micro_batches."""

    plan_class = PipelinePlan
    decisions = ("cuts", "device_cuts")

    @property
    def stages(self) -> int:
        """Number of stages that a plan must have."""
        return int(self.settings["stages"])

    @property
    def pipeline(self) -> Pipeline:
        """The chain on its cluster."""
        return self.target

    def pipeline_plan(self, cuts: Sequence[int], device_cuts: Sequence[int]) -> PipelinePlan:
        """Make a plan; nothing is checked, as the judge does that.

        Args:
            cuts: (S-1,) first pivot of every stage but the first.
            device_cuts: (S-1,) first device of every stage but the first.
        """
        names, positions = self.pipeline.profile.names, tuple(map(int, cuts))
        all_inside = all(1 <= p < len(names) for p in positions)
        return replace(
            self.empty_plan(),
            cuts=positions,
            device_cuts=tuple(map(int, device_cuts)),
            cut_after=tuple(str(names[p - 1]) for p in positions) if all_inside else (),
        )

    def load(self) -> Pipeline:
        profile = load_profile(self.instance, self.cluster, self.settings["micro_batch"])
        return Pipeline(profile, self.cluster, self.stages, self.settings["micro_batches"])

    def fingerprint_of(self, target: Pipeline) -> str:
        return target.profile.fingerprint

    def empty_plan(self) -> PipelinePlan:
        sizes = (self.settings["micro_batch"], self.settings["micro_batches"])
        return PipelinePlan(self.instance, self.fingerprint, self.cluster, (), (), *sizes)

    def faults(self, plan: Any) -> list[str]:
        needed = self.stages - 1
        return [
            f"field {key!r} has {len(values):,} numbers; {self.stages} stages have {needed}"
            for key, values in (("cuts", plan.cuts), ("device_cuts", plan.device_cuts))
            if len(values) != needed
        ]

    def simulated(self, report: Report) -> float:
        return report.simulated_seconds

    def words(self, cost: float) -> str:
        return duration(cost)

    def trivial_cost(self) -> float:
        return self.pipeline.bubble_free * self.cluster.devices

    def solved(self, seconds: float) -> Reference:
        answer = planners.plan(self.target, time_limit=seconds)
        bound = answer.cost if answer.proven else answer.bound or 0.0
        return board.reference_of(answer.cost, bound, "exact", answer.among)


_SHAPES: dict[str, tuple[tuple[str, str, int, int], ...]] = {
    "pipeline-cut": (
        ("A", "A", 2, 16),
        ("B", "B", 3, 16),
        ("C", "C", 4, 16),
        ("a100-4", "a100-4", 4, 16),
        ("h100-4", "h100-4", 4, 16),
    ),
    "pipeline-plan": (
        ("A", "A", 4, 8),
        ("B", "B", 6, 64),
        ("C", "C", 8, 32),
        ("a100-4", "a100-4", 6, 32),
        ("h100-4", "h100-4", 8, 64),
        ("v100-8x8", "8x8:v100,25Gbps", 8, 32),
    ),
}
"""Task -> label, cluster, stages and micro-batches that every shipped graph is planned for."""


def problems(task: str, instances: board.Instances = None) -> Iterator[PipelineProblem]:
    """Yield the problems of a task, without references."""
    for instance in (x for x in PAPER if instances is None or x in instances):
        fingerprint = load_graph(instance, "forward").fingerprint
        for label, cluster, stages, micro_batches in _SHAPES[task]:
            settings: dict[str, Any] = {
                "cluster": Cluster.parse(cluster).to_json(),
                "stages": stages,
                "micro_batch": 16,
                "micro_batches": micro_batches,
            }
            name = f"{instance}-{label}-{stages}"
            yield PipelineProblem(name, PipelinePlan.task, "", instance, fingerprint, settings)


AGENTS: dict[str, board.Description] = {
    "even": board.Description(
        "GPipe's rule: equal device groups, cuts that balance seconds; sees neither bytes nor "
        "memory.",
        "https://arxiv.org/abs/1811.06965",
        board.ONE,
    ),
    "pipedream": board.Description(
        "PipeDream's steady-state objective, by dynamic programming, with as many stages as asked.",
        "https://arxiv.org/abs/1806.03377",
        board.ONE,
    ),
    "random": board.Description(
        "The best of many random episodes of PipelineCut-v0.",
        "",
        "{steps:,} environment steps a problem",
        seeded=True,
    ),
    "exact": board.Description(
        "Label search over all pivots and all device cuts, from the optimum over 128 points on.",
        "",
        f"until proven, at most {board.SECONDS:.0f} s a problem",
    ),
    LEARNED: board.Description(
        "A network that imitated exact worths of actions on generated problems; the best plan of a "
        "beam of 8 beginnings with 8 actions each.",
        "https://arxiv.org/abs/2207.06190",
        "inference: about 300 plans a problem",
    ),
    "search": board.Description(
        "Sweeps over the plans near a plan, ever closer, from several starts.",
        "",
        f"{board.SECONDS:.0f} s a problem at most",
    ),
    **TRAINED_AGENTS,
}
"""Agents of pipelines; those that ``parenvs plan`` does not have are left out."""


def planner(agent: str, seed: int, steps: int) -> board.Planner:
    """Return an agent as a planner of the problems; see ``TaskKind.planner``."""

    def plan(problem: PipelineProblem) -> PipelinePlan:
        limit = {"time_limit": board.SECONDS} if agent in ("exact", "search") else {}
        answer = planners.plan(problem.target, agent, seed=seed, steps=steps, **limit)
        return problem.pipeline_plan(answer.plan.cuts, answer.plan.device_cuts)

    return plan


_TITLES = {
    "pipeline-cut": "Cut a model into pipeline stages, one a server, anywhere and on any devices.",
    "pipeline-plan": "Plan pipelines of many models, clusters, stages and micro-batches with one "
    "planner.",
}


class DrawnPipeline(board.DrawnProblem, PipelineProblem):
    """A chain, cluster and stages that were drawn."""

    def load(self) -> Pipeline:
        # Families take turns by the problem's number.
        family = list(FAMILIES)[sum(self.number) % len(FAMILIES)]
        return draw(self.rng, family, name=self.instance).pipeline

    @classmethod
    def settings_of(cls, target: Pipeline) -> dict[str, Any]:
        return {
            "cluster": target.cluster.to_json(),
            "stages": target.stages,
            "micro_batch": target.profile.micro_batch,
            "micro_batches": target.micro_batches,
        }


TASKS = {
    **{
        name: board.TaskKind(
            title=title,
            kind=PipelinePlan.task,
            cost="seconds of a training step (pipeline length L)",
            trivial="no parallelism: one device does everything, whatever its memory",
            problem=PipelineProblem,
            problems=partial(problems, name),
            agents=AGENTS,
            planner=planner,
            docs="pipeline",
        )
        for name, title in _TITLES.items()
    },
    "pipeline-drawn": board.drawn_kind(
        DrawnPipeline,
        6,
        "Cut drawn chains into pipeline stages, anywhere and on any devices.",
        "seconds of a step",
        "no parallelism: one device does everything, whatever its memory",
    ),
}
"""Tasks of this kind."""
