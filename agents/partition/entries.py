"""Partitions: ``operator-partition-paper``, ``-step-time`` and ``-memory``, ``data-parallel``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.planners import TRAINED_AGENTS, solve
from parenvs.cluster import Cluster, choose_cluster
from parenvs.core.leaderboard import (
    BOUND,
    ONE,
    OPTIMAL,
    PROVEN,
    UNKNOWN,
    Description,
    Instances,
    Planner,
    Reference,
    TaskKind,
    TaskProblem,
)
from parenvs.core.plan import Plan
from parenvs.errors import shown
from parenvs.instances import PAPER, load_graph
from parenvs.tasks.partition.classes import Step
from parenvs.tasks.partition.problem import (
    STEP_OPTIONS,
    Partitioning,
    PartitionPlan,
    PartitionReport,
    load_partitioning,
)
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

    @property
    def partitioning(self) -> Partitioning:
        """The graph with its dimension classes."""
        assert isinstance(self.target, Partitioning)
        return self.target

    def partition_plan(self, partition: Mapping[str, int]) -> PartitionPlan:
        """Make a plan.

        Args:
            partition: path -> partitioned dimension; variables that are not named are replicated.
        """
        return self.plan_class(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            partition={path: int(dimension) for path, dimension in partition.items()},
            scope=self.scope,
            rules=self.settings["rules"],
            uneven=self.settings["uneven"],
            **self.step,
        )

    @property
    def step(self) -> dict[str, Any]:
        """The settings that say how a step runs."""
        return {key: self.settings[key] for key in STEP_OPTIONS if key in self.settings}

    def load(self) -> Partitioning:
        """See ``TaskProblem.load``."""
        settings = self.settings
        return load_partitioning(
            self.instance,
            self.cluster,
            settings["rules"],
            settings["uneven"],
            self.scope,
            self.reward,
            **self.step,
        )

    def fingerprint_of(self, target: Partitioning) -> str:
        """See ``TaskProblem.fingerprint_of``."""
        return target.graph.fingerprint

    def empty_plan(self) -> PartitionPlan:
        """See ``TaskProblem.empty_plan``."""
        return self.partition_plan({})

    def faults(self, plan: Plan) -> list[str]:
        """See ``TaskProblem.faults``: many unknown paths, each of which the judge would explain."""
        assert isinstance(plan, PartitionPlan)
        unknown = [path for path in plan.partition if path not in self.partitioning.tensor]
        if len(unknown) <= _UNKNOWN_PATHS:
            return []
        return [
            f"field 'partition' names {len(unknown):,} paths that the graph does not have, like "
            f"{shown(unknown[0])}"
        ]

    def cost(self, report: PartitionReport) -> float:
        """See ``TaskProblem.cost``: seconds of a step, or 1 / return."""
        return 1.0 / report.value_of("paper") if self.reward == "paper" else report.step_seconds

    def trivial_cost(self) -> float:
        """See ``TaskProblem.trivial_cost``: nothing is partitioned."""
        return self.cost(self.judge(self.empty_plan()))

    def solved(self, seconds: float) -> Reference:
        """See ``TaskProblem.solved``."""
        partitioning = self.partitioning
        optimum = exact_partition(partitioning)
        cost = self.cost(self.judge(optimum.plan))
        if optimum.proven:
            return Reference(cost, cost, OPTIMAL, "exact")
        assert optimum.bound is not None
        replicate = partitioning.replicate_seconds
        paper = self.reward == "paper"
        bound = 1 / optimum.bound if paper else (1 - optimum.bound) * replicate
        return Reference(cost, bound, BOUND, "exact")

    def words(self, cost: float) -> str:
        """See ``TaskProblem.words``."""
        return f"{cost:.4g}" if self.reward == "paper" else duration(cost)


class BatchProblem(PartitionProblem):
    """Batch inputs to be partitioned, and no variables."""

    scope = "inputs"


class _PartitionShape(NamedTuple):
    """Cluster and rules that a partition task plans every shipped graph for."""

    label: str
    cluster: str | None  # None: one server of 8 V100
    rules: str


_PARTITION_SHAPES: dict[str, tuple[_PartitionShape, ...]] = {
    "operator-partition-paper": (
        _PartitionShape("8", None, "shardy"),
        _PartitionShape("8", None, "automap"),
    ),
    "operator-partition-step-time": (
        _PartitionShape("8", None, "shardy"),
        _PartitionShape("8", None, "automap"),
        _PartitionShape("C", "C", "shardy"),
    ),
    "data-parallel": (_PartitionShape("8", None, "shardy"), _PartitionShape("C", "C", "shardy")),
}
"""Name of a partition task -> its shapes."""


class _LimitedShape(NamedTuple):
    """A graph on a cluster whose memory limits plans, and how a step runs there."""

    instance: str
    label: str
    cluster: str | dict[str, Any]
    rules: str
    micro_batch: int
    micro_batches: int
    recompute: str = "none"


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
_LIMITED_SHAPES = (
    _LimitedShape("vgg-19", "8", "1x8:v100", "automap", 512, 1),
    _LimitedShape("vgg-19", "C", "C", "automap", 256, 2),
    _LimitedShape("t5-base", "64", "8x8:v100,10Gbps", "shardy", 64, 4),
    _LimitedShape("t5-base", "64", "8x8:v100,10Gbps", "shardy", 64, 1, "full"),
    _LimitedShape("t5-3b", "8", "1x8:v100", "shardy", 16, 4, "full"),
    _LimitedShape("t5-3b", "8rtx", _RTX, "shardy", 8, 8, "full"),
    _LimitedShape("t5-3b", "C", "C", "shardy", 32, 2, "full"),
    _LimitedShape("t5-11b", "8", "1x8:v100", "shardy", 8, 8, "full"),
    _LimitedShape("t5-11b", "8a100", "1x8:a100", "shardy", 64, 1, "full"),
    _LimitedShape("t5-11b", "8a100", "1x8:a100", "shardy", 8, 8),
    _LimitedShape("t5-11b", "C", "C", "shardy", 64, 1, "full"),
    _LimitedShape("t5-11b", "C", "C", "shardy", 8, 8),
    _LimitedShape("bert-48", "8rtx", _RTX, "shardy", 16, 4, "full"),
    _LimitedShape("bert-48", "8rtx", _RTX, "shardy", 64, 1, "full"),
    _LimitedShape("bert-48", "C", "C", "automap", 64, 1, "full"),
    _LimitedShape("whisper-large", "8", "1x8:v100", "shardy", 64, 4, "full"),
    _LimitedShape("dlrm-criteo", "8a100", "1x8:a100", "shardy", 8192, 8),
)
"""Problems of task ``operator-partition-memory``: of graphs of the split ``test``, with a batch, an
accumulation and a recomputation for which some plan fits the memory of a device, and for which that
of everything that can be split does not, or is slower than the best."""


def limited_problems(instances: Instances = None) -> Iterator[PartitionProblem]:
    """Yield the problems of task ``operator-partition-memory``, without references."""
    kind, reward, problem = _KINDS[LIMITED]
    for shape in _LIMITED_SHAPES:
        if instances is not None and shape.instance not in instances:
            continue
        graph = load_graph(shape.instance)
        settings: dict[str, Any] = {
            "cluster": shape.cluster,
            "rules": shape.rules,
            "uneven": "pad",
            **Step.of(
                Cluster.parse(shape.cluster),
                shape.micro_batch,
                shape.micro_batches,
                shape.recompute,
                memory_limit=True,
            )
            .on(graph)
            .settings,
        }
        again = "-again" if shape.recompute == "full" else ""
        name = f"{shape.instance}-{shape.rules}-{shape.label}-{shape.micro_batches}x"
        name += f"{shape.micro_batch}{again}"
        yield problem(name, kind, reward, shape.instance, graph.fingerprint, settings, UNKNOWN, 0.0)


def problems(task: str, instances: Instances = None) -> Iterator[PartitionProblem]:
    """Yield the problems of a task, without references."""
    if task == LIMITED:
        yield from limited_problems(instances)
        return
    kind, reward, problem = _KINDS[task]
    for instance in (x for x in PAPER if instances is None or x in instances):
        fingerprint = load_graph(instance).fingerprint
        for mesh in _PARTITION_SHAPES[task]:
            cluster = mesh.cluster or "1x8:v100"
            assert choose_cluster(mesh.cluster) == Cluster.parse(cluster)
            settings = {"cluster": cluster, "rules": mesh.rules, "uneven": "pad"}
            name = f"{instance}-{mesh.rules}-{mesh.label}"
            yield problem(name, kind, reward, instance, fingerprint, settings, UNKNOWN, 0.0)


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
        "GWMIN: the class of largest worth / (open rivals + 1) until none is left.",
        "",
        ONE,
    ),
    "random": Description(
        "The best of many random episodes.", "", "{steps:,} environment steps a problem", True
    ),
    "exact": Description(
        "Weighted independent set on the conflicts of the classes, by MILP.", "", PROVEN
    ),
    **TRAINED_AGENTS,
}
"""Agents of partitions."""


def planner(agent: str, seed: int, steps: int) -> Planner:
    """Return an agent as a planner of the problems; see ``TaskKind.planner``."""
    return lambda problem: solve(problem.target, agent, seed=seed, steps=steps).plan


LIMITED = "operator-partition-memory"
"""The task whose plans must fit the memory of the devices."""
_KINDS: dict[str, tuple[str, str, type[PartitionProblem]]] = {
    "operator-partition-paper": (PartitionPlan.task, "paper", PartitionProblem),
    "operator-partition-step-time": (PartitionPlan.task, "step_time", PartitionProblem),
    LIMITED: (PartitionPlan.task, "step_time", PartitionProblem),
    "data-parallel": (PartitionPlan.task, "step_time", BatchProblem),
}
_TITLES = {
    "operator-partition-paper": "Partition as many dimensions of variables as possible, all at "
    "once.",
    "operator-partition-step-time": "Partition variables and batch so that a training step is as "
    "short as possible.",
    LIMITED: "Partition variables and batch so that a training step fits the memory and is as "
    "short as possible.",
    "data-parallel": "Partition the batch inputs alone so that a training step is as short as "
    "possible.",
}
_WITHOUT = {
    "operator-partition-paper": "data-parallel",  # it decides no variable
    "operator-partition-step-time": "",
    LIMITED: "",
    "data-parallel": "expert",  # it decides no input
}
TASKS = {
    name: TaskKind(
        title=_TITLES[name],
        kind=kind,
        reward=reward,
        cost="1 / return under the paper's reward (0.4 a dimension partitioned, 0.1 replicated)"
        if reward == "paper"
        else "seconds of a training step",
        trivial="nothing is partitioned: every device does everything"
        + (", whatever its memory" if name == LIMITED else ""),
        problem=problem,
        problems=partial(problems, name),
        agents={agent: words for agent, words in AGENTS.items() if agent != _WITHOUT[name]},
        planner=planner,
        docs="partition",
    )
    for name, (kind, reward, problem) in _KINDS.items()
}
"""Tasks of this kind."""
