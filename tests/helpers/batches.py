"""What the tests of batched environments share."""

import copy
import pickle
from functools import partial

import numpy as np
from cases import each
from gymnasium.vector import AutoresetMode, SyncVectorEnv

MODES = ("NextStep", "SameStep", "Disabled")
modes = each("mode", MODES)
forks = each("fork", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])


def named(kwargs):
    """The name of a case, from its arguments."""
    return "-".join(map(str, kwargs.values()))


def assert_same(one, other, where=""):
    """Equal structure, types, shapes and bytes."""
    if isinstance(one, (dict, tuple)):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert one.shape == other.shape
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, where)
    else:
        assert type(one) is type(other), where
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        assert one.tobytes() == other.tobytes(), (where, one, other)


def both(kind, kwargs, count, mode="NextStep", **more):
    """A batched environment of a class, and a ``SyncVectorEnv`` of single ones."""
    batched = kind(count, autoreset_mode=mode, **more, **kwargs)
    single = SyncVectorEnv(
        [partial(kind.single, **kwargs)] * count, autoreset_mode=AutoresetMode(mode)
    )
    return batched, single


def drawn(masks, rng, illegal=0.0):
    """A uniform legal action of each environment, some of them replaced by any number."""
    actions = (rng.random(masks.shape) * masks).argmax(axis=1)
    other = rng.integers(-3, masks.shape[1] + 3, len(masks))
    return np.where(rng.random(len(masks)) < illegal, other, actions)


def assert_alike(batched, single, mode, rng, steps=30, illegal=0.05, resets=None):
    """Step a batch and single environments side by side; ``resets``: step -> options of a reset."""
    assert_same(batched.reset(seed=4), single.reset(seed=4))
    over = np.zeros(batched.num_envs, dtype=bool)
    for turn in range(steps):
        if over.any() and mode == "Disabled":
            masks = ({"reset_mask": over.copy()} for _ in range(2))
            assert_same(batched.reset(options=next(masks)), single.reset(options=next(masks)))
        if turn in (resets or {}):
            assert_same(*(env.reset(options=dict(resets[turn])) for env in (batched, single)))
        actions = drawn(batched.action_masks(), rng, illegal)
        outcome = batched.step(actions)
        assert_same(outcome, single.step(actions))
        assert batched.observation_space.contains(outcome[0])
        over = outcome[2]


def deface(thing):
    """Write over every array."""
    for value in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(value, (dict, tuple)):
            deface(value)
        elif isinstance(value, np.ndarray) and value.dtype == object:
            deface(tuple(x for x in value if x is not None))
        elif isinstance(value, np.ndarray):
            assert value.flags.writeable
            value[...] = 1
