"""``evaluate``: return, plan and gap to the reference, for any model and environment."""

import gymnasium as gym
import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.core.registry import task_of
from parenvs.errors import ParenvsError
from parenvs.wrappers import MaskInObservation


def first_legal(observation, mask):
    return int(mask.argmax())


def optimal_actions(env):
    """The actions of the proven optimum of ``PipelineCut-v0``, one after the other."""
    space = env.unwrapped.game.space
    best = task_of(space).reference(space)
    return [
        int(np.flatnonzero((space.pivots == p) & (space.devices == d))[0])
        for p, d in zip(best.plan.cuts, best.plan.device_cuts, strict=True)
    ]


@pytest.mark.slow
def test_evaluate__optimal_policy_has_no_gap():
    env = gym.make("PipelineCut-v0", instance="vgg-19", cluster="B")
    actions = iter(optimal_actions(env))
    found = parenvs.evaluate(lambda observation, mask: next(actions), env)
    assert found.gap == pytest.approx(0, abs=1e-12)
    assert found.reference == pytest.approx(found.report.cost, rel=1e-12) and found.proven
    assert found.plan == found.best_report.plan
    assert found.report.legal and len(found.returns) == 0
    assert "cost 0.000% above that of the optimum" in str(found)


@each(
    ("env_id", "kwargs"),
    [
        ("PipelineCut-v0", {"instance": "vgg-19", "cluster": "B"}),
        ("OperatorPartition-v0", {"instance": "vgg-19"}),
        ("OperatorPartition-v0", {"instance": "vgg-19", "reward": "step_time"}),
        ("DataParallel-v0", {"instance": "vgg-19"}),
    ],
)
def test_evaluate__every_environment(env_id, kwargs):
    env = gym.make(env_id, **kwargs)
    found = parenvs.evaluate(first_legal, env, seed=3)
    report = found.report
    value = report.value
    assert found.value == pytest.approx(value, rel=1e-9)
    space = env.unwrapped.game.space
    assert found.value <= task_of(space).reference(space).value * (1 + 1e-9)
    assert found.gap == pytest.approx(report.cost / found.reference - 1, abs=1e-12)
    assert found.gap >= -1e-9 and found.score == pytest.approx(1 / (1 + found.gap))
    again = parenvs.evaluate(first_legal, MaskInObservation(gym.make(env_id, **kwargs)), seed=3)
    assert (again.value, again.plan) == (found.value, found.plan)


def test_evaluate__illegal_episode():
    env = gym.make("PipelineCut-v0", instance="vgg-19", cluster="B")
    found = parenvs.evaluate(lambda observation, mask: mask.argmin(), env)
    assert (found.value, found.gap) == (-1.0, None)
    assert "illegal" in str(found)


class Model:
    """A model as SB3 has them; ``masked`` ones take masks."""

    def __init__(self):
        self.asked = []

    def set_random_seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def predict(self, observation, deterministic=False, action_masks=None):
        self.asked.append(deterministic)
        legal = np.flatnonzero(action_masks)
        return (legal[0] if deterministic else self.rng.choice(legal)), None


def test_evaluate__sampled_episodes():
    env = gym.make("PipelineCut-v0", instance="vgg-19", cluster="B")
    model = Model()
    found = parenvs.evaluate(model, env, episodes=20, seed=0)
    assert model.asked == [True] * 2 + [False] * 40
    assert found.returns.shape == (20,)
    assert found.best_value == max(found.value, found.returns.max())
    best = parenvs.judge(found.best_report.plan).value
    assert best == pytest.approx(found.best_value) or found.best_value == -1
    np.testing.assert_array_equal(
        parenvs.evaluate(Model(), env, episodes=20, seed=0).returns, found.returns
    )
    assert "20 sampled episodes" in str(found)


GENERATED = ("PartitionPlan-v2", "PipelinePlan-v0", "IntraOpSharding-v2", "HybridPlan-v2")


@each("env_id", GENERATED)
def test_evaluate__reference_is_of_the_problem_that_was_played(env_id):
    """With sampled episodes, too, where every reset takes another problem."""
    env = gym.make(env_id)
    found = parenvs.evaluate(Model(), env, episodes=2, seed=5)
    alone = parenvs.evaluate(Model(), gym.make(env_id), seed=5)
    assert (found.report.cost, found.reference) == (alone.report.cost, alone.reference)
    assert found.plan.instance == found.best_report.plan.instance
    assert found.gap == pytest.approx(found.report.cost / found.reference - 1)


def test_evaluate__errors():
    with pytest.raises(ParenvsError, match="evaluate takes an environment of parenvs"):
        parenvs.evaluate(first_legal, gym.make("CartPole-v1"))
    with pytest.raises(ParenvsError, match="evaluate takes an environment of parenvs"):
        parenvs.evaluate(first_legal, "PipelineCut-v0")
    with pytest.raises(ParenvsError, match="a model needs predict"):
        parenvs.evaluate(3, gym.make("PipelineCut-v0"))
