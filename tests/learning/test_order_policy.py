import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch
from drawn_orders import drawn

from parenvs.agents.learning.order import train as training
from parenvs.agents.learning.order.policy import DESCRIBED, OrderExtractor, describe
from parenvs.agents.learning.order.train import RelativeVecEnv, sample, sample_and_search, train
from parenvs.agents.order.heuristics import by_rule
from parenvs.tasks.order.game import MicroBatchOrderVectorEnv
from parenvs.tasks.order.problem import Order

TIER = "p4-m8"


@pytest.fixture(scope="module")
def agent():
    return train(TIER, 0, 1024, pool=4)


def seen(problem, order):
    """The observation after some actions, as tensors of one row."""
    env = MicroBatchOrderVectorEnv(1, problem=problem)
    observation, _ = env.reset()
    for action in order:
        observation, *_ = env.step(np.array([action]))
    return {key: torch.from_numpy(value) for key, value in observation.items()}


def test_describe__does_not_depend_on_the_numbers_of_micro_batches():
    problem = drawn(np.random.default_rng(0), 4, 6)
    shuffled = np.array([3, 5, 0, 1, 4, 2])
    other = Order(problem.forward[:, shuffled], problem.backward[:, shuffled])
    order = [5, 0, 1]
    one = describe(seen(problem, order))
    two = describe(seen(other, [int(np.flatnonzero(shuffled == m)[0]) for m in order]))
    assert torch.allclose(one[0][:, shuffled], two[0], atol=1e-5)
    assert torch.allclose(one[1], two[1], atol=1e-5)
    assert one[2][0].tolist() == [0, 0, 1, 1, 1, 0]


def test_describe__idle_time_is_that_of_the_next_turn():
    """Stage 0 is done at 3 + 1 after the first micro-batch's passes, and never waits for input."""
    problem = Order(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[1.0, 2.0], [1.0, 2.0]]))
    own, _, left = describe(seen(problem, [0]))
    # Frontier: stage 0 at 1, stage 1 at 3 (its backward pass follows). Micro-batch 1 is through
    # stage 0 at 3, so stage 1 does not wait; the pass work of all is 3 on average, half of it 1.5.
    assert own[0, 1, 6].item() == pytest.approx(0.0, abs=1e-5)
    assert left[0].tolist() == [0, 1]
    own, _, _ = describe(seen(problem, []))
    # At first stage 1 waits for the forward pass on stage 0: 1 or 2, of a mean work of 3.
    assert own[0, :, 7].tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-5)


def test_extractor__described_observations_give_the_same():
    batch = MicroBatchOrderVectorEnv(4, tier=TIER, pool=4, copy=False)
    extractor = OrderExtractor(batch.single_observation_space)
    observation, _ = batch.reset(seed=0)
    bare = {key: torch.from_numpy(np.array(value)) for key, value in observation.items()}
    parts = training.described(observation)
    shown = {key: torch.from_numpy(parts[key]) for key in DESCRIBED}
    assert torch.equal(extractor(bare), extractor(shown))


def test_relative_env__pays_by_how_much_an_order_beats_the_pyramid():
    batch = MicroBatchOrderVectorEnv(2, "SameStep", tier=TIER, pool=3, copy=False)
    env = RelativeVecEnv(batch)
    env.seed(0)
    env.reset()
    problems = [batch.game.problem(row) for row in range(2)]
    pyramid = by_rule(problems[0], "pyramid").plan.order
    for position in range(8):
        _, rewards, dones, _ = env.step(np.array([pyramid[position], position]))
    assert dones.all()
    assert rewards[0] == pytest.approx(0, abs=1e-6)
    ratio = by_rule(problems[1], "pyramid").cost / float(problems[1].length(np.arange(8)))
    assert rewards[1] == pytest.approx(20 * (ratio - 1), abs=1e-5)


def test_train__is_deterministic(agent):
    again = train(TIER, 0, 1024, pool=4)
    for one, other in zip(agent.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("plan", [sample, sample_and_search])
def test_sample__judges_as_many_orders_as_it_says(agent, plan):
    problem = drawn(np.random.default_rng(1), 5, 7)
    answer = plan(agent, problem, 20, np.random.default_rng(0))
    assert answer.evaluations == 20
    assert sorted(answer.plan.order) == list(range(7))
    assert answer.report.length_seconds == answer.cost
    one = plan(agent, problem, 1, np.random.default_rng(0))
    assert answer.cost <= one.cost  # the greedy order is among them
