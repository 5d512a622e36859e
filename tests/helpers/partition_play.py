"""Playing partition environments in tests: masks in every dialect, ways to choose."""

import numpy as np


def equal(a, b):
    """Whether two observations or infos are the same, types included."""
    assert a.keys() == b.keys()
    return all(
        np.asarray(a[key]).dtype == np.asarray(b[key]).dtype and np.array_equal(a[key], b[key])
        for key in a
    )


def mask_of(env, info):
    """The mask, which must be the same in every dialect."""
    assert info.keys() - {"instance", "cost", "step_seconds"} == {"action_mask"}
    mask = info["action_mask"]
    assert mask.dtype == np.int8
    assert mask.shape == (2,)
    assert mask.any()
    assert set(mask.tolist()) <= {0, 1}
    assert env.action_masks().dtype == bool
    assert env.action_masks().tolist() == mask.astype(bool).tolist()
    return mask


def play(env, choose, check=lambda *_: None):
    """An episode; its rewards."""
    observation, info = env.reset()
    check(observation, info)
    rewards, done = [], False
    while not done:
        observation, reward, done, truncated, info = env.step(choose(mask_of(env, info)))
        assert type(reward) is float
        assert type(done) is bool
        assert truncated is False
        check(observation, info)
        rewards.append(reward)
    return rewards


def by_mask(rng, ones=0.5):
    """A random action that the mask allows."""

    def choose(mask):
        action = int(rng.random() < ones)
        return action if mask[action] else 1 - action

    return choose


def iter_of(actions):
    """Actions one after the other, whatever the mask."""
    left = iter(actions)
    return lambda mask: next(left)
