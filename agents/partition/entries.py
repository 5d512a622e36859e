"""Partitions: ``operator-partition-paper``, ``-step-time`` and ``-memory``, ``data-parallel``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import parenvs.core.leaderboard as board
import parenvs.tasks.partition.problem as partition
from parenvs.agents import planners
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.planners import TRAINED_AGENTS
from parenvs.cluster import Cluster
from parenvs.core.leaderboard import ONE, Description, Reference, TaskKind, TaskProblem
from parenvs.errors import shown
from parenvs.instances import PAPER, load_graph
from parenvs.tasks.partition.classes import StepSettings
from parenvs.tasks.partition.problem import Partitioning, PartitionPlan
from parenvs.view.words import duration

_UNKNOWN_PATHS = 20
"""Unknown paths in a partition beyond which the judge is not asked to look for similar ones."""


class PartitionProblem(TaskProblem):
    """Variables, or batch inputs, to be partitioned; settings: cluster, rules, uneven.

    Those with a limit of memory also have what of ``STEP_OPTIONS`` is not the default.
    """

    plan_class: ClassVar[type[PartitionPlan]] = PartitionPlan
    decisions = ("partition",)
    scope: ClassVar[str] = "variables"
    optional: ClassVar[Mapping[str, Any]] = {
        "scope": "variables",
        "rules": "shardy",
        "uneven": "pad",
        "micro_batches": 1,
        "recompute": "none",
    }

    def partition_plan(self, partition: Mapping[str, int]) -> PartitionPlan:
        """Make a plan from path -> partitioned dimension; others are replicated."""
        decided = {path: int(dimension) for path, dimension in partition.items()}
        head = (self.instance, self.fingerprint, self.cluster)
        return self.plan_class(*head, decided, scope=self.scope, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        names = ("rules", "uneven", *partition.STEP_OPTIONS)
        return {key: self.settings[key] for key in names if key in self.settings}

    def load(self) -> Partitioning:
        asked = {"scope": self.scope, "reward": self.reward}
        return partition.load_partitioning(self.instance, self.cluster, **asked, **self._options)

    def fingerprint_of(self, target: Partitioning) -> str:
        return target.graph.fingerprint

    def empty_plan(self) -> PartitionPlan:
        return self.partition_plan({})

    def faults(self, plan: Any) -> list[str]:
        """See ``TaskProblem.faults``: many unknown paths, each of which the judge would explain."""
        unknown = [path for path in plan.partition if path not in self.target.tensor]
        if len(unknown) <= _UNKNOWN_PATHS:
            return []
        names = f"{len(unknown):,} paths that the graph does not have, like {shown(unknown[0])}"
        return [f"field 'partition' names {names}"]

    def solved(self, seconds: float) -> Reference:
        answer = exact_partition(self.target)
        cost, best = self.cost(answer.report), answer.bound or 0.0  # the bound of the return
        bound = 1 / best if self.reward == "paper" else (1 - best) * self.target.replicate_seconds
        return board.reference_of(cost, cost if answer.proven else bound, "exact")

    def words(self, cost: float) -> str:
        return f"{cost:.4g}" if self.reward == "paper" else duration(cost)


class BatchProblem(PartitionProblem):
    """Batch inputs to be partitioned, and no variables."""

    scope = "inputs"


PAPERS, SECONDS = "operator-partition-paper", "operator-partition-step-time"
LIMITED, BATCH = "operator-partition-memory", "data-parallel"
"""The leaderboard's tasks; plans of ``LIMITED`` must fit the memory of the devices."""
_SHAPES: dict[str, tuple[tuple[str, str], ...]] = {
    PAPERS: (("8", "shardy"), ("8", "automap")),
    SECONDS: (("8", "shardy"), ("8", "automap"), ("C", "shardy")),
    BATCH: (("8", "shardy"), ("C", "shardy")),
}
"""Task -> label of the cluster and rules that every graph of the paper is planned for."""
_RTX: dict[str, Any] = {
    "servers": 1,
    "devices_per_server": 8,
    "device": {
        "name": "rtx-2080-ti",
        "peak_flops": 13.45e12,
        "memory_bw": 616e9,
        "memory_bytes": 11e9,
    },
    "intra_bw": 16e9,
    "inter_bw": 1.25e9,
}
"""NVIDIA GeForce RTX 2080 Ti on PCIe 3.0 x16 (NVIDIA, GeForce RTX 20 series; one direction)."""
_CLUSTERS: dict[str, Any] = {
    "8": "1x8:v100", "64": "8x8:v100,10Gbps", "8a100": "1x8:a100", "C": "C", "8rtx": _RTX,
}  # fmt: skip
_LIMITED_SHAPES = (
    ("vgg-19", "8", "automap", 512, 1, "none"),
    ("vgg-19", "C", "automap", 256, 2, "none"),
    ("t5-base", "64", "shardy", 64, 4, "none"),
    ("t5-base", "64", "shardy", 64, 1, "full"),
    ("t5-3b", "8", "shardy", 16, 4, "full"),
    ("t5-3b", "8rtx", "shardy", 8, 8, "full"),
    ("t5-3b", "C", "shardy", 32, 2, "full"),
    ("t5-11b", "8", "shardy", 8, 8, "full"),
    ("t5-11b", "8a100", "shardy", 64, 1, "full"),
    ("t5-11b", "8a100", "shardy", 8, 8, "none"),
    ("t5-11b", "C", "shardy", 64, 1, "full"),
    ("t5-11b", "C", "shardy", 8, 8, "none"),
    ("bert-48", "8rtx", "shardy", 16, 4, "full"),
    ("bert-48", "8rtx", "shardy", 64, 1, "full"),
    ("bert-48", "C", "automap", 64, 1, "full"),
    ("whisper-large", "8", "shardy", 64, 4, "full"),
    ("dlrm-criteo", "8a100", "shardy", 8192, 8, "none"),
)
"""Instance, cluster, rules, micro-batch, micro-batches and recomputation of the problems of
``LIMITED``: some plan fits, and splitting all that can be split does not fit or is slower."""


def problems(task: str, instances: board.Instances = None) -> Iterator[PartitionProblem]:
    """Yield the problems of a task, without references."""
    reward, problem = _KINDS[task][:2]
    shapes: Iterable[tuple[str, str, str, int | None, int, str]] = _LIMITED_SHAPES
    if task != LIMITED:
        shapes = [(x, *shape, None, 1, "none") for x in PAPER for shape in _SHAPES[task]]
    for instance, label, rules, samples, count, recompute in shapes:
        if instances is not None and instance not in instances:
            continue
        name = f"{instance}-{rules}-{label}"
        if task == LIMITED:
            name += f"-{count}x{samples}" + "-again" * (recompute == "full")
        graph, cluster = load_graph(instance), _CLUSTERS[label]
        step = StepSettings.of(Cluster.parse(cluster), samples, count, recompute, task == LIMITED)
        settings = {"cluster": cluster, "rules": rules, "uneven": "pad"} | step.on(graph).settings
        head = (name, PartitionPlan.task, reward, instance)
        yield problem(*head, graph.fingerprint, settings)


AGENTS: dict[str, Description] = {
    "data-parallel": Description(
        "The first dimension of every batch input, nothing else.", "", ONE
    ),
    "expert": Description(
        "Megatron's splits of the blocks found in a transformer's data flow; a CNN's dense layers.",
        "https://arxiv.org/abs/1909.08053",
        ONE,
    ),
    "greedy": Description(
        "GWMIN: the class of largest worth / (open rivals + 1) until none is left.", "", ONE
    ),
    "random": Description(
        "The best of many random episodes.", "", "{steps:,} environment steps a problem", True
    ),
    "exact": Description(
        "Weighted independent set on the conflicts of the classes, by MILP.", "", board.PROVEN
    ),
    **TRAINED_AGENTS,
}


def planner(agent: str, seed: int, steps: int) -> board.Planner:
    """Return an agent as a planner of the problems; see ``TaskKind.planner``."""
    return lambda problem: planners.plan(problem.target, agent, seed=seed, steps=steps).plan


_KINDS: dict[str, tuple[str, type[PartitionProblem], str, str]] = {
    PAPERS: (
        "paper", PartitionProblem, "data-parallel",  # which decides no variable
        "Partition as many dimensions of variables as possible, all at once.",
    ),
    SECONDS: (
        "step_time", PartitionProblem, "",
        "Partition variables and batch so that a training step is as short as possible.",
    ),
    LIMITED: (
        "step_time", PartitionProblem, "",
        "Partition variables and batch so that a training step fits the memory and is as short as "
        "possible.",
    ),
    BATCH: (
        "step_time", BatchProblem, "expert",  # which decides no input
        "Partition the batch inputs alone so that a training step is as short as possible.",
    ),
}  # fmt: skip
"""Task -> reward, class of the problems, the agent that it is without, title."""
TASKS = {
    name: TaskKind(
        title=title,
        kind=PartitionPlan.task,
        reward=reward,
        cost="1 / return under the paper's reward (0.4 a dimension partitioned, 0.1 replicated)"
        if reward == "paper"
        else "seconds of a training step",
        trivial="nothing is partitioned: every device does everything"
        + (", whatever its memory" if name == LIMITED else ""),
        problem=problem,
        problems=partial(problems, name),
        agents={agent: words for agent, words in AGENTS.items() if agent != without},
        planner=planner,
        docs="partition",
    )
    for name, (reward, problem, without, title) in _KINDS.items()
}
