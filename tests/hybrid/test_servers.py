"""Orders of unequal servers: the subset program against every plan, and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each, slow
from drawn_hybrids import best_of_orders, drawn_hetero

import parenvs
from parenvs.agents.hybrid.exact import exact_hybrid
from parenvs.agents.hybrid.orders import Orders, speeds_of, swap_search
from parenvs.agents.hybrid.subset_dp import lower_bound, sandwich, subset_search
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.space import Constraints

CASES = 6


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("hetero-8-test/spread-000", task="hybrid")


@pytest.fixture(scope="module")
def other():
    return parenvs.problem("hetero-8-test/spread-001", task="hybrid")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [*range(2, CASES), *slow(0, 1)])
def test_subset_search__is_the_best_of_all_orders(seed):
    """Every order, cut and split of small problems; and the bounds by few types lie below."""
    problem = drawn_hetero(np.random.default_rng(seed), most=3)
    best = best_of_orders(problem)
    if best == np.inf:
        with pytest.raises(InfeasibleError, match="no plan of one server"):
            subset_search(problem)
        return
    answer = subset_search(problem)
    assert answer.report.legal, answer.report.reasons
    assert answer.report.length_seconds == pytest.approx(answer.cost, rel=1e-12)
    assert answer.cost == pytest.approx(best, rel=1e-9)
    assert answer.proven and answer.bound == pytest.approx(best, rel=1e-9)
    for most in (1, 2):
        around = sandwich(problem, most_types=most)
        assert around.bound <= best * (1 + 1e-9) and around.cost >= best * (1 - 1e-9)
        assert around.report.legal


@pytest.mark.thorough
def test_subset_search__equals_the_labels_of_its_own_order(problem):
    """With the servers numbered in the order found, ``exact-hybrid`` finds the same length."""
    answer = subset_search(problem)
    order = list(answer.plan.servers)
    speeds = tuple(speeds_of(problem)[order].tolist())
    ordered = replace(problem, cluster=replace(problem.cluster, speeds=speeds))
    setting = answer.plan
    limits = Constraints(
        stage_devices=8,
        chunks=1,
        expert=1,
        micro_batch=None,
        sequence_parallel=setting.sequence_parallel,
        zero=(0, 1),
    )
    fixed = exact_hybrid(ordered, limits, incumbent=None)
    assert fixed.cost == pytest.approx(answer.cost, rel=1e-9)


@pytest.mark.slow
def test_sandwich__contains_the_optimum_of_sixteen_servers():
    problem = parenvs.problem("hetero-16-test/generations-000", task="hybrid")
    best = subset_search(problem)
    around = sandwich(problem, most_types=2)  # of three generations
    assert best.proven
    assert around.bound <= best.cost * (1 + 1e-9) <= around.cost * (1 + 2e-9)
    assert around.bound > 1.05 * Orders(problem).settings[0].bound  # far above work / speed


@pytest.mark.thorough
def test_root_bound__is_below_and_tight_for_work_that_divides():
    """On equal servers with M micro-batches no plan beats M work / sum s q^j."""
    problem = parenvs.problem("hetero-8-test/stragglers-000", task="hybrid")
    orders = Orders(problem)
    orders.start()
    assert orders.settings[0].bound < orders.length
    bound, _ = lower_bound(orders)
    assert orders.settings[0].bound <= bound <= orders.length


@pytest.mark.thorough
def test_subset_search__a_bound_remains_where_time_runs_out(problem):
    cut, full = subset_search(problem, time_limit=0.0), subset_search(problem)
    assert not cut.proven and cut.bound <= full.cost <= cut.cost


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        (
            "llama3-8b",
            {"cluster": "2x8:a100", "batch": 64, "stack": "megatron-2022"},
            "overlapped sends",
        ),
        ("gpt-1.7b", {"cluster": "2x8:h100", "batch": 64}, "tied weights"),
    ],
)
def test_subset_search__says_what_it_does_not_know(problem, options, words):
    with pytest.raises(ParenvsError, match=words):
        subset_search(parenvs.problem(problem, task="hybrid", **options))


@each(
    ("limits", "words"),
    [({"pp": 2}, "--stages"), ({"chunks": 2}, "chunks"), ({"pinned": ((0, 2, None),)}, "--pin")],
)
def test_planners__refuse_constraints_that_they_do_not_know(problem, limits, words):
    with pytest.raises(ParenvsError, match=words):
        parenvs.plan(problem, "swap-search", constraints=limits)


@pytest.mark.slow
def test_swap_search__count_judged_plans_and_are_seeded(other):
    few = swap_search(other, np.random.default_rng(0), evaluations=60)
    assert few.evaluations == 60 and few.report.legal
    assert few.cost == pytest.approx(few.report.length_seconds, rel=1e-12)
    again = swap_search(other, np.random.default_rng(0), evaluations=60)
    more = swap_search(other, np.random.default_rng(0), evaluations=120)
    assert again.plan == few.plan and more.cost <= few.cost


@pytest.mark.thorough
def test_swap_search__begins_with_the_sorted_orders(other):
    begun = swap_search(other, np.random.default_rng(0), evaluations=1)
    orders = Orders(other)
    orders.start()
    assert begun.cost == orders.length and begun.evaluations > 1
