"""The solver against brute force: plans, bounds, moves and messages."""

import io
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from cases import each
from drawn_intra_op import draw, optimum
from intra_op_files import FOLDER, needs_files
from rich.console import Console

from parenvs.agents.sharding import search
from parenvs.agents.sharding.loops import Chain, Dual, add, empty_tree, maximum
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.agents.sharding.program import CoreProgram, Tree, certify, core_size, restricted
from parenvs.agents.sharding.search import Clock, Search
from parenvs.cli import tables
from parenvs.core.leaderboard import reference_of
from parenvs.errors import NO_PLAN, InfeasibleError, ParenvsError
from parenvs.tasks.sharding.files import contest_record, load_iopddl
from parenvs.tasks.sharding.messages import arrays_of
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding, reduce
from parenvs.view.terminal import proof


@cache
def drawn():
    """Drawn problems with a plan that leave something to search: (problem, reduced, optimum)."""
    found = []
    for seed in range(200):
        problem = draw(seed, most=4, edges=9, forbidden=0.05, slack=0.4)
        with suppress(InfeasibleError):
            reduced = reduce(problem)
            if len(reduced) > 2 and (best := optimum(problem)) is not None:
                found.append((problem, reduced, best))
        if len(found) == 8:
            break
    return found


def test_solve__finds_the_optimum_and_proves_no_more():
    tried = proven = 0
    for seed in range(12):
        problem = draw(seed, edges=11, most=4, forbidden=0.1, slack=0.45)
        best = optimum(problem)
        if best is None:
            with pytest.raises(NO_PLAN, match=f"drawn-{seed}: "):
                solve_iopddl(problem, None, steps=2)
            continue
        answer = solve_iopddl(problem, None, steps=4)
        report = answer.report
        assert report.legal and report.cost == answer.cost == best, seed
        assert answer.bound <= best
        tried, proven = tried + 1, proven + answer.proven
    assert tried > 4 and proven > 0.8 * tried


def test_solve__is_the_same_every_time_and_refuses_no_end():
    problem, *_ = drawn()[0]
    first, second = (solve_iopddl(problem, None, seed=3, steps=3) for _ in range(2))
    assert first.plan == second.plan and first.bound == second.bound
    with pytest.raises(ParenvsError, match="give seconds or steps"):
        solve_iopddl(problem, None)
    with pytest.raises(ParenvsError, match="must be positive"):
        solve_iopddl(problem, -1.0)


def test_solve__several_threads_are_the_same_every_time_and_no_worse():
    problem, _, best = drawn()[0]
    first, second = (solve_iopddl(problem, None, seed=3, steps=3, threads=3) for _ in range(2))
    assert first.plan == second.plan and first.report.legal
    assert best <= first.cost <= solve_iopddl(problem, None, seed=3, steps=3).cost
    with pytest.raises(ParenvsError, match="for one thread"):
        solve_iopddl(problem, 1.0, processor=True, threads=2)
    with pytest.raises(ParenvsError, match="from 1, not 0"):
        solve_iopddl(problem, 1.0, threads=0)


def test_chain__keeps_the_limit_and_an_account_of_its_cost():
    better = 0
    for _, reduced, best in drawn():
        search = Search(reduced, Clock(None, 1), threads=2)
        model, sizes = search.model, np.diff(reduced.offset)
        legal = (np.array(c) for c in product(*(range(size) for size in sizes)))
        first = next(c for c in legal if reduced.legal(c))
        for rng in search.rngs:
            chain = Chain(model, search.empty, first, rng, 4, search.widest)
            chain.move(np.zeros(len(model.costs)), 5.0, 0, 80, 80, 0.0)
            assert reduced.legal(chain.chosen) and reduced.legal(chain.best)
            assert reduced.cost(chain.chosen) == pytest.approx(reduced.cost(first) + chain.change)
            assert best <= reduced.cost(chain.best) <= reduced.cost(first)
            again = Chain(model, search.empty, chain.chosen, rng, 4, search.widest)
            assert chain.local == pytest.approx(again.local)
            assert (chain.blocked == again.blocked).all() and not chain.marks.any()
            excess = reduced.profile(chain.chosen) - reduced.slack
            assert chain.tree[0, 1] == excess.max(initial=-(2**62))
            better += reduced.cost(chain.best) < reduced.cost(first)
        assert search.rngs[0].bit_generator.state != search.rngs[1].bit_generator.state
    assert better > 2


def test_search__an_interrupt_leaves_the_best_plan_so_far():
    class Interrupted(Search):
        def raise_bound(self, share, sweeps):
            super().raise_bound(share, sweeps)
            if self.chosen is not None:
                raise KeyboardInterrupt

    for _, reduced, best in drawn():
        search = Interrupted(reduced, Clock(None, 50))
        search.run()
        assert search.chosen is None or reduced.legal(search.chosen)
        assert search.chosen is None or round(search.cost) + reduced.constant >= best


def least_costs(reduced):
    """(s,) the least cost of a legal plan with each strategy, less the constant, by brute force."""
    least = np.full(len(reduced.costs), np.inf)
    for choice in product(*(range(size) for size in np.diff(reduced.offset))):
        chosen = np.array(choice)
        if reduced.legal(chosen):
            at = reduced.offset[:-1] + chosen
            least[at] = np.minimum(least[at], reduced.cost(chosen) - reduced.constant)
    return least


def test_certificate__holds_whatever_prices_and_messages_are():
    """No plan costs less than the bound; with a strategy, than the bound with it."""
    rng, checked, raised, tight = np.random.default_rng(0), 0, 0, 0
    for _, reduced, best in drawn():
        model, dual = arrays_of(reduced), Dual(arrays_of(reduced))
        best -= reduced.constant
        for _ in range(15):
            dual.step(float(best))
        least = least_costs(reduced)
        messages, _ = dual.settle()
        tight += certify(reduced, model, dual.price, messages).bound == best
        scale = float(np.abs(messages).max(initial=1.0))
        for size in (0.0, 0.01, 1.0, 1e3, 1e30, np.inf):
            price = dual.price + size * rng.standard_normal(len(model.slack)) / 10
            moved = messages + size * scale * rng.standard_normal(len(messages))
            certificate = certify(reduced, model, price, moved)
            assert certificate.bound <= best
            extra = np.array([int(x) / 2**certificate.shift for x in certificate.extra])
            assert (certificate.whole / 2**certificate.shift + extra <= least + 1e-6).all()
            assert not (~certificate.better(best + 1) & (least == best)).any()
            checked, raised = checked + 1, raised + int((extra > 1e-6).sum())
    assert checked == 48 and raised > 100 and tight > 2


@each("unit", [1, 10**9 + 7, 2**44 + 1])
def test_certificate__costs_of_any_size_are_proven_to_the_last_unit(unit):
    """Floats of such sums are off by more than one."""
    proven = 0
    for problem, _, best in drawn()[:4]:
        large = replace(
            problem,
            costs=np.where(problem.costs < FORBIDDEN, problem.costs * unit, FORBIDDEN),
            edge_costs=np.where(
                problem.edge_costs < FORBIDDEN, problem.edge_costs * unit, FORBIDDEN
            ),
        )
        answer = solve_iopddl(large, None, steps=6)
        assert answer.bound <= answer.cost == best * unit
        proven += answer.proven
    assert proven == 4


def far_apart(seed):
    """A drawn problem in which some costs are 10^12 times what the others are."""
    problem, rng = (
        draw(seed, most=4, edges=9, forbidden=0.05, slack=0.4),
        np.random.default_rng(seed),
    )

    def spread(costs, share):
        large = (rng.random(len(costs)) < share) & (costs < FORBIDDEN)
        return np.where(large, costs * 10**12, costs)

    return replace(
        problem, costs=spread(problem.costs, 0.4), edge_costs=spread(problem.edge_costs, 0.6)
    )


@pytest.mark.thorough
def test_certificate__costs_that_are_far_apart_prove_nothing_wrong():
    """HiGHS's own bound of the last is 66, as its presolve rounds; the optimum is 65."""
    for seed in (*range(30), 308):
        problem = far_apart(seed)
        best = optimum(problem)
        with suppress(InfeasibleError):
            answer = solve_iopddl(problem, None, steps=3)
            assert answer.cost == best and answer.proven, seed


def test_tree__proves_the_optimum_of_what_is_kept_and_finds_it():
    rng, smaller = np.random.default_rng(1), 0
    for _, reduced, best in drawn():
        kept = rng.random(len(reduced.costs)) < 0.8
        kept[reduced.offset[:-1]] = True
        least = least_costs(restricted(reduced, kept)).min()
        program = CoreProgram(restricted(reduced, kept), np.zeros(len(reduced.slack)))
        tree = Tree(program, 2**50)
        tree.run(20.0, 500)
        assert tree.over and tree.cost == min(least, 2**50)
        assert (tree.chosen is None) == (least == np.inf)
        if least == np.inf:
            continue
        assert program.reduced.cost(tree.chosen) == least + reduced.constant
        smaller += least > best - reduced.constant
        for cost, expected in ((int(least), None), (int(least) + 1, int(least))):
            tree = Tree(program, cost)
            tree.run(20.0, 500)
            assert tree.over and tree.bound == int(least)
            assert (tree.chosen is not None) == (expected is not None)
        short = Tree(program, 2**50)
        short.run(20.0, 1)
        assert short.bound <= least
    assert smaller


@each("seed, feasible", [(73, False), (113, True), (161, True)])
def test_sweep__strategies_whose_every_pair_is_forbidden(seed, feasible):
    """Where no time is left to take them away; differences of infinite messages are no bounds."""
    problem = draw(seed, edges=11, most=4, forbidden=0.1, slack=0.45)
    reduced = reduce(problem, lambda: True)
    dual = Dual(arrays_of(reduced))
    bounds = [dual.step(np.inf) for _ in range(15)]
    assert not np.isnan(bounds).any() and not np.isnan(dual.messages).any()
    assert feasible == (optimum(problem) is not None)
    assert not feasible or max(bounds) + reduced.constant <= optimum(problem) + 1e-6


def test_memory__the_tree_is_the_profile():
    rng = np.random.default_rng(0)
    for times in (1, 5, 8, 13):
        plain = -rng.integers(0, 50, times)
        model = arrays_of(drawn()[0][1])._replace(slack=-plain)
        tree = empty_tree(model)
        for _ in range(30):
            lo = int(rng.integers(times))
            hi = int(rng.integers(lo, times)) + 1
            amount = int(rng.integers(-9, 10))
            add(tree, lo, hi, amount)
            plain[lo:hi] += amount
            begin = int(rng.integers(times))
            end = int(rng.integers(begin, times)) + 1
            assert maximum(tree, begin, end) == plain[begin:end].max()
            assert tree[0, 1] == plain.max()


def test_combine__takes_the_cheaper_of_each_part_that_differs():
    """Parts without an edge between them add up, so that none can be cheaper from the other."""
    gained = 0
    for number, (_, reduced, _) in enumerate(drawn()):
        search, rng = Search(reduced, Clock(None, 1)), np.random.default_rng(number)
        sizes = np.diff(reduced.offset)
        drawn_plans = [np.array([rng.integers(size) for size in sizes]) for _ in range(400)]
        plans = [chosen for chosen in drawn_plans if reduced.legal(chosen)][:6]
        for first, second in pairwise(plans):
            search.chosen, search.cost = None, np.inf
            search.offer(first)
            search.offer(second)
            before = search.cost
            search.combine(first, second)
            assert reduced.legal(search.chosen) and search.cost <= before
            assert ((search.chosen == first) | (search.chosen == second)).all()
            gained += search.cost < before
    assert gained


def test_program__is_the_optimum_of_what_is_kept():
    for _, reduced, best in drawn():
        kept = np.ones(len(reduced.costs), dtype=bool)
        assert core_size(reduced, kept) == len(reduced.edge_costs)
        program, start = CoreProgram(reduced, np.zeros(len(reduced.slack))), None
        for _ in range(2):
            found = []
            program.solve(20.0, found.append, start)
            assert all(reduced.legal(chosen) for chosen in found)
            assert reduced.cost(found[-1]) == best
            start = found[-1]


def test_restricted__plans_cost_and_use_what_they_did():
    for number, (_, reduced, _) in enumerate(drawn()):
        rng = np.random.default_rng(number)
        kept = rng.random(len(reduced.costs)) < 0.7
        kept[reduced.offset[1:] - 1] = True
        part, strategies = restricted(reduced, kept), np.flatnonzero(kept)
        assert len(part.edge_costs) == core_size(reduced, kept)
        for _ in range(20):
            chosen = np.array([int(rng.integers(size)) for size in np.diff(part.offset)])
            whole = strategies[part.offset[:-1] + chosen] - reduced.offset[:-1]
            assert part.cost(chosen) == reduced.cost(whole)
            assert (part.profile(chosen) == reduced.profile(whole)).all()
            assert (part.lift(chosen) == reduced.lift(whole)).all()


@each("cost", [2**53 + 3, 2**59 - 1])
def test_solve__bounds_beyond_exact_floats_stay_whole_numbers(cost):
    """A float of either is above it: no bound may be."""
    one = np.array([0, 1])
    problem = Sharding(
        "one", None, np.zeros((1, 2), np.int64), one, np.array([cost]), np.array([0]),
        np.zeros((0, 2), np.int64), np.array([0]), np.array([], np.int64),
    )  # fmt: skip
    answer = solve_iopddl(problem, None, steps=1)
    assert answer.proven and type(answer.bound) is int and answer.bound == answer.cost == cost
    assert answer.report.to_json()["bound"] == cost
    assert f"proven lower bound {cost:,}, 0.0000% below" in str(answer.report)
    assert f"{cost:,}" in proof(answer)
    assert reference_of(cost, cost, "").bound == cost
    shown = Console(width=200, file=io.StringIO())
    shown.print(tables.comparison([answer]))
    assert f"{cost:,}" in shown.file.getvalue()


def test_solve__errors_of_the_program_are_told(monkeypatch):
    """It runs in a thread, whose errors nobody would see."""

    def failing(*_):
        raise MemoryError("no memory for the program")

    monkeypatch.setattr(search, "CoreProgram", failing)
    problem, *_ = drawn()[0]
    with pytest.raises(MemoryError, match="for the program"):
        solve_iopddl(problem, None, seed=3, steps=3)


def test_search__shrinks_to_what_better_plans_take():
    """Plans cost what they did, the bound is no worse, and every better plan is still there."""
    shrunk = 0
    for _, reduced, best in drawn():
        looking, rng = Search(reduced, Clock(None, 1)), np.random.default_rng(0)
        for _ in range(30):
            looking.dual.step(float(best - reduced.constant))
        for _ in range(400):
            looking.offer(np.array([rng.integers(size) for size in np.diff(reduced.offset)]))
        if looking.chosen is None:
            continue
        cost, before, prices = looking.cost, looking.chosen, looking.dual.price
        whole = certify(reduced, looking.model, prices, looking.dual.settle()[0])
        looking.kept = kept = whole.better(cost)
        looking.shrink()
        if looking.reduced is reduced:
            continue
        shrunk += 1
        left, own = looking.reduced, looking.numbers
        assert (left.costs == reduced.costs[own]).all()
        assert left.cost(looking.chosen) - left.constant == cost
        assert (reduced.offset[:-1] + before == own[left.offset[:-1] + looking.chosen]).all()
        assert certify(left, looking.model, prices, looking.dual.settle()[0]).bound >= whole.bound
        assert kept[least_costs(reduced) < cost].all()
        looking.run()
        assert looking.bound <= best - reduced.constant <= looking.cost
        assert looking.proven == (looking.cost == best - reduced.constant)
    assert shrunk > 2


@pytest.mark.slow
@needs_files
@pytest.mark.parametrize("letter", "BG")
def test_solve__the_contests_small_problems_are_proven(letter):
    problem = load_iopddl(FOLDER / f"asplos-2025-iopddl-{letter}.json.gz")
    answer = solve_iopddl(problem, 60.0, processor=True)
    assert answer.cost == contest_record(problem.name).best
    assert answer.bound <= contest_record(problem.name).best
