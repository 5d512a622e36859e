"""Makes the list of tasks: what is planned, the best cost known, and what is proven of it.

    python -m parenvs.leaderboard.references                      # all anew
    python -m parenvs.leaderboard.references --check              # compare, write nothing
    python -m parenvs.leaderboard.references --check --instances vgg-19

Proven references are the same everywhere. Where the search runs into its time limit, the better of
the plan found and the one in the file is kept, and so is the better of the bounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parenvs.agents.exact.partition import exact_partition
from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import InfeasibleError
from parenvs.instances import load_graph, names
from parenvs.leaderboard.baselines import SECONDS, shortest
from parenvs.leaderboard.problem import TOLERANCE, Problem, Reference
from parenvs.leaderboard.tasks import Task, TaskList, read_tasks, tasks_file
from parenvs.plan import PipelinePlan

COMMAND = "python -m parenvs.leaderboard.references"
VERSION = 1
"""Version of the list below; a change of it makes every entry stale."""
_UNKNOWN = Reference(float("inf"), 0.0, "bound", "")
_TITLES: dict[str, tuple[str, str, str, str, str]] = {
    "operator-partition-paper": (
        "Partition as many dimensions of variables as possible, all at once.",
        "operator-partition",
        "paper",
        "1 / return under the paper's reward (0.4 a dimension partitioned, 0.1 replicated)",
        "nothing is partitioned: every device does everything",
    ),
    "operator-partition-step-time": (
        "Partition variables and batch so that a training step is as short as possible.",
        "operator-partition",
        "step_time",
        "seconds of a training step",
        "nothing is partitioned: every device does everything",
    ),
    "data-parallel": (
        "Partition the batch inputs alone so that a training step is as short as possible.",
        "data-parallel",
        "step_time",
        "seconds of a training step",
        "nothing is partitioned: every device does everything",
    ),
    "pipeline-cut": (
        "Cut a model into pipeline stages, one a server, anywhere and on any devices.",
        "pipeline-cut",
        "",
        "seconds of a training step (pipeline length L)",
        "no parallelism: one device does everything, whatever its memory",
    ),
    "pipeline-plan": (
        "Plan pipelines of many models, clusters, stages and micro-batches with one planner.",
        "pipeline-cut",
        "",
        "seconds of a training step (pipeline length L)",
        "no parallelism: one device does everything, whatever its memory",
    ),
}
"""Task -> title, task of its plan files, reward, cost, trivial plan."""
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
"""Task -> label, cluster, stages, micro-batches; each with every shipped graph that fits."""
_MESHES: dict[str, tuple[tuple[str, str | None, str], ...]] = {
    "operator-partition-paper": (("8", None, "shardy"), ("8", None, "automap")),
    "operator-partition-step-time": (
        ("8", None, "shardy"),
        ("8", None, "automap"),
        ("C", "C", "shardy"),
    ),
    "data-parallel": (("8", None, "shardy"), ("C", "C", "shardy")),
}
"""Task -> label, cluster (default: one server of 8 V100) and rules; each with every graph."""


def problems(task: str, instances: Sequence[str]) -> Iterator[Problem]:
    """The problems of a task on some instances, without references."""
    _, kind, reward, _, _ = _TITLES[task]
    for instance in instances:
        if kind == PipelinePlan.task:
            graph = load_graph(instance, "forward")
            for label, where, stages, batches in _SHAPES[task]:
                settings: dict[str, Any] = {
                    "cluster": Cluster.parse(where).to_json(),
                    "stages": stages,
                    "micro_batch": 16,
                    "micro_batches": batches,
                }
                name = f"{instance}-{label}-{stages}"
                yield Problem(
                    name, kind, reward, instance, graph.fingerprint, settings, _UNKNOWN, 0.0
                )
        else:
            graph = load_graph(instance)
            for label, cluster, rules in _MESHES[task]:
                settings = {"cluster": cluster or "1x8:v100", "rules": rules, "uneven": "pad"}
                assert choose_cluster(cluster) == Cluster.parse(settings["cluster"])
                name = f"{instance}-{rules}-{label}"
                yield Problem(
                    name, kind, reward, instance, graph.fingerprint, settings, _UNKNOWN, 0.0
                )


def solved(problem: Problem, seconds: float = SECONDS) -> Problem:
    """The problem with its reference and the cost of the trivial plan.

    Raises:
        InfeasibleError: no plan of it fits the memory.
    """
    if problem.kind == PipelinePlan.task:
        answer = shortest(problem, seconds)
        plan = problem.pipeline_plan(answer.cuts.tolist(), answer.device_cuts.tolist())
        worst = problem.pipeline.bubble_free * problem.cluster.devices
        proven, bound, method = answer.status == "optimal", answer.bound, "exact-full"
    else:
        partitioning, reward = problem.partitioning, problem.reward
        found = exact_partition(partitioning)
        plan = partitioning.plan(found.chosen)
        worst = problem.cost(problem.judge(problem.partition_plan({})))
        proven, method = found.status == "optimal", "exact"
        assert found.bound is not None
        whole = partitioning.replicate_seconds
        bound = 1 / found.bound if reward == "paper" else (1 - found.bound) * whole
    cost = problem.cost(problem.judge(plan))
    reference = Reference(cost, cost if proven else bound, "optimal" if proven else "bound", method)
    return replace(problem, reference=reference, trivial=worst)


def make_task(
    name: str, instances: Sequence[str], old: TaskList | None, seconds: float = SECONDS
) -> Task:
    """A task with its references solved anew; of those without proof the better is kept."""
    known = old.tasks[name].problems if old is not None and name in old.tasks else {}
    made = {}
    for problem in problems(name, instances):
        try:
            new = solved(problem, seconds)
        except InfeasibleError as error:
            print(f"{name} {problem.name}: left out, {error}", file=sys.stderr)
            continue
        if problem.name in known:
            new = replace(new, reference=better(new.reference, known[problem.name].reference))
        made[new.name] = new
        kept = new.reference
        print(
            f"{name} {new.name}: {kept.cost:.6g}, {kept.status} ({kept.bound / kept.cost:.4f})",
            file=sys.stderr,
        )
    title, kind, reward, cost, trivial = _TITLES[name]
    return Task(name, title, kind, reward, cost, trivial, made)


def better(new: Reference, old: Reference) -> Reference:
    """The better cost and the better bound of two references to one problem."""
    if "optimal" in (new.status, old.status):
        return new if new.status == "optimal" else old
    # What the clock decided does not replace what is as good.
    cheaper = new if new.cost < old.cost * (1 - TOLERANCE) else old
    bound = new.bound if new.bound > old.bound * (1 + TOLERANCE) else old.bound
    return replace(cheaper, bound=bound)


def differences(made: Task, known: Task, instances: Sequence[str]) -> list[str]:
    """What the list in the file says otherwise, in words."""
    there = {k: p for k, p in known.problems.items() if p.instance in instances}
    found = [f"{known.name} {name}: in one list only" for name in made.problems.keys() ^ there]
    for name in made.problems.keys() & there.keys():
        new, old = made.problems[name], there[name]
        same = (new.instance, new.fingerprint, new.settings, new.reference.status) == (
            (old.instance, old.fingerprint, old.settings, old.reference.status)
        )
        pairs = (new.reference.cost, old.reference.cost), (new.trivial, old.trivial)
        if not same or any(abs(a - b) > TOLERANCE * b for a, b in pairs):
            found.append(f"{known.name} {name}: {new.to_json()} anew, {old.to_json()} in the file")
    return sorted(found)


def main(arguments: Iterable[str] | None = None) -> int:
    """The command line of this module; returns the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    parser.add_argument("--tasks", nargs="*", choices=list(_TITLES), default=list(_TITLES))
    parser.add_argument("--instances", nargs="*", choices=names(), default=names())
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each search")
    parser.add_argument("--out", type=Path, default=tasks_file(), help="default: %(default)s")
    options = parser.parse_args(None if arguments is None else list(arguments))
    old = read_tasks(options.out) if options.out.exists() else None
    if options.check:
        if old is None:
            print(f"{COMMAND}: no file {options.out}", file=sys.stderr)
            return 2
        wrong = []
        for name in options.tasks:
            made = make_task(name, options.instances, old, options.seconds)
            wrong += differences(made, old.task(name), options.instances)
        for line in wrong:
            print(f"{COMMAND}: {line}", file=sys.stderr)
        return 2 if wrong else 0
    if (options.tasks, options.instances) != (list(_TITLES), names()):
        print(f"{COMMAND}: the file is made whole; --tasks, --instances go with --check")
        return 2
    made_all = {name: make_task(name, names(), old, options.seconds) for name in _TITLES}
    revision = 0 if old is None or old.version != VERSION else old.revision
    TaskList(VERSION, revision, made_all).save(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
