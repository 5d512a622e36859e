"""Orders of unequal servers by rule and search: legal plans, and as many judged as were asked."""

import numpy as np
import pytest

import parenvs
from parenvs.agents.hybrid.orders import Orders, by_speed, swap_search

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("hetero-8-test/spread-001", task="hybrid")


@pytest.mark.slow
def test_swap_search__count_judged_plans_and_are_seeded(problem):
    few = swap_search(problem, np.random.default_rng(0), evaluations=60)
    assert few.evaluations == 60 and few.report.legal
    assert few.cost == pytest.approx(few.report.length_seconds, rel=1e-12)
    again = swap_search(problem, np.random.default_rng(0), evaluations=60)
    more = swap_search(problem, np.random.default_rng(0), evaluations=120)
    assert again.plan == few.plan and more.cost <= few.cost


def test_swap_search__begins_with_the_sorted_orders(problem):
    begun = swap_search(problem, np.random.default_rng(0), evaluations=1)
    orders = Orders(problem)
    orders.start([by_speed(problem), by_speed(problem, False)])
    assert begun.cost == orders.length and begun.evaluations > 1
