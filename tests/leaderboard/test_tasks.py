"""The committed list of tasks and the splits."""

import json
import re
from dataclasses import replace

import pytest

from benchmarks import leaderboard_references as references
from parenvs.agents.partition.exact import exact_partition
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.problems import SETS
from parenvs.errors import ParenvsError
from parenvs.instances import PAPER, manifest, names
from parenvs.leaderboard.tasks import read_tasks, tasks, tasks_file

GRAPHS = [
    "operator-partition-paper",
    "operator-partition-step-time",
    "data-parallel",
    "pipeline-cut",
    "pipeline-plan",
]
"""Tasks of the graphs of Auto-MAP's paper."""
MEMORY = "operator-partition-memory"
"""The task of partitions that fit, of the paper's graphs and others of the split for tests."""
TASKS = [*GRAPHS[:2], MEMORY, *GRAPHS[2:], "hybrid", "hetero", "iopddl", "elastic"]
SPLITS = json.loads(tasks_file().with_name("splits.json").read_text())["splits"]
DRAWN = ["pipeline-drawn", "hybrid-drawn", "sharding-drawn"]


def test_tasks__list():
    known = tasks()
    assert sorted(known.tasks) == sorted([*TASKS, *DRAWN])
    assert known.version == references.VERSION
    for task in known.tasks.values():
        if task.name in GRAPHS:
            assert {p.instance for p in task.problems.values()} == set(PAPER)
        for name, problem in task.problems.items():
            reference = problem.reference
            assert problem.name == name
            assert re.fullmatch(r"[a-z0-9A-Z-]+(/[a-z0-9.-]+)?", name)  # also an address on a page
            assert reference.status in ("optimal", "bound")
            assert 0 < reference.bound <= reference.cost <= problem.trivial
            assert (reference.status == "optimal") == (reference.bound == reference.cost)
            assert problem.head["instance"] == problem.instance
    old = [known.tasks[name] for name in GRAPHS]
    statuses = [p.reference.status for task in old for p in task.problems.values()]
    assert statuses.count("bound") < 0.1 * len(statuses)
    with pytest.raises(ParenvsError, match=r"did you mean 'pipeline-cut'"):
        known.task("pipeline-cuts")


def test_tasks__round_trip(tmp_path):
    path = tmp_path / "tasks.json"
    tasks().save(path)
    assert path.read_bytes() == tasks_file().read_bytes()
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema": 9}))
    with pytest.raises(ParenvsError, match="field 'schema' is 9"):
        read_tasks(path)


def test_tasks__another_graph_is_noticed():
    problem = replace(tasks().task("pipeline-cut").problems["vgg-19-A-2"], fingerprint="sha256:00")
    with pytest.raises(ParenvsError, match="field 'fingerprint' is not that of the shipped graph"):
        _ = problem.target


@pytest.mark.thorough
def test_tasks__trivial_plans_do_without_parallelism(board):
    for checked in board.values():
        for verdict in checked.verdicts:
            problem = verdict.problem
            if problem.kind == "pipeline":
                profile, batches = problem.pipeline.profile, problem.pipeline.micro_batches
                assert problem.trivial == pytest.approx(batches * profile.seconds.sum())


def test_tasks__splits_are_disjoint_by_family():
    train, validation, test = (SPLITS[name] for name in SPLITS)
    for task in GRAPHS:
        planned = {problem.instance for problem in tasks().task(task).problems.values()}
        assert planned <= set(test[task]["instances"])
        assert {"vgg", "t5", "bert"} <= set(test[task]["families"])
        for one, other in ((test, train), (test, validation)):
            assert not set(one[task]["families"]) & set(other[task]["families"])
        assert not set(train[task]["instances"]) & set(validation[task]["instances"])
        if task.startswith("pipeline"):
            assert train[task]["families"] == validation[task]["families"] == list(FAMILIES)
            assert set(validation[task]["instances"]) <= set(SETS)
        assert all(part[task]["note"] for part in (train, validation, test))


@pytest.mark.parametrize("task", [task for task in GRAPHS if not task.startswith("pipeline")])
def test_tasks__every_shipped_graph_is_in_the_split_of_its_family(task):
    family = {name: entry["family"] for name, entry in manifest()["instances"].items()}
    parts = [SPLITS[name][task] for name in SPLITS]
    split_of = {name: i for i, part in enumerate(parts) for name in part["families"]}
    assert len(split_of) == sum(len(part["families"]) for part in parts) >= 12
    for i, part in enumerate(parts):
        assert {family[name] for name in part["instances"]} == set(part["families"])
        assert all(split_of[family[name]] == i for name in part["instances"])
    assert sorted(name for part in parts for name in part["instances"]) == sorted(names())
    new = set(parts[2]["families"]) - {"vgg", "t5", "bert"}
    assert len(new) >= 3  # the test is not of the paper's families alone


def test_tasks__partitions_that_fit():
    """Of every problem a plan fits; the exact one is the reference."""
    problems = tasks().task(MEMORY).problems
    assert {p.instance for p in problems.values()} <= set(SPLITS["test"][MEMORY]["instances"])
    assert len(problems) >= 15 and {p.instance for p in problems.values()} > set(PAPER)
    assert all(p.reference.proven and p.head["memory_limit"] for p in problems.values())
    for name in ("vgg-19-automap-8-1x512", "dlrm-criteo-shardy-8a100-8x8192"):
        problem = problems[name]
        target = problem.target
        # The limit is a part of the problem, whatever the driver of a device reports.
        assert target.memory_limit == problem.head["memory_limit"]
        best = exact_partition(target)
        report = problem.judge(best.plan)
        assert report.legal and report.fits
        assert problem.cost(report) == pytest.approx(problem.reference.cost, rel=1e-9)
        assert problem.trivial == pytest.approx(target.replicate_seconds)


@pytest.mark.parametrize("task", [task for task in TASKS if task not in (*GRAPHS, MEMORY)])
def test_tasks__problems_of_sets_are_none_to_train_on(task):
    """Problems of these tasks are drawn; the split of a set is in its name."""
    train, validation, test = (SPLITS[name][task]["instances"] for name in SPLITS)
    assert not {*train, *validation} & set(test)
    assert all(SPLITS[name][task]["note"] for name in SPLITS)
    if task != "iopddl":
        sets = {problem.instance.split("/")[0] for problem in tasks().task(task).problems.values()}
        assert sets <= set(test)
