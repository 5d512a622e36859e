"""Differences of plans: every way of telling what they cost adds up to the whole."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import partition_toys
import pytest
import second_writing
import toys
from cases import each
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import parenvs
from parenvs.cluster import Cluster
from parenvs.core.plan import judge
from parenvs.diff import difference, require_same_problem
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.view import MAX_MOVES, pivot_stage

FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def report_of(pipeline, cuts, device_cuts):
    return judge(pipeline.plan(np.array(cuts), np.array(device_cuts)), pipeline)


def partition_report(problem, chosen, scope="variables"):
    return judge(replace(problem, scope=scope, reward="step_time").plan(chosen), problem)


@st.composite
def two_plans(draw, stages=None):
    """Two judged plans of one problem, legal or not, with equally many stages."""
    pipeline = draw(toys.pipelines())
    assume(stages is None or min(len(pipeline.profile), pipeline.cluster.devices) >= stages)
    first = draw(toys.plans(pipeline, stages))
    second = draw(toys.plans(pipeline, len(first[0]) + 1))
    return report_of(pipeline, *first), report_of(pipeline, *second)


def close(first, second, scale):
    return first == pytest.approx(second, abs=1e-9 * max(scale, 1e-9))


# pipelines


@pytest.mark.thorough
@FEW
@given(two_plans())
def test_pipeline__parts_and_moves_add_up(pair):
    a, b = pair
    diff = difference(a, b)
    scale = max(a.length_seconds, b.length_seconds)
    assert diff.seconds == b.length_seconds - a.length_seconds
    for side, report in (("a", a), ("b", b)):
        assert close(sum(getattr(x, side) for x in diff.parts), report.length_seconds, scale)
    assert close(sum(part.difference for part in diff.parts), diff.seconds, scale)
    assert diff.attributed == (len(diff.moves) <= MAX_MOVES)
    if diff.attributed:
        assert close(sum(move.seconds for move in diff.moves), diff.seconds, scale)


@pytest.mark.thorough
@FEW
@given(two_plans())
def test_pipeline__parts_are_those_of_the_formula(pair):
    for report in pair:
        pipeline, plan = report.pipeline, report.plan
        f, b, reduce = second_writing.slow_times(pipeline, plan.cuts, plan.device_cuts)
        x, m = np.add(f, b), pipeline.micro_batches
        through = [sum(x[: j + 1]) + (m - 1) * x[j] for j in range(len(x))]
        tail = max(0, *(reduce[s] - sum(b[:s]) for s in range(len(x))))
        compute, transfers, others, hidden = (p.a for p in difference(report, report).parts)
        assert compute + transfers + others == pytest.approx(max(through))
        assert close(hidden, tail, report.length_seconds)
        word, place = pivot_stage(report).split()
        pivot = 2 * int(place.split("-")[0]) + (word == "link")
        assert through[pivot] == pytest.approx(max(through))
        assert close(others, (m - 1) * x[pivot], report.length_seconds)


@pytest.mark.thorough
@FEW
@given(two_plans())
def test_pipeline__moves_are_what_differs_and_exchange_changes_signs(pair):
    a, b = pair
    moves, back = difference(a, b).moves, difference(b, a).moves
    for key, kind in (("cuts", "cut"), ("device_cuts", "device_cut")):
        both = zip(getattr(a.plan, key), getattr(b.plan, key), strict=True)
        expected = [(k, x, y) for k, (x, y) in enumerate(both) if x != y]
        assert [(m.stage, m.a, m.b) for m in moves if m.kind == kind] == expected
    scale = max(a.length_seconds, b.length_seconds)
    for one, other in zip(moves, back, strict=True):
        assert (one.a, one.b, one.after_a) == (other.b, other.a, other.after_b)
        if one.seconds is not None:
            assert close(one.seconds, -other.seconds, scale)


@pytest.mark.thorough
@FEW
@given(two_plans(stages=3))
def test_pipeline__shares_are_the_mean_over_all_possible_orders(pair):
    """Order by order, with lengths of the second writing."""
    a, b = pair
    moves = difference(a, b).moves
    gained, orders = np.zeros(len(moves)), 0
    for order in itertools.permutations(range(len(moves))):
        cuts, device_cuts = list(a.plan.cuts), list(a.plan.device_cuts)
        lengths = [second_writing.slow_length(a.pipeline, cuts, device_cuts)]
        for k in order:
            (cuts if moves[k].kind == "cut" else device_cuts)[moves[k].stage] = moves[k].b
            if any(y <= x for row in (cuts, device_cuts) for x, y in itertools.pairwise(row)):
                break
            lengths.append(second_writing.slow_length(a.pipeline, cuts, device_cuts))
        else:
            gained[list(order)] += np.diff(lengths)
            orders += 1
    assert orders
    scale = max(a.length_seconds, b.length_seconds)
    for move, seconds in zip(moves, gained / orders, strict=True):
        assert close(move.seconds, seconds, scale)


def test_pipeline__known_by_hand():
    """The dense toy: L is 27 with a cut at 3 and devices cut at 2, and 22 with 5 and 3."""
    pipeline = toys.dense().pipeline
    diff = difference(report_of(pipeline, [3], [2]), report_of(pipeline, [5], [3]))
    assert diff.seconds == pytest.approx(-5)
    # L = 27: x = 3, 6, 3, the transfer twice, and 16.5 of all-reduce less 4.5 of backward passes.
    figures = [(part.name, part.a, part.b) for part in diff.parts]
    assert figures == [
        ("first micro-batch, compute", pytest.approx(3), pytest.approx(10 / 3)),
        ("first micro-batch, transfers", pytest.approx(6), pytest.approx(6)),
        ("other micro-batches", pytest.approx(6), pytest.approx(6)),
        ("all-reduce not hidden", pytest.approx(12), pytest.approx(20 / 3)),
    ]
    assert [pivot_stage(x) for x in (diff.a, diff.b)] == ["link 0-1", "link 0-1"]
    cut = second_writing.slow_length(pipeline, [5], [2])
    devices = second_writing.slow_length(pipeline, [3], [3])
    means = [((cut - 27) + (22 - devices)) / 2, ((devices - 27) + (22 - cut)) / 2]
    assert [move.seconds for move in diff.moves] == pytest.approx(means)
    assert [(m.kind, m.a, m.b, m.after_a, m.after_b) for m in diff.moves] == [
        ("cut", 3, 5, "p2", "p4"),
        ("device_cut", 2, 3, "", ""),
    ]


def test_pipeline__equal_plans():
    report = report_of(toys.dense().pipeline, [5], [3])
    diff = difference(report, report)
    assert diff.moves == () and diff.seconds == 0 and diff.attributed
    assert all(part.difference == 0 for part in diff.parts)


def test_pipeline__other_number_of_stages():
    pipeline = toys.dense().pipeline
    diff = difference(report_of(pipeline, [3], [2]), report_of(pipeline, [1, 3], [1, 3]))
    assert sum(part.difference for part in diff.parts) == pytest.approx(diff.seconds)
    assert not diff.attributed
    assert [(m.kind, m.stage, m.a, m.b, m.seconds) for m in diff.moves] == [
        ("cut", 0, None, 1, None),
        ("device_cut", 0, 2, None, None),
        ("device_cut", 0, None, 1, None),
        ("device_cut", 1, None, 3, None),
    ]


def test_pipeline__many_moves_are_not_attributed():
    ones = [1.0] * 40
    cluster = Cluster.parse("1x20:v100")
    pipeline = toys.Pipeline(toys.chain(ones, ones, ones, ones), cluster, 4)
    few, many = np.arange(1, 15), np.arange(1, 17)
    diff = difference(report_of(pipeline, few, few), report_of(pipeline, few + 1, few))
    assert len(diff.moves) == 14 and diff.attributed
    diff = difference(report_of(pipeline, many, many), report_of(pipeline, many + 1, many))
    assert len(diff.moves) == 16 and not diff.attributed and diff.parts


def test_pipeline__malformed_plan():
    good = report_of(toys.dense().pipeline, [5], [3])
    bad = judge(replace(good.plan, cuts=(99,), cut_after=()), good.pipeline)
    for a, b in ((good, bad), (bad, good), (bad, bad)):
        diff = difference(a, b)
        assert diff.seconds is None and diff.parts == () and not diff.attributed
        assert len(diff.moves) == (a is not b)
        json.dumps(diff.to_json(), allow_nan=False)


def test_pipeline__json():
    pipeline = toys.dense().pipeline
    content = difference(report_of(pipeline, [3], [2]), report_of(pipeline, [5], [3])).to_json()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["seconds"] == pytest.approx(-5)
    assert content["a"]["length_seconds"] == pytest.approx(27)
    assert content["pivot_stage"] == {"a": "link 0-1", "b": "link 0-1"}
    assert math.fsum(x["difference"] for x in content["parts"]) == pytest.approx(-5)
    assert math.fsum(x["seconds"] for x in content["moves"]) == pytest.approx(-5)


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


def test_other_problems__with_equal_plans_are_refused_too():
    """Plans do not tell how gradients are synchronised; the problems that judged them do."""
    pipeline = toys.dense().pipeline
    plan = pipeline.plan(np.array([5]), np.array([3]))
    for field, value in (("sync", "parameter-server"), ("copies", 4)):
        other = replace(pipeline, **{field: value})
        with pytest.raises(ParenvsError, match=f"field '{field}'"):
            difference(judge(plan, pipeline), judge(plan, other))


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
