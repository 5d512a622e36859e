import numpy as np
import pytest
from drawn_orders import drawn, every_order

import parenvs
from parenvs.agents.order import exact_order, path_bound, references, relaxed_bound
from parenvs.agents.order.bounds import Program
from parenvs.agents.order.heuristics import RULES, by_rule, local_search, neh, random_order
from parenvs.agents.order.planners import ORDER_PLANNERS
from parenvs.agents.order.references import fault_of, order_references
from parenvs.core.request import Budget
from parenvs.datasets.order.drawing import Tier, draw_ordering
from parenvs.errors import ParenvsError
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.order.problem import Order


@pytest.fixture(scope="module")
def solved():
    """Small problems, with the length of their best order."""
    rng = np.random.default_rng(7)
    problems = [drawn(rng) for _ in range(40)]
    problems += [draw_ordering(rng, Tier(s, m, ("llama3-8b",))) for s, m in ((4, 6), (8, 5))]
    return [(p, float(p.length(every_order(p.micro_batches)).min())) for p in problems]


@pytest.mark.thorough
def test_bounds__are_never_above_the_optimum(solved):
    for problem, best in solved:
        path, relaxed = path_bound(problem), relaxed_bound(problem)
        assert problem.bound_seconds * (1 - 1e-9) <= path <= best * (1 + 1e-12)
        assert path <= relaxed <= best * (1 + 1e-12)


@pytest.mark.thorough
def test_program__bounds_every_order_with_micro_batches_at_positions(solved):
    """Whatever is fixed, in whatever sequence: the program remembers nothing of what was before."""
    rng = np.random.default_rng(11)
    for problem, _ in solved[::4]:
        count, program = problem.micro_batches, Program(problem)
        orders = every_order(count)
        lengths = problem.length(orders)
        for depth in rng.integers(0, count + 1, size=8).tolist():
            numbers, positions = (rng.permutation(count)[:depth] for _ in range(2))
            relaxation = program.solve(numbers, positions)
            least = lengths[(orders[:, positions] == numbers).all(axis=1)].min()
            bound = relaxation.bound(numbers, positions)
            assert bound <= least * (1 + 1e-12)
            if depth == count:
                assert bound == pytest.approx(least, rel=1e-9)
            assert np.allclose(relaxation.share.sum(axis=0), 1)
            assert np.allclose(relaxation.share.sum(axis=1), 1)
            assert np.allclose(relaxation.share[numbers, positions], 1)
            assert (lengths >= relaxation.costs[orders, np.arange(count)].sum(axis=1) - 1e-9).all()


def test_bounds__some_are_better_than_the_machine_bound(solved):
    """A bound that never is would not be worth its time."""
    assert any(path_bound(p) > 1.01 * p.bound_seconds for p, _ in solved)
    assert any(relaxed_bound(p) > 1.01 * path_bound(p) for p, _ in solved)


def test_bounds__equal_micro_batches_are_solved():
    problem = Order(np.full((3, 6), 0.5), np.full((3, 6), 1.0))
    length = float(problem.length(np.arange(6)))
    assert relaxed_bound(problem) == pytest.approx(length, rel=1e-5)


@pytest.mark.thorough
def test_exact_order__is_the_best_of_all(solved):
    for problem, best in solved:
        answer = exact_order(problem)
        assert answer.proven
        assert answer.cost == pytest.approx(best, rel=1e-9)
        assert answer.bound == answer.cost
        assert answer.report.length_seconds == answer.cost


@pytest.mark.thorough
def test_exact_order__a_time_limit_leaves_a_bound():
    problem = load_ordering("order-test/p8-m16-001")
    ticks = iter(range(10**6))
    answer = exact_order(problem, 20, clock=lambda: float(next(ticks)))
    assert sorted(answer.plan.order) == list(range(16))
    assert path_bound(problem) <= answer.bound < answer.cost
    assert not answer.proven


@pytest.mark.thorough
def test_exact_order__more_programs_are_no_worse_and_the_same_twice():
    problem = load_ordering("order-test/p8-m16-007")
    answers = [exact_order(problem, rounds=rounds) for rounds in (0, 1, 40, 40)]
    assert answers[-1].plan == answers[-2].plan
    gaps = [answer.cost / answer.bound for answer in answers]
    assert gaps[0] >= gaps[1] > gaps[2] == gaps[3] > 1


@pytest.mark.slow
def test_exact_order__proves_sixteen_micro_batches():
    """Their path bound is 20 % below the optimum."""
    answer = exact_order(load_ordering("order-test/p8-m16-000"))
    assert answer.proven
    assert answer.bound == answer.cost > 1.15 * path_bound(answer.problem)


def test_program__prints_nothing(capfd):
    Program(drawn(np.random.default_rng(3))).solve()
    assert capfd.readouterr() == ("", "")


def test_heuristics__judge_as_many_orders_as_they_say(monkeypatch):
    problem = drawn(np.random.default_rng(8), 4, 6)
    judged = []
    length = Order.length

    def counting(self, orders):
        judged.append(int(np.prod(np.shape(orders)[:-1])))
        return length(self, orders)

    monkeypatch.setattr(Order, "length", counting)
    answers = {
        "neh": lambda: neh(problem),
        "swap": lambda: local_search(problem, Budget(20), np.random.default_rng(0), width=8),
        "random": lambda: random_order(problem, 33, np.random.default_rng(0)),
    }
    for method, plan in answers.items():
        judged.clear()
        answer = plan()
        assert answer.method == method
        # The start of ``swap`` is judged as a rule, too, and every answer once more at its end.
        spare = 2 if method == "swap" else 1
        assert sum(judged) - spare - (method == "swap") <= answer.evaluations <= sum(judged)
        assert sorted(answer.plan.order) == list(range(6))


def test_neh__ends_when_time_is_up():
    """What is left comes last, heaviest first; the search is as long as its limit."""
    problem = drawn(np.random.default_rng(12), 3, 7)
    answers = iter([False, False, True])
    order = neh(problem, lambda: next(answers)).plan.order
    heaviest = np.argsort(-problem.work, kind="stable").tolist()
    assert sorted(order[:2]) == sorted(heaviest[:2]) and list(order[2:]) == heaviest[2:]
    ticks = iter(range(10**6))
    answer = exact_order(problem, 3, clock=lambda: float(next(ticks)))
    assert sorted(answer.plan.order) == sorted(heaviest) and not answer.proven


def test_heuristics__rules():
    problem = drawn(np.random.default_rng(9), 3, 6)
    work = {rule: problem.work[list(by_rule(problem, rule).plan.order)] for rule in RULES}
    assert (np.diff(work["ascending"]) >= 0).all()
    assert (np.diff(work["descending"]) <= 0).all()
    top = int(np.argmax(work["pyramid"]))
    assert (np.diff(work["pyramid"][: top + 1]) >= 0).all()
    assert (np.diff(work["pyramid"][top:]) <= 0).all()
    with pytest.raises(ParenvsError, match="did you mean 'pyramid'"):
        by_rule(problem, "pyramids")


@pytest.mark.thorough
def test_heuristics__more_judged_orders_are_no_worse():
    problem = load_ordering("order-test/p8-m32-002")
    lengths = [
        local_search(problem, Budget(count), np.random.default_rng(1)).cost
        for count in (1, 60, 300)
    ]
    assert lengths[0] >= lengths[1] >= lengths[2]
    assert lengths[0] == by_rule(problem, "pyramid").cost


@pytest.mark.parametrize("search", ["swap", "learned+search"])
def test_solve__searches_begin_at_the_pyramid_where_it_is_better(search):
    problem = load_ordering("order-test/p16-m32-001")
    pyramid = by_rule(problem, "pyramid").cost
    assert pyramid < neh(problem).cost
    brief = parenvs.solve(problem, search, steps=1)
    assert brief.cost <= pyramid
    longer = parenvs.solve(problem, search, steps=1, time_limit=2 * brief.seconds + 0.3)
    assert longer.evaluations >= brief.evaluations + 32 and longer.cost < brief.cost
    assert parenvs.solve(problem, search, time_limit=0.01).cost <= pyramid


def test_solve__every_planner():
    problem = load_ordering("order-test/p4-m8-003")
    answers = {agent: parenvs.solve(problem, agent=agent, steps=800) for agent in ORDER_PLANNERS}
    best = answers["exact"]
    assert best.proven
    assert all(answer.cost >= best.cost * (1 - 1e-12) for answer in answers.values())
    assert answers["random"].evaluations == 100
    assert answers["swap"].evaluations == answers["neh"].evaluations + 100
    assert answers["swap"].cost <= answers["neh"].cost
    with pytest.raises(ParenvsError, match="unknown agent"):
        parenvs.solve(problem, agent="ppo")
    with pytest.raises(ParenvsError, match="not an option of solve"):
        parenvs.solve(problem, radius=3)


def test_references__are_of_the_shipped_problems():
    known = order_references()
    names = [f"{name}/{member}" for name in ORDER_SETS for member in ordering_steps(name)]
    assert sorted(known) == sorted(names)
    for name in names[::9]:
        problem = load_ordering(name)
        assert fault_of(problem, known[name]) == ""
        assert known[name]["proven"] or problem.micro_batches > 8
    worse = {**known[names[0]], "length": known[names[0]]["length"] * 0.99}
    assert fault_of(load_ordering(names[0]), worse)


@pytest.mark.thorough
def test_references__what_is_not_proven_is_improved_by_swaps(monkeypatch):
    """From the shipped order, where that is better than what the programs found."""
    monkeypatch.setattr(references, "WORK", 1)  # no programs
    monkeypatch.setattr(references, "JUDGED", 400)
    problem = load_ordering("order-test/p16-m64-001")
    known = references.order_references()[problem.instance]
    assert references.reference_of(problem)["length"] <= known["length"] < neh(problem).cost
    monkeypatch.setattr(references, "order_references", dict)
    alone = references.reference_of(problem)
    assert known["length"] < alone["length"] < neh(problem).cost and not alone["proven"]
    assert alone["bound"] <= known["bound"] and not references.fault_of(problem, alone)
