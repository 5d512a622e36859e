"""The agents that learn: they rate candidates one by one, play what fits, and are paid regrets."""

import elastic_toys as toys
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch
from gymnasium.vector import AutoresetMode
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from parenvs.agents.elastic.policies import (
    MASK,
    REMEMBERED,
    ElasticLstmPolicy,
    ElasticPolicy,
    PaidVecEnv,
    with_mask,
)
from parenvs.agents.learning.elastic.train import AGENTS, all_returns, train, weights
from parenvs.agents.learning.elastic.train import returns as played
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.game import ElasticPlanEnv, ElasticPlanVectorEnv
from parenvs.tasks.elastic.references import hindsight


@pytest.fixture(scope="module")
def problem():
    return toys.problem("wide", 8)


def tensors(observation):
    return {key: torch.as_tensor(value)[None] for key, value in observation.items()}


def test_train__scores_do_not_depend_on_the_order_of_candidates(problem):
    env = ElasticPlanEnv(problem=problem)
    torch.manual_seed(0)
    policy = ElasticPolicy(env.observation_space, env.action_space, lambda _: 1e-3)
    observation = env.reset(seed=0)[0]
    order = np.random.default_rng(0).permutation(64)
    other = {**observation, **{key: observation[key][order] for key in ("plans", "change")}}
    scores, worth = [], []
    for each in (observation, other):
        scores.append(policy.get_distribution(tensors(each)).distribution.logits[0].detach())
        worth.append(policy.predict_values(tensors(each)).item())
    assert scores[0].numpy()[order] == pytest.approx(scores[1].numpy(), abs=1e-5)
    assert worth[0] == pytest.approx(worth[1], abs=1e-5)
    assert np.ptp(scores[0][:10].numpy()) > 1e-4


def test_train__recurrent_policy_gives_illegal_plans_no_chance(problem):
    batch = ElasticPlanVectorEnv(16, problem=problem)
    observation, info = batch.reset(seed=0)
    mask = info["action_mask"].astype(bool)
    space = with_mask(batch.single_observation_space)
    torch.manual_seed(0)
    policy = ElasticLstmPolicy(space, batch.single_action_space, lambda _: 1e-3)
    seen = {key: torch.as_tensor(value) for key, value in observation.items()}
    seen[MASK] = torch.as_tensor(mask, dtype=torch.float32)
    zeros = torch.zeros(1, 16, REMEMBERED)
    state, start = RNNStates((zeros, zeros), (zeros, zeros)), torch.zeros(16)
    found = policy.get_distribution(seen, state.pi, start)[0].distribution.probs.detach().numpy()
    assert (found[~mask] == 0).all() and (found[mask] > 0).all() and not mask.all()
    assert found.sum(axis=1) == pytest.approx(np.ones(16))
    for _ in range(50):
        plans, _, chances, _ = policy(seen, state, start)
        assert mask[np.arange(16), plans].all()
    values, again, entropy = policy.evaluate_actions(seen, plans, state, start)
    assert again.detach().numpy() == pytest.approx(chances.detach().numpy(), abs=1e-6)
    assert (entropy > 0).all()
    (again.mean() + entropy.mean() + values.mean()).backward()
    given = [x.grad for x in policy.parameters() if x.grad is not None]
    assert all(torch.isfinite(x).all() for x in given)
    assert policy.lstm_actor.weight_ih_l0.grad.abs().max() > 0


def test_train__the_recurrent_policy_remembers(problem):
    agent = train("recurrent-ppo", steps=1, problem=problem, envs=2)
    env = ElasticPlanEnv(problem=problem)
    observation, info = env.reset(seed=0)
    seen = {**observation, MASK: info["action_mask"].astype(np.float32)}
    _, first = agent.predict(seen, deterministic=True)
    _, second = agent.predict(seen, first, deterministic=True)
    assert first[0].shape == (1, 1, REMEMBERED) and np.abs(first[0] - second[0]).max() > 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("name", AGENTS)
def test_train__plays_the_courses_of_its_seeds(problem, name):
    agent = train(name, seed=0, steps=1, problem=problem, envs=2)
    found = played(agent, range(3), problem=problem)
    small = toys.problem("bulk", 8)
    again, other = all_returns(agent, [problem, small], range(3))
    assert again["value"] == pytest.approx(found["value"], abs=1e-12)
    assert other["value"] == pytest.approx(played(agent, range(3), problem=small)["value"])
    best = [problem.best[problem.drawn(seed).nodes].sum() for seed in range(3)]
    assert found["share"] == pytest.approx(found["value"] * problem.ideal / np.array(best))


@pytest.mark.thorough
def test_train__seeds_decide(problem):
    first, same, other = (
        weights(train("ppo", seed, 100, envs=4, problem=problem)) for seed in (0, 0, 1)
    )
    assert all((first[key] == same[key]).all() for key in first)
    assert (first["hidden"] != other["hidden"]).any()


def test_train__refuses_unknown_agents():
    with pytest.raises(ParenvsError, match="unknown agent 'poo'"):
        train("poo")


@pytest.mark.thorough
@pytest.mark.parametrize("shows_mask", [False, True])
def test_train__payments_are_regrets_to_hindsight(problem, shows_mask):
    batch = ElasticPlanVectorEnv(8, autoreset_mode=AutoresetMode.SAME_STEP, problem=problem)
    env, rng = PaidVecEnv(batch, shows_mask), np.random.default_rng(0)
    env.seed(0)
    observation = env.reset()
    assert len(set(batch.game.home.interval.tolist())) > 1  # episodes do not begin together
    total, length = np.zeros(8), problem.intervals
    courses: list[Course | None] = [None] * 8
    ended = 0
    for _ in range(3 * length):
        masks = batch.action_masks()
        if shows_mask:
            assert (observation[MASK] == masks).all()
            assert env.observation_space[MASK].contains(observation[MASK][0])
        begun = batch.game.home.interval == 0
        for row in begun.nonzero()[0]:
            courses[row] = Course(*(x.copy() for x in batch.game.home.course.of(row)))
            total[row] = 0.0
        plans = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        observation, paid, dones, infos = env.step(plans)
        assert paid.max() < 1e-4
        total += paid
        for row in dones.nonzero()[0]:
            if courses[row] is None:  # it was under way at first
                continue
            most = hindsight(problem, courses[row]).value
            earned = infos[row]["episode"]["r"]
            assert total[row] == pytest.approx((earned - most) * length, abs=1e-3)
            assert (MASK in infos[row]["terminal_observation"]) == shows_mask
            ended += 1
    assert ended >= 8
