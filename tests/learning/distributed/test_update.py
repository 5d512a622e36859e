"""The update that learners share, without Ray: threads that add up their tensors."""

import threading

import numpy as np
import pytest
from cases import slow

pytest.importorskip("sb3_contrib")

import torch

from parenvs.agents.learning.distributed.update import permutations, update
from parenvs.agents.learning.train.learners import learner_of
from parenvs.agents.learning.vec_env import make_env

ENV, KWARGS = "PipelineCut-v0", {"instance": "vgg-19", "cluster": "B"}
ARRAYS = ("actions", "values", "log_probs", "advantages", "returns", "action_masks")


class Threads:
    """A group of learners in threads of one process."""

    def __init__(self, count):
        self.barrier, self.tensors, self.count = threading.Barrier(count), {}, count

    def of(self, rank):
        group = self

        class Member:
            def add(self, tensor):
                group.tensors[rank] = tensor.clone()
                group.barrier.wait(30)
                tensor.copy_(sum(group.tensors[k] for k in range(group.count)))
                group.barrier.wait(30)

        return Member()


def agent(envs, **overrides):
    env = make_env(ENV, KWARGS, 3, envs)
    steps = env.get_attr("episode_steps")[0]
    overrides = {"n_steps": 8, "batch_size": 50, **overrides}
    model = learner_of("ppo").make(env, ENV, steps, 3, **overrides)
    model._setup_learn(10_000, None)
    return model


def play(model):
    model.collect_rollouts(model.env, _nobody(model), model.rollout_buffer, model.n_steps)


def _nobody(model):
    from stable_baselines3.common.callbacks import CallbackList

    callback = CallbackList([])
    callback.init_callback(model)
    return callback


def share(model, whole, first, count):
    """Give an agent of ``count`` environments those of ``whole`` from ``first`` on."""
    buffer, source = model.rollout_buffer, whole.rollout_buffer
    buffer.reset()
    for name in ARRAYS:
        setattr(buffer, name, getattr(source, name)[:, first : first + count].copy())
    for key, value in source.observations.items():
        buffer.observations[key] = value[:, first : first + count].copy()
    buffer.pos, buffer.full = buffer.buffer_size, True


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shares", "overrides"),
    [
        *slow(((7,), {}), ((4, 3), {"target_kl": 1e-4})),
        *slow(((5, 1, 1), {"normalize_advantage": False})),
        ((4, 3), {}),
        ((5, 1, 1), {"vf_coef": 0.2, "ent_coef": 0.1}),
    ],
)
def test_update__is_that_of_one_learner(shares, overrides):
    """Minibatches of 50 of 56 rows, so that the last has 6 and some learners have none of it."""
    whole = agent(7, **overrides)
    play(whole)
    parts = [agent(count, **overrides) for count in shares]
    for k, (model, count) in enumerate(zip(parts, shares, strict=True)):
        share(model, whole, sum(shares[:k]), count)
        model.policy.load_state_dict(whole.policy.state_dict())
    before = flat(whole)
    np.random.seed(11)
    whole.train()
    np.random.seed(11)
    orders = permutations(whole.n_epochs, 56)
    group, found = Threads(len(shares)), {}

    def learn(k):
        found[k] = update(parts[k], orders, 8 * sum(shares[:k]), group.of(k))

    threads = [threading.Thread(target=learn, args=(k,)) for k in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (flat(whole) - before).abs().max() > 1e-3 or "target_kl" in overrides
    for model in parts:
        assert (flat(model) - flat(whole)).abs().max() < 1e-5
        if "target_kl" not in overrides:  # sb3-contrib 2.7 counts epochs it abandons, too
            assert model._n_updates == whole._n_updates
    logged = whole.logger.name_to_value
    for name in ("policy_gradient_loss", "value_loss", "entropy_loss", "clip_fraction"):
        assert found[0][name] == pytest.approx(logged[f"train/{name}"], abs=1e-5)


def test_update__rows_of_others_count():
    """What one learner played changes the others' weights: no learner learns alone."""
    whole = agent(4)
    play(whole)
    alone = agent(2)
    share(alone, whole, 0, 2)
    alone.policy.load_state_dict(whole.policy.state_dict())
    np.random.seed(1)
    whole.train()
    np.random.seed(1)
    update(alone, permutations(alone.n_epochs, 16))
    assert (flat(alone) - flat(whole)).abs().max() > 1e-4
