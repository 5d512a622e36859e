"""The batched ``PipelinePlan-v0``: ``SyncVectorEnv`` of single ones, to the last bit."""

import copy
import pickle
import time
import warnings
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import toys
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parenvs import Cluster, Pipeline, judge
from parenvs.envs.pipeline_plan import PipelinePlanEnv
from parenvs.envs.pipeline_plan_vector import PipelinePlanVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.judge import plan_values
from parenvs.plan_batch import PlanBatch
from parenvs.plan_space import PlanSpace
from parenvs.plan_tables import PlanTables

ID = "PipelinePlan-v0"
MODES = ("NextStep", "SameStep", "Disabled")
FIXED = [
    {"instance": "t5-base", "cluster": "C"},
    {"instance": "t5-11b", "cluster": "16x8:a100", "stages": 8},  # units are servers
    {"instance": "vgg-19", "cluster": "1x12:a100", "stages": 2, "micro_batches": 3},
    {"instance": "plan-test/cnn-003"},
]
DRAWN = [
    {"repeat": 3},
    {"ranges": "outside", "repeat": 2, "family": "transformer"},
    {"instance": "plan-outside", "repeat": 2},
    {"instance": "plan-validation"},
]


def named(kwargs):
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


def both(kwargs, count, mode="NextStep", **more):
    """A batched environment and a ``SyncVectorEnv`` of single ones."""
    batched = PipelinePlanVectorEnv(count, autoreset_mode=mode, **more, **kwargs)
    single = SyncVectorEnv(
        [partial(PipelinePlanEnv, **kwargs)] * count, autoreset_mode=AutoresetMode(mode)
    )
    return batched, single


def drawn(masks, rng, illegal=0.0):
    """A uniform legal action of each environment, some of them replaced by any number."""
    actions = (rng.random(masks.shape) * masks).argmax(axis=1)
    other = rng.integers(-3, masks.shape[1] + 3, len(masks))
    return np.where(rng.random(len(masks)) < illegal, other, actions)


def compare(batched, single, rng, steps, illegal=0.0, resets=0.0, options=None):
    """Play both alike, with partial resets now and then; episodes that ended."""
    disabled, ended = batched.autoreset_mode == AutoresetMode.DISABLED, 0
    for _ in range(steps):
        masks = batched.action_masks()
        assert_same(masks, np.array(single.call("action_masks")))
        outcome = [env.step(drawn(masks, rng, illegal)) for env in (batched,)]
        outcome.append(single.step(batched.last))
        assert_same(*outcome)
        ended += int(outcome[0][2].sum())
        begin = outcome[0][2].copy() if disabled else np.zeros(len(masks), dtype=bool)
        begin |= rng.random(len(masks)) < resets
        if begin.any():
            asked = {} if options is None or rng.random() < 0.5 else options
            both_reset = [
                env.reset(options={**asked, "reset_mask": begin.copy()})
                for env in (batched, single)
            ]
            assert_same(*both_reset)
    for index in range(batched.num_envs):
        assert batched.plan(index) == single.envs[index].plan()
    return ended
