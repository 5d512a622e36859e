"""Partitions without proof: what each of them is, and that none beats the exact one."""

import numpy as np
import partition_toys as toys
import pytest
from cases import slow
from expert_names import expert_by_names, expert_dimensions

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.planners import (
    data_parallel,
    expert,
    greedy,
    random_episodes,
    random_search,
)

RULES = ("shardy", "automap")
SETTINGS = [
    (scope, reward) for scope in ("variables", "inputs") for reward in ("paper", "step_time")
]


def report_of(space, answer):
    """What the judge says of the answer's plan, whose return must be the answer's."""
    problem = space.problem
    report = problem.report(answer.plan)
    assert report.legal, report.reasons
    return report


def spaces(name, rules="shardy"):
    for scope, reward in SETTINGS:
        space = toys.space_of(toys.shipped(name, rules), scope, reward)
        if space is not None:
            yield space


@pytest.mark.thorough
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", *slow("bert-48")])
def test_partition_heuristics__none_beats_the_optimum(name, rules):
    """Legal, worth what they say, and at most the optimum."""
    for space in spaces(name, rules):
        best = exact_partition(space.problem).value
        rng = np.random.default_rng(0)
        for answer in (greedy(space), random_search(space, 20, rng)):
            assert answer.value <= best + 1e-9
            assert answer.problem.reward == space.problem.reward
            assert (answer.status, answer.bound) == ("feasible", None)
            value = report_of(space, answer).value_of(space.problem.reward)
            assert value == pytest.approx(answer.value, abs=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", toys.INSTANCES)
def test_partition_heuristics__data_parallel_is_the_batch_of_every_input(name):
    problem = toys.shipped(name)
    graph = problem.graph
    space = toys.space_of(problem, "inputs")
    answer = data_parallel(space)
    plan = report_of(space, answer).plan
    assert plan.partition == {graph.paths[i]: 0 for i in problem.inputs}
    batches = {graph.shape(graph.parameter_tensor[i])[0] for i in problem.inputs}
    assert batches == {graph.batch_size}
    # It gains from data parallelism: near an eighth of the step and its all-reduces.
    timed = toys.space_of(problem, "variables", "step_time")
    assert data_parallel(timed).value > 0.7


@pytest.mark.thorough
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", toys.SHIPPED)
def test_partition_heuristics__expert(name, rules):
    space = toys.space_of(toys.shipped(name, rules))
    answer = expert(space)
    report = report_of(space, answer)
    assert report.variables > 0
    assert report.value == pytest.approx(answer.value)
    assert answer.value <= exact_partition(space.problem).value + 1e-9
    assert np.array_equal(answer.report.chosen, expert_by_names(space.problem))
    named = expert_dimensions(space.problem.graph)
    for path, dimension in report.plan.partition.items():
        assert named.get(path, dimension) == dimension
    if name.startswith("t5"):  # Table 3 of the paper, all of it
        assert named.items() <= report.plan.partition.items()


@pytest.mark.thorough
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", ["vgg-19", "t5-base", *slow("bert-48")])
def test_partition_heuristics__greedy(name, rules):
    """It takes the best class per class that it costs, and keeps GWMIN's promise."""
    for space in spaces(name, rules):
        problem = space.problem
        weights = problem.returns.weights
        worth = {int(c): float(weights[c]) for c in space.classes}
        rivals = {c: toys.rivals_of(problem)[c] & set(worth) for c in worth}
        answer = greedy(space)
        assert problem.legal(answer.report.chosen)
        open_ = {c for c in worth if worth[c] > 0}
        assert answer.report.chosen.any() == bool(open_)
        promise = sum(worth[c] / (len(rivals[c] & open_) + 1) for c in open_)
        base = problem.returns.base
        assert answer.value - base >= promise - 1e-9
        chosen = set(np.flatnonzero(answer.report.chosen).tolist())
        assert chosen <= open_
        for c in open_ - chosen:  # nothing worth having is left open
            assert rivals[c] & chosen


@pytest.mark.parametrize("name", ["vgg-19", "t5-11b"])
def test_partition_heuristics__random_episodes(name):
    """Legal, complete, and of the environment's distribution."""
    for space in spaces(name):
        episodes = random_episodes(space, 200, np.random.default_rng(0))
        assert episodes.shape == (200, len(space.classes))
        assert episodes.dtype == bool
        for row in episodes:
            taken = set(np.flatnonzero(row).tolist())
            assert not any(set(space.rivals[k]) & taken for k in taken)
        assert space.problem.legal(space.chosen(episodes)[0])
        share = random_episodes(space, 2000, np.random.default_rng(1))[:, 0].mean()
        assert 0.45 < share < 0.55


@pytest.mark.thorough
def test_partition_heuristics__random_search():
    """The same under a seed, and never worse with more."""
    space = toys.space_of(toys.shipped("t5-base"), reward="step_time")
    values = []
    for count in (1, 2, 5, 30, 200, 4096, 4097, 9000):
        one, two = (random_search(space, count, np.random.default_rng(7)) for _ in range(2))
        assert np.array_equal(one.report.chosen, two.report.chosen)
        assert one.value == two.value
        assert one.evaluations == count
        values.append(one.value)
    assert values == sorted(values)
    assert values[-1] > values[0]
    other = random_search(space, 1, np.random.default_rng(8))
    assert not np.array_equal(
        other.report.chosen, random_search(space, 1, np.random.default_rng(7)).report.chosen
    )
