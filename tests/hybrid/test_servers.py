"""Orders of unequal servers: the subset program against every plan, and bounds."""

from dataclasses import replace

import numpy as np
import pytest
from cases import each, slow
from drawn_hybrids import best_of_orders, drawn_hetero

import parenvs
from parenvs.agents.hybrid.exact import exact_hybrid
from parenvs.agents.hybrid.orders import Orders, ServerTables, by_speed, settings, speeds_of
from parenvs.agents.hybrid.subset_dp import (
    ServerLabels,
    lower_bound,
    sandwich,
    subset_search,
    types,
)
from parenvs.agents.hybrid.tables import INNER
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.space import Constraints

CASES = 6


@pytest.fixture(scope="module")
def problem():
    return parenvs.problem("hetero-8-test/spread-000", task="hybrid")


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
def test_draws__need_several_servers_and_orders():
    """The drawn problems would not show a wrong search if a sorted order were always best."""
    found = {"pipeline": 0, "unsorted": 0}
    for seed in range(CASES):
        try:
            plan = subset_search(drawn_hetero(np.random.default_rng(seed), most=3)).plan
        except InfeasibleError:
            continue
        speeds = np.array(plan.cluster.speeds)[list(plan.servers)][: len(plan.stages)]
        found["pipeline"] += len(plan.stages) > 1
        found["unsorted"] += bool((np.diff(speeds) > 0).any())
    assert all(count >= 1 for count in found.values()), found


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
    orders.start([by_speed(problem)])
    assert orders.settings[0].bound < orders.length
    bound, _ = lower_bound(orders)
    assert orders.settings[0].bound <= bound <= orders.length


@pytest.mark.thorough
def test_subset_search__a_bound_remains_where_time_runs_out(problem):
    cut, full = subset_search(problem, time_limit=0.0), subset_search(problem)
    assert not cut.proven and cut.bound <= full.cost <= cut.cost


def test_types__few_states_and_whole_servers():
    rng = np.random.default_rng(0)
    speeds = rng.uniform(0.6, 1.0, 40)
    groups = types(speeds, np.floor(speeds * 10), 6, 5_000)
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    assert np.prod([len(group) + 1 for group in groups]) <= 5_000
    tops = [speeds[group].max() for group in groups]
    assert tops == sorted(tops) and len(groups) > 1


def test_server_tables__stages_of_runs_that_are_too_long(problem):
    """A plan for slower servers may have them; splits have the numbers that they have there."""
    setting, speeds = next(settings(problem)), np.unique(speeds_of(problem))
    every = ServerTables(problem, setting, speeds)
    few = ServerTables(problem, setting, speeds, 2.5 * every.stages.kind_seconds.min())
    layers = 2, len(problem.model) // 2
    assert few.number[layers] == len(few.class_work) < len(every.class_work)
    assert few.stage(INNER, 2, 1, 0, layers) == every.stage(INNER, 2, 1, 0, layers)
    short = few.number[2, 3], every.number[2, 3]
    seconds = few.costs(INNER, 2).seconds, every.costs(INNER, 2).seconds
    assert (seconds[0][..., short[0]] == seconds[1][..., short[1]]).all()


def test_server_labels__count_their_states():
    problem = drawn_hetero(np.random.default_rng(3))
    orders = Orders(problem)
    tables = orders.tables(orders.settings[0].setting)
    search = ServerLabels(tables, np.zeros(2, dtype=np.int64), np.array([3, 4]))
    assert search.states == 4 * 5


@pytest.mark.parametrize(
    ("problem", "options", "words"),
    [
        ("llama3-8b", {"cluster": "2x8:a100", "batch": 64}, "overlapped sends"),
        ("gpt-1.7b", {"cluster": "2x8:h100", "batch": 64}, "tied weights"),
    ],
)
def test_subset_search__says_what_it_does_not_know(problem, options, words):
    with pytest.raises(ParenvsError, match=words):
        subset_search(parenvs.problem(problem, task="hybrid", **options))


@each("limits", [{"pp": 2}, {"chunks": 2}, {"pinned": ((0, 2, None),)}])
def test_planners__refuse_constraints_that_they_do_not_know(problem, limits):
    with pytest.raises(ParenvsError, match=next(iter(limits))):
        parenvs.solve(problem, "swap-search", constraints=limits)


def test_equal_servers__are_no_hetero_problem_but_can_be_planned():
    problem = parenvs.problem("llama3-8b", "2x8:h100", task="hybrid", batch=64)
    answer = subset_search(problem, Constraints(stage_devices=8, chunks=1, context=1, expert=1))
    fixed = exact_hybrid(problem, Constraints(stage_devices=8, context=1, expert=1))
    assert answer.proven and answer.cost <= fixed.cost * (1 + 1e-9)
