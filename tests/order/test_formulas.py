import numpy as np
import pytest
from cases import each
from drawn_orders import drawn, every_order, longest_path

from parenvs.tasks.hybrid.simulate import ChunkSeconds, simulate
from parenvs.tasks.order import formulas
from parenvs.tasks.order.problem import Order


def test_lengths__are_those_of_the_passes_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(120):
        problem = drawn(rng)
        order = rng.permutation(problem.micro_batches)
        assert float(problem.length(order)) == pytest.approx(longest_path(problem, order), rel=1e-9)


@each("stages", [1, 2, 5])
@each("count", [1, 3, 9])
def test_lengths__equal_micro_batches_take_what_hybrid_plans_simulate(stages, count):
    rng = np.random.default_rng(stages)
    forward, backward = np.round(rng.uniform(0.1, 1, (2, stages, 1)), 6)
    problem = Order(np.repeat(forward, count, 1), np.repeat(backward, count, 1))
    table = simulate(ChunkSeconds(forward, backward, np.zeros_like(forward)), count)
    assert float(problem.length(np.arange(count))) == pytest.approx(table.core, rel=1e-9)


def test_lengths__orders_are_independent_of_each_other():
    problem = drawn(np.random.default_rng(1), 4, 5)
    orders = every_order(5)
    together = problem.length(orders.reshape(4, 30, 5))
    assert together.shape == (4, 30)
    assert together.ravel().tolist() == [float(problem.length(order)) for order in orders]


def test_lengths__of_some_micro_batches():
    """As NEH asks for them: those left out take no time."""
    problem = drawn(np.random.default_rng(2), 3, 6)
    some = np.array([4, 1, 2])
    part = Order(problem.forward[:, some], problem.backward[:, some])
    assert float(problem.length(some)) == float(part.length(np.arange(3)))


def test_lengths__time_reversed():
    """Backwards in time, backward passes are forward passes and the last position is the first."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        problem = drawn(rng)
        mirrored = Order(problem.backward, problem.forward)
        order = rng.permutation(problem.micro_batches)
        assert float(problem.length(order)) == pytest.approx(float(mirrored.length(order[::-1])))


def test_lengths__stages_of_no_seconds_in_front_change_no_bit():
    rng = np.random.default_rng(4)
    problem = drawn(rng, 4, 6)
    none = np.zeros((12, 6))
    padded = formulas.Seconds.of(
        np.concatenate([none, problem.forward]), np.concatenate([none, problem.backward])
    )
    orders = every_order(6)
    assert (formulas.lengths(padded, orders) == problem.length(orders)).all()


@pytest.mark.thorough
def test_insertion_lengths__are_those_of_the_new_orders():
    rng = np.random.default_rng(5)
    for _ in range(60):
        stages, count = int(rng.integers(1, 9)), int(rng.integers(1, 14))
        seconds = formulas.Seconds.of(*rng.random((2, stages, count)))
        placed, rows = int(rng.integers(count)), int(rng.integers(1, 4))
        orders = np.array([rng.permutation(count) for _ in range(rows)])
        placed_orders, chosen = orders[:, :placed], orders[:, placed]
        expected = [
            [formulas.lengths(seconds, np.insert(one, k, new)) for k in range(placed + 1)]
            for one, new in zip(placed_orders, chosen, strict=True)
        ]
        found = formulas.insertion_lengths(seconds, placed_orders, chosen)
        assert np.allclose(found, expected, rtol=1e-14, atol=0)


def test_timetable__is_a_step_of_one_pass_at_a_time():
    rng = np.random.default_rng(5)
    for _ in range(20):
        problem = drawn(rng)
        order = rng.permutation(problem.micro_batches)
        begin, end = formulas.timetable(problem.seconds, order)
        assert end.max() == float(problem.length(order))
        assert np.allclose(end[0] - begin[0], problem.forward)
        assert np.allclose(end[1] - begin[1], problem.backward)
        assert (begin[0, 1:] >= end[0, :-1] - 1e-9).all()  # forward, stage by stage
        assert (begin[1, :-1] >= end[1, 1:] - 1e-9).all()
        assert (begin[1, -1] >= end[0, -1] - 1e-9).all()
        for stage in range(problem.stages):
            starts, ends = begin[:, stage].ravel(), end[:, stage].ravel()
            by_time = np.argsort(starts)
            assert (starts[by_time][1:] >= ends[by_time][:-1] - 1e-9).all()


def test_machine_bound__is_never_above_the_optimum_and_exact_for_one_stage():
    rng = np.random.default_rng(6)
    for _ in range(60):
        problem = drawn(rng)
        best = problem.length(every_order(problem.micro_batches)).min()
        assert problem.bound_seconds <= best * (1 + 1e-12)
        if problem.stages == 1:
            assert problem.bound_seconds == pytest.approx(best)


def test_machine_bound__equal_micro_batches_reach_it():
    problem = Order(np.full((4, 8), 0.5), np.full((4, 8), 1.0))
    assert problem.bound_seconds == pytest.approx((8 + 3) * 1.5)
    assert float(problem.length(np.arange(8))) == pytest.approx(problem.bound_seconds)
