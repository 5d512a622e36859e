"""The fixed list of what is ranked: tasks, their problems and the references of these.

``tasks.json`` holds it; ``parenvs.leaderboard.references`` makes that file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import write_text
from parenvs.instances import load_profile
from parenvs.judge import Report, judge
from parenvs.judge_partition import PartitionReport
from parenvs.partitioning import Partitioning, load_partitioning
from parenvs.pipeline import Pipeline
from parenvs.plan import BatchPlan, PartitionPlan, PipelinePlan, Plan

SCHEMA = 1
"""Version of ``tasks.json`` and of ``splits.json``."""
TOLERANCE = 1e-6
"""Share by which a cost must differ to count as another one; covers rounding and solvers."""
SPLITS = ("train", "validation", "test")
KINDS: dict[str, type[Plan]] = {
    kind.task: kind for kind in (PipelinePlan, PartitionPlan, BatchPlan)
}


@dataclass(frozen=True)
class Reference:
    """The best cost that is known, and what is proven of it.

    Attributes:
        cost: of the best plan known, in the unit of the task.
        bound: no plan costs less, proven.
        status: ``"optimal"`` if the bound is the cost, else ``"bound"``.
        method: the planner or entry whose plan it is.
    """

    cost: float
    bound: float
    status: str
    method: str


@dataclass(frozen=True, eq=False)
class Problem:
    """One thing to be planned, on which entries are compared.

    Attributes:
        name: unique in its task, for example ``"t5-3b-C-4"``.
        kind: task of the plan files that answer it, for example ``"pipeline-cut"``.
        reward: ``"paper"`` or ``"step_time"`` of a partition, empty for a pipeline.
        instance: name of a shipped graph.
        fingerprint: of that graph; plans must bear it.
        settings: the rest of it: cluster, and stages, micro_batch, micro_batches or rules, uneven.
        reference: the best cost known.
        trivial: cost of doing without parallelism, which scores where an entry has no plan.
    """

    name: str
    kind: str
    reward: str
    instance: str
    fingerprint: str
    settings: dict[str, Any]
    reference: Reference
    trivial: float

    @cached_property
    def cluster(self) -> Cluster:
        """The devices."""
        return Cluster.parse(self.settings["cluster"])

    @property
    def stages(self) -> int:
        """Stages that a plan must have (pipelines)."""
        return int(self.settings["stages"])

    @cached_property
    def target(self) -> Pipeline | Partitioning:
        """What plans are judged on.

        Raises:
            ParenvsError: the shipped graph is not the one that the references are for.
        """
        found: Pipeline | Partitioning
        settings = self.settings
        if self.kind == PipelinePlan.task:
            profile = load_profile(self.instance, self.cluster, settings["micro_batch"])
            found, fingerprint = (
                Pipeline(profile, self.cluster, settings["micro_batches"]),
                profile.fingerprint,
            )
        else:
            found = load_partitioning(
                self.instance, self.cluster, settings["rules"], settings["uneven"]
            )
            fingerprint = found.graph.fingerprint
        if fingerprint != self.fingerprint:
            raise ParenvsError(
                f"tasks.json: problem {self.name!r}: field 'fingerprint' is not that of the "
                "shipped graph; a new graph needs a new version of the list"
            )
        return found

    @property
    def pipeline(self) -> Pipeline:
        """The chain on its cluster (pipelines)."""
        assert isinstance(self.target, Pipeline)
        return self.target

    @property
    def partitioning(self) -> Partitioning:
        """The graph with its dimension classes (partitions)."""
        assert isinstance(self.target, Partitioning)
        return self.target

    def pipeline_plan(self, cuts: Sequence[int], device_cuts: Sequence[int]) -> PipelinePlan:
        """A plan from the first pivot and the first device of every stage but the first.

        Each (S-1,); nothing is checked, that is the judge's business.
        """
        settings, names = self.settings, self.pipeline.profile.names
        positions = [int(p) for p in cuts]
        inside = all(1 <= p < len(names) for p in positions)
        return PipelinePlan(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            cuts=tuple(positions),
            device_cuts=tuple(int(d) for d in device_cuts),
            micro_batch=settings["micro_batch"],
            micro_batches=settings["micro_batches"],
            cut_after=tuple(str(names[p - 1]) for p in positions) if inside else (),
        )

    def partition_plan(self, partition: Mapping[str, int]) -> PartitionPlan:
        """A plan from path -> partitioned dimension; what is not named is replicated."""
        kind = BatchPlan if self.kind == BatchPlan.task else PartitionPlan
        settings = self.settings
        return kind(
            instance=self.instance,
            fingerprint=self.fingerprint,
            cluster=self.cluster,
            partition={path: int(dimension) for path, dimension in partition.items()},
            rules=settings["rules"],
            uneven=settings["uneven"],
        )

    @cached_property
    def head(self) -> dict[str, Any]:
        """What every plan file of this problem says, all but the decisions."""
        plan: Plan
        if self.kind == PipelinePlan.task:
            batches = (self.settings["micro_batch"], self.settings["micro_batches"])
            plan = PipelinePlan(self.instance, self.fingerprint, self.cluster, (), (), *batches)
        else:
            plan = self.partition_plan({})
        decisions = ("cuts", "device_cuts", "partition")
        return {key: value for key, value in plan.to_json().items() if key not in decisions}

    def judge(self, plan: Plan) -> Report | PartitionReport:
        """What the judge says of a plan."""
        report: Report | PartitionReport = judge(plan, self.target)  # type: ignore[call-overload]
        return report

    def cost(self, report: Report | PartitionReport) -> float:
        """Cost of a legal plan, the less the better: seconds of a step, or 1 / return."""
        if isinstance(report, Report):
            return report.length_seconds
        return 1.0 / report.value("paper") if self.reward == "paper" else report.step_seconds

    def score(self, cost: float) -> float:
        """``reference / cost``, in (0, 1]."""
        return min(self.reference.cost / cost, 1.0)

    def to_json(self) -> dict[str, Any]:
        """The problem as an object of JSON types; kind and reward are the task's."""
        return {
            "name": self.name,
            "instance": self.instance,
            "fingerprint": self.fingerprint,
            **self.settings,
            "reference": vars(self.reference),
            "trivial": self.trivial,
        }


@dataclass(frozen=True, eq=False)
class Task:
    """Problems of one kind whose scores make one ranking.

    Attributes:
        name: for example ``"pipeline-cut"``.
        title: what is planned, in a sentence.
        kind: task of its plan files.
        reward: ``"paper"`` or ``"step_time"`` of partitions, else empty.
        cost: what a cost is, in words.
        trivial: what the trivial plan is, in words.
        problems: name -> problem, in the order of the list.
    """

    name: str
    title: str
    kind: str
    reward: str
    cost: str
    trivial: str
    problems: dict[str, Problem]

    def to_json(self) -> dict[str, Any]:
        """The task as an object of JSON types."""
        content = {key: value for key, value in vars(self).items() if key != "problems"}
        return {**content, "problems": [p.to_json() for p in self.problems.values()]}


@dataclass(frozen=True, eq=False)
class TaskList:
    """All tasks.

    Attributes:
        version: grows when a problem is added, changed or taken away; entries name it.
        revision: grows when references become better.
        tasks: name -> task.
    """

    version: int
    revision: int
    tasks: dict[str, Task]

    def task(self, name: str) -> Task:
        """A task by name.

        Raises:
            ParenvsError: there is none of that name.
        """
        if name in self.tasks:
            return self.tasks[name]
        raise ParenvsError(
            f"unknown task {shown(name)}{did_you_mean(name[:80], self.tasks)}; "
            f"known: {', '.join(self.tasks)}"
        )

    def improved(self, better: Mapping[str, Mapping[str, Reference]]) -> TaskList:
        """The list with other references, task -> problem -> reference: one revision on."""
        made = dict(self.tasks)
        for name, references in better.items():
            old = self.task(name)
            problems = {
                key: replace(problem, reference=references.get(key, problem.reference))
                for key, problem in old.problems.items()
            }
            made[name] = replace(old, problems=problems)
        return TaskList(self.version, self.revision + 1, made)

    def save(self, path: Path | None = None) -> None:
        """Write it, whole or not at all (default: where ``tasks`` reads it)."""
        content = {
            "schema": SCHEMA,
            "version": self.version,
            "revision": self.revision,
            "command": "python -m parenvs.leaderboard.references",
            "tasks": [task.to_json() for task in self.tasks.values()],
        }
        write_text(path or tasks_file(), json.dumps(content, indent=1) + "\n")


def tasks_file() -> Path:
    """Where the list lies."""
    return Path(__file__).parent / "tasks.json"


def tasks() -> TaskList:
    """The list; what it has loaded is kept until the file changes."""
    path = tasks_file()
    return _tasks(path, path.stat().st_mtime_ns)


def split(name: str) -> dict[str, Any]:
    """A split, task -> ``families``, ``instances`` and ``note``: ``"train"``, ``"validation"``, ...

    Raises:
        ParenvsError: no such split.
    """
    if name not in SPLITS:
        raise ParenvsError(f"unknown split {shown(name)}; known: {', '.join(SPLITS)}")
    content = json.loads((Path(__file__).parent / "splits.json").read_text(encoding="utf-8"))
    return dict(content["splits"][name])


@lru_cache(maxsize=2)
def _tasks(path: Path, stamp: int) -> TaskList:
    return read_tasks(path)


def read_tasks(path: Path) -> TaskList:
    """The list in a file of the project's own.

    Raises:
        ParenvsError: another schema.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ParenvsError(
            f"{path}: field 'schema' is {shown(content.get('schema'))}; this version reads {SCHEMA}"
        )
    made = {task["name"]: _task(task) for task in content["tasks"]}
    return TaskList(content["version"], content["revision"], made)


def _task(content: dict[str, Any]) -> Task:
    kind, reward = content["kind"], content["reward"]
    return Task(
        **{
            **content,
            "problems": {p["name"]: _problem(p, kind, reward) for p in content["problems"]},
        }
    )


def _problem(content: dict[str, Any], kind: str, reward: str) -> Problem:
    content = dict(content)
    own = {key: content.pop(key) for key in ("name", "instance", "fingerprint", "trivial")}
    reference = Reference(**content.pop("reference"))
    return Problem(kind=kind, reward=reward, settings=content, reference=reference, **own)
