"""Partition problems in the contest's format: our exact optimum, and the way back."""

import numpy as np
import pytest
from cases import slow

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.sharding.files import NANOSECONDS, Exchange


@pytest.fixture(scope="module")
def vgg():
    return load_partitioning("vgg-19", "A", reward="step_time")


def test_exchange__any_legal_partition_costs_and_uses_the_same(vgg):
    exchange, rng = Exchange.of(vgg), np.random.default_rng(0)
    problem = exchange.problem
    first = problem.offset[:-1]
    for _ in range(20):
        chosen = np.zeros(len(vgg.classes), dtype=bool)
        for label in rng.permutation(exchange.classes):
            chosen[label] = rng.random() < 0.5
            chosen[label] &= vgg.legal(chosen)
        report = problem.report(problem.plan(exchange.strategies(chosen)))
        assert report.cost == pytest.approx(vgg.step_seconds(chosen) * NANOSECONDS, abs=len(first))
        peak = vgg.footprint.memory(chosen).peak
        assert peak <= report.peak <= peak + len(problem)
        assert (exchange.chosen(report.plan) == chosen).all()


@pytest.mark.parametrize("share", [1.0, *slow(0.98)])
def test_exchange__optimum_is_that_of_exact_partition(vgg, share):
    """Less memory than the fastest partition takes makes the step four times as long."""
    limit = share * exact_partition(vgg).report.memory.peak + 1e4  # bytes are rounded up
    exchange = Exchange.of(vgg, limit)
    answer = solve_iopddl(exchange.problem, None, steps=1)
    exact = exact_partition(vgg, limit)
    assert answer.report.legal and answer.gap < 1e-5
    chosen = exchange.chosen(answer.plan)
    assert vgg.footprint.memory(chosen).peak <= limit
    assert vgg.step_seconds(chosen) == pytest.approx(exact.report.step_seconds, abs=1e-6)


def test_exchange__refuses_solutions_that_are_no_plan(vgg):
    exchange = Exchange.of(vgg)
    strategies = np.ones(len(exchange.problem), dtype=np.int64)
    strategies[len(exchange.classes)] = 0
    strategies = np.minimum(strategies, exchange.problem.sizes - 1)
    with pytest.raises(ParenvsError, match="the solution is no plan: it takes what is forbidden"):
        exchange.chosen(exchange.problem.plan(strategies))
