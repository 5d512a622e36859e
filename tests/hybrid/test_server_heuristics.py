"""Orders of unequal servers by rule and search: legal plans, and as many judged as were asked."""

import numpy as np
import pytest
from cases import slow

import parenvs
from parenvs.agents.hybrid.planners import HYBRID_PLANNERS
from parenvs.agents.hybrid.servers.heuristics import random_orders, sorted_orders, swap_search
from parenvs.agents.hybrid.servers.planners import SERVER_PLANNERS
from parenvs.agents.hybrid.servers.solve import Orders, by_speed

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("hetero-8-test/spread-001", task="hybrid")


def test_sorted_orders__one_of_both(problem):
    answer = sorted_orders(problem)
    speeds = np.array(problem.cluster.speeds)[list(answer.plan.servers[: len(answer.plan.stages)])]
    assert answer.report.legal and not answer.proven and answer.bound is None
    assert (np.diff(speeds) >= 0).all() or (np.diff(speeds) <= 0).all()


@pytest.mark.parametrize("search", [random_orders, *slow(swap_search)])
def test_searches__count_judged_plans_and_are_seeded(problem, search):
    few = search(problem, np.random.default_rng(0), evaluations=60)
    assert few.evaluations == 60 and few.report.legal
    assert few.cost == pytest.approx(few.report.length_seconds, rel=1e-12)
    again = search(problem, np.random.default_rng(0), evaluations=60)
    more = search(problem, np.random.default_rng(0), evaluations=120)
    assert again.plan == few.plan and more.cost <= few.cost


@pytest.mark.parametrize("search", [random_orders, swap_search])
def test_searches__a_time_limit_is_used_up(problem, search, monkeypatch):
    monkeypatch.setattr("parenvs.agents.hybrid.servers.heuristics.EVALUATIONS", 1)
    without = search(problem, np.random.default_rng(0))
    within = search(problem, np.random.default_rng(0), time_limit=without.seconds + 0.3)
    assert within.seconds >= without.seconds + 0.3
    assert within.evaluations >= without.evaluations + 16
    short = search(problem, np.random.default_rng(0), evaluations=60, time_limit=1e-9)
    assert short.evaluations < 60 and short.report.legal


def test_swap_search__begins_with_the_sorted_orders(problem):
    begun = swap_search(problem, np.random.default_rng(0), evaluations=1)
    assert begun.cost == sorted_orders(problem).cost and begun.evaluations > 1


def test_orders__one_judged_plan_each(problem):
    orders = Orders(problem)
    orders.start([by_speed(problem), by_speed(problem, False)])
    before = orders.judged
    drawn = np.array([np.random.default_rng(i).permutation(8) for i in range(5)])
    lengths = orders.judge(drawn, orders.setting)
    assert orders.judged == before + 5 and lengths.min() >= orders.length


@pytest.mark.slow
def test_planners__by_name(problem):
    names = ("sorted-servers", "sandwich", "subset-dp")
    assert {*names, "random-servers", "swap-search"} == set(SERVER_PLANNERS) < set(HYBRID_PLANNERS)
    found = {name: parenvs.solve(problem, name) for name in names}
    best = found["subset-dp"]
    assert best.proven and best.claim.endswith("1F1B plans of one server a stage")
    for name, answer in found.items():
        assert answer.method == name and answer.report.legal
        assert answer.cost >= best.cost * (1 - 1e-9)
    assert found["sandwich"].bound <= best.cost * (1 + 1e-9)
