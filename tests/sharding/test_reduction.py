"""The reduction against brute force: the optimum stays, and choices are lifted at their cost."""

from itertools import product

import numpy as np
import pytest
from cases import slow
from drawn_intra_op import draw, optimum

from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.sharding.problem import FORBIDDEN, NEVER, Sharding, reduce


def choices(reduced):
    """All choices of a reduced problem, as arrays."""
    sizes = np.diff(reduced.offset)
    return (np.array(x, dtype=np.int64) for x in product(*(range(size) for size in sizes)))


@pytest.mark.thorough
@pytest.mark.parametrize("edges", [0, 8, *slow(4, 14)])
def test_reduce__keeps_the_optimum_and_lifts_every_choice_at_its_cost(edges):
    kept = legal_choices = 0
    for seed in range(60):
        problem = draw(seed, most=4, edges=edges, forbidden=0.1, slack=0.45)
        best = optimum(problem)
        try:
            reduced = reduce(problem)
        except InfeasibleError:
            assert best is None, seed
            continue
        kept += len(reduced)
        found = None
        for choice in choices(reduced):
            report = problem.report(problem.plan(reduced.lift(choice)))
            cost, legal = reduced.cost(choice), reduced.legal(choice)
            if cost < NEVER:
                assert report.cost == cost, seed
                assert report.legal == legal, seed
            if legal:
                legal_choices += 1
                found = cost if found is None else min(found, cost)
        assert found == best, seed
    if edges > 4:
        assert kept > 20 and legal_choices > 40  # not everything is reduced away


def test_reduce__stops_when_asked_and_stays_exact():
    for seed in range(40):
        problem, asked = draw(seed, edges=10), iter(range(10**6))
        best = optimum(problem)
        try:
            reduced = reduce(problem, lambda asked=asked, seed=seed: next(asked) > seed % 8)
        except InfeasibleError:
            assert best is None
            continue
        costs = [reduced.cost(x) for x in choices(reduced) if reduced.legal(x)]
        assert min(costs, default=None) == best


def test_reduce__refuses_sums_that_do_not_fit():
    one = np.zeros(1, dtype=np.int64)
    problem = Sharding(
        "large", None, np.zeros((20, 2), np.int64), np.arange(21), np.full(20, FORBIDDEN // 10),
        np.zeros(20, np.int64), np.zeros((0, 2), np.int64), one, one[:0],
    )  # fmt: skip
    with pytest.raises(ParenvsError, match="large: its costs can sum to 2e"):
        reduce(problem)
