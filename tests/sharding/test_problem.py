"""The judge: the contest's example, its rules, and a second writing in scalars."""

from pathlib import Path

import pytest
from drawn_intra_op import draw, second_cost
from hypothesis import given, settings
from hypothesis import strategies as st
from intra_op_files import FOLDER, SMALL, needs_files, written

from parenvs import judge, load_plan
from parenvs.errors import ParenvsError
from parenvs.tasks.sharding.files import load_iopddl
from parenvs.tasks.sharding.problem import FORBIDDEN, ShardingPlan


@settings(max_examples=80)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_report__is_what_scalars_say(seed, data):
    problem = draw(seed, forbidden=0.4)
    strategies = [data.draw(st.integers(0, int(size) - 1)) for size in problem.sizes]
    report = problem.report(problem.plan(strategies))
    cost, peak, at = second_cost(problem, strategies)
    assert (report.cost, report.peak, report.peak_at) == (cost, peak, at)
    assert report.legal == (problem.limit is None or peak <= problem.limit)
    assert report.forbidden == (cost >= FORBIDDEN)


def test_report__parallel_edges_order_of_ends_and_empty_intervals(tmp_path):
    """Both edges of 0 and 1 count; edge (2, 0) has node 2's strategies as rows; 100 is not used."""
    problem = load_iopddl(written(tmp_path, SMALL))
    report = problem.report(problem.plan([1, 0, 0]))
    assert report.cost == 2 + 3 + 4 + 2 + 2 + 20
    assert (report.peak, report.peak_at, report.legal) == (15, 1, False)
    assert report.reasons == ("at time 1 the nodes use 15, and 14 are allowed",)
    assert problem.report(problem.plan([0, 0, 1])).legal  # 14 of 14: the limit may be reached


def test_report__sums_beyond_64_bits(tmp_path):
    content = {
        "problem": {
            "name": "large",
            "nodes": {
                "intervals": [[0, 1]] * 4, "costs": [[2**63 - 1]] * 4, "usages": [[2**63 - 1]] * 4,
            },
            "edges": {"nodes": [], "costs": []},
            "usage_limit": 2**63 - 1,
        }
    }  # fmt: skip
    report = (problem := load_iopddl(written(tmp_path, content))).report(problem.plan([0] * 4))
    assert report.cost == report.peak == 4 * (2**63 - 1)
    assert not report.legal


@needs_files
def test_report__the_contests_example():
    problem = load_iopddl(FOLDER / "example.json")
    report = problem.report(problem.plan([0] * 5))
    assert (report.cost, report.peak, report.legal) == (575, 50, True)
    best = problem.report(problem.plan([0, 0, 2, 1, 0]))
    assert (best.cost, best.peak) == second_cost(problem, [0, 0, 2, 1, 0])[:2]


def test_report__refuses_what_the_problem_does_not_have(tmp_path):
    problem = load_iopddl(written(tmp_path, SMALL))
    for strategies, words in (([0], "1 strategies are given for 3"), ([0, 1, 0], "node 1")):
        report = problem.report(problem.plan(strategies))
        assert not report.legal and report.cost is None and words in report.reasons[0]
        assert report.to_json()["cost"] is None and "illegal" in str(report)
    other = ShardingPlan("x", "sha256:0", (0, 0, 0))
    assert "another problem" in problem.report(other).reasons[0]


def test_judge__loads_the_problem_that_a_plan_names(tmp_path):
    path = written(tmp_path, SMALL)
    problem = load_iopddl(path)
    problem.plan([0, 0, 1]).save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert plan == problem.plan([0, 0, 1])
    assert judge(plan).cost == judge(plan, problem).cost == judge(str(tmp_path / "plan.json")).cost
    with pytest.raises(ParenvsError, match="judged on a problem of it"):
        judge(plan, 3)
    with pytest.raises(ParenvsError, match="'x' is neither a file nor an added"):
        judge(plan, Path("x"))
    with pytest.raises(ParenvsError, match="no cluster"):
        judge(plan, problem, "A")
