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
def test_partition__classes_add_up(seed):
    problem, rng = partition_toys.random_problem(seed), np.random.default_rng(seed)
    a, b = (partition_report(problem, partition_toys.random_choice(problem, rng)) for _ in range(2))
    diff = difference(a, b)
    scale = problem.replicate_seconds
    assert diff.seconds == b.step_seconds - a.step_seconds
    compute, communication = diff.parts
    assert close(sum(x.compute_seconds for x in diff.classes), compute.difference, scale)
    sent = sum(x.communication_seconds for x in diff.classes)
    assert close(sent, communication.difference, scale)
    assert close(sum(x.seconds for x in diff.classes), diff.seconds, scale)
    for side, report in (("a", a), ("b", b)):
        assert {x.label for x in diff.classes if x.only == side} == set(
            np.flatnonzero(report.chosen & ~(b if side == "a" else a).chosen).tolist()
        )
        entries = {k: v for x in diff.classes if x.only == side for k, v in x.partition.items()}
        assert entries.items() <= report.plan.partition.items()
        assert sum(getattr(part, side) for part in diff.memory) == report.memory.peak
    for change, back in zip(diff.classes, difference(b, a).classes, strict=True):
        assert (change.label, change.seconds) == (back.label, -back.seconds)
    content = diff.to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_partition__a_class_is_worth_what_the_judge_says_without_it():
    """One class at a time, judged anew."""
    problem = partition_toys.shipped("vgg-19")
    empty = np.zeros(len(problem.classes), dtype=bool)
    for label in problem.decidable("all")[:8].tolist():
        chosen = empty.copy()
        chosen[label] = True
        a, b = partition_report(problem, empty), partition_report(problem, chosen)
        (change,) = difference(a, b).classes
        assert change.label == label and change.only == "b"
        assert change.partition == b.plan.partition
        assert change.compute_seconds == pytest.approx(b.compute_seconds - a.compute_seconds)
        assert change.communication_seconds == pytest.approx(b.communication_seconds)


def test_partition__illegal_plans_and_other_tasks_are_compared():
    problem = partition_toys.shipped("vgg-19")
    empty = np.zeros(len(problem.classes), dtype=bool)
    legal = partition_report(problem, empty)
    bad = judge(replace(legal.plan, partition={"fc2/bias": 0, "none": 3}), problem)
    assert not bad.legal
    diff = difference(legal, bad)
    assert len(diff.classes) == 1
    assert diff.classes[0].seconds == pytest.approx(diff.seconds)
    batch = partition_report(problem, empty, "inputs")
    assert difference(legal, batch).to_json()["scope"] == {"a": "variables", "b": "inputs"}


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
        reports.append(parenvs.solve(hybrid, "rule-of-thumb").report)
    with pytest.raises(ParenvsError, match="field 'batch': a is for 32, b for 64"):
        difference(*reports)
    assert difference(reports[0], reports[0]).changes == ()
