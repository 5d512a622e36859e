"""The doors: problem, solve, judge, show and plan files, the same for every task."""

import json
from itertools import product

import pytest

import parenvs
from parenvs.core.registry import TASKS, task_of
from parenvs.errors import InfeasibleError, ParenvsError, PlanError, TimeLimitError

pytestmark = pytest.mark.thorough

EACH = {
    "pipeline": ("plan-test/cnn-003", "even"),
    "partition": ("partition-test/t5-006", "expert"),
    "hybrid": ("hybrid/7", "rule-of-thumb"),
    "sharding": ("intra-op-test/mesh-000", "greedy"),
    "elastic": ("p3/gpt-1.5b", "fastest"),
}
"""A problem of each task by its name, and a planner of it."""


@pytest.fixture(scope="module", params=EACH)
def solved(request):
    name, planner = EACH[request.param]
    problem = parenvs.problem(name)
    return request.param, problem, parenvs.plan(problem, planner)


def test_doors__a_name_tells_the_task_and_plans_carry_it(solved):
    task, problem, answer = solved
    assert problem.task == answer.plan.task == answer.report.task == task
    assert {task_of(x).name for x in (problem, answer.plan, answer.report)} == {task}
    if task != "partition":  # whose problems of sets carry the name of their graph
        assert parenvs.problem(problem.instance).report(answer.plan).legal
    assert parenvs.problem(EACH[task][0], task=task).report(answer.plan).legal


def test_doors__answers_and_reports_are_alike(solved):
    _, problem, answer = solved
    report = answer.report
    assert report.legal and report.reasons == ()
    assert answer.cost == report.cost
    assert answer.problem is problem and answer.status == "feasible" and not answer.proven
    best = parenvs.plan(problem, **({"time_limit": 0.5} if hasattr(problem, "limit") else {}))
    assert best.report.legal and best.cost <= answer.cost * (1 + 1e-9)
    assert report.gap(best) >= -1e-9 and report.gap(best) >= best.gap - 1e-9


def test_doors__plan_files_are_judged_as_plans_are(solved, tmp_path, capsys):
    task, problem, answer = solved
    path = tmp_path / "plan.json"
    answer.plan.save(path)
    assert json.loads(path.read_text())["task"] == task
    plan = parenvs.load_plan(path)
    assert plan == answer.plan
    assert parenvs.judge(path).legal
    report = parenvs.judge(plan, problem)
    assert (report.legal, report.cost) == (True, answer.cost)
    parenvs.show(report)
    parenvs.show(problem)
    words = capsys.readouterr().out.splitlines()
    assert len(words) > 3 and max(map(len, words)) <= 110


@pytest.mark.slow
def test_doors__pictures(solved, tmp_path):
    _, problem, answer = solved
    for number, viewable in enumerate((answer, problem)):
        parenvs.show(viewable, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000


def test_doors__a_plan_of_another_problem_is_illegal_not_an_error(solved):
    task, problem, answer = solved
    other = {
        "pipeline": "plan-test/cnn-004", "partition": "partition-test/t5-016", "hybrid": "hybrid/8",
        "sharding": "intra-op-test/mesh-001",
        "elastic": "g4dn/gpt-1.5b",
    }[task]  # fmt: skip
    report = parenvs.judge(answer.plan, parenvs.problem(other))
    assert not report.legal and report.gap(answer) is None
    assert any("the plan is for" in reason for reason in report.reasons)
    assert answer.plan.instance == problem.instance


def test_problem__settings_of_problems_of_sets_are_their_own():
    with pytest.raises(ParenvsError, match="stages: plan-test/cnn-003 has settings of its own"):
        parenvs.problem("plan-test/cnn-003", stages=3)
    changed = parenvs.problem("hybrid/7", batch=7)  # a hybrid problem can be changed
    assert changed.batch == 7 and changed.cluster == parenvs.problem("hybrid/7").cluster


def test_problem__unknown():
    for name, words in (
        ("plan-test/cnn-9999", "unknown problem 'plan-test/cnn-9999'"),
        ("hybrid/x", "give a seed, like hybrid/7"),
        ("elastic-test/none", "unknown problem 'elastic-test/none'"),
        ("intra-op-test/mesh", "unknown problem 'intra-op-test/mesh'"),
    ):
        with pytest.raises(ParenvsError, match=words):
            parenvs.problem(name)


def test_solve__every_task_has_planners_with_an_exact_one():
    for name in TASKS:
        planners = TASKS[name].request_class().planners
        assert next(iter(planners)) == "exact" and len(planners) >= 3


def test_errors__out_of_time_is_no_proof():
    assert issubclass(TimeLimitError, TimeoutError) and issubclass(TimeLimitError, ParenvsError)
    assert not issubclass(TimeLimitError, InfeasibleError)
    problem = parenvs.problem("intra-op-test/classes-000")
    with pytest.raises(TimeLimitError, match=r"no legal plan was found in .* s; there may be none"):
        parenvs.plan(problem, time_limit=1e-9)  # is over before the first move


def test_elastic__plans_that_break_rules(tmp_path):
    problem = parenvs.problem("elastic-test/bulk-gpt-1.5b-000")
    best = parenvs.plan(problem, seed=3)
    assert best.proven and best.gap == pytest.approx(0, abs=1e-12)
    rule = parenvs.plan(problem, "look-ahead", seed=3)
    assert 0 < rule.report.gap(best) < 1
    chosen = list(rule.plan.chosen)
    largest = max(problem.library.candidates, key=lambda plan: plan.degrees[0] * plan.degrees[2])
    for wrong, words in (
        ((9, 9, 9, 9), r"interval 5: \[9, 9, 9, 9\] is no candidate"),
        ((*largest.degrees, largest.spares), r"interval 5: .* takes \d+ nodes, there are \d+"),
    ):
        plan = problem.plan([0] * problem.intervals)
        plan = type(plan)(
            plan.instance, plan.fingerprint, (*chosen[:5], wrong, *chosen[6:]), rule.plan.seed
        )
        report = problem.report(plan)
        if report.legal:  # there were as many nodes
            continue
        assert [bool(__import__("re").search(words, reason)) for reason in report.reasons] == [True]
        assert len(report.plans) == 5
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**rule.plan.to_json(), "chosen": [[1, 2, 3]]}))
    with pytest.raises(PlanError, match=r"field 'chosen\[0\]' must be null or \[tensor"):
        parenvs.load_plan(path)


def test_elastic__plans_of_traces_carry_their_settings(tmp_path):
    """The judge finds trace, model, cluster, batch and interval in the plan's file."""
    own = tmp_path / "nodes.csv"
    own.write_text("seconds,nodes\n0,12\n300,8\n360,14\n900,14\n")
    for trace, settings in product(
        ("p3", str(own)),
        (
            {}, {"interval": 300.0}, {"interval": 45.5}, {"model": "bert-large"},
            {"cluster": "32x1:v100,10Gbps", "batch": 256}, {"cluster": "16x4:a100"},
            {"model": "gpt-3.6b", "cluster": "16x4:a100", "interval": 600.0, "batch": 64},
        ),
    ):  # fmt: skip
        problem = parenvs.problem(trace, task="elastic", **settings)
        path = tmp_path / "plan.json"
        parenvs.plan(problem, "fastest").plan.save(path)
        report = parenvs.judge(path)
        assert report.legal, (trace, settings, report.reasons)
        assert parenvs.problem(problem.instance, task="elastic").instance == problem.instance
