"""Tasks of hybrid plans and IOPDDL: entries accepted, tampered with, not judged."""

import copy
import json
from dataclasses import replace

import pytest
from cases import each

from parenvs.agents.sharding.entries import MEAN, POINTS
from parenvs.core.leaderboard import kind_of
from parenvs.errors import ParenvsError
from parenvs.leaderboard.check import PlanState, check, judged
from parenvs.leaderboard.entry import Entry
from parenvs.leaderboard.tasks import tasks
from parenvs.tasks.sharding.files import CONTEST_RECORDS

SMALL = {
    "hybrid": ("hybrid-test/gpt-001", "best-known"),
    "hetero": ("hetero-8-test/spread-000", "best-known"),
    "iopddl": ("vgg-19-4x8-2730MB", "partition-milp"),
}
"""Task -> a small problem and an agent that is quick on it."""
CONTEST = "asplos-2025-iopddl-B"


@pytest.fixture(scope="module")
def plans():
    """Task -> (problem, content of a sound plan file)."""
    made = {}
    for task, (name, agent) in SMALL.items():
        problem = tasks().task(task).problems[name]
        made[task] = problem, kind_of(task).planner(agent, 0, 1)(problem).to_json()
    return made


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    """No file of the contest has been added."""
    monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path / "none"))
    problems = tasks().task("iopddl").problems
    for problem in problems.values():
        if problem.added:
            monkeypatch.setitem(problems, problem.name, replace(problem))  # nothing is cached
    return problems


@pytest.mark.parametrize("task", SMALL)
def test_kinds__sound_plans_are_legal(plans, task):
    problem, content = plans[task]
    verdict = judged(problem, content)
    assert (verdict.state, verdict.reasons) == (PlanState.LEGAL, ())
    assert verdict.reaches and verdict.cost == pytest.approx(problem.reference.cost)
    assert verdict.score == pytest.approx(1, abs=1e-6) and verdict.score <= 1
    assert problem.trivial == pytest.approx(problem.trivial_cost(), rel=1e-9)


@each(
    ("task", "changes", "words"),
    [
        ("hybrid", {"batch": 8}, "field 'batch' must be"),
        ("hybrid", {"gradient_bytes": 2}, "field 'gradient_bytes' must be 4, not 2"),
        ("hybrid", {"cluster": "A"}, "field 'cluster' must be"),
        ("hybrid", {"stages": []}, "field 'stages'"),
        ("hybrid", {"fingerprint": "sha256:0"}, "make the plan anew"),
        ("hetero", {"chunks": 2}, "field 'chunks' must be 1"),
        ("hetero", {"context": 2}, "field 'context' must be 1"),
        ("hetero", {"micro_batch": 32}, "field 'micro_batch' is 32, at most 16"),
        ("iopddl", {"strategies": [0]}, "1 strategies are given"),
        ("iopddl", {"strategies": [9] * 617}, "strategies do not exist"),
        ("iopddl", {"strategies": [0] * 617}, "are allowed"),  # over the limit of memory
        ("iopddl", {"fingerprint": "sha256:0"}, "make the plan anew"),
        ("iopddl", {"task": "hybrid"}, "field 'task' must be"),
    ],
)
def test_kinds__tampered_plans_are_refused(plans, task, changes, words):
    problem, content = plans[task]
    verdict = judged(problem, {**copy.deepcopy(content), **changes})
    assert verdict.state == PlanState.ILLEGAL and verdict.cost == problem.trivial
    assert all(f"plans.{problem.name}" in reason for reason in verdict.reasons)
    assert any(words in reason for reason in verdict.reasons), verdict.reasons


def test_kinds__better_than_a_reference_without_proof(plans):
    """Such a plan scores above 1; better than the proven bound it is refused all the same."""
    problem, content = plans["hybrid"]
    worse = replace(problem.reference, cost=1.25 * problem.reference.cost)
    verdict = judged(replace(problem, reference=worse), content)
    assert verdict.improves and verdict.score == pytest.approx(1.25)
    false = replace(worse, bound=1.1 * problem.reference.cost)
    verdict = judged(replace(problem, reference=false), content)
    assert "better than the proven lower bound" in verdict.reasons[0]


def entry_with(**plans):
    return Entry("iopddl", "mine", ("Ada",), "By hand.", plans)


def contest_plan(problem, count=816):
    return {**problem.head, "strategies": [0] * count}


def test_iopddl__a_file_that_is_missing_is_told_and_nothing_else_is_lost(plans, no_files):
    problem, content = plans["iopddl"]
    without = check(entry_with(**{problem.name: content}))
    whole = check(entry_with(**{problem.name: content, CONTEST: contest_plan(no_files[CONTEST])}))
    verdict = next(v for v in whole.verdicts if v.problem.name == CONTEST)
    file = f"{CONTEST}.json.gz"
    assert verdict.state == PlanState.UNJUDGED
    assert verdict.note.endswith(
        f"the file {file} is not here; add it with parenvs iopddl add {file}"
    )
    assert whole.reasons == () and whole.score == without.score < 1
    assert whole.figures[POINTS.title] == ""
    tampered = {**contest_plan(no_files[CONTEST]), "fingerprint": "sha256:0"}
    (reason,) = check(entry_with(**{CONTEST: tampered})).reasons  # known without the file
    assert "field 'fingerprint' must be" in reason


def test_iopddl__another_file_of_the_name_is_not_judged(no_files, monkeypatch, tmp_path):
    nodes = {"intervals": [[0, 0]], "costs": [[1]], "usages": [[0]]}
    content = {"name": CONTEST, "nodes": nodes, "edges": {"nodes": [], "costs": []}}
    (tmp_path / f"{CONTEST}.json").write_text(json.dumps({"problem": content}))
    monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path))
    verdict = judged(no_files[CONTEST], contest_plan(no_files[CONTEST]))
    assert verdict.state == PlanState.UNJUDGED and "another problem of its name" in verdict.note


def test_iopddl__points_are_the_contest_s():
    problems = [p for p in tasks().task("iopddl").problems.values() if p.added]
    assert len(problems) == 6
    best = [(p, CONTEST_RECORDS[p.letter].contest) for p in problems]
    assert POINTS.of(best) == pytest.approx(6)
    half = [(p, 2 * cost) for p, cost in best[:5]] + [(best[5][0], None)]
    assert POINTS.of(half) == pytest.approx(2.5)
    assert MEAN.of([(p, p.reference.cost) for p in problems]) == pytest.approx(1)
    assert POINTS.of([(p, None) for p in problems]) is None
    own = [p for p in tasks().task("iopddl").problems.values() if not p.added]
    assert POINTS.of([(p, p.reference.cost) for p in own]) is None


def test_kinds__certified_is_at_most_the_score():
    """The share of the optimum that is proven, by hand."""
    task = tasks().task("hetero")
    figure = kind_of("hetero").figures[0]
    pairs = [(p, p.reference.cost) for p in task.problems.values()]
    expected = 1.0
    for problem, cost in pairs:
        expected *= (problem.reference.bound / cost) ** (1 / len(pairs))
    assert figure.of(pairs) == pytest.approx(expected) and 0.5 < expected < 1


def test_kinds__an_unknown_task_in_the_list(tmp_path):
    from parenvs.leaderboard.tasks import TaskList, read_tasks

    path = tmp_path / "tasks.json"
    known = tasks()
    strange = replace(known.task("data-parallel"), name="data-paralel")
    TaskList(1, 1, {"data-paralel": strange}).save(path)
    with pytest.raises(ParenvsError, match="did you mean 'data-parallel'"):
        read_tasks(path)
