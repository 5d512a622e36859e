"""Differences of plans: every way of telling what they cost adds up to the whole."""

import json
from dataclasses import replace

import numpy as np
import partition_toys
import pytest
import toys
from cases import each

import parenvs
from parenvs.cluster import Cluster
from parenvs.core.plan import judge
from parenvs.diff import difference, require_same_problem
from parenvs.errors import ParenvsError


def report_of(pipeline, cuts, device_cuts):
    return judge(pipeline.plan(np.array(cuts), np.array(device_cuts)), pipeline)


def partition_report(problem, chosen, scope="variables"):
    return judge(replace(problem, scope=scope, reward="step_time").plan(chosen), problem)


def close(first, second, scale):
    return first == pytest.approx(second, abs=1e-9 * max(scale, 1e-9))


# partitions


@pytest.mark.thorough
@each("seed", range(40))
def test_partition__parts_add_up_and_changes_rebuild_the_plan(seed):
    problem, rng = partition_toys.random_problem(seed), np.random.default_rng(seed)
    a, b = (partition_report(problem, partition_toys.random_choice(problem, rng)) for _ in range(2))
    diff, scale = difference(a, b), problem.replicate_seconds
    assert diff.seconds == b.step_seconds - a.step_seconds
    assert close(sum(part.difference for part in diff.parts), diff.seconds, scale)
    for side, report in (("a", a), ("b", b)):
        assert sum(getattr(part, side) for part in diff.memory) == report.memory.peak
    first, second = a.plan.partition, b.plan.partition
    rebuilt = dict(first)
    for change in diff.changes:
        path = change.field.removeprefix("partition.")
        assert first.get(path) == change.a != change.b == second.get(path)
        rebuilt[path] = change.b
    assert {path: x for path, x in rebuilt.items() if x is not None} == second
    content = diff.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_partition__illegal_plans_and_other_scopes_are_compared():
    problem = partition_toys.shipped("vgg-19")
    empty = np.zeros(len(problem.classes), dtype=bool)
    legal = partition_report(problem, empty)
    bad = judge(replace(legal.plan, partition={"fc2/bias": 0, "none": 3}), problem)
    assert not bad.legal
    changes = {(x.field, x.a, x.b) for x in difference(legal, bad).changes}
    assert changes == {("partition.fc2/bias", None, 0), ("partition.none", None, 3)}
    batch = partition_report(problem, empty, "inputs")
    assert ("scope", None, "inputs") in {
        (x.field, x.a, x.b) for x in difference(legal, batch).changes
    }


# other problems


def test_other_problems__are_refused_by_field():
    pipeline = toys.dense().pipeline
    plan = pipeline.plan(np.array([5]), np.array([3]))
    slow = replace(plan.cluster, inter_bw=2.0)
    for field, value, words in (
        ("fingerprint", "sha256:00", "sha256:00"),
        ("cluster", Cluster.parse("B"), "3x8 v100"),
        ("cluster", slow, "with other inter_bw"),
        ("micro_batch", 8, "a is for 16, b for 8"),
        ("micro_batches", 3, "a is for 2, b for 3"),
    ):
        other = replace(plan, **{field: value})
        with pytest.raises(ParenvsError, match=f"field '{field}': .*{words}"):
            require_same_problem(plan, other)
        with pytest.raises(ParenvsError, match=f"field '{field}'"):
            difference(judge(plan, pipeline), judge(other, pipeline))
    require_same_problem(plan, replace(plan, instance="elsewhere", cuts=(1, 2), device_cuts=(1, 2)))


def test_other_problems__of_partitions():
    problem = partition_toys.shipped("vgg-19")
    empty = np.zeros(len(problem.classes), dtype=bool)
    report = partition_report(problem, empty)
    automap = partition_report(partition_toys.shipped("vgg-19", "automap"), empty)
    with pytest.raises(ParenvsError, match="field 'rules': a is for shardy, b for automap"):
        difference(report, automap)
    pipeline = report_of(toys.dense().pipeline, [5], [3])
    for a, b in ((report, pipeline), (pipeline, report)):
        with pytest.raises(ParenvsError, match="field 'task': a is for"):
            difference(a, b)


# tasks without a difference of their own


def test_any_task__other_problems_are_refused_by_field():
    reports = []
    for batch in (32, 64):
        hybrid = parenvs.problem("llama3-8b", "2x8:h100", "hybrid", batch=batch)
        reports.append(parenvs.plan(hybrid, "rule-of-thumb").report)
    with pytest.raises(ParenvsError, match="field 'batch': a is for 32, b for 64"):
        difference(*reports)
    assert difference(reports[0], reports[0]).changes == ()
