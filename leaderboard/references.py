"""Makes the list of tasks: their problems, the best costs known, and their proven bounds.

    python -m parenvs.leaderboard.references                      # solve all problems again
    python -m parenvs.leaderboard.references --check              # compare, write nothing
    python -m parenvs.leaderboard.references --check --instances vgg-19
    python -m parenvs.leaderboard.references --changed            # after a change of costs

Proven references are the same on every machine. Where a search ends at its time limit, the better
of the new reference's cost and the old one's is kept, and so is the better of their bounds. Where
the cost model itself has changed, which the cost of the trivial plan tells, the old reference is
dropped, the revision grows, and ``revisions.md`` lists the old and the new costs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from parenvs.agents.exact.partition import exact_partition
from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.files import locked, write_text
from parenvs.instances import PAPER, load_graph
from parenvs.leaderboard.baselines import SECONDS, shortest
from parenvs.leaderboard.problem import TOLERANCE, Reference, TaskProblem
from parenvs.leaderboard.tasks import Task, TaskList, read_tasks, tasks_file
from parenvs.markdown import table
from parenvs.plan import PipelinePlan

COMMAND = "python -m parenvs.leaderboard.references"
_REVISIONS = """# Revisions of the tasks

`python -m parenvs.leaderboard.references` lists here which costs changed with the cost model, in
seconds. Entries hold plans, which are judged anew by the costs of the day.
"""
VERSION = 1
"""Version of the list; entries for another version are refused."""
_UNKNOWN = Reference(float("inf"), 0.0, "bound", "")


class _TaskFields(NamedTuple):
    """Fields of a ``Task`` besides its name and its problems."""

    title: str
    kind: str
    reward: str
    cost: str
    trivial: str


class _PipelineShape(NamedTuple):
    """Cluster and settings that a pipeline task plans every shipped graph for, if it fits."""

    label: str
    cluster: str
    stages: int
    micro_batches: int


class _PartitionShape(NamedTuple):
    """Cluster and rules that a partition task plans every shipped graph for."""

    label: str
    cluster: str | None  # None: one server of 8 V100
    rules: str


_TASK_FIELDS: dict[str, _TaskFields] = {
    "operator-partition-paper": _TaskFields(
        "Partition as many dimensions of variables as possible, all at once.",
        "operator-partition",
        "paper",
        "1 / return under the paper's reward (0.4 a dimension partitioned, 0.1 replicated)",
        "nothing is partitioned: every device does everything",
    ),
    "operator-partition-step-time": _TaskFields(
        "Partition variables and batch so that a training step is as short as possible.",
        "operator-partition",
        "step_time",
        "seconds of a training step",
        "nothing is partitioned: every device does everything",
    ),
    "data-parallel": _TaskFields(
        "Partition the batch inputs alone so that a training step is as short as possible.",
        "data-parallel",
        "step_time",
        "seconds of a training step",
        "nothing is partitioned: every device does everything",
    ),
    "pipeline-cut": _TaskFields(
        "Cut a model into pipeline stages, one a server, anywhere and on any devices.",
        "pipeline-cut",
        "",
        "seconds of a training step (pipeline length L)",
        "no parallelism: one device does everything, whatever its memory",
    ),
    "pipeline-plan": _TaskFields(
        "Plan pipelines of many models, clusters, stages and micro-batches with one planner.",
        "pipeline-cut",
        "",
        "seconds of a training step (pipeline length L)",
        "no parallelism: one device does everything, whatever its memory",
    ),
}
"""Name of a task -> its fields."""
_PIPELINE_SHAPES: dict[str, tuple[_PipelineShape, ...]] = {
    "pipeline-cut": (
        _PipelineShape("A", "A", 2, 16),
        _PipelineShape("B", "B", 3, 16),
        _PipelineShape("C", "C", 4, 16),
        _PipelineShape("a100-4", "a100-4", 4, 16),
        _PipelineShape("h100-4", "h100-4", 4, 16),
    ),
    "pipeline-plan": (
        _PipelineShape("A", "A", 4, 8),
        _PipelineShape("B", "B", 6, 64),
        _PipelineShape("C", "C", 8, 32),
        _PipelineShape("a100-4", "a100-4", 6, 32),
        _PipelineShape("h100-4", "h100-4", 8, 64),
        _PipelineShape("v100-8x8", "8x8:v100,25Gbps", 8, 32),
    ),
}
"""Name of a pipeline task -> its shapes."""
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


def problems(task: str, instances: Sequence[str]) -> Iterator[TaskProblem]:
    """Yield the problems of a task on some instances, without references."""
    kind, reward = _TASK_FIELDS[task].kind, _TASK_FIELDS[task].reward
    for instance in instances:
        if kind == PipelinePlan.task:
            graph = load_graph(instance, "forward")
            for pipeline in _PIPELINE_SHAPES[task]:
                settings: dict[str, Any] = {
                    "cluster": Cluster.parse(pipeline.cluster).to_json(),
                    "stages": pipeline.stages,
                    "micro_batch": 16,
                    "micro_batches": pipeline.micro_batches,
                }
                name = f"{instance}-{pipeline.label}-{pipeline.stages}"
                yield TaskProblem(
                    name, kind, reward, instance, graph.fingerprint, settings, _UNKNOWN, 0.0
                )
        else:
            graph = load_graph(instance)
            for mesh in _PARTITION_SHAPES[task]:
                cluster = mesh.cluster or "1x8:v100"
                assert choose_cluster(mesh.cluster) == Cluster.parse(cluster)
                settings = {"cluster": cluster, "rules": mesh.rules, "uneven": "pad"}
                name = f"{instance}-{mesh.rules}-{mesh.label}"
                yield TaskProblem(
                    name, kind, reward, instance, graph.fingerprint, settings, _UNKNOWN, 0.0
                )


def solved(problem: TaskProblem, seconds: float = SECONDS) -> TaskProblem:
    """Return the problem with its reference and the cost of the trivial plan.

    Args:
        problem: a problem without reference.
        seconds: time limit of each search.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    if problem.kind == PipelinePlan.task:
        answer = shortest(problem, seconds)
        plan = problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())
        proven, bound, method = answer.status == "optimal", answer.bound, "exact-full"
    else:
        partitioning, reward = problem.partitioning, problem.reward
        optimum = exact_partition(partitioning)
        plan = partitioning.plan(optimum.chosen)
        proven, method = optimum.proven, "exact"
        assert optimum.bound is not None
        replicate = partitioning.replicate_seconds
        bound = 1 / optimum.bound if reward == "paper" else (1 - optimum.bound) * replicate
    cost = problem.cost(problem.judge(plan))
    reference = Reference(cost, cost if proven else bound, "optimal" if proven else "bound", method)
    return replace(problem, reference=reference, trivial=trivial_cost(problem))


def trivial_cost(problem: TaskProblem) -> float:
    """Return the cost of the plan without any parallelism."""
    if problem.kind == PipelinePlan.task:
        return problem.pipeline.bubble_free * problem.cluster.devices
    return problem.cost(problem.judge(problem.partition_plan({})))


def is_same_cost(one: float, other: float) -> bool:
    """Return whether two costs of one plan are equal but for rounding."""
    return abs(one - other) <= TOLERANCE * other


def changes(old: TaskList, new: TaskList) -> list[tuple[str, ...]]:
    """Return task, problem, and costs of reference and trivial plan, old and new, that changed."""
    rows = []
    for name, task in new.tasks.items():
        known = old.tasks[name].problems if name in old.tasks else {}
        for key, problem in task.problems.items():
            if key in known and not is_same_cost(problem.trivial, known[key].trivial):
                before = known[key]
                costs = (
                    before.reference.cost, problem.reference.cost, before.trivial, problem.trivial
                )  # fmt: skip
                rows.append((name, key, *(f"{cost:.6g}" for cost in costs)))
    return rows


def make_task(
    name: str,
    instances: Sequence[str],
    old: TaskList | None,
    seconds: float = SECONDS,
    only_changed: bool = False,
) -> Task:
    """Solve the problems of a task again; of references without proof, keep the better.

    Args:
        name: name of the task.
        instances: shipped graphs.
        old: the list with the references so far, if any.
        seconds: time limit of each search.
        only_changed: whether to keep problems whose costs are still the same as they are.
    """
    known = old.tasks[name].problems if old is not None and name in old.tasks else {}
    solved_problems = {}
    for problem in problems(name, instances):
        before = known.get(problem.name)
        same = before is not None and is_same_cost(trivial_cost(problem), before.trivial)
        if only_changed and same and before is not None:
            solved_problems[problem.name] = before
            continue
        try:
            new = solved(problem, seconds)
        except InfeasibleError as error:
            print(f"{name} {problem.name}: left out, {error}", file=sys.stderr)
            continue
        if same and before is not None:
            new = replace(new, reference=better(new.reference, before.reference))
        solved_problems[new.name] = new
        best = new.reference
        print(
            f"{name} {new.name}: {best.cost:.6g}, {best.status} ({best.bound / best.cost:.4f})",
            file=sys.stderr,
        )
    return Task(name, **_TASK_FIELDS[name]._asdict(), problems=solved_problems)


def better(new: Reference, old: Reference) -> Reference:
    """Return the better cost and the better bound of two references to one problem."""
    if "optimal" in (new.status, old.status):
        return new if new.status == "optimal" else old
    # Where a time limit ended the search, an equally good old reference stays.
    cheaper = new if new.cost < old.cost * (1 - TOLERANCE) else old
    bound = new.bound if new.bound > old.bound * (1 + TOLERANCE) else old.bound
    return replace(cheaper, bound=bound)


def differences(solved_task: Task, known: Task, instances: Sequence[str]) -> list[str]:
    """Return the differences between a task solved again and the list in the file, in words.

    Args:
        solved_task: the task solved again, on ``instances``.
        known: the task in the file.
        instances: shipped graphs that are compared.
    """
    known_problems = {k: p for k, p in known.problems.items() if p.instance in instances}
    unmatched = solved_task.problems.keys() ^ known_problems
    lines = [f"{known.name} {name}: in one list only" for name in unmatched]
    for name in solved_task.problems.keys() & known_problems.keys():
        new, old = solved_task.problems[name], known_problems[name]
        same = (new.instance, new.fingerprint, new.settings, new.reference.status) == (
            (old.instance, old.fingerprint, old.settings, old.reference.status)
        )
        pairs = (new.reference.cost, old.reference.cost), (new.trivial, old.trivial)
        if not same or any(abs(a - b) > TOLERANCE * b for a, b in pairs):
            lines.append(f"{known.name} {name}: {new.to_json()} anew, {old.to_json()} in the file")
    return sorted(lines)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    parser.add_argument(
        "--tasks", nargs="*", choices=list(_TASK_FIELDS), default=list(_TASK_FIELDS)
    )
    parser.add_argument("--instances", nargs="*", choices=PAPER, default=PAPER)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each search")
    parser.add_argument("--changed", action="store_true", help="only problems whose costs changed")
    parser.add_argument("--out", type=Path, default=tasks_file(), help="default: %(default)s")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.check:
        old = _known(options.out)
        if old is None:
            print(f"{COMMAND}: no file {options.out}", file=sys.stderr)
            return 2
        lines = []
        for name in options.tasks:
            task = make_task(name, options.instances, old, options.seconds)
            lines += differences(task, old.task(name), options.instances)
        for line in lines:
            print(f"{COMMAND}: {line}", file=sys.stderr)
        return 2 if lines else 0
    if (options.tasks, tuple(options.instances)) != (list(_TASK_FIELDS), PAPER):
        print(f"{COMMAND}: the file is made whole; --tasks, --instances go with --check")
        return 2
    try:
        with locked(options.out, beside=True):
            # Another process may have written it before this one had the lock.
            _renew(_known(options.out), options)
    except ParenvsError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    return 0


def _known(path: Path) -> TaskList | None:
    """Read the list that there is, if there is one."""
    return read_tasks(path) if path.exists() else None


def _renew(old: TaskList | None, options: argparse.Namespace) -> None:
    """Solve the problems again and write the list, and what changed in it."""
    tasks = {
        name: make_task(name, PAPER, old, options.seconds, options.changed) for name in _TASK_FIELDS
    }
    revision = 0 if old is None or old.version != VERSION else old.revision
    made = TaskList(VERSION, revision, tasks)
    changed = changes(old, made) if old is not None else []
    if changed:
        made = replace(made, revision=revision + 1)
        listed = options.out.with_name("revisions.md")
        known = listed.read_text(encoding="utf-8") if listed.exists() else _REVISIONS
        header = ("task", "problem", "reference", "now", "trivial plan", "now")
        text = f"\n## Revision {made.revision}\n\n" + table(header, changed, left=2) + "\n"
        write_text(listed, known.rstrip("\n") + "\n" + text)
    made.save(options.out)


if __name__ == "__main__":
    sys.exit(main())
